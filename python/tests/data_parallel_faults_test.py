"""DistributedDataParallel when something is wrong: mistakes, a lost rank, a group that goes first."""

import copy
import gc
import io
import os
import time
import unittest
from unittest import mock

import needs_torch  # noqa: F401
import torch
import torch.distributed as dist
from torch import nn

import flashstep
import nets
import ranks
from data_parallel_test import ROWS, Outputs, assert_same


def outlives_its_group(rank, world_size):
    """Also: the wrapper compiled, evaluated, not copied; a group that goes before what uses it."""
    model, alone = flashstep.DistributedDataParallel(nets.Net(), dist.new_group([0, 1])), nets.Net()
    compiled = torch.compile(model, backend="aot_eager")
    nets.train(compiled, torch.optim.SGD(model.parameters(), 0.3), 2, ROWS, rank, world_size)
    nets.train(alone, torch.optim.SGD(alone.parameters(), 0.3), 2, ROWS * world_size)
    assert_same(model.module, alone, 1e-5)
    with torch.inference_mode():
        model(nets.batch(0, ROWS)[0])
    sharded = flashstep.ShardedOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)
    for wrapper, instead in ((model, "model.module or model.state_dict()"), (sharded, "state_dict()")):
        for copied in (copy.deepcopy, lambda wrapper: torch.save(wrapper, io.BytesIO())):
            try:
                copied(wrapper)
                raise AssertionError("a wrapper was copied")
            except TypeError as error:
                assert f"expected {instead} to be copied" in str(error), error
    copy.deepcopy(model.module)
    dist.destroy_process_group()
    del compiled, model, sharded, wrapper
    gc.collect()
    store = dist.HashStore()
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)


def mistakes(rank, world_size):
    def sentence(call, kind, text):
        try:
            call()
        except kind as error:
            assert text in str(error) and "\n" not in str(error).strip(), error
        else:
            raise AssertionError(f"nothing was said: {text}")

    sentence(lambda: flashstep.DistributedDataParallel(None), ValueError, "expected a torch.nn.Module, got None")
    sentence(lambda: flashstep.DistributedDataParallel(nets.Net(), strategy="fast"), ValueError, "expected")
    sentence(lambda: flashstep.DistributedDataParallel(nn.Linear(3 + rank, 2)), ValueError, "weight")
    own = nn.Linear(2, 2)
    sentence(
        lambda: flashstep.ShardedOptimizer(own.parameters(), torch.optim.SGD, shards="flat", ddp=own, lr=0.1),
        ValueError,
        "expected a flashstep.DistributedDataParallel as ddp, got Linear",
    )
    sentence(lambda: copy.deepcopy(flashstep.FullyShardedDataParallel(own)), TypeError, "gather_full_parameters()")
    unused = flashstep.DistributedDataParallel(Outputs())
    sentence(lambda: unused(torch.ones(2, 3))["first"][0].sum().backward(), ValueError, "b.weight")
    for wrap in (flashstep.DistributedDataParallel, flashstep.FullyShardedDataParallel):
        sentence(lambda: wrap(nn.Linear(2, 2, device="meta")), ValueError, "got weight on the meta device")
    twice = flashstep.DistributedDataParallel(flashstep.DistributedDataParallel(nn.Linear(3, 2)))
    sentence(lambda: twice(torch.ones(2, 3)).sum().backward(), ValueError, "by one reducer, got two")
    model = flashstep.DistributedDataParallel(nets.Net(), allow_unused=True, communication_dtype=torch.bfloat16)
    nets.loss_of(model, *nets.batch(0, ROWS, rank, world_size)).backward()
    assert "bucketed" in model.describe(), model.describe()


def refuses_parameters_that_came_later(rank, world_size):
    def added(net):
        net.extra = nn.Parameter(torch.ones(3))

    def replaced(net):
        net[1] = nn.Linear(4, 2)

    for wrap in (flashstep.DistributedDataParallel, flashstep.FullyShardedDataParallel):
        for change, text in ((added, "with 4 parameters, got 5"), (replaced, "but 1.weight is another tensor now")):
            net = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
            model = wrap(net)
            model(torch.ones(2, 3)).sum().backward()
            nn.Linear(2, 2)  # somebody else's
            model(torch.ones(2, 3)).sum().backward()
            change(net)
            for _ in range(2):
                try:
                    model(torch.ones(2, 3))
                    raise AssertionError(f"nothing was said: {text}")
                except ValueError as error:
                    assert f"expected the module as it was wrapped, {text}" in str(error), error


def loses_a_rank(rank, world_size):
    model = flashstep.DistributedDataParallel(nets.Net())
    nets.loss_of(model, *nets.batch(0, ROWS, rank, world_size)).backward()
    if rank == 1:
        os._exit(3)
    time.sleep(0.3)
    try:
        nets.loss_of(model, *nets.batch(1, ROWS, rank, world_size)).backward()
    except dist.DistBackendError as error:
        assert "rank 0 of 2" in str(error) and "\n" not in str(error).strip(), error
        os._exit(0)  # the group is broken
    raise AssertionError("backward() ended although a rank was lost")


def gradients_wait_whatever_false_is_called(rank, world_size):
    model = flashstep.DistributedDataParallel(nets.Net())
    for wanted in (2, None, None, 0, True, 2, "yes"):
        model.require_backward_grad_sync = wanted
        assert model.require_backward_grad_sync is bool(wanted), wanted
    try:
        model._means.leave_no_sync()  # which would end what was not begun
        raise AssertionError("nothing was said")
    except ValueError as error:
        assert "expected as many calls of leave_no_sync() as of enter_no_sync()" in str(error), error
    alone = nets.Net()
    nets.loss_of(model, *nets.batch(0, ROWS, rank, world_size)).backward()
    nets.loss_of(alone, *nets.batch(0, ROWS * world_size)).backward()
    for name, parameter in model.module.named_parameters():
        torch.testing.assert_close(parameter.grad, alone.get_parameter(name).grad, rtol=1e-5, atol=1e-6)


class Faults(unittest.TestCase):
    def test_a_group_that_goes_first(self):
        ranks.run(2, outlives_its_group)

    def test_a_launchers_rank_without_a_group(self):
        with mock.patch.dict(os.environ, WORLD_SIZE="2"):
            for wrap in (flashstep.DistributedDataParallel, flashstep.FullyShardedDataParallel):
                with self.assertRaisesRegex(ValueError, r"init_process_group\(\) before, since WORLD_SIZE is 2"):
                    wrap(nets.Net())

    def test_mistakes_are_sentences(self):
        ranks.run(2, mistakes)

    def test_parameters_that_came_later_are_refused(self):
        ranks.run(2, refuses_parameters_that_came_later)

    def test_a_lost_rank_is_an_error(self):
        ranks.run(2, loses_a_rank, may_end=(1,))

    def test_gradients_wait_whatever_false_is_called(self):
        ranks.run(2, gradients_wait_whatever_false_is_called)


if __name__ == "__main__":
    unittest.main()
