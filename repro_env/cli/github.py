"""What GitHub Actions reads of a step: annotations in its log, its outputs, and its summary.

Names of files, packages and indexes come from a repository that may be hostile. Here they are data: they cannot start a
workflow command, end an output, or become markup of a summary.
"""

from __future__ import annotations

import contextlib
import html
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from repro_env.cli import say
from repro_env.model import redact

ANNOTATIONS = 10
"""GitHub shows no more of one step."""
_ROWS = 100
_CELL = 200
"""Characters. With `_ROWS` this keeps a summary below GitHub's limit of 1 MiB, whatever has to be escaped."""
_SENTENCE = 1000


@contextlib.contextmanager
def commands_paused(environ: Mapping[str, str]) -> Iterator[None]:
    """Let GitHub read no workflow commands from what is printed while the block runs; nothing is printed elsewhere.

    stderr has to go where stdout goes (`2>&1`): GitHub reads two pipes in no particular order.
    """
    if environ.get("GITHUB_ACTIONS") != "true":
        yield
        return
    token = secrets.token_hex(16)
    say.result(f"::stop-commands::{token}")
    try:
        yield
    finally:
        say.result(f"::{token}::")


def annotation(message: str, *, title: str, file: str = "") -> str:
    """The workflow command that shows an error, at a file where one is named (relative to the repository)."""
    properties = {"file": file, "title": title}
    listed = ",".join(f"{name}={_escaped(value, more=':,')}" for name, value in properties.items() if value)
    return f"::error {listed}::{_escaped(_short(message, _SENTENCE))}"


def outputs(values: Mapping[str, str]) -> str:
    """What sets outputs of the step, for `$GITHUB_OUTPUT`. No value can end before its random delimiter."""
    lines = []
    for name, value in values.items():
        delimiter = secrets.token_hex(16)
        lines.append(f"{name}<<{delimiter}\n{value}\n{delimiter}\n")
    return "".join(lines)


def summary(title: str, sentence: str, tables: Iterable[tuple[Sequence[str], Sequence[Sequence[str]]]], after: str) -> str:
    """A summary in HTML. A table is its header and its rows; one without rows is left out.

    Markdown is not read inside an HTML block, and such a block goes on until an empty line: there is none.
    """
    lines = [f"<h3>{_text(title)}</h3>", f"<p>{_text(sentence, _SENTENCE)}</p>"]
    for header, rows in tables:
        if not rows:
            continue
        lines += ["<table>", "<tr>" + "".join(f"<th>{_text(cell)}</th>" for cell in header) + "</tr>"]
        lines += ["<tr>" + "".join(f"<td>{_text(cell)}</td>" for cell in row) + "</tr>" for row in rows[:_ROWS]]
        lines.append("</table>")
        if len(rows) > _ROWS:
            lines.append(f"<p>and {len(rows) - _ROWS:,} more</p>")
    if after:
        lines.append(f"<p>{_text(after, _SENTENCE)}</p>")
    return "\n" + "\n".join(lines) + "\n\n"


def append(path: str, text: str) -> None:
    """Add to one of the files that GitHub names (`$GITHUB_OUTPUT`, `$GITHUB_STEP_SUMMARY`)."""
    with Path(path).open("a", encoding="utf-8", errors="backslashreplace") as file:
        file.write(text)


def _short(text: str, longest: int) -> str:
    """One line without secrets or control characters, at most `longest` characters."""
    line = say.visible(redact.secretless(text)).replace("\n", "\\n").replace("\t", "\\t")
    return line if len(line) <= longest else f"{line[: longest - 1]}…"


def _text(text: str, longest: int = _CELL) -> str:
    return html.escape(_short(text, longest))


def _escaped(text: str, more: str = "") -> str:
    for character in "%\r\n" + more:  # the percent sign first: it begins what stands for the others
        text = text.replace(character, f"%{ord(character):02X}")
    return say.visible(text)
