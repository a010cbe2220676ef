"""Tensors that differ: how far, and in a few words."""

from __future__ import annotations

import math
from collections.abc import Sequence

from repro_env.verify.answers import Answer, TensorDifference
from repro_env.verify.compared import Sameness

NEAR = 1e-2
"""Relative L2 distance of tensors that may still be rounding. Measured on a small network: 0.0007 to 0.0017 between thread
counts or instruction sets, 0.25 between two orders of the data: the two are far apart."""


def distance(said: Answer, counted: Sequence[TensorDifference]) -> Sameness:
    """Of the tensors that differ, together and each: one large tensor must not hide the others, nor noise in a small one decide.

    `counted`: those of `said` that count; where all do, its own sums are used, since not each is told.
    """
    if len(counted) == len(said.different):
        if said.odd:
            return "different"
        far, number, diff2, left2 = said.far, said.unequal, said.diff2, said.left2
    else:
        if said.unequal > len(said.different) or any(one.ulp < 0 or one.specials for one in counted):
            return "different"
        far, number = sum(one.relative > NEAR for one in counted), len(counted)
        diff2, left2 = sum(one.diff2 for one in counted), sum(one.left2 for one in counted)
    pooled = math.sqrt(diff2 / left2) if left2 > 0 else math.inf
    return "numeric" if pooled <= NEAR and 2 * far <= number else "different"


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
