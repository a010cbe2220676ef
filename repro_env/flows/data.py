"""Which data a run sees: what the user names, and what was named at capture and is still where it was."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from repro_env.flows.asked import Asked, check_place
from repro_env.model.errors import DataError
from repro_env.model.run import DataFact, Mount
from repro_env.model.spec import Data, Spec
from repro_env.model.talk import Tell
from repro_env.store.store import Store


class Shown(msgspec.Struct, frozen=True):
    mounts: tuple[Mount, ...]
    """All of the run: those that the user named, and data found at their place."""
    facts: tuple[DataFact, ...]
    """For the record, sorted by target."""


def places(data: Data, captured: str, root: Path) -> tuple[Path, ...]:
    """Where data named at capture may be now: at the same path from the source, then at the same absolute path.

    `captured` is the path of the source at capture, `root` the directory that it stands for on this machine.
    """
    then = data.source or data.path
    near = os.path.normpath(root / os.path.relpath(then, captured))
    return tuple(dict.fromkeys((Path(near), Path(then))))


def show(asked: Asked, spec: Spec, mounts: Sequence[Mount], *, root: Path, known: bool, store: Store, tell: Tell) -> Shown:
    """Add the data that were named at capture to the user's `mounts`, and compute the digests of all data.

    Data that the user does not name are mounted only from a place where they are equal to the captured ones, and only with
    `known`: the spec is beside its source or was captured here. Raises `DataError` for data that is missing or differs.
    """
    from repro_env.capture.data import look

    expected = {data.path: data for data in spec.observed.data}
    named = {mount.target for mount in mounts if mount.kind == "data"}
    facts = []
    for mount in mounts:
        digest = None
        if mount.kind == "data":
            now = look(Path(mount.source), mount.target, store.hashes, tell).data
            then = expected.get(mount.target, now)
            if now.digest != then.digest and not asked.data_changed:
                raise _changed(then, now, mount.source)
            digest = now.digest
        facts.append(
            DataFact(source=mount.source, target=mount.target, kind="checkpoints" if digest is None else "data", digest=digest)
        )
    found = []
    captured = spec.observed.source.path if spec.observed.source is not None else str(root)
    for data in spec.observed.data:
        if data.path in named:
            continue
        there = _find(data, places(data, captured, root) if known else (), asked, store, tell)
        if there is None:
            tell(f"data {data.path}, named at capture, is not in this run")
            continue
        target = data.path
        if asked.runner == "host" and not asked.private:
            target = there  # the command sees it where it is, and it needs no mount
        else:
            found.append(Mount(kind="data", source=there, target=target))
            if asked.runner == "host":
                check_place(asked, spec, found[-1])
        facts.append(DataFact(source=there, target=target, kind="data", digest=data.digest))
    return Shown((*mounts, *found), tuple(sorted(facts, key=lambda fact: fact.target)))


def _find(data: Data, candidates: Sequence[Path], asked: Asked, store: Store, tell: Tell) -> str | None:
    """The resolved path of data that was captured and is unchanged; None where the user said that the run may lack it."""
    from repro_env.capture.data import look

    problem = DataError("was named at capture and is not there", where=data.path, hint=_options(data))
    for path in candidates:
        if not os.path.lexists(path):
            continue
        try:
            now = look(path, data.path, store.hashes, tell, like=data).data
        except DataError as error:
            problem = DataError(error.what, where=error.where, hint=_options(data))
            continue
        if now.digest == data.digest:
            return os.path.realpath(path)
        problem = _changed(data, now, str(path))
    if asked.data_changed:
        return None
    raise problem


def _changed(then: Data, now: Data, where: str) -> DataError:
    return DataError(
        f"differs from the capture: {now.files} files and {now.size} bytes now, {then.files} files and {then.size} bytes then"
        if (now.files, now.size) != (then.files, then.size)
        else f"differs from the capture: the same number of files ({now.files}) and bytes ({now.size}), with other names or contents",
        where=where,
        hint=_options(then),
    )


def _options(data: Data) -> str:
    return (
        f"--data PATH:{data.path} names it at another place; with --data-changed as well, changed data is used; "
        "--data-changed alone runs without it"
    )
