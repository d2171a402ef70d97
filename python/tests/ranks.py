"""Ranks of a test: processes over Gloo that run one function."""

import faulthandler
import multiprocessing
import os
import signal
import sys
import tempfile
import traceback

import needs_torch  # noqa: F401
import torch
import torch.distributed as dist

import torch._dynamo  # noqa: F401  (which torch's optimizers load at their first step: the ranks, as forks, have it)

import flashstep  # noqa: F401

LIMIT_S = 120


def _rank(function, rank, world_size, store, errors, arguments):
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    torch.set_num_threads(1)
    faulthandler.dump_traceback_later(LIMIT_S - 20)  # where a rank is that does not end
    status = 0
    try:
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world_size)
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


def run(world_size, function, *arguments, may_end=()):
    """function(rank, world_size, *arguments) on every rank; AssertionError with the traceback of those that fail. Ranks
    of `may_end` may end as they like, and are ended when the others are done."""
    context = multiprocessing.get_context("fork")
    errors = context.Queue()
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    with tempfile.TemporaryDirectory() as folder:
        ranks = [
            context.Process(target=_rank, args=(function, rank, world_size, f"{folder}/store", errors, arguments))
            for rank in range(world_size)
        ]
        for process in ranks:
            process.start()
        for process in [process for rank, process in enumerate(ranks) if rank not in may_end]:
            process.join(LIMIT_S)
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
    assert not late, f"ranks {late} of {world_size} took longer than {LIMIT_S} s\n" + "\n".join(texts)
    assert not failed, f"ranks {failed} of {world_size} failed\n" + "\n".join(texts)
