"""scripts/bundle_run tests: what passes, what is skipped and what fails is counted and told by its exit code."""
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

SCRIPT = Path(__file__).parent.parent / "scripts" / "bundle_run"


def run_tests(exit_codes, pattern=""):
    """Of a bundle whose test programs end with these codes."""
    with tempfile.TemporaryDirectory() as folder:
        bundle = Path(folder)
        shutil.copy(SCRIPT, bundle / "run")
        (bundle / "bin").mkdir()
        programs = {"libtorch_path": "echo /nowhere"}
        programs.update({f"bin/{name}": f"echo said by {name}; exit {code}" for name, code in exit_codes.items()})
        for name, line in programs.items():
            (bundle / name).write_text(f"#!/bin/sh\n{line}\n")
            (bundle / name).chmod(0o755)
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

    def test_none_is_no_success(self):
        self.assertEqual(run_tests({"a_test": 0}, pattern="other").returncode, 1)


if __name__ == "__main__":
    unittest.main()
