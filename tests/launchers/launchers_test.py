"""Other people's launchers start ranks that find each other; one dies, the job is started again and
goes on. torchrun restarts by itself; mpirun and srun as in examples/launch/.

usage: launchers_test.py torchrun|mpirun|srun, with RANK_PROBE in the environment"""
import os
import shutil
import subprocess
import sys
import tempfile

PROBE = os.environ["RANK_PROBE"]
launcher = sys.argv[1]


def skip(reason):
    print(f"SKIPPED: {reason}")
    sys.exit(77)


def find(name):
    beside_python = os.path.join(os.path.dirname(sys.executable), name)
    path = beside_python if os.access(beside_python, os.X_OK) else shutil.which(name)
    return path or skip(f"{name} is not installed")


def run(command, variables={}):
    """Output and exit code; nothing of an outer job in the environment."""
    clean = {name: value for name, value in os.environ.items()
             if not name.startswith(("SLURM_", "OMPI_", "PMIX_", "TORCHELASTIC_"))}
    done = subprocess.run(command, capture_output=True, text=True, timeout=240,
                          env={**clean, "OMP_NUM_THREADS": "1", **variables})
    return done.stdout + done.stderr, done.returncode


def expect(condition, wanted, output):
    if not condition:
        sys.exit(f"expected {wanted}, got:\n{output}")


def torchrun(directory):
    output, code = run([find("torchrun"), "--no-python", "--nproc-per-node", "3", "--max-restarts", "1",
                        "--standalone", "--local-addr", "127.0.0.1", "--monitor-interval", "0.2", PROBE, directory])
    expect(code == 0 and "torchrun: rank 2 of 3 starts at 0" in output, "a restarted job", output)
    return output


def twice(command):
    first, code = run(command)
    expect(code != 0 and "starts at 0" in first, "the first attempt to fail", first)
    second, code = run(command)
    expect(code == 0, "the second attempt to succeed", first + second)
    return first + second


def mpirun(directory):
    command = [find("mpirun"), "-n", "3", "--oversubscribe", "--bind-to", "none", PROBE, directory]
    if os.geteuid() == 0:
        command.insert(1, "--allow-run-as-root")
    return twice(command)


def srun(directory):
    if run([find("sinfo"), "--noheader"])[1] != 0:
        skip("no Slurm controller answers")
    return twice([find("srun"), "-n", "3", "--overcommit", "--kill-on-bad-exit=1", PROBE, directory])


with tempfile.TemporaryDirectory() as directory:
    output = {"torchrun": torchrun, "mpirun": mpirun, "srun": srun}[launcher](directory)
expect("all 3 ranks counted to 30" in output, "the job to end", output)
for rank in range(3):
    expect(f"{launcher}: rank {rank} of 3 starts at 1" in output, "the job to go on where it was", output)
print(f"{launcher}: killed once, restarted, done")
