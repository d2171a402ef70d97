"""The package's types hold together, its files stay short, and what it says of itself is documented."""

import importlib.util
import subprocess
import sys
import unittest
from pathlib import Path

import needs_torch  # noqa: F401

import flashstep

ROOT = Path(__file__).resolve().parents[2]
MOST_LINES = 250


class Types(unittest.TestCase):
    @unittest.skipUnless(importlib.util.find_spec("mypy"), "the Python package mypy is not there")
    def test_types(self):
        done = subprocess.run(
            [sys.executable, "-m", "mypy", "--cache-dir", "/dev/null"], cwd=ROOT, capture_output=True, text=True
        )
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_files_are_short(self):
        files = list((ROOT / "python").rglob("*.py"))
        self.assertGreater(len(files), 15)
        for path in files:
            self.assertLessEqual(len(path.read_text().splitlines()), MOST_LINES, path.name)

    def test_names_have_docstrings(self):
        for name in flashstep.__all__:
            self.assertTrue(hasattr(flashstep, name), name)
            if name != "__version__":
                self.assertTrue(getattr(flashstep, name).__doc__, name)

    def test_the_version_is_the_librarys(self):
        header = (ROOT / "flashstep" / "version.h").read_text()
        for number, part in zip(flashstep.__version__.split("."), ("MAJOR", "MINOR", "PATCH"), strict=True):
            self.assertIn(f"{part} {number}\n", header)


if __name__ == "__main__":
    unittest.main()
