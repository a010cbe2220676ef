"""Draw the pictures of the docs: what commands print on a terminal, as SVG (`make pictures`, ARGS: a project with two runs)."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pty
import re
import shlex
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).parents[1]
COMMAND = Path(sys.executable).with_name("repro-env")
WIDTH = 100
_FONTS = re.compile(r"<!--.*?-->\s*|@font-face \{.*?\}\s*", re.DOTALL)
"""Fonts that a browser would fetch from a server."""


def on_terminal(directory: Path, *words: str) -> str:
    """What a command writes to a terminal, with its codes, after its command line."""
    ours, theirs = pty.openpty()
    env = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(WIDTH), "CI": "1"}  # without the tasks in progress
    with subprocess.Popen([COMMAND, *words], cwd=directory, env=env, stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs):
        os.close(theirs)
        written = b""
        with contextlib.suppress(OSError):  # the end
            while chunk := os.read(ours, 4096):
                written += chunk
    os.close(ours)
    return f"\x1b[1m$ {shlex.join(('repro-env', *words))}\x1b[0m\n{written.decode()}"


def svg(text: str, name: str) -> str:
    """The picture of a terminal with this text."""
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, color_system="256")
    console.print(Text.from_ansi(text.replace("\r\n", "\n")))
    return _FONTS.sub("", console.export_svg(title="repro-env", unique_id=name)).replace("Fira Code", "monospace")


def main(directory: Path) -> None:
    """Draw the list of a project's runs, and the comparison of the two oldest."""
    listed = subprocess.run([COMMAND, "runs", "list", "--json"], cwd=directory, stdout=subprocess.PIPE, check=True).stdout
    old, new = (run["start"]["id"][-8:] for run in json.loads(listed)["runs"][:-3:-1])
    text = on_terminal(directory, "runs", "list") + "\n" + on_terminal(directory, "runs", "compare", old, new)
    path = ROOT / "docs" / "pictures" / "runs.svg"
    path.parent.mkdir(exist_ok=True)
    path.write_text(svg(text, "runs"))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if sys.argv[1:] else ROOT / "build" / "demo" / "project")
