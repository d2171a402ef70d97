"""Data parallelism: gradients averaged over the ranks while backward goes on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from ._group import Wrapper, group_of, make_hook_table, require_module, tensors_in
from ._library import classes


def _check_devices(module: nn.Module, **named: Any) -> None:
    """What torch's arguments name is the one device of the parameters."""
    places = {parameter.device for parameter in module.parameters()}
    for name, value in named.items():
        for each in value if isinstance(value, (list, tuple)) else [] if value is None else [value]:
            device = torch.device("cuda", each) if isinstance(each, int) else torch.device(each)
            if any(device.type != place.type or device.index not in (None, place.index) for place in places):
                found = ", ".join(sorted(map(str, places)))
                raise ValueError(f"[parallel] expected {name} of the parameters' device, {found}, got {value}")


class DistributedDataParallel(Wrapper):
    """Wraps `module`: when backward() returns, every gradient is the mean over the ranks.

    A loop written for torch.nn.parallel.DistributedDataParallel runs unchanged. All ranks start from rank 0's
    parameters and buffers. Tied parameters are reduced once, frozen ones never.

    process_group: None: torch's default group; one process where torch.distributed was not initialized.
    strategy: "bucketed"; "naive", "flat" and "overlapped" to compare with; "torch": c10d's own Reducer, the baseline.
    bucket_megabytes: 10^6 bytes; None: chosen; math.inf: one bucket. reorder: buckets follow the order in which
    gradients came in the first step. allow_unused: parameters may have no gradient on some rank in some step.
    flat_buckets: None: chosen by the backend. communication_dtype: what gradients travel in. debug: ranks compare
    each step before sending. peer_copies: GPUs of one machine write into each other's memory, in place of NCCL.
    gradient_as_bucket_view: with peer_copies, means stay where they arrive and .grad is a view of that memory, which
    the next step writes over; saves a copy of most gradients, and takes (W - 1) / W of their memory, where there is
    room. Changes nothing where gradients travel in a communication_dtype.

    Of torch's arguments: device_ids and output_device name the parameters' device, to which inputs are not moved;
    find_unused_parameters is allow_unused; bucket_cap_mb is bucket_megabytes in units of 2^20 bytes.
    """

    def __init__(
        self,
        module: nn.Module,
        process_group: Any = None,
        *,
        strategy: str = "bucketed",
        bucket_megabytes: float | None = None,
        reorder: bool = True,
        allow_unused: bool = False,
        flat_buckets: bool | None = None,
        communication_dtype: torch.dtype | None = None,
        debug: bool = False,
        peer_copies: bool = False,
        gradient_as_bucket_view: bool = False,
        device_ids: Any = None,
        output_device: Any = None,
        find_unused_parameters: bool = False,
        bucket_cap_mb: float | None = None,
        broadcast_buffers: bool = False,
        static_graph: bool = False,
    ) -> None:
        super().__init__()
        require_module(module, "parallel")
        _check_devices(module, device_ids=device_ids, output_device=output_device)
        if broadcast_buffers:
            raise ValueError("[parallel] expected broadcast_buffers=False, and calls of broadcast_buffers(), got True")
        if static_graph:
            raise ValueError(
                "[parallel] expected static_graph=False, and allow_unused=True where a parameter has no gradient, got True"
            )
        if bucket_cap_mb is not None:
            if bucket_megabytes is not None:
                raise ValueError("[parallel] expected bucket_megabytes or bucket_cap_mb, got both")
            bucket_megabytes = bucket_cap_mb * 2**20 / 1e6
        self.module = module
        named = dict(module.named_parameters())
        for parameter in named.values():
            if parameter.requires_grad and parameter.is_leaf:
                make_hook_table(parameter)
        self._synchronizes = True
        self._group = group_of(process_group)
        self._means = classes.GradientMeans(
            self._group,
            list(named),
            list(named.values()),
            list(module.buffers()),
            strategy,
            float(bucket_megabytes or 0),
            reorder,
            allow_unused or find_unused_parameters,
            flat_buckets,
            communication_dtype,
            debug,
            peer_copies,
            gradient_as_bucket_view,
        )
        self._remember_module()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        self._check_module("DistributedDataParallel")
        self._means.before_forward()
        result = self.module(*args, **kwargs)
        if torch.is_grad_enabled():
            self._means.watch(tensors_in(result))
        return result

    def finish_gradient_synchronization(self) -> None:
        """Does nothing where backward() ended with the means. By hand where the loss is made of none of forward's
        results, and on all ranks in steps that some rank takes no part in."""
        self._means.finish()

    @property
    def require_backward_grad_sync(self) -> bool:
        """While it is False, backward() only adds gradients up (accumulation); the last one of a step finds it True."""
        return self._synchronizes

    @require_backward_grad_sync.setter
    def require_backward_grad_sync(self, wanted: bool) -> None:
        wanted = bool(wanted)
        if wanted != self._synchronizes:
            (self._means.leave_no_sync if wanted else self._means.enter_no_sync)()
            self._synchronizes = wanted

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Inside, require_backward_grad_sync is False; the last backward() of a step stands outside."""
        before, self.require_backward_grad_sync = self.require_backward_grad_sync, False
        try:
            yield
        finally:
            self.require_backward_grad_sync = before

    def broadcast_buffers(self) -> None:
        """Buffers are rank 0's again. They are not kept equal by themselves. All ranks call it."""
        self._means.broadcast_buffers()

    def forget_step(self) -> None:
        """After a backward() that an exception broke off on all ranks: gives its gradients up. All ranks call it."""
        self._means.forget_step()

    def describe(self) -> str:
        """Strategy, buckets and transport: "bucketed, 3 buckets of up to 25 MB (chosen), by Gloo"."""
        return self._means.describe()


def group_and_means(ddp: Any) -> tuple[Any, Any]:
    if not isinstance(ddp, DistributedDataParallel):
        raise ValueError(
            f"[ShardedOptimizer] expected a flashstep.DistributedDataParallel as ddp, got {type(ddp).__name__}"
        )
    return ddp._group, ddp._means
