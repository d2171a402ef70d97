"""`flashstep launch`: what a person sees of the ranks, and the exit codes."""
import importlib.util
import os
import signal
import subprocess
import sys
import tempfile
import time

PROGRAM = os.environ["FLASHSTEP_PROGRAM"]


def launch(*arguments):
    return subprocess.run([PROGRAM, "launch", *arguments], capture_output=True, text=True, timeout=120)


def expect(condition, wanted, got):
    if not condition:
        sys.exit(f"expected {wanted}, got {got}")


# flashstep itself as the ranks: the caller's mistake, in one rank's words and ours.
run = launch("-n", "2", "--", "train", "/no/such/config.json", "--set", "train.steps=3")
expect(run.returncode == 2, "exit code 2", run)
expect("] flashstep: " in run.stderr and "/no/such/config.json" in run.stderr, "the rank's sentence", run)
expect("flashstep: [launch] rank " in run.stderr and "ended with exit code 2" in run.stderr, "our sentence", run)

run = launch("-n", "3", "--", "/bin/sh", "-c", "echo rank $RANK of $WORLD_SIZE")
expect(run.returncode == 0 and run.stderr == "", "exit code 0", run)
lines = sorted(run.stdout.splitlines())
expect(lines == [f"[rank {rank}] rank {rank} of 3" for rank in range(3)], "three labelled lines", lines)

run = launch("-n", "1", "--no-label", "--", "/bin/sh", "-c", "echo plain; exit 77")
expect(run.returncode == 77 and run.stdout == "plain\n", "exit code 77 and a plain line", run)

for program in ("/bin/true", "true"):  # in PATH
    run = launch("-n", "2", "--", program)
    expect(run.returncode == 0 and run.stdout + run.stderr == "", "a program without arguments to run", run)
run = launch("-n", "2", "--", "no_such_program")
expect(run.returncode == 2 and "a program in PATH" in run.stderr, "what may be started", run)

# Rank 0 holds the port by itself, as torch.distributed does.
if importlib.util.find_spec("torch"):
    run = launch("-n", "2", "--no-label", "--", sys.executable, "-c", """
import torch
torch.distributed.init_process_group("gloo")
rank = torch.tensor([torch.distributed.get_rank()])
torch.distributed.all_reduce(rank)
print("sum", rank.item())
torch.distributed.destroy_process_group()
""")
    expect(run.returncode == 0 and run.stdout == "sum 1\nsum 1\n", "ranks of torch.distributed to meet", run)

run = launch("-n", "1", "--no-label", "--", "/bin/sh", "-c", 'echo "$# ${#1}"', "sh", "", "b")
expect(run.stdout == "2 0\n", "an empty word of the program's to stay one", run)

run = launch("-n", "1", "--no-label", "--", "/bin/echo", "[0.9,0.95]", "[]", "[[x]", "--a=[b]")
expect(run.stdout == "[0.9,0.95] [] [[x] --a=[b]\n", "words in brackets to stay as they are", run)

run = launch("-n", "2", "--", "example_data_parallel")
expect(run.returncode == 2 and "(./example_data_parallel)" in run.stderr, "how to write a program", run)

for arguments in (["-n", "2"], ["--", "info"], ["-n", "0", "--", "info"], ["-n", "two", "--", "info"]):
    run = launch(*arguments)
    expect(run.returncode == 2 and run.stderr.count("\n") == 1, "exit code 2 and one sentence", run)

for program in ("./no_such_program", "/dev/null"):  # none, and none that can be executed
    run = launch("-n", "2", "--", program)
    expect(run.returncode == 2 and f"cannot start {program}: " in run.stderr, "exit code 2 and a sentence", run)
run = launch("-n", "2", "--stop-seconds", "-1", "--", "info")
expect(run.returncode == 2 and run.stderr.count("\n") == 1, "exit code 2 and one sentence", run)

with open("/dev/full", "w") as full:
    run = subprocess.run([PROGRAM, "launch", "-n", "2", "--", "/bin/sh", "-c", "echo lost"], stdout=full,
                         stderr=subprocess.PIPE, text=True, timeout=120)
expect(run.returncode == 1 and "could not be written: No space left on device" in run.stderr,
       "exit code 1 and a sentence about the full disk", run)

# Whoever reads the output may leave (launch ... | head): the ranks work on.
with tempfile.TemporaryDirectory() as directory:
    work = "seq 1 20000; sleep 0.5; echo more; touch done$RANK"  # 20000: more than a pipe holds
    subprocess.run(f"'{PROGRAM}' launch -n 2 -- /bin/sh -c '{work}' | head -n 1", shell=True, cwd=directory,
                   stdout=subprocess.DEVNULL, timeout=120)
    expect(sorted(os.listdir(directory)) == ["done0", "done1"], "both ranks to end their work", os.listdir(directory))

# When the launcher itself is killed, its ranks do not stay behind.
orphans = subprocess.Popen(
    [PROGRAM, "launch", "-n", "2", "--", "/bin/sh", "-c", "echo $$; exec sleep 1000"],
    stdout=subprocess.PIPE, text=True)
pids = [int(orphans.stdout.readline().split()[-1]) for _ in range(2)]
orphans.send_signal(signal.SIGKILL)
orphans.wait()
deadline = time.monotonic() + 30


def is_alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


while any(is_alive(pid) for pid in pids):
    expect(time.monotonic() < deadline, f"processes {pids} to end with their launcher", "living ones")
    time.sleep(0.05)
print("launch: all as expected")
