"""DistributedDataParallel: the gradients of one process on all rows, whatever people do beside it."""

import copy
import gc
import math
import unittest
from collections import UserDict

import needs_torch  # noqa: F401
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint

import flashstep
import nets
import ranks

ROWS = 4  # of a rank


def assert_same(module, alone, tolerance=1e-6):
    for name, parameter in module.named_parameters():
        torch.testing.assert_close(
            parameter, alone.get_parameter(name), rtol=tolerance, atol=tolerance, msg=lambda t: f"{name}: {t}"
        )


def assert_same_gradients(module, alone):
    for name, parameter in alone.named_parameters():
        if parameter.grad is not None:
            torch.testing.assert_close(module.get_parameter(name).grad, parameter.grad, rtol=1e-5, atol=1e-6)


def trains_as_one(rank, world_size, options):
    model = flashstep.DistributedDataParallel(nets.Net(seed=rank), **options)
    alone = nets.Net(seed=0)
    assert torch.equal(model.module.counter, alone.counter)
    assert torch.equal(model.module.frozen.weight, alone.frozen.weight)
    nets.train(model, torch.optim.SGD(model.parameters(), 0.3, momentum=0.9), 4, ROWS, rank, world_size)
    nets.train(alone, torch.optim.SGD(alone.parameters(), 0.3, momentum=0.9), 4, ROWS * world_size)
    assert_same(model.module, alone, 1e-5)
    assert model.module.head.weight is model.module.embed.weight
    assert model.module.frozen.weight.grad is None
    assert list(model.state_dict())[0] == "module.embed.weight" or "module.embed.weight" in model.state_dict()


def accumulates(rank, world_size):
    model, alone = flashstep.DistributedDataParallel(nets.Net()), nets.Net()
    for step in range(3):
        if step == 1:
            model.require_backward_grad_sync = False
            nets.loss_of(model, *nets.batch(10 + step, ROWS, rank, world_size)).backward()
            local = nets.Net()
            nets.loss_of(local, *nets.batch(10 + step, ROWS, rank, world_size)).backward()
            assert_same_gradients(model.module, local)
            with model.no_sync():
                pass
            assert not model.require_backward_grad_sync
            model.require_backward_grad_sync = True
        else:
            with model.no_sync():
                nets.loss_of(model, *nets.batch(10 + step, ROWS, rank, world_size)).backward()
        nets.loss_of(model, *nets.batch(20 + step, ROWS, rank, world_size)).backward()
        model.finish_gradient_synchronization()
        model.finish_gradient_synchronization()
        for first in (10, 20):
            nets.loss_of(alone, *nets.batch(first + step, ROWS * world_size)).backward()
        assert_same_gradients(model.module, alone)
        model.zero_grad(set_to_none=step % 2 == 0)
        alone.zero_grad()


def keeps_hooks(rank, world_size):
    """Hooks of the user, before and after wrapping, see the gradient and take nothing away."""
    net, seen = nets.Net(), []
    net.norm.weight.register_post_accumulate_grad_hook(lambda p: seen.append("before"))
    model = flashstep.DistributedDataParallel(net)
    removed = net.norm.bias.register_post_accumulate_grad_hook(lambda p: seen.append("removed"))
    net.blocks[0][0].weight.register_post_accumulate_grad_hook(lambda p: seen.append("after"))
    removed.remove()
    alone = nets.Net()
    for step in range(3):
        model.zero_grad()
        alone.zero_grad()
        nets.loss_of(model, *nets.batch(step, ROWS, rank, world_size)).backward()
        nets.loss_of(alone, *nets.batch(step, ROWS * world_size)).backward()
        for name, parameter in alone.named_parameters():
            if parameter.grad is not None:
                torch.testing.assert_close(net.get_parameter(name).grad, parameter.grad, rtol=1e-5, atol=1e-6)
    assert sorted(seen) == ["after"] * 3 + ["before"] * 3, seen


class Recomputed(nets.Net):
    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = x + checkpoint(block, x, use_reentrant=self.reentrant)
        return self.head(self.norm(self.frozen(x)))


def recomputes(rank, world_size):
    for reentrant in (False, True):
        net = Recomputed()
        net.reentrant = reentrant
        model, alone = flashstep.DistributedDataParallel(net), nets.Net()
        nets.train(model, torch.optim.SGD(model.parameters(), 0.3), 3, ROWS, rank, world_size)
        nets.train(alone, torch.optim.SGD(alone.parameters(), 0.3), 3, ROWS * world_size)
        assert_same(net, alone, 1e-5)


def lives_with_amp_compile_and_collection(rank, world_size):
    net = nets.Net()
    model = flashstep.DistributedDataParallel(torch.compile(net, backend="aot_eager"))
    other = flashstep.DistributedDataParallel(nets.Net(seed=3))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cpu")
    for step in range(3):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = nets.loss_of(model, *nets.batch(step, ROWS, rank, world_size))
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        nets.loss_of(other, *nets.batch(step, ROWS, rank, world_size)).backward()
    every = [torch.empty_like(net.norm.weight) for _ in range(world_size)]
    dist.all_gather(every, net.norm.weight.detach())
    assert all(torch.equal(each, every[0]) for each in every)
    inner = other.module
    del other, model
    gc.collect()
    nets.loss_of(inner, *nets.batch(9, ROWS)).backward()  # nobody waits for others any more
    copy.deepcopy(inner)


class Found(UserDict):  # no dict, as many libraries' outputs
    pass


class Outputs(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Linear(3, 4), nn.Linear(3, 2)

    def forward(self, x, *, twice=False):
        return Found({"first": [self.a(x)], "second": (self.b(x) * (2 if twice else 1), "text")})


def finds_outputs(rank, world_size):
    model = flashstep.DistributedDataParallel(Outputs())
    x = torch.arange(6.0).view(2, 3) + rank
    out = model(x, twice=True)
    (out["first"][0].sum() + out["second"][0].sum()).backward()
    mean = sum((torch.arange(6.0).view(2, 3) + each).sum(0) for each in range(world_size)) / world_size
    torch.testing.assert_close(model.module.b.weight.grad, 2 * mean.expand(2, 3))


def in_subgroups(rank, world_size):
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    own = pairs[rank // 2]
    model = flashstep.DistributedDataParallel(nets.Net(seed=rank), own)
    first = (rank // 2) * 2
    alone = nets.Net(seed=first)
    nets.train(model, torch.optim.SGD(model.parameters(), 0.3), 3, ROWS, rank - first, 2, first=first)
    nets.train(alone, torch.optim.SGD(alone.parameters(), 0.3), 3, ROWS * 2, first=first)
    assert_same(model.module, alone, 1e-5)
    try:
        flashstep.DistributedDataParallel(nets.Net(), pairs[1 - rank // 2])
        raise AssertionError("a group of others was taken")
    except ValueError as error:
        assert "this rank belongs to" in str(error), error


def takes_the_arguments_of_torchs(rank, world_size):
    for options in (
        {"device_ids": None, "output_device": None, "broadcast_buffers": False, "static_graph": False},
        {"device_ids": ["cpu"], "output_device": torch.device("cpu"), "find_unused_parameters": True},
    ):
        model = flashstep.DistributedDataParallel(nets.Net(), **options)
        nets.loss_of(model, *nets.batch(0, ROWS, rank, world_size)).backward()
    unused = flashstep.DistributedDataParallel(Outputs(), find_unused_parameters=True)
    unused(torch.ones(2, 3))["first"][0].sum().backward()
    assert flashstep.DistributedDataParallel(nets.Net(), bucket_cap_mb=1)._means.bucket_megabytes() == 2**20 / 1e6
    for options, text in (
        ({"device_ids": [rank]}, f"expected device_ids of the parameters' device, cpu, got [{rank}]"),
        ({"output_device": "cuda:1"}, "expected output_device of the parameters' device, cpu, got cuda:1"),
        ({"broadcast_buffers": True}, "calls of broadcast_buffers()"),
        ({"static_graph": True}, "allow_unused=True"),
        ({"bucket_cap_mb": 25, "bucket_megabytes": 25}, "bucket_megabytes or bucket_cap_mb"),
    ):
        try:
            flashstep.DistributedDataParallel(nets.Net(), **options)
            raise AssertionError(f"nothing was said: {text}")
        except ValueError as error:
            assert text in str(error), error


class DataParallel(unittest.TestCase):
    def test_trains_as_one_process(self):
        for world_size in (1, 2, 3, 4):
            ranks.run(world_size, trains_as_one, {})

    def test_strategies(self):
        for options in (
            {"strategy": "naive"},
            {"strategy": "flat"},
            {"strategy": "overlapped"},
            {"strategy": "torch"},
            {"bucket_megabytes": 1e-4},
            {"bucket_megabytes": math.inf},
            {"debug": True, "reorder": False},
            {"flat_buckets": False},
            {"peer_copies": True, "gradient_as_bucket_view": True},  # of GPUs: here nothing
            {"allow_unused": True},
        ):
            ranks.run(2, trains_as_one, options)

    def test_arguments_of_torchs(self):
        ranks.run(2, takes_the_arguments_of_torchs)

    def test_accumulation(self):
        ranks.run(2, accumulates)

    def test_hooks_of_the_user(self):
        ranks.run(2, keeps_hooks)

    def test_recomputed_parts(self):
        ranks.run(2, recomputes)

    def test_amp_compile_and_garbage_collection(self):
        ranks.run(2, lives_with_amp_compile_and_collection)

    def test_nested_outputs(self):
        ranks.run(3, finds_outputs)

    def test_subgroups(self):
        ranks.run(4, in_subgroups)

    def test_one_process_without_a_group(self):
        model, alone = flashstep.DistributedDataParallel(nets.Net()), nets.Net()
        nets.train(model, torch.optim.SGD(model.parameters(), 0.3), 2, ROWS)
        nets.train(alone, torch.optim.SGD(alone.parameters(), 0.3), 2, ROWS)
        for name, parameter in model.module.named_parameters():
            self.assertTrue(torch.equal(parameter, alone.get_parameter(name)), name)


if __name__ == "__main__":
    unittest.main()
