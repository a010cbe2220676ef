"""Read the library list, `fields.toml`: fields in which equal runs differ because of the library that wrote the file."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from fnmatch import translate
from functools import cache
from pathlib import Path

import msgspec

from repro_env.compare.outputs.ignore import Ignore
from repro_env.schema import toml
from repro_env.schema.codec import Frozen

LIST = Path(__file__).with_name("fields.toml")
_DURATION = re.compile(r"[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
_PATH = "(path)"
"""The place of a random name in the path of a file."""


class Field(Frozen, frozen=True, kw_only=True):
    """An entry of the list. A comment at the top of the list describes the keys."""

    library: str
    versions: str
    file: str
    written_by: tuple[str, ...]
    places: tuple[str, ...]
    kind: str
    why: str
    form: str = ""
    one_to_one: bool = False

    @property
    def reason(self) -> str:
        return f"{self.why} ({self.library})"

    @property
    def whole(self) -> bool:
        """Whether the entry is about the whole file."""
        return self.places == ("*",)

    @property
    def ignores(self) -> tuple[Ignore, ...]:
        return tuple(Ignore("*", place, any_depth=False) for place in self.places if place not in ("*", _PATH))

    def matches_file(self, path: str) -> bool:
        return _path(self.file).search(path) is not None

    def fits(self, *values: str) -> bool:
        """Whether all values have the form that the library gives them. A duration is a number, or a tensor of them."""
        if self.kind == "duration" and not self.form and values[0] != "a tensor":
            return all(_DURATION.fullmatch(value) for value in values)
        return not self.form or all(re.fullmatch(self.form, value.strip('"')) for value in values)

    def names(self, paths: Iterable[str]) -> list[str]:
        """Return the random names in the paths of a run, in the order of the paths."""
        if _PATH not in self.places:
            return []
        matches = (match for path in sorted(paths) if (match := _path(self.file).search(path)))
        return list(dict.fromkeys(name for match in matches for name in match.groups() if self.fits(name)))


@cache
def all_fields() -> tuple[Field, ...]:
    return msgspec.convert(toml.loads(LIST.read_text(encoding="utf-8"))["field"], type=tuple[Field, ...])


def random_names(paths: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Return (name, its meaning) for all random names of libraries in the paths of a run.

    Lightning's progress bar shows the last four characters of such a name as `v_num`.
    """
    names = [
        (name, f"{field.reason}, number {number}") for field in all_fields() for number, name in enumerate(field.names(paths))
    ]
    ends = [(f"v_num{sign}{name[-4:]}", f"the end of {what}") for name, what in names for sign in ("=", ": ")]
    return tuple(dict.fromkeys([*names, *ends]))


@cache
def _path(glob: str) -> re.Pattern[str]:
    """Compile a glob for the last parts of a path."""
    pieces = [translate(piece).removeprefix("(?s:").removesuffix(r")\Z") for piece in glob.split("{}")]
    return re.compile(rf"(?s)(?:\A|/){'([^/]+?)'.join(pieces)}\Z")
