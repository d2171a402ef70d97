"""Weights travel both ways between our model and a plain PyTorch one with the course's names."""

import os
import subprocess
import sys
import tempfile

try:
    import torch
    import torch.nn as nn
    from safetensors.torch import load_file, save_file
except ImportError as error:
    print(f"SKIPPED: {error}")
    sys.exit(77)

TOOL = os.environ["FLASHSTEP_MODEL_TOOL"]


class Norm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(width) + 0.5)

    def forward(self, x):
        return self.weight * x / torch.sqrt((x * x).mean(dim=-1, keepdim=True) + 1e-5)


def rotate(x):
    """x (B, H, N, D): the pair (2i, 2i + 1) is a complex number, turned by n * 10000^(-2i / D)."""
    positions, dim = x.shape[-2:]
    speed = 10000.0 ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    angle = torch.outer(torch.arange(positions, dtype=torch.float64), speed)
    turned = torch.view_as_complex(x.double().unflatten(-1, (-1, 2)).contiguous()) * torch.polar(
        torch.ones_like(angle), angle)
    return torch.view_as_real(turned).flatten(-2).to(x.dtype)


def linear(rows, columns):
    return nn.Linear(columns, rows, bias=False)


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.q_proj, self.k_proj = linear(width, width), linear(width, width)
        self.v_proj, self.output_proj = linear(width, width), linear(width, width)

    def forward(self, x):
        split = lambda y: y.unflatten(-1, (self.heads, -1)).transpose(1, 2)
        q, k, v = split(self.q_proj(x)), split(self.k_proj(x)), split(self.v_proj(x))
        scores = rotate(q) @ rotate(k).mT / q.shape[-1] ** 0.5
        future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        mixed = scores.masked_fill(future, float("-inf")).softmax(-1) @ v
        return self.output_proj(mixed.transpose(1, 2).flatten(-2))


class FeedForward(nn.Module):
    def __init__(self, width, inner):
        super().__init__()
        self.w1, self.w2, self.w3 = linear(inner, width), linear(width, inner), linear(inner, width)

    def forward(self, x):
        gate = self.w1(x)
        return self.w2(gate * torch.sigmoid(gate) * self.w3(x))


class Block(nn.Module):
    def __init__(self, width, inner, heads):
        super().__init__()
        self.attn, self.ffn = Attention(width, heads), FeedForward(width, inner)
        self.ln1, self.ln2 = Norm(width), Norm(width)

    def forward(self, x):
        x = x + self.attn(self.ln1(x))
        return x + self.ffn(self.ln2(x))


class Model(nn.Module):
    def __init__(self, vocab, context, width, inner, layers, heads):
        super().__init__()
        self.token_embeddings = nn.Embedding(vocab, width)
        self.layers = nn.ModuleList(Block(width, inner, heads) for _ in range(layers))
        self.ln_final, self.lm_head = Norm(width), linear(vocab, width)

    def forward(self, tokens):
        x = self.token_embeddings(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.lm_head(self.ln_final(x))


def our_logits(sizes, weights, tokens, folder):
    save_file({"tokens": tokens}, f"{folder}/tokens.safetensors")
    subprocess.run([TOOL, *map(str, sizes), "logits", weights, f"{folder}/tokens.safetensors",
                    f"{folder}/logits.safetensors"], check=True)
    return load_file(f"{folder}/logits.safetensors")["logits"]


@torch.no_grad()
def check(sizes, folder):
    vocab, context = sizes[:2]
    tokens = torch.randint(vocab, (3, context))
    worst = {}
    # Ours into theirs: strict loading also proves that no name is missing or too many.
    ours = f"{folder}/ours.safetensors"
    subprocess.run([TOOL, *map(str, sizes), "init", ours], check=True)
    model = Model(*sizes)
    model.load_state_dict(load_file(ours), strict=True)
    worst["ours in theirs"] = (model(tokens) - our_logits(sizes, ours, tokens, folder)).abs().max()
    # Theirs into ours, norms other than one included.
    theirs = f"{folder}/theirs.safetensors"
    model = Model(*sizes)
    save_file(model.state_dict(), theirs)
    worst["theirs in ours"] = (model(tokens) - our_logits(sizes, theirs, tokens, folder)).abs().max()
    for way, difference in worst.items():
        print(f"{sizes}: {way}: largest difference of logits {difference:.2e}")
        assert difference <= 1e-5, f"expected at most 1e-5, got {difference}"  # a NaN fails too


torch.manual_seed(0)
with tempfile.TemporaryDirectory() as folder:
    for sizes in [(61, 24, 24, 40, 3, 4), (128, 64, 64, 172, 2, 2), (17, 5, 12, 7, 1, 1)]:
        check(sizes, folder)
