from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import typer

from repro_env.cli import app, parser
from repro_env.cli.ui import messages
from repro_env.schema.errors import ReproEnvError, UsageError


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        (
            "verify --al",
            "repro-env verify: no such option: --al",
            "usage: repro-env verify [OPTIONS] [ID] (for the options, run `repro-env verify --help`)",
        ),
        ("runs tag", "repro-env runs tag: missing argument", "(for the options, run `repro-env runs tag --help`)"),
        ("capturee", "No such command 'capturee'", "(for the options, run `repro-env --help`)"),
        ("runs lisst", "repro-env runs: no such command 'lisst'. Did you mean 'list'?", "run `repro-env runs --help`)"),
        ("lineage a b", "repro-env lineage: got unexpected extra argument", "run `repro-env lineage --help`)"),
        ("store gc --keep-days", "requires an argument", "--help`"),
    ],
)
def test_a_wrong_command_line_is_a_usage_error(words: str, message: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        app.run(words.split())
    assert message.lower() in str(caught.value).lower()
    assert hint in caught.value.hint


def test_a_wrong_command_line_prints_two_lines_without_secrets_and_exits_with_2() -> None:
    words = ["show", "a", "https://ann:hunter2secret@example.org/x"]
    process = subprocess.run([sys.executable, "-m", "repro_env", *words], capture_output=True, text=True, check=False)
    first, second = process.stderr.splitlines()
    assert (process.returncode, process.stdout) == (2, "")
    assert first.startswith("repro-env: error: repro-env show: got unexpected extra argument")
    assert second.startswith("  -> usage: repro-env show ")
    assert "hunter2secret" not in process.stderr


@pytest.mark.parametrize("words", [[], ["runs"], ["store"], ["image"]])
def test_a_group_without_a_command_shows_its_help(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert app.run(words) == 2
    assert capsys.readouterr().err.startswith(f"Usage: {' '.join(['repro-env', *words])} [OPTIONS] COMMAND")


def commands(command: Any, words: tuple[str, ...] = ()) -> Iterator[Any]:
    """The command, and all its subcommands if it is a group."""
    yield pytest.param(command, id=" ".join(words))
    for name, subcommand in getattr(command, "commands", {}).items():
        yield from commands(subcommand, (*words, name))


@pytest.mark.parametrize("command", list(commands(parser.make(*parser.COMMANDS))))
def test_every_command_has_the_options_quiet_and_verbose(command: Any, capsys: pytest.CaptureFixture[str]) -> None:
    def run(*options: str) -> None:
        required = [param for param in command.params if param.param_type_name == "argument" and param.required]
        messages.Screen.level = "normal"
        command.main([*options, *("x" for _ in required)], prog_name="repro-env", standalone_mode=False)

    # Groups require a subcommand; exec and sensitivity require a command to run, and shell a spec.
    errors = (ReproEnvError, typer.BadParameter.__mro__[2])
    with contextlib.suppress(typer.Exit):
        run("--help")
    text = capsys.readouterr().out
    assert "-q, --quiet " in text
    assert "-v, --verbose " in text
    command.callback = lambda **_: None
    for option, level in {"-q": "quiet", "--quiet": "quiet", "-v": "verbose", "--verbose": "verbose"}.items():
        with contextlib.suppress(*errors):
            run(option)
        assert messages.Screen.level == level
    with pytest.raises(UsageError, match="--quiet and --verbose are mutually exclusive"):
        run("-q", "--verbose")


@pytest.mark.parametrize("columns", [60, 80, 200])
def test_help_without_the_parser_is_what_the_parser_prints(
    columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    texts = []
    for words in (["--help"], ["-h"], ["--help", "-h"]):  # the parser reads the last
        assert app.run(words) == 0
        texts.append(capsys.readouterr().out)
    assert texts == texts[-1:] * 3


def test_help_and_version_start_without_the_parser() -> None:
    code = "import sys; from repro_env.cli import app; app.run(sys.argv[1:]); print({'typer', 'msgspec'} & {*sys.modules})"
    for words in (["--help"], ["--version"]):
        process = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=True)
        assert process.stdout.splitlines()[-1] == "set()"


def test_help_shows_complete_descriptions_of_all_commands_in_80_columns() -> None:
    process = subprocess.run(
        [sys.executable, "-m", "repro_env", "--help"],
        capture_output=True,
        text=True,
        check=True,
        env={"COLUMNS": "80", "TERMINAL_WIDTH": "80", "PATH": "/usr/bin:/bin"},
    )
    listed = process.stdout.partition("Commands:\n")[2].partition("\n\n")[0]
    assert [(name, line) for name, line in re.findall(r"^  (\S+) +(\S.*)$", listed, re.MULTILINE)] == list(
        parser.COMMANDS.items()
    )


@pytest.mark.parametrize(("word", "command"), [("run", "exec"), ("build", "rebuild"), ("compare", "runs compare")])
def test_the_names_of_other_tools_lead_to_the_command(word: str, command: str) -> None:
    with pytest.raises(UsageError, match="no such command") as caught:
        app.run([word, "x"])
    assert caught.value.hint == f"use `repro-env {command}`"


def test_help_is_a_command_too(capsys: pytest.CaptureFixture[str]) -> None:
    texts = []
    for words in (["help"], ["--help"], ["help", "check"], ["check", "--help"]):
        assert app.run(words) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1] != texts[2] == texts[3]


@pytest.mark.parametrize(
    ("shell", "more"),
    [
        ("bash", {"COMP_WORDS": "repro-env runs pl", "COMP_CWORD": "2"}),
        ("zsh", {"_TYPER_COMPLETE_ARGS": "repro-env runs pl"}),
        ("fish", {"_TYPER_COMPLETE_ARGS": "repro-env runs pl", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}),
    ],
)
def test_shells_complete_commands(shell: str, more: dict[str, str]) -> None:
    env = {**os.environ, **more, "_REPRO_ENV_COMPLETE": f"complete_{shell}"}
    done = subprocess.run([sys.executable, "-m", "repro_env"], env=env, capture_output=True, text=True, check=False)
    assert "plot" in done.stdout, done.stderr
    assert "push" not in done.stdout
