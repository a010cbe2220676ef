"""Dockerfile instructions: a builder reads the exact values of a spec; values that do not fit into a line are refused."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repro_env.delivery.dockerfile import instruction
from repro_env.delivery.dockerfile.instruction import Command, Copy, From, Instruction, Run, Set, Workdir
from repro_env.schema.errors import SpecError

NASTY = {
    "double quote": 'a"b',
    "closing quote and instruction": '" && RUN ["rm"]',
    "single quote": "a'b",
    "both quotes": "'\"'\"",
    "variable": "$HOME",
    "variable in braces": "${PATH}",
    "default of a variable": "${x:-y}",
    "assignment by variable": "${x:=y}",
    "argument": "${BUILDPLATFORM}",
    "escaped variable": "\\$HOME",
    "twice escaped variable": "\\\\$HOME",
    "command": "$(id)",
    "backquotes": "`id`",
    "trailing backslash": "a\\",
    "two trailing backslashes": "a\\\\",
    "backslash and spaces": "a\\   ",
    "only a backslash": "\\",
    "escaped newline by name": "a\\nRUN id",
    "heredoc": "<<EOF",
    "stripping heredoc": "<<-EOF",
    "heredoc with a number": "2<<EOF",
    "quoted heredoc": '<<"EOF"',
    "directive": "# syntax=docker/dockerfile:1",
    "escape directive": "# escape=`",
    "comment": "#not a comment",
    "spaces": "  a  b  ",
    "equals": "A=B C=D",
    "another variable": "a B=c",
    "flag": "--from=other",
    "JSON": '["a", "b"]',
    "JSON escape": "\\u0022",
    "wildcards": "*?[a-z]{x}",
    "umlauts": "ä€",
    "beyond the plane": "\U0001f600",
    "tilde and bang": "~!%^&|;",
    "Windows path": "C:\\a\\b",
    "empty": "",
}
"""Values that a builder must not change."""
UNSAYABLE = {
    "newline": "a\nRUN id",
    "carriage return": "a\rRUN id",
    "both": "a\r\nRUN id",
    "continued newline": "a\\\nRUN id",
    "vertical tab": "a\vb",
    "form feed": "a\fb",
    "zero": "a\0b",
    "tab": "a\tb",
    "escape": "a\x1b[2Jb",
    "delete": "a\x7fb",
    "next line": "a\x85RUN id",
    "line separator": "a\u2028RUN id",
    "paragraph separator": "a\u2029RUN id",
    "file separator": "a\x1cRUN id",
    "right to left": "a\u202eb",
    "zero width": "a\u200bb",
    "byte order mark": "\ufeffa",
    "no-break space": "a\u00a0b",
    "half a character": "a\ud800b",
}


@pytest.mark.parametrize("value", NASTY.values(), ids=NASTY)
def test_a_value_is_read_back_unchanged(value: str) -> None:
    setting = Set("ENV", "NAME", value)
    text = instruction.line(setting)
    assert "\n" not in text
    assert not text.endswith("\\")
    assert expanded(text.removeprefix("ENV NAME=")) == value
    assert instruction.parse(text) == [setting]


@pytest.mark.parametrize(
    "value", [value for value in NASTY.values() if value], ids=[name for name, item in NASTY.items() if item]
)
def test_a_word_of_a_command_is_read_back_unchanged(value: str) -> None:
    run = Run(("/usr/bin/python", value))
    text = instruction.line(run)
    assert text.isascii()
    assert "<<" not in text  # BuildKit looks for heredocs in the raw line
    assert json.loads(text.removeprefix("RUN ")) == ["/usr/bin/python", value]
    assert instruction.parse(text) == [run]


@pytest.mark.parametrize("value", UNSAYABLE.values(), ids=UNSAYABLE)
def test_values_that_do_not_fit_into_a_line_are_refused(value: str) -> None:
    for bad in (
        Set("ENV", "NAME", value),
        Set("LABEL", "name", value),
        Run(("/bin/x", value)),
        Command(("/bin/x", value)),
        Copy((value,), "/"),
        Workdir(value),
    ):
        with pytest.raises(SpecError) as caught:
            instruction.line(bad)
        assert str(caught.value).isprintable()


@pytest.mark.parametrize("value", NASTY.values(), ids=NASTY)
def test_only_plain_paths_are_accepted(value: str) -> None:
    """COPY and ADD expand variables and wildcards even in the JSON form."""
    for one in (
        Copy((value,), "/"),
        Copy(("a",), value),
        Copy(("a",), "/", value + " "),
        Workdir(value),
        From(value + "$"),
        From("a", value + " "),
    ):
        with pytest.raises(SpecError):
            instruction.line(one)


@pytest.mark.parametrize("name", ["", "A B", "A=B", "A\nRUN", "$A", "1A", 'A"', "A\\", "Ä"])
def test_only_valid_names_are_accepted(name: str) -> None:
    with pytest.raises(SpecError):
        instruction.line(Set("ENV", name, "x"))


def test_other_instructions_are_refused() -> None:
    for word in ("RUN", "ENV x", "env", ""):
        with pytest.raises(SpecError):
            instruction.line(Set(word, "A", "b"))
    with pytest.raises(SpecError):
        instruction.line(Run(()))


@given(st.lists(st.text(st.characters(exclude_categories=("Cc", "Cs")), max_size=30), min_size=1, max_size=4))
def test_any_text_is_read_back_or_refused(words: list[str]) -> None:
    for item in (Run(tuple(words)), Set("ENV", "A", words[0])):
        try:
            text = instruction.line(item)
        except SpecError:
            continue
        assert instruction.parse(text) == [item]
        if isinstance(item, Set):
            assert expanded(text.removeprefix("ENV A=")) == item.value


@pytest.mark.parametrize(
    "text",
    [
        "RUN id",
        "RUN sh -c id",
        'RUN ["id"] ',
        ' RUN ["id"]',
        'RUN ["id" , "x"]',
        "RUN ['id']",
        "RUN []",
        'RUN [["id"]]',
        'run ["id"]',
        'RUN ["id"] \\',
        "RUN <<EOF",
        "COPY a b",
        'COPY --chown=1 ["a", "b"]',
        'COPY ["$a", "b"]',
        'ADD ["https://example.com/x", "/"]',
        "ENV A=b",
        "ENV A b",
        'ENV A="$b"',
        'ENV A="b" B="c"',
        'ENV A="b\\c"',
        "# syntax=docker/dockerfile:1",
        "#escape=`",
        "ARG A",
        "ENTRYPOINT []",
        "CMD x",
        "USER root",
        "FROM scratch AS a b",
        "FROM --platform=linux/arm64 scratch",
        "FROM python:3.11",
        "ONBUILD RUN id",
        'SHELL ["/bin/sh"]',
        "VOLUME /x",
        "MAINTAINER x",
        "WORKDIR $HOME",
        'RUN ["a\u2028b"]',
    ],
)
def test_only_our_own_output_is_parsed(text: str) -> None:
    with pytest.raises(SpecError):
        instruction.parse(text)


def test_a_complete_file_is_parsed() -> None:
    wanted: list[Instruction] = [
        From("scratch", "base"),
        Copy(("blobs/a.gz",), "/", unpack=True),
        From("base"),
        Copy(("x/",), "/", "base"),
        Run(("/bin/x", "<a> & 'b'")),
        Set("LABEL", "io.example.x", "y"),
        Workdir("/"),
    ]
    text = "# Comment\n#\n\n" + "\n".join(map(instruction.line, wanted)) + "\n"
    assert instruction.parse(text) == wanted


def expanded(text: str) -> str:
    """Expand a word of ENV like BuildKit (`shell.Lex`): in double quotes, `\\` escapes `"`, `$` and itself."""
    assert text[0] == text[-1] == '"'
    inner = text[1:-1]
    assert re.fullmatch(r'(?:[^"\\$]|\\["\\$])*', inner), "a quote ends too early, or a variable is expanded"
    return re.sub(r'\\(["\\$])', r"\1", inner)
