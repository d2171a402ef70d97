"""Kills `flashstep train` with -9 at random moments, some inside a save, and fills its disk.

After every kill the run is resumed. Its metrics, samples and last checkpoint must be byte for byte those of a
run that was never stopped. Prints the seed; KILL_TEST_SEED repeats a sequence, KILL_TEST_KILLS changes its length.
"""

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PROGRAM = os.environ["FLASHSTEP_PROGRAM"]
SHIM = os.environ["FLASHSTEP_FAULT_SHIM"]
KILLS = int(os.environ.get("KILL_TEST_KILLS", "30"))
SEED = int(os.environ.get("KILL_TEST_SEED", str(time.time_ns() % 1_000_000)))
STEPS, INTERVAL = 60, 4
# What a clock measured; everything else in a line must not depend on how often the run was stopped.
CLOCKED = ("tokens_per_s", "step_ms")

random.seed(SEED)


def write_config(directory):
    words = "the cat saw a dog and ran home to sleep while rain fell on old red roofs".split()
    generator = random.Random(1)
    with open(directory / "text.txt", "w") as file:
        for _ in range(300):
            file.write(" ".join(generator.choices(words, k=40)) + ".<|endoftext|>\n")
    config = {
        "text": {"source": str(directory / "text.txt"), "directory": str(directory / "data")},
        "tokenizer": {"vocab_size": 300},
        "model": {"d_model": 32, "num_layers": 2, "num_heads": 2, "d_ff": 64, "context_length": 32},
        "schedule": {"warmup_steps": 5},
        "train": {"steps": STEPS, "batch_size": 4, "device": "cpu", "threads": 1,
                  "evaluate_every": 7, "evaluation_tokens": 256},
        "checkpointing": {"checkpointing_interval": INTERVAL, "keep": 2},
        "sampling": {"max_tokens": 8},
    }
    path = directory / "config.json"
    path.write_text(json.dumps(config))
    return path


def command(config, run, resume):
    return [PROGRAM, "train", str(config), "--run", str(run)] + (["--resume"] if resume else [])


def with_fault(fault):
    environment = dict(os.environ, LD_PRELOAD=SHIM, FLASHSTEP_FAULT=fault)
    # The shim stands before the sanitizer's library then, which is all right: both only pass calls on.
    environment["ASAN_OPTIONS"] = environment.get("ASAN_OPTIONS", "") + ":verify_asan_link_order=0"
    return environment


def start(arguments, environment=None):
    return subprocess.Popen(arguments, env=environment, stdout=subprocess.DEVNULL,
                            stderr=subprocess.PIPE, text=True)


def finish(arguments):
    process = start(arguments)
    errors = process.communicate()[1]
    assert process.returncode == 0, f"exit code {process.returncode}: {errors[-2000:]}"
    return errors


def outcome(run):
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    steps = [line["step"] for line in lines]
    assert steps == list(range(STEPS + 1)), f"expected every step once, got {steps}"
    for line in lines:
        for key in CLOCKED:
            line.pop(key, None)
    last = run / "checkpoints" / f"step_{STEPS:08d}"
    files = {path.name: path.read_bytes() for path in sorted(last.iterdir())}
    return {"metrics": lines, "samples": (run / "samples.txt").read_text(), **files}


def expect_same(run, reference):
    got = outcome(run)
    for name, expected in reference.items():
        assert got[name] == expected, f"{name} of {run} differs from the run that was never stopped"
    left = [str(path) for path in run.rglob("*") if "unfinished" in path.name or ".tmp-" in path.name]
    assert not left, f"left behind: {left}"


def whole_checkpoints(run):
    return sorted(path.name for path in (run / "checkpoints").glob("step_????????"))


def test_kills(directory, config, reference, seconds):
    kills, inside_saves, with_checkpoint, chain = 0, 0, 0, 0
    while kills < KILLS:
        chain += 1
        run = directory / f"killed_{chain}"
        resume = chain % 2 == 0  # also where there is nothing to resume yet
        while True:
            aimed = random.random() < 0.4
            # A start with its first save makes some 30 calls below checkpoints/.
            fault = f"{run}/checkpoints|any|{random.randint(1, 60)}|KILL"
            process = start(command(config, run, resume or run.joinpath("config.json").exists()),
                            with_fault(fault) if aimed else None)
            try:
                errors = process.communicate(timeout=None if aimed else random.uniform(0, seconds))[1]
            except subprocess.TimeoutExpired:
                process.kill()
                errors = process.communicate()[1]
            if process.returncode == 0:
                break
            assert process.returncode == -9, f"exit code {process.returncode}: {errors[-2000:]}"
            kills += 1
            inside_saves += aimed
            with_checkpoint += bool(whole_checkpoints(run))
            if kills >= KILLS:
                finish(command(config, run, run.joinpath("config.json").exists()))
                break
        expect_same(run, reference)
    print(f"{kills} kills ({inside_saves} aimed inside a save, {with_checkpoint} with a checkpoint to go on "
          f"from) in {chain} runs; all ended alike")


def data_files(directory):
    """What data preparation leaves, without the manifests: those hold times."""
    return {str(path.relative_to(directory)): path.read_bytes() for path in sorted(directory.rglob("*"))
            if path.is_file() and not path.name.endswith(".manifest.json")}


def test_kills_while_data_are_prepared(directory, config):
    """Killed before, inside and after every stage, again and again: the data end as if made at once."""
    expected = data_files(directory / "data")
    data, run = directory / "killed_data", directory / "killed_data_run"
    arguments = command(config, run, True) + ["--set", f"text.directory={data}"]
    kills = 0
    for number in random.sample(range(1, 80), 8):  # the stages make some 80 calls below the directory
        process = start(arguments, with_fault(f"{data}|any|{number}|KILL"))
        errors = process.communicate()[1]
        assert process.returncode in (0, -9), f"exit code {process.returncode}: {errors[-2000:]}"
        kills += process.returncode == -9
    assert kills >= 2, f"only {kills} of 8 kills came while data were prepared"
    finish(arguments)
    got = data_files(data)
    assert got.keys() == expected.keys(), f"expected {sorted(expected)}, got {sorted(got)}"
    for name, content in expected.items():
        assert got[name] == content, f"{name} differs from the one made at once"
    print(f"{kills} kills while data were prepared")


def test_full_disk(directory, config, reference):
    """The disk fills up in the second save, and stays full: exit code 1, a sentence, all checkpoints whole."""
    for function, number in (("write", 5), ("fsync", 17), ("rename", 8)):
        run = directory / f"full_{function}"
        process = start(command(config, run, False),
                        with_fault(f"{run}/checkpoints|{function}|{number}|ENOSPC|sticky"))
        errors = process.communicate()[1]
        assert process.returncode == 1, f"{function}: exit code {process.returncode}: {errors[-2000:]}"
        assert "No space left on device" in errors.strip().splitlines()[-1], errors[-2000:]
        kept = whole_checkpoints(run)
        assert kept and kept == sorted(path.name for path in (run / "checkpoints").iterdir()), kept
        finish(command(config, run, True))
        expect_same(run, reference)


def test_damaged_checkpoint(directory, config, reference):
    run = directory / "damaged"
    finish(command(config, run, False))
    newest = run / "checkpoints" / f"step_{STEPS:08d}" / "model.safetensors"
    data = bytearray(newest.read_bytes())
    data[len(data) // 2] ^= 1
    newest.write_bytes(data)
    errors = finish(command(config, run, True))
    assert str(newest) in errors, errors[-2000:]
    expect_same(run, reference)


def test_resume_without_checkpoint(directory, config, reference):
    run = directory / "new"
    errors = finish(command(config, run, True))
    assert "starting anew" in errors, errors[-2000:]
    expect_same(run, reference)


def main():
    print("seed", SEED)
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        config = write_config(directory)
        finish(command(config, directory / "first", False))  # prepares the data, measures the machine
        began = time.monotonic()
        finish(command(config, directory / "reference", False))
        seconds = time.monotonic() - began
        reference = outcome(directory / "reference")
        expect_same(directory / "first", reference)
        test_resume_without_checkpoint(directory, config, reference)
        test_damaged_checkpoint(directory, config, reference)
        test_full_disk(directory, config, reference)
        test_kills_while_data_are_prepared(directory, config)
        test_kills(directory, config, reference, seconds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
