"""The longer examples: a walk through the handout's measurements, and a GPT beside torch's DistributedDataParallel."""

import re
import tempfile
import unittest
from pathlib import Path

from examples import EXAMPLES, TWO_RANKS, losses_in, run

TORCHS = "from torch.nn.parallel import DistributedDataParallel as DDP"


class LongExamples(unittest.TestCase):
    def test_gpt_is_trained_as_with_torchs_import(self):
        options = ("--steps=30", "--eval_every=10")
        source = (EXAMPLES / "gpt.py").read_text()
        ours = re.search(r"^from flashstep import .*$", source, re.M)[0]
        self.assertIn(f"# Was: {TORCHS}\n{ours}", source)
        self.assertNotIn("flashstep", source.split('"""')[2].replace(ours, ""))
        with tempfile.TemporaryDirectory() as folder:
            other = Path(folder) / "examples" / "python" / "gpt.py"
            other.parent.mkdir(parents=True)
            other.write_text(source.replace(ours, TORCHS))
            (Path(folder) / "docs").symlink_to(EXAMPLES.parents[1] / "docs")
            expected = losses_in(run(*TWO_RANKS, other, *options))
        losses = losses_in(run(*TWO_RANKS, EXAMPLES / "gpt.py", *options))
        self.assertEqual(len(losses), 4)
        self.assertLess(losses[-1], losses[0] - 1)
        for loss, other_loss in zip(losses, expected, strict=True):
            self.assertAlmostEqual(loss, other_loss, delta=2e-3)  # the order of sums differs

    def test_the_handouts_measurements(self):
        out = run(EXAMPLES / "handout.py")
        for text in ("Milliseconds of a step", "classes of work", "matmul", "torch.bfloat16", "Peak of", "Largest"):
            self.assertIn(text, out)
        sums = dict(re.findall(r"(torch.\w+ +torch.\w+) +([\d.]+)$", out, re.M))
        self.assertEqual([f"{float(value):.2f}" for value in sums.values()], ["10.00", "9.95", "10.00"])
        differences = [float(value) for value in re.findall(r"(\d\.\de-\d+)$", out, re.M)]
        self.assertEqual(len(differences), 6)
        self.assertLess(max(differences), 1e-5)
        self.assertEqual(len(re.findall(r"[\d.]+ ms forward and backward", out)), 4)
        on_a_rank, whole = (int(n.replace(",", "")) for n in re.search(r"rank: ([\d,]+) of ([\d,]+)", out).groups())
        self.assertEqual(on_a_rank * 2, whole)


if __name__ == "__main__":
    unittest.main()
