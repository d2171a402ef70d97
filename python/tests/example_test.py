"""examples/python/train.py, by one process and under torchrun: the loss falls, and both say where the checkpoint
is."""

import os
import re
import subprocess
import sys
import unittest
from pathlib import Path

import needs_torch  # noqa: F401

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "python" / "train.py"


class Example(unittest.TestCase):
    def check(self, *command):
        done = subprocess.run(
            [sys.executable, *command, EXAMPLE],
            capture_output=True,
            text=True,
            env={**os.environ, "STEPS": "60", "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
        )
        self.assertEqual(done.returncode, 0, done.stderr[-3000:])
        losses = [float(loss) for loss in re.findall(r"loss ([\d.]+)", done.stdout)]
        self.assertLess(losses[-1], losses[0] - 1)
        folder = re.search(r"checkpoint in (.*)", done.stdout)[1]
        self.assertTrue((Path(folder) / "model.safetensors").exists())

    def test_one_process(self):
        self.check()

    def test_torchrun(self):
        self.check("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2")


if __name__ == "__main__":
    unittest.main()
