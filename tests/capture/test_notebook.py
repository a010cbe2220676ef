"""Notebooks by their parts: what a run or another front-end changes is no change of the code."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from repro_env.capture import notebook
from repro_env.capture.notebook import change, look, same_code
from repro_env.io.files import walk
from repro_env.model.spec import Notebook

Json = dict[str, Any]


def code(source: str | list[str], *, count: int | None = 1, outputs: tuple[Json, ...] = (), **more: Any) -> Json:
    return {"cell_type": "code", "source": source, "execution_count": count, "outputs": list(outputs), "metadata": {}, **more}


def words(source: str | list[str], **more: Any) -> Json:
    return {"cell_type": "markdown", "source": source, "metadata": {}, **more}


def stream(text: str | list[str]) -> Json:
    return {"output_type": "stream", "name": "stdout", "text": text}


def book(*cells: Json, **more: Any) -> Json:
    return {"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": list(cells), **more}


def read(root: Path, value: Json, **options: Any) -> Notebook:
    (root / "n.ipynb").write_text(json.dumps(value, **options))
    looked = look(root, tuple(walk(root)))
    assert looked.problems == ()
    return looked.notebooks[0]


PLAIN = book(words("# Title"), code("import torch\nprint(1)", outputs=(stream("1\n"),)), code("2 + 2", count=2))


def test_each_part_has_a_digest_of_its_own(tmp_path: Path) -> None:
    plain = read(tmp_path, PLAIN)
    assert plain.path == "n.ipynb"
    title, first, second = PLAIN["cells"]
    cases = {
        "code": [book(title, code("import torch\nprint(2)", outputs=(stream("1\n"),)), second), book(title, second, first),
                 book(title, first), book(title, {**first, "cell_type": "raw"}, second), book(title, first, code("2 +  2", count=2))],
        "text, not code": [book(words("# Other"), first, second), book(first, title, second),
                           book(title, first, {**second, "metadata": {"tags": ["parameters"]}}),
                           book({**title, "attachments": {"a.png": {"image/png": "aa"}}}, first, second)],
        "outputs only": [book(title, {**first, "outputs": [stream("2\n")]}, second), book(title, {**first, "execution_count": 7}, second),
                         book(title, {**first, "outputs": []}, {**second, "execution_count": None})],
    }  # fmt: skip
    seen = {plain}
    for expected, values in cases.items():
        for value in values:
            other = read(tmp_path, value)
            assert change(plain, other) == expected
            assert same_code([plain], [other]) is (expected != "code")
            seen.add(other)
    assert len(seen) == 13
    counted = read(tmp_path, cases["outputs only"][1])
    assert (counted.outputs, counted.code, counted.text) == (plain.outputs, plain.code, plain.text)
    printed = read(tmp_path, cases["outputs only"][0])
    assert (printed.counts, printed.code, printed.text) == (plain.counts, plain.code, plain.text)


def test_what_another_front_end_writes_otherwise(tmp_path: Path) -> None:
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


def test_an_output_s_own_count_is_a_count(tmp_path: Path) -> None:
    def result(count: int, text: str) -> Json:
        data = {"text/plain": [text], "application/json": {"a": [1, 2.5]}}
        return {"output_type": "execute_result", "execution_count": count, "data": data, "metadata": {"x": 1}}

    one, again, other = (
        read(tmp_path, book(code("4", count=n, outputs=(result(n, text),)))) for n, text in ((1, "4"), (9, "4"), (1, "5"))
    )
    assert (one.outputs == again.outputs, one.counts == again.counts) == (True, False)
    assert (one.outputs == other.outputs, one.counts == other.counts) == (False, True)


def test_format_3_has_the_code_of_its_format_4(tmp_path: Path) -> None:
    old = {
        "nbformat": 3,
        "worksheets": [
            {
                "cells": [
                    {"cell_type": "heading", "level": 1, "source": ["Title"]},
                    {"cell_type": "code", "input": ["import torch\n", "print(1)"], "prompt_number": 1, "language": "python",
                     "outputs": [{"output_type": "stream", "stream": "stdout", "text": ["1\n"]}]},
                    {"cell_type": "code", "input": "2 + 2", "prompt_number": 2, "outputs": []},
                ]
            }
        ],
    }  # fmt: skip
    assert change(read(tmp_path, PLAIN), read(tmp_path, old)) == "outputs only"


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "not complete JSON"),
        (b'{"nbformat": 4, "cells": [', "not complete JSON"),
        (b"[]", "Expected `object`"),
        (b'{"cells": []}', "nbformat"),
        (b'{"nbformat": 5, "cells": []}', "its format is 5"),
        (b'{"nbformat": 4, "cells": 3}', "Expected `array"),
        (b'{"nbformat": 4, "cells": [{"cell_type": "code", "source": 3}]}', "Expected"),
        (b'{"nbformat": 4, "cells": [{"cell_type": "code", "source": "\\ud800"}]}', "not complete JSON"),
        (b'{"nbformat": 4, "metadata": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested too deeply"),
        (b"\xff\xfe\x00", "not complete JSON"),
        (b"<<<<<<< HEAD\n{}\n", "not complete JSON"),
    ],
)
def test_what_is_no_notebook_is_a_line(tmp_path: Path, data: bytes, why: str) -> None:
    (tmp_path / "n.ipynb").write_bytes(data)
    looked = look(tmp_path, tuple(walk(tmp_path)))
    assert looked.notebooks == ()
    assert len(looked.problems) == 1
    assert looked.problems[0].startswith("n.ipynb is compared as a plain file, not as a notebook: ")
    assert why in looked.problems[0]
    assert notebook.try_read(tmp_path, "n.ipynb") is None


def test_numbers_that_json_does_not_know(tmp_path: Path) -> None:
    nan = {"output_type": "display_data", "data": {"application/json": {"y": [float("nan"), float("inf")]}}, "metadata": {}}
    large = {"output_type": "display_data", "data": {"application/json": 10**40}, "metadata": {}}
    plain = read(tmp_path, book(code("1")))
    assert change(plain, read(tmp_path, book(code("1", outputs=(nan,))))) == "outputs only"
    assert change(plain, read(tmp_path, book(code("1", outputs=(large,))))) == "outputs only"


def test_a_huge_one_is_not_read_and_others_are_no_notebooks(tmp_path: Path) -> None:
    with (tmp_path / "huge.ipynb").open("wb") as file:
        file.truncate(200_000_000)
    (tmp_path / "folder.ipynb").mkdir()
    (tmp_path / "notes.json").write_text(json.dumps(PLAIN))
    (tmp_path / "link.ipynb").symlink_to("notes.json")
    looked = look(tmp_path, tuple(walk(tmp_path)))
    assert looked.notebooks == ()
    assert looked.problems == (
        "huge.ipynb is compared as a plain file, not as a notebook: it cannot be read: it is larger than 67,108,864 bytes",
    )


def test_one_that_vanished_or_became_a_pipe(tmp_path: Path) -> None:
    for name in ("gone.ipynb", "pipe.ipynb"):
        (tmp_path / name).write_text(json.dumps(PLAIN))
    found = tuple(walk(tmp_path))
    (tmp_path / "gone.ipynb").unlink()
    (tmp_path / "pipe.ipynb").unlink()
    os.mkfifo(tmp_path / "pipe.ipynb")
    looked = look(tmp_path, found)
    assert [line.rpartition(": ")[2] for line in looked.problems] == [
        "No such file or directory",
        "it is a named pipe, not a regular file",
    ]


def test_same_code_is_of_all_notebooks(tmp_path: Path) -> None:
    one = read(tmp_path, PLAIN)
    assert same_code((one,), (one,))
    assert not same_code((one,), ())
