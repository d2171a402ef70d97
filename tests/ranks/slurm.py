"""A Slurm of one node, for as long as a test needs it: munged, slurmctld and slurmd of its own, on free ports."""
import getpass
import os
import shutil
import signal
import socket
import subprocess
import time

TOOLS = ("munged", "slurmctld", "slurmd", "srun", "salloc", "sinfo")
CONFIG = """
ClusterName=flashstep
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmdPort={node_port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={directory}/munge.socket
CredType=cred/munge
StateSaveLocation={directory}/state
SlurmdSpoolDir={directory}/spool
SlurmctldPidFile={directory}/slurmctld.pid
SlurmdPidFile={directory}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0
ReturnToService=2
KillWait=5
NodeName={host} NodeAddr=127.0.0.1 CPUs=8 State=UNKNOWN
PartitionName=main Nodes={host} Default=YES State=UP
"""


def which(tool):
    return shutil.which(tool, path=os.environ["PATH"] + ":/usr/local/sbin:/usr/sbin:/sbin")


def missing():
    """The tools that are not installed."""
    return [tool for tool in TOOLS if which(tool) is None]


def free_port():
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]


class Slurm:
    """`variables` is what srun and its like need to find it."""

    def __init__(self, directory):
        self.directory = directory
        self.daemons = []
        for name in ("state", "spool"):
            (directory / name).mkdir()
        directory.chmod(0o755)  # munged's clients look for its socket there
        host = socket.gethostname().split(".")[0]
        config = directory / "slurm.conf"
        config.write_text(CONFIG.format(host=host, user=getpass.getuser(), directory=directory,
                                        controller_port=free_port(), node_port=free_port()))
        self.variables = {"SLURM_CONF": str(config)}
        self.host = host

    def __enter__(self):
        key = self.directory / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        socket_path = self.directory / "munge.socket"
        try:
            self.start("munged", "--foreground", "--force", f"--key-file={key}", f"--socket={socket_path}",
                       *(f"--{name}-file={self.directory}/munge.{name}" for name in ("pid", "log", "seed")))
            self.wait(socket_path.exists, "munged's socket")
            self.start("slurmctld", "-D")
            self.start("slurmd", "-D", "-N", self.host)
            self.wait(self.is_idle, "an idle node")
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, kind, error, trace):
        for daemon in reversed(self.daemons):
            daemon.terminate()
        for daemon in self.daemons:
            try:
                daemon.wait(2)  # slurmctld takes its time
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        self.end_steps()

    def end_steps(self):
        """A step that ends with its controller gone would tell it so for ever."""
        mark = f"SLURM_CONF={self.variables['SLURM_CONF']}".encode()
        for entry in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{entry}/environ", "rb") as environment:
                    if mark in environment.read().split(b"\0"):
                        os.kill(int(entry), signal.SIGKILL)
            except OSError:  # gone, or somebody else's
                continue

    def start(self, tool, *arguments):
        with open(self.directory / f"{tool}.out", "w") as out:
            self.daemons.append(subprocess.Popen([which(tool), *arguments], stdin=subprocess.DEVNULL, stdout=out,
                                                 stderr=out, env={**os.environ, **self.variables}))

    def is_idle(self):
        state = subprocess.run([which("sinfo"), "--noheader", "--format=%t"], capture_output=True, text=True,
                               env={**os.environ, **self.variables})
        return state.stdout.strip() == "idle"

    def wait(self, condition, what, seconds=60):
        deadline = time.monotonic() + seconds
        while not condition():
            ended = [daemon.args[0] for daemon in self.daemons if daemon.poll() is not None]
            if ended or time.monotonic() > deadline:
                logs = "".join(f"--- {path.name}\n{path.read_text()[-2000:]}"
                               for path in sorted(self.directory.glob("*.out")))
                raise AssertionError(f"no {what}; ended: {ended}\n{logs}")
            time.sleep(0.1)
