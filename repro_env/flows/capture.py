"""The story of `repro-env capture`: what is -> what must be.

The source is looked at, the environment locked, what nothing can give again carried, and the spec written
last: a capture that is killed leaves the earlier spec and all that it names.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import msgspec
from msgspec.structs import replace

from repro_env.base.tree import Tree
from repro_env.capture import data, distributions, mentions, notebook, python, requirements, source, variables
from repro_env.capture import target as targets
from repro_env.capture.globs import escaped
from repro_env.capture.target import Target
from repro_env.flows import dockerfile, egress, files, siblings, snapshot, sourcedir
from repro_env.flows.locate import ours
from repro_env.image.entry import Contents, Entry, entries_of, members, notes, ordered
from repro_env.io import machine
from repro_env.io.files import FileContents, keys_of, walk
from repro_env.lock import assemble, compose, conda, dlopen, environment, identify, layers
from repro_env.lock.locked import Locked, check_unchanged, identity_of
from repro_env.lock.observe import observed
from repro_env.lock.search import Search
from repro_env.model import redact
from repro_env.model.artifact import TreeBlob
from repro_env.model.environment import Excluded
from repro_env.model.errors import CaptureError
from repro_env.model.spec import Source, Spec
from repro_env.model.talk import Tell
from repro_env.store import sent
from repro_env.store.carried import Carried
from repro_env.store.store import Store

_BUILT = "metadata of an editable install, which the environment has as .dist-info"


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What the user asked for. Paths are absolute."""

    python: str | None
    source: Path
    output: Path
    environ: dict[str, str]
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    data: tuple[tuple[Path, str], ...] = ()
    """(where it is, where it appears in a run)."""
    programs: tuple[str, ...] = ()
    seed: int = 0
    not_secret: tuple[str, ...] = ()
    """Globs of files that hold no secret, whatever they look like."""
    base: str = ""
    """A registry's image to stand on; empty for a base that is cut from this machine."""
    keep_base: bool = False
    """Carry that image's tree too."""
    env: tuple[str, ...] = ()
    """Variables to replay although no list has them."""


class Captured(msgspec.Struct, frozen=True):
    path: Path
    """Of the spec."""
    spec: Spec
    offers: tuple[str, ...]
    """Data that runs may need and that nobody named: one line each."""
    target: Target
    """The Python that was captured, and why it was that one."""
    proven: int
    """Distributions whose wheel is proven: linked, or carried as the original file."""
    mentioned: frozenset[str]
    """Variables that the spec holds only by name, and that the project's code names."""
    holds_us: bool
    """repro-env itself is installed in the environment that was captured."""


def capture(request: Request, *, store: Store, tell: Tell) -> Captured:
    """Capture and write `request.output`. Raises `CaptureError` and its neighbours.

    A failure leaves the earlier spec as it was, and at most whole blobs beside it that the next capture uses or removes.
    """
    platform = machine.platform()  # first of all: nothing is read on a machine that no image can be for
    variables.check_added(request.env, request.environ)
    never = ours(request.source, request.output)
    target = targets.choose(request.python, request.environ, request.source)
    tell(f"python  {target.path} ({target.why})")
    for note in target.notes:
        tell(f"note: {note}")
    venv = target.venv
    tree = _look(request, store, never, venv, request.include)
    data.check(request.data)
    mounted = tuple(data.look(path, target, store.hashes, tell) for path, target in request.data)
    base = None
    if request.base:
        from repro_env.base import pulled

        base = pulled.pull(request.base, platform, kept=request.keep_base, store=store, tell=tell)
    opened = dlopen.of_source(tree.root, tree.found, request.environ, store, [] if venv is None else [venv])
    programs, asked = _with(request, opened)
    search = Search(request.not_secret, store.facts)
    locked = environment.lock(
        target,
        request.environ,
        workspace=request.source,
        programs=programs,
        store=store,
        tell=tell,
        searching=search,
        base=base,
        added=request.env,
    )
    if locked.facts.kind != "system" and request.output.is_relative_to(locked.facts.layout.prefix):
        raise CaptureError(
            "lies inside the environment, which would capture its own capture",
            where=str(request.output),
            hint=f"name another folder, with --output, outside {locked.facts.layout.prefix}",
        )
    more = source.imported(tree, _imported(locked), without=_held(locked))
    include, built = (*request.include, *more), _build_metadata(tree, locked)
    if more or built:
        request = replace(request, exclude=(*request.exclude, *(f"/{escaped(path)}" for path in built)))
        tree = _look(request, store, never, venv, include)
        tree = replace(tree, excluded=tuple(replace(row, why=_BUILT) if row.path in built else row for row in tree.excluded))
    if venv is not None:
        tree = source.measured(tree, venv, _size(locked, venv))
    tell.detail("writing what has to be carried")
    carried = Carried(request.output / "blobs")
    code, problems = _source(tree, include, request, store, carried)
    mentioned = mentions.look(tree.root, tree.found, locked.variables.named)
    if mentioned.git and not _holds_git(locked):
        problems = (*problems, _without_git(mentioned.git))

    def hold(one: Tree) -> TreeBlob:
        if base is not None and one is locked.live.base and not request.keep_base:
            return base.blob  # linked: the registry has it
        return carry(one.entries, one.contents, store=store, carried=carried)

    identity = identity_of(locked, request.seed, hold)
    for one in locked.identified:
        if one.hint.origin in ("carried", "repacked") and not carried.has(one.wheel.sha256, store.facts):
            # Repacked wheels are not compressed inside: no compressor's version may decide on their digest.
            carried.add_file(identify.whole(one, store), one.wheel.sha256, compress=one.hint.origin == "repacked")
    for package in locked.packages:
        if package.hint.origin == "carried" and not carried.has(package.package.sha256, store.facts):
            carried.add_file(conda.whole(package, store), package.package.sha256)
    if locked.read:
        check_unchanged(locked)
    spec = assemble.spec(
        identity,
        [one.hint for one in locked.identified],
        [one.hint for one in locked.packages],
        locked.indexes,
        observed(
            locked,
            programs=programs,
            source=code,
            data=tuple(
                replace(one.data, source=str(path)) if str(path) != target else one.data
                for one, (path, target) in zip(mounted, request.data, strict=True)
            ),
            excluded=tree.excluded,
            notes=(
                *tree.notes,
                *search.notes,
                *(f"{one.lstrip('/')} is ignored by git and imported from: in the source" for one in more),
            ),
            unknown=(*problems, *asked, *(line for one in mounted for line in one.problems)),
        ),
        locked.layers,
    )
    if base is not None:
        spec = replace(spec, hints=replace(spec.hints, base=base.hint))
    packed = sent.expected(spec.expected.layers, request.output / "blobs", store.facts)
    spec = replace(spec, expected=replace(spec.expected, packed=packed))
    by_digest = {one.wheel.sha256: one for one in locked.identified}
    without = dockerfile.write(request.output, spec, store, lambda wheel: identify.facts_of(by_digest[wheel.sha256], store))
    if without:
        tell(f"no Dockerfile: {without}; `repro-env rebuild` makes the image")
    files.write(request.output, spec, store.facts)
    carried.keep_only(spec.carried)  # away with blobs of an earlier capture
    shown = siblings.at_capture(spec, mentioned.paths, tree.excluded, [path for path, _ in request.data], store)
    sourcedir.remember(spec, store, shown)
    egress.remember(spec, store)
    proven = sum(one.hint.origin != "repacked" for one in locked.identified)
    offers = tuple(_offers(request, tree, mentioned.paths, shown))
    holds_us = python.holds_us(locked.facts)
    return Captured(request.output / "spec.json", spec, offers, target, proven, mentioned.variables, holds_us)


def _with(request: Request, opened: dlopen.Opened) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(programs and libraries that the base must have: requested ones and those that the source opens, lines on missing ones)."""
    lines = [redact.line(line) for line in opened.unknown]
    libraries = [path for path in opened.libraries if path.isprintable()]
    if request.base:  # a registry's image takes nothing from this machine
        more = [
            f"the source opens {redact.line(path)} at run time; it is not known whether {request.base} contains it"
            for path in libraries
        ]
        return request.programs, (*lines, *more)
    return tuple(dict.fromkeys((*request.programs, *libraries))), tuple(lines)


def carry(entries: Sequence[Entry], contents: Contents, *, store: Store, carried: Carried) -> TreeBlob:
    """Keep a tree as a blob; where the blob of these very entries is there already, and whole, nothing is read."""
    known = layers.known_blob(entries, facts=store.facts)
    if known is not None and carried.has(known.sha256, store.facts):
        return known
    blob = carried.add_tree(members(entries, contents), facts=store.facts)
    if known is not None and blob != known:
        raise CaptureError("files changed while they were captured", hint="capture again when nothing writes to them")
    layers.remember_blob(entries, blob, facts=store.facts)
    return blob


def _size(locked: Locked, venv: Path) -> int:
    """Bytes of the environment's files, bytecode apart: they were listed, so nothing is listed again."""
    place = next((one for one in locked.live.places if one.prefix.resolve() == venv.resolve()), None)
    found = place.found if place is not None else walk(venv, skip=compose.Bytecode(venv))
    return sum(one.size for one in found if one.kind == "file")


def _quiet(tree: source.SourceTree) -> source.SourceTree:
    """The tree without the files that we print to: `capture > log` in the source must not capture its own log."""
    own = snapshot.own_streams()
    logs = [one for one in tree.found if one.key[:2] in own]
    return msgspec.structs.replace(
        tree,
        found=tuple(one for one in tree.found if one not in logs),
        size=tree.size - sum(one.size for one in logs),
        excluded=(*tree.excluded, *(Excluded(path=one.path, size=0, why="what this command prints to") for one in logs)),
    )


def _look(
    request: Request, store: Store, never: Sequence[Path], venv: Path | None, include: tuple[str, ...]
) -> source.SourceTree:
    return _quiet(
        source.look(
            request.source,
            include=include,
            exclude=request.exclude,
            never=never,
            not_secret=request.not_secret,
            cache=store.facts,
            unmeasured=venv,
        )
    )


def _imported(locked: Locked) -> list[Path]:
    """Folders that Python imports from, as it says, and those of editable projects."""
    projects = (distributions.project(one) for _, one in locked.installed)
    return [Path(path) for path in (*locked.live.startup.sys_path, *projects) if path.startswith("/")]


def _build_metadata(tree: source.SourceTree, locked: Locked) -> list[str]:
    """Directories with metadata that a build left beside an editable project, and that the environment has as `.dist-info`.

    Git usually ignores it, so a clone would differ from the capture.
    """
    projects = [
        (Path(os.path.realpath(distributions.project(one))), one.facts.name) for _, one in locked.installed if one.facts.editable
    ]
    found = []
    for path in (one.path for one in tree.found if one.path.endswith(".egg-info") and tree.git is not None):
        name = re.sub(r"[-_.]+", "-", path.rpartition("/")[2].removesuffix(".egg-info")).lower()
        parents = (tree.root / path).parents
        if any(name == other and folder in parents for folder, other in projects):
            found.append(path)
    return found


def _held(locked: Locked) -> list[Path]:
    """Folders whose content the image holds."""
    facts = locked.facts
    held = [Path(facts.interpreter.stdlib), Path(facts.interpreter.platstdlib)]
    held += [one.prefix / site for one in locked.live.places for site in (one.layout.purelib, one.layout.platlib)]
    return held if facts.kind == "system" else [*held, Path(facts.layout.prefix)]


def _holds_git(locked: Locked) -> bool:
    """Whether the image will have a git program."""
    in_base = any(entry.path in ("usr/bin/git", "bin/git", "usr/local/bin/git") for entry in locked.live.base.entries)
    return in_base or any(one.package.name == "git" for one in locked.packages)


def _without_git(places: Sequence[str]) -> str:
    more = f" and {len(places) - 1} more" if len(places) > 1 else ""
    return f"{places[0]}{more}: this code calls git, and without --with git a run has neither git nor the repository"


def _offers(request: Request, tree: source.SourceTree, mentioned: Collection[str], shown: Sequence[str]) -> Iterator[str]:
    """Lines on data that the code mentions: directories beside the source that a run sees (`shown`), and what it does not
    see, which is too large or elsewhere outside the source.
    """
    if shown:
        yield f"runs in this directory see a copy of {', '.join(shown)}, which the code names; what they write there is kept with the run"
    named = [path for path, _ in request.data]
    rows = sorted((row for row in tree.excluded if row.why.startswith("git-ignored")), key=lambda row: row.size)
    total = 0
    for row in rows:
        total += row.size
        path = tree.root / row.path
        if total > source.CAP and row.path.split("/")[0] in mentioned and not any(path.is_relative_to(data) for data in named):
            yield f"{row.path} ({row.size / 1e6:,.1f} MB, git-ignored) is not in the spec; if runs need it: --data {shlex.quote(row.path)}"
    for name in sorted(name for name in mentioned if name.startswith("../") and name not in shown):
        path = Path(os.path.normpath(tree.root / name))
        near = any(path.is_relative_to(other) or other.is_relative_to(path) for other in (tree.root, *named))
        if path.is_dir() and not near:
            yield f"{name} is outside the source and not in the spec; if runs read it: --data {shlex.quote(name)}"


def _source(
    tree: source.SourceTree, include: tuple[str, ...], request: Request, store: Store, carried: Carried
) -> tuple[Source, tuple[str, ...]]:
    """The code as a carried tree, and what could not be told of it."""
    entries = ordered(entries_of(tree.found, store.hashes.of(tree.root, tree.found)))
    blob = carry(entries, FileContents(tree.root, keys=keys_of(tree.found)), store=store, carried=carried)
    notebooks, wanted = notebook.look(tree.root, tree.found), requirements.look(tree.root, tree.found)
    code = Source(
        path=str(tree.root),
        tree=blob,
        size=tree.size,
        relative=os.path.relpath(tree.root, os.path.realpath(request.output)),
        files=notes(entries),
        git=tree.git,
        notebooks=notebooks.notebooks,
        requirements=wanted.files,
        include=include,
        exclude=request.exclude,
    )
    return code, (*tree.problems, *notebooks.problems, *wanted.problems)
