"""Seeds that a script or its libraries set themselves, for people: one line for each call that set them."""

from __future__ import annotations

from collections.abc import Iterable

from repro_env.catalog.noted import OTHERS
from repro_env.model.run import Seeded

_SHOWN = 3


def lines(seeded: Iterable[Seeded], *, whole: bool) -> list[str]:
    """Of one call, values in the order in which they were set. `whole`: every value that the record holds."""
    places: dict[tuple[str, str, int], list[str]] = {}
    for one in seeded:
        places.setdefault((one.what, one.file, one.line), []).append(one.value)
    return [_line(what, f"{file}:{line}", values, whole=whole) for (what, file, line), values in places.items()]


def _line(what: str, where: str, values: list[str], *, whole: bool) -> str:
    known = [value for value in values if value != OTHERS]
    if len(values) == 1 and known:
        return f"{what}({known[0]}) at {where}"
    more = "more than " * (len(known) < len(values))
    shown = known if whole else known[:_SHOWN]
    end = ", ..." if len(shown) < len(values) else ""
    return f"{what} at {where}, with {more}{len(known)} values: {', '.join(shown)}{end}"
