"""Audit of `--checkpoints` directories: compare each with the state in which the last run left it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from repro_env.compare.audit import findings as rule
from repro_env.compare.audit.findings import Claim, Finding, State
from repro_env.io.files import may_exist
from repro_env.runs.records import checkpointstate
from repro_env.runs.records.checkpointstate import Listing, written_files
from repro_env.runs.records.records import Run
from repro_env.schema.errors import ReproEnvError
from repro_env.schema.run import DataFact, Mount
from repro_env.store.store import Store

_User = tuple[Run, DataFact]
"""A run, and its mount of a checkpoint directory."""


def check(chosen: Sequence[Run], all_runs: Sequence[Run], store: Store) -> tuple[list[Finding], int]:
    """Compare the directories that `chosen` could write to with the state after their last run; also return the number of files.

    Later runs may have replaced the files of earlier ones, so only the last run counts. `all_runs`: newest first.
    """
    findings: list[Finding] = []
    count = 0
    for source in sorted({mount.source for run in chosen for mount in run.start.data if mount.kind == "checkpoints"}):
        mounts = ((run, mount) for run in all_runs for mount in run.start.data if mount.kind == "checkpoints")
        users = [(run, mount) for run, mount in mounts if _overlap(mount.source, source)]
        last_run, last_mount = users[0]
        listing, problem = _read_listing(source, last_run, last_mount)
        if listing is None:
            findings.append(_finding(source, "unknown", problem, last_run))
            continue
        count += sum(file.target == last_mount.target for file in listing.files)
        findings += _compare(source, users, listing, store)
    return findings, count


def _read_listing(source: str, last_run: Run, mount: DataFact) -> tuple[Listing | None, str]:
    """Return what the last run left in a directory, or why it is unknown."""
    if mount.source != source:
        return None, "the last run that could write to it mounted a parent directory or a subdirectory instead"
    if last_run.end is None:
        return None, f"the last run that could write to it is {last_run.state}, so its files were not recorded"
    if last_run.end.after is None:
        return None, "the last run that could write to it did not record its files"
    try:
        return checkpointstate.read(last_run.directory, checkpointstate.AFTER, last_run.end.after), ""
    except ReproEnvError as error:
        return None, f"the list of the files after the last run cannot be used: {error.what}"


def _compare(source: str, users: Sequence[_User], listing: Listing, store: Store) -> list[Finding]:
    """Compare the directory with `listing`, which the first of `users` recorded."""
    last_run, last_mount = users[0]
    files = [file for file in listing.files if file.target == last_mount.target]
    if not may_exist(Path(source)):
        return [_finding(source, "gone", f"it does not exist; the last run left {len(files)} files in it", last_run)]
    current = checkpointstate.scan([Mount(kind="checkpoints", source=source, target=last_mount.target)], store)
    if current is None or any(line.startswith(f"{last_mount.target} (") for line in current.others):
        problem = f"it cannot be read: {'; '.join(current.others[:1]) if current is not None else ''}"
        return [_finding(source, "unknown", problem, last_run)]
    # Of the runs that left a file with this content, the oldest created it. `users` is newest first, so the oldest wins.
    owners = {
        (file.path, file.sha256): run.start.id
        for run, mount in users
        if mount.source == source
        for file in written_files(run)
        if file.target == mount.target
    }
    claims = [
        Claim(_join(source, file.path), file.sha256, owners.get((file.path, file.sha256), last_run.start.id)) for file in files
    ]
    return rule.check_checkpoints(claims, {_join(source, file.path): file.sha256 for file in current.files})


def _finding(source: str, state: State, why: str, run: Run) -> Finding:
    return Finding(part="checkpoint", state=state, what=source, why=why, runs=(run.start.id,))


def _join(source: str, path: str) -> str:
    return f"{source}/{path}" if path else source


def _overlap(first: str, second: str) -> bool:
    """Whether two paths are equal, or one is inside the other."""
    return first == second or first.startswith(second.rstrip("/") + "/") or second.startswith(first.rstrip("/") + "/")
