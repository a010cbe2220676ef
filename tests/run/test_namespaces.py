"""What a run may do and see: users, capabilities, processes, interfaces."""

from __future__ import annotations

from pathlib import Path

from repro_env.model.run import Mount
from repro_env.run import idmap
from tests.run.conftest import Place


def test_nothing_can_gain_privileges(place: Place) -> None:
    ran = place.sh("cat /proc/self/status")
    facts = dict(line.split(":\t", 1) for line in ran.stdout.splitlines() if ":\t" in line)
    assert [int(facts[name], 16) for name in ("CapEff", "CapPrm", "CapBnd", "CapAmb", "CapInh")] == [0] * 5
    assert (facts["NoNewPrivs"], facts["Seccomp"]) == ("1", "2")


def test_the_caller_is_the_caller_with_a_name_and_a_home(place: Place) -> None:
    ran = place.python(
        "import getpass, os, pwd, grp; me = pwd.getpwuid(os.getuid());"
        "print(os.getuid(), os.getgid(), getpass.getuser(), me.pw_dir, grp.getgrgid(os.getgid()).gr_name, pwd.getpwnam('nobody').pw_uid)"
    )
    name = "ann" if place.uid else "root"
    assert ran.stdout.split() == [str(place.uid), str(place.uid), name, "/home/ann", name, "65534"]


def test_root_inside_is_an_unprivileged_user_outside_or_it_is_recorded(place: Place) -> None:
    script = "import os; print(open('/proc/self/uid_map').read().split(), os.stat('/data').st_uid, os.stat('.').st_uid)"
    shown = Mount(kind="data", source=str(place.root), target="/data")
    ran = place.python(script, mounts=[shown])
    if place.uid:
        assert "user: namespace" in ran.outcome.means
        return
    assert ran.stdout == f"['0', '{idmap.UID}', '1'] 0 0\n"
    assert f"user: namespace, uid 0 inside is uid {idmap.UID} outside" in ran.outcome.means
    # procfs has no idmapped mounts.
    refused = place.python(script, mounts=[Mount(kind="data", source="/proc/sys/kernel/random", target="/data")])
    assert refused.stdout == "['0', '0', '4294967295'] 0 0\n"
    assert "user: uid 0 inside is uid 0 outside (/proc/sys/kernel/random: Invalid argument)" in refused.outcome.means


def test_only_its_own_processes_are_there(place: Place) -> None:
    ran = place.python("import os; print(sorted(int(name) for name in os.listdir('/proc') if name.isdigit()), os.getpid())")
    assert ran.stdout == "[2] 2\n"


def test_loopback_works_and_there_is_no_other_network(place: Place) -> None:
    ran = place.python("""
import errno, socket
server = socket.create_server(("127.0.0.1", 0))
with socket.create_connection(server.getsockname(), timeout=5) as client:
    print(client.getpeername()[0])
print([name for _, name in socket.if_nameindex() if name == "lo" or not name.endswith("0")])
print(socket.gethostname(), socket.gethostbyname("inside"), socket.gethostbyname("localhost"))
try:
    socket.create_connection(("198.51.100.1", 80), timeout=5)
except OSError as error:
    print(errno.errorcode[error.errno])
print(open("/etc/resolv.conf").read() + "end")
""")
    lines = ran.stdout.splitlines()
    assert lines == ["127.0.0.1", "['lo']", "inside 127.0.0.1 127.0.0.1", "ENETUNREACH", "end"], ran.stderr


def test_with_network_the_interfaces_are_the_hosts(place: Place) -> None:
    ran = place.python("import socket; print(sorted(name for _, name in socket.if_nameindex()))", network=True)
    assert ran.stdout.strip() == str(sorted(path.name for path in Path("/sys/class/net").iterdir()))


def test_variables_are_exactly_those_of_the_launch(place: Place) -> None:
    ran = place.run("env")
    assert sorted(ran.stdout.splitlines()) == ["LC_ALL=C.UTF-8", "PATH=/srv/captured/venv/bin:/bin"]


def test_no_handle_of_the_host_is_passed_on(place: Place) -> None:
    ran = place.python(
        "import os; print([name for name in os.listdir('/proc/self/fd') if os.path.exists('/proc/self/fd/' + name)])"
    )
    assert ran.stdout == "['0', '1', '2']\n"


def test_the_callers_umask_is_kept(place: Place) -> None:
    ran = place.sh("umask", before=["sh", "-c", 'umask 0027; exec "$@"', "sh"])
    assert ran.stdout == "0027\n"


def test_the_kernels_own_switches_cannot_be_turned(place: Place) -> None:
    ran = place.sh("echo 1 > /proc/sys/kernel/panic || echo refused; echo 1 > /sys/kernel/mm/ksm/run || echo refused")
    assert ran.stdout == "refused\nrefused\n"
