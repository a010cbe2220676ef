"""Files of tensors and other values whose bytes differ, by what was found in them."""

from __future__ import annotations

import math

from repro_env.verify.answers import Answer, TensorDifference
from repro_env.verify.closeness import numbers
from repro_env.verify.compared import SHOWN, File, Sameness, renamed, sides, some, worse
from repro_env.verify.kinds import Kind

NEAR = 1e-2
"""Relative L2 distance of tensors that may still be rounding. Measured on a small network: 0.0007 to 0.0017 between thread
counts or instruction sets, 0.25 between two orders of the data: the two are far apart."""


def of_tensors(path: str, now: str, kind: Kind, said: Answer) -> File:
    """Of files whose bytes differ."""
    if said.problem:
        why = f"its bytes differ, and it cannot be looked into: {said.problem}"
        return File(path=path, now=now, kind=kind, level="different", why=why, apart=renamed(path, now))
    level: Sameness = "bitwise"
    parts = []
    if said.unequal or said.gone or said.come:
        level = _distance(said)
        parts.append(_tensors(said))
    elif said.tensors:
        parts.append(f"all {said.tensors} tensors bitwise")
    apart = [*renamed(path, now)]
    shown = []
    named: list[str] = []
    for name, then, there in said.others:
        level = worse(level, "different" if then is None or there is None or then == there else numbers(then, there))
        named.append(name)
        shown += sides(f"{name} = ", then, there)
    if said.other > len(said.others):
        level = "different"
    if named or said.other > len(said.others):
        parts.append(
            f"{some(named, len(named) + said.other - len(said.others))} differs"
            if len(named) == 1 == said.other
            else f"{some(named, len(named) + said.other - len(said.others))} differ"
        )
    if level == "bitwise" and not apart:
        apart.append("only how it was packed differs")
    return File(
        path=path,
        now=now,
        kind=kind,
        level=level,
        by="tensors",
        why="; ".join(parts),
        apart=tuple(apart),
        tensors=said.different,
        shown=tuple(shown[:SHOWN]),
    )


def _distance(said: Answer) -> Sameness:
    """Of the tensors that differ, together and each: one large tensor must not hide the others, nor noise in a small one decide."""
    if said.gone or said.come or said.odd:
        return "different"
    pooled = math.sqrt(said.diff2 / said.left2) if said.left2 > 0 else math.inf
    return "numeric" if pooled <= NEAR and 2 * said.far <= said.unequal else "different"


def _tensors(said: Answer) -> str:
    parts = []
    if said.unequal:
        worst = max(said.different, key=lambda one: (one.relative, one.absolute), default=None)
        about = f", most {describe(worst)}" if worst is not None and said.unequal > 1 else f": {describe(worst)}" if worst else ""
        count = f"{said.unequal} of {said.tensors} tensors" if said.tensors > 1 else "its one tensor"
        parts.append(f"{count} differ{'s' * (said.unequal == 1)}{about}")
    if said.gone:
        parts.append(f"{some(said.missing, said.gone)} missing")
    if said.come:
        parts.append(f"{some(said.new, said.come)} new")
    return "; ".join(parts)


def describe(one: TensorDifference) -> str:
    """One tensor's difference in a few words."""
    if one.now_dtype:
        return f"{one.name} {one.dtype}{list(one.shape)} -> {one.now_dtype}{list(one.now_shape)}"
    place = f" from {list(one.at)}" if one.at else ""
    how = f"{one.differing:,} of {one.count:,} elements{place}, up to {one.absolute:.3g}"
    if one.ulp >= 0:
        how += f" and {one.ulp:,} ULP"
    if one.specials:
        how += f", {one.specials:,} of them no number on one side alone"
    elif one.ulp >= 0 and math.isfinite(one.relative):
        how += f", relative L2 {one.relative:.2g}"
    return f"{one.name} ({how})" if one.name else how
