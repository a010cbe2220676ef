"""A real Slurm for tests: Debian's munged, slurmctld and slurmd on this machine, with everything below one directory.

The node has mount and UTS namespaces of its own, so programs see another machine: it has its own host name and
its own /etc/os-release, and a directory of the test is missing there.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.parts import need

NODE = "node1"
_PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "scontrol", "unshare")
_CONFIGURATION = """\
ClusterName=reproenv
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={root}/munge.socket,cred_expire=1
CredType=cred/munge
SlurmctldPort={controller}
SlurmdPort={daemon}
SlurmctldPidFile={root}/slurmctld.pid
SlurmdPidFile={root}/slurmd.pid
SlurmctldLogFile={root}/slurmctld.log
SlurmdLogFile={root}/slurmd.log
StateSaveLocation={root}/state
SlurmdSpoolDir={root}/spool
PlugStackConfig={root}/plugstack.conf
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_min_interval=0,batch_sched_delay=0,defer_batch
KillWait=5
OverTimeLimit=0
ReturnToService=2
NodeName={node} NodeAddr=127.0.0.1 CPUs={cpus} State=UNKNOWN
PartitionName=debug Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


class Slurm(NamedTuple):
    configuration: Path
    hidden: Path
    """A directory that the node does not have."""

    @property
    def environ(self) -> dict[str, str]:
        return {"SLURM_CONF": str(self.configuration)}

    def ask(self, *words: str) -> str:
        return subprocess.run(
            words, env={**os.environ, **self.environ}, capture_output=True, text=True, check=True, timeout=60
        ).stdout

    def start_again(self, job: str) -> None:
        """Start a job that was queued again, for which Slurm waits two minutes.

        slurmd refuses the job (`JobLaunchFailure`) until the credential of its last start has expired: `cred_expire`, 1 second.
        """
        time.sleep(3)
        self.ask("scontrol", "update", f"JobId={job}", "StartTime=now")


@contextlib.contextmanager
def slurm(directory: Path) -> Iterator[Slurm]:
    """A cluster of one node, whose name is `NODE`. `directory` is short enough for the path of a socket (108 bytes)."""
    need(all(map(shutil.which, _PROGRAMS)), "Slurm: apt-get install slurmctld slurmd slurm-client munge")
    need(os.geteuid() == 0, "uid 0: slurmd is started here")
    hidden = directory / "login-only"
    for path in (directory, hidden, directory / "state", directory / "spool"):
        path.mkdir(parents=True, exist_ok=True)
        path.chmod(0o755)  # as munged wants it
    (directory / "munge.key").write_bytes(secrets.token_bytes(1024))
    (directory / "munge.key").chmod(0o600)
    (directory / "plugstack.conf").touch()
    if not subprocess.run(["slurmd", "-V"], capture_output=True, text=True, check=True).stdout.startswith("slurm-wlm 22."):
        (directory / "cgroup.conf").write_text("CgroupPlugin=disabled\n")  # 22.05 does not know it
    (directory / "os-release").write_text('PRETTY_NAME="Node of a test cluster"\nID=debian\n')
    configuration = directory / "slurm.conf"
    with _free_ports() as (controller, daemon):
        configuration.write_text(
            _CONFIGURATION.format(
                root=directory,
                host=os.uname().nodename,
                controller=controller,
                daemon=daemon,
                node=NODE,
                cpus=os.cpu_count(),
            )
        )
    found = Slurm(configuration, hidden)
    node = (
        f"mount -t tmpfs none {hidden} && mount --bind {directory}/os-release /etc/os-release && hostname {NODE} && "
        f"exec slurmd -D -f {configuration} -N {NODE}"
    )
    commands = (
        ("munged", "--foreground", f"--key-file={directory}/munge.key", f"--socket={directory}/munge.socket",
         f"--pid-file={directory}/munged.pid", f"--log-file={directory}/munged.log", f"--seed-file={directory}/munge.seed"),
        ("slurmctld", "-D", "-f", str(configuration), "-c"),
        ("unshare", "--mount", "--uts", "--propagation", "private", "sh", "-c", node),
    )  # fmt: skip
    processes: list[subprocess.Popen[bytes]] = []
    with (directory / "daemons.log").open("wb") as log:
        try:
            for number, command in enumerate(commands):
                processes.append(
                    subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
                )
                if number == 0:
                    _wait((directory / "munge.socket").exists, processes, directory)
            _wait(lambda: "idle" in _state(found), processes, directory)
            yield found
        finally:
            with contextlib.suppress(subprocess.CalledProcessError, subprocess.TimeoutExpired):
                found.ask("scancel", "--me")
                deadline = time.monotonic() + 30
                while found.ask("squeue", "--noheader") and time.monotonic() < deadline:
                    time.sleep(0.1)  # jobs outlive the daemons
            for process in reversed(processes):
                process.send_signal(signal.SIGTERM)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(20)
                process.kill()
                process.wait()


def _state(found: Slurm) -> str:
    try:
        return found.ask("sinfo", "--noheader", "--format=%T")
    except subprocess.CalledProcessError:
        return ""


def _wait(is_ready: object, processes: list[subprocess.Popen[bytes]], directory: Path) -> None:
    assert callable(is_ready)
    deadline = time.monotonic() + 60
    while not is_ready():
        ended = any(process.poll() is not None for process in processes)
        logs = "\n".join(path.read_text(errors="replace")[-2000:] for path in sorted(directory.glob("*.log")))
        assert not ended, f"a daemon of Slurm ended:\n{logs}"
        assert time.monotonic() < deadline, f"Slurm is not ready:\n{logs}"
        time.sleep(0.05)


@contextlib.contextmanager
def _free_ports() -> Iterator[tuple[int, int]]:
    """Two ports that nothing listens on now. slurm.conf needs numbers, so they are free again when the daemons start."""
    with socket.socket() as one, socket.socket() as other:
        for found in (one, other):
            found.bind(("127.0.0.1", 0))
        yield one.getsockname()[1], other.getsockname()[1]
