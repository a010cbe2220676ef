"""CSV and TSV whose bytes differ: cell by cell."""

from __future__ import annotations

import csv
import io

from repro_env.verify.compared import Change


def changes(path: str, left: str, right: str) -> list[Change] | None:
    """None for what is no table with one header line and as many rows and columns on both sides."""
    mark = "\t" if path.lower().endswith(".tsv") else ","
    try:
        one, other = (list(csv.reader(io.StringIO(text, newline=""), delimiter=mark, strict=True)) for text in (left, right))
    except csv.Error:
        return None
    columns = one[0] if one else []
    if len(one) != len(other) or len(one) < 2 or columns != other[0] or len(set(columns)) != len(columns):
        return None
    if any(len(row) != len(columns) for row in (*one, *other)):
        return None
    return [
        Change(place=column or "(no name)", at=f"line {number}", then=then, now=now)
        for number, (row, there) in enumerate(zip(one[1:], other[1:], strict=True), 2)
        for column, then, now in zip(columns, row, there, strict=True)
        if then != now
    ]
