"""The quick reader of command lines says what the option parser says, or leaves the line to it."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import pytest

from repro_env.cli import app, capture, captured, quick, rebuild, rebuilt

PLAIN = [
    "capture",
    "capture --python .venv",
    "capture --python=.venv/bin/python --json",
    "capture --python a --python b",
    "capture --source src --output out/repro --seed 4294967295",
    "capture --include a --include=b* --exclude c --data x:/y --data=z --with git --with=gcc --not-secret t.py",
    "capture --base host --seed 0",
    "capture --python= --output=a=b",
    "capture -v --seed 1 --verbose",
    "rebuild repro -q",
    "rebuild",
    "rebuild repro",
    "rebuild --dry-run some/spec.json --json",
    "rebuild --builder direct --json repro",
    "rebuild --builder=other",
]
LEFT = [
    "",
    "exec true",
    "capture --help",
    "capture -h",
    "capture here",
    "capture --python",
    "capture --python --json",
    "capture --json=1",
    "capture --seed -1",
    "capture --seed 4294967296",
    "capture --seed one",
    "capture --seed ٣",
    "capture --nothing",
    "capture --",
    "rebuild a b",
    "rebuild -- a",
    "rebuild -x",
    "rebuild -q -v",
    "capture --python -v",
    "--version",
]
RUN = {"capture": captured, "rebuild": rebuilt}


def asked(words: Sequence[str], patch: pytest.MonkeyPatch, *, quickly: bool) -> dict[str, Any]:
    """What a command is run with, what was not given included."""
    run = RUN[words[0]].run
    told: list[dict[str, Any]] = []
    with patch.context() as own:
        own.setattr(RUN[words[0]], "run", lambda **values: told.append(values))
        if quickly:
            assert quick.run(words)
        else:
            assert app.run(words) == 0
    defaults = {name: one.default for name, one in inspect.signature(run).parameters.items()}
    return {name: value or None if isinstance(value, list) else value for name, value in (defaults | told[0]).items()}


@pytest.mark.parametrize("line", PLAIN)
def test_a_plain_line_means_what_the_parser_says(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    words = line.split()
    assert asked(words, monkeypatch, quickly=True) == asked(words, monkeypatch, quickly=False)


@pytest.mark.parametrize("line", LEFT)
def test_another_line_is_left_to_the_parser(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in RUN.values():
        monkeypatch.setattr(module, "run", lambda **_: pytest.fail("run"))
    assert not quick.run(line.split())


@pytest.mark.parametrize("module", [capture, rebuild])
def test_no_option_is_missing(module: Any) -> None:
    name = module.__name__.rpartition(".")[2]
    parameters = set(inspect.signature(module.command).parameters)
    assert {option.name for option in quick.COMMANDS[name].values()} == parameters
    assert parameters == set(inspect.signature(RUN[name].run).parameters)


def test_a_plain_line_does_without_the_parser() -> None:
    code = "import sys; from repro_env.cli import captured, quick; captured.run = lambda **_: None\n"
    code += "quick.run(['capture', '--json']); print([one for one in ('typer', 'click', 'pydantic') if one in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
