"""Parameters, their gradients and so the optimizer's state divided between the ranks."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any, cast

import torch
from torch import Tensor, nn

from ._group import Wrapper, give_parts, group_of, make_hook_table, refuse_copies, require_module, tensors_in
from ._library import classes, keep_update


wrapped: weakref.WeakSet[FullyShardedDataParallel] = weakref.WeakSet()  # those that there are


def _elements_of_lists(module: nn.Module) -> list[str]:
    """The elements of every ModuleList and Sequential: the blocks of most models."""
    return [
        f"{name}.{child}" if name else child
        for name, part in module.named_modules()
        if isinstance(part, (nn.ModuleList, nn.Sequential))
        for child, _ in part.named_children()
    ]


def _unit_of(parameter: str, units: list[str]) -> int:
    """The innermost unit that holds the parameter; len(units), the module itself, if none does."""
    holding = [number for number, name in enumerate(units) if parameter.startswith(f"{name}.")]
    return max(holding, key=lambda number: len(units[number]), default=len(units))


class FullyShardedDataParallel(Wrapper):
    """Wraps `module`: a rank keeps a part of each parameter, and has those of a unit (a block) whole only while the
    unit computes. The next unit's are gathered meanwhile. When backward() returns, the means are in the shards'
    `.grad`.

    Between steps model.parameters() are this rank's shards, (n, 1, 1) where they are divided (more ones where that has
    no more dimensions than the whole), in the dtype that they were made in: the same objects under the same names, for any optimizer whose update of an element looks at that
    element alone. torch's clip_grad_norm_ and GradScaler ask one rank's shards alone: call flashstep's.
    Every rank makes the same calls. Parameters start as rank 0's; where the sizes are not divisible the last rank
    has less, or nothing.

    shard(name, parameter) -> bool: whether it is divided; unless given, those of two dimensions and more are. The
    others are whole on every rank, with the same bits, and their gradients averaged.
    compute_dtype: weights are cast before they travel, and forward and backward compute in it, as do floating-point
    arguments of the module; gradients are averaged in float32.
    reshard_after_forward: False keeps whole weights until their backward is over, which saves a gather.
    units: names of modules that are gathered one at a time; unless given, the elements of every ModuleList and
    Sequential.
    shard_ranks: so many consecutive ranks (those of a machine) divide one copy of the weights, and gradients are
    averaged between the copies; 0: all ranks.
    peer_copies: GPUs of one machine write into each other's memory, in place of NCCL.
    """

    def __init__(
        self,
        module: nn.Module,
        process_group: Any = None,
        *,
        compute_dtype: torch.dtype | None = None,
        shard: Callable[[str, Tensor], bool] | None = None,
        reshard_after_forward: bool = True,
        units: Iterable[str] | None = None,
        shard_ranks: int = 0,
        peer_copies: bool = False,
    ) -> None:
        super().__init__()
        require_module(module, "fully sharded")
        self.module = module
        self._compute_dtype = compute_dtype
        self._group = group_of(process_group)
        if shard_ranks > 0 and self._group.world_size() % shard_ranks == 0:
            give_parts(self._group, process_group, shard_ranks)
        names = list(_elements_of_lists(module) if units is None else units)
        modules = dict(module.named_modules())
        for name in names:
            if name not in modules or not name:
                raise ValueError(
                    "[fully sharded] expected units by the names of modules, "
                    f"got {name!r}, which the module does not have"
                )
        owners: dict[int, tuple[str, Tensor, int]] = {}
        for name, parameter in module.named_parameters(remove_duplicate=False):
            unit = _unit_of(name, names)
            first = owners.setdefault(id(parameter), (name, parameter, unit))
            if first[2] != unit:  # tied over units: the module's
                owners[id(parameter)] = (*first[:2], len(names))
        every = sorted(owners.values(), key=lambda owner: owner[2])
        chosen = shard or (lambda _, tensor: tensor.dim() >= 2)
        divided = [int(bool(chosen(name, tensor))) for name, tensor, _ in every]
        for _, tensor, _ in every:
            if tensor.requires_grad and tensor.is_leaf:
                make_hook_table(tensor)
        self._units = classes.ShardedUnits(
            self._group,
            [*names, "the module"],
            [name for name, _, _ in every],
            [tensor for _, tensor, _ in every],
            [unit for _, _, unit in every],
            divided,
            list(module.buffers()),
            compute_dtype,
            reshard_after_forward,
            shard_ranks,
            peer_copies,
        )
        wrapped.add(self)
        self._root = len(names)
        for number, name in enumerate(names):
            self._watch_unit(number, modules[name])
        self._remember_module()

    def __getstate__(self) -> Any:
        refuse_copies(self, "gather_full_parameters() (state_dict() is this rank's shards)")

    def _watch_unit(self, unit: int, module: nn.Module) -> None:
        def before(module: nn.Module, args: Any, kwargs: Any) -> Any:
            hooks = cast("OrderedDict[int, Any]", module._forward_hooks)
            hooks.move_to_end(end.id)  # hooks of the user see whole weights
            self._units.begin_forward(unit)
            args, kwargs = self._cast(args), self._cast(kwargs)
            if torch.is_grad_enabled():
                self._units.watch_inputs(unit, tensors_in((args, kwargs), in_objects=False))
            return args, kwargs

        def after(module: nn.Module, args: Any, result: Any) -> None:
            if torch.is_grad_enabled():
                self._units.watch(unit, tensors_in(result))
            self._units.end_forward(unit)

        module.register_forward_pre_hook(before, prepend=True, with_kwargs=True)
        # Also after an exception: torch.utils.checkpoint ends the second forward by one as soon as it has what it
        # needs.
        end = module.register_forward_hook(after, always_call=True)

    def _cast(self, value: Any) -> Any:
        """Floating-point tensors in compute_dtype."""
        if self._compute_dtype is None:
            return value
        if isinstance(value, Tensor):
            return value.to(self._compute_dtype) if value.is_floating_point() else value
        if isinstance(value, dict):
            return {key: self._cast(item) for key, item in value.items()}
        if type(value) in (tuple, list):
            return type(value)(self._cast(item) for item in value)
        return value

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if self._units.is_unfinished():
            raise ValueError(
                "[fully sharded] expected the backward before this forward to have come to its end, got one that was "
                "broken off: forget_step(), on all ranks, drops its gradients"
            )
        self._check_module("fully sharded")
        try:
            self._units.begin_forward(self._root)
            result = self.module(*self._cast(args), **self._cast(kwargs))
            if torch.is_grad_enabled():
                self._units.watch(self._root, tensors_in(result))
            self._units.end_forward(self._root)
        except BaseException:
            self._units.abandon()
            raise
        return result

    def finish_gradient_synchronization(self) -> None:
        """Does nothing: backward() ended with the means."""

    def clip_grad_norm_(self, max_norm: float) -> Tensor:
        """Scales all ranks' gradients down to the global L2 norm `max_norm`; the norm before, () float32. All ranks
        call it."""
        return self._units.clip_grad_norm(float(max_norm))

    def step_in_backward(self, optimizer: torch.optim.Optimizer) -> None:
        """From now on backward() updates a unit's shards as soon as their gradients are there, and drops these: no
        gradient outlives its unit, each backward() is a step, and nothing can be clipped. `optimizer` has all of
        parameters() and counts steps for each of them, as torch's and flashstep's do; its own step() then finds
        nothing to do."""
        number, forget = keep_update(optimizer.step)
        self._units.update_in_backward(number)
        weakref.finalize(self, forget)

    def gather_full_parameters(self, to: int | None = None) -> dict[str, Tensor]:
        """The parameters whole, copies, under their names in the module. All ranks call it; `to`: the rank that
        gets them."""
        names, tensors = self._units.gather(-1 if to is None else to)
        return dict(zip(names, tensors))

    def load_full_parameters(self, whole: dict[str, Tensor]) -> None:
        """Takes such, of any number of ranks. Every rank gives all of them."""
        self._units.load(list(whole), list(whole.values()))

    def forget_step(self) -> None:
        """After a backward() that an exception broke off, where all ranks had sent the same: drops all gradients. All ranks
        call it."""
        self._units.abandon()
        self.zero_grad()
