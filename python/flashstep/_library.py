"""Loads libflashstep.so, in which everything is computed, into the process of torch."""

import os
from pathlib import Path

import torch

#: The version of torch whose libraries libflashstep.so was built against.
TORCH_VERSION = "2.11"


def _check_torch(version: str) -> None:
    if version.split("+")[0].split(".")[:2] != TORCH_VERSION.split("."):
        raise ImportError(
            f"[flashstep] expected torch {TORCH_VERSION}, for which this flashstep was built, got torch {version}"
        )


def _load() -> None:
    _check_torch(torch.__version__)
    # Named by who builds flashstep without installing it.
    path = Path(os.environ.get("FLASHSTEP_LIBRARY") or Path(__file__).parent / "lib" / "libflashstep.so")
    if not path.exists():
        raise ImportError(
            f"[flashstep] expected the library {path}, got none: "
            "install flashstep by `pip install .`, or run `make python`"
        )
    torch.ops.load_library(str(path))
    torch.ops.flashstep.called_by_python()


_load()

operators = torch.ops.flashstep
classes = torch.classes.flashstep
__version__: str = operators.version()
