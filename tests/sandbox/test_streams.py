"""The logs of a command without secrets, and its separate terminal."""

from __future__ import annotations

import contextlib
import os
import pty
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import pytest

from repro_env.sandbox import streams
from repro_env.sandbox.streams import Log
from tests.sandbox.conftest import REPOSITORY, Place, environ
from tests.sandbox.terminals import TERMINAL, read_until

HEAD = TAIL = 1 << 16
TOKEN = "hf_" + "Ab1" * 12


def text(directory: Path, *pieces: bytes, hidden: tuple[str, ...] = ()) -> str:
    log = Log(directory / "stdout.log", hidden)
    for piece in pieces:
        log.add(piece)
    log.close()
    return (directory / "stdout.log").read_bytes().decode()


def test_a_short_log_has_the_complete_output(tmp_path: Path) -> None:
    printed = "epoch 1 loss=0.5\n\x1b[31mred\x1b[0m 10%\r20%\ründ\nno end"
    pieces = [bytes([byte]) for byte in printed.encode()]
    assert text(tmp_path, *pieces) == printed
    assert text(tmp_path, b"of a terminal\r", b"\nnext\r\n") == "of a terminal\nnext\n"
    assert text(tmp_path, b"\xff\xfe bytes\n") == "\ufffd\ufffd bytes\n"
    assert text(tmp_path) == ""


def test_secrets_are_redacted_even_if_they_arrive_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "_PAUSE", 0)
    key = "-----BEGIN PRIVATE KEY-----\n" + "MIIEvQIBADANBgkqhkiG9w0BAQEFAASC\n" * 4 + "-----END PRIVATE KEY-----\n"
    printed = f"login {TOKEN} ok\npassword=correct-horse-7\nthe value of-this-very-run\n{key}after\n".encode()
    logged = ""
    for size in (7, 100, len(printed)):
        pieces = [printed[start : start + size] for start in range(0, len(printed), size)]
        logged = text(tmp_path, *pieces, hidden=("of-this-very-run",))
        for secret in (TOKEN, "correct-horse-7", "of-this-very-run"):
            assert secret not in logged
        assert logged.startswith("login <redacted> ok\n")
    assert "MIIEvQ" not in logged, "a secret of several lines must be found if it is printed at once"
    assert logged.endswith("after\n")


@pytest.mark.parametrize("piece", [1000, 1 << 20])
def test_a_long_log_keeps_both_ends_and_counts_the_omitted_bytes(
    tmp_path: Path, piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("HEAD", HEAD), ("TAIL", TAIL), ("_PIECE", 1 << 14), ("_LINE", 1 << 10)):
        monkeypatch.setattr(streams, name, value)
    lines = b"".join(b"line %07d\n" % number for number in range(100_000))
    logged = text(tmp_path, *(lines[start : start + piece] for start in range(0, len(lines), piece)))
    head, _, after = logged.partition("\n[repro-env: ")
    count, _, tail = after.partition(" bytes omitted]\n")
    assert lines.decode().startswith(head)
    assert lines.decode().endswith(tail)
    assert HEAD - 100 <= len(head) <= HEAD
    assert TAIL - 100 <= len(tail) <= 3 * TAIL
    assert abs(int(count.replace(",", "")) - (len(lines) - len(head) - len(tail))) < 200


def test_the_output_of_a_killed_command_is_logged(place: Place) -> None:
    result = place.sh(f"echo out {TOKEN}; echo of-this-very-run >&2; kill -KILL $$")
    assert (result.outcome.signal, result.stdout, result.stderr) == (9, f"out {TOKEN}\n", "of-this-very-run\n")
    assert (result.directory / "stdout.log").read_text() == "out <redacted>\n"
    assert (result.directory / "stderr.log").read_text() == "<redacted>\n"


@contextlib.contextmanager
def session(
    place: Place, script: str, *, pipe: bool = False, before: Sequence[str] = ()
) -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
    """Run a Python script as the leader of a terminal's session. With `pipe`, its stdout is a pipe. `before` starts the driver."""
    main, side = pty.openpty()
    command, _, _ = place.command(place.launch("python", "-uc", script))
    stdout = subprocess.PIPE if pipe else side
    line = [sys.executable, "-c", TERMINAL, *before, *command]
    driver = subprocess.Popen(line, cwd=REPOSITORY, env=environ(), stdin=side, stdout=stdout, stderr=side)
    os.close(side)
    try:
        yield main, driver
    finally:
        driver.kill()
        driver.wait()
        if driver.stdout:
            driver.stdout.close()
        os.close(main)


def test_a_terminal_has_a_name_in_the_run_and_passwords_are_not_echoed(place: Place) -> None:
    script = "import getpass, os; print(os.ttyname(0)); print('length', len(getpass.getpass('say: ')))"
    with session(place, script) as (main, driver):
        output = read_until(main, b"say: ")
        os.write(main, b"hidden\n")
        output += read_until(main, b"length 6")
        assert b"/dev/console\r\n" in output
        assert b"hidden" not in output
        assert driver.wait(60) == 0


def test_a_run_in_a_pipeline_writes_to_the_pipe_and_ends_with_one_ctrl_c(place: Place) -> None:
    script = "import os, sys, time; print([os.isatty(n) for n in (0, 1, 2)]); time.sleep(60)"
    with session(place, script, pipe=True) as (main, driver):
        assert driver.stdout
        assert driver.stdout.readline() == b"[True, False, True]\n"
        os.write(main, b"\x03")
        read_until(main, b"KeyboardInterrupt")
        assert driver.wait(60) == 0


def test_a_background_run_does_not_read_the_terminal(place: Place) -> None:
    """`repro-env exec ... &` in a shell: reading would stop the run."""
    script = "import time; time.sleep(0.5); print('done')"
    with session(place, script, before=["bash", "-c", 'set -m; "$@" & wait $!', "bash"]) as (main, driver):
        os.write(main, b"typed\n")
        read_until(main, b"done")
        assert driver.wait(60) == 0


ASK = "import msgspec, sys; from repro_env.sandbox import streams; open(sys.argv[1], 'wb').write(msgspec.json.encode(streams.of_caller()))"


def test_the_record_says_how_the_streams_of_the_caller_are_connected(tmp_path: Path) -> None:
    def ask(redirection: str, **options: int | bytes) -> dict[str, object]:
        line = ["sh", "-c", f'"$0" -c "$1" "$2" {redirection}', sys.executable, ASK, str(tmp_path / "answer")]
        subprocess.run(line, cwd=tmp_path, check=True, timeout=60, env={**os.environ, "PYTHONPATH": str(REPOSITORY)}, **options)  # type: ignore[call-overload]
        found = msgspec.json.decode((tmp_path / "answer").read_bytes())
        return {name: value for name, value in found.items() if value}

    null = {"stdin": "null", "stdout": "null", "stderr": "null"}
    assert ask("</dev/null >/dev/null 2>&1") == null, "/dev/null is not one log"
    joined = {"stdin": "file", "stdout": "file", "stderr": "file", "joined": True, "has_input": True}
    (tmp_path / "in").write_text("one line")
    assert ask("<in >out 2>&1") == joined
    assert ask("</dev/null >out 2>err") == {"stdin": "null", "stdout": "file", "stderr": "file"}
    assert ask(">/dev/null 2>&1", input=b"") == {**null, "stdin": "pipe"}
    assert ask(">/dev/null 2>&1", input=b"x") == {**null, "stdin": "pipe", "has_input": True}
