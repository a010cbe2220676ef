"""Logs of a command's output: complete if short, otherwise the beginning and the end, and always without secrets."""

from __future__ import annotations

from pathlib import Path

import pytest

from repro_env.sandbox import console
from repro_env.sandbox.console import Log
from tests.sandbox.conftest import Place

HEAD = TAIL = 1 << 16
TOKEN = "hf_" + "Ab1" * 12


def text(directory: Path, *pieces: bytes, hidden: tuple[str, ...] = ()) -> str:
    log = Log(directory / "stdout.log", hidden)
    for piece in pieces:
        log.add(piece)
    log.close()
    assert not log.problem
    return (directory / "stdout.log").read_bytes().decode()


def test_a_short_log_has_the_complete_output(tmp_path: Path) -> None:
    printed = "epoch 1 loss=0.5\n\x1b[31mred\x1b[0m 10%\r20%\ründ\nno end"
    pieces = [bytes([byte]) for byte in printed.encode()]
    assert text(tmp_path, *pieces) == printed
    assert text(tmp_path, b"of a terminal\r", b"\nnext\r\n") == "of a terminal\nnext\n"
    assert text(tmp_path, b"\xff\xfe bytes\n") == "\ufffd\ufffd bytes\n"
    assert text(tmp_path) == ""


def test_secrets_are_redacted_even_if_they_arrive_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "_PAUSE", 0)
    monkeypatch.setattr(console, "_PAUSE_FACTOR", 0)
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
        monkeypatch.setattr(console, name, value)
    lines = b"".join(b"line %07d\n" % number for number in range(100_000))
    logged = text(tmp_path, *(lines[start : start + piece] for start in range(0, len(lines), piece)))
    head, _, after = logged.partition("\n[repro-env: ")
    count, _, tail = after.partition(" bytes omitted]\n")
    assert lines.decode().startswith(head)
    assert lines.decode().endswith(tail)
    assert HEAD - 100 <= len(head) <= HEAD
    assert TAIL - 100 <= len(tail) <= TAIL
    assert abs(int(count.replace(",", "")) - (len(lines) - len(head) - len(tail))) < 200


def test_the_output_of_a_killed_command_is_logged(place: Place) -> None:
    result = place.sh(f"echo out {TOKEN}; echo of-this-very-run >&2; kill -KILL $$")
    assert (result.outcome.signal, result.stdout, result.stderr) == (9, f"out {TOKEN}\n", "of-this-very-run\n")
    assert (result.directory / "stdout.log").read_text() == "out <redacted>\n"
    assert (result.directory / "stderr.log").read_text() == "<redacted>\n"
