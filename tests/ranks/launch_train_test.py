"""`flashstep launch -n 3 -- train ...`: a rank that is killed or hangs, and signals to the launcher."""
import json
import re
import signal
import sys
import tempfile
import time
from pathlib import Path

from job import PROGRAM, Job, expect, os, wait_for

from training_run import expect_same, outcome, whole_checkpoints, write_config

RANKS, STEPS = 3, 200
SILENCE_SECONDS = 4
GRACE_SECONDS = 10  # for a rank that is caught in something that cannot be interrupted (Timeouts::grace)
MOMENT = 10  # seconds that a loaded machine may take for what takes none


def launch(config, run, resume=False):
    return [PROGRAM, "launch", "-n", RANKS, "--", "train", config, "--run", run] + (["--resume"] if resume else [])


def mid_run(job, run):
    """The ranks, when all of them have trained for a while."""
    ranks = job.all_ranks(RANKS)
    wait_for(lambda: len(whole_checkpoints(run)) >= 2 or job.process.poll() is not None, "a checkpoint")
    expect(job.process.poll() is None, "a job in mid-run", job.output())
    return ranks


def resume_and_compare(config, run, reference):
    """Goes on where the job was, not anew."""
    with Job(launch(config, run, resume=True)) as job:
        expect(job.end() == 0, "exit code 0", job.output())
        expect("[rank 0] [resume] going on after step " in job.output(), "a resumed run", job.output())
    expect_same(run, reference, STEPS)


def test_undisturbed(config, run):
    with Job(launch(config, run)) as job:
        expect(job.end() == 0, "exit code 0", job.output())
        output = job.output()
    expect(f"[parallel] {RANKS} processes, started by flashstep launch" in output, "its ranks", output)
    unlabelled = [line for line in output.splitlines() if not line.startswith("[rank 0] ")]
    expect(not unlabelled, "lines of rank 0 only, labelled", unlabelled)
    return outcome(run, STEPS)


def test_killed(directory, config, reference):
    run = directory / "killed"
    with Job(launch(config, run)) as job:
        victim = mid_run(job, run)[2]
        os.kill(victim, signal.SIGKILL)
        began = time.monotonic()
        expect(job.end() == 1, "exit code 1", job.output())
        expect(time.monotonic() - began < SILENCE_SECONDS / 6 * 2 + MOMENT, "the others to end at once",
               job.output())
        sentence = (f"flashstep: [launch] rank 2 of 3 (process {victim}) was killed by SIGKILL; "
                    "stopping the other ranks\n")
        expect(sentence in job.output(), sentence, job.output())
        for rank in (0, 1):  # they say it themselves, too
            expect(re.search(rf"\[rank {rank}\] flashstep: \[.*\] rank 2 \(process {victim} on .*\) has not been "
                             "heard for .* s, and connections to it broke\n", job.output()),
                   f"rank {rank} to name rank 2", job.output())
    resume_and_compare(config, run, reference)


def test_interrupted(directory, config, reference, number):
    """Everything is saved at the same step, and the launcher says what the ranks said."""
    run = directory / f"interrupted_{number}"
    with Job(launch(config, run)) as job:
        mid_run(job, run)
        job.signal(number)
        expect(job.end() == 128 + number, f"exit code {128 + number}", job.output())
        output = job.output()
    word = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM"}[number]
    steps = re.findall(rf"\[rank \d\] flashstep: \[train\] stopped by {word} after step (\d+) of {STEPS}; all is "
                       "saved", output)
    expect(len(steps) == RANKS and len(set(steps)) == 1, f"{RANKS} ranks stopped at one step", output)
    expect(re.search(rf"\[rank 0\] .*; all is saved in {run}; go on with: (\S+ launch .* -- train {config} .*"
                     rf"--run {run} --resume)\n", output), "rank 0 to say the whole command", output)
    expect(f"step_{int(steps[0]):08d}" in whole_checkpoints(run), f"a checkpoint of step {steps[0]}", output)
    expect("[launch]" not in output, "no word of a failure", output)
    resume_and_compare(config, run, reference)


def test_hung(directory, config, victim, sentence):
    """A rank is stopped: another one says so after the silence; nobody stays, the stopped one neither."""
    run = directory / f"hung_{victim}"
    with Job(launch(config, run)) as job:
        os.kill(mid_run(job, run)[victim], signal.SIGSTOP)
        began = time.monotonic()
        expect(job.end() == 1, "exit code 1", job.output())
        seconds = time.monotonic() - began
        expect(0.9 * SILENCE_SECONDS < seconds < SILENCE_SECONDS + GRACE_SECONDS + MOMENT,
               f"an end after {SILENCE_SECONDS} s, not {seconds:.1f}", job.output())
        # On a busy machine the launcher may stop a rank before it has said so, too.
        expect(re.search(rf"\[rank [^{victim}]\] flashstep: \[.*\] rank {victim} \(process .*\){sentence}",
                         job.output()), f"one of the others to say: {sentence}", job.output())
        expect(re.search(r"flashstep: \[launch\] rank \d of 3 \(process \d+\) ended with exit code 1: \[.*\] rank "
                         rf"{victim} ", job.output()), "the launcher to repeat it", job.output())


def test_fully_sharded(directory):
    """Ranks that each have a part of the parameters end and go on as others do."""
    directory.mkdir()
    config = write_config(directory, train={"steps": STEPS, "evaluate_every": 50},
                          checkpointing={"checkpointing_interval": 10},
                          sampling={"prompts": ["the cat"]},
                          parallel={"shard_optimizer": "full", "silence_seconds": SILENCE_SECONDS})
    reference = test_undisturbed(config, directory / "reference")
    test_killed(directory, config, reference)
    test_interrupted(directory, config, reference, signal.SIGTERM)
    test_export(directory)


def header(path):
    """Shapes by name of a safetensors file."""
    content = path.read_bytes()
    entries = json.loads(content[8:8 + int.from_bytes(content[:8], "little")])
    return {name: entry["shape"] for name, entry in entries.items() if name != "__metadata__"}


def test_export(directory):
    """What each rank has written of the weights becomes one file."""
    whole = directory / "whole.safetensors"
    with Job([PROGRAM, "export", directory / "reference", "--out", whole]) as job:
        expect(job.end() == 0, "exit code 0", job.output())
    written = [header(path) for path in
               (directory / "reference/checkpoints" / f"step_{STEPS:08d}").glob("model.*.safetensors")]
    expect(len(written) == RANKS and all(written), "a part of each rank", written)
    expect(header(whole) == {name: shape for part in written for name, shape in part.items()}, written, header(whole))


def main():
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        config = write_config(directory, train={"steps": STEPS, "evaluate_every": 50},
                              checkpointing={"checkpointing_interval": 10},
                              parallel={"bucket_megabytes": 0.02, "silence_seconds": SILENCE_SECONDS})
        reference = test_undisturbed(config, directory / "reference")
        test_killed(directory, config, reference)
        for number in (signal.SIGINT, signal.SIGTERM):
            test_interrupted(directory, config, reference, number)
        # Its heartbeat may have been late when it was stopped: it is missed before the store is.
        test_hung(directory, config, 0, "(, which holds the store, has not answered| has not been heard) for .* s\n")
        test_hung(directory, config, 1, " has not been heard for .* s\n")
        test_fully_sharded(directory / "full")
    print("launch -- train: killed, interrupted and hung ranks end as they should")


if __name__ == "__main__":
    sys.exit(main())
