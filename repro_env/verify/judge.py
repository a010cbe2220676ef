"""One output of two runs: are its differences explained? Pure: bytes, changes and answers come in, a `File` comes out."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

from repro_env.verify import binaries, events, evidence, jsons, tables, texts
from repro_env.verify.answers import Answer, TensorDifference
from repro_env.verify.closeness import numbers
from repro_env.verify.compared import (
    ACCEPTED,
    PACKING,
    SHOWN,
    TOLD,
    By,
    Change,
    File,
    Ignored,
    Sameness,
    cut,
    sides,
    some,
    worse,
)
from repro_env.verify.evidence import Evidence
from repro_env.verify.fields import Field, known
from repro_env.verify.ignore import Ignore, accept, accept_line
from repro_env.verify.kinds import Kind, matches
from repro_env.verify.tensors import describe, distance

LARGEST = 64 << 20
"""Bytes of a file that is read here."""
_BINARY = re.compile("[\0-\x08\x0e-\x1a\x1c-\x1f]")
"""What is in no text: small numbers that happen to be UTF-8."""
_HEADER = re.compile(r".* \((?:time|mtime|atime|ctime)\)|\(time\)")
"""A time in the header of a zip or gzip, as the reader of archives calls it."""
_LINE = re.compile(r"\(byte \d+\)")
Written = Callable[[Sequence[str]], bool]
"""Whether both files hold all of these: so is the writer of a file known."""


class Judge:
    """What two runs had for themselves, what libraries are known for, and what the user says."""

    def __init__(
        self,
        left: Evidence,
        right: Evidence,
        ignores: Sequence[Ignore] = (),
        results: Sequence[str] = (),
        fields: Collection[Field] | None = None,
    ) -> None:
        """`results`: globs of files in which only the user's word counts."""
        self.left = left
        self.right = right
        self._ignores = ignores
        self._results = results
        self._fields = known() if fields is None else fields
        self._pairing = evidence.Pairing()

    # -- whole files and names

    def left_out(self, path: str) -> str:
        """Why the user leaves out the whole file; empty where he does not."""
        return next((one.reason for one in self._ignores if one.place is None and one.matches_file(path)), "")

    def strict(self, path: str) -> bool:
        """Whether the user named this output: then neither evidence nor the library list counts."""
        return matches(path, self._results)

    def library_file(self, path: str, written: Written) -> str:
        """Why a file is left out as a whole by the library list; empty where it is not."""
        found = (field for field in self._fields if field.whole and field.matches_file(path) and written(field.written_by))
        return "" if self.strict(path) else next((field.reason for field in found), "")

    def pair_names(self, left: Sequence[str], right: Sequence[str]) -> list[tuple[str, str]]:
        """Names that are one name but for things of the runs' own; several that are so pair in their order."""
        groups: dict[str, tuple[list[str], list[str]]] = {}
        for number, (side, own) in enumerate(((left, self.left), (right, self.right))):
            for each in side:
                groups.setdefault(evidence.bare(each, own), ([], []))[number].append(each)
        pairs = (zip(sorted(ones), sorted(others), strict=True) for ones, others in groups.values() if len(ones) == len(others))
        return [pair for group in pairs for pair in group]

    def renamed(self, path: str, now: str) -> tuple[Ignored, ...]:
        found = evidence.explained(path, now, self.left, self.right) if path != now else ()
        return (Ignored(place="(path)", then=path, now=now, reason=found[0].reason, by="evidence"),) if found else ()

    # -- files

    def equal(self, path: str, now: str, kind: Kind) -> File:
        """Two files whose sha256 is the same."""
        ignored = self.renamed(path, now)
        return File(path=path, now=now, kind=kind, level=_level(ignored), ignored=ignored, ignored_count=len(ignored))

    def of_bytes(self, path: str, now: str, kind: Kind, left: bytes, right: bytes) -> File:
        """Of files whose bytes differ and that hold no tensors: by the format that their name and bytes show."""

        def written(pieces: Sequence[str]) -> bool:
            return all(piece.encode() in side for piece in pieces for side in (left, right))

        if reason := self.library_file(path, written):
            return File(path=path, now=now, kind="ignored", level=None, by="nothing", why=reason)
        by, changes, ignored = self._read(path, left, right)
        return self._file(path, now, kind, by, changes, ignored, written)

    def of_answer(self, path: str, now: str, kind: Kind, said: Answer, data: Callable[[], tuple[bytes, bytes]]) -> File:
        """Of files whose bytes differ and that were looked into by the reader of tensors. `data`: their bytes, where needed."""
        if said.problem:
            why = f"its bytes differ, and it cannot be looked into: {said.problem}"
            return File(path=path, now=now, kind=kind, level="different", why=why)

        def written(pieces: Sequence[str]) -> bool:
            left = [piece for piece in pieces if piece not in said.names]
            return not left or all(piece.encode() in side for side in data() for piece in left)

        changes = [Change(place=place, then=then, now=there) for place, then, there in said.others]
        if said.other > len(said.others):
            changes.append(Change(place="(more)", then=f"{said.other - len(said.others):,} more values differ", now=None))
        missing, new = self._moved(said)
        changes += missing + new
        return self._file(path, now, kind, "tensors", changes, (), written, said)

    def _moved(self, said: Answer) -> tuple[list[Change], list[Change]]:
        """Tensors on one side only: those under a new name that evidence explains, and that are equal, are a change of the name."""
        there = dict(zip(said.new, said.new_digests, strict=False))
        then = dict(zip(said.missing, said.missing_digests, strict=False))
        pairs = [pair for pair in self.pair_names(list(then), list(there)) if then[pair[0]] and then[pair[0]] == there[pair[1]]]
        changes = [Change(place=f"{old} (name)", then=old, now=new) for old, new in pairs]
        paired = {name for pair in pairs for name in pair}
        changes += [Change(place=name, then="a tensor", now=None) for name in said.missing if name not in paired]
        if said.gone > len(said.missing) or said.come > len(said.new):
            changes.append(Change(place="(more)", then="more tensors that only one side has", now=None))
        return changes, [Change(place=name, then=None, now="a tensor") for name in said.new if name not in paired]

    def of_link(self, path: str, now: str, kind: Kind, then: str, there: str) -> File:
        """Of two links that lead to different places."""
        return self._file(path, now, kind, "link", [Change(place="(link)", then=then, now=there)], (), lambda _: False)

    def _read(self, path: str, left: bytes, right: bytes) -> tuple[str, list[Change], tuple[Ignored, ...]]:
        name = path.rpartition("/")[2].lower()
        if name.startswith("events.out.tfevents") and (found := events.changes(left, right)) is not None:
            return "events", found[0], tuple(found[1])
        one, other, times = binaries.header_times(left, right)
        if one == other:
            return "binary", [], times
        if left[:2] == right[:2] == b"\x1f\x8b":
            old, new = (binaries.unpacked(data, LARGEST) for data in (left, right))
            if old is not None and new is not None:
                if old == new:
                    return "binary", [Change(place=PACKING, then="", now="")], times
                inner = re.sub(r"\.gz\Z", "", re.sub(r"\.svgz\Z", ".svg", path, flags=re.IGNORECASE), flags=re.IGNORECASE)
                by, changes, more = self._read(inner, old, new)
                return by, changes, (*times, *more)
        try:
            one_text, other_text = left.decode(), right.decode()
        except UnicodeDecodeError:
            return "binary", binaries.changes(one, other), times
        if any(_BINARY.search(side) for side in (one_text, other_text)):
            return "binary", binaries.changes(one, other), times
        if name.endswith((".json", ".jsonl", ".ndjson", ".ipynb")):
            if (read := jsons.changes(path, one_text, other_text, self.pair_names)) is not None:
                return "json", read or [Change(place=PACKING, then="", now="")], ()
        elif name.endswith((".csv", ".tsv")) and (read := tables.changes(path, one_text, other_text)) is not None:
            return "table", read or [Change(place=PACKING, then="", now="")], ()
        return "text", texts.changes(one_text, other_text), ()

    # -- changes

    def _file(
        self,
        path: str,
        now: str,
        kind: Kind,
        by: str,
        changes: Sequence[Change],
        told: tuple[Ignored, ...],
        written: Written,
        said: Answer | None = None,
    ) -> File:
        strict = self.strict(path)
        fields = [] if strict else [one for one in self._fields if one.matches_file(path) and written(one.written_by)]
        users = [one for one in self._ignores if one.place is not None and one.matches_file(path)]
        ignored = [*self.renamed(path, now)]
        left: list[Change] = []
        if strict and told:
            left += [Change(place=one.place, then=one.then, now=one.now) for one in told]
        else:
            ignored += told
        for change in changes:
            found = self._explained(change, users, fields, strict=strict)
            ignored += found
            if not found:
                left.append(change)
        tensors: list[TensorDifference] = []
        for tensor in said.different if said else ():
            reason = self._named(tensor.name, users, fields)
            if reason:
                ignored.append(Ignored(place=tensor.name, then="a tensor", now=describe(tensor), reason=reason[0], by=reason[1]))
            else:
                tensors.append(tensor)
        hidden = said.unequal - len(said.different) if said else 0
        if not left and not tensors and not hidden and not ignored:
            left.append(Change(place=PACKING, then="", now=""))
            if any(one.matches_place(PACKING) for one in users):
                ignored, left = [Ignored(place=PACKING, then="", now="", reason=users[0].reason, by="user")], []
        level = _level(ignored)
        for change in left:
            level = worse(level, "different" if change.then is None or change.now is None else numbers(change.then, change.now))
        if said and (tensors or hidden):
            level = worse(level, distance(said, tensors))
        return File(
            path=path,
            now=now,
            kind=kind,
            level=level,
            by=by,  # type: ignore[arg-type]
            why=_why(left, tensors, hidden, said),
            ignored=tuple(_hidden(one) for one in ignored[:TOLD]),
            ignored_count=len(ignored),
            tensors=tuple(tensors),
            shown=tuple(_shown(left))[:SHOWN],
            accept=_accept(path, left, tensors, hidden, (self.left, self.right)),
        )

    def _named(self, place: str, users: Iterable[Ignore], fields: Iterable[Field]) -> tuple[str, By] | None:
        """Who says that what stands at a place does not count, whatever it is."""
        for one in users:
            if one.matches_place(place):
                return one.reason, "user"
        for field in fields:
            if not field.one_to_one and any(one.matches_place(place) for one in field.ignores):
                return field.reason, "library"
        return None

    def _explained(self, change: Change, users: Sequence[Ignore], fields: Sequence[Field], *, strict: bool) -> list[Ignored]:
        then, now = change.then, change.now
        if change.place and (named := next((one for one in users if one.matches_place(change.place)), None)):
            return [Ignored(place=change.shown, then=then or "", now=now or "", reason=named.reason, by="user")]
        if then is None or now is None:
            return []
        if not change.place or _LINE.fullmatch(change.place):
            return self._line(change, then, now, users, fields, strict=strict)
        if strict or then[:1] == "…" or now[:1] == "…":
            return []
        if _HEADER.fullmatch(change.place):
            reason = "a header field which the format defines as a time"
            return [Ignored(place=change.shown, then=then, now=now, reason=reason, by="evidence")]
        if found := evidence.explained(then, now, self.left, self.right):
            return [Ignored(place=change.shown, then=one.then, now=one.now, reason=one.reason, by="evidence") for one in found]
        for field in fields:
            fits = field.fits(then, now) and any(one.matches_place(change.place) for one in field.ignores)
            if fits and (not field.one_to_one or self._pairing.same(then, now)):
                return [Ignored(place=change.shown, then=then, now=now, reason=field.reason, by="library")]
        return []

    def _line(
        self, change: Change, then: str, now: str, users: Sequence[Ignore], fields: Sequence[Field], *, strict: bool
    ) -> list[Ignored]:
        """Of a line of text: first what users and libraries name in it, then evidence for the rest."""
        found: list[Ignored] = []
        words: list[tuple[Ignore, str, By, Field | None]] = [(one, one.reason, "user", None) for one in users]
        words += [(one, field.reason, "library", field) for field in fields for one in field.ignores]
        for ignore, reason, by, field in words:
            old, ones = ignore.blank(then)
            new, others = ignore.blank(now)
            if old == then or len(ones) != len(others):
                continue
            pairs = [pair for pair in zip(ones, others, strict=True) if pair[0] != pair[1]]
            if field and not all(field.fits(*pair) and (not field.one_to_one or self._pairing.same(*pair)) for pair in pairs):
                continue
            then, now = old, new
            found += [Ignored(place=change.shown, then=a, now=b, reason=reason, by=by) for a, b in pairs]
        if then == now:
            return found
        rest = () if strict else evidence.explained(then, now, self.left, self.right)
        if not rest:
            return []
        return [
            *found,
            *(Ignored(place=change.shown, then=one.then, now=one.now, reason=one.reason, by="evidence") for one in rest),
        ]


def _level(ignored: Sequence[Ignored]) -> Sameness:
    return "equal except for" if ignored else "bitwise"


def _hidden(one: Ignored) -> Ignored:
    return Ignored(place=cut(one.place), then=cut(one.then), now=cut(one.now), reason=one.reason, by=one.by)


def _shown(changes: Sequence[Change]) -> Iterator[str]:
    for change in changes[:SHOWN]:
        yield from sides(f"{change.shown}: " if change.shown else "", change.then, change.now)


def _why(left: Sequence[Change], tensors: Sequence[TensorDifference], hidden: int, said: Answer | None) -> str:
    if not left and not tensors and not hidden:
        return ""
    if len(left) == 1 and left[0].place == PACKING and not tensors:
        return "its bytes differ, and no value in it does: spaces, an order, or how it is packed"
    parts = []
    if said and (tensors or hidden):
        count = len(tensors) + hidden
        worst = max(tensors, key=lambda one: (one.relative, one.absolute), default=None)
        about = (f", most {describe(worst)}" if count > 1 else f": {describe(worst)}") if worst else ""
        total = f"{count} of {said.tensors} tensors" if said.tensors > 1 else "its one tensor"
        parts.append(f"{total} differ{'s' * (count == 1)}{about}")
    elif said and said.tensors:
        parts.append(f"all {said.tensors} tensors bitwise")
    if left:
        lines = [change for change in left if not change.place]
        if len(lines) == len(left):
            parts.append(f"{len(left):,} line{'s' * (len(left) != 1)} differ{'s' * (len(left) == 1)}, from {left[0].at}")
        else:
            names = list(dict.fromkeys(change.place or change.at for change in left))
            parts.append(f"{some(names, len(names))} differ{'s' * (len(names) == 1)}")
    return "; ".join(parts)


def _accept(
    path: str, left: Sequence[Change], tensors: Sequence[TensorDifference], hidden: int, own: tuple[Evidence, Evidence]
) -> tuple[str, ...]:
    found: dict[str, None] = {}
    for place in dict.fromkeys(change.place for change in left if change.place):
        text = "" if place in ("(more)", "(size)", "(bytes)") else accept(path, place)
        if not text:
            return ()
        found[text] = None
    for change in left:
        if not change.place:
            if change.then is None or change.now is None:
                return ()
            lines = accept_line(path, evidence.bare(change.then, own[0]), evidence.bare(change.now, own[1]))
            if not lines:
                return ()
            found.update(dict.fromkeys(lines))
    for tensor in tensors:
        text = accept(path, tensor.name)
        if not text:
            return ()
        found[text] = None
    return tuple(found) if not hidden and len(found) <= ACCEPTED else ()
