"""ShardedOptimizer: the bits of the optimizer without shards, whose state it saves and loads."""

import copy
import io
import unittest

import needs_torch  # noqa: F401
import torch
import torch.distributed as dist
from torch import nn

import flashstep
import nets
import ranks
from optimizers import OPTIMIZERS, Factored

ROWS = 4


def groups_of(net):
    return [
        {"params": list(net.blocks.parameters()), "weight_decay": 0.1} if hasattr(net, "blocks") else {"params": []},
        {"params": [p for name, p in net.named_parameters() if not name.startswith("blocks")], "lr": 5e-3},
    ]


def same_weights(net, alone, what):
    for name, parameter in net.named_parameters():
        assert torch.equal(
            parameter, alone.get_parameter(name)
        ), f"{what}: {name} differs by {(parameter - alone.get_parameter(name)).abs().max()}"


def same_state(ours, theirs, what):
    assert ours["state"].keys() == theirs["state"].keys(), what
    for number, kinds in theirs["state"].items():
        for kind, value in kinds.items():
            found = ours["state"][number][kind]
            equal = (
                torch.equal(found.cpu(), value.cpu())  # consolidated state lies on the CPU
                if isinstance(value, torch.Tensor)
                else found == value and type(found) is type(value)
            )
            assert equal, f"{what}: {number} {kind}: {found} and {value}"
    strip = [{key: value for key, value in group.items()} for group in ours["param_groups"]]
    assert strip == theirs["param_groups"], f"{what}: {strip} and {theirs['param_groups']}"


def steps_like_one(model, alone, sharded, optimizer, first, rank, world_size, schedulers=()):
    for step in range(first, first + 3):
        for each, net in ((sharded, model), (optimizer, alone)):
            each.zero_grad()
            nets.loss_of(net, *nets.batch(step, ROWS, rank, world_size)).backward()
            each.step()
        for scheduler in schedulers:
            scheduler.step()


def equals_unsharded(rank, world_size, name, shards, divided):
    """Both see the same gradients, means over the ranks."""
    cls, options = OPTIMIZERS[name]
    what = f"{name}, {shards}, {world_size} ranks"
    model = flashstep.DistributedDataParallel(nets.Net())
    alone = flashstep.DistributedDataParallel(nets.Net())
    take = (lambda net: groups_of(net)) if name == "AdamW" else (lambda net: net.parameters())
    sharded = flashstep.ShardedOptimizer(
        take(model.module), cls, shards=shards, ddp=model if divided else None, part_megabytes=1e-4, **options
    )
    optimizer = cls(take(alone.module), **options)
    schedulers = [torch.optim.lr_scheduler.StepLR(each, 2, 0.5) for each in (sharded, optimizer)]
    steps_like_one(model, alone, sharded, optimizer, 0, rank, world_size, schedulers)
    same_weights(model.module, alone.module, what)
    to = world_size - 1
    sharded.consolidate_state_dict(to=to)
    if rank == to:
        unsharded = optimizer.state_dict()
        if shards == "flat":  # which hold what is trained
            every = [p for group in optimizer.param_groups for p in group["params"]]
            unsharded["state"] = {n: kinds for n, kinds in unsharded["state"].items() if every[n].requires_grad}
        same_state(sharded.state_dict(), unsharded, what)
        cls(take(copy.deepcopy(alone.module)), **options).load_state_dict(sharded.state_dict())
    else:
        try:
            sharded.state_dict()
            raise AssertionError("state_dict() of a rank without the state")
        except RuntimeError as error:
            assert "consolidate_state_dict" in str(error)
    # The unsharded one's state, through a file, into a new one: both go on alike.
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    if not divided:
        again = flashstep.ShardedOptimizer(take(model.module), cls, shards=shards, **options)
        again.load_state_dict(torch.load(file, weights_only=False))
        steps_like_one(model, alone, again, optimizer, 3, rank, world_size)
        same_weights(model.module, alone.module, what + ", loaded")


def any_optimizer_in_whole_shards(rank, world_size):
    model, alone = flashstep.DistributedDataParallel(nets.Net()), flashstep.DistributedDataParallel(nets.Net())
    sharded = flashstep.ShardedOptimizer(model.parameters(), Factored, lr=0.2)
    optimizer = Factored(alone.parameters(), lr=0.2)
    steps_like_one(model, alone, sharded, optimizer, 0, rank, world_size)
    same_weights(model.module, alone.module, "factored")
    sharded.consolidate_state_dict()
    if rank == 0:
        same_state(sharded.state_dict(), optimizer.state_dict(), "factored")
    loads = sharded.elements_by_rank()
    assert sum(loads) == sum(p.numel() for p in set(model.parameters()) if p.requires_grad), loads
    assert max(loads) < sum(loads), loads


def clips(rank, world_size):
    for shards, divided in (("whole", False), ("flat", False), ("flat", True)):
        model, alone = flashstep.DistributedDataParallel(nets.Net()), flashstep.DistributedDataParallel(nets.Net())
        sharded = flashstep.ShardedOptimizer(
            model.parameters(), torch.optim.SGD, lr=1.0, shards=shards, ddp=model if divided else None
        )
        for net in (model, alone):
            nets.loss_of(net, *nets.batch(0, ROWS, rank, world_size)).backward()
        norm = flashstep.clip_grad_norm_(sharded, 0.1)
        torch.testing.assert_close(norm, torch.nn.utils.clip_grad_norm_(alone.parameters(), 0.1))
        sharded.step()
        torch.optim.SGD(alone.parameters(), lr=1.0).step()
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(parameter, alone.get_parameter(name), rtol=1e-6, atol=1e-7)


def closures_and_new_groups(rank, world_size):
    net, alone = nets.Net(), nets.Net()
    pairs = []
    for module, make in (
        (net, lambda p: flashstep.ShardedOptimizer(p, torch.optim.Adam, lr=0.01)),
        (alone, lambda p: torch.optim.Adam(p, lr=0.01)),
    ):
        optimizer = make(module.blocks.parameters())
        optimizer.add_param_group({"params": [module.norm.weight, module.norm.bias], "lr": 0.1})
        pairs.append((module, optimizer))

    for step in range(2):
        losses = []
        for module, optimizer in pairs:

            def closure(module=module, optimizer=optimizer):
                optimizer.zero_grad()
                loss = nets.loss_of(module, *nets.batch(step, ROWS))
                loss.backward()
                return loss

            losses.append(optimizer.step(closure))
        assert torch.equal(*losses)
    same_weights(net, alone, "closure")


def steps_without_means(shards):
    model = flashstep.DistributedDataParallel(nets.Net())
    optimizer = flashstep.ShardedOptimizer(model.parameters(), torch.optim.SGD, lr=1, shards=shards, ddp=model)
    with model.no_sync():
        nets.loss_of(model, *nets.batch(0, ROWS)).backward()
    optimizer.step()


def mistakes(rank, world_size):
    net = nn.Linear(3, 2)
    for call, text in (
        (lambda: flashstep.ShardedOptimizer(net.parameters(), torch.optim.LBFGS), "got LBFGS"),
        (lambda: flashstep.ShardedOptimizer(net.parameters(), torch.optim.SGD(net.parameters(), lr=1)), "got an instance of SGD"),
        (lambda: flashstep.ShardedOptimizer(net.parameters(), Factored, shards="flat"), "got Factored"),
        (lambda: flashstep.ShardedOptimizer(net.parameters(), torch.optim.SGD, lr=1, shards="round"), "got 'round'"),
        (
            lambda: flashstep.ShardedOptimizer(net.parameters(), torch.optim.SGD, lr=1, part_megabytes=0),
            "part_megabytes above 0",
        ),
        (
            lambda: flashstep.ShardedOptimizer(
                net.parameters(), torch.optim.SGD, lr=1, shards="flat" if rank else "whole"
            ),
            "mode whole on rank 0 and mode flat on rank 1",
        ),
        (lambda: flashstep.ShardedOptimizer(net.parameters(), torch.optim.SGD, lr=1 + rank), "lr 2"),
        (
            lambda: flashstep.ShardedOptimizer(list(net.parameters())[rank:], torch.optim.SGD, lr=1),
            "2 parameters, lr 1",
        ),
        (
            lambda: flashstep.ShardedOptimizer(
                flashstep.FullyShardedDataParallel(nets.Net()).parameters(), torch.optim.SGD, lr=1
            ),
            "shards of a fully sharded module",
        ),
        (lambda: steps_without_means("whole"), "this rank's own"),
        (lambda: steps_without_means("flat"), "this rank's own"),
    ):
        try:
            call()
        except ValueError as error:
            assert text in str(error), error
        else:
            raise AssertionError(f"nothing was said: {text}")


class Sharded(unittest.TestCase):
    def test_whole_shards(self):
        for name in OPTIMIZERS:
            ranks.run(2, equals_unsharded, name, "whole", False)

    def test_flat_shards(self):
        for name in OPTIMIZERS:
            ranks.run(2, equals_unsharded, name, "flat", False)

    def test_divided_gradients(self):
        for name in ("AdamW", "SGD"):
            ranks.run(2, equals_unsharded, name, "flat", True)

    def test_numbers_of_ranks(self):
        for world_size in (1, 3, 4):
            for shards in ("whole", "flat"):
                ranks.run(world_size, equals_unsharded, "SGD", shards, False)

    def test_any_optimizer_in_whole_shards(self):
        for world_size in (2, 3):
            ranks.run(world_size, any_optimizer_in_whole_shards)

    def test_clipping(self):
        ranks.run(2, clips)

    def test_closures_and_new_groups(self):
        ranks.run(2, closures_and_new_groups)

    def test_mistakes_are_sentences(self):
        ranks.run(2, mistakes)

    def test_one_process_without_a_group(self):
        net, alone = nets.Net(), nets.Net()
        sharded = flashstep.ShardedOptimizer(net.parameters(), torch.optim.AdamW)
        optimizer = torch.optim.AdamW(alone.parameters())
        steps_like_one(net, alone, sharded, optimizer, 0, 0, 1)
        same_weights(net, alone, "one process")
        same_state(sharded.state_dict(), optimizer.state_dict(), "one process")
        self.assertFalse(dist.is_initialized())


if __name__ == "__main__":
    unittest.main()
