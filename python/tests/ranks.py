"""Ranks of a test: processes that run one function, over Gloo and on CPUs unless told otherwise."""

import faulthandler
import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
import tempfile
import time
import traceback

import needs_torch  # noqa: F401
import torch
import torch.distributed as dist

import torch._dynamo  # noqa: F401  (which torch's optimizers load at their first step: the ranks, as forks, have it)

import flashstep  # noqa: F401

LIMIT_S = float(os.environ.get("FLASHSTEP_TEST_LIMIT_S", 120))


def _rank(function, rank, world_size, store, errors, arguments, backend, device):
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    torch.set_num_threads(1)
    faulthandler.enable()
    faulthandler.dump_traceback_later(LIMIT_S * 0.8)  # where a rank is that does not end
    status = 0
    try:
        if device != "cpu":
            torch.set_default_device(device.format(rank=rank))
            torch.cuda.set_device(device.format(rank=rank))
        dist.init_process_group(backend, init_method=f"file://{store}", rank=rank, world_size=world_size)
        dist.barrier()  # a rank that ends before another has connected would break its connecting
        function(rank, world_size, *arguments)
        dist.destroy_process_group()
    except BaseException:
        errors.put((rank, traceback.format_exc()))
        errors.close()
        errors.join_thread()
        status = 1
    sys.stdout.flush()
    os._exit(status)


def _wait(processes):
    """For all to end; when one has failed the others, who may wait for it, have 5 s left."""
    end = time.monotonic() + LIMIT_S
    while any(process.is_alive() for process in processes) and time.monotonic() < end:
        if any(process.exitcode for process in processes):
            end = min(end, time.monotonic() + 5)
        multiprocessing.connection.wait([process.sentinel for process in processes if process.is_alive()], 0.5)
    for process in processes:
        process.join(0)


def in_turn(rank, world_size, calls):
    """(function, arguments...) one after the other, by the same ranks."""
    for function, *arguments in calls:
        try:
            function(rank, world_size, *arguments)
        except BaseException as error:
            raise AssertionError(f"in {function.__name__} {arguments}: {error}") from error
        torch.use_deterministic_algorithms(False)


def run(world_size, function, *arguments, may_end=(), backend="gloo", device="cpu"):
    """function(rank, world_size, *arguments) on every rank; AssertionError with the traceback of those that fail. Ranks
    of `may_end` may end as they like, and are ended when the others are done. device: torch's default one in a rank,
    "cuda:{rank}"."""
    context = multiprocessing.get_context("fork")
    errors = context.Queue()
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    with tempfile.TemporaryDirectory() as folder:
        ranks = [
            context.Process(
                target=_rank,
                args=(function, rank, world_size, f"{folder}/store", errors, arguments, backend, device),
            )
            for rank in range(world_size)
        ]
        for process in ranks:
            process.start()
        _wait([process for rank, process in enumerate(ranks) if rank not in may_end])
        for rank in may_end:
            ranks[rank].kill()
            ranks[rank].join()
        late = [rank for rank, process in enumerate(ranks) if process.is_alive()]
        for rank in late:
            ranks[rank].kill()
            ranks[rank].join()
    failed = [rank for rank, process in enumerate(ranks) if process.exitcode != 0 and rank not in may_end]
    texts = []
    while not errors.empty():
        rank, text = errors.get()
        texts.append(f"rank {rank} of {world_size}:\n{text}")
    codes = [process.exitcode for process in ranks]  # a signal's number, below 0
    assert not late, f"ranks {late} of {world_size} took longer than {LIMIT_S} s, exit codes {codes}\n" + "\n".join(texts)
    assert not failed, f"ranks {failed} of {world_size} failed, exit codes {codes}\n" + "\n".join(texts)
