"""Builds Python's package: libflashstep.so by CMake, and around it a wheel for every CPython from 3.10 to 3.13 (PEP
517).

    pip install .                     CUDA kernels where nvcc is found; FLASHSTEP_CUDA=1 or 0 decides
    python3 python/build_backend.py   the library into python/flashstep/lib, to use the checkout as it is
    FLASHSTEP_PRESET=cpu ...          with what build/cpu has compiled

The headers and libraries that it is built against are those of the torch that lies in this Python's environment,
else what scripts/libtorch_path finds. The library names none of their folders: a process that loads it has them
already.
"""

from __future__ import annotations

import base64
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "python" / "flashstep"
# What torch, the compiler and the C library bring; everything else travels along.
KNOWN = re.compile(
    r"^(libflashstep|libtorch|libtorch_cpu|libtorch_cuda|libc10|libc10_cuda|libcudart|libcublasLt|libcublas|libnccl|"
    r"libcupti|libgomp|libstdc\+\+|libgcc_s|libc|libm|libdl|libpthread|librt|ld-linux-x86-64)\.so"
)
METADATA = """Metadata-Version: 2.1
Name: flashstep
Version: {version}
Summary: Fast attention, data parallelism and sharded training for PyTorch
License: Apache-2.0
Requires-Python: >=3.10,<3.14
Requires-Dist: torch ==2.11.*
"""


def version() -> str:
    header = (ROOT / "flashstep" / "version.h").read_text()
    return ".".join(re.search(rf"{part} (\d+)", header)[1] for part in ("MAJOR", "MINOR", "PATCH"))


def fail(sentence: str) -> None:
    raise SystemExit(f"flashstep: {sentence}")


def torch_folder() -> Path:
    """Of the environment that is installed into: a build that is kept apart from it cannot import its packages."""
    own = Path(sysconfig.get_paths()["purelib"]) / "torch"
    if "FLASHSTEP_LIBTORCH" not in os.environ and (own / "lib" / "libtorch_cpu.so").exists():
        found = re.search(r"__version__ = '([^']+)'", (own / "version.py").read_text())[1]
        if not found.startswith("2.11."):
            fail(f"expected torch 2.11 in {own.parent}, got {found}")
        return own
    asked = subprocess.run([ROOT / "scripts" / "libtorch_path"], capture_output=True, text=True)
    if asked.returncode != 0:
        fail(asked.stderr.strip() or f"expected torch 2.11 in {own.parent}, got none: pip install torch==2.11.0, "
             "or, beside a torch of other site-packages, pip install --no-build-isolation .")
    return Path(asked.stdout.strip())


def wants_cuda(torch: Path) -> bool:
    if "FLASHSTEP_CUDA" in os.environ:
        return os.environ["FLASHSTEP_CUDA"] == "1"
    has_nvcc = subprocess.run([ROOT / "scripts" / "nvcc_path"], capture_output=True).returncode == 0
    return has_nvcc and (torch / "lib" / "libtorch_cuda.so").exists()


def build_library() -> Path:
    """The stripped libraries and what travels with them, in a folder of their own."""
    preset, commands = os.environ.get("FLASHSTEP_PRESET", ""), []
    environment = dict(os.environ)
    if not preset:
        torch = torch_folder()
        preset = "python_cuda" if wants_cuda(torch) else "python"
        environment |= {"FLASHSTEP_LIBTORCH": str(torch), "CUDA": "1" if preset == "python_cuda" else "0"}
        commands.append(["scripts/bootstrap"])
        commands.append(["cmake", "--preset", preset, "-U", "LibTorch_*", f"-DFLASHSTEP_LIBTORCH={torch}"])
    if not preset.endswith("cuda"):
        print("flashstep: built for CPUs; FLASHSTEP_CUDA=1, with nvcc 13, builds the CUDA kernels", file=sys.stderr)
    commands.append(["scripts/build", "--preset", preset, "flashstep_tools_carried"])
    for command in commands:
        if subprocess.run(command, cwd=ROOT, stdout=sys.stderr, env=environment).returncode != 0:
            fail(f"`{' '.join(command)}` failed")
    folder = ROOT / "build" / preset / "python" / "package"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for library in (folder / "libflashstep.so", folder / "libflashstep_tools.so"):
        shutil.copy(folder.parent / library.name, library)
        subprocess.run(["strip", "--strip-unneeded", library], check=True)
        carry_along(library, folder)
    return folder


def carry_along(library: Path, folder: Path) -> None:
    dynamic = subprocess.run(["readelf", "-d", library], capture_output=True, text=True, check=True).stdout
    for name in re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic):
        if KNOWN.match(name) or (folder / name).exists():
            continue
        places = subprocess.run(["ldconfig", "-p"], capture_output=True, text=True, check=True).stdout
        found = re.search(rf"^\s*{re.escape(name)} .*=> (.*)$", places, re.M)
        if found is None:
            fail(f"expected {name}, which the library needs, on this machine")
        shutil.copy(found[1], folder / name)
        carry_along(folder / name, folder)


def prepare_metadata_for_build_wheel(metadata_directory: str, config_settings: object = None) -> str:
    info = Path(metadata_directory) / f"flashstep-{version()}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(METADATA.format(version=version()))
    return info.name


def build_wheel(wheel_directory: str, config_settings: object = None, metadata_directory: str | None = None) -> str:
    folder = build_library()
    files = {
        f"flashstep/{path.name}": path.read_bytes()
        for path in sorted(PACKAGE.iterdir())
        if path.suffix in (".py", ".typed")
    }
    files |= {f"flashstep/lib/{path.name}": path.read_bytes() for path in sorted(folder.iterdir())}
    info = f"flashstep-{version()}.dist-info"
    tag = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"
    files[f"{info}/METADATA"] = METADATA.format(version=version()).encode()
    files[f"{info}/WHEEL"] = f"Wheel-Version: 1.0\nGenerator: flashstep\nRoot-Is-Purelib: false\nTag: {tag}\n".encode()
    files[f"{info}/LICENSE"] = (ROOT / "LICENSE").read_bytes()
    record = ""
    for name, content in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        record += f"{name},sha256={digest},{len(content)}\n"
    files[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n".encode()
    name = f"flashstep-{version()}-{tag}.whl"
    with zipfile.ZipFile(Path(wheel_directory) / name, "w", zipfile.ZIP_DEFLATED) as wheel:
        for path, content in files.items():
            entry = zipfile.ZipInfo(path, (2020, 1, 1, 0, 0, 0))  # the same files give the same wheel
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o644 << 16
            wheel.writestr(entry, content)
    return name


def build_sdist(sdist_directory: str, config_settings: object = None) -> str:
    name = f"flashstep-{version()}"
    path = Path(sdist_directory) / f"{name}.tar.gz"
    made = subprocess.run(["git", "archive", "--format=tar.gz", f"--prefix={name}/", "-o", path, "HEAD"], cwd=ROOT)
    if made.returncode != 0:
        fail("expected a git checkout, of whose last commit an archive is made")
    return path.name


def main() -> None:
    if platform.system() != "Linux":
        fail(f"expected Linux, got {platform.system()}")
    folder = build_library()
    shutil.copytree(folder, PACKAGE / "lib", dirs_exist_ok=True)
    print(f"Use it with PYTHONPATH={PACKAGE.parent}, or install it by `pip install {ROOT}`.")


if __name__ == "__main__":
    main()
