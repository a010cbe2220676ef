"""Answers about two files, as the reader in the sandbox gives them, in this process."""

from __future__ import annotations

import json
from pathlib import Path

from repro_env.compare.outputs.tensors import Answer, answers
from repro_env.guest.tensors import pairs


def look(place: Path, end: str, left: bytes, right: bytes) -> Answer:
    """The answer about two files of this content, whose names end so, through JSON and without NumPy."""
    paths = []
    for side, data in (("left", left), ("right", right)):
        (place / side).mkdir(exist_ok=True)
        paths.append(place / side / f"file ?#%{end}")
        paths[-1].write_bytes(data)
    (answer,) = answers(json.dumps([pairs.compare(str(paths[0]), str(paths[1]), None)]).encode(), 1)
    return answer


def changes(answer: Answer) -> list[str]:
    """The places of everything that differs, or why the files cannot be compared."""
    if answer.problem:
        return [answer.problem]
    found = [*(tensor.name for tensor in answer.different), *answer.missing, *answer.new, *(name for name, *_ in answer.others)]
    assert len(found) == answer.unequal + answer.gone + answer.come + answer.other
    return found
