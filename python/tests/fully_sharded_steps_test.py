"""FullyShardedDataParallel: the optimizer in backward, and several copies of the weights."""

import gc
import unittest

import needs_torch  # noqa: F401
import torch
import torch.distributed as dist

import flashstep
import nets
import ranks
from fully_sharded_test import ROWS, SIZES, Recomputed, compare


def steps_in_backward(rank, world_size):
    """The bits of a step after backward; at each update the gradients of one unit are there, and afterwards none."""
    for make, cls in (
        (nets.Net, torch.optim.AdamW),
        (Recomputed, flashstep.AdamW),
        (lambda: flashstep.nn.TransformerLM(**SIZES, seed=3), torch.optim.SGD),
    ):
        models = [flashstep.FullyShardedDataParallel(make()) for _ in range(2)]
        optimizers = [cls(model.parameters(), lr=1e-2) for model in models]
        models[0].step_in_backward(optimizers[0])
        schedulers = [torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5) for optimizer in optimizers]
        seen = []

        def note(optimizer, *_, model=models[0], seen=seen):
            seen.append([name for name, parameter in model.named_parameters() if parameter.grad is not None])

        optimizers[0].register_step_pre_hook(note)
        for step in range(4):
            nets.train(models[0], optimizers[0], 1, ROWS, rank, world_size, first=step)
            nets.train(models[1], optimizers[1], 1, ROWS, rank, world_size, first=step)
            assert all(parameter.grad is None for parameter in models[0].parameters())
            for scheduler in schedulers:
                scheduler.step()
        whole = models[1].gather_full_parameters()
        for name, mine in models[0].gather_full_parameters().items():
            assert torch.equal(mine, whole[name]), name
        units = {tuple(names) for names in seen if names}
        assert len(units) > 4, units
        for names in units:
            blocks = {name.split(".")[2] for name in names if ".blocks." in name or ".layers." in name}
            assert len(blocks) <= 1, names
        try:
            models[0].clip_grad_norm_(1.0)
            raise AssertionError("gradients were clipped that are gone")
        except ValueError as error:
            assert "expected gradients to clip" in str(error), error


def an_update_that_fails(rank, world_size):
    model = flashstep.FullyShardedDataParallel(nets.Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.step_in_backward(optimizer)

    def fail(*_):
        raise KeyError("mine")

    hook = optimizer.register_step_pre_hook(fail)
    try:
        nets.loss_of(model, *nets.batch(0, ROWS, rank, world_size)).backward()
        raise AssertionError("the error of an update was lost")
    except KeyError as error:
        assert "mine" in str(error), error
    hook.remove()
    model.forget_step()
    nets.loss_of(model, *nets.batch(1, ROWS, rank, world_size)).backward()
    del model
    gc.collect()
    assert not flashstep._library._updates


def in_copies(rank, world_size):
    """Two ranks divide one copy of the weights, the two others another."""
    for options in ({}, {"compute_dtype": torch.float32}):
        model, alone = flashstep.FullyShardedDataParallel(nets.Net(rank), shard_ranks=2, **options), nets.Net(0)
        for name, parameter in model.module.named_parameters():
            whole = alone.get_parameter(name)
            if whole.dim() >= 2:
                assert parameter.numel() <= (whole.numel() + 1) // 2 + whole.shape[-1], name
                assert parameter.numel() > whole.numel() // 4 or rank % 2, name
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        nets.train(model, optimizer, 4, ROWS, rank, world_size)
        nets.train(alone, torch.optim.AdamW(alone.parameters(), lr=1e-2), 4, ROWS * world_size)
        compare(model, alone, 2e-5, "in copies")
        norm = model.clip_grad_norm_(1e9)
        gradients = torch.nn.utils.clip_grad_norm_(alone.parameters(), 1e9)
        torch.testing.assert_close(norm, gradients, rtol=1e-4, atol=1e-5)


def in_copies_of_a_subgroup(rank, world_size):
    """Ranks 4 to 1 of five; the group's ranks are not the world's."""
    own = dist.new_group([1, 2, 3, 4])
    if rank == 0:
        return
    model, alone = flashstep.FullyShardedDataParallel(nets.Net(rank), own, shard_ranks=2), nets.Net(1)
    nets.train(model, torch.optim.SGD(model.parameters(), lr=0.1), 3, ROWS, rank - 1, 4)
    nets.train(alone, torch.optim.SGD(alone.parameters(), lr=0.1), 3, ROWS * 4)
    compare(model, alone, 2e-5, "in copies of a subgroup")


def frozen_matrices(rank, world_size):
    """Biases train beside frozen weights, which the gradients of the units' inputs need."""

    def biases_of(net):
        for parameter in net.parameters():
            parameter.requires_grad_(parameter.dim() == 1)
        return net

    model, alone = flashstep.FullyShardedDataParallel(biases_of(nets.Net(rank))), biases_of(nets.Net(0))
    for net, rows, *place in ((model, ROWS, rank, world_size), (alone, ROWS * world_size)):
        trained = [parameter for parameter in net.parameters() if parameter.requires_grad]
        nets.train(net, torch.optim.AdamW(trained, lr=1e-2), 4, rows, *place)
    compare(model, alone, 2e-5, "biases alone")


class Steps(unittest.TestCase):
    def test_frozen_matrices(self):
        ranks.run(2, frozen_matrices)

    def test_steps_in_backward(self):
        for world_size in (1, 2, 3):
            ranks.run(world_size, steps_in_backward)

    def test_an_update_that_fails(self):
        ranks.run(2, an_update_that_fails)

    def test_copies_of_the_weights(self):
        ranks.run(4, in_copies)
        ranks.run(5, in_copies_of_a_subgroup)


if __name__ == "__main__":
    unittest.main()
