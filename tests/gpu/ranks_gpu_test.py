"""`flashstep launch -n 2 -- train` on two GPUs: repeats bit for bit, resumes bit for bit, and when a rank is killed or
stopped the other ends with a sentence that names it, and the run goes on from its checkpoint as if nothing had been.

ranks_gpu_test.py [PART...] runs some parts; FLASHSTEP_RANKS_TEST_DEVICE=cpu runs the same on the CPU.
"""
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PROGRAM = os.environ["FLASHSTEP_PROGRAM"]
SOURCE = Path(os.environ["FLASHSTEP_SOURCE"])
DEVICE = os.environ.get("FLASHSTEP_RANKS_TEST_DEVICE", "cuda")
STEPS, INTERVAL, SILENCE = 200, 40, 4
CLOCKED = ("tokens_per_s", "step_ms")


def train(run, *arguments, wrapper="bucketed", shard="none"):
    settings = {
        "text.stories_megabytes": 1, "text.directory": "data", "train.steps": STEPS, "train.evaluate_every": 50,
        "checkpointing.checkpointing_interval": INTERVAL, "sampling.max_tokens": 10, "parallel.wrapper": wrapper,
        "parallel.shard_optimizer": shard, "parallel.silence_seconds": SILENCE,
    }
    if DEVICE == "cpu":  # small enough for a laptop
        settings |= {"model.d_model": 32, "model.num_layers": 1, "model.d_ff": 64, "tokenizer.vocab_size": 300,
                     "model.context_length": 32, "train.batch_size": 4}
    assignments = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    return ["train", str(SOURCE / "configs" / "quickstart.json"), "--device", DEVICE, "--run", run, *assignments, *arguments]


def launch(*arguments, **options):
    command = [PROGRAM, "launch", "-n", "2", "--", *train(*arguments, **options)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-3000:]}"
    return done


def outcome(run):
    last = Path(run) / "checkpoints" / f"step_{STEPS:08d}"
    files = {str(path.relative_to(last)): path.read_bytes() for path in sorted(last.rglob("*")) if path.is_file()}
    metrics = [json.loads(line) for line in (Path(run) / "metrics.jsonl").read_text().splitlines()]
    files["metrics"] = [{name: value for name, value in row.items() if name not in CLOCKED} for row in metrics]
    return files


def expect_same(run, wanted, what):
    got = outcome(run)
    assert got.keys() == wanted.keys(), f"{what}: {sorted(got)} instead of {sorted(wanted)}"
    for name, content in wanted.items():
        assert got[name] == content, f"{what}: {name} differs"


def strike(run, victim, number, **options):
    """Runs two ranks without a launcher, sends one a signal in mid-run, and returns what the other said."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = []
    for rank in range(2):
        variables = {"RANK": rank, "WORLD_SIZE": 2, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": 2,
                     "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        environment = os.environ | {name: str(value) for name, value in variables.items()}
        ranks.append(subprocess.Popen([PROGRAM, *train(run, **options)], env=environment, stdout=subprocess.DEVNULL,
                                      stderr=subprocess.PIPE, text=True))
    other = ranks[1 - victim]
    try:
        deadline = time.monotonic() + 200
        while not (Path(run) / "checkpoints" / f"step_{INTERVAL:08d}").exists():
            assert time.monotonic() < deadline and other.poll() is None, f"no checkpoint: {other.stderr.read()[-3000:]}"
            time.sleep(0.002)
        ranks[victim].send_signal(number)
        struck = time.monotonic()
        errors = other.communicate(timeout=60)[1]
        took = time.monotonic() - struck
    finally:
        for process in ranks:
            process.kill()
            process.wait()
    sentences = [line for line in errors.splitlines() if line.startswith("flashstep: ")]
    assert other.returncode == 1, f"expected exit code 1, got {other.returncode}: {errors[-3000:]}"
    assert len(sentences) == 1 and re.search(rf"rank {victim} \(process {ranks[victim].pid} on ", sentences[0]), \
        f"expected one sentence that names rank {victim} (process {ranks[victim].pid}), got: {errors[-3000:]}"
    print(f"signal {number} to rank {victim}: after {took:.1f} s rank {1 - victim} ended with \"{sentences[0]}\"")


def whole(shard):
    """The outcome of a run that nothing disturbs."""
    run = f"whole_{shard}"
    if not Path(run).exists():
        launch(run, shard=shard)
    return outcome(run)


def repeats(shard):
    wanted = whole(shard)
    launch(f"again_{shard}", shard=shard)
    expect_same(f"again_{shard}", wanted, f"a repeated run, shard_optimizer {shard}")
    print(f"shard_optimizer {shard}: repeats bit for bit")


def wrappers():
    wanted = whole("none")
    for wrapper in ("naive", "flat", "overlapped"):
        launch(wrapper, wrapper=wrapper)
        model = {name: content for name, content in outcome(wrapper).items() if name.startswith("model")}
        assert model, "the checkpoint has no model"
        for name, content in model.items():
            assert wanted[name] == content, f"{wrapper}: {name} differs from bucketed's"
        print(f"{wrapper}: the same model as bucketed, bit for bit")


def struck(victim, number, shard="none"):
    wanted = whole(shard)
    run = f"signal_{number}_rank_{victim}_{shard}"
    strike(run, victim, number, shard=shard)
    launch(run, "--resume", shard=shard)
    expect_same(run, wanted, f"{run}, resumed")
    print(f"{run}: resumed and ended as if nothing had been, bit for bit")


PARTS = {
    "repeats": lambda: repeats("none"),
    "repeats_sharded": lambda: repeats("whole"),
    "repeats_flat": lambda: repeats("flat"),
    "wrappers": wrappers,
    "killed_1": lambda: struck(1, signal.SIGKILL),
    "stopped_1": lambda: struck(1, signal.SIGSTOP),
    "killed_0": lambda: struck(0, signal.SIGKILL),
    "stopped_0": lambda: struck(0, signal.SIGSTOP),
    "killed_sharded": lambda: struck(1, signal.SIGKILL, shard="whole"),
    "killed_flat": lambda: struck(1, signal.SIGKILL, shard="flat"),
    "killed_full": lambda: struck(1, signal.SIGKILL, shard="full"),
}


def main():
    info = json.loads(subprocess.run([PROGRAM, "info", "--json"], capture_output=True, text=True, check=True).stdout)
    gpus = len(info.get("gpus") or [])
    if DEVICE == "cuda" and gpus < 2:
        print(f"SKIPPED: needs 2 GPUs, here are {gpus}")
        return 77
    parts = sys.argv[1:] or list(PARTS)
    with tempfile.TemporaryDirectory() as directory:
        os.chdir(directory)
        for part in parts:
            PARTS[part]()
    return 0


if __name__ == "__main__":
    sys.exit(main())
