"""State that comes back from JSON as it was."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

# The keys of what stands for something that JSON does not have.
_MARKS: list[set[str]] = [{"tuple"}, {"tensor", "dtype"}, {"dict"}, {"int"}]


def beyond_json(value: Any, place: str) -> str | None:
    """What in `value` JSON does not hold: "state['best'] = inf"."""
    if isinstance(value, float):
        return None if math.isfinite(value) else f"{place} = {value}"
    if isinstance(value, str) and not value.isascii() and value.encode(errors="replace").decode() != value:
        return f"{place} = {value!r}"  # a surrogate
    if value is None or isinstance(value, (str, int)):
        return None
    if not isinstance(value, (dict, list, tuple)):
        return f"{place} of type {type(value).__name__}"
    items = value.items() if isinstance(value, dict) else enumerate(value)
    found = (beyond_json(key, f"a key of {place},") or beyond_json(each, f"{place}[{key!r}]") for key, each in items)
    return next((each for each in found if each), None)


def as_json(value: Any) -> Any:
    """Tuples, tensors of groups (a learning rate) and keys that are no strings come back as what they were."""
    if isinstance(value, tuple):
        return {"tuple": [as_json(item) for item in value]}
    if isinstance(value, Tensor):
        return {"tensor": value.tolist(), "dtype": str(value.dtype).removeprefix("torch.")}
    if isinstance(value, list):
        return [as_json(item) for item in value]
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        return {"int": hex(value)}
    if isinstance(value, dict):
        if all(isinstance(key, str) for key in value) and set(value) not in _MARKS:
            return {key: as_json(item) for key, item in value.items()}
        return {"dict": [[as_json(key), as_json(item)] for key, item in value.items()]}
    return value


def from_json(value: Any) -> Any:
    """What as_json() was given."""
    if isinstance(value, list):
        return [from_json(item) for item in value]
    if not isinstance(value, dict):
        return value
    if set(value) == {"tuple"}:
        return tuple(from_json(item) for item in value["tuple"])
    if set(value) == {"int"}:
        return int(value["int"], 16)
    if set(value) == {"dict"}:
        return {from_json(key): from_json(item) for key, item in value["dict"]}
    if set(value) == {"tensor", "dtype"}:
        return torch.tensor(value["tensor"], dtype=getattr(torch, value["dtype"]))
    return {key: from_json(item) for key, item in value.items()}
