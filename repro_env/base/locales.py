"""The locale in force: which compiled files and translations it needs (locale(7))."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from repro_env.base.tree import LiveTree
from repro_env.model.errors import LockError

_BUILT_IN = frozenset({"", "C", "POSIX", "C.UTF-8", "C.utf8"})
_READ = 1 << 20


def translations(locale: str) -> frozenset[str]:
    """Folders of /usr/share/locale that gettext looks into for a locale."""
    if locale in _BUILT_IN:
        return frozenset()
    plain = locale.partition("@")[0].partition(".")[0]
    return frozenset({locale, locale.partition(".")[0], plain, plain.partition("_")[0]})


def add(tree: LiveTree, locale: str) -> None:
    """The compiled locale: its own folder, else the archive that holds it (locale(7))."""
    if locale in _BUILT_IN:
        return
    names = _spellings(locale)
    for name in names:
        if Path("/usr/lib/locale", name).is_dir():
            tree.below(f"/usr/lib/locale/{name}", lambda path, is_dir: False)  # noqa: ARG005
            return
    archive = Path("/usr/lib/locale/locale-archive")
    if archive.is_file() and _mentions(archive, [name.encode() + b"\0" for name in names]):
        tree.follow(str(archive))
        return
    raise LockError(
        f"the locale {locale!r} is in force and not to be found in /usr/lib/locale",
        where=locale,
        hint=f"generate it (locale-gen {locale}), or capture with LANG=C.UTF-8",
    )


def _spellings(locale: str) -> list[str]:
    """A locale's name as given and as glibc normalises it: `de_DE.UTF-8@euro` -> `de_DE.utf8@euro`."""
    head, at, modifier = locale.partition("@")
    language, dot, charset = head.partition(".")
    plain = re.sub(r"[^a-z0-9]", "", charset.lower())
    if plain.isdecimal():
        plain = f"iso{plain}"
    return list(dict.fromkeys([locale, f"{language}{dot}{plain}{at}{modifier}"]))


def _mentions(file: Path, words: Sequence[bytes]) -> bool:
    longest = max(map(len, words))
    with file.open("rb") as stream:
        tail = b""
        while chunk := stream.read(_READ):
            window = tail + chunk
            if any(word in window for word in words):
                return True
            tail = window[-longest:]
    return False
