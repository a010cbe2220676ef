"""A case: how to make one environment, and what is expected of it. Write a function in `cases/` and put `@case` over it."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from tests.fidelity.ground import Ground


class Case(NamedTuple):
    kind: str
    """The module of `cases/` that it stands in."""
    title: str
    make: Callable[[Ground], None]
    """Makes the environment on a ground: `at.python` is captured, everything else there is gone when it is rebuilt."""
    named: str
    """Empty: has to come back identical. Else words of the failure that has to name what cannot be held."""
    soak: bool
    """Only in `make soak`."""

    @property
    def id(self) -> str:
        return f"{self.kind}-{self.make.__name__}"

    @property
    def verdict(self) -> str:
        """What it has to be judged as: `identical`, or `named`."""
        return "named" if self.named else "identical"


_ALL: list[Case] = []


def case(title: str, *, named: str = "", soak: bool = False) -> Callable[[Callable[[Ground], None]], Callable[[Ground], None]]:
    """Make the function below a case."""

    def add(make: Callable[[Ground], None]) -> Callable[[Ground], None]:
        _ALL.append(Case(make.__module__.rpartition(".")[2], title, make, named, soak))
        return make

    return add


def cases() -> list[Case]:
    """Every case of every module in `cases/`, in order."""
    from tests.fidelity import cases as directory

    if not _ALL:
        for module in sorted(module.name for module in pkgutil.iter_modules(directory.__path__)):
            importlib.import_module(f"{directory.__name__}.{module}")
    assert len({case.id for case in _ALL}) == len({case.title for case in _ALL}) == len(_ALL), "two cases with one name"
    return list(_ALL)
