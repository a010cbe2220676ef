"""A validation protocol: a named evaluation, and the metrics that a run must reach in it.

    [tool.repro-env.protocol.test-set]
    command = ["evaluate.py", "--split", "test"]
    data = {"/data/test" = "sha256:..."}
    files = {"splits/test.txt" = "sha256:..."}
    metrics = {accuracy = ">= 0.95"}

Nothing of it is stored in a run. A record has the command and all digests, so it shows under which protocols a run was made.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import field

from repro_env.policy import bound
from repro_env.schema import redact
from repro_env.schema.codec import Frozen
from repro_env.schema.errors import UsageError
from repro_env.schema.run import End, Start
from repro_env.schema.text import AbsPath, Digest, Line, RelPath

PROTOCOL = "protocol"
"""The key of the table with the protocols."""


class Protocol(Frozen, frozen=True, kw_only=True):
    command: tuple[Line, ...] = ()
    """The first words of the command; empty for any command."""
    data: dict[AbsPath, Digest] = field(default_factory=dict)
    """The digests of data by its path in the run."""
    files: dict[RelPath, Digest] = field(default_factory=dict)
    """The digests of files of the code by their paths in the project, for example the lists of a split."""
    metrics: dict[Line, Line] = field(default_factory=dict)
    """The bound of each metric."""


class Evaluation(Frozen, frozen=True, kw_only=True):
    """A run and a protocol."""

    protocol: str
    departures: tuple[str, ...]
    """How the command, the data or the code of the run differ from the protocol. Then its metrics say nothing under it."""
    failures: tuple[str, ...]
    """The metrics that are not as required, or missing."""

    @property
    def problem(self) -> str:
        """The first departure, or else the first failure; empty if the run meets the protocol."""
        return next(iter((*self.departures, *self.failures)), "")


def parse(table: Mapping[str, Any], where: str) -> dict[str, Protocol]:
    """Return the protocols by name. Raises `UsageError`. `where`: the table."""
    protocols = {}
    for name, value in table.items():
        place = f"{where}.{redact.line(name)}"
        try:
            protocol = msgspec.convert(value, Protocol)
        except msgspec.ValidationError as error:
            hint = "its keys are command, data, files and metrics (docs/life-cycle.md)"
            raise UsageError(f"invalid protocol: {redact.line(str(error))}", where=place, hint=hint) from None
        for metric, text in protocol.metrics.items():
            if bound.parse(text) is None:
                what = f'the bound of {redact.line(metric)} must be a comparison with a number (got "{redact.line(text)}")'
                raise UsageError(what, where=place, hint='for example ">= 0.95"; the comparisons are < <= > >= = !=')
        protocols[name] = protocol
    return protocols


def evaluate(name: str, protocol: Protocol, start: Start, end: End | None, files: Mapping[str, str] | None) -> Evaluation:
    """Judge a run. `files`: the sha256 of each file of its code, in hex; None if its code was not found."""
    return Evaluation(
        protocol=name,
        departures=(*_command(protocol, start), *_data(protocol, start), *_files(protocol, files)),
        failures=tuple(_metrics(protocol, end)),
    )


def _command(protocol: Protocol, start: Start) -> list[str]:
    if start.command[: len(protocol.command)] == protocol.command:
        return []
    return [f"the command is {start.command_line}, and must begin with {shlex.join(protocol.command)}"]


def _data(protocol: Protocol, start: Start) -> list[str]:
    mounted = {fact.target: fact.digest for fact in start.data if fact.kind == "data"}
    return [
        f"the data {path} {_is(mounted.get(path), path in mounted)}, and must be {digest[:19]}…"
        for path, digest in protocol.data.items()
        if mounted.get(path) != digest
    ]


def _files(protocol: Protocol, files: Mapping[str, str] | None) -> list[str]:
    if files is None and protocol.files:
        return [f"{next(iter(protocol.files))} could not be compared, because the code of the run was not found"]
    return [
        f"the file {path} {_is(files.get(path), path in files)}, and must be {digest[:19]}…"
        for path, digest in protocol.files.items()
        if files is not None and files.get(path) != digest
    ]


def _is(digest: str | None, exists: bool) -> str:
    return f"is {digest[:19]}…" if digest else "has no digest" if exists else "is not in the run"


def _metrics(protocol: Protocol, end: End | None) -> list[str]:
    values = bound.last_values(end)
    failures = []
    for name, text in protocol.metrics.items():
        required = bound.parse(text)
        if required is None or not required.holds(values.get(name)):
            failures.append(
                f"{name} is {values[name]}, and must be {text}"
                if name in values
                else f"the run has no metric {name} (must be {text})"
            )
    return failures
