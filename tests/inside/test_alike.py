"""Pairs of files that look alike: each was once taken for the same, or for different, by mistake."""

from __future__ import annotations

import collections
import datetime
import decimal
import io
import json
import math
import pathlib
import pickle
import struct
import zipfile
from pathlib import Path
from typing import Any

import pytest

from repro_env.inside.tensors import pairs
from repro_env.verify import masks, outputs
from repro_env.verify.outputs import File
from tests.fakes.tensors import Tensor, checkpoint, npy, safetensors


def compared(place: Path, end: str, left: bytes, right: bytes) -> File:
    one, other = place / f"l{end}", place / f"r{end}"
    one.write_bytes(left)
    other.write_bytes(right)
    (answer,) = outputs.answers(json.dumps([pairs.compare(str(one), str(other), None, masks.NAMES)]).encode(), 1)
    return outputs.of_tensors("w", "w", "result", answer)


def archive(*members: tuple[str, bytes]) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as out:
        for name, data in members:
            out.writestr(zipfile.ZipInfo(name), data)
    return made.getvalue()


def raw_safetensors(header: str, body: bytes) -> bytes:
    return struct.pack("<Q", len(header)) + header.encode() + body


ONE, TWO = Tensor([1.0, 2.0]), Tensor([1.0, 3.0])
SAFE = '{"a":{"dtype":"%s","shape":[2],"data_offsets":[0,2]}%s}'
SAVED = checkpoint({"a": ONE})
"""A checkpoint; `PICKLED` is what it holds but for storages."""
PICKLED = pickle.dumps({"a": 1})

DIFFERENT: dict[str, tuple[str, bytes, bytes]] = {
    "a second array in one .npy": (".npy", npy(ONE) + npy(ONE), npy(ONE) + npy(TWO)),
    "a second pickle in one file": (".pkl", pickle.dumps(1) + pickle.dumps(2), pickle.dumps(1) + pickle.dumps(3)),
    "a second thing in one file of torch's": (".pt", SAVED, SAVED + b"more"),
    "bytes after the tensors": (".safetensors", safetensors({"a": ONE}), safetensors({"a": ONE}) + b"x"),
    "a kind that is not known": (
        ".safetensors",
        raw_safetensors(SAFE % ("F4_A", ""), b"ab"),
        raw_safetensors(SAFE % ("F4_B", ""), b"ab"),
    ),
    "a name twice": (
        ".safetensors",
        raw_safetensors(SAFE % ("U8", ',"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}'), b"ab"),
        raw_safetensors(SAFE % ("U8", ""), b"ab"),
    ),
    "a member twice": (
        ".npz",
        archive(("a.npy", npy(ONE)), ("b.npy", npy(ONE))).replace(b"b.npy", b"a.npy"),
        archive(("a.npy", npy(TWO)), ("b.npy", npy(ONE))).replace(b"b.npy", b"a.npy"),
    ),
    "a member that no tensor is made of": (
        ".pt",
        archive(("x/data.pkl", PICKLED), ("x/extra", b"1")),
        archive(("x/data.pkl", PICKLED), ("x/extra", b"2")),
    ),
    "a text that is cut where it is told": (".pkl", pickle.dumps({"a": "x" * 9000 + "1"}), pickle.dumps({"a": "x" * 9000 + "2"})),
    "a number as text": (".pkl", pickle.dumps({"a": 5}), pickle.dumps({"a": "5"})),
    "true for one": (".pkl", pickle.dumps({"a": True}), pickle.dumps({"a": 1})),
    "a word for nothing": (".pkl", pickle.dumps({"a": None}), pickle.dumps({"a": "None"})),
    "a key as text": (".pkl", pickle.dumps({1: "a"}), pickle.dumps({"1": "a"})),
    "a key with a dot": (".pkl", pickle.dumps({"a": {"b": 1}}), pickle.dumps({"a.b": 1})),
    "bytes for text": (".pkl", pickle.dumps({"a": b""}), pickle.dumps({"a": ""})),
    "an object as a key": (".pkl", pickle.dumps({decimal.Decimal(1): 1}), pickle.dumps({decimal.Decimal(2): 1})),
    "an object in a set": (".pkl", pickle.dumps({decimal.Decimal(1)}), pickle.dumps({decimal.Decimal(2)})),
    "a set in a set": (".pkl", pickle.dumps({frozenset([1])}), pickle.dumps({frozenset([2])})),
    "text in a set": (".pkl", pickle.dumps({1, 2}), pickle.dumps({"1", 2})),
    "half a character": (".pkl", pickle.dumps({"a": "\ud800"}), pickle.dumps({"a": "\ud801"})),
    "what a dict makes of a new key": (
        ".pkl",
        pickle.dumps(collections.defaultdict(int, {"a": 1})),
        pickle.dumps(collections.defaultdict(list, {"a": 1})),
    ),
    "a time that is missing now": (".pkl", pickle.dumps({"time": 1.5, "a": 1}), pickle.dumps({"a": 1})),
    "a value below a name of a time": (".pkl", pickle.dumps({"a": 1, "time": {"acc": 1}}), pickle.dumps({"a": 1})),
    "a counter in a key": (".pkl", pickle.dumps({"x.run1": 1}), pickle.dumps({"x.run2": 1})),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_what_looks_alike_is_not_the_same(name: str, tmp_path: Path) -> None:
    found = compared(tmp_path, *DIFFERENT[name])
    assert found.level == "different", found
    assert found.why
    end, left, right = DIFFERENT[name]
    assert compared(tmp_path, end, right, left).level == "different"


SAME: dict[str, tuple[str, bytes, bytes]] = {
    "a moment of datetime": (
        ".pkl",
        pickle.dumps({"a": 1, "at": datetime.datetime(2026, 7, 1, 10, 15, 30, tzinfo=datetime.timezone.utc)}),
        pickle.dumps({"a": 1, "at": datetime.datetime(2026, 7, 2, 23, 1, 2, 500, tzinfo=datetime.timezone.utc)}),
    ),
    "a path of pathlib": (
        ".pkl",
        pickle.dumps({"a": 1, "at": pathlib.PurePosixPath("/p/outputs/2026-07-01/10-15-30")}),
        pickle.dumps({"a": 1, "at": pathlib.PurePosixPath("/p/outputs/2026-07-02/23-01-02")}),
    ),
    "a list of times": (
        ".pkl",
        pickle.dumps({"a": 1, "epoch_time": [1.5, 2.5]}),
        pickle.dumps({"a": 1, "epoch_time": [1.25, 3.5]}),
    ),
}


@pytest.mark.parametrize("name", SAME)
def test_what_means_nothing_is_no_difference(name: str, tmp_path: Path) -> None:
    found = compared(tmp_path, *SAME[name])
    assert found.level == "bitwise", found
    assert found.apart


def test_numbers_at_the_edge_can_be_told(tmp_path: Path) -> None:
    """A distance that no float holds, in one file, does not cost the others their answers."""
    found = compared(tmp_path, ".npy", npy(Tensor([1.7e308], dtype="F64")), npy(Tensor([-1.7e308], dtype="F64")))
    assert (found.level, found.tensors[0].differing) == ("different", 1)
    assert math.isfinite(found.tensors[0].absolute)
    found = compared(tmp_path, ".npy", npy(Tensor([2**62 + 1], dtype="I64")), npy(Tensor([2**62], dtype="I64")))
    assert found.tensors[0].absolute == 1


def main(place: Path, wanted: list[Any]) -> Any:
    (place / "wanted").write_text(json.dumps(wanted))
    pairs.main(str(place / "wanted"), str(place / "out"))
    return json.loads((place / "out").read_text())


def test_a_file_that_kills_the_look_costs_the_others_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "l.npy").write_bytes(npy(ONE))
    (tmp_path / "r.npy").write_bytes(npy(TWO))
    # A place of a memo far away: 64 GB are asked for.
    (tmp_path / "bomb.pkl").write_bytes(b"\x80\x02]r\xff\xff\xff\x7f.")
    # Tuples of tuples: hashing them takes longer than anyone waits.
    (tmp_path / "slow.pkl").write_bytes(b"\x80\x02}K\x01\x85" + b"q\x00h\x00\x86" * 60 + b"K\x01s.")
    monkeypatch.setattr(pairs, "_LONGEST", 2)
    good, bad = [str(tmp_path / "l.npy"), str(tmp_path / "r.npy"), []], [str(tmp_path / "l.npy"), str(tmp_path / "bomb.pkl"), []]
    slow = [str(tmp_path / "slow.pkl"), str(tmp_path / "slow.pkl"), []]
    first, second, third, last = main(tmp_path, [good, bad, slow, good])
    assert first == last
    assert first["unequal"] == 1
    assert "memory" in second["problem"] or "ended" in second["problem"]
    assert "ended by signal 14" in third["problem"]
