"""A real Slurm for tests: Debian's munged, slurmctld and slurmd on this machine, with everything below one directory.

Each node has mount and UTS namespaces of its own, so programs see another machine: it has its own host name and
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
from collections.abc import Iterator, Sequence
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
SlurmctldPidFile={root}/slurmctld.pid
SlurmdPidFile={root}/slurmd-%n.pid
SlurmctldLogFile={root}/slurmctld.log
SlurmdLogFile={root}/slurmd-%n.log
StateSaveLocation={root}/state
SlurmdSpoolDir={root}/spool-%n
SlurmdTimeout=15
MessageTimeout=4
Prolog={root}/prolog
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
{nodes}
PartitionName=debug Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


_NODE = "NodeName={name} NodeAddr=127.0.0.1 NodeHostname={host} Port={port} CPUs={cpus} State=UNKNOWN"


class Slurm(NamedTuple):
    configuration: Path
    hidden: Path
    """A directory that the nodes do not have."""
    daemons: dict[str, subprocess.Popen[bytes]]
    """`slurmctld`, and the slurmd of each node by its name."""

    @property
    def environ(self) -> dict[str, str]:
        return {"SLURM_CONF": str(self.configuration)}

    def ask(self, *words: str) -> str:
        return subprocess.run(
            words, env={**os.environ, **self.environ}, capture_output=True, text=True, check=True, timeout=60
        ).stdout

    def queue(self) -> str:
        return self.ask("squeue", "--long")

    def show(self, job: str) -> str:
        return self.ask("scontrol", "--oneliner", "show", "job", job)

    def lose(self, node: str) -> None:
        """Kill the daemons of a node with SIGKILL. The run goes on there, as on a node that only lost its network."""
        namespace = os.readlink(f"/proc/{self.daemons[node].pid}/ns/uts")  # noqa: PTH115  not a path
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                is_daemon = (entry / "comm").read_text().startswith(("slurmd", "slurmstepd"))
                if is_daemon and os.readlink(entry / "ns/uts") == namespace:  # noqa: PTH115
                    os.kill(int(entry.name), signal.SIGKILL)
        self.daemons[node].wait()

    def stop_controller(self, number: int = signal.SIGTERM) -> None:
        """Stop slurmctld. With SIGKILL it has not saved what it knew."""
        self.daemons["slurmctld"].send_signal(number)
        self.daemons["slurmctld"].wait(20)

    def start_controller(self, *options: str) -> None:
        """Start slurmctld, and wait until it answers. The option `-c` makes it forget all jobs."""
        self.daemons["slurmctld"] = _start(("slurmctld", "-D", "-f", str(self.configuration), *options))
        _wait(lambda: _state(self), [self.daemons["slurmctld"]], self.configuration.parent)

    def start_again(self, job: str) -> None:
        """Start a job that was queued again, for which Slurm waits two minutes.

        slurmd refuses the job (`JobLaunchFailure`) until the credential of its last start has expired: `cred_expire`, 1 second.
        While the last start is still being completed, Slurm sets the time of the next one again, so this asks until the job starts.
        """
        deadline = time.monotonic() + 60
        is_waiting = True
        while is_waiting:
            assert time.monotonic() < deadline, self.queue()
            time.sleep(3)
            with contextlib.suppress(subprocess.CalledProcessError):  # it has started since
                self.ask("scontrol", "update", f"JobId={job}", "StartTime=now")
            shown = self.show(job)
            is_waiting = any(f"JobState={state}" in shown for state in ("PENDING", "COMPLETING"))


def _start(command: Sequence[str]) -> subprocess.Popen[bytes]:
    null = subprocess.DEVNULL
    return subprocess.Popen(command, stdin=null, stdout=null, stderr=null, start_new_session=True)


@contextlib.contextmanager
def slurm(directory: Path, nodes: Sequence[str] = (NODE,)) -> Iterator[Slurm]:
    """A cluster of nodes. `directory` is short enough for the path of a socket (108 bytes).

    A file `fail-NODE` in it lets the prolog of that node fail.
    """
    need(all(map(shutil.which, _PROGRAMS)), "Slurm: apt-get install slurmctld slurmd slurm-client munge")
    need(os.geteuid() == 0, "uid 0: slurmd is started here")
    hidden = directory / "login-only"
    for path in (directory, hidden, directory / "state", *(directory / f"spool-{node}" for node in nodes)):
        path.mkdir(parents=True, exist_ok=True)
        path.chmod(0o755)  # as munged wants it
    (directory / "munge.key").write_bytes(secrets.token_bytes(1024))
    (directory / "munge.key").chmod(0o600)
    (directory / "plugstack.conf").touch()
    if not subprocess.run(["slurmd", "-V"], capture_output=True, text=True, check=True).stdout.startswith("slurm-wlm 22."):
        (directory / "cgroup.conf").write_text("CgroupPlugin=disabled\n")  # 22.05 does not know it
    (directory / "os-release").write_text('PRETTY_NAME="Node of a test cluster"\nID=debian\n')
    (directory / "prolog").write_text(f"#!/bin/sh\n[ ! -e {directory}/fail-$SLURMD_NODENAME ]\n")
    (directory / "prolog").chmod(0o755)
    configuration = directory / "slurm.conf"
    host = os.uname().nodename
    with _free_ports(1 + len(nodes)) as (controller, *ports):
        lines = [
            _NODE.format(name=name, host=host, port=port, cpus=os.cpu_count()) for name, port in zip(nodes, ports, strict=True)
        ]
        configuration.write_text(_CONFIGURATION.format(root=directory, host=host, controller=controller, nodes="\n".join(lines)))
    munged = (
        "munged", "--foreground", f"--key-file={directory}/munge.key", f"--socket={directory}/munge.socket",
        f"--pid-file={directory}/munged.pid", f"--log-file={directory}/munged.log", f"--seed-file={directory}/munge.seed",
    )  # fmt: skip
    munge, daemons = _start(munged), dict[str, subprocess.Popen[bytes]]()
    found = Slurm(configuration, hidden, daemons)
    try:
        _wait((directory / "munge.socket").exists, [munge], directory)
        daemons["slurmctld"] = _start(("slurmctld", "-D", "-f", str(configuration), "-c"))
        for node in nodes:
            script = (
                f"mount -t tmpfs none {hidden} && mount --bind {directory}/os-release /etc/os-release && hostname {node} && "
                f"exec slurmd -D -f {configuration} -N {node}"
            )
            daemons[node] = _start(("unshare", "--mount", "--uts", "--propagation", "private", "sh", "-c", script))
        _wait(lambda: _state(found).split() == ["idle"] * len(nodes), [munge, *daemons.values()], directory)
        yield found
    finally:
        with contextlib.suppress(subprocess.CalledProcessError, subprocess.TimeoutExpired):
            found.ask("scancel", "--me")
            deadline = time.monotonic() + 30
            while found.ask("squeue", "--noheader") and time.monotonic() < deadline:
                time.sleep(0.1)  # jobs outlive the daemons
        for process in (*reversed(daemons.values()), munge):
            process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(20)
            process.kill()
            process.wait()


def _state(found: Slurm) -> str:
    try:
        return found.ask("sinfo", "--noheader", "--Node", "--format=%T")
    except subprocess.CalledProcessError:
        return ""


def _wait(is_ready: object, processes: Sequence[subprocess.Popen[bytes]], directory: Path) -> None:
    assert callable(is_ready)
    deadline = time.monotonic() + 60
    while not is_ready():
        ended = any(process.poll() is not None for process in processes)
        logs = "\n".join(path.read_text(errors="replace")[-2000:] for path in sorted(directory.glob("*.log")))
        assert not ended, f"a daemon of Slurm ended:\n{logs}"
        assert time.monotonic() < deadline, f"Slurm is not ready:\n{logs}"
        time.sleep(0.05)


@contextlib.contextmanager
def _free_ports(count: int) -> Iterator[list[int]]:
    """Ports that nothing listens on now. slurm.conf needs numbers, so they are free again when the daemons start."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for found in sockets:
            found.bind(("127.0.0.1", 0))
        yield [found.getsockname()[1] for found in sockets]
