"""The embedded runner from outside: codes, what is missing, what starves."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from repro_env.model.run import Mount, User
from tests.fakes import rootfs
from tests.parts import need
from tests.run.conftest import Place, open_place


def test_the_command_runs_and_its_code_passes_through(place: Place) -> None:
    ran = place.sh("echo out; echo err >&2; exit 7")
    assert (ran.stdout, ran.stderr) == ("out\n", "err\n")
    assert (ran.outcome.exit_code, ran.outcome.signal, ran.outcome.isolation) == (7, 0, "embedded")
    assert ran.outcome.means[:2] == ("root: overlay", "workspace: overlay")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGKILL, 137), (signal.SIGSEGV, 139), (signal.SIGTERM, 143)])
def test_a_signal_that_ends_the_command_becomes_its_code(place: Place, number: int, code: int) -> None:
    ran = place.sh(f"kill -{int(number)} $$")
    assert (ran.outcome.exit_code, ran.outcome.signal, ran.outcome.out_of_memory) == (code, number, False)


def test_stdin_is_the_callers(place: Place) -> None:
    assert place.run("cat", stdin="through\n").stdout == "through\n"


def test_a_closed_pipe_ends_a_writer_as_everywhere(place: Place) -> None:
    """Python ignores SIGPIPE; a program that it starts must not."""
    assert place.sh("{ while :; do echo y; done; } | cat /dev/null; echo $?").stdout == "0\n"


@pytest.mark.parametrize(
    ("argv", "error", "words"),
    [
        (["no-such-command"], "CommandMissingError", ["no-such-command", f"{rootfs.PREFIX}/bin:/bin"]),
        (["/no/such/command"], "CommandMissingError", ["/no/such/command"]),
        (["no-interpreter"], "RunError", [f"{rootfs.PREFIX}/bin/no-interpreter", "first line"]),
        ([f"{rootfs.PREFIX}/bin/plain"], "RunError", ["not executable"]),
        ([f"{rootfs.PREFIX}/bin"], "RunError", ["not executable"]),
    ],
)
def test_a_command_that_cannot_start_is_named(place: Place, argv: list[str], error: str, words: list[str]) -> None:
    ran = place.run(*argv)
    assert ran.answer.error == error
    for word in words:
        assert word in ran.answer.message
    assert sorted(path.name for path in ran.folder.iterdir()) == ["files", "stderr.log", "stdout.log"]


def test_a_working_directory_that_is_not_there_is_named(place: Place) -> None:
    ran = place.run("ls", cwd="/srv/captured/project/nowhere")
    assert ran.answer.error == "RunError"
    assert "/srv/captured/project/nowhere" in ran.answer.message


def test_data_that_is_not_there_is_named(place: Place) -> None:
    ran = place.run("ls", mounts=[Mount(kind="data", source="/no/such/data", target="/data")])
    assert (ran.answer.error, "/no/such/data" in ran.answer.message) == ("DataError", True)


@pytest.mark.parametrize("target", ["/proc", "/dev"])
def test_what_every_program_needs_is_not_hidden(place: Place, target: str) -> None:
    ran = place.run("ls", mounts=[Mount(kind="data", source=str(place.runs), target=target)])
    assert (ran.answer.error, target in ran.answer.message) == ("RunError", True)


def test_somebody_else_cannot_be_had(place: Place) -> None:
    ran = place.run("ls", user=User(uid=place.uid + 1, gid=place.uid, name="x", home="/home/x"))
    assert ran.answer.error == "RunError"


def test_a_layer_that_is_not_in_the_store_is_named(place: Place) -> None:
    ran = place.run("ls", layers=(rootfs.digest(1), rootfs.digest(404)))
    assert (ran.answer.error, rootfs.digest(404) in ran.answer.message) == ("StoreError", True)


def test_orphans_are_reaped_and_what_is_left_ends_with_the_command(place: Place) -> None:
    ran = place.python("""
import os, time
for _ in range(3):
    if os.fork() == 0:
        if os.fork() == 0:
            time.sleep(0.05); os._exit(0)  # its parent is gone by then: init gets it
        os._exit(0)
    os.wait()
deadline = time.monotonic() + 60
while time.monotonic() < deadline and len([n for n in os.listdir("/proc") if n.isdigit()]) > 1: time.sleep(0.01)
print(sorted(n for n in os.listdir("/proc") if n.isdigit()))
if os.fork() == 0:
    os.setsid(); time.sleep(600)
""")
    assert ran.stdout == "['2']\n"
    assert ran.outcome.exit_code == 0


def test_out_of_memory_is_told_where_a_control_group_tells_it(stores: Callable[[int], Path]) -> None:
    need(os.getuid() == 0, "uid 0, to make a control group")
    with open_place(stores(0), 0) as place:
        _starves(place)


def _starves(place: Place) -> None:
    root = Path("/sys/fs/cgroup")
    group = (
        next((path for path in (root / "memory", root) if (path / "cgroup.procs").exists()), root)
        / f"repro-env-test-{secrets.token_hex(4)}"
    )
    try:
        group.mkdir()
    except OSError:
        need(False, "a control group for memory that can be made here (uid 0)")
    try:
        limit = next((group / name for name in ("memory.limit_in_bytes", "memory.max") if (group / name).exists()), None)
        need(limit, "the memory controller of control groups")
        assert limit
        limit.write_text(str(200 << 20))
        # Where there is swap, all of it would fit otherwise.
        for name, text in (("memory.swap.max", "0"), ("memory.memsw.limit_in_bytes", str(200 << 20))):
            if (group / name).exists():
                (group / name).write_text(text)
        into = f'echo $$ > "{group}/cgroup.procs"; exec "$@"'
        ran = place.python("x = [bytearray(b'1') * (1 << 20) for _ in range(1000)]", before=["sh", "-c", into, "sh"])
        assert (ran.outcome.exit_code, ran.outcome.signal, ran.outcome.out_of_memory) == (137, signal.SIGKILL, True)
    finally:
        _remove_group(group)


def _remove_group(group: Path) -> None:
    """A killed process leaves its control group only when the kernel has given back its memory."""
    deadline = time.monotonic() + 100
    while group.exists() and time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            group.rmdir()
        time.sleep(0.05)
    assert not group.exists()


def test_streams_can_be_opened_by_name_and_a_file_keeps_what_it_held(place: Place) -> None:
    """`tee /dev/stderr` is usual in scripts; a run must not read what a log had in it before."""
    log = place.runs / "log"
    log.write_text("before\n")
    place.own(log)
    kinds = "import os, stat; print([stat.S_ISREG(os.fstat(stream).st_mode) for stream in (1, 2)])"
    script = f"echo one; echo two > /dev/stderr; python -c '{kinds}'; echo three > /dev/stdout"
    ran = place.sh(script, before=["sh", "-c", f'exec "$@" >> "{log}" 2>&1', "sh"])
    assert ran.outcome.exit_code == 0
    assert log.read_text().splitlines() == ["before", "one", "two", "[False, False]", "three"]
    ran = place.sh("echo out > /dev/stdout; echo error > /dev/stderr", before=["sh", "-c", '"$@" 2>&1 | cat', "sh"])
    assert ran.stdout == "out\nerror\n"


def test_root_inside_unpacks_archives_of_other_owners(place: Place) -> None:
    ran = place.python("import os; open('file', 'w').close(); os.chown('file', 12345, 12345)")
    assert (ran.outcome.exit_code == 0) == (place.uid == 0), "as outside: only root may"


def test_what_root_could_not_use_inside_is_named_before_the_run(stores: Callable[[int], Path]) -> None:
    need(os.getuid() == 0, "uid 0, to run as root")
    with open_place(stores(0), 0) as place:
        folder = place.runs / "data"
        folder.mkdir()
        (folder / "private").write_text("numbers\n")
        (folder / "private").chmod(0o600)
        assert (
            place.sh("cat /data/private", mounts=[Mount(kind="data", source=str(folder), target="/data")]).stdout == "numbers\n"
        )
        os.chown(folder / "private", 12345, 12345)
        for kind in ("data", "checkpoints"):
            ran = place.sh("cat /data/private", mounts=[Mount(kind=kind, source=str(folder), target="/data")])
            assert ran.answer.error == "DataError"
            assert "private: cannot be" in ran.answer.message
            assert "uid 12345" in ran.answer.message
