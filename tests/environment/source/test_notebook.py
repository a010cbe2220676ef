"""The digest of a notebook's code, which running or saving the notebook does not change."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from repro_env.environment.source.notebook import has_same_code, look
from repro_env.io.files import walk
from repro_env.schema.spec import Notebook

Json = dict[str, Any]


def code(source: str | list[str], *, count: int | None = 1, outputs: tuple[Json, ...] = (), **more: Any) -> Json:
    return {"cell_type": "code", "source": source, "execution_count": count, "outputs": list(outputs), "metadata": {}, **more}


def markdown(source: str | list[str], **more: Any) -> Json:
    return {"cell_type": "markdown", "source": source, "metadata": {}, **more}


def stream(text: str | list[str]) -> Json:
    return {"output_type": "stream", "name": "stdout", "text": text}


def book(*cells: Json, **more: Any) -> Json:
    return {"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": list(cells), **more}


def read(root: Path, value: Json, **options: Any) -> Notebook:
    (root / "n.ipynb").write_text(json.dumps(value, **options))
    result = look(root, tuple(walk(root)))
    assert result.problems == ()
    return result.notebooks[0]


PLAIN = book(markdown("# Title"), code("import torch\nprint(1)", outputs=(stream("1\n"),)), code("2 + 2", count=2))


def test_only_code_changes_the_digest(tmp_path: Path) -> None:
    plain = read(tmp_path, PLAIN)
    assert plain.path == "n.ipynb"
    title, first, second = PLAIN["cells"]
    changed_code = [
        book(title, code("import torch\nprint(2)", outputs=(stream("1\n"),)), second), book(title, second, first),
        book(title, first), book(title, {**first, "cell_type": "raw"}, second), book(title, first, code("2 +  2", count=2)),
        book(title, first, {**second, "metadata": {"tags": ["parameters"]}}),
    ]  # fmt: skip
    assert len({read(tmp_path, value).code for value in (PLAIN, *changed_code)}) == 7
    assert not has_same_code(tmp_path, plain)
    same_code = [
        book(markdown("# Other"), first, second), book(first, title, second),
        book(title, {**first, "outputs": [stream("2\n")]}, second), book(title, {**first, "execution_count": 7}, second),
        book(title, {**first, "outputs": []}, {**second, "execution_count": None}),
    ]  # fmt: skip
    for value in same_code:
        assert read(tmp_path, value) == plain
        assert has_same_code(tmp_path, plain)


def test_a_save_by_a_different_front_end_changes_nothing(tmp_path: Path) -> None:
    plain = read(tmp_path, PLAIN)
    title, first, second = PLAIN["cells"]
    saved = book(
        {**title, "id": "aa", "source": ["# ", "Title"]},
        {**first, "id": "b1", "source": ["import torch\n", "print(1)"], "outputs": [stream(["1", "\n"])],
         "metadata": {"collapsed": True, "execution": {"iopub.execute_input": "2026-01-01T00:00:00Z"}, "scrolled": False}},
        {**second, "metadata": {"ExecuteTime": {"end_time": "x"}}},
        code("\n  ", count=None),
        metadata={"kernelspec": {"display_name": "My env", "name": "my"}, "language_info": {"version": "3.12"},
                  "widgets": {"application/vnd.jupyter.widget-state+json": {"state": {"x": 1}}}},
        nbformat_minor=2,
    )  # fmt: skip
    assert read(tmp_path, saved, indent=4, sort_keys=True) == plain
    (tmp_path / "n.ipynb").write_bytes(b"\xef\xbb\xbf" + json.dumps(saved).encode() + b"  \n\n")
    assert look(tmp_path, tuple(walk(tmp_path))).notebooks == (plain,)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "not valid JSON"),
        (b'{"nbformat": 4, "cells": [', "not valid JSON"),
        (b"[]", "Expected `object`"),
        (b'{"cells": []}', "nbformat"),
        (b'{"nbformat": 3, "worksheets": []}', "its format is 3"),
        (b'{"nbformat": 4, "cells": 3}', "Expected `array"),
        (b'{"nbformat": 4, "cells": [{"cell_type": "code", "source": 3}]}', "Expected"),
        (b'{"nbformat": 4, "cells": [{"cell_type": "code", "source": "\\ud800"}]}', "not valid JSON"),
        (b'{"nbformat": 4, "metadata": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested too deeply"),
        (b"\xff\xfe\x00", "not valid JSON"),
        (b"<<<<<<< HEAD\n{}\n", "not valid JSON"),
    ],
)
def test_a_file_that_is_not_a_notebook_is_a_problem(tmp_path: Path, data: bytes, why: str) -> None:
    (tmp_path / "n.ipynb").write_bytes(data)
    result = look(tmp_path, tuple(walk(tmp_path)))
    assert result.notebooks == ()
    assert len(result.problems) == 1
    assert result.problems[0].startswith("n.ipynb is compared as a plain file, not as a notebook: ")
    assert why in result.problems[0]
    assert not has_same_code(tmp_path, Notebook(path="n.ipynb", code="sha256:" + "0" * 64))


def test_numbers_that_are_not_valid_json_can_be_read(tmp_path: Path) -> None:
    nan = {"output_type": "display_data", "data": {"application/json": {"y": [float("nan"), float("inf")]}}, "metadata": {}}
    large = {"output_type": "display_data", "data": {"application/json": 10**40}, "metadata": {}}
    plain = read(tmp_path, book(code("1")))
    assert read(tmp_path, book(code("1", outputs=(nan,)))) == plain
    assert read(tmp_path, book(code("1", outputs=(large,)))) == plain


def test_large_files_directories_and_links_are_not_read(tmp_path: Path) -> None:
    with (tmp_path / "huge.ipynb").open("wb") as file:
        file.truncate(200_000_000)
    (tmp_path / "directory.ipynb").mkdir()
    (tmp_path / "notes.json").write_text(json.dumps(PLAIN))
    (tmp_path / "link.ipynb").symlink_to("notes.json")
    result = look(tmp_path, tuple(walk(tmp_path)))
    assert result.notebooks == ()
    assert result.problems == (
        "huge.ipynb is compared as a plain file, not as a notebook: it cannot be read: it is larger than 67,108,864 bytes",
    )


def test_a_notebook_that_was_removed_or_replaced_by_a_pipe_is_a_problem(tmp_path: Path) -> None:
    for name in ("gone.ipynb", "pipe.ipynb"):
        (tmp_path / name).write_text(json.dumps(PLAIN))
    found = tuple(walk(tmp_path))
    (tmp_path / "gone.ipynb").unlink()
    (tmp_path / "pipe.ipynb").unlink()
    os.mkfifo(tmp_path / "pipe.ipynb")
    result = look(tmp_path, found)
    assert [line.rpartition(": ")[2] for line in result.problems] == [
        "No such file or directory",
        "it is a named pipe, not a regular file",
    ]
