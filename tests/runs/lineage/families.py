"""Made-up runs with parents."""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec

from repro_env.runs.records.records import Run
from repro_env.schema.run import DataFact, Parent
from tests.runs.records.examples import end, start


def digest(word: object) -> str:
    return f"sha256:{hashlib.sha256(str(word).encode()).hexdigest()}"


def run(number: int, *parents: int, record: str | None = None, data: tuple[str, ...] = ()) -> Run:
    facts = start(str(number))
    begun = msgspec.structs.replace(
        facts,
        spec=digest("spec"),
        image=digest("image"),
        source=msgspec.structs.replace(facts.source, digest=digest("source")),
        data=tuple(DataFact(kind="data", source=f"/data/{digest[7:12]}", target="/data", digest=digest) for digest in data),
        parents=tuple(Parent(id=str(parent), record=record, how="resumed") for parent in parents),
    )
    start_digest, end_digest = digest(("start", number)), digest(("end", number))
    return Run(Path(f"/runs/{number}"), begun, end(str(number)), "done", start_digest, end_digest)


def known(*runs: Run) -> dict[str, Run]:
    return {run.id: run for run in runs}
