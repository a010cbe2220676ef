from __future__ import annotations

import io
import json
import os
import pty
import subprocess
import sys

import pytest

from repro_env.cli import say
from repro_env.model.errors import LockError
from repro_env.model.talk import Silent, Tell

MARKUP = "requires uvicorn[standard] and torch[cuda]==2.1 [/x] :smile: [link=x]"


def test_words_go_to_stderr_and_results_to_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    say.say("hello")
    say.tell("there")
    say.result("sha256:0123")

    assert capsys.readouterr() == ("sha256:0123\n", "hello\nthere\n")


def test_nothing_is_taken_for_markup(capsys: pytest.CaptureFixture[str]) -> None:
    say.say(MARKUP)
    say.result(MARKUP)
    say.error(LockError(MARKUP, where=MARKUP, hint=MARKUP))

    out, err = capsys.readouterr()
    assert out == MARKUP + "\n"
    assert err == f"{MARKUP}\nrepro-env: error: {MARKUP}: {MARKUP}\n  -> {MARKUP}\n"


def test_an_error_without_a_place_or_a_hint(capsys: pytest.CaptureFixture[str]) -> None:
    say.error(LockError("gave nothing"))

    assert capsys.readouterr().err == "repro-env: error: gave nothing\n"


def test_control_characters_are_spelled_out(capsys: pytest.CaptureFixture[str]) -> None:
    say.say("a\x1b[2Jb\rc\x9bd\udcff\te\nf é")

    assert capsys.readouterr().err == "a\\x1b[2Jb\\rc\\x9bd\\udcff\te\nf é\n"


def test_a_result_does_not_depend_on_the_locale() -> None:
    code = "from repro_env.cli import say; say.result('/home/\\xe9\\u03c0/spec.json')"
    env = {**os.environ, "PYTHONIOENCODING": "ascii"}

    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, check=True)

    assert done.stdout == "/home/éπ/spec.json\n".encode()


def test_a_result_that_nothing_can_hold_is_an_error_of_ours() -> None:
    code = "from repro_env.__main__ import main; import sys; sys.argv[1:] = ['--version']; main()"
    with open("/dev/full", "w") as full:  # noqa: PTH123 - a device
        done = subprocess.run([sys.executable, "-c", code], stdout=full, stderr=subprocess.PIPE, text=True, check=False)

    assert done.returncode == 13
    assert done.stderr.startswith("repro-env: error: standard output: cannot be written: No space left on device\n  -> ")


def test_one_json_object_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    say.json_result({"b": [1, "é\n"], "a": None})

    assert capsys.readouterr().out == '{"a":null,"b":[1,"é\\n"]}\n'


def test_a_table_is_aligned_and_has_no_trailing_space() -> None:
    rows = [("numpy", "2.3.5", ""), ("scikit-learn", "1.9.1", "edited"), ("x",)]

    assert say.table(rows, header=("name", "version", "note")).split("\n") == [
        "name          version  note",
        "numpy         2.3.5",
        "scikit-learn  1.9.1    edited",
        "x",
    ]
    assert say.table([]) == ""


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (999_949, "999.9 kB"),
        (999_950, "1.0 MB"),
        (1_400_000_000, "1.4 GB"),
        (2 * 10**15, "2000.0 TB"),
    ],
)
def test_sizes_for_people(count: int, text: str) -> None:
    assert say.size(count) == text


def test_levels(capsys: pytest.CaptureFixture[str]) -> None:
    printed = {}
    for level in ("quiet", "normal", "verbose"):
        say.Screen.level = level
        say.tell("line")
        say.tell.detail("detail")
        say.tell.warn("warning")
        with say.tell.progress(1_400_000_000, "unpacking [torch]") as advance:
            advance(1)
        say.error(LockError("error"))
        say.result("result")
        printed[level] = capsys.readouterr()
    error = "repro-env: error: error\n"
    assert {out for out, _ in printed.values()} == {"result\n"}
    assert printed["quiet"].err == f"warning\n{error}"
    assert printed["normal"].err == f"line\nwarning\n{error}"
    assert printed["verbose"].err == f"line\ndetail\nwarning\nunpacking [torch] (1.4 GB)\n{error}"


@pytest.mark.parametrize(("seconds", "text"), [(0.9, "0s"), (59.9, "59s"), (60, "1m 00s"), (80, "1m 20s"), (7500, "2h 05m")])
def test_durations_for_people(seconds: float, text: str) -> None:
    assert say.duration(seconds) == text


_TERMINAL = """
import os, sys, time
from repro_env.cli import say
say._PATIENCE, say._PERIOD = {patience}, 0.01
say.set_level({level!r})
with say.tell.progress(100_000_000, "unpacking [torch] \\x1b]0;evil\\x07") as advance:
    advance(40_000_000)
    time.sleep(0.1)
    say.say({markup!r} + " end" * 40)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    with say.tell.progress(0, "comparing " + "x" * 200):
        time.sleep(0.1)
"""


def _on_terminal(patience: float, level: str = "normal", **env: str) -> bytes:
    ours, theirs = pty.openpty()
    code = _TERMINAL.format(patience=patience, markup=MARKUP, level=level)
    variables = {name: value for name, value in os.environ.items() if name != "CI"} | {"TERM": "xterm"} | env
    with subprocess.Popen([sys.executable, "-c", code], stderr=theirs, env=variables):
        os.close(theirs)
        shown = io.BytesIO()
        try:
            while chunk := os.read(ours, 4096):
                shown.write(chunk)
        except OSError:  # the other end was closed
            pass
        os.close(ours)
    return shown.getvalue()


def test_tasks_in_progress_are_the_last_line_of_a_terminal_and_leave_nothing_there() -> None:
    shown = _on_terminal(0)

    assert "⠋ unpacking [torch] \\x1b]0;evil\\x07: 40.0 MB of 100.0 MB, 0s".encode() in shown
    assert b"\x1b]0;evil" not in shown
    assert b"\r\x1b[K" + MARKUP.encode() + b" end" * 40 + b"\r\n" in shown, "the line is above, whole and not wrapped"
    assert b" comparing xx" in shown, "although stderr leads elsewhere by then"
    assert b"x" * 80 not in shown, "a line that wraps cannot be removed"
    assert shown.endswith(b"\r\x1b[K")


@pytest.mark.parametrize(
    ("patience", "level", "env"), [(60, "normal", {}), (0, "normal", {"CI": "true"}), (0, "normal", {"TERM": "dumb"})]
)
def test_no_progress_of_what_is_quick_nor_under_ci(patience: float, level: str, env: dict[str, str]) -> None:
    assert _on_terminal(patience, level, **env) == MARKUP.encode() + b" end" * 40 + b"\r\n"


def test_no_progress_when_quiet() -> None:
    assert _on_terminal(0, "quiet") == b""


def test_silence(capsys: pytest.CaptureFixture[str]) -> None:
    tell: Tell = Silent()
    tell("hello")
    with tell.progress(10, "label") as advance:
        advance(10)

    assert capsys.readouterr() == ("", "")


def test_json_escapes_what_a_terminal_would_obey(capsys: pytest.CaptureFixture[str]) -> None:
    value = {"a\u009b31m": "\u202eb\x1b\x7f\u061c\u2066é\u2028"}
    say.json_result(value)

    text = capsys.readouterr().out
    assert text == '{"a\\u009b31m":"\\u202eb\\u001b\\u007f\\u061c\\u2066é\\u2028"}\n'
    assert json.loads(text) == value


def test_a_result_is_visible_too(capsys: pytest.CaptureFixture[str]) -> None:
    say.result("a\x1b[2J\u009b\u202e\u061cb")

    assert capsys.readouterr().out == "a\\x1b[2J\\x9b\\u202e\\u061cb\n"
