"""Find the compiled files and translations that a locale needs (locale(7))."""

from __future__ import annotations

import mmap
import re
from pathlib import Path

from repro_env.environment.system.tree import LiveTree, include_all
from repro_env.schema.errors import LockError

BUILT_IN = frozenset({"", "C", "POSIX", "C.UTF-8", "C.utf8"})


def translations(locale: str) -> frozenset[str]:
    """The directories of /usr/share/locale in which gettext looks for a locale."""
    if locale in BUILT_IN:
        return frozenset()
    plain = locale.partition("@")[0].partition(".")[0]
    return frozenset({locale, locale.partition(".")[0], plain, plain.partition("_")[0]})


def add(tree: LiveTree, locale: str) -> None:
    """Add the compiled locale: its own directory, or the archive that contains it (locale(7)).

    Raises `LockError` if it is missing.
    """
    if locale in BUILT_IN:
        return
    names = _spellings(locale)
    for name in names:
        if Path("/usr/lib/locale", name).is_dir():
            tree.add_directory(f"/usr/lib/locale/{name}", include_all)
            return
    archive = Path("/usr/lib/locale/locale-archive")
    if archive.is_file():
        with archive.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            is_contained = any(data.find(name.encode() + b"\0") >= 0 for name in names)
        if is_contained:
            tree.follow(str(archive))
            return
    raise LockError(
        f"the locale {locale!r} is in use, but it is not in /usr/lib/locale",
        where=locale,
        hint=f"generate it (locale-gen {locale}), or run capture with LANG=C.UTF-8",
    )


def _spellings(locale: str) -> list[str]:
    """A locale's name, as given and as glibc normalizes it: `de_DE.UTF-8@euro` -> `de_DE.utf8@euro`."""
    head, at, modifier = locale.partition("@")
    language, dot, charset = head.partition(".")
    plain = re.sub(r"[^a-z0-9]", "", charset.lower())
    if plain.isdecimal():
        plain = f"iso{plain}"
    return list(dict.fromkeys([locale, f"{language}{dot}{plain}{at}{modifier}"]))
