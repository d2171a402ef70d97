"""What a call from Python costs beside PyTorch's, on rows so few that computing takes no time:

    PYTHONPATH=python python3 python/call_bench.py

Implementations take turns; the shortest of their turns counts, in microseconds a call.
"""

import time

import torch
import torch.nn.functional as F

import flashstep

CALLS, TURNS = 2000, 15

q, weight = torch.randn(1, 2, 16, 32), torch.ones(32)
logits, targets = torch.randn(4, 16), torch.randint(0, 16, (4,))
CASES = {
    "attention": (
        lambda: flashstep.attention(q, q, q, causal=True),
        lambda: F.scaled_dot_product_attention(q, q, q, is_causal=True),
    ),
    "FlashAttention.apply": (
        lambda: flashstep.FlashAttention.apply(q, q, q, True),
        lambda: F.scaled_dot_product_attention(q, q, q, is_causal=True),
    ),
    "rms_norm": (lambda: flashstep.rms_norm(q, weight), lambda: F.rms_norm(q, (32,), weight)),
    "swiglu": (lambda: flashstep.swiglu(q, q), lambda: F.silu(q) * q),
    "cross_entropy": (lambda: flashstep.cross_entropy(logits, targets), lambda: F.cross_entropy(logits, targets)),
}


def microseconds(call):
    started = time.perf_counter()
    for _ in range(CALLS):
        call()
    return (time.perf_counter() - started) / CALLS * 1e6


def main():
    torch.set_num_threads(1)
    print(f"{'us a call':22}{'flashstep':>10}{'PyTorch':>10}{'more':>8}")
    for requires_grad in (False, True):
        q.requires_grad_(requires_grad)
        logits.requires_grad_(requires_grad)
        print("with a graph for gradients" if requires_grad else "without gradients")
        for name, implementations in CASES.items():
            turns = [[microseconds(call) for call in implementations] for _ in range(TURNS)]
            ours, theirs = (min(each) for each in zip(*turns))
            print(f"{name:22}{ours:10.1f}{theirs:10.1f}{ours - theirs:8.1f}")


if __name__ == "__main__":
    main()
