"""The recipe of a run: files that say how to train, and what a resolved configuration says, value for value.

Hydra writes its composed configuration to `.hydra/config.yaml`, Lightning to `hparams.yaml` and `config.yaml`. They are
read as YAML nodes, and no object is ever made from them: a value stays as it is written (`1e-3`, `no`), whatever
its tag.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from repro_env.catalog.outputs import place
from repro_env.io.files import read_regular, sha256_of, walk
from repro_env.model import redact
from repro_env.model.errors import UsageError
from repro_env.model.run import Output, Parameter, RecipeFile

LARGEST = 1 << 18
"""Bytes of a configuration that is read: YAML is slow to read."""
_BYTES = 1 << 20
"""Of all configurations of a run."""
_NODES = 20_000
"""Of one file, aliases counted each time."""
PARAMETERS = 2000
"""Of one file."""
_DEEPEST = 50
_LONGEST = 500
"""Characters of a name."""
_NAMED = ("config.yaml", "hparams.yaml")
_HYDRA = ".hydra/config.yaml"
_REFERENCE = re.compile(r"(?<!\\)\$\{(\.*)([A-Za-z0-9_][A-Za-z0-9_.-]*)\}")
"""OmegaConf: `${a.b}` stands for another value, `${.b}` for one beside this, `${..b}` for one a level up."""
_ROUNDS = 5
"""References to references that are followed."""
_WIDEST = 2000
"""Characters that a value may grow to by references."""
_NULL = "tag:yaml.org,2002:null"
_MERGE = "tag:yaml.org,2002:merge"


class Read(msgspec.Struct, frozen=True):
    parameters: tuple[Parameter, ...] = ()
    """Sorted by file and name."""
    unread: tuple[str, ...] = ()
    """`<path> (why)`: configurations that were not read; sorted by path."""


def files(named: Sequence[str], here: Path) -> tuple[RecipeFile, ...]:
    """The files named with `--recipe`, and those in folders named so, each once, by path. `here`: the caller's folder.

    Raises `UsageError` for one that is not there or cannot be read.
    """
    found: dict[str, RecipeFile] = {}
    for word in named:
        path = here / word
        try:
            if path.is_dir():
                below = [(f"{word.rstrip('/')}/{one.path}", path / one.path) for one in walk(path) if one.kind == "file"]
            else:
                real = path.resolve(strict=True)
                below = [(word, real)] if real.is_file() else []  # a pipe has no content of its own
            for name, one in below:
                shown = redact.line(name)
                found[shown] = RecipeFile(path=shown, sha256=f"sha256:{sha256_of(one)}")
        except (OSError, RuntimeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "its links lead in a circle"
            raise UsageError(
                f"cannot be read: {reason}", where=f"--recipe {word}", hint="name a file or a folder of files"
            ) from None
        if not below:
            raise UsageError(
                "is no file, and no folder with one", where=f"--recipe {word}", hint="name a file or a folder of files"
            )
    return tuple(found[path] for path in sorted(found))


def parameters(root: Path, outputs: Sequence[Output]) -> Read:
    """What the configurations among a run's outputs say. `root` holds the outputs. Never raises for what is in them."""
    found: list[Parameter] = []
    unread: list[str] = []
    size = 0
    for output in outputs:
        if output.path.rpartition("/")[2] not in _NAMED:
            continue
        size += min(output.size, LARGEST)
        try:
            if size > _BYTES:
                raise _UnreadError("not looked at: enough was read of other configurations")
            values = of_yaml(_whole(place(root, output.path)), references=f"/{output.path}".endswith(f"/{_HYDRA}"))
        except _UnreadError as error:
            unread.append(redact.line(f"{output.path} ({error})"))
            continue
        found += [Parameter(name=name, value=value, file=output.path) for name, value in values.items()]
    return Read(tuple(sorted(found, key=lambda one: (one.file, one.name))), tuple(unread))


class _UnreadError(Exception):
    """Why a configuration is not read."""


def _whole(path: Path) -> str:
    try:
        data = read_regular(path, LARGEST)
    except OSError as error:
        raise _UnreadError(str(error.strerror)) from None
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise _UnreadError("it is not UTF-8") from None


def of_yaml(text: str, *, references: bool) -> dict[str, str]:
    """Dotted name -> value as written, of one document; `references`: OmegaConf's are followed. Raises `_UnreadError`."""
    import yaml

    values: dict[str, str] = {}
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        if not isinstance(root, yaml.MappingNode):
            raise _UnreadError("it is no mapping")
        for visited, (name, value) in enumerate(_flat(root, "", 0, [_NODES]), 1):
            if visited > PARAMETERS:
                raise _UnreadError(f"over {PARAMETERS} values")
            values[name] = value
    except (yaml.YAMLError, ValueError):  # the second: a date that is none, and the like
        raise _UnreadError("no YAML") from None
    except RecursionError:
        raise _UnreadError("nested too deep") from None
    if references:
        values = {name: _resolved(name, value, values) for name, value in values.items()}
    return {redact.line(name): redact.value(name, value) for name, value in values.items()}


def _flat(node: Any, name: str, depth: int, left: list[int]) -> Iterator[tuple[str, str]]:
    """(dotted name, value) of every scalar below a node; rows of scalars are one value. `left`: nodes that may be visited."""
    left[0] -= 1
    if left[0] < 0 or depth > _DEEPEST:
        raise _UnreadError("nested too deep" if depth > _DEEPEST else f"over {_NODES} parts")
    if len(name) > _LONGEST:
        raise _UnreadError(f"a name of over {_LONGEST} characters")
    if node.id == "mapping":
        # What is merged in comes first: the mapping's own values win, as YAML wants it.
        for key, value in sorted(node.value, key=lambda pair: bool(pair[0].tag != _MERGE)):
            if key.tag == _MERGE:
                merged = reversed(value.value) if value.id == "sequence" else [value]
                for one in merged:
                    yield from _flat(one, name, depth + 1, left)
            else:
                yield from _flat(value, _below(name, key.value if key.id == "scalar" else "?"), depth + 1, left)
        if not node.value and name:
            yield name, "{}"
    elif node.id == "sequence":
        left[0] -= len(node.value)
        if all(one.id == "scalar" for one in node.value):
            yield name, f"[{', '.join(map(_text, node.value))}]"
        else:
            for number, one in enumerate(node.value):
                yield from _flat(one, _below(name, str(number)), depth + 1, left)
    elif name:
        yield name, _text(node)


def _below(name: str, key: str) -> str:
    return f"{name}.{key}" if name else key


def _text(node: Any) -> str:
    return "null" if node.tag == _NULL else str(node.value)


def _resolved(name: str, value: str, values: dict[str, str]) -> str:
    """A value with what its references stand for; one that leads nowhere here (`${now:...}`, a mapping) stays as written."""

    def stands_for(match: re.Match[str]) -> str:
        dots, path = match[1], match[2]
        if dots:
            above = name.split(".")[: -len(dots)]
            if len(dots) > name.count(".") + 1:
                return match[0]
            path = ".".join([*above, path])
        return values.get(path, match[0])

    for _ in range(_ROUNDS):
        if "${" not in value:
            break
        made = _REFERENCE.sub(stands_for, value)
        if made == value or len(made) > _WIDEST:
            break
        value = made
    return value
