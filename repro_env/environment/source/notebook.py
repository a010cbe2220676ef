"""Compute a digest of the code in a Jupyter notebook, so that running it again does not count as a code change.

Running or saving a notebook changes outputs, execution counts, cell ids, kernel names, widget state and the layout of the
JSON. None of that is code. The digest covers only the sources and tags of the code cells, in order.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from repro_env.io.files import Found, read_regular
from repro_env.schema import codec, redact
from repro_env.schema.spec import Notebook

LARGEST = 64 << 20
"""Maximum bytes of a notebook; a larger one is treated as a plain file."""


class NotebookResult(msgspec.Struct, frozen=True):
    notebooks: tuple[Notebook, ...]
    """Sorted by path."""
    problems: tuple[str, ...]
    """One line for each file with the suffix of a notebook that cannot be read as a notebook."""


class _Cell(msgspec.Struct):
    cell_type: str
    source: str | list[str] = ""
    metadata: dict[str, Any] = {}


class _Book(msgspec.Struct):
    nbformat: int
    cells: list[_Cell] = []


class _InvalidNotebookError(Exception):
    """The reason why a file cannot be read as a notebook."""


def look(root: Path, found: Sequence[Found]) -> NotebookResult:
    """Read the notebooks in `found`, the listing of the snapshot. Invalid notebooks are listed as problems."""
    notebooks, problems = [], []
    for entry in found:
        if entry.kind == "file" and entry.path.endswith(".ipynb"):
            try:
                notebooks.append(_read(root, entry.path))
            except _InvalidNotebookError as error:
                problems.append(redact.line(f"{entry.path} is compared as a plain file, not as a notebook: {error}"))
    return NotebookResult(tuple(sorted(notebooks, key=lambda notebook: notebook.path)), tuple(problems))


def has_same_code(root: Path, captured: Notebook) -> bool:
    """Whether the notebook of the same path below `root` has the captured code. False if the file is not a valid notebook."""
    try:
        return _read(root, captured.path) == captured
    except _InvalidNotebookError:
        return False


def _read(root: Path, path: str) -> Notebook:
    try:
        # Python's JSON decoder, because Jupyter may write NaN and Infinity in outputs.
        book = msgspec.convert(json.loads(read_regular(root / path, LARGEST).removeprefix(b"\xef\xbb\xbf")), type=_Book)
        if book.nbformat != 4:
            raise _InvalidNotebookError(f"its format is {book.nbformat}, but only format 4 is supported")
        cells = [(_source(cell), cell.metadata.get("tags")) for cell in book.cells if cell.cell_type == "code"]
        # Front-ends add an empty cell at the end.
        return Notebook(path=path, code=codec.digest([cell for cell in cells if cell[0].strip()]))
    except OSError as error:
        raise _InvalidNotebookError(f"it cannot be read: {error.strerror}") from None
    except RecursionError:
        raise _InvalidNotebookError("it is nested too deeply") from None
    except msgspec.ValidationError as error:
        raise _InvalidNotebookError(str(error)) from None
    except ValueError as error:
        raise _InvalidNotebookError(f"it is not valid JSON: {error}") from None


def _source(cell: _Cell) -> str:
    return cell.source if isinstance(cell.source, str) else "".join(cell.source)
