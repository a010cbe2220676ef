"""The data that a run sees: what the user names, and what was named at capture and is still unchanged."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from repro_env.runs.start.request import RunOptions, check_mount
from repro_env.schema.errors import DataError
from repro_env.schema.messages import plural
from repro_env.schema.progress import Tell
from repro_env.schema.run import DataFact, Mount
from repro_env.schema.spec import Data, Spec
from repro_env.store.store import Store


class RunData(msgspec.Struct, frozen=True):
    mounts: tuple[Mount, ...]
    """All mounts of the run: those of the user, and those of data that were found."""
    facts: tuple[DataFact, ...]
    """All mounts as the record has them, sorted by target."""


def candidate_paths(data: Data, captured: str, root: Path) -> tuple[Path, ...]:
    """Return where captured data may be now: at the same path relative to the source, then at the same absolute path.

    `captured`: the path of the source at capture. `root`: the directory that stands for it on this machine.
    """
    absolute = data.source or data.path
    relocated = os.path.normpath(root / os.path.relpath(absolute, captured))
    return tuple(dict.fromkeys((Path(relocated), Path(absolute))))


def collect(
    options: RunOptions, spec: Spec, mounts: Sequence[Mount], *, root: Path, is_trusted: bool, store: Store, tell: Tell
) -> RunData:
    """Add the captured data to the user's `mounts`, and compute the digests of all data.

    Captured data that the user does not name are mounted only if they are unchanged, and only with `is_trusted`: the spec
    is next to its source or was captured here. Raises `DataError` if data are missing or differ.
    """
    from repro_env.environment.source.data import look

    expected = {data.path: data for data in spec.observed.data}
    user_targets = {mount.target for mount in mounts if mount.kind == "data"}
    facts = []
    for mount in mounts:
        digest = None
        if mount.kind == "data":
            current = look(Path(mount.source), mount.target, store.hashes, tell).data
            captured = expected.get(mount.target, current)
            if current.digest != captured.digest and not options.data_changed:
                raise _error(captured, current, mount.source)
            digest = current.digest
        facts.append(
            DataFact(source=mount.source, target=mount.target, kind="checkpoints" if digest is None else "data", digest=digest)
        )
    found_mounts = []
    captured_root = spec.observed.source.path if spec.observed.source is not None else str(root)
    for data in spec.observed.data:
        if data.path in user_targets:
            continue
        path = _find(data, candidate_paths(data, captured_root, root) if is_trusted else (), options, store, tell)
        if path is None:
            tell(f"this run does not have the captured data {data.path}")
            continue
        found_mounts.append(Mount(kind="data", source=path, target=data.path))
        if not options.traits.moves_mounts:
            check_mount(options, spec, found_mounts[-1])
        facts.append(DataFact(source=path, target=data.path, kind="data", digest=data.digest))
    return RunData((*mounts, *found_mounts), tuple(sorted(facts, key=lambda fact: fact.target)))


def _find(data: Data, candidates: Sequence[Path], options: RunOptions, store: Store, tell: Tell) -> str | None:
    """Return the resolved path of unchanged captured data; None if it was not found and the user allowed that."""
    from repro_env.environment.source.data import look

    problem = DataError("these data were named at capture, but were not found", where=data.path, hint=_hint(data))
    for path in candidates:
        if not os.path.lexists(path):
            continue
        try:
            current = look(path, data.path, store.hashes, tell, like=data).data
        except DataError as error:
            problem = DataError(error.what, where=error.where, hint=_hint(data))
            continue
        if current.digest == data.digest:
            return os.path.realpath(path)
        problem = _error(data, current, str(path))
    if options.data_changed:
        return None
    raise problem


def _error(captured: Data, current: Data, where: str) -> DataError:
    return DataError(
        f"these data differ from the capture: {_counts(current)} now, {_counts(captured)} at capture"
        if _counts(current) != _counts(captured)
        else f"these data differ from the capture: there are still {_counts(current)}, but names or contents differ",
        where=where,
        hint=_hint(captured),
    )


def _counts(data: Data) -> str:
    return f"{plural(data.files, 'file')} with {plural(data.size, 'byte')}"


def _hint(data: Data) -> str:
    return (
        f"if the data are elsewhere: --data PATH:{data.path}; to use changed data, add --data-changed to it; "
        "to run without the data: --data-changed without --data"
    )
