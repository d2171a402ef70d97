"""Modules and loops that the tests of ranks share."""

import torch
from torch import nn


class Net(nn.Module):
    """Layers of odd sizes, a frozen one, a tied pair and a buffer."""

    def __init__(self, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.embed = nn.Embedding(7, 6)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(6, 11), nn.Tanh(), nn.Linear(11, 6)) for _ in range(3))
        self.norm = nn.LayerNorm(6)
        self.frozen = nn.Linear(6, 6)
        self.frozen.requires_grad_(False)
        self.head = nn.Linear(6, 7, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("counter", torch.full((3,), float(seed)))

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = x + block(x)
        return self.head(self.norm(self.frozen(x)))


def batch(step, rows, rank=0, world_size=1):
    """Rows of a step; a rank has its part of what one process has."""
    generator = torch.Generator().manual_seed(1000 + step)
    ids = torch.randint(0, 7, (rows * world_size if world_size > 1 else rows, 5), generator=generator, device="cpu")
    part = ids.chunk(world_size)[rank].to(torch.get_default_device())
    return part[:, :-1], part[:, 1:]


def loss_of(model, x, y):
    return nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())


def norm_of_matrices(model):
    """The L2 norm of the gradients of all parameters of two dimensions and more."""
    gradients = [each.grad for each in model.parameters() if each.dim() >= 2 and each.grad is not None]
    return nn.utils.get_total_norm(gradients)


def train(model, optimizer, steps, rows, rank=0, world_size=1, first=0):
    for step in range(first, first + steps):
        optimizer.zero_grad()
        loss_of(model, *batch(step, rows, rank, world_size)).backward()
        optimizer.step()


def weights(module):
    return {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}
