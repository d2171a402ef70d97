"""An optimizer whose state is divided between the ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from ._data_parallel import DistributedDataParallel, group_and_means
from ._group import group_of, refuse_copies
from ._library import classes
from ._optim import loss_of
from ._optimizer_state import gathered_state, options_of, own_state, updates_each_element_alone


class ShardedOptimizer(torch.optim.Optimizer):
    """Any optimizer that updates each parameter by itself, with its state divided: each rank updates its share of the
    parameters and sends them to the others, while it updates the rest. Every rank makes the same calls.

    `optimizer_cls(params, **optimizer_kwargs)` is what it computes. params: tensors, (name, tensor) pairs or groups.
    shards: "whole": whole parameters, for any such class; the weights have the bits of the optimizer without
    shards. "flat": equal parts of flat memory, for optimizers that update each element by itself: torch's,
    flashstep.AdamW, and classes with an attribute `updates_each_element_alone = True`. With `ddp`, the wrapped
    model, gradients are divided too (ZeRO-2): after backward() their `.grad` cannot be looked at; clip_grad_norm_()
    and step() use them. Of either, step() refuses gradients that only backwards under no_sync() have given.
    part_megabytes: an update goes in parts of about so many 10^6 bytes, in flight while the next is computed.
    peer_copies: GPUs of one machine write into each other's memory, in place of NCCL.
    """

    def __init__(
        self,
        params: Iterable[Any],
        optimizer_cls: type[torch.optim.Optimizer],
        *,
        process_group: Any = None,
        shards: str = "whole",
        ddp: DistributedDataParallel | None = None,
        part_megabytes: float = 64,
        peer_copies: bool = False,
        **optimizer_kwargs: Any,
    ) -> None:
        if shards not in ("whole", "flat"):
            raise ValueError(f'[ShardedOptimizer] expected shards to be "whole" or "flat", got {shards!r}')
        if not isinstance(optimizer_cls, type):
            raise ValueError(
                "[ShardedOptimizer] expected a class and its arguments (params, torch.optim.AdamW, lr=1e-3), "
                f"got an instance of {type(optimizer_cls).__name__}"
            )
        if issubclass(optimizer_cls, torch.optim.LBFGS):
            raise ValueError(
                "[ShardedOptimizer] expected an optimizer that updates each parameter by itself, got LBFGS, "
                "whose update of a parameter depends on all others"
            )
        if shards == "flat" and not updates_each_element_alone(optimizer_cls):
            raise ValueError(
                "[ShardedOptimizer] expected an optimizer that updates each element by itself for flat shards (it "
                f"says so by updates_each_element_alone = True), got {optimizer_cls.__name__}; whole ones take any"
            )
        if process_group is not None and ddp is not None:
            raise ValueError("[ShardedOptimizer] expected process_group or ddp, whose group is taken, got both")
        groups = list(params)
        if groups and not isinstance(groups[0], dict):
            groups = [{"params": groups}]
        self._make_inner = lambda groups: optimizer_cls(groups, **optimizer_kwargs)
        # The optimizer inside knows what is not given; its parameters are this rank's pieces.
        self._inner = self._make_inner([{**options_of(group), "params": []} for group in groups])
        self._shards: Any = None
        self._flat = shards == "flat"
        self._known: set[int] = set()
        self._pieces: list[tuple[Tensor, int, int]] = []  # what the optimizer inside is given, its group and part
        self._numbers: list[Tensor] = []  # parameters, as the engine counts them
        self._consolidated: dict[str, Any] | None = None
        super().__init__(groups, self._inner.defaults)
        self.state = self._inner.state
        if ddp is not None:
            self._group, means = group_and_means(ddp)
        else:
            self._group, means = group_of(process_group), None
        every = [parameter for group in self.param_groups for parameter in group["params"]]
        self._shards = classes.OptimizerShards(
            self._group, means, every, shards, float(part_megabytes), peer_copies, self._lines()
        )
        self._adopt()

    def _lines(self) -> list[str]:
        """What ranks compare of the groups."""
        plain = (bool, int, float, str, tuple, type(None))
        return [
            ", ".join([f"{len(group['params'])} parameters"] + [f"{k} {v}" for k, v in options if isinstance(v, plain)])
            + f" of parameter group {number}"
            for number, group in enumerate(self.param_groups)
            for options in [options_of(group).items()]
        ]

    def __getstate__(self) -> Any:
        refuse_copies(self, "state_dict()")

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        super().add_param_group(param_group)
        if self._shards is not None:
            self._adopt()

    def _adopt(self) -> None:
        """Divides the parameters that are new; flat memory holds what is trained."""
        while len(self._inner.param_groups) < len(self.param_groups):
            group = self.param_groups[len(self._inner.param_groups)]
            self._inner.add_param_group({**options_of(group), "params": []})
        found = [
            (parameter, number)
            for number, group in enumerate(self.param_groups)
            for parameter in group["params"]
            if id(parameter) not in self._known and (parameter.requires_grad or not self._flat)
        ]
        if not found:
            return
        self._known.update(id(parameter) for parameter, _ in found)
        self._numbers += [parameter for parameter, _ in found]
        inner, groups, parts = self._shards.add([parameter for parameter, _ in found], [number for _, number in found])
        self._pieces += zip(inner, groups, parts)
        # Some classes make state when they are made.
        fresh = self._make_inner(
            [
                {**options_of(group), "params": [piece for piece, of_group in zip(inner, groups) if of_group == number]}
                for number, group in enumerate(self.param_groups)
            ]
        )
        self._inner.state.update(fresh.state)
        self._select(None)

    def _select(self, part: int | None) -> bool:
        """The optimizer inside sees the pieces of a part, or all; whether there are any."""
        chosen = [piece for piece in self._pieces if part is None or piece[2] == part]
        for number, group in enumerate(self._inner.param_groups):
            group["params"] = [tensor for tensor, of_group, _ in chosen if of_group == number]
        return bool(chosen)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Updates all parameters, on all ranks. With a closure, its loss is returned."""
        loss = loss_of(closure)
        self._consolidated = None
        self._adopt()
        before = after = [options_of(group) for group in self.param_groups]
        self._shards.begin()
        try:
            for part in range(self._shards.parts()):
                has_pieces = self._select(part)
                # An optimizer that counts steps in its groups counts one, however many parts there are, or none.
                if has_pieces or (part == 0 and not self._pieces):
                    for group, options in zip(self._inner.param_groups, before):
                        group.update(options)
                    self._inner.step()
                    after = [options_of(group) for group in self._inner.param_groups]
                self._shards.send(part)
        finally:
            self._select(None)
        self._shards.finish()
        for group, inner, options in zip(self.param_groups, self._inner.param_groups, after):
            group.update(options)
            inner.update(options)
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        if self._shards is not None:
            self._shards.drop_gradients()  # what is divided cannot be set to zero
        super().zero_grad(set_to_none)

    def clip_grad_norm_(self, max_norm: float) -> Tensor:
        """Scales gradients down to the global L2 norm `max_norm`; the norm before. All ranks call it."""
        self._adopt()
        return self._shards.clip_grad_norm(float(max_norm))

    def elements_by_rank(self) -> list[int]:
        """Elements of the trained parameters that each rank updates."""
        return self._shards.elements_by_rank()

    def _indices(self) -> dict[int, int]:
        """Of each parameter, by identity, its number in a state_dict."""
        every = [parameter for group in self.param_groups for parameter in group["params"]]
        return {id(parameter): number for number, parameter in enumerate(every)}

    def consolidate_state_dict(self, to: int = 0) -> None:
        """Brings all state to rank `to`, whose state_dict() then is the unsharded optimizer's. All ranks call it.
        ValueError there for values of classes that torch.load() refuses with weights_only=True."""
        if not 0 <= to < self._group.world_size():
            raise ValueError(f"[ShardedOptimizer] expected a rank below {self._group.world_size()}, got {to}")
        self._adopt()
        own = [self._inner.state.get(piece, {}) for piece, _, _ in self._pieces]
        gathered = gathered_state(self._shards, own, to, self._flat)
        self._consolidated = None
        if self._group.rank() != to:
            return
        indices = self._indices()
        state = {indices[id(self._numbers[number])]: kinds for number, kinds in gathered.items()}
        groups = []
        for group in self.param_groups:
            packed = {key: value for key, value in group.items() if key != "params"}
            groups.append({**packed, "params": [indices[id(parameter)] for parameter in group["params"]]})
        self._consolidated = {"state": dict(sorted(state.items())), "param_groups": groups}

    def state_dict(self) -> dict[str, Any]:
        """That of the optimizer without shards, on the rank that consolidate_state_dict() has brought it to."""
        if self._consolidated is None and self._group.world_size() == 1:
            self.consolidate_state_dict()
        if self._consolidated is None:
            raise RuntimeError(
                "[ShardedOptimizer] expected consolidate_state_dict(to), called on all ranks after the last "
                f"step(), before state_dict() on rank to, got none on rank {self._group.rank()}"
            )
        return self._consolidated

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes what state_dict(), or the optimizer without shards, gave on any number of ranks. Every rank gives
        all of it."""
        saved = state_dict["param_groups"]
        if [len(group["params"]) for group in saved] != [len(group["params"]) for group in self.param_groups]:
            raise ValueError(
                "[ShardedOptimizer] expected a state of as many groups and parameters as the optimizer has"
            )
        self._consolidated = None
        self._adopt()
        for group, other in zip(self.param_groups, saved):
            group.update(options_of(other))
        numbers = {id(parameter): number for number, parameter in enumerate(self._numbers)}
        place = {
            index: numbers[id(parameter)]
            for group, other in zip(self.param_groups, saved)
            for index, parameter in zip(other["params"], group["params"])
            if id(parameter) in numbers
        }
        own = own_state(self._shards, state_dict["state"], place, self._flat)
        order = {id(piece): number for number, (piece, _, _) in enumerate(self._pieces)}
        groups = [
            {**options_of(other), "params": [order[id(piece)] for piece in inner["params"]]}
            for inner, other in zip(self._inner.param_groups, saved)
        ]
        self._inner.load_state_dict({"state": own, "param_groups": groups})
        self.state = self._inner.state
