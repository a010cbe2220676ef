"""What lies among outputs and is no plain file."""

from __future__ import annotations

from collections.abc import Sequence

from repro_env.verify import masks
from repro_env.verify.compared import File
from repro_env.verify.kinds import kind_of, matches


def of_links(left: Sequence[str], right: Sequence[str], results: Sequence[str], ignored: Sequence[str]) -> tuple[File, ...]:
    """What lies among outputs and is no plain file, as the record has it: `<path> -> <target>`, `<path> (why)`."""
    then, now = dict(_other(line) for line in left), dict(_other(line) for line in right)
    found = []
    for path in sorted(then.keys() | now.keys()):
        kind = kind_of(path, results, ignored)
        masked = not matches(path, results)
        one, other = then.get(path, ""), now.get(path, "")
        if not path:  # a sentence about all of them
            found.append(
                File(path=one or other, now=other, kind="result", level=None, by="nothing", why="the outputs are not all there")
            )
        elif one.startswith("(") or other.startswith("("):
            found.append(File(path=path, now=path, kind=kind, level=None, by="nothing", why=f"it is no file {other or one}"))
        elif one == other or (one and other and masked and masks.name(one) == masks.name(other)):
            apart = () if one == other else (f"it leads to {other}, not {one}",)
            found.append(File(path=path, now=path, kind=kind, level="bitwise", by="link", apart=apart))
        else:
            why = (
                f"the link leads to {other}, not {one}"
                if one and other
                else "the link is new"
                if other
                else "the link is missing"
            )
            found.append(
                File(path=path if one else "", now=path if other else "", kind=kind, level="different", by="link", why=why)
            )
    return tuple(found)


def _other(line: str) -> tuple[str, str]:
    path, arrow, target = line.partition(" -> ")
    if arrow:
        return path, target
    path, _, why = line.rpartition(" (")
    return path, f"({why}"
