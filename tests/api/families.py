"""Made-up runs with parents and checkpoints."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

import msgspec

from repro_env.runs.records import ids, records
from repro_env.runs.records.records import Run
from repro_env.sandbox import outputs
from repro_env.schema.run import DataFact, Parent
from tests.runs.records.examples import end, start
from tests.runs.records.manifests import MANIFEST, write_manifest


def made(
    runs: Path,
    number: int,
    files: dict[str, str],
    *,
    parents: Iterable[Parent] = (),
    data: Iterable[DataFact] = (),
    over: bool = True,
) -> Run:
    """Record a run that wrote these files, in a millisecond of its own."""
    run_id = ids.uuid7(number, number.to_bytes(10, "big"))
    recording = records.begin(runs, f"20260701T1015{number % 60:02}Z-train-{ids.short(run_id)}")
    for name, text in files.items():
        path = recording.directory / "files" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    recording.start(msgspec.structs.replace(start(run_id), parents=tuple(parents), data=tuple(data)))
    if over:
        written_files = outputs.collect(recording.directory / "files").outputs
        recording.finish(msgspec.structs.replace(end(run_id), outputs=written_files, start=recording.start_digest))
    recording.close()
    return records.read(recording.directory)


def parent(run: Run, how: str = "resumed") -> Parent:
    data = (run.directory / "end.json").read_bytes()
    return Parent(id=run.start.id, record=f"sha256:{hashlib.sha256(data).hexdigest()}", how=how)  # type: ignore[arg-type]


def sha256_hex(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def checkpoint(directory: Path, run: str, files: dict[str, str], resumed_from: str = "") -> Path:
    """Write a checkpoint's directory, as `repro_env.checkpoint` does."""
    directory.mkdir(parents=True)
    for name, text in files.items():
        (directory / name).write_text(text)
    listed = {name: {"sha256": sha256_hex(text), "size": len(text)} for name, text in files.items()}
    parent = {"run": resumed_from, "path": "/c", "sha256": sha256_hex("manifest"), "step": 1} if resumed_from else None
    write_manifest(directory, {**MANIFEST, "run": run, "files": listed, "parent": parent})
    return directory
