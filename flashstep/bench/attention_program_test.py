"""flashstep bench attention as a command: its files, read by Python's own readers, and its exit codes."""
import csv
import json
import unittest

from program import Command, FolderTest

run = Command("bench", "attention", "--device", "cpu")


class BenchAttentionTest(FolderTest):
    def test_files(self):
        result = run("--preset", "sweep", "--pairs", "32:16", "16:48", "--warmup", 1, "--iterations", 2,
                     "--dtype", "fp32", "--implementations", "auto,naive", "--out", self.path)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("Verdict: ", result.stdout)
        with open(self.path / "sweep.csv", newline="") as file:
            runs = list(csv.DictReader(file))
        self.assertEqual([(r["N"], r["M"], r["implementation"]) for r in runs],
                         [("32", "16", "auto"), ("32", "16", "naive"), ("16", "48", "auto"), ("16", "48", "naive")])
        self.assertTrue(all(float(r["time (ms)"]) > 0 and r["wrong"] == "0" for r in runs), runs)
        self.assertEqual(len(json.loads((self.path / "sweep.json").read_text())["rows"]), 2)
        document = (self.path / "sweep.md").read_text()
        for picture in ("heatmap", "scaling"):
            name = f"sweep_{picture}_fp32_forward_b4h8_full.svg"
            self.assertIn(f"({name})", document)
            self.assertTrue((self.path / name).exists())


if __name__ == "__main__":
    unittest.main()
