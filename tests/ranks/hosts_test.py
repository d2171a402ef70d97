"""Two hosts, of two ranks each: network namespaces with a cable between them. The cable is pulled in mid-run, and
every rank ends within the timeout, with a sentence that names whom it does not hear; the job goes on, as if
nothing had been, when the cable is back."""
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from job import PROGRAM, Job, expect, os, skip, wait_for

from training_run import command, expect_same, outcome, whole_checkpoints, write_config

ADDRESSES = {"one": "10.231.7.1", "two": "10.231.7.2"}  # by host; ranks 0 and 1 are on the first
STEPS = 200
SILENCE_SECONDS = 4
MOMENT = 10  # seconds that a loaded machine may take for what takes none
PORT = 29511  # of a network that nobody else is in


def move_apart():
    """This program again, in namespaces of its own that go away with it: nothing of the machine's is touched."""
    if "APART" in os.environ:
        return
    for tool in ("unshare", "ip"):
        shutil.which(tool) or skip(f"{tool} is not installed")
    apart = ["unshare", "--map-root-user", "--net", "--mount", "--uts", "--propagation", "private"]
    tried = subprocess.run([*apart, "sh", "-c", "mount -t tmpfs none /run && ip netns add one && ip netns add two &&"
                            "ip link add name cable netns one type veth peer name cable netns two"],
                           capture_output=True, text=True)
    if tried.returncode != 0:
        skip(f"no network namespaces here: {tried.stderr.strip()}")
    os.environ["APART"] = "1"
    os.execvp(apart[0], [*apart, sys.executable, *sys.argv])


def call(*arguments):
    subprocess.run(arguments, check=True)


def lay_cable():
    call("mount", "-t", "tmpfs", "none", "/run")
    for host in ADDRESSES:
        call("ip", "netns", "add", host)
    call("ip", "link", "add", "name", "cable", "netns", "one", "type", "veth", "peer", "name", "cable", "netns", "two")
    for host, address in ADDRESSES.items():
        call("ip", "-n", host, "address", "add", f"{address}/24", "dev", "cable")
        for device in ("lo", "cable"):
            call("ip", "-n", host, "link", "set", device, "up")


def pull():
    """Both ends learn at once that the link is down."""
    call("ip", "-n", "two", "link", "set", "cable", "down")


def push():
    call("ip", "-n", "two", "link", "set", "cable", "up")


def lose_packets():
    """Nobody learns anything: frames go to an address that nobody has."""
    for host, other in (("one", "two"), ("two", "one")):
        call("ip", "-n", host, "neighbour", "replace", ADDRESSES[other], "lladdr", "02:00:00:00:00:07",
             "dev", "cable", "nud", "permanent")


def find_packets():
    for host, other in (("one", "two"), ("two", "one")):
        call("ip", "-n", host, "neighbour", "del", ADDRESSES[other], "dev", "cable")


def start(config, run):
    """The ranks, each a job of its own, as two people might start them."""
    jobs = []
    for rank in range(4):
        host = "one" if rank < 2 else "two"
        variables = {"RANK": str(rank), "WORLD_SIZE": "4", "LOCAL_RANK": str(rank % 2), "LOCAL_WORLD_SIZE": "2",
                     "MASTER_ADDR": ADDRESSES["one"], "MASTER_PORT": str(PORT), "OMP_NUM_THREADS": "1"}
        named = ["unshare", "--uts", "sh", "-c", f'hostname {host} && exec "$@"', "sh"]
        jobs.append(Job(["ip", "netns", "exec", host, *named, *command(config, run, resume=True)], variables))
    return jobs


def close(jobs):
    for job in jobs:
        job.__exit__(None, None, None)


def test_together(config, run):
    jobs = start(config, run)
    try:
        for job in jobs:
            expect(job.end() == 0, "exit code 0", job.output())
        return jobs[0].output()
    finally:
        close(jobs)


def test_cut_off(config, run, cut, mend):
    jobs = start(config, run)
    try:
        before = whole_checkpoints(run)[-1:]
        wait_for(lambda: whole_checkpoints(run)[-1:] > before or any(job.process.poll() is not None for job in jobs),
                 "a checkpoint")
        cut()
        began = time.monotonic()
        for rank, job in enumerate(jobs):
            expect(job.end(SILENCE_SECONDS + MOMENT) == 1, f"exit code 1 of rank {rank}", job.output())
            who = (r"rank [23] \(process \d+ on two\).* (has|have) not been heard for" if rank < 2 else
                   r"rank 0 \(process \d+ on one\)( has not been heard for|, which holds the store, (has not|is gone))")
            sentences = [line for line in job.output().splitlines() if line.startswith("flashstep: ")]
            expect(len(sentences) == 1 and re.match(rf"flashstep: \[.*\] {who}", sentences[0]),
                   f"rank {rank} to say: {who}", job.output())
        print(f"{cut.__name__}: all ranks ended after {time.monotonic() - began:.1f} s; rank 0 said\n  "
              + jobs[0].output().strip().splitlines()[-1] + "\nand rank 3\n  "
              + jobs[3].output().strip().splitlines()[-1])
    finally:
        close(jobs)
        mend()


def test_outage(directory, parallel, cuts):
    """Returns what rank 0 says of a run that nothing disturbs."""
    directory.mkdir()
    config = write_config(directory, train={"steps": STEPS, "evaluate_every": 50},
                          checkpointing={"checkpointing_interval": 10},
                          parallel={"silence_seconds": SILENCE_SECONDS, **parallel})
    told = test_together(config, directory / "reference")
    reference = outcome(directory / "reference", STEPS)
    for cut, mend in cuts:
        test_cut_off(config, directory / "cut", cut, mend)
    test_together(config, directory / "cut")
    expect_same(directory / "cut", reference, STEPS)
    return told


def main():
    move_apart()
    lay_cable()
    with tempfile.TemporaryDirectory() as name:
        test_outage(Path(name) / "buckets", {"bucket_megabytes": 0.02}, ((pull, push), (lose_packets, find_packets)))
        # Each host has a copy of the weights, divided between its ranks.
        told = test_outage(Path(name) / "replicas", {"shard_optimizer": "full", "shard_ranks": 2}, ((pull, push),))
        expect("optimizer shards full within 2 processes" in told, "how the weights are divided", told)


if __name__ == "__main__":
    sys.exit(main())
