"""What a call from Python costs beside PyTorch's, on rows so few that computing takes no time:

    PYTHONPATH=python python3 python/call_bench.py [--device cuda]

Implementations take turns; the shortest of their turns counts, in microseconds a call. On a GPU that is the host's time.
"""

import argparse
import time

import torch
import torch.nn.functional as F

import flashstep

CALLS, TURNS = 1000, 15


def cases(device):
    attended = torch.randn(1, 2, 16, 32, device=device, dtype=torch.bfloat16 if device == "cuda" else torch.float32)
    x, weight = torch.randn(32, 32, device=device), torch.ones(32, device=device)
    logits, targets = torch.randn(4, 16, device=device), torch.randint(0, 16, (4,), device=device)

    def sdpa():
        return F.scaled_dot_product_attention(attended, attended, attended, is_causal=True)

    implementations = {
        "attention": (lambda: flashstep.attention(attended, attended, attended, causal=True), sdpa),
        "FlashAttention.apply": (lambda: flashstep.FlashAttention.apply(attended, attended, attended, True), sdpa),
        "rms_norm": (lambda: flashstep.rms_norm(x, weight), lambda: F.rms_norm(x, (32,), weight)),
        "swiglu": (lambda: flashstep.swiglu(x, x), lambda: F.silu(x) * x),
        "cross_entropy": (lambda: flashstep.cross_entropy(logits, targets), lambda: F.cross_entropy(logits, targets)),
    }
    return [attended, x, logits], implementations


def microseconds(call, device):
    started = time.perf_counter()
    for _ in range(CALLS):
        call()
    took = time.perf_counter() - started
    if device == "cuda":
        torch.cuda.synchronize()
    return took / CALLS * 1e6


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    device = parser.parse_args().device
    torch.set_num_threads(1)
    inputs, implementations = cases(device)
    print(f"{'us a call, on ' + device:22}{'flashstep':>10}{'PyTorch':>10}{'more':>8}")
    for requires_grad in (False, True):
        for tensor in inputs:
            tensor.requires_grad_(requires_grad)
        print("with a graph for gradients" if requires_grad else "without gradients")
        for name, pair in implementations.items():
            turns = [[microseconds(call, device) for call in pair] for _ in range(TURNS)]
            ours, theirs = (min(each) for each in zip(*turns))
            print(f"{name:22}{ours:10.1f}{theirs:10.1f}{ours - theirs:8.1f}", flush=True)


if __name__ == "__main__":
    main()
