"""Examples whose losses fall, alone and under torchrun."""

import re
import unittest
from pathlib import Path

from examples import EXAMPLES, TWO_RANKS, losses_in, run


class Examples(unittest.TestCase):
    def check_train(self, *command):
        out = run(*command, EXAMPLES / "train.py")
        losses = losses_in(out)
        self.assertLess(losses[-1], losses[0] - 1)
        folder = re.search(r"checkpoint in (.*)", out)[1]
        self.assertTrue((Path(folder) / "model.safetensors").exists())

    def test_train(self):
        self.check_train()

    def test_train_under_torchrun(self):
        self.check_train(*TWO_RANKS)

    def test_gpt(self):
        losses = losses_in(run(EXAMPLES / "gpt.py", "--steps=30", "--eval_every=10"))
        self.assertEqual(len(losses), 4)
        self.assertLess(losses[-1], losses[0] - 1)

    def test_gpt_names_a_setting_that_it_has_not(self):
        with self.assertRaisesRegex(AssertionError, "expected one of steps, .*, got nonsense"):
            run(EXAMPLES / "gpt.py", "--nonsense=1")


if __name__ == "__main__":
    unittest.main()
