"""A stranger's spec or record: no string of any field takes a control character, none is without an end, no path climbs."""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec
import pytest
from msgspec import inspect

from repro_env.schema.run import End, Start
from repro_env.schema.spec import Spec

HOSTILE = ("a\nRUN x", "a\rb", "\x1b[2J", "a\0b", "\x7f", "a\n")
CLIMBING = ("../x", "a/../../x", "/a/../x", "/a/./x", "./x", "a//b", "/a/", "..", "/..", ".")
MOST = 20_000
"""Characters of the longest string."""


def strings(kind: inspect.Type, path: str, seen: frozenset[str] = frozenset()) -> Iterator[tuple[str, inspect.StrType]]:
    """Every string that a type can hold, with the path of fields that leads there."""
    if isinstance(kind, inspect.StrType):
        yield path, kind
    elif isinstance(kind, inspect.StructType):
        assert kind.forbid_unknown_fields, f"{path}: {kind.cls.__name__} takes unknown keys"
        if kind.cls.__name__ not in seen:
            for field in kind.fields:
                yield from strings(field.type, f"{path}.{field.encode_name}", seen | {kind.cls.__name__})
    elif isinstance(kind, inspect.UnionType):
        for entry in kind.types:
            yield from strings(entry, path, seen)
    elif isinstance(kind, inspect.VarTupleType):
        yield from strings(kind.item_type, f"{path}[]", seen)
    elif isinstance(kind, inspect.TupleType):
        for entry in kind.item_types:
            yield from strings(entry, f"{path}[]", seen)
    elif isinstance(kind, inspect.DictType):
        yield from strings(kind.key_type, f"{path}{{key}}", seen)
        yield from strings(kind.value_type, f"{path}{{}}", seen)
    else:
        known = (inspect.IntType, inspect.FloatType, inspect.BoolType, inspect.NoneType, inspect.LiteralType)
        assert isinstance(kind, known), f"{path}: {kind}"


ALL = {path: kind for root in (Spec, Start, End) for path, kind in strings(inspect.type_info(root), root.__name__)}


def test_the_fields_of_every_kind_of_environment_are_among_them() -> None:
    for part in (
        "identity.other_layouts",
        "identity.packages",
        "identity.unpackaged",
        "observed.frameworks",
    ):
        assert any(part in path for path in ALL), part
    assert len(ALL) > 150


WORDS = "Start.words[]"
"""The arguments of a recorded command, which is repeated exactly. They may have line ends, and are printed escaped."""


@pytest.mark.parametrize("path", ALL)
def test_every_string_of_a_spec_has_a_bounded_pattern(path: str) -> None:
    kind = ALL[path]
    assert kind.pattern is not None, "any string would do"
    assert kind.max_length is not None or _is_bounded(kind.pattern), "it has no end"
    assert (kind.max_length or 0) <= MOST
    if path == WORDS:
        assert re.search(kind.pattern, "a\0b") is None, "no argument of a program can contain it"
        return
    assert [text for text in HOSTILE if re.search(kind.pattern, text)] == []
    assert kind.pattern.endswith(r"\Z"), "`$` also matches before a last newline"
    if re.search(kind.pattern, "/a/b") and not re.search(kind.pattern, "a b:c"):
        assert [text for text in CLIMBING if re.search(kind.pattern, text)] == []


def _is_bounded(pattern: str) -> bool:
    return not re.search(r"[*+]|\{\d+,\}", pattern.replace("\\+", ""))


def test_the_codec_refuses_what_the_types_refuse() -> None:
    """What the types say is what decoding refuses."""
    from repro_env.schema.text import AbsPath

    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(b'"/a/../b"', type=AbsPath)
