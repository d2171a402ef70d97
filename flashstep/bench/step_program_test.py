"""flashstep bench step as a command: flags of a model, and PyTorch beside it."""
import importlib.util
import unittest

from program import SOURCE, Command, FolderTest, column, rows_of

run = Command("bench", "step")
SCRIPT = SOURCE / "scripts/peers/step_torch.py"
SMALL = ("--device", "cpu", "--size", "32/64/2/2", "--vocab", 64, "--context", 16, "--batch", 2)


class BenchStepTest(FolderTest):
    def test_hyper_parameters_by_hand(self):
        result = run.well("--device", "cpu", "--size", "small", "--layers", 1, "--d-model", 48, "--d-ff", 80, "--heads", 3,
                     "--vocab", 100, "--context", 8, "--batch", 3, "--steps", 1, "--warmup", 0, "--out", self.path)
        table = self.table("step")
        self.assertEqual(column(table, "model"), ["48/80/1/3"])
        # Embedding and head, four (C, C), three (C, F), three norms.
        parameters = 2 * 100 * 48 + 4 * 48 * 48 + 3 * 48 * 80 + 3 * 48
        self.assertAlmostEqual(column(table, "parameters")[0], parameters / 1e6)
        self.assertEqual((column(table, "batch"), column(table, "context")), ([3], [8]))

    def test_peers(self):
        if importlib.util.find_spec("torch") is None:
            self.skipTest("this Python has no torch")
        result = run.well(*SMALL, "--peers", "eager", "--turns", 2, "--steps", 2, "--mode", "forward,step", "--precision",
                     "fp32,bf16", "--peer-script", SCRIPT, "--python", SCRIPT.parent.parent / "python",
                     "--out", self.path)
        table = self.table("step")
        self.assertTrue(all(value > 0 for value in column(table, "x eager")), table["notes"])
        self.assertTrue(all(value < 0.1 for value in column(table, "gradient error") if value is not None))
        theirs = [row for row in rows_of(self.path / "step.csv") if row["who"] == "eager"]
        self.assertEqual(len(theirs), 4 * 2 * 2)
        for row in theirs:
            self.assertEqual(row["optimizer (ms)"] != "", row["mode"] == "step", row)
        self.assertIn("times the speed of eager", result.stdout)


if __name__ == "__main__":
    unittest.main()
