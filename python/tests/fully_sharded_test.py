"""FullyShardedDataParallel: the steps of one process on all rows, with a part of the parameters on each rank."""

import math
import unittest

import needs_torch  # noqa: F401
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint

import flashstep
import nets
import ranks

ROWS = 4  # of a rank
SIZES = {"vocab_size": 29, "context_length": 8, "d_model": 12, "num_layers": 3, "num_heads": 2, "d_ff": 20}


class Recomputed(nets.Net):
    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = x + checkpoint(block, x, use_reentrant=False)
        return self.head(self.norm(self.frozen(x)))


def compare(model, alone, tolerance, what=""):
    whole = model.gather_full_parameters()
    names = dict(alone.named_parameters())
    assert whole.keys() == names.keys(), (list(whole), list(names))
    for name, parameter in names.items():
        torch.testing.assert_close(
            whole[name], parameter, rtol=tolerance, atol=tolerance, msg=lambda text: f"{what} {name}: {text}"
        )


def trains_as_one(rank, world_size, make, options):
    """Also: shards stay the same objects, between steps and in the optimizer; small ones have the same bits
    everywhere."""
    model, alone = flashstep.FullyShardedDataParallel(make(rank), **options), make(0)
    objects = {name: id(parameter) for name, parameter in model.named_parameters()}
    matrices = [name for name, parameter in alone.named_parameters() if parameter.dim() >= 2]
    mine = sum(model.module.get_parameter(name).numel() for name in matrices)
    total = sum(alone.get_parameter(name).numel() for name in matrices)
    if "shard" not in options:
        assert mine <= total / world_size + 4 * len(matrices), (mine, total, world_size)
    optimizer, other = torch.optim.AdamW(model.parameters(), lr=1e-2), torch.optim.AdamW(alone.parameters(), lr=1e-2)
    nets.train(model, optimizer, 4, ROWS, rank, world_size)
    nets.train(alone, other, 4, ROWS * world_size)
    compare(model, alone, 2e-5, str(options))
    assert {name: id(parameter) for name, parameter in model.named_parameters()} == objects
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            assert (
                parameter.grad.shape == parameter.shape and parameter.grad.dtype == parameter.dtype == torch.float32
            ), name
    norm = model.module.norm.bias if hasattr(model.module, "norm") else model.module.ln_final.weight
    every = [torch.empty_like(norm) for _ in range(world_size)]
    dist.all_gather(every, norm.detach().contiguous())
    assert all(torch.equal(each, every[0]) for each in every)
    with torch.no_grad():
        x, _ = nets.batch(9, ROWS)
        torch.testing.assert_close(model(x), alone(x), rtol=1e-4, atol=1e-4)
    assert model._units.gathered_bytes() == 0, (model._units.gathered_bytes(), options)


def in_low_precision(rank, world_size):
    for dtype in (torch.bfloat16, torch.float16):
        model = flashstep.FullyShardedDataParallel(nets.Net(), compute_dtype=dtype)
        seen = []
        model.module.blocks[1][0].register_forward_hook(
            lambda module, args, out: seen.append((module.weight.shape, module.weight.dtype, out.dtype))
        )
        x, y = nets.batch(0, ROWS, rank, world_size)
        nn.functional.cross_entropy(model(x).float().flatten(0, 1), y.flatten()).backward()
        assert seen == [(torch.Size([11, 6]), dtype, dtype)], seen
        alone = nets.Net()
        nets.loss_of(alone, *nets.batch(0, ROWS * world_size)).backward()
        for name, shard in model.module.named_parameters():
            if shard.grad is None:
                continue
            assert shard.grad.dtype == torch.float32, name
            whole = alone.get_parameter(name).grad
            if whole.dim() < 2:
                torch.testing.assert_close(shard.grad.flatten(), whole.flatten(), rtol=0.1, atol=0.02)


def accumulates_clips_and_loads(rank, world_size):
    model, alone = flashstep.FullyShardedDataParallel(nets.Net()), nets.Net()
    for first in (0, 10):
        nets.loss_of(model, *nets.batch(first, ROWS, rank, world_size)).backward()
        model.finish_gradient_synchronization()
        nets.loss_of(alone, *nets.batch(first, ROWS * world_size)).backward()
    norm = flashstep.clip_grad_norm_(model, 0.05)
    torch.testing.assert_close(norm, torch.nn.utils.clip_grad_norm_(alone.parameters(), 0.05), rtol=1e-4, atol=1e-5)
    torch.optim.SGD(model.parameters(), lr=1.0).step()
    torch.optim.SGD(alone.parameters(), lr=1.0).step()
    compare(model, alone, 1e-5)
    other = nets.Net(seed=8)
    model.load_full_parameters(dict(other.named_parameters()))
    compare(model, other, 0)
    only = model.gather_full_parameters(to=world_size - 1)
    assert bool(only) == (rank == world_size - 1)


def clips_and_skips_by_parameters(rank, world_size, peer_copies=False):
    """As an optimizer does it, which knows shards alone: clipping, and fp16's steps that overflow on one rank."""
    model, alone = flashstep.FullyShardedDataParallel(nets.Net(), peer_copies=peer_copies), nets.Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scaler = flashstep.GradScaler(torch.get_default_device().type, init_scale=16.0)
    for overflows in (True, False):
        optimizer.zero_grad()
        before = model.gather_full_parameters()
        scaler.scale(nets.loss_of(model, *nets.batch(0, ROWS, rank, world_size))).backward()
        if overflows and rank == 1:
            model.module.embed.weight.grad.fill_(float("inf"))
        scaler.unscale_(optimizer)
        matrices = flashstep.clip_grad_norm_([each for each in model.parameters() if each.dim() >= 2], math.inf)
        norm = flashstep.clip_grad_norm_(model.parameters(), 0.05)
        scaler.step(optimizer)
        scaler.update()
        now = model.gather_full_parameters()
        assert all(torch.equal(now[name], before[name]) for name in now) == overflows
        assert scaler.get_scale() == 8, scaler.get_scale()
    nets.loss_of(alone, *nets.batch(0, ROWS * world_size)).backward()
    torch.testing.assert_close(matrices, nets.norm_of_matrices(alone), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(norm, torch.nn.utils.clip_grad_norm_(alone.parameters(), 0.05), rtol=1e-4, atol=1e-5)
    torch.optim.SGD(alone.parameters(), lr=1.0).step()
    compare(model, alone, 1e-5)


def takes_and_refuses_given_values(rank, world_size, peer_copies=False):
    model = flashstep.FullyShardedDataParallel(nets.Net(), peer_copies=peer_copies)
    before = model.gather_full_parameters()
    for parameter in model.parameters():
        parameter.data = parameter.data + 1
    compare_tensors(model.gather_full_parameters(), {name: tensor + 1 for name, tensor in before.items()})
    for parameter in model.parameters():
        parameter.data = parameter.data - 1
    loss = nets.loss_of(model, *nets.batch(0, ROWS))
    torch.testing.assert_close(loss, nets.loss_of(nets.Net(), *nets.batch(0, ROWS)))
    loss.backward()
    model.double()
    for call in (lambda: model(nets.batch(0, ROWS)[0]), model.gather_full_parameters):
        try:
            call()
        except ValueError as error:
            assert "Double" in str(error) and "before wrapping" in str(error), error
        else:
            raise AssertionError("nothing was said")


def compare_tensors(given, expected):
    assert given.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(given[name], tensor, msg=lambda text, name=name: f"{name}: {text}")


def recomputes_and_keeps(rank, world_size):
    torch.use_deterministic_algorithms(True)
    for make, options in (
        (lambda seed: Recomputed(seed), {}),
        (lambda seed: nets.Net(seed), {"reshard_after_forward": False}),
        (lambda seed: nets.Net(seed), {"units": ["blocks.0", "frozen"]}),
        (lambda seed: nets.Net(seed), {"shard": lambda name, parameter: "blocks" in name}),
    ):
        trains_as_one(rank, world_size, make, options)


class Several(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x):
        for block in self.blocks:
            x = block(x).tanh()
        return x


def several_forwards_and_breaks(rank, world_size):
    model, alone = flashstep.FullyShardedDataParallel(Several()), Several()
    x = torch.arange(8.0).view(2, 4) / 8 + rank
    (model(x).sum() + model(2 * x).square().sum()).backward()
    for each in range(world_size):
        y = torch.arange(8.0).view(2, 4) / 8 + each
        ((alone(y).sum() + alone(2 * y).square().sum()) / world_size).backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    torch.optim.SGD(alone.parameters(), lr=0.1).step()
    compare(model, alone, 1e-5)
    try:
        model(torch.ones(2, 5))
        raise AssertionError("a wrong shape was taken")
    except RuntimeError:
        pass
    model.zero_grad()
    model(x).sum().backward()
    assert model._units.gathered_bytes() == 0


def mistakes(rank, world_size):
    for make, text in (
        (lambda: flashstep.FullyShardedDataParallel(None), "expected a torch.nn.Module, got None"),
        (lambda: flashstep.FullyShardedDataParallel(nets.Net(), units=["layers.0"]), "got 'layers.0'"),
        (lambda: flashstep.FullyShardedDataParallel(nn.Linear(3 + rank, 2)), "expected the same units"),
        (lambda: flashstep.FullyShardedDataParallel(nn.Linear(3, 2), shard_ranks=3), "shard_ranks"),
    ):
        try:
            make()
        except ValueError as error:
            assert text in str(error) and "\n" not in str(error).strip(), error
        else:
            raise AssertionError(f"nothing was said: {text}")


class FullySharded(unittest.TestCase):
    def test_trains_as_one_process(self):
        for world_size in (1, 2, 3, 4):
            ranks.run(world_size, trains_as_one, lambda seed: nets.Net(seed), {})

    def test_a_transformer(self):
        ranks.run(2, trains_as_one, lambda seed: flashstep.nn.TransformerLM(**SIZES, seed=seed), {})

    def test_low_precision(self):
        ranks.run(2, in_low_precision)

    def test_accumulation_clipping_loading(self):
        ranks.run(3, accumulates_clips_and_loads)

    def test_clipping_and_skipping_by_parameters(self):
        for world_size in (2, 3):
            ranks.run(world_size, clips_and_skips_by_parameters)

    def test_given_values(self):
        ranks.run(2, takes_and_refuses_given_values)

    def test_recomputed_parts_and_options(self):
        ranks.run(2, recomputes_and_keeps)

    def test_several_forwards_and_a_broken_one(self):
        ranks.run(2, several_forwards_and_breaks)

    def test_mistakes_are_sentences(self):
        ranks.run(2, mistakes)


if __name__ == "__main__":
    unittest.main()
