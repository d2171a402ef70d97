"""The peer of `flashstep bench step`: the same model and the same part of a training step in PyTorch, eager or
compiled.

Started by the benchmark, which writes one request a line and reads one answer a line (JSON), so that the two
programs take turns on the machine:
    {"vocab": V, "context": N, "d_model": C, "d_ff": F, "layers": L, "heads": H, "kv_heads": H of keys,
     "window": keys that a query sees, 0: all, "tied": head and embedding are one, "theta": 10000, "epsilon": 1e-5, "batch": B, "mode": "forward" | "forward-backward" | "step", "precision": "fp32" | "tf32" | "bf16" |
     "bf16-fp8": linear layers of blocks by torchao, with one scale a tensor,
     "device": "cpu" | "cuda", "max_norm": 1, "compile": "" | torch.compile's mode,
     "threads": 2, "warmup": 2, "steps": 4}
    -> {"seconds": [...], "forward": [...], "backward": [...], "optimizer": [...], "loss": the last step's,
        "peak_bytes": of tensors, on a GPU}
    -> {"error": "out of memory"}
    {"release": true}    -> {"released": true}, with the model and its memory gone
Forward, backward and optimizer are 0 where the mode leaves them out. A request equal to the one before (but for
warmup and steps) goes on with the same model.
"""

import contextlib
import gc
import json
import sys
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

from answers import failure, say


class RmsNorm(nn.Module):
    def __init__(self, width, epsilon):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.epsilon = epsilon

    def forward(self, x):
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.epsilon)
        return (self.weight * wide).to(x.dtype)


def rotate(x, cos, sin):
    even, odd = x[..., 0::2], x[..., 1::2]
    # q and k are permuted alike, so the halves may stay apart: their products are the same.
    return torch.cat((cos * even - sin * odd, sin * even + cos * odd), dim=-1).to(x.dtype)


class Block(nn.Module):
    def __init__(self, width, inner, heads, epsilon, kv_heads=None):
        super().__init__()
        self.heads, self.kv_heads = heads, kv_heads or heads
        linear = lambda a, b: nn.Linear(a, b, bias=False)
        self.q, self.o = (linear(width, width) for _ in range(2))
        self.k, self.v = (linear(width, width // heads * self.kv_heads) for _ in range(2))
        self.w1, self.w2, self.w3 = linear(width, inner), linear(inner, width), linear(width, inner)
        self.norm1, self.norm2 = RmsNorm(width, epsilon), RmsNorm(width, epsilon)

    def forward(self, x, cos, sin, mask):
        y = self.norm1(x)
        q, k, v = (p(y).unflatten(-1, (heads, -1)).transpose(1, 2) for p, heads in
                   ((self.q, self.heads), (self.k, self.kv_heads), (self.v, self.kv_heads)))
        mixed = F.scaled_dot_product_attention(rotate(q, cos, sin), rotate(k, cos, sin), v,
                                               attn_mask=mask, is_causal=mask is None,
                                               enable_gqa=self.heads != self.kv_heads)
        x = x + self.o(mixed.transpose(1, 2).flatten(-2))
        y = self.norm2(x)
        return x + self.w2(F.silu(self.w1(y)) * self.w3(y))


class Model(nn.Module):
    def __init__(self, r):
        super().__init__()
        self.embedding = nn.Embedding(r["vocab"], r["d_model"])
        self.blocks = nn.ModuleList(
            Block(r["d_model"], r["d_ff"], r["heads"], r["epsilon"], r.get("kv_heads"))
            for _ in range(r["layers"]))
        self.norm = RmsNorm(r["d_model"], r["epsilon"])
        self.head = nn.Linear(r["d_model"], r["vocab"], bias=False)
        if r.get("tied"):
            nn.init.normal_(self.embedding.weight, std=r["d_model"] ** -0.5)
            self.head.weight = self.embedding.weight
        dim = r["d_model"] // r["heads"]
        angle = torch.outer(torch.arange(r["context"]).float(),
                            r["theta"] ** (-torch.arange(0, dim, 2).float() / dim))
        self.register_buffer("cos", angle.cos(), persistent=False)
        self.register_buffer("sin", angle.sin(), persistent=False)
        seen = None
        if r.get("window"):
            seen = torch.ones(r["context"], r["context"], dtype=torch.bool).tril().triu(1 - r["window"])
        self.register_buffer("mask", seen, persistent=False)

    def forward(self, tokens):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, self.cos, self.sin, self.mask)
        return self.head(self.norm(x))


class Marks:
    """Moments of a step: events on a GPU, which nobody waits for, the clock on a CPU."""

    def __init__(self, device):
        self.gpu = device == "cuda"
        self.moments = []

    def set(self):
        if self.gpu:
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self.moments.append(event)
        else:
            self.moments.append(time.perf_counter())

    def seconds(self):
        """Of the three parts; those that were left out are 0."""
        pairs = zip(self.moments, self.moments[1:])
        parts = [a.elapsed_time(b) * 1e-3 if self.gpu else b - a for a, b in pairs]
        return parts + [0.0] * (3 - len(parts))


class Trainer:
    def __init__(self, r):
        torch._dynamo.reset()
        torch.set_num_threads(r["threads"])
        torch.manual_seed(0)
        torch.backends.cuda.matmul.allow_tf32 = r["precision"] == "tf32"
        self.device, self.mode, self.max_norm = r["device"], r["mode"], r["max_norm"]
        self.bf16 = r["precision"].startswith("bf16")
        model = Model(r).to(self.device)
        if r["precision"] == "bf16-fp8":
            from torchao.float8 import convert_to_float8_training

            convert_to_float8_training(model.blocks)
        self.parameters = list(model.parameters())
        self.optimizer = torch.optim.AdamW(self.parameters, lr=1e-4, fused=True)
        self.forward = torch.compile(model, mode=r["compile"]) if r["compile"] else model
        shape = (r["batch"], r["context"])
        self.inputs, self.targets = (torch.randint(r["vocab"], shape).to(self.device) for _ in range(2))

    def synchronize(self):
        if self.device == "cuda":
            torch.cuda.synchronize()

    def loss(self):
        torch.compiler.cudagraph_mark_step_begin()  # for modes with CUDA graphs
        graph = torch.no_grad() if self.mode == "forward" else contextlib.nullcontext()
        with graph, torch.autocast(self.device, torch.bfloat16, enabled=self.bf16):
            logits = self.forward(self.inputs)
            return F.cross_entropy(logits.flatten(0, 1).float(), self.targets.flatten())

    def pass_(self, marks):
        marks.set()
        self.optimizer.zero_grad()
        loss = self.loss()
        marks.set()
        if self.mode == "forward":
            return loss
        loss.backward()
        marks.set()
        if self.mode == "step":
            if self.max_norm > 0:
                nn.utils.clip_grad_norm_(self.parameters, self.max_norm)
            self.optimizer.step()
            marks.set()
        return loss

    def timed(self):
        """Seconds, those of the parts, and the loss."""
        marks = Marks(self.device)
        self.synchronize()
        start = time.perf_counter()
        loss = self.pass_(marks)
        self.synchronize()
        return time.perf_counter() - start, marks.seconds(), loss


def answer(trainer, warmup, steps):
    if trainer.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    for _ in range(warmup):
        trainer.timed()
    timed = []
    for _ in range(steps):
        seconds, parts, loss = trainer.timed()
        timed.append((seconds, parts))  # the loss goes: its graph would keep memory
    result = {"seconds": [seconds for seconds, _ in timed], "loss": loss.item()}
    for i, part in enumerate(("forward", "backward", "optimizer")):
        result[part] = [parts[i] for _, parts in timed]
    if trainer.device == "cuda":
        result["peak_bytes"] = torch.cuda.max_memory_allocated()
    return result


def give_memory_back():
    torch._dynamo.reset()  # compiled code knows its model
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def main():
    current = trainer = None
    say({"torch": torch.__version__})
    for line in sys.stdin:
        request = json.loads(line)
        if "release" in request:
            current = trainer = None
            give_memory_back()
            say({"released": True})
            continue
        key = {k: v for k, v in request.items() if k not in ("warmup", "steps")}
        try:
            if key != current:
                current, trainer = key, None  # frees the old model before the new one is made
                trainer = Trainer(request)
            result = answer(trainer, request["warmup"], request["steps"])
        except Exception as error:  # no memory, or a compiler that is missing: the reader shall know
            current = trainer = None
            result = failure(error)
        say(result)


main()
