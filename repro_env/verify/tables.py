"""CSV and TSV whose bytes differ: cell by cell."""

from __future__ import annotations

import csv
import io

from repro_env.verify.closeness import value
from repro_env.verify.compared import SHOWN, File, Sameness, cut, renamed, those, worse
from repro_env.verify.kinds import Kind


def of_table(path: str, now: str, kind: Kind, left: str, right: str, *, masked: bool) -> File | None:
    """None for what is no table with one header line and as many rows and columns on both sides."""
    mark = "\t" if path.lower().endswith(".tsv") else ","
    try:
        one, other = (list(csv.reader(io.StringIO(text, newline=""), delimiter=mark, strict=True)) for text in (left, right))
    except csv.Error:
        return None
    if len(one) != len(other) or len(one) < 2 or one[0] != other[0] or any(len(row) != len(one[0]) for row in (*one, *other)):
        return None
    level: Sameness = "bitwise"
    apart: dict[str, int] = {}
    named: dict[str, int] = {}
    shown = []
    for number, (then, there) in enumerate(zip(one[1:], other[1:], strict=True), 2):
        for column, before, after in zip(one[0], then, there, strict=True):
            if before == after:
                continue
            timed = masked and column == "score_time" and "fit_time" in one[0]  # scikit-learn's `cross_validate`
            # A column of hosts may be one of animals: in a table the name alone says nothing.
            how = None if timed else value(column, before, after, masked=masked and column.lower() != "host")
            if how is None:
                apart[column] = apart.get(column, 0) + 1
                continue
            level = worse(level, how)
            named[column] = named.get(column, 0) + 1
            shown += [f"- line {number}, {column}: {cut(before)}", f"+ line {number}, {column}: {cut(after)}"]
    told = [f"{column} in {count:,} of {len(one) - 1:,} lines" for column, count in apart.items()]
    if not named and not told:
        told = ["only line ends or quotes differ"]
    return File(
        path=path,
        now=now,
        kind=kind,
        level=level,
        by="table",
        why=those([f"{column} in {count:,} of {len(one) - 1:,} lines" for column, count in named.items()], shown),
        apart=(*renamed(path, now), *told),
        shown=tuple(shown[:SHOWN]),
    )
