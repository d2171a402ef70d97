"""Kills `flashstep train` with -9 at random moments, some inside a save, and fills its disk.

After every kill the run is resumed. Its metrics, samples and last checkpoint must be byte for byte those of a
run that was never stopped. Prints the seed; KILL_TEST_SEED repeats a sequence, KILL_TEST_KILLS changes its length.
"""

import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from training_run import (STEPS, command, expect_same, finish, outcome, start, whole_checkpoints, with_fault,
                          write_config)

KILLS = int(os.environ.get("KILL_TEST_KILLS", "30"))
SEED = int(os.environ.get("KILL_TEST_SEED", str(time.time_ns() % 1_000_000)))

random.seed(SEED)


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
