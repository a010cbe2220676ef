"""Annotations, outputs and summaries for GitHub Actions.

Names of files, packages and indexes may come from a hostile repository. They are escaped, so that they cannot start a
workflow command, end an output, or become markup in a summary.
"""

from __future__ import annotations

import contextlib
import html
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from repro_env.cli.ui import messages
from repro_env.schema import redact

ANNOTATIONS = 10
"""GitHub shows at most 10 annotations of a step."""
_ROWS = 100
"""Rows of a table."""
_CELL = 200
"""Characters of a cell. `_ROWS` and `_CELL` keep a summary below GitHub's limit of 1 MiB, even if every character is escaped."""
SENTENCE = 1000
"""Characters of a sentence."""


@contextlib.contextmanager
def pause_commands(environ: Mapping[str, str]) -> Iterator[None]:
    """Prevent workflow commands in the output of the block. Do nothing outside of GitHub Actions.

    stderr must be redirected to stdout (`2>&1`), because GitHub reads two pipes in no particular order.
    """
    if environ.get("GITHUB_ACTIONS") != "true":
        yield
        return
    token = secrets.token_hex(16)
    messages.result(f"::stop-commands::{token}")
    try:
        yield
    finally:
        messages.result(f"::{token}::")


def annotation(message: str, *, title: str, file: str = "") -> str:
    """The workflow command that shows an error. `file`: the path of the file that it is about, relative to the repository."""
    values = {"file": file, "title": title}
    properties = ",".join(f"{name}={_escape(value, more=':,')}" for name, value in values.items() if value)
    return f"::error {properties}::{_escape(shorten(message, SENTENCE))}"


def outputs(values: Mapping[str, str]) -> str:
    """The text for `$GITHUB_OUTPUT` that sets outputs of the step. The delimiters are random, so no value can contain one."""
    lines = []
    for name, value in values.items():
        delimiter = secrets.token_hex(16)
        lines.append(f"{name}<<{delimiter}\n{value}\n{delimiter}\n")
    return "".join(lines)


def summary(title: str, sentence: str, tables: Iterable[tuple[Sequence[str], Sequence[Sequence[str]]]], after: str) -> str:
    """The summary as HTML. Each table is a header and rows; tables without rows are left out.

    GitHub does not interpret Markdown in an HTML block. The block ends at the first empty line, so the text has none.
    """
    lines = [f"<h3>{_text(title)}</h3>", f"<p>{_text(sentence, SENTENCE)}</p>"]
    for header, rows in tables:
        if not rows:
            continue
        lines += ["<table>", "<tr>" + "".join(f"<th>{_text(cell)}</th>" for cell in header) + "</tr>"]
        lines += ["<tr>" + "".join(f"<td>{_text(cell)}</td>" for cell in row) + "</tr>" for row in rows[:_ROWS]]
        lines.append("</table>")
        if len(rows) > _ROWS:
            lines.append(f"<p>and {len(rows) - _ROWS:,} more</p>")
    if after:
        lines.append(f"<p>{_text(after, SENTENCE)}</p>")
    return "\n" + "\n".join(lines) + "\n\n"


def append(path: str, text: str) -> None:
    """Append to a file that GitHub names (`$GITHUB_OUTPUT`, `$GITHUB_STEP_SUMMARY`)."""
    with Path(path).open("a", encoding="utf-8", errors="backslashreplace") as file:
        file.write(text)


def shorten(text: str, limit: int) -> str:
    """One line without secrets or control characters, at most `limit` characters."""
    line = messages.visible(redact.secretless(text)).replace("\n", "\\n").replace("\t", "\\t")
    return line if len(line) <= limit else f"{line[: limit - 1]}…"


def _text(text: str, limit: int = _CELL) -> str:
    return html.escape(shorten(text, limit))


def _escape(text: str, more: str = "") -> str:
    for character in "%\r\n" + more:  # the percent sign first, because the replacements contain it
        text = text.replace(character, f"%{ord(character):02X}")
    return messages.visible(text)
