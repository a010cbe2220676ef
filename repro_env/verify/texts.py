"""Text whose bytes differ: line by line."""

from __future__ import annotations

from repro_env.verify.compared import Change


def changes(left: str, right: str) -> list[Change]:
    """Lines at the same place; a line that is there on one side alone has None on the other.

    Only a line feed ends a line: a carriage return is content, and so is the end of the last line.
    """
    one, other = left.split("\n"), right.split("\n")
    common = min(len(one), len(other))
    found = [
        Change(place="", at=f"line {number}", then=then, now=now)
        for number, (then, now) in enumerate(zip(one, other, strict=False), 1)
        if then != now
    ]
    found += [Change(place="", at=f"line {number}", then=line, now=None) for number, line in enumerate(one[common:], common + 1)]
    found += [
        Change(place="", at=f"line {number}", then=None, now=line) for number, line in enumerate(other[common:], common + 1)
    ]
    return found
