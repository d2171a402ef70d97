"""Trains a small language model on this repository's pages, by one process or by several:

python examples/python/train.py
torchrun --nproc_per_node 2 examples/python/train.py
"""

import os
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist

import flashstep

STEPS = int(os.environ.get("STEPS", 150))
BATCH_SIZE, CONTEXT_LENGTH = 8, 64  # of a rank


def main():
    if "RANK" in os.environ:  # torchrun says so
        dist.init_process_group("gloo")
    rank, world_size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))

    pages = sorted((Path(__file__).resolve().parents[2] / "docs").glob("*.md"))
    tokenizer = flashstep.Tokenizer.train(pages, vocab_size=1000)
    tokens = torch.tensor(tokenizer.encode("".join(page.read_text() for page in pages)))
    batches = flashstep.BatchSampler(
        tokens, batch_size=BATCH_SIZE, context_length=CONTEXT_LENGTH, rank=rank, world_size=world_size
    )

    net = flashstep.nn.TransformerLM(
        vocab_size=len(tokenizer), context_length=CONTEXT_LENGTH, d_model=96, num_layers=2, num_heads=4, d_ff=256
    )
    model = flashstep.DistributedDataParallel(net)
    optimizer = flashstep.ShardedOptimizer(model.parameters(), flashstep.AdamW, lr=3e-3)
    for step in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = flashstep.cosine_learning_rate(  # of updates from 1 on
                step + 1, learning_rate=3e-3, min_learning_rate=3e-4, warmup_steps=20, cosine_steps=STEPS
            )
        inputs, targets = batches.at(step)
        loss = flashstep.cross_entropy(model(inputs), targets)
        loss.backward()  # ends with the means over the ranks
        flashstep.clip_grad_norm_(optimizer, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if rank == 0 and (step % 25 == 0 or step == STEPS - 1):
            print(f"step {step:4d}  loss {loss.item():.3f}")

    optimizer.consolidate_state_dict(to=0)
    if rank == 0:
        path = Path(tempfile.mkdtemp()) / "checkpoint"
        flashstep.save_checkpoint(path, model=model, optimizer=optimizer, step=STEPS)
        print(f"checkpoint in {path}")
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
