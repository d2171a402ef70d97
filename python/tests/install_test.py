"""The wheel in fresh virtual environments, of two versions of Python where there are two."""

import glob
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import needs_torch  # noqa: F401
import torch

ROOT = Path(__file__).resolve().parent.parent.parent
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "flashstep"
WHEEL_MEGABYTES = 60
IMPORT_S = 0.3
NEEDED_BY_TORCH = [
    "filelock",
    "typing_extensions",
    "sympy",
    "mpmath",
    "networkx",
    "jinja2",
    "markupsafe",
    "fsspec",
    "numpy",
]

# In the new environment: an operator, a rank alone, a sharded optimizer and a tokenizer, and what importing costs.
PROGRAM = """
import os, sys, threading, time
import torch
before = set(os.listdir("/proc/self/task")), dict(os.environ)
started = time.perf_counter()
import flashstep
seconds = time.perf_counter() - started
assert (set(os.listdir("/proc/self/task")), dict(os.environ)) == before, "importing started a thread or set a variable"
assert flashstep.__file__.startswith(sys.prefix), flashstep.__file__
q = torch.randn(1, 2, 9, 16, requires_grad=True)
flashstep.attention(q, q, q, causal=True).sum().backward()
net = torch.nn.Linear(3, 2)
model = flashstep.DistributedDataParallel(net)
optimizer = flashstep.ShardedOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-2)
model(torch.ones(4, 3)).sum().backward()
optimizer.step()
try:
    flashstep.attention(q, q[..., :8], q)
except ValueError as error:
    assert str(error).startswith("[attention] expected k of shape"), error
with flashstep.profiling.memory() as recorded:  # of the second library
    torch.ones(2**18)
assert recorded.report().tables["memory"]["peak (MiB)"] == [1.0]
print(sys.version_info[1], seconds)
"""


def without(*names):
    return {key: value for key, value in os.environ.items() if key not in names}


def run(command, **options):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, **options)
    assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-4000:]}"
    return done.stdout


def another_python():
    """A CPython of another minor version, 3.10 to 3.13."""
    own = sys.version_info[1]
    for minor in (12, 13, 10, 11):
        if minor == own:
            continue
        found = [
            shutil.which(f"python3.{minor}"),
            *glob.glob(str(Path.home() / f".pyenv/versions/3.{minor}.*/bin/python3")),
        ]
        for python in found:  # a name may stand for a version that is not chosen
            if python and subprocess.run([python, "-c", ""], capture_output=True).returncode == 0:
                return minor, python
    return None


def torch_for(minor, python):
    """A folder with torch 2.11 for that Python, kept in the cache; the GPU libraries are those of this one."""
    folder = CACHE / f"python3.{minor}"
    if not (folder / "torch" / "version.py").exists():
        made = CACHE / f"{folder.name}.unfinished"
        shutil.rmtree(made, ignore_errors=True)
        options = ["--no-input", "--no-cache-dir", "--no-deps", "--only-binary=:all:", "--target", made]
        wanted = [f"torch=={torch.__version__.split('+')[0]}", *NEEDED_BY_TORCH]
        command = [str(word) for word in (python, "-m", "pip", "install", *options, *wanted)]
        if subprocess.run(command, capture_output=True).returncode != 0:
            raise unittest.SkipTest(f"PyPI gives no torch for Python 3.{minor}")
        made.rename(folder)
    nvidia = Path(torch.__file__).parent.parent / "nvidia"
    if nvidia.exists() and not (folder / "nvidia").exists():
        (folder / "nvidia").unlink(missing_ok=True)  # one that leads nowhere
        (folder / "nvidia").symlink_to(nvidia)
    return folder


class Install(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        # Of the objects of the build that the tests are from, build/PRESET/lib/libflashstep.so.
        preset = Path(os.environ["FLASHSTEP_LIBRARY"]).parent.parent.name
        environment = {**without("FLASHSTEP_LIBRARY", "PYTHONPATH"), "FLASHSTEP_PRESET": preset}
        run(
            [
                sys.executable,
                "-m",
                "pip",
                "wheel",
                "--no-deps",
                "--no-build-isolation",
                "--wheel-dir",
                cls.folder.name,
                ROOT,
            ],
            env=environment,
        )
        cls.wheel = next(Path(cls.folder.name).glob("flashstep-*.whl"))

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def use(self, python, packages):
        """Installs the wheel beside torch and runs the program."""
        place = Path(self.folder.name) / f"venv{python.replace('/', '_')}"
        environment = without("FLASHSTEP_LIBRARY", "PYTHONPATH", "FLASHSTEP_LIBTORCH")
        run([python, "-m", "venv", place])
        own = next(place.glob("lib/python3.*/site-packages"))
        (own / "torch_of_the_test.pth").write_text(f"{packages}\n")
        run([place / "bin" / "python3", "-m", "pip", "install", "--no-deps", "--no-index", self.wheel], env=environment)
        moved = Path(self.folder.name) / "elsewhere"  # nothing of the checkout is at hand
        moved.mkdir(exist_ok=True)
        minor, seconds = run([place / "bin" / "python3", "-c", PROGRAM], cwd=moved, env=environment).split()
        self.assertLess(float(seconds), IMPORT_S)
        return int(minor)

    def test_this_python(self):
        packages = Path(torch.__file__).parent.parent
        self.assertEqual(self.use(sys.executable, packages), sys.version_info[1])

    def test_another_python(self):
        other = another_python()
        if other is None:
            self.skipTest("there is one version of Python only")
        minor, python = other
        self.assertEqual(self.use(python, torch_for(minor, python)), minor)

    def test_the_wheel_carries_no_path_and_is_small(self):
        self.assertLess(self.wheel.stat().st_size, WHEEL_MEGABYTES * 10**6)
        self.assertIn("-py3-none-linux_", self.wheel.name)
        with tempfile.TemporaryDirectory() as folder:
            shutil.unpack_archive(self.wheel, folder, "zip")
            for library in Path(folder).glob("flashstep/lib/*.so*"):
                dynamic = run(["readelf", "-d", library])
                for path in [
                    line.split("[")[1] for line in dynamic.splitlines() if "RPATH" in line or "RUNPATH" in line
                ]:
                    self.assertEqual(path.rstrip("]"), "$ORIGIN", library.name)
            self.assertTrue((Path(folder) / "flashstep" / "py.typed").exists())

    def test_another_torch_is_refused(self):
        code = "import torch; torch.__version__ = '2.10.0'\nimport flashstep"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("expected torch 2.11, for which this flashstep was built, got torch 2.10.0", done.stderr)


if __name__ == "__main__":
    unittest.main()
