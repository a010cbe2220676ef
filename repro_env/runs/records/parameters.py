"""Read the parameters of a run from resolved configurations among its outputs.

Hydra writes the composed configuration to `.hydra/config.yaml`, Lightning to `hparams.yaml` and `config.yaml`. All scalars
are read as texts, so a value stays as it is written (`1e-3`, `no`, `${model.width}`), whatever its tag is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from repro_env.io.files import read_regular
from repro_env.schema import redact
from repro_env.schema.run import Output, Parameter
from repro_env.schema.rundirectory import locate

LARGEST = 1 << 18
"""The largest configuration that is read, in bytes: parsing YAML is slow."""
_BYTES = 1 << 20
"""The size limit for all configurations of a run together."""
_NODES = 20_000
"""The most values in a file. Each use of an alias counts."""
PARAMETERS = 2000
"""The most parameters in a file."""
_LONGEST = 500
"""The longest name, in characters."""
_NAMED = ("config.yaml", "hparams.yaml")


class Collected(msgspec.Struct, frozen=True):
    parameters: tuple[Parameter, ...] = ()
    """Sorted by file and name."""
    unparsed: tuple[str, ...] = ()
    """`<path> (why)`, for configurations that were not read; sorted by path."""


def collect(root: Path, outputs: Sequence[Output]) -> Collected:
    """Read the parameters in the configurations among a run's outputs, which are below `root`.

    Does not raise errors about the content of a file.
    """
    found: list[Parameter] = []
    unparsed: list[str] = []
    size = 0
    for output in outputs:
        if output.path.rpartition("/")[2] not in _NAMED:
            continue
        size += min(output.size, LARGEST)
        try:
            if size > _BYTES:
                raise _UnreadError("not read: the limit for all configurations of a run is reached")
            values = _parse_yaml(_read_text(locate(root, output.path)))
        except _UnreadError as error:
            unparsed.append(redact.line(f"{output.path} ({error})"))
            continue
        found += [Parameter(name=name, value=value, file=output.path) for name, value in values.items()]
    return Collected(tuple(sorted(found, key=lambda parameter: (parameter.file, parameter.name))), tuple(unparsed))


class _UnreadError(Exception):
    """The reason why a configuration is not read."""


def _read_text(path: Path) -> str:
    try:
        data = read_regular(path, LARGEST)
    except OSError as error:
        raise _UnreadError(str(error.strerror)) from None
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise _UnreadError("it is not UTF-8") from None


def _parse_yaml(text: str) -> dict[str, str]:
    """Return the parameters of a YAML document: dotted name -> value as written. Raises `_UnreadError`."""
    import yaml

    values: dict[str, str] = {}
    try:
        content = yaml.load(text, Loader=yaml.BaseLoader)  # noqa: S506 - it creates only texts, lists and mappings
        if not isinstance(content, dict):
            raise _UnreadError("it is not a mapping")
        for name, value in _flatten(content, "", [_NODES]):
            if len(values) >= PARAMETERS:
                raise _UnreadError(f"more than {PARAMETERS} values")
            values[redact.line(name)] = redact.value(name, value)
    except yaml.YAMLError:
        raise _UnreadError("not valid YAML") from None
    except RecursionError:
        raise _UnreadError("nested too deeply") from None
    return values


def _flatten(value: Any, name: str, budget: list[int]) -> Iterator[tuple[str, str]]:
    """Yield (dotted name, value) for every scalar in a value. A list of scalars is one value.

    `budget`: a list with one item, the number of values that may still be visited.
    """
    budget[0] -= len(value) if isinstance(value, list) else 1
    if budget[0] < 0:
        raise _UnreadError(f"more than {_NODES} values in mappings and lists")
    if len(name) > _LONGEST:
        raise _UnreadError(f"a name has more than {_LONGEST} characters")
    if isinstance(value, str):
        yield name, value
    elif isinstance(value, list) and all(isinstance(item, str) for item in value):
        yield name, f"[{', '.join(value)}]"
    elif not value:
        yield name, "{}"
    else:
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, item in items:
            yield from _flatten(item, f"{name}.{key}" if name else str(key), budget)
