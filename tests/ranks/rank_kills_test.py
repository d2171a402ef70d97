"""Kills ranks of `flashstep launch -n 3 -- train` with -9 at random moments, some inside a save, and fills the
disk of rank 0.

After every kill the job is resumed. Its metrics, samples and last checkpoint must be byte for byte those of a job
that was never stopped. Prints the seed; RANK_KILLS_SEED repeats a sequence, RANK_KILLS changes its length.
"""
import random
import re
import signal
import sys
import tempfile
import time
from pathlib import Path

from job import PROGRAM, Job, expect, is_stopped, os, wait_for

from training_run import STEPS, command, expect_same, outcome, whole_checkpoints, with_fault, write_config

RANKS = 3
KILLS = int(os.environ.get("RANK_KILLS", "10"))
SEED = int(os.environ.get("RANK_KILLS_SEED", str(time.time_ns() % 1_000_000)))
END_SECONDS = 30  # from a kill to the end of the job, on a loaded machine

random.seed(SEED)


def launch(config, run):
    # --resume also where there is nothing to resume yet.
    return [PROGRAM, "launch", "-n", RANKS, "--", *command(config, run, resume=True)[1:]]


def fault(run, function, call, what):
    """The variables that make `what` happen to rank 0 at its `call`th such call below checkpoints/."""
    variables = with_fault(f"{run}/checkpoints|{function}|{call}|{what}")
    return {name: variables[name] for name in ("LD_PRELOAD", "FLASHSTEP_FAULT", "ASAN_OPTIONS")}


def kill_at_random(job, seconds):
    """A rank dies at any moment between its start and the job's end."""
    moment = time.monotonic() + random.uniform(0, seconds)
    while time.monotonic() < moment and job.process.poll() is None:
        time.sleep(0.002)
    ranks = job.ranks()
    if not ranks:
        return None
    victim = random.choice(sorted(ranks))
    os.kill(ranks[victim], signal.SIGKILL)
    return victim


def kill_while_rank_0_saves(job):
    """Rank 0 has stopped itself inside a save; another rank dies; rank 0 goes on."""
    def stopped():
        first = job.ranks().get(0)
        try:
            return job.process.poll() is not None or (first is not None and is_stopped(first))
        except FileNotFoundError:
            return False
    wait_for(stopped, "rank 0 to stop inside a save")
    ranks = job.ranks()
    if job.process.poll() is not None or 0 not in ranks:
        return None
    victim = random.choice([rank for rank in ranks if rank != 0])
    os.kill(ranks[victim], signal.SIGKILL)
    time.sleep(random.choice([0, 0.05]))  # the launcher may have told rank 0 to stop by then
    os.kill(ranks[0], signal.SIGCONT)
    return victim


def one_life(config, run, seconds, how):
    """Runs the job until it is killed or done; the rank that was killed, or None."""
    what = {"save of rank 0": "KILL", "while rank 0 saves": "STOP"}.get(how)
    # A start makes a few calls there, and each of 15 saves some 20.
    variables = fault(run, "any", random.randint(1, 120), what) if what else {}
    with Job(launch(config, run), variables) as job:
        victim = {"save of rank 0": lambda: 0,
                  "while rank 0 saves": lambda: kill_while_rank_0_saves(job),
                  "random": lambda: kill_at_random(job, seconds)}.get(how, lambda: None)()
        code = job.end(END_SECONDS)
        if code == 0:
            return None  # done, perhaps although a rank was killed that was about to end
        expect(code == 1 and re.search(rf"\[launch\] rank {victim} of {RANKS} \(process \d+\) was killed by SIGKILL",
                                       job.output()), f"exit code 1, and rank {victim} to be named", job.output())
        return victim


def test_kills(directory, config, reference, seconds):
    kills, chain, counts = 0, 0, {"random": 0, "save of rank 0": 0, "while rank 0 saves": 0}
    while kills < KILLS:
        chain += 1
        run = directory / f"killed_{chain}"
        while True:
            how = random.choices(list(counts), [3, 1, 1])[0] if kills < KILLS else None
            if one_life(config, run, seconds, how) is None:
                break
            kills += 1
            counts[how] += 1
        expect_same(run, reference)
    print(f"{kills} kills ({', '.join(f'{count} {how}' for how, count in counts.items())}) in {chain} jobs; "
          "all ended alike")


def test_full_disk(directory, config, reference):
    """Rank 0's disk fills up in the second save: all ranks end, and say why, but those that launch stops before."""
    run = directory / "full"
    with Job(launch(config, run), fault(run, "write", 5, "ENOSPC|sticky")) as job:
        expect(job.end(END_SECONDS) == 1, "exit code 1", job.output())
        output = job.output()
    expect(re.search(r"\[rank 0\] flashstep: .*No space left on device\n", output), "rank 0's sentence", output)
    for rank in (1, 2):
        why = "(.*rank 0 failed: .*No space left on device|stopped by SIGTERM)"
        expect(re.search(rf"\[rank {rank}\] flashstep: {why}\n", output), f"rank {rank} to know why", output)
    kept = whole_checkpoints(run)
    expect(kept and kept == sorted(path.name for path in (run / "checkpoints").iterdir()), "whole checkpoints", kept)
    expect(one_life(config, run, 0, None) is None, "the resumed job to end", "a killed one")
    expect_same(run, reference)


def main():
    print("seed", SEED, flush=True)
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        config = write_config(directory, parallel={"bucket_megabytes": 0.02, "silence_seconds": 3})
        expect(one_life(config, directory / "first", 0, None) is None, "a job that ends", "a killed one")
        began = time.monotonic()
        expect(one_life(config, directory / "reference", 0, None) is None, "a job that ends", "a killed one")
        seconds = time.monotonic() - began
        reference = outcome(directory / "reference")
        expect_same(directory / "first", reference)
        test_full_disk(directory, config, reference)
        test_kills(directory, config, reference, seconds)


if __name__ == "__main__":
    sys.exit(main())
