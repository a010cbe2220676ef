"""Pairs of files with tensors: the answer of the reader in the sandbox (`guest/tensors/pairs.py`), and its evaluation."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

import msgspec

from repro_env.compare.outputs.comparison import Change, PairNames, Sameness, TensorDifference
from repro_env.schema.codec import Frozen

NEAR = 1e-2
"""The largest relative L2 distance of tensors that counts as rounding. Measured on a small network: 0.0007 to 0.0017 between
thread counts or instruction sets, and 0.25 between two orders of the data."""
NEAR_DOUBLE = 1e-5
"""The same for doubles, in which programs keep measurements and times. They are rounded 500 million times less than floats."""
_HEADER = re.compile(r".* \((?:time|mtime|atime|ctime)\)|\(time\)")
"""The place of a time in a zip or gzip header; the reader puts a key with such a name in quotes."""
_TIME = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d")
"""A time in a zip or gzip header."""
_MOST_ULP = 1_000_000
"""Larger distances say no more than the absolute difference."""
_TENSORS = (".safetensors", ".pt", ".pth", ".ckpt", ".npz", ".npy", ".pkl", ".pickle", ".joblib")
_PICKLE = re.compile(r".*\.(?:pkl|pickle|joblib)(?:\.(?:gz|bz2|xz|lzma|z))?", re.DOTALL)


class Answer(Frozen, frozen=True, kw_only=True):
    """The answer for a pair of files. `guest/tensors/pairs.py` (`compare`) describes the fields."""

    problem: str = ""
    tensors: int = 0
    different: tuple[TensorDifference, ...] = ()
    unequal: int = 0
    odd: int = 0
    far: int = 0
    diff2: float = 0.0
    left2: float = 0.0
    missing: tuple[str, ...] = ()
    missing_digests: tuple[str, ...] = ()
    """The digest of each of these tensors without its name; empty if unknown."""
    gone: int = 0
    new: tuple[str, ...] = ()
    new_digests: tuple[str, ...] = ()
    come: int = 0
    values: int = 0
    others: tuple[tuple[str, str | None, str | None], ...] = ()
    """(place, left, right); None for a missing value. A text that starts with "…" is only a part of the value."""
    other: int = 0
    """The number of values that differ; `others` has the first of them."""
    names: tuple[str, ...] = ()
    """Names in both files that show their writer: classes of objects, members of a zip file, tables, top-level keys."""


def answers(data: bytes, count: int) -> tuple[Answer, ...]:
    """Parse the output of `guest/compare.py` for `count` pairs. If the output is invalid, each answer is a problem."""
    try:
        parsed = msgspec.json.decode(data, type=tuple[Answer, ...])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        return (Answer(problem=f"the tensor reader gave an invalid answer ({type(error).__name__})"),) * count
    if len(parsed) != count:
        return (Answer(problem=f"the tensor reader gave {len(parsed)} answers for {count} pairs"),) * count
    return parsed


def holds_tensors(path: str, start: bytes) -> bool:
    """Whether `guest/compare.py` reads a file with this name and these first bytes: tensors, a database or an archive."""
    return bool(path.endswith(_TENSORS) or _PICKLE.fullmatch(path) or start[:4] == b"PK\x03\x04" or start[:8] == b"SQLite f")


def changes(answer: Answer, pair_names: PairNames) -> list[Change]:
    """Return all differences except those inside tensors that both files have.

    Two tensors that exist in one file only count as a renamed tensor if evidence explains the names and they are equal.
    """
    found = [
        Change(place=place, then=then, now=now, time=_is_header_time(place, then, now)) for place, then, now in answer.others
    ]
    if answer.other > len(answer.others):
        found.append(Change(place="(more)", then=f"{answer.other - len(answer.others):,} more values differ", now=None))
    old = dict(zip(answer.missing, answer.missing_digests, strict=False))
    new = dict(zip(answer.new, answer.new_digests, strict=False))
    renamed = {then: now for then, now in pair_names(list(old), list(new)) if old[then] and old[then] == new[now]}
    found += [Change(place=f"{then} (name)", then=then, now=now) for then, now in renamed.items()]
    found += [Change(place=name, then="a tensor", now=None) for name in answer.missing if name not in renamed]
    found += [Change(place=name, then=None, now="a tensor") for name in answer.new if name not in renamed.values()]
    if answer.gone > len(answer.missing) or answer.come > len(answer.new):
        found.append(Change(place="(more)", then="more tensors that only one side has", now=None))
    return found


def _is_header_time(place: str, *values: str | None) -> bool:
    return _HEADER.fullmatch(place) is not None and all(value and _TIME.fullmatch(value) for value in values)


def distance(answer: Answer, counted: Sequence[TensorDifference]) -> Sameness:
    """Return the level of the tensors that count: numeric if all of them together are near, and at least half of them alone.

    So one large tensor does not hide the others, and noise in one small tensor does not decide. `counted`: the tensors in
    `answer.different` that count. If all of them count, the sums of the answer are used, because `different` may be incomplete.
    """
    if len(counted) == len(answer.different):
        if answer.odd:
            return "different"
        far, number, diff2, left2 = answer.far, answer.unequal, answer.diff2, answer.left2
    else:
        if answer.unequal > len(answer.different) or any(map(_is_odd, counted)):
            return "different"
        far, number = sum(tensor.relative > NEAR for tensor in counted), len(counted)
        diff2, left2 = sum(tensor.diff2 for tensor in counted), sum(tensor.left2 for tensor in counted)
    pooled = math.sqrt(diff2 / left2) if left2 > 0 else math.inf
    return "numeric" if pooled <= NEAR and 2 * far <= number else "different"


def _is_odd(tensor: TensorDifference) -> bool:
    """Whether rounding cannot explain the difference (`guest.tensors.pairs.is_odd`)."""
    is_double = tensor.dtype in ("F64", "C128")
    return tensor.ulp < 0 or tensor.specials > 0 or (is_double and tensor.relative > NEAR_DOUBLE)


def describe(tensor: TensorDifference) -> str:
    """Describe the difference between two tensors, without their name."""
    if tensor.now_dtype:
        return f"{tensor.dtype}{list(tensor.shape)} -> {tensor.now_dtype}{list(tensor.now_shape)}"
    first = f" from {list(tensor.at)}" if tensor.at else ""
    text = f"{tensor.differing:,} of {tensor.count:,} elements{first}, up to {tensor.absolute:.3g}"
    if 0 <= tensor.ulp <= _MOST_ULP:
        text += f" and {tensor.ulp:,} ULP"
    if tensor.specials:
        text += f", {tensor.specials:,} of them infinite or NaN on one side only"
    elif tensor.ulp >= 0 and math.isfinite(tensor.relative):
        text += f", relative L2 {tensor.relative:.2g}"
    return text
