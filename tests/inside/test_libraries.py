"""Zips, and files of libraries that keep a time or a random name in a field of their own: that field alone does not count."""

from __future__ import annotations

import io
import json
import pickle
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from repro_env.verify import outputs
from tests.fakes.tensors import Tensor, checkpoint, npy
from tests.verify import sides

Members = Mapping[str, bytes]
ONE, TWO = npy(Tensor((1.0, 2.0), (2,), "F32")), npy(Tensor((1.0, 3.0), (2,), "F32"))
TYPES = {"[Content_Types].xml": b""}
CORE = '<cp:coreProperties><dcterms:created xsi:type="dcterms:W3CDTF">{}</dcterms:created><dc:title>{}</dc:title></cp:coreProperties>'
WEIGHTS = {"model.weights.h5": b"1"}
CONFIG = '{{"a": {{"shared_object_id": {}}}, "b": {{"shared_object_id": {}}}, "units": {}}}'
SKOPS = '{{"content": {{"a": {{"__id__": {0}, "file": "{0}.npy"}}, "b": {{"__id__": {1}, "content": "{2}"}}}}, "_skops_version": "0.13"}}'
GUID = "7dd58eda-98d3c497-f4d2061d-f6b9b0bf"
OTHER = "2880e477-e1bd2f2-3b31cb6b-4236f6cd"


def zipped(members: Members) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for name, data in members.items():
            archive.writestr(zipfile.ZipInfo(name), data)
    return made.getvalue()


def book(when: str, title: str = "a", name: str = "docProps/core.xml") -> Members:
    return {**TYPES, name: CORE.format(when, title).encode()}


def keras(one: int, other: int, units: int = 3, date: str = "2026-07-01@10:15:30") -> Members:
    about = json.dumps({"keras_version": "3.15.1", "date_saved": date})
    return {**WEIGHTS, "metadata.json": about.encode(), "config.json": CONFIG.format(one, other, units).encode()}


def skops(one: int, other: int, value: float = 1.5, array: bytes = ONE) -> Members:
    return {"schema.json": SKOPS.format(one, other, value).encode(), f"{one}.npy": array}


def cbm(guid: str, when: str = "2026-07-01T10:15:30Z", name: bytes = b"model_guid") -> bytes:
    """As CatBoost has it: texts with their lengths before them, and zeros up to a multiple of four after them."""
    texts = (guid.encode(), name, when.encode(), b"train_finish_time")
    packed = (len(one).to_bytes(4, "little") + one.ljust((len(one) + 4) // 4 * 4, b"\0") for one in texts)
    return b"CBM1\x00\x01\x00\x00" + b"".join(packed) + b"leaves 0.5"


def told(tmp_path: Path, left: bytes, right: bytes, name: str, *, masked: bool = True) -> outputs.File:
    paths = tmp_path / f"l{name}", tmp_path / f"r{name}"
    for path, data in zip(paths, (left, right), strict=True):
        path.write_bytes(data)
    assert outputs.holds_tensors(name, left[:8])
    (answer,) = sides.look([(*paths, masked)])
    return outputs.of_tensors(name, name, "result", answer, masked=masked)


@pytest.mark.parametrize(
    ("left", "right", "named"),
    [
        ({"a/x": b"1", "b/x": b"2"}, {"a/x": b"3", "b/x": b"2"}, "a/x"),
        ({"a/x": b"1", "b/x": b"2"}, {"a/x": b"2", "b/x": b"1"}, "2 of 2"),
        ({"a/x": b"1"}, {"b/x": b"1"}, "a/x missing"),
        ({"a/x": b"1", "version": b""}, {"b/x": b"1", "version": b""}, "a/x missing"),
        ({"x": b"1", "x.npy": ONE}, {"x": b"1", "x.npy": TWO}, "x.npy"),
        ({"x": b"1", "x.npy": ONE}, {"x": b"2", "x.npy": ONE}, "x ("),
        ({"x.npy": ONE}, {"x.npy": ONE, "y.npy": ONE}, "y new"),
    ],
)
def test_every_member_of_a_zip_counts_by_its_whole_name(left: Members, right: Members, named: str, tmp_path: Path) -> None:
    found = told(tmp_path, zipped(left), zipped(right), "a.zip")
    assert found.level != "bitwise"
    assert named in found.why
    assert not found.apart


def test_what_torch_packed_is_named_after_its_file(tmp_path: Path) -> None:
    for about in ("version", ".data/version"):
        left, right = ({f"{top}/{about}": b"3", f"{top}/code/a.py": b"1"} for top in ("a", "b"))
        assert told(tmp_path, zipped(left), zipped(right), "a.pt").level == "bitwise"
        assert told(tmp_path, zipped(left), zipped({**right, "b/code/a.py": b"2"}), "a.pt").level == "different"
    assert told(tmp_path, checkpoint({"a": 1}, name="a"), checkpoint({"a": 1}, name="b"), "a.pt").level == "bitwise"


@pytest.mark.parametrize(
    ("left", "right", "named"),
    [
        (book("2026-07-01T10:15:30Z"), book("2026-07-02T23:01:02Z"), "docProps/core.xml.created: 2026"),
        (keras(140243240336352, 140243240336353), keras(140484035328992, 140484035328991), "config.json.shared_object_id.0: 140"),
        (keras(1, 1), keras(2, 2), "config.json.shared_object_id.0: 1"),
        (
            skops(139907094509968, 7),
            skops(140393198074256, 8),
            "schema.json.skops_object_id.0: 139907094509968 -> 140393198074256",
        ),
        (keras(1, 1), keras(1, 1, date="2026-07-02@23:01:02"), "metadata.json.date_saved: 2026"),
    ],
)
def test_a_field_of_a_library_is_told_and_does_not_count(left: Members, right: Members, named: str, tmp_path: Path) -> None:
    found = told(tmp_path, zipped(left), zipped(right), "a.zip")
    assert (found.level, found.apart[0][: len(named)]) == ("bitwise", named)
    assert told(tmp_path, zipped(left), zipped(right), "a.zip", masked=False).level == "different"


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (book("2026-07-01T10:15:30Z"), book("2026-07-01T10:15:30Z", "b")),
        (book("2026-07-01T10:15:30Z"), book("1782900930")),
        (book("2026-07-01T10:15:30Z", name="xl/core.xml"), book("2026-07-02T23:01:02Z", name="xl/core.xml")),
        ({"docProps/core.xml": b"a"}, {"docProps/core.xml": b"b"}),
        (skops(11, 12), skops(13, 13)),
        (skops(11, 12), skops(13, 14, 2.5)),
        (skops(11, 12), skops(13, 14, array=TWO)),
        (skops(11, 12), {**skops(13, 14), "0.npy": TWO}),
        ({"schema.json": b'{"__id__": 1}'}, {"schema.json": b'{"__id__": 2}'}),
        (keras(1, 1), keras(1, 2)),
        (keras(1, 2), keras(1, 1)),
        (keras(1, 2), keras(1, 2, 4)),
        (keras(1, 2), keras(1, 2, date="none")),
        (keras(1, 2), {**keras(1, 2), "model.weights.h5": b"2"}),
        ({"config.json": CONFIG.format(1, 2, 3).encode()}, {"config.json": CONFIG.format(3, 4, 3).encode()}),
    ],
)
def test_all_else_counts(left: Members, right: Members, tmp_path: Path) -> None:
    assert told(tmp_path, zipped(left), zipped(right), "a.zip").level == "different"


def test_a_model_of_catboost_has_a_random_name_and_a_time(tmp_path: Path) -> None:
    left, right = cbm(GUID), cbm(OTHER, "2026-07-02T23:01:02Z")
    for before, after, name in ((left, right, "m.cbm"), (pickle.dumps({"m": left}), pickle.dumps({"m": right}), "m.pkl")):
        found = told(tmp_path, before, after, name)
        assert (found.level, len(found.apart)) == ("bitwise", 2)
        assert told(tmp_path, before, after, name, masked=False).level == "different"
        assert told(tmp_path, before, after.replace(b"0.5", b"0.6"), name).level == "different"


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (cbm(GUID), cbm("mine")),
        (cbm(GUID, name=b"model_name"), cbm(OTHER, name=b"model_name")),
        (cbm(GUID) + cbm(GUID), cbm(GUID) + cbm(OTHER)),
        (cbm(GUID), cbm(GUID, "none")),
        (b"CBM1a", b"CBM1b"),
    ],
)
def test_only_the_fields_themselves_do_not_count(left: bytes, right: bytes, tmp_path: Path) -> None:
    assert told(tmp_path, left, right, "m.cbm").level == "different"


@pytest.mark.parametrize(
    ("name", "level"), [("mean_fit_time", "bitwise"), ("mean_test_time", "different"), ("time", "different")]
)
def test_how_long_a_search_took_is_told_by_its_own_name_alone(name: str, level: str, tmp_path: Path) -> None:
    """What scikit-learn's `cv_results_` are, saved by themselves: the names are theirs, and `time` is one of anybody's."""
    left, right = (zipped({f"{name}.npy": one}) for one in (ONE, TWO))
    assert told(tmp_path, left, right, "cv.npz").level == ("bitwise" if level == "bitwise" else "different")
    assert told(tmp_path, left, right, "cv.npz", masked=False).level == "different"
    longer = zipped({f"{name}.npy": npy(Tensor((1.0, 2.0, 3.0), (3,), "F32"))})
    assert told(tmp_path, left, longer, "cv.npz").level == "different"


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ((1, 2), [1, 2]),
        ((), []),
        (set(), {}),
        ({1, 2}, frozenset({1, 2})),
        (b"ab", bytearray(b"ab")),
        ({"a": ((1,),)}, {"a": ([1],)}),
        ([10**5000], [10**5000 + 1]),
        ([-(10**5000)], [10**5000]),
    ],
)
def test_what_holds_the_same_is_not_the_same(left: object, right: object, tmp_path: Path) -> None:
    assert told(tmp_path, pickle.dumps(left), pickle.dumps(right), "m.pkl").level == "different"
    assert told(tmp_path, pickle.dumps(left, 5), pickle.dumps(left, 4), "m.pkl").level == "bitwise"


@pytest.mark.parametrize(
    ("left", "right", "level"),
    [
        ("no-name-0a1b2c3d-0a1b-0a1b-0a1b-0a1b2c3d4e5f", "no-name-1a1b2c3d-0a1b-0a1b-0a1b-0a1b2c3d4e5f", "bitwise"),
        ("no-name-0a1b2c3d-0a1b-0a1b-0a1b-0a1b2c3d4e5f", "a-name-1a1b2c3d-0a1b-0a1b-0a1b-0a1b2c3d4e5f", "different"),
        ("run-1", "run-2", "different"),
        ("1782900930", "1782900931", "different"),
        ("a/run-3 ok", "a/run-4 ok", "different"),
    ],
)
def test_a_random_name_that_is_a_key(left: str, right: str, level: str, tmp_path: Path) -> None:
    assert told(tmp_path, pickle.dumps({left: 0.5}), pickle.dumps({right: 0.5}), "m.pkl").level == level
