"""A baseline of `flashstep bench ops` and `bench norm`: operators by their formulas, through torch.compile.

Started by the benchmark, which writes one request a line and reads one answer a line (JSON), so that the two
programs take turns on the machine:
    {"op": "rms_norm", "rows": R, "width": C, "d_ff": F, "vocab": V, "dtype": "fp32" | "bf16",
     "device": "cpu" | "cuda", "threads": 2, "do": "errors"}
                  -> {"y": ..., "gradients": ...}, the largest distances from float64 over the root mean square
    {..., "do": "forward" | "forward-backward" | "update", "warmup": 1, "samples": 10, "calls": 1}
                  -> {"seconds": [...]}, a call, of each sample of so many calls
    {"do": "release"}    -> {}, with the inputs and their memory gone
or {"error": what went wrong}. d_ff and vocab are for the operators that have them.
"""

import gc
import json
import sys
import time

import torch
import torch.nn.functional as F

from answers import failure, say

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
BLOCK = 1 << 25  # elements that are compared at once: float64 is large
EPSILON, THETA, HEAD_DIM, POSITIONS, MATRICES = 1e-5, 10_000, 64, 256, 12


def wide(x):
    return x.to(torch.promote_types(x.dtype, torch.float32))


def rms_norm(x, weight):
    y = wide(x) * torch.rsqrt(wide(x).square().mean(-1, keepdim=True) + EPSILON)
    return (weight * y).to(x.dtype)


def rope(x):
    inverse = THETA**(-torch.arange(0, HEAD_DIM, 2, device=x.device) / HEAD_DIM)
    angle = torch.arange(POSITIONS, device=x.device)[:, None] * inverse
    cos, sin = angle.cos(), angle.sin()
    even, odd = wide(x)[..., ::2], wide(x)[..., 1::2]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2).to(x.dtype)


def swiglu(a, b):
    return (F.silu(wide(a)) * wide(b)).to(a.dtype)


def embedding(weight, ids):
    return F.embedding(ids, weight)


def cross_entropy(logits, targets):
    return F.cross_entropy(wide(logits), targets)


def linear_cross_entropy(x, weight, targets):
    return cross_entropy(x @ weight.T, targets)


def grad_norm(*gradients):
    return torch.stack([wide(x).square().sum() for x in gradients]).sum().sqrt()


def adamw(*lists):
    parts = [lists[i * MATRICES:(i + 1) * MATRICES] for i in range(5)]
    for p, g, m, v, n in zip(*parts):
        n += 1
        p.mul_(1 - 1e-3 * 0.01)
        m.mul_(0.9).add_(g.to(m.dtype), alpha=0.1)
        v.mul_(0.999).addcmul_(g.to(v.dtype), g.to(v.dtype), value=0.001)
        p.sub_(1e-3 / (1 - 0.9**n) * m / ((v / (1 - 0.999**n)).sqrt() + 1e-8))
    return lists[0]


def muon(*lists):
    """As torch.optim.Muon has it: a matrix at a time, orthogonalized in bfloat16 (in the check in float64)."""
    parts = [lists[i * MATRICES:(i + 1) * MATRICES] for i in range(4)]
    for p, g, m, n in zip(*parts):
        n += 1
        m.lerp_(g.to(m.dtype), 0.05)
        x = g.to(m.dtype).lerp(m, 0.95)
        x = x if x.dtype == torch.float64 else x.bfloat16()
        x = x / x.norm().clamp(min=1e-7)
        for _ in range(5):
            square = x @ x.T
            x = torch.addmm(x, torch.addmm(square, square, square, beta=-4.7750, alpha=2.0315), x, beta=3.4445)
        p.mul_(1 - 1e-3 * 0.1)
        p.sub_(x.to(p.dtype), alpha=1e-3 * 0.2 * max(p.shape)**0.5)
    return lists[0]


class Op:
    """A formula, its inputs and, of the first `rows` of them, that their rows have nothing to do with each other."""

    def __init__(self, function, inputs, rows=0, in_place=False):
        self.function, self.inputs, self.rows, self.in_place = function, inputs, rows, in_place


def ids(s):
    return torch.randint(s.vocab, (s.rows,), device=s.device)


OPS = {
    "rms_norm": Op(rms_norm, lambda s: (s.leaf(s.rows, s.width), s.leaf(s.width, scale=0.1, shift=1)), rows=1),
    "rope": Op(rope, lambda s: (s.leaf(s.rows // POSITIONS, s.width // HEAD_DIM, POSITIONS, HEAD_DIM),), rows=1),
    "swiglu": Op(swiglu, lambda s: (s.leaf(s.rows, s.d_ff), s.leaf(s.rows, s.d_ff)), rows=2),
    "embedding": Op(embedding, lambda s: (s.leaf(s.vocab, s.width), ids(s))),
    "cross_entropy": Op(cross_entropy, lambda s: (s.leaf(s.rows, s.vocab), ids(s))),
    "linear_cross_entropy": Op(linear_cross_entropy,
                               lambda s: (s.leaf(s.rows, s.width), s.leaf(s.vocab, s.width, scale=0.02), ids(s))),
    "grad_norm": Op(grad_norm, lambda s: tuple(s.plain(s.width, s.width) for _ in range(MATRICES))),
    "adamw": Op(adamw, lambda s: s.moments(), in_place=True),
    "muon": Op(muon, lambda s: s.moments(muon=True), in_place=True),
}


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
        self.rows, self.width = r["rows"], r["width"]
        self.d_ff, self.vocab = r.get("d_ff"), r.get("vocab")
        self.dtype, self.device = DTYPES[r["dtype"]], r["device"]
        self.op = OPS[r["op"]]
        self.inputs = self.op.inputs(self)
        self.compiled = torch.compile(self.op.function)
        self.leaves = [x for x in self.inputs if x.requires_grad]
        self.dy = None
        if self.leaves:
            with torch.no_grad():
                self.dy = self.like(self.op.function(*self.inputs))

    def plain(self, *shape):
        return torch.randn(*shape, dtype=self.dtype, device=self.device)

    def leaf(self, *shape, scale=1, shift=0):
        return (self.plain(*shape) * scale + shift).requires_grad_()

    def moments(self, muon=False):
        square = lambda: torch.randn(self.width, self.width, device=self.device) * 0.1
        make = (square, lambda: self.plain(self.width, self.width), square,
                *(() if muon else (lambda: square().square(),)), lambda: torch.zeros((), device=self.device))
        return tuple(one() for one in make for _ in range(MATRICES))

    def like(self, y):
        return torch.randn_like(y) if y.dim() else torch.ones_like(y)

    def outcome(self, function, inputs, dy):
        y = function(*inputs)
        leaves = [x for x in inputs if x.requires_grad]
        return [y.detach(), *(torch.autograd.grad(y, leaves, dy) if leaves else ())]

    def errors(self):
        own = [x.clone() for x in self.inputs] if self.op.in_place else self.inputs
        found = self.outcome(self.compiled, own, self.dy)
        distances, sums = [Distance() for _ in found], [0] * len(found)
        shared = [not 0 < i <= self.op.rows and not (i == 0 and self.op.rows) for i in range(len(found))]
        double = lambda x: x.detach().double().requires_grad_(x.requires_grad) if x.is_floating_point() else x
        count = self.inputs[0].shape[0] if self.op.rows else 1
        step = max(1, BLOCK * count // self.inputs[0].numel()) if self.op.rows else 1
        for begin in range(0, count, step):
            part = (lambda x: x[begin:begin + step]) if self.op.rows else (lambda x: x)
            block = [double(part(x.detach()).requires_grad_(x.requires_grad) if i < self.op.rows else x)
                     for i, x in enumerate(self.inputs)]
            if self.op.in_place:
                block = [x.detach().clone() for x in block]
            expected = self.outcome(self.op.function, block, None if self.dy is None else part(self.dy).double())
            for i, value in enumerate(expected):
                if shared[i]:
                    sums[i] = sums[i] + value
                else:
                    distances[i].add(part(found[i]), value)
        for i, value in enumerate(sums):
            if shared[i]:
                distances[i].add(found[i], value)
        of_y, *of_gradients = (distance.over_root_mean_square() for distance in distances)
        return {"y": of_y, "gradients": max(of_gradients, default=None)}

    def call(self, what):
        if what == "forward-backward":
            self.outcome(self.compiled, self.inputs, self.dy)
        else:
            with torch.no_grad():
                self.compiled(*self.inputs)

    def seconds(self, r):
        gpu = self.device == "cuda"
        for _ in range(r["warmup"]):
            self.call(r["do"])
        moments = []
        for i in range(r["samples"] + 1):
            if gpu:
                moments.append(torch.cuda.Event(enable_timing=True))
                moments[-1].record()
            else:
                moments.append(time.perf_counter())
            for _ in range(r["calls"] if i < r["samples"] else 0):
                self.call(r["do"])
        if gpu:
            torch.cuda.synchronize()
        return {"seconds": [(a.elapsed_time(b) * 1e-3 if gpu else b - a) / r["calls"]
                            for a, b in zip(moments, moments[1:])]}


def main():
    current = case = None
    say({"torch": torch.__version__})
    for line in sys.stdin:
        r = json.loads(line)
        key = {k: v for k, v in r.items() if k not in ("do", "warmup", "samples", "calls")}
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
