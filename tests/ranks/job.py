"""A job of several ranks, seen from outside: its output, its processes, and how it ends."""
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # training_run

PROGRAM = os.path.realpath(os.environ["FLASHSTEP_PROGRAM"])
MARK = "FLASHSTEP_TEST_JOB"  # in the environment of all of a job's processes
RANK_NAMES = ("RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID")
LAUNCHERS = ("SLURM_", "OMPI_", "PMIX_", "TORCHELASTIC_")


def skip(reason):
    print(f"SKIPPED: {reason}")
    sys.exit(77)


def is_alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def is_stopped(pid):
    with open(f"/proc/{pid}/stat") as stat:
        return stat.read().rsplit(")", 1)[1].split()[0] == "T"


def wait_for(condition, what, seconds=60, pause=0.003):
    """The first true value of condition()."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, f"waited {seconds} s for {what}"
        time.sleep(pause)


class Job:
    """Starts `arguments`; at the end of a `with` block nothing of it is left."""

    count = 0

    def __init__(self, arguments, variables=None, **options):
        Job.count += 1
        self.mark = f"{os.getpid()}.{Job.count}"
        outer = {name: value for name, value in os.environ.items()
                 if not name.startswith(LAUNCHERS) and name not in ("RANK", "WORLD_SIZE")}
        self.file = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(
            [str(argument) for argument in arguments], stdin=subprocess.DEVNULL, stdout=self.file,
            stderr=subprocess.STDOUT, env={**outer, **(variables or {}), MARK: self.mark}, **options)

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        left = self.processes()
        for pid, _ in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.process.wait()
        if error is not None:
            print(self.output())
        self.file.close()

    def processes(self):
        """(pid, environment) of those that live."""
        found = []
        for entry in os.listdir("/proc"):
            if not entry.isdigit() or not is_alive(int(entry)):
                continue
            try:
                text = Path(f"/proc/{entry}/environ").read_bytes().decode(errors="replace")
            except OSError:
                continue
            variables = dict(item.split("=", 1) for item in text.split("\0") if "=" in item)
            if variables.get(MARK) == self.mark:
                found.append((int(entry), variables))
        return found

    def ranks(self):
        """{rank: pid} of the ranks that live: processes of our program that have a rank."""
        result = {}
        for pid, variables in self.processes():
            try:
                program = os.readlink(f"/proc/{pid}/exe")
            except OSError:
                continue
            rank = next((variables[name] for name in RANK_NAMES if name in variables), None)
            if rank is not None and program == PROGRAM:
                result[int(rank)] = pid
        return result

    def all_ranks(self, count, seconds=60):
        """The same, as soon as there are `count`."""
        def found():
            ranks = self.ranks()
            assert len(ranks) == count or self.process.poll() is None, f"the job ended:\n{self.output()}"
            return ranks if len(ranks) == count else None
        return wait_for(found, f"{count} ranks to start", seconds)

    def signal(self, number):
        self.process.send_signal(number)

    def output(self):
        self.file.flush()
        with open(f"/proc/self/fd/{self.file.fileno()}") as again:  # with a position of its own
            return again.read()

    def end(self, seconds=60):
        """The exit code; none of the ranks may outlive the job for longer than a moment."""
        try:
            code = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the job did not end in {seconds} s, its ranks: {self.ranks()}") from None
        wait_for(lambda: not self.ranks(), "the job's ranks to end with it", 10)
        return code


def expect(condition, wanted, got):
    assert condition, f"expected {wanted}, got:\n{got}"
