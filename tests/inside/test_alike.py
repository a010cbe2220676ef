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
from tests.fakes.looks import changes, look
from tests.fakes.tensors import Tensor, checkpoint, npy, safetensors


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
    "a member beside what torch saved": (
        ".pt",
        archive(("a/data.pkl", PICKLED), ("a/x", b"1"), ("b/x", b"1")),
        archive(("a/data.pkl", PICKLED), ("a/x", b"2"), ("b/x", b"1")),
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
    end, left, right = DIFFERENT[name]
    assert changes(look(tmp_path, end, left, right))
    assert changes(look(tmp_path, end, right, left))


def state_dict(version: int, names: str = "ab") -> Any:
    state = collections.OrderedDict((name, ONE) for name in names)
    state.__dict__["_metadata"] = collections.OrderedDict({"": {"version": version}})
    return state


class Thing:
    def __init__(self, **parts: object) -> None:
        self.__dict__.update(parts)


def nan(payload: int) -> float:
    (value,) = struct.unpack("<d", struct.pack("<Q", 0x7FF8000000000000 | payload))
    return float(value)


def big_endian(data: bytes) -> bytes:
    """An .npy file of the same two floats, with the bytes of each in the other order."""
    swapped = b"".join(data[at : at + 4][::-1] for at in (len(data) - 8, len(data) - 4))
    return data[:-8].replace(b"<f4", b">f4") + swapped


SHARED = [1]
GRAD = Tensor([1.0, 2.0], grad=True)
VALUES: dict[str, tuple[str, bytes, bytes, list[str]]] = {
    "a parameter for a tensor": (
        ".pt",
        checkpoint({"w": ONE}),
        checkpoint({"w": Tensor([1.0, 2.0], parameter=True)}),
        ["w (class)"],
    ),
    "a frozen layer": (".pt", checkpoint({"w": GRAD}), checkpoint({"w": ONE}), ["w (requires_grad)"]),
    "a frozen parameter": (
        ".pt",
        checkpoint({"w": Tensor([1.0, 2.0], parameter=True, grad=True)}),
        checkpoint({"w": Tensor([1.0, 2.0], parameter=True)}),
        ["w (requires_grad)"],
    ),
    "a hook": (
        ".pt",
        checkpoint({"w": ONE}),
        checkpoint({"w": Tensor([1.0, 2.0], hooks={1: "f"})}),
        ["w (hooks).1", "w (hooks) (class)"],
    ),
    "tied weights": (".pt", checkpoint({"a": ONE, "b": ONE}), checkpoint({"a": ONE, "b": Tensor([1.0, 2.0])}), ["b (storage)"]),
    "a version of a module": (".pt", checkpoint(state_dict(1)), checkpoint(state_dict(2)), ["_metadata..version"]),
    "the order of a state dict": (".pt", checkpoint(state_dict(1)), checkpoint(state_dict(1, "ba")), ["(order)"]),
    "the order of a dict": (".pkl", pickle.dumps({"c": {"a": 1, "b": 2}}), pickle.dumps({"c": {"b": 2, "a": 1}}), ["c (order)"]),
    "the order of attributes": (".pkl", pickle.dumps(Thing(a=1, b=2)), pickle.dumps(Thing(b=2, a=1)), ["(order)"]),
    "the order of keys beside a new one": (
        ".pkl",
        pickle.dumps({"a": 1, "b": 2}),
        pickle.dumps({"b": 2, "n": 0, "a": 1}),
        ["n", "(order)"],
    ),
    "an ordered dict": (".pkl", pickle.dumps({"a": 1}), pickle.dumps(collections.OrderedDict(a=1)), ["(class)"]),
    "one object twice": (
        ".pkl",
        pickle.dumps({"a": SHARED, "b": SHARED}),
        pickle.dumps({"a": [1], "b": [1]}),
        ["b", "b.0"],
    ),
    "the order of the header of safetensors": (
        ".safetensors",
        raw_safetensors(SAFE % ("U8", ',"b":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}'), b"abc"),
        raw_safetensors('{"b":{"dtype":"U8","shape":[1],"data_offsets":[2,3]},' + (SAFE % ("U8", ""))[1:], b"abc"),
        ["(order)"],
    ),
    "the order of the data of safetensors": (
        ".safetensors",
        raw_safetensors(SAFE % ("U8", ',"b":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}'), b"abc"),
        raw_safetensors(
            '{"a":{"dtype":"U8","shape":[2],"data_offsets":[1,3]},"b":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}', b"cab"
        ),
        ["(data order)"],
    ),
    "the order of bytes": (".npy", npy(ONE), big_endian(npy(ONE)), ["(byte order)"]),
    "the order of elements": (".npy", npy(ONE), npy(ONE, fortran=True), ["(memory order)"]),
    "a kind of path": (
        ".pkl",
        pickle.dumps({"at": pathlib.PurePosixPath("/a")}),
        pickle.dumps({"at": pathlib.PurePath("/a").parent / "b"}),
        ["at"],
    ),
    "a payload of no number": (".pkl", pickle.dumps({"a": nan(1)}), pickle.dumps({"a": nan(2)}), ["a"]),
    "a payload of a complex one": (".pkl", pickle.dumps(complex(0, nan(1))), pickle.dumps(complex(0, nan(2))), [""]),
    "a minus before zero": (".pkl", pickle.dumps([0.0]), pickle.dumps([-0.0]), ["0"]),
}


@pytest.mark.parametrize("name", VALUES)
def test_every_value_is_named_and_nothing_else(name: str, tmp_path: Path) -> None:
    end, left, right, named = VALUES[name]
    assert sorted(changes(look(tmp_path, end, left, right))) == sorted(named)
    assert changes(look(tmp_path, end, left, left)) == []


def test_both_sides_of_a_value_are_shown(tmp_path: Path) -> None:
    found = look(tmp_path, ".pt", checkpoint({"w": GRAD}), checkpoint({"w": ONE}))
    assert found.others == (("w (requires_grad)", "True", "False"),)
    found = look(tmp_path, ".pt", checkpoint({"a": ONE, "b": ONE}), checkpoint({"a": ONE, "b": Tensor([1.0, 2.0])}))
    assert found.others == (("b (storage)", "shares its storage with a", None),)
    found = look(tmp_path, ".pkl", pickle.dumps({"a": 5}), pickle.dumps({"a": "5"}))
    assert found.others == (("a", "5 (int)", "5 (str)"),)


def test_a_value_made_of_one_argument_is_shown_as_it(tmp_path: Path) -> None:
    moments = (datetime.datetime(2026, 7, day, 10, 15, 30) for day in (1, 2))  # noqa: DTZ001
    left, right = (pickle.dumps({"at": moment, "in": pathlib.PurePosixPath(f"/{moment.day}")}) for moment in moments)
    assert look(tmp_path, ".pkl", left, right).others == (
        ("at", "2026-07-01 10:15:30.000000", "2026-07-02 10:15:30.000000"),
        ("in", "/1", "/2"),
    )


def test_a_tensor_of_another_name_has_the_same_digest(tmp_path: Path) -> None:
    found = look(tmp_path, ".pt", checkpoint({"a": ONE, "b": GRAD}), checkpoint({"c": ONE, "d": ONE}))
    assert (found.missing, found.new) == (("a", "b"), ("c", "d"))
    first, second = found.missing_digests
    assert found.new_digests[0] == first
    assert second not in found.new_digests


def test_classes_keep_their_modules(tmp_path: Path) -> None:
    found = look(tmp_path, ".pkl", pickle.dumps({"model": Thing(a=1)}), pickle.dumps({"model": Thing(a=2)}))
    assert (changes(found), found.names) == (["model.a"], ("model", "tests.inside.test_alike.Thing"))


def test_thousands_of_values_are_shown_and_all_are_counted(tmp_path: Path) -> None:
    left, right = ({f"k{number}": f"{side} {number}" for number in range(2500)} for side in ("then", "now"))
    found = look(tmp_path, ".pkl", pickle.dumps(left), pickle.dumps(right))
    assert (len(found.others), found.other) == (2000, 2500)
    longer = [pickle.dumps([side * 3000] * 300) for side in "ab"]
    found = look(tmp_path, ".pkl", *longer)
    assert found.other == 300
    assert 900_000 < sum(len(text or "") for row in found.others for text in row) <= 1 << 20


def test_a_long_value_is_marked_as_not_whole(tmp_path: Path) -> None:
    found = look(tmp_path, ".pkl", pickle.dumps("x" * 5000 + "1"), pickle.dumps("x" * 5000 + "2"))
    assert found.others == (("", "…" + "x" * 40 + "1", "…" + "x" * 40 + "2"),)
    found = look(tmp_path, ".pkl", pickle.dumps({"a": 1, "b": "x" * 5000}), pickle.dumps({"a": 1}))
    assert found.others == (("b", "…" + "x" * 4000, None),)


def test_elements_of_a_storage_that_no_tensor_has_count(tmp_path: Path) -> None:
    """The last two elements of a storage of which a tensor is the first two."""
    whole = checkpoint({"w": Tensor([1.0, 2.0, 3.0, 4.0])})
    left, right = (data.replace(b"K\x04\x85", b"K\x02\x85") for data in (whole, checkpoint({"w": Tensor([1.0, 2.0, 3.0, 5.0])})))
    assert left != whole
    found = changes(look(tmp_path, ".pt", left, right))
    assert [name for name in found if "(checksum)" not in name] == ["w (rest of storage)"]


def test_numbers_at_the_edge_can_be_told(tmp_path: Path) -> None:
    """A distance that no float holds, in one file, does not cost the others their answers."""
    found = look(tmp_path, ".npy", npy(Tensor([1.7e308], dtype="F64")), npy(Tensor([-1.7e308], dtype="F64")))
    assert found.different[0].differing == 1
    assert math.isfinite(found.different[0].absolute)
    found = look(tmp_path, ".npy", npy(Tensor([2**62 + 1], dtype="I64")), npy(Tensor([2**62], dtype="I64")))
    assert found.different[0].absolute == 1


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
    good, bad = [str(tmp_path / "l.npy"), str(tmp_path / "r.npy")], [str(tmp_path / "l.npy"), str(tmp_path / "bomb.pkl")]
    slow = [str(tmp_path / "slow.pkl"), str(tmp_path / "slow.pkl")]
    first, second, third, last = main(tmp_path, [good, bad, slow, good])
    assert first == last
    assert first["unequal"] == 1
    assert "memory" in second["problem"] or "ended" in second["problem"]
    assert "ended by signal 14" in third["problem"]
