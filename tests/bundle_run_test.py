"""scripts/bundle_run tests: what passes, what is skipped and what fails is counted and told by its exit code."""
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

SCRIPT = Path(__file__).parent.parent / "scripts" / "bundle_run"


def bundle_of(folder, programs):
    """In `folder`, of programs that are a line of shell each."""
    shutil.copy(SCRIPT, folder / "run")
    (folder / "bin").mkdir()
    for name, line in programs.items():
        (folder / name).write_text(f"#!/bin/sh\n{line}\n")
        (folder / name).chmod(0o755)
    return folder


def run_tests(exit_codes, pattern=""):
    """Of a bundle whose test programs end with these codes."""
    with tempfile.TemporaryDirectory() as folder:
        programs = {"libtorch_path": "echo /nowhere"}
        programs.update({f"bin/{name}": f"echo said by {name}; exit {code}" for name, code in exit_codes.items()})
        bundle = bundle_of(Path(folder), programs)
        return subprocess.run([bundle / "run", "tests", pattern], capture_output=True, text=True, timeout=60)


class BundleRunTest(unittest.TestCase):
    def test_all_well(self):
        result = run_tests({"a_test": 0, "b_tests": 0, "c_gpu_test": 77})
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(result.stdout.splitlines()[-1], "2 passed, 1 skipped, 0 failed")
        self.assertIn("skipped c_gpu_test", result.stdout)

    def test_one_fails(self):
        result = run_tests({"a_test": 0, "b_test": 1, "c_test": 77})
        self.assertEqual(result.returncode, 1)
        self.assertEqual(result.stdout.splitlines()[-1], "1 passed, 1 skipped, 1 failed")
        self.assertIn("said by b_test\nFAILED  b_test", result.stdout)

    def test_gpu_tests_are_run_file_by_file(self):
        with tempfile.TemporaryDirectory() as folder:
            bundle = bundle_of(Path(folder), {"libtorch_path": "echo /nowhere", "bin/room_gpu_tests": """case $1 in
              --files) echo a_gpu_test.cc b_gpu_test.cc ;; --file=a_gpu_test.cc) echo no; exit 1 ;; esac"""})
            result = subprocess.run([bundle / "run", "tests"], capture_output=True, text=True, timeout=60)
            self.assertEqual(result.stdout.splitlines(),
                             ["no", "FAILED  room_a_gpu_test", "ok      room_b_gpu_test", "1 passed, 0 skipped, 1 failed"])
            result = subprocess.run([bundle / "run", "tests", "room_b"], capture_output=True, text=True, timeout=60)
            self.assertEqual(result.stdout.splitlines(), ["ok      room_b_gpu_test", "1 passed, 0 skipped, 0 failed"])

    def test_none_is_no_success(self):
        self.assertEqual(run_tests({"a_test": 0}, pattern="other").returncode, 1)


if __name__ == "__main__":
    unittest.main()
