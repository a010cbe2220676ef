"""What real libraries left in two runs of one script (`recorded/`): equal, and a difference in any file of it is found.

Each recording has the library's version, the script, and the outputs of a run and of its repetition by `verify --keep`; paths of the
machine were replaced, and so was what is in volatile files, into which nobody looks. A database is recorded as the SQL that makes it.
"""

from __future__ import annotations

import base64
import gzip
import io
import json
import struct
import zipfile
import zlib
from pathlib import Path
from typing import Any

import pytest

from repro_env.verify.kinds import kind_of
from repro_env.verify.verdict import Verdict
from tests.fakes import databases
from tests.verify import sides

NAMES = (
    *("wandb", "mlflow", "mlflow-sqlite", "optuna", "optuna-journal", "tensorboardx"),
    *("catboost", "excel", "hdf5", "keras", "matplotlib", "scikit-learn"),
)
Files = dict[str, bytes]


def recorded(name: str) -> dict[str, Any]:
    found = json.loads((Path(__file__).parent / "recorded" / f"{name}.json").read_bytes())
    assert isinstance(found, dict)
    return found


def files(side: dict[str, Any]) -> Files:
    return {path: content(one) for path, one in side["files"].items()}


def content(one: str | dict[str, str]) -> bytes:
    if isinstance(one, str):
        return one.encode()
    if "zlib" in one:
        return zlib.decompress(base64.b64decode(one["zlib"]))
    return databases.made(one["sql"]) if "sql" in one else base64.b64decode(one["base64"])


def judged(root: Path, found: dict[str, Any], right: Files) -> Verdict:
    links = tuple(found["left"]["others"]), tuple(found["right"]["others"])
    return sides.judged(root, files(found["left"]), right, links=links)


@pytest.mark.parametrize("name", NAMES)
def test_equal_runs_are_equal(tmp_path: Path, name: str) -> None:
    found = recorded(name)
    left, right = files(found["left"]), files(found["right"])
    assert left != right, "else nothing had to be compared"
    verdict = judged(tmp_path, found, right)
    assert (verdict.level, verdict.same) == ("bitwise", True), verdict.files
    assert all(one.level == "bitwise" for one in verdict.files if one.kind != "volatile"), "logs too"


def other(path: str, data: bytes) -> bytes:
    """With one digit or one bit that is another."""
    if "tfevents" in path:
        return data[:-5] + bytes([data[-5] ^ 1]) + data[-4:]  # the last byte of the last event; its checksum is after it
    if path.endswith((".gz", ".svgz")):
        return gzip.compress(other(path.rpartition(".")[0], gzip.decompress(data)))
    if data[:4] == b"PK\x03\x04":
        return repacked(data)
    if path in ("search.joblib", "search.pkl"):  # its last digit may be one of a span of time: the grid's 0.1, as pickles have it
        assert struct.pack(">d", 0.1) in data
        return data.replace(struct.pack(">d", 0.1), struct.pack(">d", 0.2))
    at = max((place for place, byte in enumerate(data) if chr(byte).isdigit()), default=len(data) - 1)
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def repacked(data: bytes) -> bytes:
    """A zip whose largest member is another."""
    made = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as archive, zipfile.ZipFile(made, "w") as to:
        largest = max(archive.infolist(), key=lambda one: one.file_size).filename
        for one in archive.infolist():
            to.writestr(one, other(one.filename, archive.read(one)) if one.filename == largest else archive.read(one))
    return made.getvalue()


@pytest.mark.parametrize(
    ("name", "path"),
    [(name, path) for name in NAMES for path in recorded(name)["right"]["files"] if kind_of(path) != "volatile"],
)
def test_a_difference_in_any_file_is_found(tmp_path: Path, name: str, path: str) -> None:
    found = recorded(name)
    right = files(found["right"])
    right[path] = other(path, right[path])
    verdict = judged(tmp_path, found, right)
    (one,) = [one for one in verdict.files if one.now == path]
    assert one.level in ("different", "numeric")
    assert verdict.same == (one.kind == "log"), "a log is told, and decides nothing"
    if one.kind == "log":
        assert "1 log differs" in verdict.sentence


@pytest.mark.parametrize("name", NAMES)
def test_a_file_that_is_missing_is_found(tmp_path: Path, name: str) -> None:
    found = recorded(name)
    right = files(found["right"])
    gone = next(path for path in right if kind_of(path) == "result")
    del right[gone]
    assert not judged(tmp_path, found, right).same
