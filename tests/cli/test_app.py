from __future__ import annotations

import contextlib
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import typer

from repro_env.cli import app, say
from repro_env.model.errors import UsageError


@pytest.mark.parametrize(
    ("words", "said", "hint"),
    [
        (
            "verify --al",
            "repro-env verify: no such option: --al",
            "usage: repro-env verify [OPTIONS] [RUN]; `repro-env verify --help`",
        ),
        ("runs tag", "repro-env runs tag: missing argument", "`repro-env runs tag --help` says more"),
        ("capturee", "No such command 'capturee'", "`repro-env --help` says more"),
        ("runs lisst", "repro-env runs: no such command 'lisst'. Did you mean 'list'?", "`repro-env runs --help` says more"),
        ("lineage a b", "repro-env lineage: got unexpected extra argument", "`repro-env lineage --help`"),
        ("store gc --keep-days", "requires an argument", "--help`"),
    ],
)
def test_what_the_parser_refuses_is_told_like_all_our_errors(
    words: str, said: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert app.run(words.split()) == 2
    out, err = capsys.readouterr()
    first, second = err.splitlines()
    assert out == ""
    assert first.startswith("repro-env: error: ")
    assert said.lower() in first.lower()
    assert second.startswith("  -> ")
    assert hint in second


def test_a_secret_in_a_refused_word_is_not_repeated(capsys: pytest.CaptureFixture[str]) -> None:
    assert app.run(["show", "a", "https://ann:hunter2secret@example.org/x"]) == 2
    assert "hunter2secret" not in capsys.readouterr().err


@pytest.mark.parametrize("words", [[], ["runs"], ["store"], ["image"]])
def test_a_group_without_a_command_shows_its_help(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert app.run(words) == 2
    assert capsys.readouterr().err.startswith(f"Usage: {' '.join(['repro-env', *words])} [OPTIONS] COMMAND")


def commands(found: Any, words: tuple[str, ...] = ()) -> Iterator[Any]:
    """Every command and every group."""
    yield pytest.param(found, id=" ".join(words))
    for name, below in getattr(found, "commands", {}).items():
        yield from commands(below, (*words, name))


@pytest.mark.parametrize("command", list(commands(app.parser(None))))
def test_every_command_can_be_quiet_or_verbose(command: Any, capsys: pytest.CaptureFixture[str]) -> None:
    def run(*options: str) -> None:
        needed = [param for param in command.params if param.param_type_name == "argument" and param.required]
        say.Screen.level = "normal"
        command.main([*options, *("x" for _ in needed)], prog_name="repro-env", standalone_mode=False)

    wrong = (UsageError, typer.BadParameter.__mro__[2])  # a group needs a command, exec and sensitivity need one to run
    with contextlib.suppress(typer.Exit):
        run("--help")
    helped = capsys.readouterr().out
    assert "-q, --quiet " in helped
    assert "-v, --verbose " in helped
    command.callback = lambda **_: None
    for option, level in say.LEVELS.items():
        with contextlib.suppress(*wrong):
            run(option)
        assert say.Screen.level == level
    with pytest.raises(UsageError, match="--quiet and --verbose are mutually exclusive"):
        run("-q", "--verbose")


def test_the_list_of_commands_fits_a_terminal() -> None:
    """Eighty columns, less the names: a longer line would be cut in the middle of a sentence."""
    done = subprocess.run(
        [sys.executable, "-m", "repro_env", "--help"],
        capture_output=True,
        text=True,
        check=True,
        env={"COLUMNS": "80", "TERMINAL_WIDTH": "80", "PATH": "/usr/bin:/bin"},
    )
    listed = done.stdout.partition("Commands:\n")[2].partition("\n\n")[0]
    assert [(name, line) for name, line in re.findall(r"^  (\S+) +(\S.*)$", listed, re.MULTILINE)] == list(app.COMMANDS.items())
