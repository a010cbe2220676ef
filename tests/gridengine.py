"""A real Grid Engine for tests: Debian's sge_qmaster and sge_execd on this machine, with everything below one directory.

The node has mounts of its own, so its programs see another machine: it has its own /etc/os-release, and a directory of the test is
missing there. Its name is that of this machine, `localhost` for Grid Engine, whose hosts must have names that lead to them.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from tests.parts import need

NODE = "localhost"
SLOTS, GPUS = 4, 2
_PROGRAMS = Path("/usr/lib/gridengine")
_SHARED = Path("/usr/share/gridengine")
_BOOTSTRAP = """\
admin_user none
default_domain none
ignore_fqdn true
spooling_method classic
spooling_lib libspoolc
spooling_params {root}/default/common;{root}/spool
binary_path {programs}
qmaster_spool_dir {root}/spool
security_mode none
listener_threads 1
worker_threads 1
scheduler_threads 1
"""
_CONFIGURATION = {
    "execd_spool_dir": "{root}/node",
    "mailer": "/bin/true",
    "min_uid": "0",
    "min_gid": "0",
    "load_report_time": "0:0:2",
    "execd_params": "INHERIT_ENV=false",
    "reporting_params": "accounting=true reporting=false flush_time=0:0:1 accounting_flush_time=0:0:0 joblog=false sharelog=0:0:0",
}
"""What differs from Debian's configuration. Jobs are those of root, as in the other tests of engines."""
_SCHEDULER = {
    "schedule_interval": "0:0:1",
    "flush_submit_sec": "1",
    "flush_finish_sec": "1",
    "job_load_adjustments": "NONE",
    "schedd_job_info": "true",
}
_QUEUE = {
    "qname": "all.q",
    "hostlist": NODE,
    "load_thresholds": "NONE",  # other tests run at the same time
    "pe_list": "smp",
    "slots": str(SLOTS),
    "notify": "0:0:20",
    "complex_values": f"gpu={GPUS}",
    "shell_start_mode": "unix_behavior",
}
_GPU = """\
name gpu
shortcut gpu
type INT
relop <=
requestable YES
consumable YES
default 0
urgency 0
"""


class GridEngine(NamedTuple):
    root: Path
    hidden: Path
    """A directory that the node does not have."""
    environ: Mapping[str, str]

    def ask(self, *words: str) -> str:
        return subprocess.run(
            words, env={**os.environ, **self.environ}, capture_output=True, text=True, check=True, timeout=60
        ).stdout

    def queue(self) -> str:
        return self.ask("qstat", "-f")

    def answers(self) -> bool:
        with contextlib.suppress(subprocess.CalledProcessError):
            return bool(self.ask("qconf", "-sh"))
        return False

    def change(self, shown: str, changed: str, file: str, values: Mapping[str, str]) -> None:
        """Let `qconf` read back what it shows, with other values."""
        path = self.root / file
        path.write_text(_with_values(self.ask("qconf", *shown.split()), values))
        self.ask("qconf", changed, str(path))


def _with_values(text: str, values: Mapping[str, str]) -> str:
    lines = (line.split(maxsplit=1) for line in text.splitlines() if line and not line.startswith("#"))
    return "".join(f"{name} {values.get(name, value)}\n" for name, value in lines)


@contextlib.contextmanager
def gridengine(root: Path) -> Iterator[GridEngine]:
    """A cell with a node of four slots and two GPUs, which nothing but the count `gpu` knows."""
    found = all((_PROGRAMS / name).exists() for name in ("sge_qmaster", "sge_execd")) and shutil.which("qsub")
    need(found, "Grid Engine: apt-get install gridengine-master gridengine-exec gridengine-client")
    need(os.geteuid() == 0, "uid 0: sge_execd is started here")
    hidden, common = root / "login-only", root / "default/common"
    for path in (hidden, common, root / "spool/job_scripts", root / "node"):
        path.mkdir(parents=True)
    root.chmod(0o755)
    shutil.copytree(_SHARED / "util/resources/centry", root / "centry")
    (root / "centry/gpu").write_text(_GPU)
    (root / "util").symlink_to(_SHARED / "util")
    (root / "os-release").write_text('PRETTY_NAME="Node of a test cluster"\nID=debian\n')
    (common / "bootstrap").write_text(_BOOTSTRAP.format(root=root, programs=_PROGRAMS))
    (common / "act_qmaster").write_text(f"{NODE}\n")
    (common / "host_aliases").write_text(f"{NODE} {os.uname().nodename}\n")
    values = {name: value.format(root=root) for name, value in _CONFIGURATION.items()}
    (root / "configuration").write_text(_with_values((_SHARED / "default-configuration").read_text(), values))
    with socket.socket() as first, socket.socket() as second:
        for each in (first, second):
            each.bind(("", 0))
        ports = [str(each.getsockname()[1]) for each in (first, second)]
    home = pwd.getpwuid(os.getuid()).pw_dir  # that of a job, whatever HOME is at its submission
    environ = {
        "HOME": home,
        "SGE_ROOT": str(root),
        "SGE_CELL": "default",
        "SGE_QMASTER_PORT": ports[0],
        "SGE_EXECD_PORT": ports[1],
    }
    cell = GridEngine(root, hidden, environ)
    for words in (
        ("spoolinit", "classic", "libspoolc", f"{common};{root}/spool", "init"),
        ("spooldefaults", "configuration", str(root / "configuration")),
        ("spooldefaults", "complexes", str(root / "centry")),
        ("spooldefaults", "usersets", str(_SHARED / "util/resources/usersets")),
        ("spooldefaults", "pes", str(_SHARED / "util/resources/pe")),
        ("spooldefaults", "managers", "root"),
        ("spooldefaults", "adminhosts", NODE),
    ):
        cell.ask(str(_PROGRAMS / words[0]), *words[1:])
    daemons: list[subprocess.Popen[bytes]] = []
    try:
        daemons.append(_start(cell, str(_PROGRAMS / "sge_qmaster")))
        _wait(cell, daemons, cell.answers)
        cell.change("-ssconf", "-Msconf", "scheduler", _SCHEDULER)
        cell.ask("qconf", "-as", NODE)
        cell.change("-sq", "-Aq", "queue", _QUEUE)
        script = f"mount -t tmpfs none {hidden} && mount --bind {root}/os-release /etc/os-release && exec {_PROGRAMS}/sge_execd"
        daemons.append(_start(cell, "unshare", "--mount", "--propagation", "private", "sh", "-c", script))
        _wait(cell, daemons, lambda: cell.queue().split()[-1].startswith("lx-"))  # then come states, if any
        yield cell
    finally:
        with contextlib.suppress(subprocess.CalledProcessError, subprocess.TimeoutExpired):
            cell.ask("qdel", "-f", "-u", "*")
            deadline = time.monotonic() + 30
            while cell.ask("qstat", "-u", "*") and time.monotonic() < deadline:
                time.sleep(0.1)
        for daemon in daemons:
            daemon.kill()  # sge_qmaster takes seconds to end otherwise
            daemon.wait()


def _start(cell: GridEngine, *command: str) -> subprocess.Popen[bytes]:
    null, environ = subprocess.DEVNULL, {**os.environ, **cell.environ, "SGE_ND": "1"}  # not in the background
    return subprocess.Popen(command, env=environ, stdin=null, stdout=null, stderr=null, start_new_session=True)


def _wait(cell: GridEngine, daemons: list[subprocess.Popen[bytes]], is_ready: object) -> None:
    assert callable(is_ready)
    deadline = time.monotonic() + 60
    while not is_ready():
        ended = any(daemon.poll() is not None for daemon in daemons)
        logs = "\n".join(path.read_text(errors="replace")[-2000:] for path in sorted(cell.root.glob("*/**/messages")))
        assert not ended, f"a daemon of Grid Engine ended:\n{logs}"
        assert time.monotonic() < deadline, f"Grid Engine is not ready:\n{logs}"
        time.sleep(0.05)
