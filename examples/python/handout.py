# %% [markdown]
# The measurements of Stanford CS336's Assignment 2, at sizes for a CPU: what a step costs and why, attention in tiles,
# and training on two processes. Open it as a notebook in an editor that knows `# %%`, or run it as it is, in under a
# minute: `python examples/python/handout.py`.

# %%
import os
import statistics
import subprocess
import sys
import time

import torch

import flashstep
from flashstep import profiling

try:
    from IPython.display import display
except ImportError:
    display = print  # pictures of a plain run are not shown
SIZES = {"small": (64, 2), "wide": (128, 2), "deep": (64, 4)}  # d_model, layers
CONTEXT_LENGTH, BATCH_SIZE, VOCAB_SIZE = 64, 4, 1000
tokens = torch.randint(VOCAB_SIZE, (BATCH_SIZE, CONTEXT_LENGTH + 1), generator=torch.Generator().manual_seed(0))


def make_model(size):
    d_model, num_layers = SIZES[size]
    return flashstep.nn.TransformerLM(
        vocab_size=VOCAB_SIZE,
        context_length=CONTEXT_LENGTH,
        d_model=d_model,
        num_layers=num_layers,
        num_heads=4,
        d_ff=8 * d_model // 3,
    )


def timed_ms(work, repeats=10, warmup=2):
    times = []
    for _ in range(warmup + repeats):
        started = time.perf_counter()
        work()
        times.append(1e3 * (time.perf_counter() - started))
    return statistics.mean(times[warmup:]), statistics.stdev(times[warmup:])


def show(title, rows):
    print(f"\n{title}")
    widths = [max(len(str(cell)) for cell in column) for column in zip(*rows)]
    for row in rows:
        print("  " + "  ".join(str(cell).ljust(width) for cell, width in zip(row, widths)).rstrip())


# %% [markdown]
# **benchmarking_script.** Mean and deviation of ten steps, in ms; and what the first step costs without warm-up.

# %%
rows = [("size", "forward", "+-", "forward and backward", "+-", "first forward")]
for size in SIZES:
    model = make_model(size)
    first, _ = timed_ms(lambda: model.loss(tokens[:, :-1], tokens[:, 1:]), repeats=2, warmup=0)
    forward = timed_ms(lambda: model.loss(tokens[:, :-1], tokens[:, 1:]))
    both = timed_ms(lambda: model.loss(tokens[:, :-1], tokens[:, 1:]).backward())
    rows.append((size, *(f"{number:.2f}" for number in (*forward, *both, first))))
show("Milliseconds of a step", rows)

# %% [markdown]
# **nsys_profile.** A whole step with AdamW under the profiler: which class of work takes the time, which operators, and
# in which part of the model. On a GPU the same call shows kernels.

# %%
model = make_model("wide")
optimizer = flashstep.AdamW(model.parameters())


def step():
    with profiling.range("forward"):
        loss = flashstep.cross_entropy(model(tokens[:, :-1]), tokens[:, 1:])
    with profiling.range("backward"):
        loss.backward()
    with profiling.range("optimizer"):
        optimizer.step()
        optimizer.zero_grad()


profile = profiling.profile(step, module=model, top=5)
for name in ("classes", "kernels", "ranges"):
    display(profile.tables[name])
profile.pictures["flame"]

# %% [markdown]
# **mixed_precision_accumulation.** A thousand times 0.01: the sum's dtype matters, not only the addend's.

# %%
rows = [("sum", "addend", "result")]
for sum_dtype, dtype in (
    (torch.float32, torch.float32),
    (torch.float16, torch.float16),
    (torch.float32, torch.float16),
):
    total = torch.tensor(0, dtype=sum_dtype)
    for _ in range(1000):
        total += torch.tensor(0.01, dtype=dtype)
    rows.append((str(sum_dtype), str(dtype), f"{total.item():.5f}"))
show("1000 x 0.01 = 10", rows)

# %% [markdown]
# **benchmarking_mixed_precision.** Dtypes under autocast: parameters and gradients stay float32, products do not.

# %%
model = make_model("small")
with torch.autocast("cpu", torch.bfloat16):
    logits = model(tokens[:, :-1])
    loss = flashstep.cross_entropy(logits, tokens[:, 1:])
loss.backward()
weight = model.lm_head.weight
show(
    "Dtypes under autocast",
    [("parameters", "logits", "loss", "gradients"), (weight.dtype, logits.dtype, loss.dtype, weight.grad.dtype)],
)

# %% [markdown]
# **memory_profiling.** Every allocation of a training step, from the model's own on: the peak by what it holds, and
# memory over time.

# %%
with profiling.memory() as recorded:
    model = make_model("wide")
    optimizer = flashstep.AdamW(model.parameters())
    recorded.label("parameters", model.parameters())
    for _ in range(2):  # AdamW's state comes with the first
        with profiling.range("forward"):
            loss = model.loss(tokens[:, :-1], tokens[:, 1:])
        with profiling.range("backward"):
            loss.backward()
        recorded.label("gradients", [parameter.grad for parameter in model.parameters()])
        with profiling.range("optimizer"):
            optimizer.step()
        recorded.label("optimizer state", [state["exp_avg"] for state in optimizer.state.values()])
        recorded.label("optimizer state", [state["exp_avg_sq"] for state in optimizer.state.values()])
        optimizer.zero_grad()
memory = recorded.report(largest=5)
display(memory.tables["memory"])
display(memory.tables["largest"])
memory.pictures["timeline"]

# %% [markdown]
# **pytorch_attention, flash_forward, flash_backward.** Attention by the formula, which makes an (N, N) matrix, and in
# tiles: the same numbers, and the time of both passes.

# %%
rows = [("N", "D", "formula, ms", "tiles, ms", "largest difference")]
for n in (128, 512, 1024):
    for d in (16, 64):
        q, k, v = (torch.randn(2, 4, n, d, requires_grad=True) for _ in range(3))

        def attend(implementation):
            out = flashstep.attention(q, k, v, causal=True, implementation=implementation)
            out.sum().backward()
            return out.detach()

        difference = (attend("naive") - attend("auto")).abs().max().item()
        formula, _ = timed_ms(lambda: attend("naive"), repeats=3, warmup=1)
        tiles, _ = timed_ms(lambda: attend("auto"), repeats=3, warmup=1)
        rows.append((n, d, f"{formula:.2f}", f"{tiles:.2f}", f"{difference:.1e}"))
show("Attention, forward and backward", rows)

# %% [markdown]
# **naive_ddp_benchmarking to optimizer_state_sharding.** Two processes over Gloo: a step by each way to average
# gradients, and AdamW's state on a rank, whole and divided.

# %%
RANKS = """
import time, torch, torch.distributed as dist, flashstep
dist.init_process_group("gloo")
torch.set_num_threads(1)
rows = torch.randn(16, 256, generator=torch.Generator().manual_seed(dist.get_rank()))
for strategy in ("naive", "flat", "overlapped", "bucketed"):
    net = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(12)])
    model = flashstep.DistributedDataParallel(net, strategy=strategy)
    optimizer = flashstep.ShardedOptimizer(model.parameters(), flashstep.AdamW)
    times = []
    for _ in range(12):
        started = time.perf_counter()
        model(rows).square().mean().backward()
        model.finish_gradient_synchronization()
        times.append(1e3 * (time.perf_counter() - started))
        optimizer.step()
        optimizer.zero_grad()
    if dist.get_rank() == 0:
        print(f"  {strategy:10}  {sorted(times)[6]:6.2f} ms forward and backward")
state = sum(t.numel() for s in optimizer.state.values() for t in s.values() if t.dim())
whole = 2 * sum(p.numel() for p in net.parameters())
if dist.get_rank() == 0:
    print(f"  AdamW's state on a rank: {state:,} of {whole:,} numbers")
dist.destroy_process_group()
"""
print("\nData parallelism on two processes")
launched = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", "--no-python"]
environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
out = subprocess.run([*launched, sys.executable, "-c", RANKS], env=environment, capture_output=True, text=True)
if out.returncode != 0:
    raise RuntimeError(out.stderr[-2000:])
print(out.stdout)
