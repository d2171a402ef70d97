"""flashstep bench norm as a command: files, the compiled peer, and exit codes."""
import importlib.util
import json
import sysconfig
import unittest
from pathlib import Path

from program import SOURCE, Command, FolderTest, column

run = Command("bench", "norm")
SCRIPT = SOURCE / "scripts/peers/ops_torch.py"
SMALL = ("--device", "cpu", "--rows", 200, "--width", 48)


class BenchNormTest(FolderTest):
    def rows(self):
        table = json.loads((self.path / "norm.json").read_text())
        names = [column["name"] for column in table["columns"]]
        return [dict(zip(names, row)) for row in table["rows"]]

    def test_files(self):
        result = run(*SMALL, "--implementations", "flashstep,naive,layer_norm", "--dtype", "fp32,bf16", "--calls", 5,
                     "--out", self.path)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(len(self.rows()), 2 * 2 * 3)
        self.assertTrue(all(row["median"] > 0 for row in self.rows()))
        self.assertIn("flashstep has ", result.stdout)
        for name in ("norm.md", "norm.csv", "norm_fp32_forward.svg", "norm_bf16_forward-backward.svg"):
            self.assertTrue((self.path / name).exists(), list(self.path.iterdir()))

    def test_compiled_peer(self):
        if importlib.util.find_spec("torch") is None:
            self.skipTest("this Python has no torch")
        if not Path(sysconfig.get_paths()["include"], "Python.h").exists():
            self.skipTest("torch.compile needs Python's headers (python3-dev)")
        result = run(*SMALL, "--implementations", "naive,compiled", "--calls", 5, "--peer-script", SCRIPT, "--python",
                     SCRIPT.parent.parent / "python", "--out", self.path)
        self.assertEqual(result.returncode, 0, result.stderr)
        compiled = [row for row in self.rows() if row["implementation"] == "compiled"]
        self.assertEqual(len(compiled), 2)
        for row in compiled:
            self.assertGreater(row["median"], 0, result.stdout)
            self.assertLess(row["error"], 1e-5)
        self.assertLess(compiled[1]["gradient error"], 1e-4)


if __name__ == "__main__":
    unittest.main()
