"""Where the time and the memory of a step go."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from . import report as reports
from ._library import classes, report_operators
from ._tokenizer import Path
from .report import Report

_ranges = classes.Ranges()


def _begin(name: str) -> None:
    if not torch.compiler.is_compiling():
        _ranges.begin(name)


def _end() -> None:
    if not torch.compiler.is_compiling():
        _ranges.end()


class range(contextlib.ContextDecorator):
    """A named stretch of time, as a context manager or a decorator: torch.profiler shows it, NVIDIA's tools do (NVTX),
    and profile() and memory() divide by it. The passes of a step are called "forward", "backward" and "optimizer". A
    compiled function has no ranges inside."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __enter__(self) -> range:
        _begin(self.name)
        return self

    def __exit__(self, *exception: Any) -> None:
        _end()


def tables(chrome_trace: Path, *, top: int = 10) -> str:
    """What `flashstep profile` prints, of a trace that torch.profiler exported; report.trace() gives the tables
    themselves."""
    return str(reports.trace(chrome_trace, top=top))


def profile(
    step: Callable[[], Any],
    *,
    module: nn.Module | None = None,
    steps: int = 2,
    warmup: int = 1,
    top: int = 10,
    trace: Path | None = None,
) -> Report:
    """Records `steps` calls of step() under torch.profiler, after `warmup` calls and one more in which the profiler is
    slow: report.trace()'s tables and pictures. step() names its passes by range(). module: its submodules' forward
    passes are ranges, too. trace: a file for the Chrome trace."""

    if steps < 1:
        raise ValueError(f"[profile] expected at least 1 step, got {steps}")

    def run(name: str, count: int) -> None:
        for _ in [None] * count:
            with range(name):
                step()
                if torch.cuda.is_initialized():
                    torch.cuda.synchronize()

    activities = [torch.profiler.ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    with _ranges_of(module), tempfile.TemporaryDirectory() as folder:
        _ranges.listen(True)
        try:
            run("warm-up", warmup)
            with torch.profiler.profile(activities=activities, record_shapes=True, acc_events=True) as profiler:
                run("warm-up", 1)
                run("step", steps)
        finally:
            _ranges.listen(False)
        path = os.fspath(trace or os.path.join(folder, "profile.json"))
        profiler.export_chrome_trace(path)
        return reports.trace(path, top=top)


@contextlib.contextmanager
def _ranges_of(module: nn.Module | None) -> Iterator[None]:
    """While it lasts, "layers.3" is a range around the forward pass of `layers.3`, in it "attn", "q_proj"."""
    hooks = []
    for path, child in module.named_modules() if module is not None else ():
        names = path.split(".")
        name = ".".join(names[-2:] if names[-1].isdigit() else names[-1:])
        if name:
            hooks.append(child.register_forward_pre_hook(lambda *_, name=name: _begin(name), prepend=True))
            hooks.append(child.register_forward_hook(lambda *_: _end(), always_call=True))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


class memory:
    """Records every allocation of tensors' memory, one recording at a time:

    with flashstep.profiling.memory() as recorded:  # before the model is made, whose memory is then known
        ...
        recorded.label("parameters", model.parameters())
    recorded.report()

    On a CPU what kernels take from elsewhere than torch's allocator is not seen.
    """

    def __init__(self, device: Any = "cpu") -> None:
        self._device = str(torch.device(device))

    def __enter__(self) -> memory:
        report_operators()
        self._recording = classes.MemoryRecording(self._device)
        return self

    def __exit__(self, *exception: Any) -> None:
        self._recording.stop()

    def label(self, kind: str, tensors: Iterable[Tensor | None]) -> None:
        """What these tensors hold is of this kind: "parameters", "gradients", "optimizer state", "communication" or
        "other". Of the rest "activations" are what a range "forward" leaves behind, and "temporaries" what else passes
        make."""
        self._recording.label(kind, [tensor for tensor in tensors if tensor is not None])

    def report(self, *, largest: int = 15) -> Report:
        """After the end: the peak by kind, its largest allocations, and memory over time."""
        return Report._of(json.loads(self._recording.report(largest)))
