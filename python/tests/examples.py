"""The examples as their users start them, alone and under torchrun."""

import os
import re
import subprocess
import sys
from pathlib import Path

import needs_torch  # noqa: F401

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "python"
TWO_RANKS = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2")


def run(*command):
    done = subprocess.run(
        [sys.executable, *command],
        capture_output=True,
        text=True,
        env={**os.environ, "STEPS": "60", "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
    )
    if done.returncode != 0:
        raise AssertionError(f"{command}: {done.returncode}\n{done.stderr[-3000:]}")
    return done.stdout


def losses_in(text):
    return [float(loss) for loss in re.findall(r"loss +([\d.]+)", text)]
