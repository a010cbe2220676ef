"""The validation protocols of a project, and runs under them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from repro_env.compare.environments import code
from repro_env.io import pyproject
from repro_env.policy import protocol
from repro_env.policy.protocol import PROTOCOL, Evaluation, Protocol
from repro_env.runs.records.records import Run
from repro_env.runs.specsearch import Specs
from repro_env.store.store import Store


def find(project: Path) -> dict[str, Protocol]:
    """Return the protocols of a project by name. Raises `UsageError` if one is invalid, or if the file cannot be read."""
    table, path = pyproject.read(project, PROTOCOL)
    return protocol.parse(table, f"{path}: {pyproject.TABLE}.{PROTOCOL}")


def evaluate(run: Run, protocols: Mapping[str, Protocol], here: Path, store: Store) -> tuple[Evaluation, ...]:
    """Judge a run by each protocol, in their order. `here`: the working directory."""
    files = None
    if any(found.files for found in protocols.values()):
        tree = code.recorded(run.start, Specs(run.directory.parent, here, store), store)
        if tree is not None:
            files = {path: f"sha256:{entry.sha256}" for path, entry in tree.entries.items() if entry.sha256}
    return tuple(protocol.evaluate(name, found, run.start, run.end, files) for name, found in protocols.items())
