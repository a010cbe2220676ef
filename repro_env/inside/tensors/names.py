"""Names that are the same once what is another each time is taken out of them."""

import re
from typing import Any, Sequence

from .leaves import Place, shown

_UUID = re.compile(r"(?<![0-9A-Za-z])[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}(?![0-9A-Za-z])")

_PATH = re.compile(r"(?<!\S)[^\s/]*/\S*")


def without(text: str, masks: "Sequence[tuple[re.Pattern[str], str]]") -> "tuple[str, str]":
    """A text with what is another each time taken out of each path in it, and out of all of it: two are alike where both are.

    A number beside a path belongs to none, and a counter before a space ends none.
    """

    def masked(text: str) -> str:
        for pattern, replacement in masks:
            text = pattern.sub(replacement, text)
        return text

    return _PATH.sub(lambda found: masked(found.group(0)), text), masked(text)


def paired(before: "dict[Place, Any]", now: "dict[Place, Any]", masks: "list[tuple[Any, str]]") -> "list[list[str]]":
    """Give places of `now` that only it has the names of `before` that they equal once masked, where one alone does. Returns them.

    Only names with a path or a UUID in them: any other counter is one of the script's own.
    """

    def plain(places: "list[Place]") -> "dict[tuple[object, ...], Place]":
        found = {}  # type: dict[tuple[object, ...], list[Place]]
        for place in places:
            masked = []
            for step in place:
                kind, _, name = step.partition(" ")
                masked.append((kind, without(name, masks) if "/" in name else _UUID.sub("<id>", name)))
            found.setdefault(tuple(masked), []).append(place)
        return {masked: each[0] for masked, each in found.items() if len(each) == 1}

    if not masks:
        return []
    ones = plain([place for place in before if place not in now])
    others = plain([place for place in now if place not in before])
    renamed = []
    for masked, place in ones.items():
        if masked in others:
            now[place] = now.pop(others[masked])
            renamed.append([shown(place), shown(others[masked])])
    return renamed
