"""Write the files of a project, and list what a capture takes of them."""

from __future__ import annotations

from pathlib import Path

from repro_env.environment.source.selection import SourceTree


def put(root: Path, *paths: str, text: str = "x") -> None:
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)


def files(tree: SourceTree) -> list[str]:
    return [entry.path for entry in tree.found if entry.kind != "dir"]


def left_out(tree: SourceTree) -> dict[str, str]:
    return {row.path: row.why for row in tree.excluded}
