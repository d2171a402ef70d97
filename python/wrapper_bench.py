"""What wrappers add to the step of a loop in Python, beside torch's:

    PYTHONPATH=python torchrun --nproc_per_node 2 python/wrapper_bench.py --size xl --precision fp32 --context 128

One model, one AdamW, one loop; a step is what `zero_grad` to `step` take. "none": every rank by itself. Implementations
take turns with a new model each. The median over all turns' steps counts, of the rank that took longest. --graph: the
step is captured in a CUDA graph and its replays are timed, which no host holds up.
"""

import argparse
import gc
import json
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

import flashstep

SIZES = {  # d_model, d_ff, num_layers, num_heads, as `flashstep bench` names them
    "tiny": (32, 64, 2, 2),
    "small": (768, 3072, 12, 12),
    "medium": (1024, 4096, 24, 16),
    "large": (1280, 5120, 36, 20),
    "xl": (1600, 6400, 48, 25),
}
IMPLEMENTATIONS = (
    "none",
    "flashstep",
    "flashstep copies",
    "torch",
    "torch views",
    "flashstep sharded",
    "torch sharded",
)


class Training(nn.Module):
    """Tokens and targets -> loss."""

    def __init__(self, settings, device):
        super().__init__()
        d_model, d_ff, num_layers, num_heads = SIZES[settings.size]
        with torch.device("meta"):
            self.net = flashstep.nn.TransformerLM(
                vocab_size=settings.vocab,
                context_length=settings.context,
                d_model=d_model,
                num_layers=num_layers,
                num_heads=num_heads,
                d_ff=d_ff,
            )
        self.to_empty(device=device)
        for parameter in self.parameters():
            nn.init.normal_(parameter, 0.0 if parameter.dim() > 1 else 1.0, 0.02)
        if settings.precision == "bf16-fp8":
            flashstep.nn.set_float8_products(self.net.layers)
        if settings.compile:
            self.compile()

    def forward(self, tokens, targets):
        return self.net.loss(tokens, targets)


def wrapped(implementation, module, settings, device):
    low = None if settings.precision == "fp32" else torch.bfloat16
    if implementation == "flashstep":
        return flashstep.DistributedDataParallel(module)
    if implementation == "flashstep copies":
        return flashstep.DistributedDataParallel(module, peer_copies=True, gradient_as_bucket_view=True)
    if implementation in ("torch", "torch views"):
        devices = [device] if device.type == "cuda" else None
        views = implementation == "torch views"
        return nn.parallel.DistributedDataParallel(module, device_ids=devices, gradient_as_bucket_view=views)
    if implementation == "flashstep sharded":
        return flashstep.FullyShardedDataParallel(module, compute_dtype=low)
    if implementation == "torch sharded":
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        policy = MixedPrecisionPolicy(param_dtype=low, reduce_dtype=torch.float32)
        for layer in module.net.layers:
            fully_shard(layer, mp_policy=policy)
        return fully_shard(module, mp_policy=policy)
    return module


def milliseconds(step, count, device):
    """Of each of `count` steps."""
    if device.type == "cpu":
        moments = [time.perf_counter()]
        for _ in range(count):
            step()
            moments.append(time.perf_counter())
        return [(after - before) * 1e3 for before, after in zip(moments, moments[1:])]
    step()  # which gives the host its lead
    events = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
    events[0].record()
    for event in events[1:]:
        step()
        event.record()
    torch.cuda.synchronize()
    return [before.elapsed_time(after) for before, after in zip(events, events[1:])]


def measure(implementation, settings, device):
    torch.manual_seed(0)
    model = wrapped(implementation, Training(settings, device), settings, device)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=1e-4, fused=True, **({"capturable": True} if settings.graph else {})
    )
    inputs, targets = (
        torch.randint(settings.vocab, (settings.batch, settings.context), device=device) for _ in range(2)
    )
    casts = settings.precision != "fp32" and "sharded" not in implementation

    def step():
        optimizer.zero_grad()
        with torch.autocast(device.type, torch.bfloat16, enabled=casts, cache_enabled=not settings.graph):
            loss = model(inputs, targets)
        loss.backward()
        optimizer.step()

    if not settings.graph:
        for _ in range(settings.warmup):
            step()
        return milliseconds(step, settings.steps, device)
    # torch's looks at its own times until then
    for _ in range(11 if implementation in ("torch", "torch views") else settings.warmup):
        step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=torch.cuda.current_stream(), capture_error_mode="thread_local"):
        step()
    times = milliseconds(graph.replay, settings.steps, device)
    graph.reset()
    return times


def run(settings, device):
    times, rows = {name: [] for name in settings.implementations}, {}
    for turn in range(settings.turns):
        for name in settings.implementations:
            if device.type == "cuda":
                torch.cuda.reset_peak_memory_stats()
            try:
                times[name] += measure(name, settings, device)
            except Exception as error:
                rows[name] = {"error": f"{type(error).__name__}: {error}"[:500]}
                if settings.graph:  # a capture that broke off: nothing after it counts
                    return rows
                continue
            gc.collect()
            found = torch.tensor(times[name]).quantile(torch.tensor([0.5, 0.1, 0.9]))
            memory = 0.0
            if device.type == "cuda":
                memory = torch.cuda.max_memory_allocated() / 2**30
                torch.cuda.empty_cache()
            found = torch.cat([found, torch.tensor([memory])]).to(device)
            dist.all_reduce(found, dist.ReduceOp.MAX)
            step_ms, p10, p90, memory = (round(value, 3) for value in found.tolist())
            rows[name] = {"step_ms": step_ms, "p10": p10, "p90": p90, "peak_gib": memory}
            if rows.get("none", {}).get("step_ms"):
                rows[name]["added_ms"] = round(step_ms - rows["none"]["step_ms"], 3)
                rows[name]["added_percent"] = round(100 * (step_ms / rows["none"]["step_ms"] - 1), 2)
            save(settings, rows)
    return rows


def save(settings, rows):
    if dist.get_rank() == 0 and settings.out:
        Path(settings.out).write_text(json.dumps({"settings": vars(settings), "rows": rows}, indent=1) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="xl")
    parser.add_argument("--batch", type=int, default=4, help="rows of a rank")
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--vocab", type=int, default=10_000)
    parser.add_argument("--precision", choices=("fp32", "bf16", "bf16-fp8"), default="bf16", help="bf16: autocast; bf16-fp8: products of blocks in 8 bits")
    parser.add_argument("--implementations", nargs="+", choices=IMPLEMENTATIONS, default=list(IMPLEMENTATIONS))
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--warmup", type=int, default=3, help="steps that are not timed")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--compile", action="store_true", help="by torch.compile, inside the wrappers")
    parser.add_argument("--graph", action="store_true")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--out", help="a file for the numbers (JSON)")
    settings = parser.parse_args()
    if settings.device == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", device_id=device)
    else:
        device = torch.device("cpu")
        dist.init_process_group("gloo")
    if settings.graph:  # the default stream cannot be captured
        with torch.cuda.stream(torch.cuda.Stream()):
            rows = run(settings, device)
    else:
        rows = run(settings, device)
    save(settings, rows)
    if dist.get_rank() == 0:
        print(f"{'':18}{'ms':>9}{'p10':>9}{'p90':>9}{'added':>9}{'%':>8}{'GiB':>7}")
        for name, row in rows.items():
            keys = ("step_ms", "p10", "p90", "added_ms", "added_percent", "peak_gib")
            cells = [f"{row.get(key, float('nan')):9.2f}" for key in keys]
            print(f"{name:18}{''.join(cells)}" if "error" not in row else f"{name:18} {row['error']}")
    dist.barrier()
    os._exit(0)  # a group that a graph has captured is slow to end; Gloo's threads let go of tensors without Python


if __name__ == "__main__":
    main()
