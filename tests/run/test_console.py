"""The log of what a command prints: whole where it is short, its two ends where it is long, and never a secret."""

from __future__ import annotations

from pathlib import Path

import pytest

from repro_env.run import console
from repro_env.run.console import Log
from tests.run.conftest import Place

HEAD = TAIL = 1 << 16
TOKEN = "hf_" + "Ab1" * 12


def text(folder: Path, *pieces: bytes, hidden: tuple[str, ...] = ()) -> str:
    log = Log(folder / "stdout.log", hidden)
    for piece in pieces:
        log.add(piece)
    log.close()
    assert not log.problem
    return (folder / "stdout.log").read_bytes().decode()


def test_a_short_log_is_what_was_printed(tmp_path: Path) -> None:
    printed = "epoch 1 loss=0.5\n\x1b[31mred\x1b[0m 10%\r20%\ründ\nno end"
    pieces = [bytes([byte]) for byte in printed.encode()]
    assert text(tmp_path, *pieces) == printed
    assert text(tmp_path, b"of a terminal\r", b"\nnext\r\n") == "of a terminal\nnext\n"
    assert text(tmp_path, b"\xff\xfe bytes\n") == "\ufffd\ufffd bytes\n"
    assert text(tmp_path) == ""


def test_secrets_are_taken_out_also_where_they_come_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "_PAUSE", 0)
    monkeypatch.setattr(console, "_REST", 0)
    key = "-----BEGIN PRIVATE KEY-----\n" + "MIIEvQIBADANBgkqhkiG9w0BAQEFAASC\n" * 4 + "-----END PRIVATE KEY-----\n"
    printed = f"login {TOKEN} ok\npassword=correct-horse-7\nthe value of-this-very-run\n{key}after\n".encode()
    found = ""
    for size in (7, 100, len(printed)):
        pieces = [printed[start : start + size] for start in range(0, len(printed), size)]
        found = text(tmp_path, *pieces, hidden=("of-this-very-run",))
        for secret in (TOKEN, "correct-horse-7", "of-this-very-run"):
            assert secret not in found
        assert found.startswith("login <redacted> ok\n")
    assert "MIIEvQ" not in found, "what is printed at once is searched at once"
    assert found.endswith("after\n")


@pytest.mark.parametrize("piece", [1000, 1 << 20])
def test_of_a_long_log_the_two_ends_are_kept_and_the_rest_is_counted(
    tmp_path: Path, piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("HEAD", HEAD), ("TAIL", TAIL), ("_PIECE", 1 << 14), ("_LINE", 1 << 10)):
        monkeypatch.setattr(console, name, value)
    lines = b"".join(b"line %07d\n" % number for number in range(100_000))
    found = text(tmp_path, *(lines[start : start + piece] for start in range(0, len(lines), piece)))
    head, _, rest = found.partition("\n[repro-env: ")
    count, _, tail = rest.partition(" bytes are left out here]\n")
    assert lines.decode().startswith(head)
    assert lines.decode().endswith(tail)
    assert HEAD - 100 <= len(head) <= HEAD
    assert TAIL - 100 <= len(tail) <= TAIL
    assert abs(int(count.replace(",", "")) - (len(lines) - len(head) - len(tail))) < 200


def test_the_console_of_a_command_is_kept_however_it_ends(place: Place) -> None:
    ran = place.sh(f"echo out {TOKEN}; echo of-this-very-run >&2; kill -KILL $$")
    assert (ran.outcome.signal, ran.stdout, ran.stderr) == (9, f"out {TOKEN}\n", "of-this-very-run\n")
    assert (ran.folder / "stdout.log").read_text() == "out <redacted>\n"
    assert (ran.folder / "stderr.log").read_text() == "<redacted>\n"
