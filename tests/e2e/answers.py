"""Answers of commands as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.e2e import parts


def check(made: parts.Project, *words: str | Path, code: int | None = None, **options: Any) -> dict[str, Any]:
    """`check --json`; the exit code has to fit the answer."""
    done = made.run("check", "--json", *words, code=code, **options)
    assert done.out.count("\n") == 1, done.err
    answer = json.loads(done.out)
    assert isinstance(answer, dict)
    assert done.code == (0 if answer["same"] else 1)
    return answer


def rows(result: Mapping[str, Any]) -> dict[str, tuple[str, str, str]]:
    """What counts and follows from nothing else: last part of its name -> (level, mark, of)."""
    named = {}
    for difference in result["differences"]:
        if difference["counts"] and difference["level"] != "digests":
            mark = "+" if not difference["left"] else "-" if not difference["right"] else "~"
            named[difference["what"].rpartition("site-packages/")[2]] = (difference["level"], mark, difference["of"])
    return named


def diff(made: parts.Project, *words: str | Path, **options: Any) -> dict[str, Any]:
    done = made.run("diff", "--json", *words, code=None, **options)
    answer = json.loads(done.out)
    assert isinstance(answer, dict)
    assert done.code == (0 if answer["same"] else 1)
    return answer


def own(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Differences that count and follow from no other."""
    return [difference for difference in result["differences"] if difference["counts"] and difference["level"] != "digests"]
