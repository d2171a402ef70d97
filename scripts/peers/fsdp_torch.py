"""The baseline of full sharding: PyTorch's FSDP2 on the model of step_torch.py, a training step on two GPUs or more.

    torchrun --nproc-per-node 2 scripts/peers/fsdp_torch.py [--size xl] [--context 512] [--batch 4] [--compile]

Mixed precision as in `flashstep train` with precision bf16: float32 shards, bf16 while a block computes, the norm clipped
to 1. With --weights bf16, as the leaderboard has it: bf16 shards and moments, no clipping. Gradients are reduced in bf16
unless --reduce fp32. AdamW is fused. The loss of a large vocabulary is taken in chunks, computed twice. Prints the
median of the steps and the peak of the tensors' memory.
"""

import argparse
import functools
import json
import os
import statistics

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

from step_torch import Model

SIZES = {  # d_model, d_ff, layers, heads
    "small": (768, 3072, 12, 12), "medium": (1024, 4096, 24, 16), "large": (1280, 5120, 36, 20),
    "xl": (1600, 6400, 48, 25), "2.7B": (2560, 10240, 32, 32),
}
CHUNK = 4096  # rows of the loss at a time


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", default="xl", choices=SIZES)
    for name in ("--d-model", "--d-ff", "--layers", "--heads"):
        parser.add_argument(name, type=int, help="in place of the size's")
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--batch", type=int, default=4, help="rows of a rank")
    parser.add_argument("--vocab", type=int, default=10000)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--weights", default="fp32", choices=("bf16", "fp32"))
    parser.add_argument("--reduce", default="bf16", choices=("bf16", "fp32"))
    parser.add_argument("--recompute", action="store_true", help="each block in backward, too")
    parser.add_argument("--compile", action="store_true", help="each block by torch.compile")
    parser.add_argument("--json", action="store_true", help="a line of JSON")
    return parser.parse_args()


def make_model(a, device):
    width, inner, layers, heads = (given or own for given, own in zip(
        (a.d_model, a.d_ff, a.layers, a.heads), SIZES[a.size]))
    shape = {"vocab": a.vocab, "context": a.context, "d_model": width, "d_ff": inner, "layers": layers,
             "heads": heads, "theta": 10000, "epsilon": 1e-5}
    with torch.device("meta"):
        model = Model(shape)
    if a.weights == "bf16":
        model = model.to(torch.bfloat16)
    dtypes = {"param_dtype": torch.bfloat16, "reduce_dtype": torch.float32 if a.reduce == "fp32" else torch.bfloat16}
    policy = MixedPrecisionPolicy(**dtypes)
    for block in model.blocks:
        fully_shard(block, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    model.to_empty(device=device)
    dim = width // heads
    angle = torch.outer(torch.arange(a.context).float(), 10000 ** (-torch.arange(0, dim, 2).float() / dim))
    # As FSDP2 casts what goes into a block, but not when the block is computed again.
    model.cos, model.sin = (values.to(device, torch.bfloat16) for values in (angle.cos(), angle.sin()))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.02) if parameter.dim() > 1 else torch.nn.init.ones_(parameter)
    if a.compile:
        for block in model.blocks:
            block.compile()
    return model


def loss_of(model, recompute, tokens, targets):
    x = model.embedding(tokens)
    for block in model.blocks:
        run = functools.partial(checkpoint, block, use_reentrant=False) if recompute else block
        x = run(x, model.cos, model.sin)
    x = model.norm(x).flatten(0, 1)

    def chunk_loss(rows, wanted):
        return F.cross_entropy(model.head(rows).float(), wanted, reduction="sum")

    total = 0
    for rows, wanted in zip(x.split(CHUNK), targets.flatten().split(CHUNK)):
        total = total + checkpoint(chunk_loss, rows, wanted, use_reentrant=False)
    return total / targets.numel()


def main():
    a = arguments()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    torch.manual_seed(0)
    model = make_model(a, device)
    model.forward = functools.partial(loss_of, model, a.recompute)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    tokens, targets = (torch.randint(a.vocab, (a.batch, a.context), device=device) for _ in range(2))

    def step():
        optimizer.zero_grad()
        with sdpa_kernel([SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION], set_priority=True):
            model(tokens, targets).backward()
        if a.weights == "fp32":
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    for _ in range(4):
        step()
    times = []
    for _ in range(a.steps):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        step()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
    if dist.get_rank() == 0:
        free, total = torch.cuda.mem_get_info()
        peak = torch.cuda.max_memory_allocated()
        if a.json:
            print(json.dumps({"seconds": [t / 1e3 for t in times], "peak_bytes": peak, "used_bytes": total - free}),
                  flush=True)
        else:
            print(f"FSDP2{', compiled' if a.compile else ''}, {model.head.weight.shape[1]} wide, {dist.get_world_size()} x "
                  f"{a.batch} x {a.context}, gradients in {a.reduce}: {statistics.median(times):.1f} ms (from "
                  f"{min(times):.1f} to {max(times):.1f}), peak {peak / 2**30:.1f} GiB", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
