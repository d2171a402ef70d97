"""Ranks on GPUs: what the CPU tests say of data parallelism, divided optimizers and fully sharded modules, over NCCL
alone, over both backends, and over Gloo where two ranks share one GPU.

FLASHSTEP_TEST_DEVICE=cpu rehearses it over Gloo.
"""

import math
import os
import tempfile
import time
import unittest
from datetime import timedelta
from pathlib import Path

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # equal bits

import needs_gpu
import torch
import torch.distributed as dist

import data_parallel_test as data_parallel
import flashstep
import fully_sharded_steps_test as fully_sharded_steps
import fully_sharded_test as fully_sharded
import nets
import ranks
import sharded_optimizer_test as sharded_optimizer

SIZES = {"vocab_size": 300, "context_length": 32, "d_model": 64, "num_layers": 3, "num_heads": 1, "d_ff": 128}


class Tokens:
    """Rows of tokens, the same parts for ranks and for one process."""

    def __init__(self, rank, world_size):
        self.rank, self.world_size = rank, world_size

    def at(self, step, whole=False):
        tokens = torch.randint(0, 300, (4, 33), generator=torch.Generator().manual_seed(step), device="cpu")
        part = (tokens if whole else tokens.chunk(self.world_size)[self.rank]).to(torch.get_default_device())
        return part[:, :-1].contiguous(), part[:, 1:].contiguous()


def a_model_in_low_precision(rank, world_size, wrap):
    """flashstep.nn under autocast to bfloat16: ranks end where one process ends that takes all rows."""
    alone = flashstep.nn.TransformerLM(**SIZES, seed=5)
    model, rows = wrap(flashstep.nn.TransformerLM(**SIZES, seed=5 + rank)), Tokens(rank, world_size)
    device = torch.get_default_device().type
    first = [parameter.detach().clone() for parameter in alone.parameters()]
    for net, whole in ((model, False), (alone, True)):
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(3):
            optimizer.zero_grad()
            inputs, targets = rows.at(step, whole)
            with torch.autocast(device, torch.bfloat16):
                logits = net(inputs)
            flashstep.cross_entropy(logits.float(), targets).backward()
            optimizer.step()
    whole = model.gather_full_parameters() if hasattr(model, "gather_full_parameters") else model.module.state_dict()
    for (name, wanted), before in zip(alone.named_parameters(), first):
        moved, error = (wanted - before).norm(), (whole[name] - wanted).norm()
        assert error < 0.05 * moved, f"{name}: {error} of {moved}"


def shards_repeat(rank, world_size):
    """Twice the same steps of a fully sharded module give the same bits, data parallelism's within rounding."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    found, sharded = [], flashstep.FullyShardedDataParallel
    for wrap in (sharded, sharded, flashstep.DistributedDataParallel):
        model, rows = wrap(flashstep.nn.TransformerLM(**SIZES, seed=5)), Tokens(rank, world_size)
        optimizer = flashstep.AdamW(model.parameters(), lr=1e-3)
        for step in range(3):
            optimizer.zero_grad()
            inputs, targets = rows.at(step)
            flashstep.cross_entropy(model(inputs), targets).backward()
            flashstep.clip_grad_norm_(model if hasattr(model, "clip_grad_norm_") else model.parameters(), 1.0)
            optimizer.step()
        found.append(
            model.gather_full_parameters() if hasattr(model, "gather_full_parameters") else model.module.state_dict()
        )
    torch.use_deterministic_algorithms(False)
    for name, wanted in found[0].items():
        assert torch.equal(wanted, found[1][name]), name
        torch.testing.assert_close(wanted, found[2][name], rtol=1e-3, atol=1e-4, msg=lambda text: f"{name}: {text}")


def in_a_graph(rank, world_size):
    """A step of data parallelism captured in a CUDA graph."""
    models = [flashstep.nn.TransformerLM(**SIZES, seed=5) for _ in range(2)]
    wrapped = [flashstep.DistributedDataParallel(model) for model in models]
    optimizers = [torch.optim.AdamW(model.parameters(), lr=1e-3, capturable=True) for model in models]
    rows = Tokens(rank, world_size)
    inputs, targets = (tensor.clone() for tensor in rows.at(0))

    def one(which):
        optimizers[which].zero_grad(set_to_none=False)
        flashstep.cross_entropy(wrapped[which](inputs), targets).backward()
        optimizers[which].step()

    def fill(step):
        for place, tensor in zip((inputs, targets), rows.at(step)):
            place.copy_(tensor)

    with torch.cuda.stream(torch.cuda.Stream()):
        for step in range(3):
            fill(step)
            one(0)
            one(1)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=torch.cuda.current_stream(), capture_error_mode="thread_local"):
            one(0)
        for step in range(3, 7):
            fill(step)
            graph.replay()
            one(1)
        torch.cuda.synchronize()
    for (name, mine), other in zip(models[0].named_parameters(), models[1].parameters()):
        assert needs_gpu.relative_error(mine.detach(), other.detach()) < 1e-4, name
    del graph


def has_ended(pid):
    """The process whose number is written there, if it is; nobody has asked for its exit code."""
    number = pid.read_text() if pid.exists() else ""
    return number != "" and "State:\tZ" in Path(f"/proc/{number}/status").read_text()


def waits_for_a_lost_rank(rank, world_size, path):
    """A rank whose GPU waits for copies of one that does not come ends after the group's limit, with a sentence."""
    group = dist.new_group([0, 1], timeout=timedelta(seconds=4))
    model = flashstep.DistributedDataParallel(flashstep.nn.TransformerLM(**SIZES), group, peer_copies=True)
    rows = Tokens(rank, world_size)
    for step in range(4):
        if step == 3 and rank == 1:
            break
        if step == 3:
            Path(path, "pid").write_text(str(os.getpid()))
            os.dup2(os.open(f"{path}/error", os.O_CREAT | os.O_WRONLY), 2)
        inputs, targets = rows.at(step)
        loss = flashstep.cross_entropy(model(inputs), targets)
        loss.backward()
        float(next(model.parameters()).grad.sum())
    assert rank == 1, f"a rank went on without the other, {model.describe()}"
    started = time.monotonic()
    while not has_ended(Path(path, "pid")):
        assert time.monotonic() < started + 20, f"no end by the limit, {model.describe()}"
        time.sleep(0.1)
    sentence = Path(path, "error").read_text()
    assert "flashstep: [peer copies] waited 4 s" in sentence and "for rank 1" in sentence, sentence


def by_what(rank, world_size, wanted):
    model = flashstep.DistributedDataParallel(nets.Net(), peer_copies=True)
    nets.train(model, torch.optim.SGD(model.parameters(), 0.3), 2, 4, rank, world_size)
    assert wanted in model.describe(), model.describe()
    sharded = flashstep.FullyShardedDataParallel(nets.Net(), peer_copies=True)
    assert sharded._units.transport() == ("copies" if "copies" in wanted else "Gloo"), sharded._units.transport()
    plain = flashstep.DistributedDataParallel(nets.Net())
    assert "copies" not in plain.describe(), plain.describe()


class Ranks:
    """Of every way to connect two ranks."""

    def run_ranks(self, *calls):
        """(function, arguments...) in turn: to begin anew costs seconds on GPUs."""
        where = {"backend": self.backend, "device": self.device} if needs_gpu.DEVICE == "cuda" else {}
        ranks.run(2, ranks.in_turn, calls, **where)

    def test_data_parallel(self):
        options = [{"strategy": strategy} for strategy in ("naive", "flat", "overlapped", "bucketed", "torch")]
        options += [{"bucket_megabytes": 1e-4}, {"bucket_megabytes": math.inf}, {"allow_unused": True}]
        options += [{"debug": True, "reorder": False}, {"peer_copies": True}]
        options += [{"peer_copies": True, "gradient_as_bucket_view": True}]
        self.run_ranks(*((data_parallel.trains_as_one, each) for each in options))

    def test_what_people_do_beside_it(self):
        functions = ("accumulates", "keeps_hooks", "recomputes", "finds_outputs")
        self.run_ranks(*((getattr(data_parallel, name),) for name in functions))

    def test_low_precision(self):
        self.run_ranks(
            (a_model_in_low_precision, flashstep.DistributedDataParallel),
            (a_model_in_low_precision, flashstep.FullyShardedDataParallel),
            (fully_sharded.in_low_precision,),
        )

    def test_whole_shards(self):
        equals = sharded_optimizer.equals_unsharded
        self.run_ranks((equals, "AdamW", "whole", False), (equals, "SGD", "whole", False))

    def test_flat_shards(self):
        equals = sharded_optimizer.equals_unsharded
        self.run_ranks(
            (equals, "AdamW", "flat", False),
            (equals, "AdamW", "flat", True),
            (equals, "flashstep", "flat", True),
            (sharded_optimizer.clips,),
        )

    def test_fully_sharded(self):
        self.run_ranks(
            (fully_sharded.trains_as_one, nets.Net, {}),
            (fully_sharded.accumulates_clips_and_loads,),
            (fully_sharded.clips_and_skips_by_parameters,),
            (fully_sharded.takes_and_refuses_given_values,),
            (fully_sharded.recomputes_and_keeps,),
            (fully_sharded.several_forwards_and_breaks,),
        )

    def test_steps_of_fully_sharded(self):
        self.run_ranks((shards_repeat,), (fully_sharded_steps.steps_in_backward,))


class NcclAlone(Ranks, unittest.TestCase):
    backend, device, gpus = "nccl", "cuda:{rank}", 2

    @unittest.skipUnless(needs_gpu.DEVICE == "cuda", "a GPU's")
    def test_in_a_graph(self):
        self.run_ranks((in_a_graph,))


class BothBackends(Ranks, unittest.TestCase):
    backend, device, gpus = "cpu:gloo,cuda:nccl", "cuda:{rank}", 2

    @unittest.skipUnless(needs_gpu.DEVICE == "cuda", "a GPU's")
    def test_peer_copies(self):
        self.run_ranks(
            (by_what, "copies"),
            (fully_sharded.clips_and_skips_by_parameters, True),
            (fully_sharded.takes_and_refuses_given_values, True),
        )

    @unittest.skipUnless(needs_gpu.DEVICE == "cuda", "a GPU's")
    def test_a_lost_rank(self):
        with tempfile.TemporaryDirectory() as path:
            ranks.run(2, waits_for_a_lost_rank, path, may_end=(0,), backend=self.backend, device=self.device)


class OneGpuForTwo(Ranks, unittest.TestCase):
    backend, device, gpus = "gloo", "cuda:0", 1


if __name__ == "__main__":
    needs_gpu.need(2)
    unittest.main()
