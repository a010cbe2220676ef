"""Jupyter notebooks by their parts, so that one that was only run again is known to be the same code.

A run, and a save by another front-end, change outputs, execution counts, cell ids, kernel names, widget state and the
JSON's own layout. None of that is code: what a code digest holds is the sources of the code cells, in their order.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from repro_env.io.files import Found, read_regular
from repro_env.model import codec, redact
from repro_env.model.spec import Notebook

LARGEST = 64 << 20
"""Bytes of one notebook that are read at once; a larger one is a file like any other."""
_LABELS = ("tags", "slideshow", "name")
"""Cell metadata that people write; the rest (times, scrolling, what is folded) comes and goes by itself."""


class Looked(msgspec.Struct, frozen=True):
    notebooks: tuple[Notebook, ...]
    """Sorted by path."""
    problems: tuple[str, ...]
    """One line for each file that is named as a notebook and cannot be read as one."""


class _Cell(msgspec.Struct):
    cell_type: str
    source: str | list[str] | None = None
    input: str | list[str] | None = None
    """nbformat 3: the source of a code cell."""
    level: int = 1
    """nbformat 3: of a heading."""
    outputs: list[msgspec.Raw] = []
    execution_count: Any = None
    prompt_number: Any = None
    """nbformat 3: the execution count."""
    attachments: dict[str, Any] = {}
    metadata: dict[str, Any] = {}


class _Sheet(msgspec.Struct):
    cells: list[_Cell] = []


class _Book(msgspec.Struct):
    nbformat: int
    cells: list[_Cell] | None = None
    worksheets: list[_Sheet] = []
    """nbformat 3 keeps its cells in these."""


class _NotOneError(Exception):
    """Why a file cannot be read as a notebook."""


def look(root: Path, found: Sequence[Found]) -> Looked:
    """The notebooks among `found`, the listing of the snapshot. Never raises for what a file holds."""
    notebooks, problems = [], []
    for one in found:
        if one.kind == "file" and one.path.endswith(".ipynb"):
            try:
                notebooks.append(read(root, one.path))
            except _NotOneError as error:
                problems.append(redact.line(f"{one.path} is compared as a plain file, not as a notebook: {error}"))
    return Looked(tuple(sorted(notebooks, key=lambda one: one.path)), tuple(problems))


def try_read(root: Path, path: str) -> Notebook | None:
    """One notebook under `root`, None where the file is none."""
    try:
        return read(root, path)
    except _NotOneError:
        return None


def read(root: Path, path: str) -> Notebook:
    """One notebook under `root`. For `look` and `try_read`, which say what comes of one that cannot be read."""
    data = _bytes(root / path)
    try:
        return _parts(path, _cells(data))
    except RecursionError:
        raise _NotOneError("it is nested too deeply") from None
    except msgspec.ValidationError as error:
        raise _NotOneError(str(error)) from None
    except (ValueError, OverflowError) as error:
        raise _NotOneError(f"not complete JSON: {error}") from None


def _parts(path: str, cells: Iterable[_Cell]) -> Notebook:
    text: list[Any] = []
    code: list[str] = []
    counts: list[Any] = []
    outputs = hashlib.sha256()
    for cell in cells:
        if cell.cell_type != "code":
            text.append([len(code), *_words(cell)])
            continue
        source = _joined(cell.source if cell.source is not None else cell.input)
        if not source.strip():
            continue  # front-ends leave an empty last cell behind
        labels = {key: cell.metadata[key] for key in _LABELS if key in cell.metadata}
        text += [[len(code), "labels", labels]] if labels else []
        count = cell.execution_count if cell.execution_count is not None else cell.prompt_number
        shown = [_output(raw) for raw in cell.outputs]
        outputs.update(codec.canonical([len(code), *(what for what, _ in shown)]))
        counts.append([count, [number for _, number in shown]] if count is not None else None)
        code.append(source)
    return Notebook(
        path=path,
        code=codec.digest(["code", *code]),
        text=codec.digest(text),
        outputs="sha256:" + outputs.hexdigest(),
        counts=codec.digest(counts),
    )


def change(old: Notebook, new: Notebook) -> str:
    """What became other, the weightiest alone: `code`, `text, not code`, `outputs only`, or empty."""
    if old.code != new.code:
        return "code"
    if old.text != new.text:
        return "text, not code"
    return "outputs only" if (old.outputs, old.counts) != (new.outputs, new.counts) else ""


def same_code(a: Iterable[Notebook], b: Iterable[Notebook]) -> bool:
    """Whether two snapshots have the same notebooks, with the same code in them."""
    return {one.path: one.code for one in a} == {one.path: one.code for one in b}


def _bytes(path: Path) -> bytes:
    try:
        return read_regular(path, LARGEST)
    except OSError as error:
        raise _NotOneError(f"it cannot be read: {error.strerror}") from None


def _cells(data: bytes) -> list[_Cell]:
    book = _book(data.removeprefix(b"\xef\xbb\xbf"))
    if not 3 <= book.nbformat <= 4:
        raise _NotOneError(f"its format is {book.nbformat}; 3 and 4 are known")
    return book.cells if book.cells is not None else [cell for sheet in book.worksheets for cell in sheet.cells]


def _book(data: bytes) -> _Book:
    try:
        return msgspec.json.decode(data, type=_Book)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:
        # Python's own writer puts NaN and Infinity where JSON has no word for them.
        return msgspec.json.decode(_without_nan(data), type=_Book)


def _without_nan(data: bytes) -> bytes:
    return msgspec.json.encode(json.loads(data, parse_constant=lambda word: word))


def _words(cell: _Cell) -> list[Any]:
    source, kind = _joined(cell.source), cell.cell_type
    if kind == "heading":
        source, kind = "#" * max(1, min(cell.level, 6)) + " " + " ".join(source.splitlines()), "markdown"
    labels = {key: cell.metadata[key] for key in _LABELS if key in cell.metadata}
    return [kind, source, cell.attachments, labels]


def _output(raw: msgspec.Raw) -> tuple[Any, Any]:
    """(what is shown, its execution count). Texts kept as lists of lines are joined; what a front-end folds is left out."""
    value = msgspec.json.decode(raw)
    if not isinstance(value, dict):
        return value, None
    number = value.pop("execution_count", value.pop("prompt_number", None))
    value.pop("metadata", None)
    for key, item in value.items():
        if key == "data" and isinstance(item, dict):
            value[key] = {mime: _joined_lines(content) for mime, content in item.items()}
        elif key != "traceback":
            value[key] = _joined_lines(item)
    return value, number


def _joined_lines(value: Any) -> Any:
    return "".join(value) if isinstance(value, list) and all(isinstance(line, str) for line in value) else value


def _joined(source: str | list[str] | None) -> str:
    return "".join(source) if isinstance(source, list) else source or ""
