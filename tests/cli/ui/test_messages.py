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


_TERMINAL = """
import os, sys, time
from repro_env.cli.ui import messages as say
say._DELAY = {delay}
say.set_level({level!r})

def wait(count):
    end = time.monotonic() + {patience}
    while len(getattr(say.Screen.drawn, "tasks", ())) < count and time.monotonic() < end:
        time.sleep(0.005)
    time.sleep(0.3)  # it is drawn ten times a second

with say.say.progress(100_000_000, "unpacking [torch] \\x1b]0;evil\\x07") as advance:
    advance(40_000_000)
    wait(1)
    say.say({markup!r} + " end" * 40)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    with say.say.progress(0, "comparing " + "x" * 200):
        wait(2)
    say.result({markup!r})
print("rich" in sys.modules)
"""


def _on_terminal(delay: float, level: str = "normal", patience: float = 0.1, /, **env: str) -> tuple[str, list[str]]:
    """Run `_TERMINAL` with a terminal as stderr. Returns everything that it wrote to the terminal, and the lines of stdout.

    `patience`: seconds to wait for the status line.
    """
    terminal, stderr = pty.openpty()
    code = _TERMINAL.format(delay=delay, markup=MARKUP, level=level, patience=patience)
    variables = {name: value for name, value in os.environ.items() if name != "CI"} | {"TERM": "xterm", "COLUMNS": "100"} | env
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=stderr, env=variables, text=True
    ) as process:
        os.close(stderr)
        output = io.BytesIO()
        try:
            while chunk := os.read(terminal, 4096):
                output.write(chunk)
        except OSError:  # the process closed its stderr
            pass
        os.close(terminal)
        stdout, _ = process.communicate()
    return output.getvalue().decode(), stdout.splitlines()


def test_tasks_are_at_the_end_of_a_terminal_and_are_removed() -> None:
    output, stdout = _on_terminal(0, "normal", 60, NO_COLOR="1")

    assert re.search(r"unpacking \[torch\] \\x1b\]0;evil\\x07 ━+╸? *40\.0 MB of 100\.0 MB 0:00:00", output)
    assert "\x1b]0;evil" not in output
    assert "\x1b[2K" + MARKUP + " end" * 40 + "\r\n" in output, "a message is a complete line above"
    assert "comparing" in output.partition(" end\r\n")[2], "the task is shown after stderr was redirected"
    assert "x" * 100 not in output, "a wrapped line would not be removed"
    assert "\x1b[?25l" not in output, "the cursor stays, because a process that is killed cannot show it again"
    assert output.endswith("\x1b[2K"), "nothing is left"
    assert stdout == [MARKUP, "True"]


@pytest.mark.parametrize(
    ("delay", "level", "env"), [(60, "normal", {}), (0, "normal", {"CI": "true"}), (0, "normal", {"TERM": "dumb"})]
)
def test_short_tasks_are_not_shown_and_none_in_ci(delay: float, level: str, env: dict[str, str]) -> None:
    assert _on_terminal(delay, level, **env) == (MARKUP + " end" * 40 + "\r\n", [MARKUP, "False"])


def test_no_task_is_shown_with_quiet() -> None:
    assert _on_terminal(0, "quiet") == ("", [MARKUP, "False"])


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
