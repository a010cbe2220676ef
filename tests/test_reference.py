"""The generated pages of docs/ are up to date and complete; docs/reference.md names the public interface of checkpoints."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from repro_env.cli import app
from repro_env.schema import run, spec
from repro_env.schema.codec import Frozen
from tests.reference import DOCS, pages

ROOT = Path(__file__).parents[1]
DOCUMENTS = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
PAGES = {path.name: text for path, text in pages().items()}
EVERYWHERE = {"--help", "-h", "--json", "--quiet", "-q", "--verbose", "-v"}
"""On the page once, above the commands."""
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*")


def commands(found: Any, name: str = "") -> dict[str, set[str]]:
    """Each command by its words -> its options, as the parser knows them."""
    below = getattr(found, "commands", None)
    if below is None:
        shown = [param for param in found.params if not getattr(param, "hidden", False)]
        return {name: {option for param in shown for option in (*param.opts, *param.secondary_opts) if option.startswith("--")}}
    return {word: options for key, one in below.items() for word, options in commands(one, f"{name} {key}".strip()).items()}


def all_commands() -> dict[str, set[str]]:
    return commands(app.parser(*app.COMMANDS))


COMMANDS = all_commands()


def part(command: str) -> str:
    """What the generated page says about a command."""
    return PAGES["commands.md"].partition(f"\n## {command}\n")[2].partition("\n## ")[0]


@pytest.mark.parametrize("name", PAGES)
def test_generated_pages_are_up_to_date(name: str) -> None:
    assert (DOCS / name).read_text() == PAGES[name], f"docs/{name} differs from the program: run `make reference` and commit it"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_of_a_command_is_on_the_page(command: str) -> None:
    named = set(OPTION.findall(part(command)))
    if "Options of [`exec`]" in part(command):
        named |= COMMANDS["exec"]
    assert COMMANDS[command] - EVERYWHERE - named == set()


def test_every_command_but_shell_prints_json() -> None:
    assert [name for name, options in COMMANDS.items() if "--json" not in options] == ["shell"]


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


def lines(text: str) -> list[list[str]]:
    """The words of each `repro-env` command line that a document shows, in a block or in the middle of a sentence."""
    blocks = [
        line for block in re.findall(r"^```console\n(.*?)^```", text, re.MULTILINE | re.DOTALL) for line in block.splitlines()
    ]
    shown = [part for line in blocks for part in re.split(r" && |; ", line.removeprefix("$ "))]
    inline = re.findall(r"`(repro-env [^`]*)`", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL))
    plain = [re.sub(r"\s+", " ", one) for one in (*shown, *inline)]
    return [shlex.split(one, comments=True) for one in plain if re.match(r"(\w+=\S* )*repro-env ", one)]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_documents_show_commands_and_options_that_there_are(document: Path) -> None:
    for words in lines(document.read_text()):
        words = words[words.index("repro-env") + 1 :]
        name = next((name for name in (" ".join(words[:2]), words[0]) if name in COMMANDS), None)
        if name is None:
            assert words in (["COMMAND", "--help"], ["--help"]) or words[0] in ("image", "runs", "store"), words
            continue
        rest = words[len(name.split()) :]
        if name in ("exec", "sensitivity"):
            app.parse(name, [word for word in rest if word != "..."])
            continue
        used = {word.partition("=")[0] for word in rest if word.startswith("-")}
        assert used - COMMANDS[name] == set(), words


def test_command_lines_are_found_in_documents() -> None:
    found = lines(
        "x `repro-env runs\nlist --tag a` y\n```console\n$ A=1 repro-env check --all   # c\ncd x && repro-env show\n```\n"
    )
    assert found == [["A=1", "repro-env", "check", "--all"], ["repro-env", "show"], ["repro-env", "runs", "list", "--tag", "a"]]


def test_the_public_interface_is_in_the_reference() -> None:
    import inspect

    from repro_env import checkpoint

    section = (DOCS / "reference.md").read_text().partition("## A checkpoint")[2].partition("\n## ")[0]
    words = set(re.findall(r"`([A-Za-z_]+)[`(]", section)) | set(re.findall(r"\b[a-z_]+(?=[,)(])", section))
    assert set(checkpoint.__all__) - words == set()
    given = inspect.signature(checkpoint.Checkpoint).parameters.values()
    assert {one.name for one in given if one.kind is one.KEYWORD_ONLY} - words == set()
    assert {name for name in vars(checkpoint.Checkpoint) if name[0] != "_"} - words == set()
