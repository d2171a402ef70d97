"""What is known of optimizers of any class: their groups' options, and their state as tensors."""

from __future__ import annotations

import io
import pickle
from dataclasses import dataclass, field
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


def _packed(value: Any) -> Tensor:
    """What is no tensor as one that can travel, of two dimensions: a piece of a parameter has one."""
    file = io.BytesIO()
    torch.save(value, file)
    return torch.frombuffer(bytearray(file.getvalue()), dtype=torch.uint8).reshape(1, -1)


def _unpacked(kind: str, tensor: Tensor) -> Any:
    try:
        return torch.load(io.BytesIO(tensor.numpy().tobytes()), map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise ValueError(
            f"[ShardedOptimizer] expected state that torch.load() takes with weights_only=True, got {kind} of "
            "another class (torch.serialization.add_safe_globals() tells of it)"
        ) from error


def _require_number(kind: str, value: Any, flat: bool) -> None:
    if flat and not (value is None or isinstance(value, (bool, int, float))):
        raise ValueError(
            f"[ShardedOptimizer] expected tensors and numbers as the state of flat shards, got {kind} of {type(value)}"
        )


def gathered_state(shards: Any, state: list[dict[str, Any]], to: int, flat: bool) -> dict[int, dict[str, Any]]:
    """The state of whole parameters, by their number in `shards`, on rank `to`, of that of each rank's pieces; empty
    on the others. Tensors and other values go apart, so that no name says what a tensor stands for."""
    tensors: dict[str, Tensor] = {}
    others: dict[str, Tensor] = {}
    for number, kinds in enumerate(state):
        for kind, value in kinds.items():
            if isinstance(value, Tensor):
                tensors[f"{number}/{kind}"] = value
            else:
                _require_number(kind, value, flat)
                others[f"{number}/{kind}"] = _packed(value)
    whole: dict[int, dict[str, Any]] = {}
    for own, is_packed in ((tensors, False), (others, True)):
        for name, tensor in zip(*shards.gather_state(list(own), list(own.values()), to)):
            number, kind = name.split("/", 1)
            whole.setdefault(int(number), {})[kind] = _unpacked(kind, tensor) if is_packed else tensor
    return whole


@dataclass(frozen=True)
class StoredTensor:
    """A tensor of an optimizer's state that is still in its checkpoint, of which each rank reads its own elements."""

    files: Any
    places: dict[str, int] = field(default_factory=dict)  # "": the whole; "@128:640": a piece that a rank wrote

    def read(self, name: str, parameter: Tensor, kind: str) -> Tensor:
        """That of the whole parameter."""
        names = [f"{name}{piece}/{kind}" for piece in self.places]
        return self.files.read_joined(name, parameter, names, list(self.places.values()))


def own_state(shards: Any, state: dict[int, dict[str, Any]], numbers: dict[int, int], flat: bool) -> dict[int, Any]:
    """The state of this rank's pieces, by their number, of the state of whole parameters, by their index in a
    state_dict. numbers: of an index, the parameter's number in `shards`; others are left out."""
    names, tensors, places, files = [], [], [], None
    other_names, others = [], []
    for index, kinds in state.items():
        if index not in numbers:
            continue
        for kind, value in kinds.items():
            name = f"{numbers[index]}/{kind}"
            if isinstance(value, StoredTensor):
                files = value.files
                for piece, place in value.places.items():
                    names.append(f"{numbers[index]}{piece}/{kind}")
                    tensors.append(torch.empty(0))
                    places.append(place)
            elif isinstance(value, Tensor):
                names.append(name)
                tensors.append(value)
                places.append(-1)
            else:
                _require_number(kind, value, flat)
                other_names.append(name)
                others.append(value)
    own: dict[int, dict[str, Any]] = {}

    def keep(name: str, value: Any) -> None:
        number, kind = name.split("/", 1)
        own.setdefault(int(number), {})[kind] = value

    for name, tensor in zip(*shards.own_state(names, tensors, places, files)):
        keep(name, tensor)
    # Of what is no tensor its place in `others` goes the same way.
    numbered = [torch.tensor(place, device="cpu") for place in range(len(others))]
    for name, place in zip(*shards.own_state(other_names, numbered, [-1] * len(others), None)):
        keep(name, others[int(place)])
    return own
