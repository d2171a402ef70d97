"""What is known of optimizers of any class: their groups' options, and their state as tensors."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

# torch's optimizers that update each element from its own gradient and state, so that a parameter can be cut
# anywhere.
ELEMENT_WISE = ("Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "ASGD", "NAdam", "RAdam", "RMSprop", "Rprop", "SGD")


def updates_each_element_alone(optimizer_cls: type) -> bool:
    if getattr(optimizer_cls, "updates_each_element_alone", False):
        return True
    return optimizer_cls.__module__.startswith("torch.optim.") and optimizer_cls.__name__ in ELEMENT_WISE


def options_of(group: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in group.items() if key not in ("params", "param_names")}


def as_tensor(kind: str, value: Any, flat: bool) -> tuple[str, Tensor]:
    """A suffix of the kind's name, and the value as a tensor that can travel."""
    if isinstance(value, Tensor):
        return "", value
    if isinstance(value, (bool, int, float)):
        return f":{type(value).__name__}", torch.tensor(
            value, dtype=torch.float64 if isinstance(value, float) else torch.int64
        )
    if flat and value is not None:
        raise ValueError(
            f"[ShardedOptimizer] expected tensors and numbers as the state of flat shards, got {kind} of {type(value)}"
        )
    return ":pickle", torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8).reshape(1, -1)


def from_tensor(kind: str, tensor: Tensor) -> tuple[str, Any]:
    name, colon, form = kind.rpartition(":")
    if not colon or form not in ("bool", "int", "float", "pickle"):
        return kind, tensor
    if form == "pickle":
        return name, pickle.loads(bytes(tensor.flatten().tolist()))
    return name, {"bool": bool, "int": int, "float": float}[form](tensor.item())


@dataclass(frozen=True)
class StoredTensor:
    """A tensor of an optimizer's state that is still in its checkpoint, of which each rank reads its own elements."""

    files: Any
    place: int


def own_state(shards: Any, state: dict[int, dict[str, Any]], numbers: dict[int, int], flat: bool) -> dict[int, Any]:
    """The state of this rank's pieces, by their number, of the state of whole parameters, by their index in a
    state_dict. numbers: of an index, the parameter's number in `shards`; others are left out."""
    names, tensors, places, files = [], [], [], None
    for index, kinds in state.items():
        if index not in numbers:
            continue
        for kind, value in kinds.items():
            place = -1
            if isinstance(value, StoredTensor):
                files, place, value = value.files, value.place, torch.empty(0)
            suffix, tensor = as_tensor(kind, value, flat)
            names.append(f"{numbers[index]}/{kind}{suffix}")
            tensors.append(tensor)
            places.append(place)
    own: dict[int, dict[str, Any]] = {}
    for name, tensor in zip(*shards.own_state(names, tensors, places, files)):
        number, kind = name.split("/", 1)
        kind, value = from_tensor(kind, tensor)
        own.setdefault(int(number), {})[kind] = value
    return own
