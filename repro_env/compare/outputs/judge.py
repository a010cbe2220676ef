"""Decide which differences of an output have a reason. Pure: bytes, changes and answers in, `File`s out."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache
from itertools import chain

from msgspec.structs import replace

from repro_env.compare.outputs import evidence, progress, tensors
from repro_env.compare.outputs.comparison import (
    MOST_IGNORED,
    PACKED,
    Accept,
    Change,
    File,
    Ignored,
    Origin,
    Reading,
    Sameness,
    TensorDifference,
    lines,
    matches,
    shown,
    worse,
)
from repro_env.compare.outputs.evidence import Evidence, OneToOne
from repro_env.compare.outputs.fields import Field, all_fields
from repro_env.compare.outputs.formats import read
from repro_env.compare.outputs.ignore import Ignore, accept, accept_line
from repro_env.compare.outputs.rounding import only_rounds
from repro_env.compare.outputs.tensors import Answer
from repro_env.schema import redact
from repro_env.schema.codec import Frozen
from repro_env.schema.messages import shorten

_SHOWN = 12
"""How many differences `File.shown` has."""
_MOST_ACCEPTED = 200
"""The most texts in `File.accept`. A file that needs more cannot be accepted by field."""
_TENSOR = "(tensor)"
"""The place of a tensor without a name."""
_NOT_ACCEPTED = ("(more)", "(size)", "(bytes)", _TENSOR)
"""Places that `--ignore` cannot accept."""
_NAMED = 5
"""The most places of differences that a sentence names."""
_BYTES = re.compile(r"\(byte \d+\)")
_CUT = "…"
"""The start of a value of which only a part is known."""


class _Rule(Frozen, frozen=True):
    """A place of a file in which a difference does not count, from the user or from the library list."""

    ignore: Ignore
    reason: str
    by: Origin
    field: Field | None = None


class Judge:
    """Decides by the evidence of both runs, the differences that the user accepts, and the library list."""

    def __init__(
        self,
        left: Evidence,
        right: Evidence,
        ignores: Sequence[Ignore] = (),
        results: Sequence[str] = (),
    ) -> None:
        """`results`: globs of strict files, in which only `ignores` explain a difference."""
        self._left = left
        self._right = right
        self._ignores = ignores
        self._results = results
        self._random_names = OneToOne()

    def with_option(self, file: File) -> File:
        """Add the text that leaves the file out, if no other text accepts its differences."""
        if file.kind != "result" or file.equal or file.accept or file.accept_file:
            return file
        side = self._left if file.path else self._right
        return replace(file, accept_file=accept(evidence.pattern(file.name, side), None))

    def left_out(self, path: str) -> str:
        """The reason why the user ignores the whole file; empty if the user does not."""
        return next((ignore.reason for ignore in self._ignores if ignore.place is None and ignore.matches_file(path)), "")

    def pair_names(self, left: Sequence[str], right: Sequence[str]) -> list[tuple[str, str]]:
        """Pair the names that differ only in values of their runs.

        Several names can be equal without these values. They are paired in order if both sides have the same number of them.
        """
        groups: dict[str, tuple[list[str], list[str]]] = {}
        for name in sorted(left):
            groups.setdefault(evidence.mask(name, self._left), ([], []))[0].append(name)
        for name in sorted(right):
            groups.setdefault(evidence.mask(name, self._right), ([], []))[1].append(name)
        pairs = (pair for old, new in groups.values() if len(old) == len(new) for pair in zip(old, new, strict=True))
        return [pair for pair in pairs if evidence.explain(*pair, self._left, self._right)]

    # -- files

    def equal(self, file: File) -> File:
        """Judge a file with equal bytes, whose name may differ."""
        ignored = self._renamed(file)
        level: Sameness = "equal except for" if ignored else "bitwise"
        return replace(file, level=level, ignored=tuple(map(_printable, ignored)), ignored_count=len(ignored))

    def of_bytes(self, file: File, left: bytes, right: bytes) -> File:
        """Judge a file whose bytes differ."""
        fields = self._fields_of(file, lambda text: text.encode() in left and text.encode() in right)
        for field in fields:
            if field.whole:
                return replace(file, kind="ignored").not_compared(field.reason)
        return self._judge(file, read(file.path, left, right, self.pair_names), fields)

    def of_answer(self, file: File, answer: Answer, contents: Callable[[], tuple[bytes, bytes]]) -> File:
        """Judge a file whose bytes differ by the answer of the tensor reader. `contents` reads the bytes of both sides."""
        if answer.problem:
            return file.differing(f"the bytes differ, and the file cannot be read: {answer.problem}")
        contents = cache(contents)

        def contains(text: str) -> bool:
            return text in answer.names or all(text.encode() in content for content in contents())

        changes = tensors.changes(answer, self.pair_names)
        return self._judge(file, Reading("tensors", changes), self._fields_of(file, contains), answer)

    def of_link(self, file: File, then: str, now: str) -> File:
        """Judge a link with two targets."""
        return self._judge(file, Reading("link", [Change(place="(link)", then=then, now=now)]), [])

    def _strict(self, file: File) -> bool:
        return matches(file.path, self._results)

    def _fields_of(self, file: File, contains: Callable[[str], bool]) -> list[Field]:
        """Return the entries of the library list for this file. `contains`: whether both sides contain a text."""
        if self._strict(file):
            return []
        return [field for field in all_fields() if field.matches_file(file.path) and all(map(contains, field.written_by))]

    def _renamed(self, file: File) -> tuple[Ignored, ...]:
        found = evidence.explain(file.path, file.now, self._left, self._right)
        reason = ", ".join(dict.fromkeys(part.reason for part in found))
        return (Ignored("(path)", file.path, file.now, reason, "evidence"),) if found else ()

    def _judge(self, file: File, reading: Reading, fields: Sequence[Field], answer: Answer = Answer()) -> File:  # noqa: B008
        """`fields`: the entries of the library list for this file. `answer`: the tensors that differ."""
        rules = [_Rule(ignore, ignore.reason, "user") for ignore in self._ignores if ignore.matches_file(file.path)]
        rules += [_Rule(ignore, field.reason, "library", field) for field in fields for ignore in field.ignores]
        if file.kind == "console":
            rules.append(_Rule(Ignore("*", progress.PLACE), "times and speeds of a progress bar", "evidence"))
        strict = self._strict(file)
        found = reading.changes if reading.changes or answer.unequal else [PACKED]
        reasons = [self._explain(change, rules, strict=strict) for change in found]
        swapped = evidence.out_of_order(reasons)
        reasons = [[] if number in swapped else reason for number, reason in enumerate(reasons)]
        reasons_of_tensors = [self._explain(_of_tensor(tensor), rules, strict=strict) for tensor in answer.different]
        ignored = [*self._renamed(file), *chain.from_iterable((*reasons, *reasons_of_tensors))]
        changes = [change for change, reason in zip(found, reasons, strict=True) if not reason]
        different = [tensor for tensor, reason in zip(answer.different, reasons_of_tensors, strict=True) if not reason]
        unlisted = answer.unequal - len(answer.different)
        level: Sameness = "equal except for"
        for change in changes:
            level = worse(level, "numeric" if only_rounds(change.then or "", change.now or "") else "different")
        if different or unlisted:
            level = worse(level, tensors.distance(answer, different))
        has_values = not unlisted and all(change.place or None not in (change.then, change.now) for change in changes)
        name = accept(evidence.pattern(file.path, self._left), None)
        return replace(
            file,
            level=level,
            by=reading.by,
            why=_why(changes, different, answer) + "; the order of the times differs" * bool(swapped),
            ignored=tuple(map(_printable, ignored[:MOST_IGNORED])),
            ignored_count=len(ignored),
            tensors=tuple(different),
            shown=tuple(line for change in changes[:_SHOWN] for line in lines(change))[:_SHOWN],
            accept=() if unlisted else self._accept(file.path, [*changes, *map(_of_tensor, different)]),
            accept_file=f"{name}:*" if name and has_values else "",
        )

    # -- differences

    def _explain(self, change: Change, rules: Sequence[_Rule], *, strict: bool) -> list[Ignored]:
        """Return the reasons for a difference; empty if it counts."""
        then, now = change.then, change.now
        for rule in rules:
            if rule.by != "user" and change.elapsed is not None and not self._is_possible(*change.elapsed):
                continue
            if change.place and rule.ignore.matches_place(change.place) and self._applies(rule, then, now):
                return [Ignored(change.position, then or "", now or "", rule.reason, rule.by)]
        if then is None or now is None:
            return []
        if not change.place or _BYTES.fullmatch(change.place):
            return self._explain_line(change.position, then, now, rules, strict=strict)
        if strict or change.elapsed is not None or then.startswith(_CUT) or now.startswith(_CUT):
            return []
        if change.time:
            return [Ignored(change.position, then, now, "a field that the format defines as a time", "evidence")]
        return self._by_evidence(change.position, then, now)

    def _is_possible(self, then: int, now: int) -> bool:
        """Whether what the progress bars of both runs count is not longer than these runs."""
        return all(seconds <= run.ended - run.started + 1 for seconds, run in ((then, self._left), (now, self._right)))

    def _explain_line(self, position: str, then: str, now: str, rules: Sequence[_Rule], *, strict: bool) -> list[Ignored]:
        """Return the reasons for the difference between two lines, first by the rules, and by evidence for all others."""
        found: list[Ignored] = []
        for rule in rules:
            old, old_values = rule.ignore.blank(then)
            new, new_values = rule.ignore.blank(now)
            if not old_values or len(old_values) != len(new_values):
                continue
            pairs = [pair for pair in zip(old_values, new_values, strict=True) if pair[0] != pair[1]]
            if all(self._applies(rule, *pair) for pair in pairs):
                then, now = old, new
                found += [Ignored(position, *pair, rule.reason, rule.by) for pair in pairs]
        if then == now:
            return found
        explained = [] if strict else self._by_evidence(position, then, now)
        return found + explained if explained else []

    def _by_evidence(self, position: str, then: str, now: str) -> list[Ignored]:
        return evidence.explain(then, now, self._left, self._right, position)

    def _applies(self, rule: _Rule, then: str | None, now: str | None) -> bool:
        """Whether a rule that matches the place of a difference also matches its values."""
        field = rule.field
        if field is None:
            return True
        if then is None or now is None or then.startswith(_CUT) or now.startswith(_CUT) or not field.fits(then, now):
            return False
        return not field.one_to_one or self._random_names.match(then, now)

    def _accept(self, path: str, changes: Sequence[Change]) -> tuple[Accept, ...]:
        """Return the texts that together accept the differences; empty if a difference has no such text."""
        found: dict[str, Accept] = {}
        path = evidence.pattern(path, self._left)
        for change in changes:
            texts = self._texts(path, change)
            if not texts or len(found) > _MOST_ACCEPTED:
                return ()
            for text in texts:
                then, now = (shown(change.place, "(missing)" if value is None else value) for value in (change.then, change.now))
                found.setdefault(text, Accept(text, then, now))
        return tuple(found.values()) if len(found) <= _MOST_ACCEPTED else ()

    def _texts(self, path: str, change: Change) -> tuple[str, ...]:
        if change.place:
            text = "" if change.place in _NOT_ACCEPTED else accept(path, change.place)
            return (text,) if text else ()
        if change.then is None or change.now is None:
            return ()
        return accept_line(path, evidence.mask(change.then, self._left), evidence.mask(change.now, self._right))


def _of_tensor(tensor: TensorDifference) -> Change:
    return Change(place=tensor.name or _TENSOR, then="a tensor", now=tensors.describe(tensor))


def _printable(ignored: Ignored) -> Ignored:
    then, now = (shown(ignored.place, redact.value(ignored.place, value)) for value in (ignored.then, ignored.now))
    return Ignored(shown("", ignored.place), then, now, ignored.reason, ignored.by)


def _why(changes: Sequence[Change], different: Sequence[TensorDifference], answer: Answer) -> str:
    """Describe the differences that count; empty if there are none."""
    count = len(different) + answer.unequal - len(answer.different)
    if not changes and not count:
        return ""
    if list(changes) == [PACKED] and not count:
        return "the bytes differ, but no values: white space, order or compression"
    parts = []
    if count:
        parts.append(_describe_tensors(count, different, answer.tensors))
    elif answer.tensors:
        parts.append(f"all {answer.tensors} tensors are bitwise equal")
    if changes and not any(change.place for change in changes):
        parts.append(f"{len(changes):,} line{'s' * (len(changes) != 1)} differ{'s' * (len(changes) == 1)}, from {changes[0].at}")
    elif changes:
        names = list(dict.fromkeys(change.place or change.at for change in changes))
        parts.append(f"{shorten(names, _NAMED)} differ{'s' * (len(names) == 1)}")
    return "; ".join(parts)


def _describe_tensors(count: int, different: Sequence[TensorDifference], total: int) -> str:
    text = f"{count} of {total} tensors differ{'s' * (count == 1)}" if total > 1 else "the only tensor differs"
    if not different:
        return text
    worst = max(different, key=lambda tensor: (tensor.relative, tensor.absolute))
    about = f"{worst.name} ({tensors.describe(worst)})" if worst.name else tensors.describe(worst)
    return f"{text}, most of all {about}" if count > 1 else f"{text}: {about}"
