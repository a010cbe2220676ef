"""What lies among outputs and is no plain file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from repro_env.verify import masks
from repro_env.verify.compared import File, renamed
from repro_env.verify.kinds import kind_of, matches
from repro_env.verify.pairing import pair

_NAMED = 3


def of_links(left: Sequence[str], right: Sequence[str], results: Sequence[str], ignored: Sequence[str]) -> tuple[File, ...]:
    """What lies among outputs and is no plain file, as the record has it: `<path> -> <target>`, `<path> (why)`.

    Paired as files are: by path, then by path with what is another each time taken out.
    """
    then, now = dict(_other(line) for line in left), dict(_other(line) for line in right)
    paired = pair(_masked(then, results), _masked(now, results))
    found = [_both(one.left, one.right, then[one.left], now[one.right], results, ignored) for one in paired.pairs]
    found += [_alone(path, then[path], results, ignored, gone=True) for path in paired.missing]
    found += [_alone(path, now[path], results, ignored, gone=False) for path in paired.new]
    for one in paired.ambiguous:
        found += [_unclear(path, "", one.right, results, ignored) for path in one.left]
        found += [_unclear("", path, one.left, results, ignored) for path in one.right]
    return tuple(sorted(found, key=lambda one: (one.path or one.now, one.now)))


def _masked(there: Mapping[str, str], results: Sequence[str]) -> dict[str, str]:
    """Path -> what counts of where it leads: such as are equal in that are the same."""
    return {path: target if matches(path, results) else masks.name(target) for path, target in there.items()}


def _both(path: str, there: str, one: str, other: str, results: Sequence[str], ignored: Sequence[str]) -> File:
    kind = kind_of(path, results, ignored)
    if not path:  # a sentence about all of them
        return File(path=one or other, now=other, kind="result", level=None, by="nothing", why="the outputs are not all there")
    if one.startswith("(") or other.startswith("("):
        why = f"it is no file {other if other.startswith('(') else one}"
        return File(path=path, now=there, kind=kind, level=None, by="nothing", why=why)
    if one == other or (not matches(path, results) and masks.name(one) == masks.name(other)):
        apart = (*renamed(path, there), *(() if one == other else (f"it leads to {other}, not {one}",)))
        return File(path=path, now=there, kind=kind, level="bitwise", by="link", apart=apart)
    why = f"the link leads to {other}, not {one}"
    return File(path=path, now=there, kind=kind, level="different", by="link", why=why, apart=renamed(path, there))


def _alone(path: str, target: str, results: Sequence[str], ignored: Sequence[str], *, gone: bool) -> File:
    if not path or target.startswith("("):
        return _both(path, path, target, target, results, ignored)
    kind = kind_of(path, results, ignored)
    why = "the link is missing" if gone else "the link is new"
    return File(path=path if gone else "", now="" if gone else path, kind=kind, level="different", by="link", why=why)


def _unclear(path: str, now: str, others: Sequence[str], results: Sequence[str], ignored: Sequence[str]) -> File:
    why = f"it could be paired with any of {', '.join(others[:_NAMED])}{' …' * (len(others) > _NAMED)}"
    return File(path=path, now=now, kind=kind_of(path or now, results, ignored), level=None, by="nothing", why=why)


def _other(line: str) -> tuple[str, str]:
    path, arrow, target = line.partition(" -> ")
    if arrow:
        return path, target
    path, bracket, why = line.rpartition(" (")
    return path, f"({why}" if bracket else line
