"""Makes a GPU torch's default device, where the tests of the CPU then run; ends a test with 77 where there is none.

FLASHSTEP_TEST_DEVICE=cpu rehearses on a CPU what it can do.
"""

import os
import sys

os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # looking leaves CUDA to the ranks, which are forks

import needs_torch  # noqa: F401
import torch

import flashstep

DEVICE = os.environ.get("FLASHSTEP_TEST_DEVICE", "cuda")


def skip(reason):
    print(f"SKIPPED: {reason}")
    sys.exit(77)


def need(gpus):
    if DEVICE != "cuda":
        return
    if torch.cuda.device_count() < gpus:
        skip(f"expected {gpus} GPUs, got {torch.cuda.device_count()}")
    if "cuda" not in flashstep.attention_implementations():
        skip("expected a build with CUDA kernels")


def relative_error(found, exact):
    exact = exact.double()
    return float((found.double() - exact).norm() / exact.norm())
