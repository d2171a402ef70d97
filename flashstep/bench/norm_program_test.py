"""flashstep bench norm as a command: the compiled peer."""
import importlib.util
import sysconfig
import unittest
from pathlib import Path

from program import SOURCE, Command, FolderTest, rows_of

run = Command("bench", "norm")
SCRIPT = SOURCE / "scripts/peers/ops_torch.py"
SMALL = ("--device", "cpu", "--rows", 200, "--width", 48)


class BenchNormTest(FolderTest):
    def test_compiled_peer(self):
        if importlib.util.find_spec("torch") is None:
            self.skipTest("this Python has no torch")
        if not Path(sysconfig.get_paths()["include"], "Python.h").exists():
            self.skipTest("torch.compile needs Python's headers (python3-dev)")
        result = run(*SMALL, "--implementations", "naive,compiled", "--calls", 5, "--peer-script", SCRIPT, "--python",
                     SCRIPT.parent.parent / "python", "--out", self.path)
        self.assertEqual(result.returncode, 0, result.stderr)
        compiled = [row for row in rows_of(self.path / "norm.csv") if row["implementation"] == "compiled"]
        self.assertEqual(len(compiled), 2)
        for row in compiled:
            self.assertGreater(float(row["median (ms)"]), 0, result.stdout)
            self.assertLess(float(row["error"]), 1e-5)
        self.assertLess(float(compiled[1]["gradient error"]), 1e-4)


if __name__ == "__main__":
    unittest.main()
