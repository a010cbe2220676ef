"""What a value consists of, and how two values differ."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from repro_env.pytestplugin.values import differences, leaves
from tests.guest.scripts import python_with

ROOT = Path(__file__).parents[2]


def found(then: object, now: object, relative: float = -1, absolute: float = -1) -> list[str]:
    return list(differences(leaves(then), leaves(now), relative=relative, absolute=absolute))


def test_a_place_is_written_as_python_writes_it() -> None:
    assert leaves({"loss": [0.5, {"a.b": None}], 3: ("x", True)}) == {
        "value['loss'][0]": 0.5,
        "value['loss'][1]['a.b']": None,
        "value[3][0]": "x",
        "value[3][1]": True,
    }


@pytest.mark.parametrize(
    "value", [0.1, 5e-324, -0.0, 1 << 100, math.inf, -math.inf, math.nan, math.inf - math.inf, "\ud800", None]
)
def test_a_value_is_equal_to_itself_in_a_record(value: object) -> None:
    stored = json.loads(json.dumps(leaves(value)))
    assert list(differences(stored, leaves(value), relative=-1, absolute=-1)) == []


@pytest.mark.parametrize(
    ("then", "now", "sentence"),
    [
        (0.5, 0.5000000000000001, "value differs: recorded 0.5, now 0.5000000000000001; 1 ULP; relative 2.2e-16"),
        (0.0, -0.0, "value differs: recorded 0.0, now -0.0"),
        ([1.5, 2.5], [1.5, 2.75], "value[1] differs: recorded 2.5, now 2.75; relative 0.1"),
        (1.0, math.nan, "value differs: recorded 1.0, now nan"),
        (7, 8, "value differs: recorded 7, now 8"),
        (7, 7.0, "value differs: recorded 7, now 7.0"),
        (True, 1, "value differs: recorded True, now 1"),
        ("a", "b", "value differs: recorded 'a', now 'b'"),
        ({"a": 1}, {"b": 1}, "value['a'] is in the record (1), but not in the value of the test"),
        ([1], [1, 2], "value[1] is in the value of the test (2), but not in the record"),
    ],
)
def test_the_first_difference_is_described(then: object, now: object, sentence: str) -> None:
    assert found(then, now)[0] == sentence


@pytest.mark.parametrize(
    ("then", "now", "relative", "absolute", "count"),
    [
        (1.0, 1.0005, 1e-3, -1, 0),
        (1.0, 1.002, 1e-3, -1, 1),
        (0.0, 1e-9, 1e-3, -1, 1),
        (0.0, 1e-9, 1e-3, 1e-8, 0),
        (0.0, -0.0, 0, -1, 0),
        (1.0, math.inf, 1e300, 1e300, 1),
        (math.nan, math.nan, 0, -1, 0),
        (1.0, math.nan, 1e300, 1e300, 1),
        (1e308, -1e308, 1e-3, -1, 1),
        (1000, 1001, 0.1, 1, 1),
        ("1.0", "1.0001", 0.1, 1, 1),
        ([1.0, 100.0], [1.5, 100.0], 0.1, -1, 1),
    ],
)
def test_only_floats_have_a_tolerance(then: object, now: object, relative: float, absolute: float, count: int) -> None:
    assert len(found(then, now, relative, absolute)) == count


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({1.5: 2}, r"value has the key 1\.5"),
        ({"a": {True: 2}}, r"value\['a'\] has the key True"),
        ([1, b"x"], r"value\[1\] is of type bytes"),
        ({1, 2}, "is of type set"),
    ],
)
def test_an_unsupported_type_is_refused(value: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        leaves(value)


def test_a_value_without_numbers_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        leaves({"losses": []})


ARRAYS = """
import json, numpy, torch
from repro_env.pytestplugin.values import differences, leaves

def found(then, now, relative=-1, absolute=-1):
    return list(differences(json.loads(json.dumps(leaves(then))), leaves(now), relative=relative, absolute=absolute))

a = numpy.arange(6, dtype="f4").reshape(2, 3) / 7
b = a.copy(); b[1, 1] = numpy.nextafter(b[1, 1], numpy.float32(9))
one_ulp = "differs: recorded 0.5714285969734192, now 0.5714286565780640; 1 of 6 elements differ; 1 ULP; relative"
for then, now in ((a, b), (torch.tensor(a), torch.tensor(b)), (a, torch.tensor(b)), (a.astype(">f4"), numpy.asfortranarray(b))):
    assert not found(then, then)
    (text,) = found([then], [now])
    assert text.startswith("value[0][1, 1] " + one_ulp[:40]) and "; 1 of 6 elements differ; 1 ULP; relative " in text, text
    assert not found(then, now, relative=1e-6)
    assert found(then, now, relative=1e-9)
for dtype in (torch.bfloat16, torch.float16, torch.float64, torch.complex64, torch.int8, torch.bool, torch.float8_e4m3fn):
    then = torch.tensor([0, 1, 0]).to(dtype)
    now = torch.tensor([0, 1, 1]).to(dtype)
    assert not found(then, then) and found(then, now)[0].startswith("value[2] differs"), dtype
assert found(torch.tensor([1j]), torch.tensor([2j]))[0].startswith("value[0] differs: recorded 1j, now 2j")
assert found(torch.tensor([1]), torch.tensor([2]), relative=9, absolute=9)
assert found(a, a.astype("f8"))[0] == "value differs: recorded an array of F32 [2, 3], now an array of F64 [2, 3]"
assert found(a, a.reshape(3, 2)) and found(a, 1.0)
assert not found(numpy.float64(0.1), 0.1) and found(numpy.float32(0.1), 0.1)
assert not found(torch.tensor([1 + 2j]).conj(), torch.tensor([1 - 2j]))
assert not found(torch.nn.Linear(2, 2).requires_grad_().weight[:0], numpy.empty((0, 2), "f4"))
weights = torch.nn.Linear(2, 2).state_dict()
assert sorted(leaves(weights)) == ["value['bias']", "value['weight']"]
for value in (numpy.array(["a"]), numpy.ma.array([1.0], mask=[True]), torch.eye(2).to_sparse(), numpy.array([None]), numpy.longdouble(1)):
    try:
        leaves(value)
    except TypeError as error:
        assert "pass numbers, text, lists" in str(error)
    else:
        raise AssertionError(value)
"""


def test_arrays_and_tensors_are_compared_with_all_bits() -> None:
    command = [python_with("torch"), "-c", ARRAYS]
    subprocess.run(command, env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}, check=True)


def test_neither_numpy_nor_torch_is_imported() -> None:
    code = "import sys, repro_env.pytestplugin.record as r; r.facts(); print({m.split('.')[0] for m in sys.modules} & {'numpy', 'torch', 'msgspec'})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
