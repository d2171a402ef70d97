"""Time of a token as PyTorch generates it: what model_generate_bench measures, of the same sizes.

A cache of fixed size, one token a step, the likeliest taken, all in torch.compile's CUDA graph:
    python3 flashstep/model/generate_pytorch_bench.py [NAME...] [TOKENS OF THE PROMPT...] [--eager]
"""

import statistics
import sys
import time

import torch
from torch import nn
from torch.nn import functional

# d_model, d_ff, layers, heads, heads of keys, vocabulary: those of generate_bench.cc
CASES = {
    "small": (768, 3072, 12, 12, 12, 10000),
    "xl": (1600, 6400, 48, 25, 25, 10000),
    "llama-1B": (2048, 8192, 16, 32, 8, 128256),
    "qwen-1.5B": (1536, 8960, 28, 12, 2, 151936),
    "llama-8B": (4096, 14336, 32, 32, 8, 128256),
}
TOKENS, WARM_UP = 192, 32


class Block(nn.Module):
    def __init__(self, width, inner, heads, kv_heads, room):
        super().__init__()
        self.heads, self.kv_heads, self.dim = heads, kv_heads, width // heads
        self.ln1, self.ln2 = nn.RMSNorm(width, eps=1e-5), nn.RMSNorm(width, eps=1e-5)
        self.qkv = nn.Linear(width, (heads + 2 * kv_heads) * self.dim, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.w13 = nn.Linear(width, 2 * inner, bias=False)
        self.w2 = nn.Linear(inner, width, bias=False)
        for name in ("keys", "values"):
            self.register_buffer(name, torch.zeros(1, kv_heads, room, self.dim))

    def rotate(self, x, cos, sin):
        even, odd = x.float().unflatten(-1, (-1, 2)).unbind(-1)
        return torch.stack((cos * even - sin * odd, sin * even + cos * odd), -1).flatten(-2).type_as(x)

    def forward(self, x, positions, rotary, mask):
        b, n, _ = x.shape
        qkv = self.qkv(self.ln1(x)).view(b, n, -1, self.dim).transpose(1, 2)
        q, k, v = qkv.split((self.heads, self.kv_heads, self.kv_heads), dim=1)
        q, k = self.rotate(q, *rotary), self.rotate(k, *rotary)
        self.keys[:, :, positions] = k
        self.values[:, :, positions] = v
        y = functional.scaled_dot_product_attention(
            q, self.keys, self.values, mask, enable_gqa=self.heads != self.kv_heads)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        gate, up = self.w13(self.ln2(x)).chunk(2, -1)
        return x + self.w2(functional.silu(gate) * up)


class Model(nn.Module):
    def __init__(self, width, inner, layers, heads, kv_heads, vocabulary, room):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width, inner, heads, kv_heads, room) for _ in range(layers))
        self.norm = nn.RMSNorm(width, eps=1e-5)
        self.head = nn.Linear(width, vocabulary, bias=False)
        dim = width // heads
        angles = torch.outer(torch.arange(room), 10000.0 ** (-torch.arange(0, dim, 2) / dim))
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())
        self.register_buffer("mask", torch.ones(room, room, dtype=torch.bool).tril())

    def forward(self, tokens, positions):
        x = self.embedding(tokens)
        rotary, mask = (self.cos[positions].float(), self.sin[positions].float()), self.mask[None, None, positions]
        for block in self.blocks:
            x = block(x, positions, rotary, mask)
        return self.head(self.norm(x[:, -1:])).argmax(-1)


@torch.no_grad()
def milliseconds_of_a_token(sizes, given, compiled):
    with torch.device("cuda"):
        torch.set_default_dtype(torch.bfloat16)
        model = Model(*sizes, given + TOKENS).eval()
    step = torch.compile(model, mode="reduce-overhead", fullgraph=True) if compiled else model
    token = model(torch.ones(1, given, dtype=torch.long, device="cuda"), torch.arange(given, device="cuda"))
    times = []
    for i in range(TOKENS - 1):
        begin = time.perf_counter()
        token = step(token, torch.tensor([given + i], device="cuda")).clone()
        token.item()  # who writes it needs it
        times.append(time.perf_counter() - begin)
    return 1e3 * statistics.median(times[WARM_UP:])


def main():
    if not torch.cuda.is_available():
        sys.exit("[generate_pytorch_bench] expected a GPU that PyTorch can use, got none")
    words = sys.argv[1:]
    names = [word for word in words if word in CASES] or list(CASES)
    for name in names:
        for given in [int(word) for word in words if word.isdigit()] or (128, 7680):
            torch.compiler.reset()
            took = milliseconds_of_a_token(CASES[name], given, "--eager" not in words)
            print(f"{name:10} bf16     {given:6} {took:9.3f} ms, PyTorch {torch.__version__}", flush=True)


if __name__ == "__main__":
    main()
