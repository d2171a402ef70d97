"""A small training run for the tests that stop it: its configuration, and what it must leave behind."""
import json
import os
import random
import subprocess

PROGRAM = os.environ["FLASHSTEP_PROGRAM"]
STEPS, INTERVAL = 60, 4
# What a clock measured; everything else in a line must not depend on how often the run was stopped.
CLOCKED = ("tokens_per_s", "step_ms")


def write_config(directory, **sections):
    """The configuration's path; `sections` add fields, such as train={"steps": 200}."""
    words = "the cat saw a dog and ran home to sleep while rain fell on old red roofs".split()
    generator = random.Random(1)
    with open(directory / "text.txt", "w") as file:
        for _ in range(300):
            file.write(" ".join(generator.choices(words, k=40)) + ".<|endoftext|>\n")
    config = {
        "text": {"source": str(directory / "text.txt"), "directory": str(directory / "data")},
        "tokenizer": {"vocab_size": 300},
        "model": {"d_model": 32, "num_layers": 2, "num_heads": 4, "num_kv_heads": 2, "tie_embeddings": True,
                  "d_ff": 64, "context_length": 32},
        "schedule": {"warmup_steps": 5},
        "train": {"steps": STEPS, "batch_size": 4, "device": "cpu", "threads": 1,
                  "evaluate_every": 7, "evaluation_tokens": 256},
        "checkpointing": {"checkpointing_interval": INTERVAL, "keep": 2},
        "sampling": {"max_tokens": 8},
    }
    for name, fields in sections.items():
        config.setdefault(name, {}).update(fields)
    path = directory / "config.json"
    path.write_text(json.dumps(config))
    return path


def command(config, run, resume):
    return [PROGRAM, "train", str(config), "--run", str(run)] + (["--resume"] if resume else [])


def with_fault(fault):
    """The environment in which tests/faults/fault_shim.c makes `fault` happen."""
    environment = dict(os.environ, LD_PRELOAD=os.environ["FLASHSTEP_FAULT_SHIM"], FLASHSTEP_FAULT=fault)
    # The shim stands before the sanitizer's library then, which is all right: both only pass calls on.
    environment["ASAN_OPTIONS"] = environment.get("ASAN_OPTIONS", "") + ":verify_asan_link_order=0"
    return environment


def start(arguments, environment=None):
    return subprocess.Popen(arguments, env=environment, stdout=subprocess.DEVNULL,
                            stderr=subprocess.PIPE, text=True)


def finish(arguments, environment=None):
    process = start(arguments, environment)
    errors = process.communicate()[1]
    assert process.returncode == 0, f"exit code {process.returncode}: {errors[-2000:]}"
    return errors


def outcome(run, steps=STEPS):
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    numbers = [line["step"] for line in lines]
    assert numbers == list(range(steps + 1)), f"expected every step once, got {numbers}"
    for line in lines:
        for key in CLOCKED:
            line.pop(key, None)
    last = run / "checkpoints" / f"step_{steps:08d}"
    files = {path.name: path.read_bytes() for path in sorted(last.iterdir())}
    return {"metrics": lines, "samples": (run / "samples.txt").read_text(), **files}


def expect_same(run, reference, steps=STEPS):
    got = outcome(run, steps)
    assert got.keys() == reference.keys(), f"expected {sorted(reference)} of {run}, got {sorted(got)}"
    for name, expected in reference.items():
        assert got[name] == expected, f"{name} of {run} differs from the run that was never stopped"
    left = [str(path) for path in run.rglob("*") if "unfinished" in path.name or ".tmp-" in path.name]
    assert not left, f"left behind: {left}"


def whole_checkpoints(run):
    return sorted(path.name for path in (run / "checkpoints").glob("step_????????"))
