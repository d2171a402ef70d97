"""Ends a test with 77, which ctest calls SKIPPED, and one sentence, where torch is not there."""

import sys

try:
    import torch
except ImportError as error:
    print(f"SKIPPED: the Python package {error.name} is not there")
    sys.exit(77)

if not torch.__version__.startswith("2.11."):
    print(f"SKIPPED: expected torch 2.11, got {torch.__version__}")
    sys.exit(77)
