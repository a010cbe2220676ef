from __future__ import annotations

import io
import json
import os
import pty
import re
import subprocess
import sys

import pytest

from repro_env.cli.ui import messages
from repro_env.schema.errors import LockError
from repro_env.schema.progress import Silent, Tell

MARKUP = "requires uvicorn[standard] and torch[cuda]==2.1 [/x] :smile: [link=x]"


def test_messages_are_printed_on_stderr_and_results_on_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    messages.say("hello")
    messages.result("sha256:0123")

    assert capsys.readouterr() == ("sha256:0123\n", "hello\n")


def test_markup_is_printed_unchanged(capsys: pytest.CaptureFixture[str]) -> None:
    messages.say(MARKUP)
    messages.result(MARKUP)
    messages.error(LockError(MARKUP, where=MARKUP, hint=MARKUP))

    out, err = capsys.readouterr()
    assert out == MARKUP + "\n"
    assert err == f"{MARKUP}\nrepro-env: error: {MARKUP}: {MARKUP}\n  -> {MARKUP}\n"


def test_an_error_without_a_location_and_a_hint_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    messages.error(LockError("gave nothing"))

    assert capsys.readouterr().err == "repro-env: error: gave nothing\n"


def test_control_characters_in_messages_are_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    messages.say("a\x1b[2Jb\rc\x9bd\udcff\te\nf é")

    assert capsys.readouterr().err == "a\\x1b[2Jb\\rc\\x9bd\\udcff\te\nf é\n"


def test_a_result_does_not_depend_on_the_locale() -> None:
    code = "from repro_env.cli.ui import messages as say; say.result('/home/\\xe9\\u03c0/spec.json')"
    env = {**os.environ, "PYTHONIOENCODING": "ascii"}

    process = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, check=True)

    assert process.stdout == "/home/éπ/spec.json\n".encode()


def test_a_result_that_cannot_be_written_is_a_disk_error() -> None:
    code = "from repro_env.__main__ import main; import sys; sys.argv[1:] = ['--version']; main()"
    with open("/dev/full", "w") as full:  # noqa: PTH123 - a device
        process = subprocess.run([sys.executable, "-c", code], stdout=full, stderr=subprocess.PIPE, text=True, check=False)

    assert process.returncode == 13
    assert process.stderr.startswith("repro-env: error: standard output cannot be written: No space left on device\n  -> ")


def test_a_json_result_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    messages.json_result({"b": [1, "é\n"], "a": None})

    assert capsys.readouterr().out == '{"a":null,"b":[1,"é\\n"]}\n'


def test_a_table_is_aligned_and_has_no_trailing_space() -> None:
    rows = [("numpy", "2.3.5", ""), ("scikit-learn", "1.9.1", "edited"), ("x",)]

    assert messages.table(rows, header=("name", "version", "note")).split("\n") == [
        "name          version  note",
        "numpy         2.3.5",
        "scikit-learn  1.9.1    edited",
        "x",
    ]
    assert messages.table([]) == ""


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
def test_a_size_has_a_decimal_unit(count: int, text: str) -> None:
    assert messages.size(count) == text


def test_the_level_selects_the_messages(capsys: pytest.CaptureFixture[str]) -> None:
    printed = {}
    for level in ("quiet", "normal", "verbose"):
        messages.Screen.level = level
        messages.say("line")
        messages.say.detail("detail")
        messages.say.warn("warning")
        with messages.say.progress(1_400_000_000, "unpacking [torch]") as advance:
            advance(1)
        messages.error(LockError("error"))
        messages.result("result")
        printed[level] = capsys.readouterr()
    error = "repro-env: error: error\n"
    assert {out for out, _ in printed.values()} == {"result\n"}
    assert printed["quiet"].err == f"warning\n{error}"
    assert printed["normal"].err == f"line\nwarning\n{error}"
    assert printed["verbose"].err == f"line\ndetail\nwarning\nunpacking [torch] (1.4 GB)\n{error}"


@pytest.mark.parametrize(("seconds", "text"), [(0.9, "0s"), (59.9, "59s"), (60, "1m 00s"), (80, "1m 20s"), (7500, "2h 05m")])
def test_a_duration_has_units(seconds: float, text: str) -> None:
    assert messages.duration(seconds) == text


_TERMINAL = """
import os, sys, time
from repro_env.cli.ui import messages as say
say._DELAY, say._PERIOD = {delay}, 0.01
say.set_level({level!r})
frames, text = [], say._Task.text
say._Task.text = lambda task: frames.append(task) or text(task)

def wait():
    count, end = len(frames), time.monotonic() + {patience}
    while len(frames) < count + 2 and time.monotonic() < end:  # when the second frame starts, the first one is complete
        time.sleep(0.005)

with say.say.progress(100_000_000, "unpacking [torch] \\x1b]0;evil\\x07") as advance:
    advance(40_000_000)
    wait()
    say.say({markup!r} + " end" * 40)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    with say.say.progress(0, "comparing " + "x" * 200):
        wait()
"""


def _on_terminal(delay: float, level: str = "normal", patience: float = 0.1, /, **env: str) -> bytes:
    """Run `_TERMINAL` with a terminal as stderr. Returns everything that it wrote to the terminal.

    `patience`: seconds to wait for the status line.
    """
    terminal, stderr = pty.openpty()
    code = _TERMINAL.format(delay=delay, markup=MARKUP, level=level, patience=patience)
    variables = {name: value for name, value in os.environ.items() if name != "CI"} | {"TERM": "xterm"} | env
    with subprocess.Popen([sys.executable, "-c", code], stderr=stderr, env=variables):
        os.close(stderr)
        output = io.BytesIO()
        try:
            while chunk := os.read(terminal, 4096):
                output.write(chunk)
        except OSError:  # the process closed its stderr
            pass
        os.close(terminal)
    return output.getvalue()


def test_the_status_line_is_the_last_line_of_a_terminal_and_is_removed() -> None:
    output = _on_terminal(0, "normal", 60)

    assert re.search(r"[⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏] unpacking \[torch\] \\x1b\]0;evil\\x07: 40\.0 MB of 100\.0 MB, \d+s", output.decode())
    assert b"\x1b]0;evil" not in output
    assert b"\r\x1b[K" + MARKUP.encode() + b" end" * 40 + b"\r\n" in output, "a message is a complete line above"
    assert b" comparing xx" in output, "the status line is shown after stderr was redirected"
    assert b"x" * 80 not in output, "the status line must not wrap, because a wrapped line cannot be removed"
    assert output.endswith(b"\r\x1b[K")


@pytest.mark.parametrize(
    ("delay", "level", "env"), [(60, "normal", {}), (0, "normal", {"CI": "true"}), (0, "normal", {"TERM": "dumb"})]
)
def test_there_is_no_status_line_for_short_tasks_and_in_ci(delay: float, level: str, env: dict[str, str]) -> None:
    assert _on_terminal(delay, level, **env) == MARKUP.encode() + b" end" * 40 + b"\r\n"


def test_there_is_no_status_line_with_quiet() -> None:
    assert _on_terminal(0, "quiet") == b""


def test_silent_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    tell: Tell = Silent()
    tell("hello")
    with tell.progress(10, "label") as advance:
        advance(10)

    assert capsys.readouterr() == ("", "")


def test_control_characters_in_json_are_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    value = {"a\u009b31m": "\u202eb\x1b\x7f\u061c\u2066é\u2028"}
    messages.json_result(value)

    text = capsys.readouterr().out
    assert text == '{"a\\u009b31m":"\\u202eb\\u001b\\u007f\\u061c\\u2066é\\u2028"}\n'
    assert json.loads(text) == value


def test_control_characters_in_results_are_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    messages.result("a\x1b[2J\u009b\u202e\u061cb")

    assert capsys.readouterr().out == "a\\x1b[2J\\x9b\\u202e\\u061cb\n"
