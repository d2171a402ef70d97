"""The baseline of full sharding: PyTorch's FSDP2 on the model of step_torch.py, a training step on two GPUs or more.

    torchrun --nproc-per-node 2 scripts/peers/fsdp_torch.py [--size xl] [--context 512] [--batch 4] [--compile]

Mixed precision as in `flashstep train` with precision bf16: float32 shards, bf16 while a block computes. Gradients are
reduced in bf16 unless --reduce fp32. The norm is clipped to 1, AdamW is fused. Prints the median of ten steps and the
peak of the tensors' memory.
"""

import argparse
import os
import statistics

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from step_torch import Model

SIZES = {  # d_model, d_ff, layers, heads
    "small": (768, 3072, 12, 12), "medium": (1024, 4096, 24, 16), "large": (1280, 5120, 36, 20),
    "xl": (1600, 6400, 48, 25), "2.7B": (2560, 10240, 32, 32),
}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", default="xl", choices=SIZES)
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--batch", type=int, default=4, help="rows of a rank")
    parser.add_argument("--vocab", type=int, default=10000)
    parser.add_argument("--reduce", default="bf16", choices=("bf16", "fp32"))
    parser.add_argument("--compile", action="store_true", help="each block by torch.compile")
    a = parser.parse_args()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    torch.manual_seed(0)
    width, inner, layers, heads = SIZES[a.size]
    model = Model({"vocab": a.vocab, "context": a.context, "d_model": width, "d_ff": inner, "layers": layers,
                   "heads": heads, "theta": 10000, "epsilon": 1e-5}).to(device)
    reduce = torch.float32 if a.reduce == "fp32" else torch.bfloat16
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=reduce)
    for block in model.blocks:
        fully_shard(block, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    if a.compile:
        for block in model.blocks:
            block.compile()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    tokens, targets = (torch.randint(a.vocab, (a.batch, a.context), device=device) for _ in range(2))

    def step():
        optimizer.zero_grad()
        loss = F.cross_entropy(model(tokens).flatten(0, 1).float(), targets.flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    for _ in range(4):
        step()
    times = []
    for _ in range(10):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        step()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
    if dist.get_rank() == 0:
        print(f"FSDP2{', compiled' if a.compile else ''}, {a.size}, {dist.get_world_size()} x {a.batch} x {a.context}, "
              f"gradients in {a.reduce}: {statistics.median(times):.1f} ms (from {min(times):.1f} to {max(times):.1f}), "
              f"peak {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
