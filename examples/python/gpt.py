"""Trains a GPT of letters on this repository's pages, as people train who start from nanoGPT: plain PyTorch, settings
on the command line, gradients accumulated over micro-batches. One import is another: gradients are averaged by
flashstep.

python examples/python/gpt.py
torchrun --nproc_per_node 2 examples/python/gpt.py --steps=100 --d_model=128
"""

import math
import os
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

# Was: from torch.nn.parallel import DistributedDataParallel as DDP
from flashstep import DistributedDataParallel as DDP

settings = SimpleNamespace(
    steps=200,
    batch_size=4,  # rows of a rank in a micro-batch
    micro_batches=2,  # of a rank in a step
    context_length=64,
    d_model=96,
    num_layers=3,
    num_heads=4,
    learning_rate=2e-3,
    warmup_steps=20,
    eval_every=50,
    seed=0,
)


class Block(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.norm_1, self.norm_2 = nn.LayerNorm(d_model), nn.LayerNorm(d_model)
        self.qkv, self.out = nn.Linear(d_model, 3 * d_model), nn.Linear(d_model, d_model)
        self.feed_forward = nn.Sequential(nn.Linear(d_model, 4 * d_model), nn.GELU(), nn.Linear(4 * d_model, d_model))

    def forward(self, x):  # (B, N, C)
        q, k, v = self.qkv(self.norm_1(x)).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)  # (B, H, N, D)
        x = x + self.out(attended.transpose(1, 2).flatten(-2))
        return x + self.feed_forward(self.norm_2(x))


class GPT(nn.Module):
    """Learned positions, layer norms with biases, the head tied to the embedding: GPT-2's."""

    def __init__(self, vocab_size, s):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocab_size, s.d_model), nn.Embedding(s.context_length, s.d_model)
        self.blocks = nn.ModuleList(Block(s.d_model, s.num_heads) for _ in range(s.num_layers))
        self.norm = nn.LayerNorm(s.d_model)
        self.head = nn.Linear(s.d_model, vocab_size, bias=False)
        self.head.weight = self.tokens.weight
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, ids, targets):  # (B, N) each
        x = self.tokens(ids) + self.positions.weight[: ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def learning_rate_at(step, s):
    if step < s.warmup_steps:
        return s.learning_rate * (step + 1) / s.warmup_steps
    share = (step - s.warmup_steps) / max(s.steps - s.warmup_steps, 1)
    return s.learning_rate * (0.1 + 0.45 * (1 + math.cos(math.pi * share)))


def main(s):
    is_parallel = "RANK" in os.environ  # torchrun says so
    if is_parallel:
        dist.init_process_group("gloo")
    rank = dist.get_rank() if is_parallel else 0

    pages = sorted((Path(__file__).resolve().parents[2] / "docs").glob("*.md"))
    text = "".join(page.read_text() for page in pages)
    letters = sorted(set(text))
    ids = torch.tensor([letters.index(letter) for letter in text])
    train, held_out = ids[: len(ids) * 9 // 10], ids[len(ids) * 9 // 10 :]
    numbers = torch.Generator().manual_seed(1000 * s.seed + rank)  # other rows on every rank

    def batch(tokens, generator):
        starts = torch.randint(len(tokens) - s.context_length, (s.batch_size,), generator=generator).tolist()
        rows = torch.stack([tokens[start : start + s.context_length + 1] for start in starts])
        return rows[:, :-1], rows[:, 1:]

    @torch.no_grad()
    def held_out_loss():
        same = torch.Generator().manual_seed(1)
        return sum(net(*batch(held_out, same))[1].item() for _ in range(8)) / 8

    torch.manual_seed(s.seed)
    net = GPT(len(letters), s)
    model = DDP(net) if is_parallel else net
    matrices = [parameter for parameter in net.parameters() if parameter.dim() > 1]
    vectors = [parameter for parameter in net.parameters() if parameter.dim() == 1]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}], betas=(0.9, 0.95)
    )
    started = time.perf_counter()
    for step in range(s.steps + 1):
        if rank == 0 and (step % s.eval_every == 0 or step == s.steps):
            print(f"step {step:4d}  held-out loss {held_out_loss():.4f}  {time.perf_counter() - started:5.1f} s")
        if step == s.steps:
            break
        for group in optimizer.param_groups:
            group["lr"] = learning_rate_at(step, s)
        for micro in range(s.micro_batches):
            if is_parallel:  # gradients travel with the last one only
                model.require_backward_grad_sync = micro == s.micro_batches - 1
            _, loss = model(*batch(train, numbers))
            (loss / s.micro_batches).backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    if is_parallel:
        dist.destroy_process_group()


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        key, _, value = argument.removeprefix("--").partition("=")
        if not hasattr(settings, key):
            sys.exit(f"expected one of {', '.join(vars(settings))}, got {key}")
        setattr(settings, key, type(getattr(settings, key))(value))
    main(settings)
