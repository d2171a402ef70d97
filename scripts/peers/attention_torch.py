"""A peer of `flashstep bench attention`: the formula through torch.compile, of a window or documents on a GPU
flex_attention.

Started by the benchmark, which writes one request a line and reads one answer a line (JSON), so that
the two programs take turns on the machine:
    {"device": "cuda", "dtype": "bf16", "shape": [B, H, N, D], "keys": M, "causal": true, "window": 0,
     "documents": 0, "seed": 1, "sets": 4, "do": "outcome", "gradients": true, "file": PATH}
        -> {"ok": true}, and the output and its gradients of the first inputs in PATH
    {..., "do": "forward" | "backward" | "both", "warmup": 1, "samples": 5, "calls": 10}
        -> {"seconds": [...]}, of a call in each sample
or {"error": "out of memory" | what went wrong}. The inputs are drawn as the benchmark draws them.
"""

import json
import math
import sys
import time

import torch
import torch._dynamo
import torch._functorch.config

from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from answers import failure, say

torch._functorch.config.donated_buffer = False  # backward is timed again and again on one graph
torch._dynamo.config.recompile_limit = 256
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
HELD_BYTES = 1 << 30  # more is given back after each request: the benchmark needs the memory too


def formula(q, k, v, causal: bool, window: int, ids):
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    if causal:
        visible = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).tril()
        if window:
            visible = visible.triu(1 - window)
        if ids is not None:
            visible = visible & (ids[:, None] == ids)
        scores = scores.masked_fill(~visible, float("-inf"))
    return torch.softmax(scores, -1) @ v


# Shapes are symbols: one compilation for all lengths instead of ten seconds for each.
compiled = torch.compile(formula, dynamic=True)
flex, make_blocks = torch.compile(flex_attention), torch.compile(create_block_mask)  # of windows on GPUs


class Case:
    def __init__(self, r):
        self.gpu, self.causal = r["device"] == "cuda", r["causal"]
        batch, heads, queries, width = r["shape"]
        self.window, window = r["window"], r["window"] or queries
        self.ids = ids = None
        if r["documents"]:
            torch.manual_seed(r["documents"])
            self.ids = ids = (torch.rand(queries) < 1.0 / r["documents"]).cumsum(0).to(r["device"])
        in_window = lambda b, h, i, j: (i >= j) & (i - j < window)
        seen = in_window if ids is None else lambda b, h, i, j: in_window(b, h, i, j) & (ids[i] == ids[j])
        cut = self.gpu and (r["window"] or r["documents"])
        self.blocks = make_blocks(seen, None, None, queries, r["keys"], "cuda") if cut else None
        self.sets = []
        for i in range(r["sets"]):
            torch.manual_seed(r["seed"] + i)
            draw = lambda rows: torch.randn(batch, heads, rows, width, device=r["device"]).to(DTYPES[r["dtype"]])
            q, k, v = (draw(rows).requires_grad_() for rows in (queries, r["keys"], r["keys"]))
            self.sets.append(((q, k, v), draw(queries)))
        self.outs, self.next = [], 0

    def forward(self, inputs):
        if self.blocks:
            return flex(*inputs, block_mask=self.blocks)
        return compiled(*inputs, self.causal, self.window, self.ids)

    def outcome(self, gradients, path):
        inputs, grad_out = self.sets[0]
        out = self.forward(inputs)
        found = torch.autograd.grad(out, inputs, grad_out) if gradients else ()
        torch.save([x.detach().cpu() for x in (out, *found)], path)

    def call(self, what):
        sets = self.outs if what == "backward" else self.sets
        index, self.next = self.next % len(sets), self.next + 1
        inputs, grad_out = self.sets[index]
        out = self.outs[index] if what == "backward" else self.forward(inputs)
        if what != "forward":
            torch.autograd.grad(out, inputs, grad_out, retain_graph=what == "backward")

    def turn(self, what, warmup, samples, calls):
        if what == "backward" and not self.outs:
            matrix = self.sets[0][0][0].shape[:3].numel() * self.sets[0][0][1].shape[2] * 4
            held = self.sets[: max(1, HELD_BYTES // 8 // matrix)]
            self.outs = [self.forward(inputs) for inputs, _ in held]
        for _ in range(warmup):
            self.call(what)
        seconds = (self.gpu_samples if self.gpu else self.cpu_samples)(what, samples, calls)
        if self.gpu and torch.cuda.memory_reserved() > HELD_BYTES:
            self.outs = []
            torch.cuda.empty_cache()
        return seconds

    def cpu_samples(self, what, samples, calls):
        seconds = []
        for _ in range(samples):
            start = time.perf_counter()
            for _ in range(calls):
                self.call(what)
            seconds.append((time.perf_counter() - start) / calls)
        return seconds

    def gpu_samples(self, what, samples, calls):
        events = [torch.cuda.Event(enable_timing=True) for _ in range(samples + 1)]
        events[0].record()
        for event in events[1:]:
            for _ in range(calls):
                self.call(what)
            event.record()
        events[-1].synchronize()
        return [a.elapsed_time(b) * 1e-3 / calls for a, b in zip(events, events[1:])]


def main():
    key = case = None
    say({"torch": torch.__version__})
    for line in sys.stdin:
        r = json.loads(line)
        if "threads" in r:
            torch.set_num_threads(r["threads"])
        try:
            names = ("device", "dtype", "shape", "keys", "causal", "window", "documents", "seed", "sets")
            wanted = {name: r[name] for name in names}
            if wanted != key:
                key = case = None  # frees the old inputs before the new ones are made
                case, key = Case(r), wanted
            if r["do"] == "outcome":
                case.outcome(r["gradients"], r["file"])
                answer = {"ok": True}
            else:
                answer = {"seconds": case.turn(r["do"], r["warmup"], r["samples"], r["calls"])}
        except Exception as error:
            answer = failure(error)
        if "error" in answer:
            key = case = None
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
        say(answer)


main()
