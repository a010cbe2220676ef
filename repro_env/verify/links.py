"""What lies among outputs and is no plain file."""

from __future__ import annotations

from collections.abc import Sequence

from repro_env.verify.compared import File
from repro_env.verify.judge import Judge
from repro_env.verify.kinds import Kind
from repro_env.verify.pairing import pair


def of_links(left: Sequence[str], right: Sequence[str], judge: Judge) -> tuple[File, ...]:
    """What lies among outputs and is no plain file, as the record has it: `<path> -> <target>`, `<path> (why)`; paired as files are."""
    then, now = dict(_other(line) for line in left), dict(_other(line) for line in right)
    paired = pair(then, now, judge.pair_names)
    found = [_both(one.left, one.right, then[one.left], now[one.right], judge) for one in paired.pairs]
    found += [_alone(path, then[path], judge, gone=True) for path in paired.missing]
    found += [_alone(path, now[path], judge, gone=False) for path in paired.new]
    return tuple(sorted(found, key=lambda one: (one.path or one.now, one.now)))


def _kind(path: str, judge: Judge) -> Kind:
    return "ignored" if judge.left_out(path) else "result"


def _both(path: str, there: str, one: str, other: str, judge: Judge) -> File:
    if not path:  # a sentence about all of them
        return File(path=one or other, now=other, kind="result", level=None, by="nothing", why="the outputs are not all there")
    kind = _kind(path, judge)
    if one.startswith("(") or other.startswith("("):
        why = f"it is no file {other if other.startswith('(') else one}"
        return File(path=path, now=there, kind=kind, level=None, by="nothing", why=why)
    return judge.equal(path, there, kind) if one == other else judge.of_link(path, there, kind, one, other)


def _alone(path: str, target: str, judge: Judge, *, gone: bool) -> File:
    if not path or target.startswith("("):
        return _both(path, path, target, target, judge)
    why = "the link is missing" if gone else "the link is new"
    return File(
        path=path if gone else "", now="" if gone else path, kind=_kind(path, judge), level="different", by="link", why=why
    )


def _other(line: str) -> tuple[str, str]:
    path, arrow, target = line.partition(" -> ")
    if arrow:
        return path, target
    path, bracket, why = line.rpartition(" (")
    return path, f"({why}" if bracket else line
