"""Find out which parts of a machine a test needs: the markers `docker`, `slurm`, `torch` and `root`.

One rule sets them: a test has a marker if it, or what it uses of `tests`, says to `need` what is missing with one of the marker's
words. Words of a function that calls one with `need` in it count too, such as the module in `python_with("torch")`.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import re
from collections.abc import Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

import pytest

from tests.parts import need

WORDS = {
    "docker": re.compile(r"\b([Dd]ocker(?!-registry)|podman|engine)\b"),
    "slurm": re.compile(r"\b[Ss]lurm"),
    "torch": re.compile(r"\b(torch|trainers|lightning|transformers)\b"),
    "root": re.compile(r"\b(uid 0|root)\b"),
}


def set_markers(item: pytest.Item) -> None:
    fixtures = getattr(item, "_fixtureinfo").name2fixturedefs  # noqa: B009 - not public
    functions = {getattr(item, "function", None), *(fixture.func for found in fixtures.values() for fixture in found)}
    for marker in {marker for function in functions for marker in markers(inspect.unwrap(function))}:
        item.add_marker(marker)


@functools.cache
def markers(function: Any) -> frozenset[str]:
    """The markers of a test or fixture."""
    reached: set[Any] = set()
    waiting = [function]
    while waiting:
        caller = waiting.pop()
        if caller not in reached:
            reached.add(caller)
            waiting += used(caller)
    callers = (caller for caller in reached if needs(caller) or any(map(needs, used(caller))))
    words = " ".join(word for caller in callers for word in constants(caller))
    return frozenset(marker for marker, word in WORDS.items() if word.search(words))


def needs(function: Any) -> bool:
    return need in used(function)


@functools.cache
def used(function: Any) -> tuple[Any, ...]:
    """The functions and methods of `tests` that a function names."""
    if not isinstance(function, FunctionType):
        return ()
    found: list[Any] = []
    for code in codes(function.__code__):
        for name in code.co_names:
            # an import inside the function has the name of the module
            value = importlib.import_module(name) if name.startswith("tests.") else function.__globals__.get(name)
            if isinstance(value, ModuleType) and value.__name__.startswith("tests."):
                found += [vars(value)[other] for other in code.co_names if other in vars(value)]
            else:
                found.append(value)
    classes = [value for value in found if inspect.isclass(value) and value.__module__.startswith("tests.")]
    found += [member.fget if isinstance(member, property) else member for owner in classes for member in vars(owner).values()]
    unwrapped = [inspect.unwrap(value) for value in found if callable(value) and not inspect.isclass(value)]
    return tuple(value for value in unwrapped if isinstance(value, FunctionType) and value.__module__.startswith("tests."))


def constants(function: FunctionType) -> Iterator[str]:
    for code in codes(function.__code__):
        yield from (value for value in code.co_consts if isinstance(value, str) and value != function.__doc__)


def codes(code: CodeType) -> Iterator[CodeType]:
    """The code of a function, and of those within it."""
    yield code
    for value in code.co_consts:
        if isinstance(value, CodeType):
            yield from codes(value)
