"""Pairs of files that a comparison could easily report as equal, or as different, by mistake."""

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

from repro_env.guest.tensors import pairs
from tests.fakes.looks import changes, look
from tests.fakes.tensors import Tensor, checkpoint, npy, safetensors


def archive(*members: tuple[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as out:
        for name, data in members:
            out.writestr(zipfile.ZipInfo(name), data)
    return buffer.getvalue()


def raw_safetensors(header: str, body: bytes) -> bytes:
    return struct.pack("<Q", len(header)) + header.encode() + body


ONE, TWO = Tensor([1.0, 2.0]), Tensor([1.0, 3.0])
SAFE = '{"a":{"dtype":"%s","shape":[2],"data_offsets":[0,2]}%s}'
SAVED = checkpoint({"a": ONE})
PICKLED = pickle.dumps({"a": 1})

DIFFERENT: dict[str, tuple[str, bytes, bytes]] = {
    "a second array in one .npy": (".npy", npy(ONE) + npy(ONE), npy(ONE) + npy(TWO)),
    "a second pickle in one file": (".pkl", pickle.dumps(1) + pickle.dumps(2), pickle.dumps(1) + pickle.dumps(3)),
    "bytes after a file of torch": (".pt", SAVED, SAVED + b"more"),
    "bytes after the tensors": (".safetensors", safetensors({"a": ONE}), safetensors({"a": ONE}) + b"x"),
    "an unknown dtype": (
        ".safetensors",
        raw_safetensors(SAFE % ("F4_A", ""), b"ab"),
        raw_safetensors(SAFE % ("F4_B", ""), b"ab"),
    ),
    "two tensors with the same name": (
        ".safetensors",
        raw_safetensors(SAFE % ("U8", ',"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}'), b"ab"),
        raw_safetensors(SAFE % ("U8", ""), b"ab"),
    ),
    "two members with the same name": (
        ".npz",
        archive(("a.npy", npy(ONE)), ("b.npy", npy(ONE))).replace(b"b.npy", b"a.npy"),
        archive(("a.npy", npy(TWO)), ("b.npy", npy(ONE))).replace(b"b.npy", b"a.npy"),
    ),
    "a member that is not a storage": (
        ".pt",
        archive(("x/data.pkl", PICKLED), ("x/extra", b"1")),
        archive(("x/data.pkl", PICKLED), ("x/extra", b"2")),
    ),
    "a member outside of torch's directory": (
        ".pt",
        archive(("a/data.pkl", PICKLED), ("a/x", b"1"), ("b/x", b"1")),
        archive(("a/data.pkl", PICKLED), ("a/x", b"2"), ("b/x", b"1")),
    ),
    "a text that is cut in the answer": (".pkl", pickle.dumps({"a": "x" * 9000 + "1"}), pickle.dumps({"a": "x" * 9000 + "2"})),
    "a number as text": (".pkl", pickle.dumps({"a": 5}), pickle.dumps({"a": "5"})),
    "true instead of 1": (".pkl", pickle.dumps({"a": True}), pickle.dumps({"a": 1})),
    "the text None": (".pkl", pickle.dumps({"a": None}), pickle.dumps({"a": "None"})),
    "a key as text": (".pkl", pickle.dumps({1: "a"}), pickle.dumps({"1": "a"})),
    "a key with a dot": (".pkl", pickle.dumps({"a": {"b": 1}}), pickle.dumps({"a.b": 1})),
    "bytes instead of text": (".pkl", pickle.dumps({"a": b""}), pickle.dumps({"a": ""})),
    "an object as a key": (".pkl", pickle.dumps({decimal.Decimal(1): 1}), pickle.dumps({decimal.Decimal(2): 1})),
    "an object in a set": (".pkl", pickle.dumps({decimal.Decimal(1)}), pickle.dumps({decimal.Decimal(2)})),
    "a set in a set": (".pkl", pickle.dumps({frozenset([1])}), pickle.dumps({frozenset([2])})),
    "text in a set": (".pkl", pickle.dumps({1, 2}), pickle.dumps({"1", 2})),
    "an unpaired surrogate": (".pkl", pickle.dumps({"a": "\ud800"}), pickle.dumps({"a": "\ud801"})),
    "a default factory": (
        ".pkl",
        pickle.dumps(collections.defaultdict(int, {"a": 1})),
        pickle.dumps(collections.defaultdict(list, {"a": 1})),
    ),
    "a key for a time that is missing": (".pkl", pickle.dumps({"time": 1.5, "a": 1}), pickle.dumps({"a": 1})),
    "a value below a key for a time": (".pkl", pickle.dumps({"a": 1, "time": {"acc": 1}}), pickle.dumps({"a": 1})),
    "a counter in a key": (".pkl", pickle.dumps({"x.run1": 1}), pickle.dumps({"x.run2": 1})),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_a_difference_that_is_easily_missed_is_found(name: str, tmp_path: Path) -> None:
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
    "a parameter instead of a tensor": (
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
    "the order of keys next to a new key": (
        ".pkl",
        pickle.dumps({"a": 1, "b": 2}),
        pickle.dumps({"b": 2, "n": 0, "a": 1}),
        ["n", "(order)"],
    ),
    "an ordered dict": (".pkl", pickle.dumps({"a": 1}), pickle.dumps(collections.OrderedDict(a=1)), ["(class)"]),
    "a shared object": (
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
    "the payload of a NaN": (".pkl", pickle.dumps({"a": nan(1)}), pickle.dumps({"a": nan(2)}), ["a"]),
    "the payload of a complex NaN": (".pkl", pickle.dumps(complex(0, nan(1))), pickle.dumps(complex(0, nan(2))), [""]),
    "a negative zero": (".pkl", pickle.dumps([0.0]), pickle.dumps([-0.0]), ["0"]),
}


@pytest.mark.parametrize("name", VALUES)
def test_only_the_values_that_differ_are_named(name: str, tmp_path: Path) -> None:
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


def test_both_orders_are_shown(tmp_path: Path) -> None:
    left, right = VALUES["the order of the data of safetensors"][1:3]
    assert look(tmp_path, ".safetensors", left, right).others == (("(data order)", "'a', 'b'", "'b', 'a'"),)


def test_bytes_after_the_pickle_of_a_checkpoint_give_a_problem(tmp_path: Path) -> None:
    data = archive(("x/data.pkl", PICKLED + b"more"))
    assert look(tmp_path, ".pt", data, data).problem == "has bytes after its pickle"


def test_an_object_made_of_one_argument_is_shown_as_the_argument(tmp_path: Path) -> None:
    times = (datetime.datetime(2026, 7, day, 10, 15, 30) for day in (1, 2))  # noqa: DTZ001
    left, right = (pickle.dumps({"at": time, "in": pathlib.PurePosixPath(f"/{time.day}")}) for time in times)
    assert look(tmp_path, ".pkl", left, right).others == (
        ("at", "2026-07-01 10:15:30.000000", "2026-07-02 10:15:30.000000"),
        ("in", "/1", "/2"),
    )


def test_a_renamed_tensor_has_the_same_digest(tmp_path: Path) -> None:
    found = look(tmp_path, ".pt", checkpoint({"a": ONE, "b": GRAD}), checkpoint({"c": ONE, "d": ONE}))
    assert (found.missing, found.new) == (("a", "b"), ("c", "d"))
    first, second = found.missing_digests
    assert found.new_digests[0] == first
    assert second not in found.new_digests


def test_classes_are_named_with_their_modules(tmp_path: Path) -> None:
    found = look(tmp_path, ".pkl", pickle.dumps({"model": Thing(a=1)}), pickle.dumps({"model": Thing(a=2)}))
    assert (changes(found), found.names) == (["model.a"], ("model", "tests.guest.test_alike.Thing"))


def test_thousands_of_values_are_shown_and_all_are_counted(tmp_path: Path) -> None:
    left, right = ({f"k{number}": f"{side} {number}" for number in range(2500)} for side in ("then", "now"))
    found = look(tmp_path, ".pkl", pickle.dumps(left), pickle.dumps(right))
    assert (len(found.others), found.other) == (2000, 2500)
    longer = [pickle.dumps([side * 3000] * 300) for side in "ab"]
    found = look(tmp_path, ".pkl", *longer)
    assert found.other == 300
    assert 900_000 < sum(len(text or "") for row in found.others for text in row) <= 1 << 20


def test_a_long_value_is_marked_as_cut(tmp_path: Path) -> None:
    found = look(tmp_path, ".pkl", pickle.dumps("x" * 5000 + "1"), pickle.dumps("x" * 5000 + "2"))
    assert found.others == (("", "…" + "x" * 40 + "1", "…" + "x" * 40 + "2"),)
    found = look(tmp_path, ".pkl", pickle.dumps({"a": 1, "b": "x" * 5000}), pickle.dumps({"a": 1}))
    assert found.others == (("b", "…" + "x" * 4000, None),)


def test_elements_of_a_storage_in_no_tensor_are_compared(tmp_path: Path) -> None:
    """A tensor is the first two elements of a storage; the last two differ."""
    data = checkpoint({"w": Tensor([1.0, 2.0, 3.0, 4.0])})
    left, right = (side.replace(b"K\x04\x85", b"K\x02\x85") for side in (data, checkpoint({"w": Tensor([1.0, 2.0, 3.0, 5.0])})))
    assert left != data
    found = changes(look(tmp_path, ".pt", left, right))
    assert [name for name in found if "(checksum)" not in name] == ["w (rest of storage)"]


def test_distances_larger_than_any_float_are_finite_in_the_answer(tmp_path: Path) -> None:
    found = look(tmp_path, ".npy", npy(Tensor([1.7e308], dtype="F64")), npy(Tensor([-1.7e308], dtype="F64")))
    assert found.different[0].differing == 1
    assert math.isfinite(found.different[0].absolute)
    found = look(tmp_path, ".npy", npy(Tensor([2**62 + 1], dtype="I64")), npy(Tensor([2**62], dtype="I64")))
    assert found.different[0].absolute == 1


def run(directory: Path, requests: list[Any]) -> Any:
    (directory / "pairs").write_text(json.dumps(requests))
    pairs.main(str(directory / "pairs"), str(directory / "out"))
    return json.loads((directory / "out").read_text())


def test_a_file_that_crashes_the_reader_does_not_affect_the_other_pairs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "l.npy").write_bytes(npy(ONE))
    (tmp_path / "r.npy").write_bytes(npy(TWO))
    # A very large memo index: the unpickler asks for 64 GB.
    (tmp_path / "bomb.pkl").write_bytes(b"\x80\x02]r\xff\xff\xff\x7f.")
    # Nested tuples as a key: hashing them takes exponential time.
    (tmp_path / "slow.pkl").write_bytes(b"\x80\x02}K\x01\x85" + b"q\x00h\x00\x86" * 60 + b"K\x01s.")
    monkeypatch.setattr(pairs, "_SECONDS", 2)
    good, bad = [str(tmp_path / "l.npy"), str(tmp_path / "r.npy")], [str(tmp_path / "l.npy"), str(tmp_path / "bomb.pkl")]
    slow = [str(tmp_path / "slow.pkl"), str(tmp_path / "slow.pkl")]
    first, second, third, last = run(tmp_path, [good, bad, slow, good])
    assert first == last
    assert first["unequal"] == 1
    assert "memory" in second["problem"] or "ended" in second["problem"]
    assert "ended by signal 14" in third["problem"]
