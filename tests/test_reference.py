"""The generated pages of docs/ are up to date and complete; docs/reference.md names the public interface of checkpoints."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from repro_env.schema import run, spec
from repro_env.schema.codec import Frozen
from tests.reference import COMMANDS, DOCS, pages

PATHS = pages()
PAGES = {path.name: text for path, text in PATHS.items()}
EVERYWHERE = {"--help", "-h", "--json", "--quiet", "-q", "--verbose", "-v"}
"""On the page once, above the commands."""
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*")


def part(command: str) -> str:
    """What the generated page says about a command."""
    return PAGES["commands.md"].partition(f"\n## {command}\n")[2].partition("\n## ")[0]


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.name)
def test_generated_pages_are_up_to_date(path: Path) -> None:
    assert path.read_text() == PATHS[path], f"{path.name} differs from the program: run `make reference` and commit it"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_of_a_command_is_on_the_page(command: str) -> None:
    named = set(OPTION.findall(part(command)))
    if "Options of [`exec`]" in part(command):
        named |= COMMANDS["exec"]
    assert COMMANDS[command] - EVERYWHERE - named == set()


def test_every_command_but_shell_and_the_start_of_a_kernel_prints_json() -> None:
    assert [name for name, options in COMMANDS.items() if "--json" not in options] == ["shell", "kernel start"]


def test_every_exit_code_is_on_the_page() -> None:
    from repro_env.schema import errors

    rows = set(re.findall(r"^- (\d+) `(\w+)`: [A-Z]", PAGES["records.md"], re.MULTILINE))
    ours = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.ReproEnvError)]
    assert {(str(kind.exit_code), kind.__name__) for kind in ours if kind is not errors.ReproEnvError} == rows


@pytest.mark.parametrize(
    ("title", "kind"), [("start.json", run.Start), ("end.json", run.End), ("Observed", spec.Observed), ("Outcome", run.Outcome)]
)
def test_every_field_of_a_stored_type_is_on_the_page(title: str, kind: type[Frozen]) -> None:
    text = re.split(r"\n###? ", PAGES["records.md"].partition(f"# {title}\n")[2])[0]
    cells = re.findall(r"^- ((?:`\w+`(?: \([^)]*\))?(?:, )?)+)", text, re.MULTILINE)
    assert set(kind.__struct_fields__) - {name for cell in cells for name in re.findall(r"`(\w+)`", cell)} == set()


def test_the_public_interface_is_in_the_reference() -> None:
    import inspect

    from repro_env import checkpoint

    section = (DOCS / "reference.md").read_text().partition("## A checkpoint")[2].partition("\n## ")[0]
    words = set(re.findall(r"`([A-Za-z_]+)[`(]", section)) | set(re.findall(r"\b[a-z_]+(?=[,)(])", section))
    assert set(checkpoint.__all__) - words == set()
    given = inspect.signature(checkpoint.Checkpoint).parameters.values()
    assert {one.name for one in given if one.kind is one.KEYWORD_ONLY} - words == set()
    assert {name for name in vars(checkpoint.Checkpoint) if name[0] != "_"} - words == set()
