"""Handlers of signals, while a call waits: what they raise comes out of that call, and others do not end it."""

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

import needs_torch  # noqa: F401
import torch
import torch.distributed as dist

import flashstep
import nets
import ranks

ROWS = 2


class TooLong(TimeoutError):
    pass


def raises(error):
    def handler(number, frame):
        raise error

    return handler


def waits(call, number, handler, wanted):
    """call() ends by what the handler raises, without another exception before."""
    signal.signal(number, handler)
    signal.signal(signal.SIGUSR1, lambda *_: None)  # ends nothing
    ended = threading.Event()

    def send():
        for sent in (signal.SIGUSR1, number):
            if not ended.wait(0.7):
                os.kill(os.getpid(), sent)

    thread = threading.Thread(target=send)
    thread.start()
    started = time.perf_counter()
    try:
        call()
    except BaseException as error:
        seconds = time.perf_counter() - started
        assert type(error) is type(wanted) and error.args == wanted.args, repr(error)
        assert seconds > 1, f"ended after {seconds} s, by the first signal"
    else:
        raise AssertionError("nobody was interrupted")
    finally:
        ended.set()
        thread.join()
        signal.signal(number, signal.SIG_IGN)


def is_interrupted(rank, world_size, number, handler, wanted, place):
    model = flashstep.DistributedDataParallel(nets.Net())
    optimizer = flashstep.ShardedOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)
    nets.train(model, optimizer, 1, ROWS, rank, world_size)
    dist.barrier()
    if rank == 1:
        time.sleep(ranks.LIMIT_S)  # it is ended when the other is done
    if place == "backward":
        waits(nets.loss_of(model, *nets.batch(1, ROWS, rank, world_size)).backward, number, handler, wanted)
    else:
        waits(optimizer.consolidate_state_dict, number, handler, wanted)
    os._exit(0)  # the group is broken


class Signals(unittest.TestCase):
    def test_what_a_handler_raises_ends_a_wait_for_ranks(self):
        for place in ("backward", "state"):
            for number, handler, wanted in (
                (signal.SIGINT, signal.default_int_handler, KeyboardInterrupt()),
                (signal.SIGTERM, lambda *_: sys.exit(0), SystemExit(0)),
                (signal.SIGALRM, raises(TooLong("an hour")), TooLong("an hour")),
            ):
                ranks.run(2, is_interrupted, number, handler, wanted, place, may_end=(1,))

    def test_what_a_handler_raises_ends_long_work(self):
        with tempfile.TemporaryDirectory() as folder:
            text, out = os.path.join(folder, "long.txt"), os.path.join(folder, "long.npy")
            with open(text, "w", encoding="utf-8") as file:
                for number in range(1_500_000):
                    file.write(f"{number * 7919} {number ^ 0x5bd1e995} ")
            plain = flashstep.Tokenizer({number: bytes([number]) for number in range(256)}, [])
            for work in (
                lambda: flashstep.Tokenizer.train(text, vocab_size=50_000, threads=1),
                lambda: [plain.encode_files(text, out, threads=1) for _ in range(100)],
            ):
                waits(work, signal.SIGALRM, raises(TooLong("an hour")), TooLong("an hour"))
            # A program that nobody ends in another way has the handler's exit code.
            script = (
                "import flashstep, os, signal, sys, threading\n"
                "signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))\n"
                "threading.Timer(1, os.kill, (os.getpid(), signal.SIGTERM)).start()\n"
                f"flashstep.Tokenizer.train({text!r}, vocab_size=50_000, threads=1)\n"
            )
            done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
            self.assertEqual((done.returncode, done.stderr), (7, ""))


if __name__ == "__main__":
    unittest.main()
