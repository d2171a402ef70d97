"""Checkpoints in the form that the program writes and reads: safetensors and a state in JSON."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ._data_parallel import DistributedDataParallel
from ._fully_sharded import FullyShardedDataParallel, wrapped
from ._library import classes, operators
from ._optimizer_state import StoredTensor
from ._sharded_optimizer import ShardedOptimizer
from ._state_json import as_json, beyond_json, from_json
from ._tokenizer import Path


@dataclass
class Checkpoint:
    """step: updates that are done. state: what the caller gave to keep."""

    step: int
    state: dict[str, Any] = field(default_factory=dict)


def _unwrapped(model: nn.Module) -> nn.Module:
    if isinstance(model, FullyShardedDataParallel):
        raise ValueError(
            "[checkpoint] expected whole parameters, which gather_full_parameters() gives and load_full_parameters() "
            "takes, got a FullyShardedDataParallel"
        )
    own = {id(parameter) for parameter in model.parameters()}
    if any(id(shard) in own for each in wrapped for shard in each.module.parameters()):
        raise ValueError(
            "[checkpoint] expected whole parameters, which the wrapper's gather_full_parameters() gives and "
            "load_full_parameters() takes, got the module in a FullyShardedDataParallel"
        )
    return model.module if isinstance(model, DistributedDataParallel) else model


def _numbered(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[int, str]:
    """The name of each parameter by its number in the optimizer's state_dict."""
    names = {id(parameter): _plain(name) for name, parameter in model.named_parameters()}
    every = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for number, parameter in enumerate(every):
        if id(parameter) not in names:
            raise ValueError(
                "[checkpoint] expected an optimizer of the model's parameters, "
                f"got one whose parameter {number} is another's"
            )
    return {number: names[id(parameter)] for number, parameter in enumerate(every)}


def _plain(name: str) -> str:
    """As if nothing was compiled."""
    return ".".join(part for part in name.split(".") if part != "_orig_mod")


def _model_tensors(model: nn.Module) -> tuple[dict[str, Tensor], set[str]]:
    """Parameters and buffers, tied ones once; and the names of buffers that a state_dict has not."""
    kept = model.state_dict(keep_vars=True)
    found: dict[str, Tensor] = dict(model.named_parameters())
    found.update((name, buffer) for name, buffer in model.named_buffers() if name in kept)
    passing = {_plain(name) for name, _ in model.named_buffers(remove_duplicate=False) if name not in kept}
    return {_plain(name): tensor.detach() for name, tensor in found.items()}, passing


def save_checkpoint(
    path: Path,
    *,
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    step: int = 0,
    state: dict[str, Any] | None = None,
) -> None:
    """Writes the folder `path`, whole or not at all, in place of a checkpoint that lies there: the tensors of the
    model's state_dict, under the names of the model that is not compiled; the optimizer's state and groups; and
    `state`, which comes back as it was: dictionaries, lists, tuples, strings, whole and finite numbers, True, False
    and None (a subclass, such as Counter, as what it is derived from). One process writes: rank 0 of several, after
    ShardedOptimizer.consolidate_state_dict() on all. ValueError for a model with get_extra_state()."""
    module = _unwrapped(model)
    for name, part in module.named_modules():
        if type(part).get_extra_state is not nn.Module.get_extra_state:
            raise ValueError(
                "[checkpoint] expected a model without extra state, which a checkpoint does not hold (`state` keeps "
                f"what JSON can), got that of {_plain(name) or 'the model'} (get_extra_state)"
            )
    tensors: dict[str, Tensor] = {}
    if found := beyond_json(state or {}, "state"):
        raise ValueError(f"[checkpoint] expected a state that JSON can hold, got {found}, which it cannot")
    kept: dict[str, Any] = {"caller": as_json(state or {})}
    if optimizer is not None:
        names, saved = _numbered(module, optimizer), optimizer.state_dict()
        numbers: dict[str, Any] = {}
        for number, kinds in saved["state"].items():
            for kind, value in kinds.items():
                key = f"{names[number]}/{kind}"
                if isinstance(value, Tensor):
                    tensors[key] = value.detach()
                else:
                    numbers[key] = value
        groups = [{**group, "params": [names[number] for number in group["params"]]} for group in saved["param_groups"]]
        kept["optimizer"] = {"class": _class_of(optimizer), "groups": as_json(groups), "numbers": numbers}
    if isinstance(model, DistributedDataParallel):
        kept["buckets"] = {"order": model._means.bucket_order(), "megabytes": model._means.bucket_megabytes()}
    model_tensors, _ = _model_tensors(module)
    if found := beyond_json(kept.get("optimizer"), "optimizer"):
        raise ValueError(f"[checkpoint] expected an optimizer that JSON can hold, got {found}, which it cannot")
    text = json.dumps(kept, allow_nan=False)
    operators.write_checkpoint(
        os.fspath(path),
        list(model_tensors),
        list(model_tensors.values()),
        list(tensors),
        list(tensors.values()),
        step,
        text,
    )


def load_checkpoint(path: Path, *, model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> Checkpoint:
    """Takes back what save_checkpoint() wrote, or a checkpoint of the program (its weights, and AdamW's state).
    ValueError that names what is missing, unexpected or of another shape or dtype (floating ones are converted); then
    nothing was changed. Weights are read one by one. Several ranks all read it, of a ShardedOptimizer's state each its own share."""
    module = _unwrapped(model)
    files = classes.CheckpointFiles(os.fspath(path))
    kept = json.loads(files.state_json())
    state = from_json(kept.get("caller", {}))
    own, passing = _model_tensors(module)
    places = {_plain(name): place for place, name in enumerate(files.names(True))}
    for name, tensor in own.items():
        if tensor.is_meta:
            raise ValueError(f"[checkpoint] expected a model with memory, got {name} on the meta device")
        if name not in places:
            raise ValueError(f"[checkpoint] expected {name} in {path}, got none")
        form = files.form(True, places[name])
        if form.shape != tensor.shape:
            raise ValueError(
                f"[checkpoint] expected {name} of shape {tuple(tensor.shape)}, got {tuple(form.shape)} in {path}"
            )
        if form.dtype != tensor.dtype and not (form.is_floating_point() and tensor.is_floating_point()):
            raise ValueError(f"[checkpoint] expected {name} of {tensor.dtype}, got {form.dtype} in {path}")
    surplus = [name for name in places if name not in own and name not in passing]  # earlier versions wrote those
    if surplus:
        raise ValueError(f"[checkpoint] expected tensors of the model alone, got {surplus[0]} in {path}")
    loaded = None
    if optimizer is not None:
        stored = {
            _plain(name): place
            for place, name in enumerate(files.names(False))
            if not name.startswith(".buffers/")  # those of the program's other ranks
        }
        if not stored and not kept.get("optimizer"):
            raise ValueError(f"[checkpoint] expected the state of an optimizer in {path}, which was saved without one")
        loaded = _optimizer_state(module, optimizer, files, stored, kept.get("optimizer"), path)
        if not isinstance(optimizer, ShardedOptimizer):
            for number, name in _numbered(module, optimizer).items():
                kinds = loaded["state"].get(number, {})
                kinds |= {k: v.read(name, own[name], k) for k, v in kinds.items() if isinstance(v, StoredTensor)}
    buckets = kept.get("buckets") or {}
    order = buckets.get("order")  # divided gradients have none
    # Of other trained parameters (some were frozen) there is no order to keep.
    if isinstance(model, DistributedDataParallel) and order and len(order) == len(model._means.bucket_order()):
        # From three ranks on the bits of a sum depend on its place in a bucket.
        model._means.set_bucket_order(order, buckets["megabytes"])
    if optimizer is not None and loaded is not None:
        optimizer.load_state_dict(loaded)
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(files.read(True, places[name]))
    return Checkpoint(files.step(), state)


def _optimizer_state(
    module: nn.Module,
    optimizer: torch.optim.Optimizer,
    files: Any,
    places: dict[str, int],
    kept: dict[str, Any] | None,
    path: Path,
) -> dict[str, Any]:
    numbers = {name: number for number, name in _numbered(module, optimizer).items()}
    found: dict[int, dict[str, Any]] = {}
    others = {_plain(key): value for key, value in kept["numbers"].items()} if kept else {}
    for key, value in {**places, **others}.items():
        written, _, kind = key.rpartition("/")
        name = written
        while name not in numbers and "@" in name:  # a piece, as "@128:640" behind it says
            name = name.rpartition("@")[0]
        if name not in numbers:
            raise ValueError(f"[checkpoint] expected state of the optimizer's parameters, got {key} in {path}")
        kinds = found.setdefault(numbers[name], {})
        if key in others:
            kinds[kind] = value
        else:
            kinds.setdefault(kind, StoredTensor(files)).places[written.removeprefix(name)] = value
    kinds_of_adamw = {"step", "exp_avg", "exp_avg_sq"}
    if _class_of(optimizer) == "AdamW" and any(
        kinds_of_adamw - kinds.keys() == {"exp_avg_sq"} for kinds in found.values()
    ):
        raise ValueError(f"[checkpoint] expected AdamW's state in {path}, got Muon's of some parameters")
    place = {
        id(parameter): number
        for number, parameter in enumerate(p for group in optimizer.param_groups for p in group["params"])
    }
    groups = [
        {**group, "params": [place[id(parameter)] for parameter in group["params"]]} for group in optimizer.param_groups
    ]
    if kept is not None:
        if kept["class"] != _class_of(optimizer):
            raise ValueError(
                f"[checkpoint] expected the optimizer that was saved, {kept['class']}, got {_class_of(optimizer)}"
            )
        saved = from_json(kept["groups"])
        if [[numbers.get(_plain(name)) for name in group["params"]] for group in saved] != [
            group["params"] for group in groups
        ]:
            raise ValueError(
                "[checkpoint] expected an optimizer with the groups of parameters that were saved "
                f"in {path}, got others"
            )
        groups = [{**group, **other, "params": group["params"]} for group, other in zip(groups, saved)]
    return {"state": found, "param_groups": groups}


def _class_of(optimizer: torch.optim.Optimizer) -> str:
    inner = optimizer._inner if isinstance(optimizer, ShardedOptimizer) else optimizer
    name = type(inner).__name__  # flashstep's and torch's read each other's
    return name if name in ("AdamW", "Muon") else f"{type(inner).__module__}.{type(inner).__qualname__}"
