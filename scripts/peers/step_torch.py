"""The peer of `flashstep bench step`: the same model and training step in PyTorch, eager or compiled.

Started by the benchmark, which writes one request a line and reads one answer a line (JSON), so that
the two programs take turns on the machine:
    {"vocab": V, "context": N, "d_model": C, "d_ff": F, "layers": L, "heads": H, "batch": B,
     "precision": "fp32" | "bf16", "compile": false, "threads": 2, "warmup": 2, "steps": 4}
    -> {"seconds": [...], "loss": the first step's}
A request equal to the one before (but for warmup and steps) goes on with the same model.
"""

import json
import sys
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


class RmsNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)
        return (self.weight * wide).to(x.dtype)


def rotate(x, cos, sin):
    even, odd = x[..., 0::2], x[..., 1::2]
    # q and k are permuted alike, so the halves may stay apart: their products are the same.
    return torch.cat((cos * even - sin * odd, sin * even + cos * odd), dim=-1).to(x.dtype)


class Block(nn.Module):
    def __init__(self, width, inner, heads):
        super().__init__()
        self.heads = heads
        linear = lambda a, b: nn.Linear(a, b, bias=False)
        self.q, self.k, self.v, self.o = (linear(width, width) for _ in range(4))
        self.w1, self.w2, self.w3 = linear(width, inner), linear(inner, width), linear(width, inner)
        self.norm1, self.norm2 = RmsNorm(width), RmsNorm(width)

    def forward(self, x, cos, sin):
        y = self.norm1(x)
        q, k, v = (p(y).unflatten(-1, (self.heads, -1)).transpose(1, 2)
                   for p in (self.q, self.k, self.v))
        mixed = F.scaled_dot_product_attention(rotate(q, cos, sin), rotate(k, cos, sin), v,
                                               is_causal=True)
        x = x + self.o(mixed.transpose(1, 2).flatten(-2))
        y = self.norm2(x)
        return x + self.w2(F.silu(self.w1(y)) * self.w3(y))


class Model(nn.Module):
    def __init__(self, r):
        super().__init__()
        self.embedding = nn.Embedding(r["vocab"], r["d_model"])
        self.blocks = nn.ModuleList(
            Block(r["d_model"], r["d_ff"], r["heads"]) for _ in range(r["layers"]))
        self.norm, self.head = RmsNorm(r["d_model"]), nn.Linear(r["d_model"], r["vocab"], bias=False)
        dim = r["d_model"] // r["heads"]
        angle = torch.outer(torch.arange(r["context"]).float(),
                            10000.0 ** (-torch.arange(0, dim, 2).float() / dim))
        self.register_buffer("cos", angle.cos(), persistent=False)
        self.register_buffer("sin", angle.sin(), persistent=False)

    def forward(self, tokens):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        return self.head(self.norm(x))


class Trainer:
    def __init__(self, r):
        torch._dynamo.reset()
        torch.set_num_threads(r["threads"])
        torch.manual_seed(0)
        self.bf16 = r["precision"] == "bf16"
        model = Model(r)
        self.parameters = list(model.parameters())
        self.optimizer = torch.optim.AdamW(self.parameters, lr=1e-4, fused=True)
        self.forward = torch.compile(model) if r["compile"] else model
        shape = (r["batch"], r["context"])
        self.inputs, self.targets = torch.randint(r["vocab"], shape), torch.randint(r["vocab"], shape)

    def step(self):
        self.optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=self.bf16):
            logits = self.forward(self.inputs)
            loss = F.cross_entropy(logits.flatten(0, 1).float(), self.targets.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(self.parameters, 1.0)
        self.optimizer.step()
        return loss


def main():
    current = trainer = None
    print(json.dumps({"torch": torch.__version__}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        key = {k: v for k, v in request.items() if k not in ("warmup", "steps")}
        if key != current:
            current, trainer = key, None  # frees the old model before the new one is made
            trainer = Trainer(request)
        for _ in range(request["warmup"]):
            loss = trainer.step()
        seconds = []
        for _ in range(request["steps"]):
            start = time.perf_counter()
            loss = trainer.step()
            seconds.append(time.perf_counter() - start)
        print(json.dumps({"seconds": seconds, "loss": loss.item()}), flush=True)


main()
