"""A peer of `flashstep bench norm`: RMSNorm by its formula, through torch.compile.

Started by the benchmark, which writes one request a line and reads one answer a line (JSON), so that the two
programs take turns on the machine:
    {"rows": R, "width": C, "dtype": "fp32" | "bf16", "device": "cpu" | "cuda", "epsilon": 1e-5, "threads": 2,
     "do": "errors"}     -> {"y": ..., "gradients": ...}, the largest distances from float64 over the root mean square
    {..., "do": "forward" | "forward-backward", "warmup": 1, "calls": 10}  -> {"seconds": [...]}, of each call
    {..., "do": "release"}    -> {}, with the inputs and their memory gone
or {"error": what went wrong}.
"""

import gc
import json
import sys
import time

import torch

from answers import failure, say

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
BLOCK = 1 << 25  # elements that are compared at once: float64 is large


def formula(x, weight, epsilon: float):
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + epsilon)
    return (weight * wide).to(x.dtype)


class Distance:
    """From an expected value that comes in parts."""

    def __init__(self):
        self.largest = self.squares = self.count = 0.0

    def add(self, found, expected):
        largest = (found.double() - expected).abs().max().item()
        self.largest = self.largest if largest <= self.largest else largest  # NaN stays
        self.squares += expected.square().sum().item()
        self.count += expected.numel()

    def over_root_mean_square(self):
        return self.largest / (self.squares / self.count)**0.5


class Case:
    def __init__(self, r):
        torch._dynamo.reset()
        torch.set_num_threads(r["threads"])
        torch.manual_seed(1)
        self.gpu, self.epsilon = r["device"] == "cuda", r["epsilon"]
        draw = lambda *shape: torch.randn(*shape, dtype=DTYPES[r["dtype"]], device=r["device"])
        self.x = draw(r["rows"], r["width"]).requires_grad_()
        self.weight = (draw(r["width"]) * 0.1 + 1).requires_grad_()
        self.dy = draw(r["rows"], r["width"])
        self.compiled = torch.compile(formula)

    def outcome(self, norm, x, weight, dy):
        y = norm(x, weight, self.epsilon)
        return y.detach(), *torch.autograd.grad(y, (x, weight), dy)

    def errors(self):
        y, dx, dweight = self.outcome(self.compiled, self.x, self.weight, self.dy)
        distances, expected_dweight = [Distance() for _ in range(3)], 0
        wide = lambda x: x.detach().double().requires_grad_()
        step = max(1, BLOCK // self.x.shape[1])
        for begin in range(0, self.x.shape[0], step):
            rows = slice(begin, begin + step)
            *expected, part = self.outcome(formula, wide(self.x[rows]), wide(self.weight), self.dy[rows].double())
            for distance, found, value in zip(distances, (y, dx), expected):
                distance.add(found[rows], value)
            expected_dweight = expected_dweight + part
        distances[2].add(dweight, expected_dweight)
        of_y, *of_gradients = (distance.over_root_mean_square() for distance in distances)
        return {"y": of_y, "gradients": max(of_gradients)}

    def call(self, what):
        if what == "forward":
            with torch.no_grad():
                self.compiled(self.x, self.weight, self.epsilon)
        else:
            self.outcome(self.compiled, self.x, self.weight, self.dy)

    def seconds(self, r):
        for _ in range(r["warmup"]):
            self.call(r["do"])
        moments = []
        for i in range(r["calls"] + 1):
            if self.gpu:
                moments.append(torch.cuda.Event(enable_timing=True))
                moments[-1].record()
            else:
                moments.append(time.perf_counter())
            if i < r["calls"]:
                self.call(r["do"])
        if self.gpu:
            torch.cuda.synchronize()
        pairs = zip(moments, moments[1:])
        return {"seconds": [a.elapsed_time(b) * 1e-3 if self.gpu else b - a for a, b in pairs]}


def main():
    current = case = None
    say({"torch": torch.__version__})
    for line in sys.stdin:
        r = json.loads(line)
        key = {k: v for k, v in r.items() if k not in ("do", "warmup", "calls")}
        try:
            if r["do"] == "release" or key != current:
                current = case = None
                gc.collect()
                if torch.cuda.is_initialized():
                    torch.cuda.empty_cache()
            if r["do"] == "release":
                result = {}
            else:
                if case is None:
                    case, current = Case(r), key
                result = case.errors() if r["do"] == "errors" else case.seconds(r)
        except Exception as error:  # no memory, or a compiler that is missing: the reader shall know
            current = case = None
            result = failure(error)
        say(result)


main()
