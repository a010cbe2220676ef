"""What a run sees of its machine."""

from __future__ import annotations

import json

from repro_env.schema import fingerprints
from tests.e2e import parts

OWN = """
import getpass, json, os, platform, pwd, resource, socket, sys, tempfile, time, uuid
made = tempfile.mkdtemp()
fields = ("Name", "Umask", "Tgid", "Pid", "PPid", "Uid", "Gid", "Groups", "NSpid", "Cap", "NoNewPrivs", "Seccomp:")
status = [line for line in open("/proc/self/status") if line.startswith(fields)]
print(json.dumps({
    "environ": dict(os.environ), "uname": platform.uname(), "host": [socket.gethostname(), socket.getfqdn(), platform.node()],
    "address": socket.gethostbyname(socket.gethostname()), "hostname": open("/etc/hostname").read(), "passwd": pwd.getpwuid(os.getuid()),
    "user": [getpass.getuser(), os.environ["USER"], os.environ["LOGNAME"]], "root": pwd.getpwnam("root").pw_uid,
    "pids": [os.getpid(), os.getppid(), os.getpgid(0), os.getsid(0)], "cwd": os.getcwd(), "argv": [sys.argv, sys.orig_argv, sys.path],
    "temporary": [tempfile.gettempdir(), made], "ids": [str(uuid.uuid4()), str(uuid.uuid1()), uuid.getnode()],
    "groups": os.getgroups(), "limits": [resource.getrlimit(number) for number in range(16)], "zone": time.tzname,
    "listed": {path: sorted(os.listdir(path)) for path in ("/", "/tmp", "/run", "/dev", os.path.expanduser("~"))},
    "status": status, "fds": sorted(os.listdir("/proc/self/fd")), "interfaces": socket.if_nameindex(),
}))
"""


def check_two_runs(project: parts.Project, runner: str) -> None:
    """Check that two users see the same machine and the same user in their runs."""
    seen = []
    for name in ("somebody", "else"):
        words = ("--runner", runner, "--determinism", "strict")
        done = project.run("exec", *words, "-c", OWN, env={"USER": name, "LOGNAME": name})
        assert "random IDs come from the seed" in done.err
        seen.append(json.loads(done.out))
        written = json.loads(project.run("runs", "show", "--json").out)
        assert written["start"]["ids"] == "seeded"
        assert written["end"]["system_randomness"] == []
        own = written["end"]["machine"]
        assert (own["host"], own["user"]) == (fingerprints.digest_of_name("repro-env"), fingerprints.digest_of_name("user"))
        assert (own["temporary"], own["home"]) == ("/tmp", seen[-1]["environ"]["HOME"])
        assert own["pids"] == seen[-1]["pids"][:1]
    first, second = seen
    assert first["environ"].pop("REPRO_ENV_RUN") != second["environ"].pop("REPRO_ENV_RUN")
    different = {name: (first[name], second[name]) for name in first if first[name] != second[name]}
    assert not different
    assert (first["address"], first["host"][0], first["user"]) == ("127.0.0.1", "repro-env", ["user"] * 3)
