"""Batches of tokens."""

from __future__ import annotations

import functools
import os
from typing import Any

import torch
from torch import Tensor

from ._library import classes


class BatchSampler:
    """Rows of context_length tokens and the same one further, the program's for the same seed.

    tokens: the path of a token file (.npy, which is mapped), or a vector of whole numbers, an array or a tensor.
    order: "random": each row begins at a token drawn uniformly; "epoch": each window once, shuffled anew;
    "sequential". batch_size is one rank's.
    """

    def __init__(
        self,
        tokens: Any,
        *,
        batch_size: int,
        context_length: int,
        seed: int = 0,
        order: str = "random",
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        path, held = "", None
        if isinstance(tokens, (str, os.PathLike)):
            path = os.fspath(tokens)
        else:
            held = tokens if isinstance(tokens, Tensor) else torch.as_tensor(tokens)
        self._again = functools.partial(
            type(self),
            path or held,
            batch_size=batch_size,
            context_length=context_length,
            seed=seed,
            order=order,
            rank=rank,
            world_size=world_size,
        )
        self._batches = classes.Batches(held, path, batch_size, context_length, seed, order, rank, world_size)

    def __reduce__(self) -> Any:  # copies, and other processes, open the file again
        return self._again, ()

    def at(self, step: int, device: Any = None) -> tuple[Tensor, Tensor]:
        """Inputs and targets of a step, each (batch_size, context_length) int64: the same for the same step,
        whenever it comes."""
        inputs, targets = self._batches.at(step)
        return (inputs, targets) if device is None else (inputs.to(device), targets.to(device))
