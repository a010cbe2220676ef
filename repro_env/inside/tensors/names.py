"""Names that are the same once what is another each time is taken out of them."""

from typing import Any


def paired(before: "dict[str, Any]", now: "dict[str, Any]", masks: "list[tuple[Any, str]]") -> "list[list[str]]":
    """Give names of `now` that only it has the names of `before` that they equal once masked, where one alone does. Returns them."""

    def plain(names: "list[str]") -> "dict[str, str]":
        found = {}  # type: dict[str, list[str]]
        for name in names:
            masked = name
            for pattern, replacement in masks:
                masked = pattern.sub(replacement, masked)
            found.setdefault(masked, []).append(name)
        return {masked: each[0] for masked, each in found.items() if len(each) == 1}

    if not masks:
        return []
    ones = plain([name for name in before if name not in now])
    others = plain([name for name in now if name not in before])
    renamed = []
    for masked, name in ones.items():
        if masked in others:
            now[name] = now.pop(others[masked])
            renamed.append([name, others[masked]])
    return renamed
