"""Where in a file a secret may be: the first pass of the search, which `rules` judges.

It returns more than there is: each position of a mark, and the rules to be tried there.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, chain

from repro_env.environment.secrets import runs
from repro_env.environment.secrets.engine import Engine
from repro_env.environment.secrets.rules import DISCORD, HEADS, MARKS, Form, Rule
from repro_env.schema.patterns import lazy

Candidate = tuple[int, Sequence[Rule]]

ENGINE = Engine()
_AROUND = 120
"""Bytes on each side of a run that have every mark that counts as near it."""


def _set(characters: Iterable[bytes]) -> bytes:
    return b"[" + b"".join(sorted({re.escape(character) for character in characters})) + b"]"


_HEAD = b"(?:%s)" % b"|".join(
    re.escape(first) + _set(head[1:2] for head in heads) + _set(head[2:] for head in heads)
    for first in sorted({head[:1] for head in HEADS})
    for heads in [[head for head in HEADS if head[:1] == first]]
)
"""What all beginnings of tokens match, and little else."""
_WORD_HEAD = lazy(rb"[^A-Za-z0-9](?=(?:[nrt]|[0-9A-F]{2})?%s)" % _HEAD)
_ANY_HEAD = lazy(rb"(?s:.)(?=%s)" % _HEAD)


def find(data: bytes, form: Form) -> tuple[Iterable[Candidate], Iterable[int]]:
    """Return the candidates in some bytes, and in binary files the positions of text with several bytes per character."""
    return ENGINE.find(data, text=form.text) or (_find(data, form), () if form.text else runs.find_wide(data))


def _find(data: bytes, form: Form) -> Iterator[Candidate]:
    return chain(_marks(data, form, near_runs=False), _near_runs(data, form, lambda near: _marks(near, form, near_runs=True)))


def find_tokens(data: bytes, form: Form) -> Iterator[Candidate]:
    """Yield the candidates for tokens that are recognized by how they begin."""
    return _near_runs(data, form, lambda _: ())


def _near_runs(data: bytes, form: Form, others: Callable[[bytes], Iterable[Candidate]]) -> Iterator[Candidate]:
    """Yield the tokens and others near runs. All that is near them is searched in a row, which is faster than one by one."""
    spans: list[list[int]] = []
    for start, end in runs.find(data, program=form.program):
        if data[end : end + 1] == b"." and data[start] in b"MNO":
            yield end, (DISCORD,)
        if spans and start - _AROUND <= spans[-1][1]:
            spans[-1][1] = end + _AROUND
        else:
            spans.append([max(0, start - _AROUND), end + _AROUND])
    parts = [data[start:end] for start, end in spans]
    begins, near = list(accumulate((len(part) + 1 for part in parts), initial=1)), b"\n".join((b"", *parts))
    for position, rules in chain(_heads(near, form), others(near)) if spans else ():
        index = bisect_right(begins, position) - 1
        yield spans[index][0] + position - begins[index], rules


def _heads(data: bytes, form: Form) -> Iterator[Candidate]:
    for match in (_WORD_HEAD if form.text or form.program else _ANY_HEAD).finditer(data):
        for position in range(match.end(), match.end() + 3):
            if (rules := HEADS.get(data[position : position + 3])) is not None:
                yield position, rules


def _marks(data: bytes, form: Form, *, near_runs: bool) -> Iterator[Candidate]:
    for searched, text in ((data, False), (data.lower() if form.text else b"", True)):
        for mark, rules in MARKS[text, near_runs].items():
            position = searched.find(mark)
            while position >= 0:
                yield position, rules
                position = searched.find(mark, position + len(mark))
