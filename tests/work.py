"""Counts of what a command makes the machine do, and the table of their limits. Each command and all its processes count.

    make work                        write what is counted now to docs/work.md, if nothing went up
    make work ARGS='--reason "..."'  accept what went up, with the reason in its row

`tests/e2e/test_work.py` compares.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.e2e import parts

TABLE = parts.ROOT / "docs" / "work.md"
COMMANDS: dict[str, tuple[str, ...]] = {
    "capture, first": ("capture",),
    "capture, again": ("capture",),
    "rebuild, first": ("rebuild",),
    "rebuild, again": ("rebuild",),
    "exec, first": ("exec", "hello.py"),
    "exec, again": ("exec", "hello.py"),
    "verify": ("verify",),
    "exec true": ("exec", "true"),
    "check": ("check",),
    "runs list": ("runs", "list"),
    "--version": ("--version",),
}
"""In this order, in a new project with an empty store."""
PACKAGES = ("packaging==26.3", "mdurl==0.1.2", "pygments==2.21.0")
ROOM = 1.1
"""What another kernel, file system or patch release of Python may add."""
HEAD = """# Work

Written by `make work`, never by hand: what each command makes the machine do, with all its processes, in a venv with three small
packages. A test holds each number, with a tenth of room for other kernels and versions of Python. Seconds depend on the machine and
its load; these numbers do not, so they show what a change costs. A number goes up only with a reason:
`make work ARGS='--reason "..."'`.

| command | files opened | looked at (stat) | read, MB | programs | processes and threads | why it went up |
|---|---|---|---|---|---|---|
"""
_OPENS = {"open", "openat", "openat2"}
_STATS = {"stat", "lstat", "fstat", "newfstatat", "statx"}
_STARTS = {"clone", "clone3", "fork", "vfork"}


class Counts(NamedTuple):
    """What one command does."""

    opened: int
    stats: int
    read: float
    """Megabytes, also those that the kernel has in memory."""
    programs: int
    processes: int


def count(project: parts.Project, words: Sequence[str]) -> Counts:
    """Run a command under strace, and count."""
    with tempfile.NamedTemporaryFile("r") as summary:
        command = ["strace", "-f", "-qq", "-c", "-U", "calls,name", "-o", summary.name, str(parts.COMMAND), *words]
        before = _read()
        done = subprocess.run(
            command, cwd=project.directory, env=parts.environ(project.store), capture_output=True, text=True, check=False
        )
        read = _read() - before
        assert done.returncode == 0, f"{words}: {done.stderr}"
        calls = {line.split()[1]: int(line.split()[0]) for line in summary if line.split()[:1] and line.split()[0].isdigit()}

    def number(names: set[str]) -> int:
        return sum(calls.get(name, 0) for name in names)

    return Counts(number(_OPENS), number(_STATS), read / 1e6, calls.get("execve", 0), number(_STARTS))


def _read() -> int:
    """The bytes that this process and the children that it has waited for have read (`rchar` of proc(5))."""
    return int(Path("/proc/self/io").read_text().split()[1])


def measure(project: parts.Project) -> Iterator[tuple[str, Counts]]:
    """Count each command."""
    for name, words in COMMANDS.items():
        yield name, count(project, words)


def new_project(directory: Path) -> parts.Project:
    """A project whose environment has compiled modules, as one that was used."""
    python = parts.venv(directory / "project" / ".venv", *PACKAGES, own_pip=False)
    (directory / "project" / "hello.py").write_text("import pygments\nopen('made.txt', 'w').write('made')\n")
    return parts.project(directory / "project", python, directory / "store")


def parse(text: str) -> dict[str, tuple[Counts, str]]:
    """The limits and reasons of the table."""
    rows = {}
    for line in text.splitlines()[HEAD.count("\n") :]:
        name, *cells, why = (cell.strip() for cell in line.removeprefix("|").removesuffix("|").split("|"))
        numbers = [float(cell.replace(",", "")) if "." in cell else int(cell.replace(",", "")) for cell in cells]
        rows[name] = (Counts(*numbers), why)  # type: ignore[arg-type]
    return rows


def render(rows: Mapping[str, tuple[Counts, str]]) -> str:
    lines = []
    for name, (counts, why) in rows.items():
        cells = [f"{number:,.1f}" if isinstance(number, float) else f"{number:,}" for number in counts]
        lines.append(f"| {' | '.join([name, *cells, why])} |\n")
    return HEAD + "".join(lines)


def over(limit: Counts, counted: Counts) -> list[str]:
    """What is above its limit, by more than the room."""
    named = zip(Counts._fields, limit, counted, strict=True)
    return [f"{name}: {now:,.1f}, limit {most:,.1f}" for name, most, now in named if now > most * ROOM + 1]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make work", description="Count, compare with docs/work.md, and write it.")
    parser.add_argument("--reason", default="", help="why numbers went up")
    reason = parser.parse_args(argv).reason
    rows = parse(TABLE.read_text()) if TABLE.exists() else {}
    written, refused = {}, False
    with tempfile.TemporaryDirectory() as directory:
        for name, counts in measure(new_project(Path(directory))):
            limit, why = rows.get(name, (counts, ""))
            exceeded = over(limit, counts)
            print(f"{name}: {counts}" + "".join(f"\n  went up: {text}" for text in exceeded))
            refused |= bool(exceeded) and not reason
            written[name] = (counts, "; ".join(filter(None, (why, reason))) if exceeded else why)
    if refused:
        print("make it less, or say why: make work ARGS='--reason \"...\"'", file=sys.stderr)
        return 1
    TABLE.write_text(render(written))
    return 0


if __name__ == "__main__":
    sys.exit(main())
