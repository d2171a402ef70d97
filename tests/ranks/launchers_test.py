"""Other people's launchers start `flashstep train` unchanged, by the scripts of examples/launch: a rank is killed
in mid-run, the job is started again and ends as if nothing had been.

usage: launchers_test.py torchrun|mpirun|srun"""
import shutil
import signal
import socket
import sys
import tempfile
from pathlib import Path

from job import PROGRAM, Job, expect, os, skip, wait_for
from slurm import Slurm, missing, which

from training_run import expect_same, outcome, whole_checkpoints, write_config

RANKS, STEPS = 3, 200
SCRIPTS = Path(os.environ["FLASHSTEP_SOURCE"]) / "examples/launch"
SAID_AGAIN = {"torchrun": "", "mpirun": "mpirun.sh: the job ended with exit code ",
              "srun": "srun.sh: the step ended with exit code "}


def free_port():
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return str(listening.getsockname()[1])


def prepare(launcher, slurm):
    """What stands before the script on the command line, and variables; or SKIPPED."""
    variables = {"FLASHSTEP": PROGRAM, "RANKS": str(RANKS), "OMP_NUM_THREADS": "1"}
    if launcher == "srun":
        return [which("salloc"), f"--ntasks={RANKS}"], {**variables, **slurm.variables}
    path = os.path.dirname(sys.executable) + ":" + os.environ["PATH"]  # PyPI's torch lies beside its Python
    shutil.which(launcher, path=path) or skip(f"{launcher} is not installed")
    variables.update(PATH=path)
    if launcher == "torchrun":
        variables.update(PORT=free_port())
    else:  # the two are for root, in a sandbox; the third for a machine with fewer cores than ranks
        variables.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
                         OMPI_MCA_rmaps_base_oversubscribe="1")
    return [], variables


def undisturbed(arguments, variables, run):
    with Job(arguments + [run], variables) as job:
        expect(job.end(120) == 0, "exit code 0", job.output())
        expect(f"[parallel] {RANKS} processes, started by {launcher};" in job.output(), "its ranks", job.output())
    return outcome(run, STEPS)


def killed(arguments, variables, run):
    with Job(arguments + [run], variables) as job:
        victims = job.all_ranks(RANKS)
        wait_for(lambda: len(whole_checkpoints(run)) >= 2 or job.process.poll() is not None, "a checkpoint")
        expect(job.process.poll() is None, "a job in mid-run", job.output())
        os.kill(victims[1], signal.SIGKILL)
        expect(job.end(120) == 0, "exit code 0 of the job that was started again", job.output())
        output = job.output()
    expect(SAID_AGAIN[launcher] in output, "a word of the restart", output)
    expect("[resume] no checkpoint in " in output, "a first attempt", output)
    expect("[resume] going on after step " in output, "a second attempt that goes on", output)


def test(slurm=None):
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        config = write_config(directory, train={"steps": STEPS, "evaluate_every": 50},
                              checkpointing={"checkpointing_interval": 10},
                              parallel={"bucket_megabytes": 0.02, "silence_seconds": 3})
        before, variables = prepare(launcher, slurm)
        arguments = [*before, SCRIPTS / f"{launcher}.sh", config, "--run"]
        reference = undisturbed(arguments, variables, directory / "undisturbed")
        killed(arguments, variables, directory / "killed")
        expect_same(directory / "killed", reference, STEPS)
    print(f"{launcher}: a rank was killed, the job went on and ended as if nothing had been")


launcher = sys.argv[1]
if launcher == "srun":
    if missing():
        skip(f"not installed: {', '.join(missing())}")
    if not any(Path("/sys/fs").glob("cgroup/*")):
        skip("no control groups in /sys/fs/cgroup, without which slurmd does not start")
    with tempfile.TemporaryDirectory() as slurm_directory, Slurm(Path(slurm_directory)) as cluster:
        test(cluster)
else:
    test()
