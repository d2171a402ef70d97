"""Loads libflashstep.so, in which everything is computed, into the process of torch."""

import functools
import itertools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

#: The version of torch whose libraries libflashstep.so was built against.
TORCH_VERSION = "2.11"


def _check_torch(version: str) -> None:
    if version.split("+")[0].split(".")[:2] != TORCH_VERSION.split("."):
        raise ImportError(
            f"[flashstep] expected torch {TORCH_VERSION}, for which this flashstep was built, got torch {version}"
        )


# Named by who builds flashstep without installing it.
_path = Path(os.environ.get("FLASHSTEP_LIBRARY") or Path(__file__).parent / "lib" / "libflashstep.so")


def _load(path: Path) -> None:
    if not path.exists():
        raise ImportError(
            f"[flashstep] expected the library {path}, got none: "
            "install flashstep by `pip install .`, or run `make python`"
        )
    torch.ops.load_library(str(path))


_updates: dict[int, Callable[[], Any]] = {}
_numbers = itertools.count()


def _call_update(number: int) -> None:
    _updates[number]()


def _run_handlers() -> None:
    """Python runs the handlers of signals that are due between its instructions: between those of this call, too."""


_check_torch(torch.__version__)
_load(_path)
_answers = torch.library.Library("flashstep", "IMPL")  # what the library asks Python for
_answers.impl("call_update", _call_update, "CompositeExplicitAutograd")
_answers.impl("run_handlers", _run_handlers, "CompositeExplicitAutograd")
torch.ops.flashstep.called_by_python()

operators = torch.ops.flashstep
classes = torch.classes.flashstep
__version__: str = operators.version()


@functools.cache
def report_operators() -> Any:
    """The operators that read and draw reports: a library of their own, loaded when one is asked for."""
    _load(_path.with_name("libflashstep_tools.so"))
    return operators


def keep_update(update: Callable[[], Any]) -> tuple[int, Callable[[], Any]]:
    """The number under which the library calls `update` in a backward(), and what forgets it."""
    number = next(_numbers)
    _updates[number] = update
    return number, functools.partial(_updates.pop, number, None)
