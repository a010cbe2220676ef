"""The command `repro-env capture`: describe an environment, its code and its data in a spec.

It reads the source, locks the environment, bundles what cannot be downloaded again, and writes the spec last: if it is
killed, the earlier spec and its blobs are still complete.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Collection, Iterator, Sequence
from glob import escape
from pathlib import Path

import msgspec
from msgspec.structs import replace

from repro_env.delivery.dockerfile import directory
from repro_env.delivery.documents import files
from repro_env.environment import assembly, lock
from repro_env.environment.conda import identification as conda
from repro_env.environment.locked import LockedEnvironment, check_unchanged
from repro_env.environment.machine import variables
from repro_env.environment.python import distributions
from repro_env.environment.python import interpreter as python
from repro_env.environment.python import selection as targets
from repro_env.environment.python.selection import Target
from repro_env.environment.secrets import export
from repro_env.environment.secrets.bundles import SecretSearch
from repro_env.environment.source import data
from repro_env.environment.source import selection as source
from repro_env.environment.source.siblings import mentioned_paths
from repro_env.environment.system import openedlibraries
from repro_env.environment.system.tree import Tree
from repro_env.environment.wheels import identification as wheels
from repro_env.environment.wheels import layers
from repro_env.io import machine
from repro_env.io.files import FileContents, keys_of
from repro_env.oci.entry import Contents, Entry, entries_of, file_notes, members, sort_with_parents
from repro_env.runs.start import siblings, snapshot, sourcedirectory
from repro_env.schema import redact
from repro_env.schema.artifact import TreeBlob
from repro_env.schema.environment import Excluded
from repro_env.schema.errors import CaptureError
from repro_env.schema.progress import Tell
from repro_env.schema.spec import Source, Spec
from repro_env.store import layerblobs
from repro_env.store.specs.blobs import SpecBlobs
from repro_env.store.specs.lookup import own_directories
from repro_env.store.store import Store

_BUILD_METADATA = "build metadata of an editable install; the environment has the same in .dist-info"


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What the user requested. Paths are absolute."""

    python: str | None
    source: Path
    output: Path
    environ: dict[str, str]
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    data: tuple[tuple[Path, str], ...] = ()
    """(path on this machine, path in runs)."""
    programs: tuple[str, ...] = ()
    seed: int = 0
    not_secret: tuple[str, ...] = ()
    """Globs of files that contain no secret although they look like it."""
    env: tuple[str, ...] = ()
    """Names of variables to replay in addition to the standard ones."""


class CaptureResult(msgspec.Struct, frozen=True):
    path: Path
    """Path of the spec."""
    spec: Spec
    offers: tuple[str, ...]
    """Hints about data that runs may need and that were not named: one line each."""
    target: Target
    """The captured Python, and why it was chosen."""
    proven: int
    """The number of distributions with their original wheel: downloadable or bundled."""
    holds_us: bool
    """Whether repro-env itself is installed in the captured environment."""


def capture(request: Request, *, store: Store, tell: Tell) -> CaptureResult:
    """Capture to the directory `request.output`. Raises `CaptureError` and other errors of this package.

    After an error, the earlier spec is unchanged. New blobs may exist, which the next capture uses or removes.
    """
    machine.platform()  # first, because it raises if images for this machine are not supported
    variables.check_added(request.env, request.environ)
    never = own_directories(request.source, request.output)
    target = targets.choose(request.python, request.environ, request.source)
    tell(f"python  {target.path} ({target.why})")
    for note in target.notes:
        tell(f"note: {note}")
    venv = target.venv
    tree = _look(request, store, never)
    data.check(request.data)
    fingerprints = tuple(data.look(path, target, store.hashes, tell) for path, target in request.data)
    opened = openedlibraries.of_source(tree.root, tree.found, request.environ, store, [] if venv is None else [venv])
    programs, library_problems = _programs(request, opened)
    search = SecretSearch(request.not_secret, store.facts)
    locked = lock.lock(
        target,
        request.environ,
        workspace=request.source,
        programs=programs,
        store=store,
        tell=tell,
        secrets=search,
        added=request.env,
    )
    if locked.facts.kind != "system" and request.output.is_relative_to(locked.facts.layout.prefix):
        raise CaptureError(
            "this directory is inside the environment, so the spec would become a part of the capture",
            where=str(request.output),
            hint=f"choose a directory outside {locked.facts.layout.prefix} with --output",
        )
    imported = source.imported(tree, _import_directories(locked), without=_image_directories(locked))
    metadata = _build_metadata(tree, locked)
    if imported or metadata:
        exclude = (*request.exclude, *(f"/{escape(path)}" for path in metadata))
        request = replace(request, include=(*request.include, *imported), exclude=exclude)
        tree = _look(request, store, never)
        tree = replace(
            tree, excluded=tuple(replace(row, why=_BUILD_METADATA) if row.path in metadata else row for row in tree.excluded)
        )
    tell.detail("writing the bundled files")
    blobs = SpecBlobs(request.output / "blobs")
    code = _bundle_source(tree, request, store, blobs)
    mentioned = mentioned_paths(tree.root, tree.found)

    def bundle(tree: Tree) -> TreeBlob:
        return _bundle_tree(tree.entries, tree.contents, store=store, blobs=blobs)

    identity = assembly.identity_of(locked, bundle)
    _bundle_packages(locked, store, blobs)
    if locked.files_read:
        check_unchanged(locked)
    spec = assembly.spec(
        identity,
        [wheel.hint for wheel in locked.wheels],
        [package.hint for package in locked.packages],
        locked.indexes,
        assembly.observed(
            locked,
            programs=programs,
            source=code,
            data=tuple(
                replace(fingerprint.data, source=str(path)) if str(path) != target else fingerprint.data
                for fingerprint, (path, target) in zip(fingerprints, request.data, strict=True)
            ),
            excluded=tree.excluded,
            notes=(
                *tree.notes,
                *search.notes,
                *(
                    f"{path.lstrip('/')} is in the source although git ignores it, because Python imports from it"
                    for path in imported
                ),
            ),
            unknown=(*tree.problems, *library_problems, *(line for fingerprint in fingerprints for line in fingerprint.problems)),
        ),
        locked.layers,
        seed=request.seed,
    )
    spec = _write(spec, request.output, locked, store, tell)
    blobs.keep_only(spec.carried)  # remove the blobs of earlier captures
    shared = siblings.find_at_capture(spec, mentioned, tree.excluded, [path for path, _ in request.data], store)
    sourcedirectory.remember(spec, store, shared)
    export.remember(spec, store)
    proven = sum(wheel.hint.origin != "repacked" for wheel in locked.wheels)
    offers = tuple(_offer_data(request, tree, mentioned, shared))
    holds_us = python.contains_repro_env(locked.facts)
    return CaptureResult(request.output / "spec.json", spec, offers, target, proven, holds_us)


def _programs(request: Request, opened: openedlibraries.Opened) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return (programs and libraries that the base must have, lines on libraries that may be missing).

    They are those that the user requested and those that the source opens at run time.
    """
    lines = [redact.line(line) for line in opened.unknown]
    libraries = [path for path in opened.libraries if path.isprintable()]
    return tuple(dict.fromkeys((*request.programs, *libraries))), tuple(lines)


def _bundle_packages(locked: LockedEnvironment, store: Store, blobs: SpecBlobs) -> None:
    """Add the wheels and conda packages that cannot be downloaded again to the blobs."""
    for wheel in locked.wheels:
        if wheel.hint.origin in ("carried", "repacked") and not blobs.has(wheel.wheel.sha256, store.facts):
            # The members of repacked wheels are not compressed, so that their digest does not depend on a compressor's version.
            blobs.add_file(wheels.wheel_file(wheel, store), wheel.wheel.sha256, compress=wheel.hint.origin == "repacked")
    for package in locked.packages:
        if package.hint.origin == "carried" and not blobs.has(package.package.sha256, store.facts):
            blobs.add_file(conda.archive_file(package, store), package.package.sha256)


def _bundle_tree(entries: Sequence[Entry], contents: Contents, *, store: Store, blobs: SpecBlobs) -> TreeBlob:
    """Add a tree to the blobs. If an undamaged blob of the same entries exists, nothing is read."""
    expected = layers.known_blob(entries, facts=store.facts)
    if expected is not None and blobs.has(expected.sha256, store.facts):
        return expected
    blob = blobs.add_tree(members(entries, contents), facts=store.facts)
    if expected is not None and blob != expected:
        raise CaptureError("files changed while they were captured", hint="wait until nothing writes to them, then capture again")
    layers.remember_blob(entries, blob, facts=store.facts)
    return blob


def _write(spec: Spec, output: Path, locked: LockedEnvironment, store: Store, tell: Tell) -> Spec:
    """Write the files of a spec, and return it with the known digests of its compressed layers."""
    packed = layerblobs.recall_all(spec.expected.layers, output / "blobs", store.facts)
    spec = replace(spec, expected=replace(spec.expected, packed=packed))
    by_digest = {wheel.wheel.sha256: wheel for wheel in locked.wheels}
    problem = directory.write(output, spec, store, lambda wheel: wheels.facts_of(by_digest[wheel.sha256], store))
    if problem:
        tell(f"no Dockerfile was written: {problem}; `repro-env rebuild` can still build the image")
    files.write(output, spec, store.facts)
    return spec


def _without_logs(tree: source.SourceTree) -> source.SourceTree:
    """Exclude the files that this command prints to: `capture > log` in the source must not capture its own log."""
    streams = snapshot.output_files()
    logs = [file for file in tree.found if file.key[:2] in streams]
    return replace(
        tree,
        found=tuple(file for file in tree.found if file not in logs),
        size=tree.size - sum(file.size for file in logs),
        excluded=(*tree.excluded, *(Excluded(path=file.path, size=0, why="output of this command") for file in logs)),
    )


def _look(request: Request, store: Store, never: Sequence[Path]) -> source.SourceTree:
    return _without_logs(
        source.look(
            request.source,
            include=request.include,
            exclude=request.exclude,
            never=never,
            not_secret=request.not_secret,
            cache=store.facts,
        )
    )


def _import_directories(locked: LockedEnvironment) -> list[Path]:
    """Return the directories that Python imports from: its `sys.path`, and editable projects."""
    projects = (distributions.project(dist) for _, dist in locked.installed)
    return [Path(path) for path in (*locked.live.startup.sys_path, *projects) if path.startswith("/")]


def _build_metadata(tree: source.SourceTree, locked: LockedEnvironment) -> list[str]:
    """Return the directories of build metadata in the sources of editable projects; the environment has it as `.dist-info`.

    Git usually ignores them, so a clone would differ from the capture.
    """
    projects = [
        (Path(os.path.realpath(distributions.project(dist))), dist.facts.name)
        for _, dist in locked.installed
        if dist.facts.editable
    ]
    paths = []
    for path in (file.path for file in tree.found if file.path.endswith(".egg-info") and tree.git is not None):
        name = re.sub(r"[-_.]+", "-", path.rpartition("/")[2].removesuffix(".egg-info")).lower()
        parents = (tree.root / path).parents
        if any(name == project_name and project in parents for project, project_name in projects):
            paths.append(path)
    return paths


def _image_directories(locked: LockedEnvironment) -> list[Path]:
    """Return the directories whose content is in the image."""
    facts = locked.facts
    paths = [Path(facts.interpreter.stdlib), Path(facts.interpreter.platstdlib)]
    paths += [site.prefix / path for site in locked.live.sites for path in (site.layout.purelib, site.layout.platlib)]
    return paths if facts.kind == "system" else [*paths, Path(facts.layout.prefix)]


def _offer_data(request: Request, tree: source.SourceTree, mentioned: Collection[str], shared: Sequence[str]) -> Iterator[str]:
    """Yield hints about data that the code mentions.

    Runs see a copy of the directories next to the source in `shared`. They do not see what is too large or elsewhere.
    """
    if shared:
        yield f"the code names {', '.join(shared)}: runs in this directory see a copy, and each run keeps what it writes there"
    named = [path for path, _ in request.data]
    rows = sorted((row for row in tree.excluded if row.why.startswith("git-ignored")), key=lambda row: row.size)
    total = 0
    for row in rows:
        total += row.size
        path = tree.root / row.path
        if total > source.CAP and row.path.split("/")[0] in mentioned and not any(path.is_relative_to(data) for data in named):
            yield f"{row.path} ({row.size / 1e6:,.1f} MB, git-ignored) is not in the spec; if runs need it: --data {shlex.quote(row.path)}"
    for name in sorted(name for name in mentioned if name.startswith("../") and name not in shared):
        path = Path(os.path.normpath(tree.root / name))
        overlaps = any(path.is_relative_to(root) or root.is_relative_to(path) for root in (tree.root, *named))
        if path.is_dir() and not overlaps:
            yield f"{name} is outside the source and not in the spec; if runs read it: --data {shlex.quote(name)}"


def _bundle_source(tree: source.SourceTree, request: Request, store: Store, blobs: SpecBlobs) -> Source:
    """Bundle the source. Return its description for the spec."""
    entries = sort_with_parents(entries_of(tree.found, store.hashes.of(tree.root, tree.found)))
    blob = _bundle_tree(entries, FileContents(tree.root, keys=keys_of(tree.found)), store=store, blobs=blobs)
    return Source(
        path=str(tree.root),
        tree=blob,
        size=tree.size,
        relative=os.path.relpath(tree.root, os.path.realpath(request.output)),
        files=file_notes(entries),
        git=tree.git,
        include=request.include,
        exclude=request.exclude,
    )
