"""The caller's process group, as the engine takes it."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import nn

from ._library import classes


def group_of(process_group: Any) -> Any:
    """The engine's group over `process_group`; None: torch's default group, or this process alone where there is
    none."""
    if process_group is None:
        if not (dist.is_available() and dist.is_initialized()):
            if os.environ.get("WORLD_SIZE", "1") != "1":  # each process would train a model of its own
                raise ValueError(
                    "[flashstep] expected torch.distributed.init_process_group() before, since WORLD_SIZE is "
                    f"{os.environ['WORLD_SIZE']}, got no process group"
                )
            return classes.Group(None)
        process_group = dist.group.WORLD
    if not isinstance(process_group, dist.ProcessGroup):
        raise ValueError(
            "[flashstep] expected a process group that this rank belongs to (torch.distributed.new_group), "
            f"got {process_group!r}"
        )
    if not any(device.type == "cpu" for device in process_group._device_types):
        # Names, counts and decisions travel between CPUs, which NCCL alone does not connect.
        process_group = _new_group(process_group, dist.get_process_group_ranks(process_group), "cpu:gloo,cuda:nccl")
    return classes.Group(process_group.boxed())


def _new_group(whole: Any, ranks: list[int], backend: str) -> Any:
    """Ranks of `whole`, with its limit for a wait."""
    options = getattr(whole._get_backend(whole._device_types[0]), "options", None)
    return dist.new_group(
        ranks, backend=backend, timeout=getattr(options, "_timeout", None), use_local_synchronization=True
    )


def give_parts(group: Any, process_group: Any, shard_ranks: int) -> None:
    """The engine's group gets the groups of `shard_ranks` consecutive ranks, and of those with the same place in
    them."""
    world_size = group.world_size()
    if shard_ranks >= world_size:
        return
    whole = process_group or dist.group.WORLD
    every, backend = dist.get_process_group_ranks(whole), dist.get_backend_config(whole)
    if "cpu" not in backend:
        backend = "cpu:gloo,cuda:nccl"
    copies = [rank // shard_ranks for rank in range(world_size)]
    places = [rank % shard_ranks for rank in range(world_size)]
    for colors in (copies, places):
        own = [each for each, color in zip(every, colors) if color == colors[group.rank()]]
        group.take_part(colors, _new_group(whole, own, backend).boxed())


def tensors_in(value: Any, *, in_objects: bool = True) -> list[torch.Tensor]:
    """The tensors in what a module returned, or was given: itself, or in tuples, lists, dicts, dataclasses, nested;
    in attributes of other objects only `in_objects`, which may hold much else."""
    found: list[torch.Tensor] = []
    seen: dict[int, Any] = {}  # kept, so that no other gets its id
    left = [value]
    while left:
        value = left.pop()
        if isinstance(value, torch.Tensor):
            found.append(value)
            continue
        parts: list[Any] = []
        if isinstance(value, Mapping):
            parts = list(value.values())
        elif isinstance(value, (tuple, list, set, frozenset)):
            parts = list(value)
        elif dataclasses.is_dataclass(value) and not isinstance(value, type):
            parts = [getattr(value, field.name) for field in dataclasses.fields(value)]
        elif in_objects and not callable(value):
            parts = list(getattr(value, "__dict__", {}).values())
        if parts and id(value) not in seen:
            seen[id(value)] = value
            left.extend(parts)
    return found


def refuse_copies(wrapper: Any, instead: str) -> NoReturn:
    raise TypeError(
        f"[{type(wrapper).__name__}] expected {instead} to be copied or saved, got the wrapper, "
        "which belongs to a process group"
    )


_registered = 0  # parameters and modules, by any module of this process once there is a wrapper


def _count_registered(*_: Any) -> None:
    global _registered
    _registered += 1


class Wrapper(nn.Module):
    """A module around another that belongs to a group of this process."""

    module: nn.Module
    _counts = False

    def _remember_module(self) -> None:
        if not Wrapper._counts:
            nn.modules.module.register_module_parameter_registration_hook(_count_registered)
            nn.modules.module.register_module_module_registration_hook(_count_registered)
            Wrapper._counts = True
        self._wrapped = dict(self.module.named_parameters())
        self._seen = _registered

    def _check_module(self, who: str) -> None:
        """A parameter that came later would be averaged by nobody. Looked for where something was registered."""
        if self._seen == _registered:
            return
        before = f"[{who}] expected the module as it was wrapped, "
        now = dict(self.module.named_parameters())
        if len(now) != len(self._wrapped):
            raise ValueError(f"{before}with {len(self._wrapped)} parameters, got {len(now)}")
        for name, parameter in now.items():
            if self._wrapped.get(name) is not parameter:
                raise ValueError(f"{before}but {name} is another tensor now")
        self._seen = _registered

    def __getstate__(self) -> Any:
        refuse_copies(self, "model.module or model.state_dict()")


def require_module(module: Any, who: str) -> None:
    if not isinstance(module, nn.Module):
        raise ValueError(f"[{who}] expected a torch.nn.Module, got {module!r}")
    empty = next((name for name, parameter in module.named_parameters() if parameter.is_meta), None)
    if empty is not None:
        raise ValueError(f"[{who}] expected parameters with memory (to_empty), got {empty} on the meta device")


def make_hook_table(parameter: torch.Tensor) -> None:
    """Makes Python's own table of hooks on a gradient: a parameter has one place for such, where the engine's hook
    then calls this table, and whoever comes later is added to it instead of taking the place."""
    parameter.register_post_accumulate_grad_hook(_nothing).remove()


def _nothing(_: torch.Tensor) -> None:
    pass
