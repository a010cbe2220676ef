"""Which runs wrote a file's bytes, and how that is known: what stands in records and manifests, and which of several is told."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from repro_env.catalog import lineage, manifest, records
from repro_env.catalog.index import Summary
from repro_env.catalog.left import left
from repro_env.catalog.lineage import Use
from repro_env.model.errors import ReproEnvError, UsageError

_SURE = ("output", "checkpoints", "manifest", "left")
"""How a run is known to have written something, the surest first."""


class Origin(msgspec.Struct, frozen=True):
    """A run that wrote the bytes."""

    run: Summary
    how: Literal["output", "checkpoints", "manifest", "left"]
    """`output`: the run's record has them. `checkpoints`: they came into its folder of checkpoints while it ran. `manifest`: a
    checkpoint's manifest says so, and its run is known. `left`: they lie among the files of a run that has no end, so no
    record vouches for them."""
    paths: tuple[str, ...]
    """Within the run's files; as the run saw them; of the manifest."""
    digest: str


def recorded(uses: Sequence[Use], digest: str) -> Iterator[Origin]:
    """Runs whose records, read now, have an output of this digest. One of which the record is gone meanwhile is left out."""
    for use in uses:
        if use.role != "output":
            continue
        try:
            run = records.read(Path(use.run.folder))
        except ReproEnvError:
            continue
        outputs = [(one.path, one.sha256) for one in (run.end.outputs if run.end is not None else ())]
        beside = [(one.shown, one.sha256) for one in left(run.folder, run.start, run.end)]
        for each in sorted({sha256 for _, sha256 in (*outputs, *beside) if sha256.startswith(digest)}):
            inside = tuple(path for path, sha256 in outputs if sha256 == each)
            outside = tuple(path for path, sha256 in beside if sha256 == each)
            yield Origin(use.run, "output" if inside else "checkpoints", inside or outside, each)


def claimed(found: Iterable[manifest.Found], digest: str, runs: Mapping[str, Summary], have: Sequence[Origin]) -> list[Origin]:
    """Runs that manifests name for a digest, and that are known (`runs`, by id); each once, and none of `have`."""
    ids = {one.run.id for one in have}
    made: dict[str, Origin] = {}
    for one in found:
        run = runs.get(one.manifest.run)
        kept = file_in(one, digest)
        if run is not None and run.id not in ids and kept:
            paths = (*(made[run.id].paths if run.id in made else ()), str(one.path))
            made[run.id] = Origin(run, "manifest", paths, f"sha256:{kept}")
    return list(made.values())


def file_in(found: manifest.Found, digest: str) -> str:
    """The digest of a checkpoint's file that begins so, bare; empty where it has none."""
    start = digest.removeprefix("sha256:")
    if f"sha256:{start}" == lineage.EMPTY:
        return ""
    return next((each.sha256 for each in found.manifest.files.values() if each.sha256.startswith(start)), "")


def check_one(word: str, origins: Sequence[Origin], uses: Sequence[Use]) -> None:
    """Raises `UsageError` when the beginning of a digest is that of several."""
    every = {one.digest for one in origins} | {use.digest for use in uses}
    if len(every) > 1:
        raise UsageError(f"begins {len(every)} digests of known runs", where=word, hint="give more digits")


def ordered(origins: Iterable[Origin]) -> list[Origin]:
    """The surest first, then the oldest."""
    return sorted(origins, key=lambda one: (_SURE.index(one.how), one.run.id))


def first(origins: Sequence[Origin], place: Origin | None, claim: manifest.Found | None) -> Origin | None:
    """The one whose run is told in full: where the file lies, whom its manifest names, who was the first."""
    if place is not None:
        return place
    named = next((one for one in origins if claim is not None and one.run.id == claim.manifest.run), None)
    return named or (origins[0] if origins else None)
