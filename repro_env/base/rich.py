"""A requirement of an rpm package: a capability, or a boolean expression of such ("rich dependency", rpm's boolean dependencies).

Versions are dropped: rpm checked them when it installed the package.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Generic, TypeVar

import msgspec

from repro_env.model.errors import LockError

T = TypeVar("T")
_VERSION = re.compile(r"[<>=]+\Z")
_WORDS = ("and", "or", "if", "unless", "else", "with", "without")


class Asked(msgspec.Struct, frozen=True):
    """An operator and what stands around it; `if` and `unless` may have a third part, after `else`."""

    operator: str
    parts: tuple[Asked | str, ...]


class Resolver(Generic[T]):
    """What meets a requirement, given what is installed: `providers` tells who provides a capability, best first."""

    def __init__(self, providers: Callable[[str], list[T]]) -> None:
        self._providers = providers

    def meet(self, asked: Asked | str) -> list[T] | None:
        """One provider for each capability that counts; None when it is not met."""
        if isinstance(asked, str):
            return self._all(asked)[:1] or None
        first, *others = asked.parts
        if asked.operator == "and":
            found = [self.meet(part) for part in asked.parts]
            return None if None in found else [one for met in found if met is not None for one in met]
        if asked.operator == "or":
            return next((met for part in asked.parts if (met := self.meet(part)) is not None), None)
        if asked.operator in ("if", "unless"):
            holds = (self.meet(others[0]) is not None) == (asked.operator == "if")
            return self.meet(first) if holds else self.meet(others[1]) if others[1:] else []
        return self._all(asked)[:1] or None

    def _all(self, asked: Asked | str) -> list[T]:
        """Every single package that meets it: what `with` and `without` are about."""
        if isinstance(asked, str):
            return self._providers(asked)
        found = self._all(asked.parts[0])
        for part in asked.parts[1:]:
            others = self._all(part)
            if asked.operator == "or":
                found = found + [one for one in others if one not in found]
            else:
                found = [one for one in found if (one in others) == (asked.operator != "without")]
        return found


def parse(text: str) -> Asked | str:
    """A requirement as rpm writes it. Raises `LockError` for an expression that does not end well."""
    if not text.startswith("("):
        return text
    found, end = _expression(text, 0)
    if end != len(text):
        raise _malformed(text)
    return found


def _expression(text: str, at: int) -> tuple[Asked | str, int]:
    """What stands between the parenthesis at `at` and its partner, and the place after that."""
    parts: list[Asked | str] = []
    operators: list[str] = []
    at += 1
    while True:
        part, at = _operand(text, at)
        parts.append(part)
        word, at = _word(text, at)
        if word == ")":
            break
        if word not in _WORDS:
            raise _malformed(text)
        operators.append(word)
    if not operators:
        return parts[0], at
    if operators[0] in ("if", "unless"):
        good = operators[1:] in ([], ["else"])
    else:
        good = len(set(operators)) == 1 and operators[0] != "else"
    if not good:
        raise _malformed(text)
    return Asked(operators[0], tuple(parts)), at


def _operand(text: str, at: int) -> tuple[Asked | str, int]:
    at = _blank(text, at)
    if text[at : at + 1] == "(":
        return _expression(text, at)
    name, at = _word(text, at)
    if name in ("", ")"):
        raise _malformed(text)
    sign, after = _word(text, at)
    if _VERSION.match(sign):
        _, at = _word(text, after)
    return name, at


def _word(text: str, at: int) -> tuple[str, int]:
    """The next word: up to a blank, or to a parenthesis that it did not open itself (`libc.so.6()(64bit)` is one word)."""
    start = at = _blank(text, at)
    if text[at : at + 1] == ")":
        return ")", at + 1
    depth = 0
    while at < len(text) and not text[at].isspace():
        depth += {"(": 1, ")": -1}.get(text[at], 0)
        if depth < 0:
            break
        at += 1
    if at == start:
        raise _malformed(text)
    return text[start:at], at


def _blank(text: str, at: int) -> int:
    while at < len(text) and text[at].isspace():
        at += 1
    return at


def _malformed(text: str) -> LockError:
    return LockError("is a requirement that cannot be read", where=text, hint="rpm -Va --nofiles")
