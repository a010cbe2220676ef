"""Folders of `--checkpoints` in an audit: what the last run left there, against what is there now."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from repro_env.catalog import audit as rule
from repro_env.catalog.audit import Claim, Finding, State
from repro_env.catalog.left import left
from repro_env.catalog.records import Run
from repro_env.flows import before
from repro_env.flows.before import Listing
from repro_env.model.errors import ReproEnvError
from repro_env.model.run import DataFact, Mount
from repro_env.store.store import Store

_User = tuple[Run, DataFact]
"""A run, and the mount by which it could write to a folder."""


def looked(chosen: Sequence[Run], there: Sequence[Run], store: Store) -> tuple[list[Finding], int]:
    """Folders that `chosen` could write to, as their last run left them, and how many files that were.

    Runs before the last had other files there, and that is as it should be. `there`: all runs of the folder, newest first.
    """
    found: list[Finding] = []
    count = 0
    for source in sorted({one.source for run in chosen for one in run.start.data if one.kind == "checkpoints"}):
        mounts = ((run, one) for run in there for one in run.start.data if one.kind == "checkpoints")
        users = [(run, one) for run, one in mounts if _overlap(one.source, source)]
        listing, why = _left(source, users[0])
        if listing is None:
            found.append(_finding(source, "unknown", why, users[0][0]))
            continue
        count += sum(one.target == users[0][1].target for one in listing.files)
        found += _now(source, users, listing, store)
    return found, count


def _left(source: str, last: _User) -> tuple[Listing | None, str]:
    """What the last run left in a folder; or why that cannot be told."""
    run, mount = last
    if mount.source != source:
        return None, "the last run that could write there had another folder mounted, above it or below"
    if run.end is None:
        return None, f"the last run that could write there is {run.state}, so what it left was never recorded"
    if run.end.after is None:
        return None, "the last run that could write there did not record what it left"
    try:
        return before.read(run.folder, before.AFTER, run.end.after), ""
    except ReproEnvError as error:
        return None, f"the list of what was left there: {error.what}"


def _now(source: str, users: Sequence[_User], listing: Listing, store: Store) -> list[Finding]:
    """What the last of `users` left, against the folder as it is."""
    last, mount = users[0]
    files = [one for one in listing.files if one.target == mount.target]
    if not Path(source).exists():
        return [_finding(source, "gone", f"nothing is there; the last run left {len(files)} files in it", last)]
    now = before.take([Mount(kind="checkpoints", source=source, target=mount.target)], store)
    if now is None or any(line.startswith(f"{mount.target} (") for line in now.others):
        why = f"it cannot be read: {'; '.join(now.others[:1]) if now is not None else ''}"
        return [_finding(source, "unknown", why, last)]
    # The oldest run that left these very bytes there made them; one that mounts the folder later only sees them.
    owners = {
        (one.path, one.sha256): run.start.id
        for run, other in users
        if other.source == source
        for one in left(run.folder, run.start, run.end)
        if one.target == other.target
    }
    claims = [Claim(_below(source, one.path), one.sha256, owners.get((one.path, one.sha256), last.start.id)) for one in files]
    return rule.checkpoints(claims, {_below(source, one.path): one.sha256 for one in now.files})


def _finding(source: str, state: State, why: str, run: Run) -> Finding:
    return Finding(part="checkpoint", state=state, what=source, why=why, runs=(run.start.id,))


def _below(source: str, path: str) -> str:
    return f"{source}/{path}" if path else source


def _overlap(one: str, other: str) -> bool:
    return one == other or one.startswith(other.rstrip("/") + "/") or other.startswith(one.rstrip("/") + "/")
