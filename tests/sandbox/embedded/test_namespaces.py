"""What a run may see and do: users, capabilities, processes, interfaces."""

from __future__ import annotations

from repro_env.sandbox.embedded import idmap
from repro_env.schema.run import Mount
from tests.sandbox.conftest import Place


def test_a_run_has_no_capabilities_and_cannot_gain_any(place: Place) -> None:
    result = place.sh("cat /proc/self/status")
    facts = dict(line.split(":\t", 1) for line in result.stdout.splitlines() if ":\t" in line)
    assert [int(facts[name], 16) for name in ("CapEff", "CapPrm", "CapBnd", "CapAmb", "CapInh")] == [0] * 5
    assert (facts["NoNewPrivs"], facts["Seccomp"]) == ("1", "2")


def test_root_in_a_run_is_an_unprivileged_user_on_the_host_or_the_record_says_so(place: Place) -> None:
    script = "import os; print(open('/proc/self/uid_map').read().split(), os.stat('/data').st_uid, os.stat('.').st_uid)"
    result = place.python(script, mounts=[Mount(kind="data", source=str(place.root), target="/data")])
    if place.uid:
        assert "user: namespace" in result.outcome.methods
        return
    assert result.stdout == f"['0', '{idmap.UID}', '1'] 0 0\n"
    assert f"user: namespace, uid 0 in the run is uid {idmap.UID} on the host" in result.outcome.methods
    # procfs does not support idmapped mounts.
    refused = place.python(script, mounts=[Mount(kind="data", source="/proc/sys/kernel/random", target="/data")])
    assert refused.stdout == "['0', '0', '4294967295'] 0 0\n"
    assert "user: uid 0 in the run is uid 0 on the host (/proc/sys/kernel/random: Invalid argument)" in refused.outcome.methods


def test_without_network_only_loopback_works(place: Place) -> None:
    result = place.python("""
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
    lines = result.stdout.splitlines()
    assert lines == ["127.0.0.1", "['lo']", "inside 127.0.0.1 127.0.0.1", "ENETUNREACH", "end"], result.stderr


def test_the_command_has_the_umask_of_the_caller(place: Place) -> None:
    result = place.sh("umask", before=["sh", "-c", 'umask 0027; exec "$@"', "sh"])
    assert result.stdout == "0027\n"
