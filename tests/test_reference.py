"""docs/reference.md names every option of every command; no document shows a command line that there is not."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from repro_env.cli import app
from repro_env.schema import run, spec

ROOT = Path(__file__).parents[1]
REFERENCE = (ROOT / "docs" / "reference.md").read_text()
DOCUMENTS = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
EVERYWHERE = {"--help", "-h", "--json", "--quiet", "-q", "--verbose", "-v"}
"""Said once, above the table of commands."""
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


def part(command: str) -> tuple[list[str], list[str]]:
    """What the reference says of a command: the first cells of rows that are about it, and all else in its part."""
    top, _, sub = command.partition(" ")
    rows = [line for line in REFERENCE.splitlines() if re.match(rf"\| (?:`[a-z ]+`, )*`{re.escape(command)}[ `]", line)]
    heading = re.search(
        rf"^### {command if not sub else f'({command}|{top})'}\n(.*?)(?=^##)", REFERENCE, re.MULTILINE | re.DOTALL
    )
    lines = heading[0].splitlines() if heading else []
    cells = [line for line in lines if line.startswith("| `-")]
    return rows + cells, [line for line in lines if not line.startswith("| `") or not sub]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_is_in_the_reference(command: str) -> None:
    rows, others = part(command)
    named = set(OPTION.findall("\n".join(rows + others)))
    if command in ("sensitivity", "shell"):  # "Options are those of `exec`, but for ..."
        named |= {option for option in COMMANDS["exec"] if f"`{option}`" not in "\n".join(others)}
    assert COMMANDS[command] - EVERYWHERE - named == set()


@pytest.mark.parametrize("command", COMMANDS)
def test_the_reference_names_no_option_that_is_not_there(command: str) -> None:
    rows, _ = part(command)
    cells = "\n".join(re.split(r"(?<!\\)\|", row)[1] for row in rows)
    allowed = COMMANDS[command] | {option for name, options in COMMANDS.items() if f"`{name}`" in cells for option in options}
    assert set(OPTION.findall(re.sub(r"`repro-env [^`]*`", "", cells))) - allowed == set()


def test_every_command_but_shell_prints_json() -> None:
    assert [name for name, options in COMMANDS.items() if "--json" not in options] == ["shell"]
    assert "Every command except `shell` has the option `--json`" in REFERENCE


def test_every_command_has_a_row_and_every_row_is_a_command() -> None:
    table = REFERENCE.partition("| command | does | stdout |")[2].partition("\n\n")[0]
    named = {word for row in table.splitlines()[2:] for word in re.findall(r"`([a-z]+(?: [a-z]+)?)", row.split("|")[1])}
    assert {name for name in COMMANDS if name not in named} == set()
    assert {name for name in named if name not in COMMANDS} == set()


def test_every_exit_code_is_in_the_reference() -> None:
    from repro_env.schema import errors

    rows = set(re.findall(r"^\| (\d+) \| (\w+) \|", REFERENCE, re.MULTILINE))
    ours = [one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, errors.ReproEnvError)]
    assert {(str(one.exit_code), one.__name__) for one in ours if one is not errors.ReproEnvError} == rows


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


def test_every_field_of_a_record_is_in_the_reference() -> None:
    from repro_env.schema.run import End, Start

    section = REFERENCE.partition("## The directory of a run")[2].partition("\n## ")[0]
    for record, file in ((Start, "start.json"), (End, "end.json")):
        table = section.partition(f"| `{file}` | content |")[2].partition("\n\n")[0]
        named = set(re.findall(r"`([a-z_]+)`", "\n".join(row.split("|")[1] for row in table.splitlines()[2:])))
        assert set(record.__struct_fields__) - {"schema"} - named == set(), file
        assert named - set(record.__struct_fields__) == set(), file


def test_the_public_interface_is_in_the_reference() -> None:
    import inspect

    from repro_env import checkpoint

    section = REFERENCE.partition("## A checkpoint")[2].partition("\n## ")[0]
    words = set(re.findall(r"`([A-Za-z_]+)[`(]", section)) | set(re.findall(r"\b[a-z_]+(?=[,)(])", section))
    assert set(checkpoint.__all__) - words == set()
    given = inspect.signature(checkpoint.Checkpoint).parameters.values()
    assert {one.name for one in given if one.kind is one.KEYWORD_ONLY} - words == set()
    assert {name for name in vars(checkpoint.Checkpoint) if name[0] != "_"} - words == set()


def test_the_reference_names_every_field_of_a_spec() -> None:
    parts = (("identity", spec.Identity), ("defaults", spec.Defaults), ("hints", spec.Hints), ("observed", spec.Observed))
    names = {(part, field) for part, kind in parts for field in kind.__struct_fields__}
    found, part = set(), ""
    table = REFERENCE.partition("\n### Fields of the spec\n")[2].partition("\nThe spec digest")[0]
    for row in table.splitlines():
        for above, field in re.findall(r"`([a-z]*)\.([a-z_]+)`", row.split(" | ")[0]):
            part = above or part
            found.add((part, field))
    assert found == names


@pytest.mark.parametrize(("name", "kind"), [("start.json", run.Start), ("end.json", run.End)])
def test_the_reference_names_every_field_of_a_record(name: str, kind: Any) -> None:
    table = REFERENCE.partition(f"\n| `{name}` | content |\n|---|---|\n")[2].partition("\n\n")[0]
    cells = [row.split(" | ")[0] for row in table.splitlines()]
    found = {field for cell in cells for field in re.findall(r"`([a-z_]+)`", cell)}
    assert found == set(kind.__struct_fields__) - {"schema"}
