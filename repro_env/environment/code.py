"""The code and the data of a capture: which files of the source it includes, and what the environment adds to them."""

from __future__ import annotations

import os
import re
from glob import escape
from pathlib import Path

import msgspec
from msgspec.structs import replace

from repro_env.environment.assembly import CapturedCode
from repro_env.environment.bundler import Bundler
from repro_env.environment.lock import LockedEnvironment
from repro_env.environment.python.distributions import project
from repro_env.environment.source import data as datadigest
from repro_env.environment.source import selection
from repro_env.environment.source.request import CodeRequest
from repro_env.environment.source.selection import SourceTree
from repro_env.environment.system import openedlibraries
from repro_env.environment.system.tree import Tree
from repro_env.io.files import FileContents, keys_of, output_files, times_of
from repro_env.oci.entry import escape as escape_path
from repro_env.oci.entry import file_notes, sort_with_parents
from repro_env.schema import redact
from repro_env.schema.environment import Excluded
from repro_env.schema.errors import CaptureError
from repro_env.schema.progress import Tell
from repro_env.schema.spec import Data, Source
from repro_env.store.hashes import entries_of
from repro_env.store.specs.lookup import own_directories
from repro_env.store.store import Store

_BUILD_METADATA = "build metadata of an editable install; the environment has the same in .dist-info"


class Code(msgspec.Struct, frozen=True, kw_only=True):
    """The code and the data, as listed and hashed."""

    request: CodeRequest
    store: Store
    tree: SourceTree
    data: tuple[Data, ...]
    libraries: tuple[str, ...]
    """Libraries of this machine that the code opens."""
    remarks: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()

    def with_imports(self, locked: LockedEnvironment) -> Code:
        """The code with git-ignored paths that Python imports from, and without build metadata that the environment has too."""
        imported = selection.imported(self.tree, _import_directories(locked), without=_image_directories(locked))
        metadata = _build_metadata(self.tree, locked)
        if not imported and not metadata:
            return self
        request = replace(
            self.request,
            include=(*self.request.include, *imported),
            exclude=(*self.request.exclude, *(f"/{escape(path)}" for path in metadata)),
        )
        tree = _list(request, self.store)
        excluded = (replace(row, why=_BUILD_METADATA) if row.path in metadata else row for row in tree.excluded)
        why = "is in the source although git ignores it, because Python imports from it"
        return replace(
            self,
            request=request,
            tree=replace(tree, excluded=tuple(excluded)),
            remarks=(*self.remarks, *(f"{path.lstrip('/')} {why}" for path in imported)),
        )

    def bundle(self, bundler: Bundler) -> CapturedCode:
        """Bundler the source, and return all facts for the spec."""
        tree, request = self.tree, self.request
        entries = sort_with_parents(entries_of(tree.found, self.store.hashes.of(tree.root, tree.found)))
        source = Source(
            path=str(tree.root),
            tree=bundler.tree(Tree(entries=tuple(entries), contents=FileContents(tree.root, keys=keys_of(tree.found)))),
            size=tree.size,
            relative=os.path.relpath(tree.root, os.path.realpath(request.output)),
            files=file_notes(entries),
            times={escape_path(path): time for path, time in times_of(tree.found).items()},
            git=tree.git,
            include=request.include,
            exclude=request.exclude,
        )
        return CapturedCode(source, self.data, tree.excluded, (*tree.remarks, *self.remarks), (*tree.problems, *self.unknown))


def look(request: CodeRequest, environ: dict[str, str], venv: Path | None, store: Store, tell: Tell) -> Code:
    """List the source, hash the data, and find the libraries that the code opens, except those in the environment `venv`."""
    tree = _list(request, store)
    found = [datadigest.look(path, target, store.hashes, tell) for path, target in request.data]
    opened = openedlibraries.of_source(tree.root, tree.found, environ, store, [] if venv is None else [venv])
    return Code(
        request=request,
        store=store,
        tree=tree,
        data=tuple(
            replace(result.data, source=str(path)) if str(path) != target else result.data
            for result, (path, target) in zip(found, request.data, strict=True)
        ),
        libraries=tuple(path for path in opened.libraries if path.isprintable()),
        unknown=(*map(redact.line, opened.unknown), *(line for result in found for line in result.problems)),
    )


def check_output(request: CodeRequest, locked: LockedEnvironment) -> None:
    """Raise `CaptureError` if the spec would become a part of the captured environment."""
    facts = locked.live.facts
    if not facts.is_system and request.output.is_relative_to(facts.layout.prefix):
        raise CaptureError(
            "this directory is inside the environment, so the spec would become a part of the capture",
            where=str(request.output),
            hint=f"choose a directory outside {facts.layout.prefix} with --output",
        )


def _list(request: CodeRequest, store: Store) -> SourceTree:
    """List the source, without the files that this command prints to: `capture > log` must not capture its own log."""
    tree = selection.look(
        request.source,
        include=request.include,
        exclude=request.exclude,
        never=own_directories(request.source, request.output),
        not_secret=request.not_secret,
        cache=store.facts,
    )
    streams = output_files()
    logs = [file for file in tree.found if file.key[:2] in streams]
    return replace(
        tree,
        found=tuple(file for file in tree.found if file not in logs),
        size=tree.size - sum(file.size for file in logs),
        excluded=(*tree.excluded, *(Excluded(path=file.path, size=0, why="output of this command") for file in logs)),
    )


def _import_directories(locked: LockedEnvironment) -> list[Path]:
    """The directories that Python imports from: its `sys.path`, and editable projects."""
    projects = (project(dist) for _, dist in locked.installed)
    return [Path(path) for path in (*locked.live.startup.sys_path, *projects) if path.startswith("/")]


def _image_directories(locked: LockedEnvironment) -> list[Path]:
    """The directories whose content is in the image."""
    others = (path for site in locked.live.sites[1:] for path in site.layout.sites)
    return [*map(Path, (*locked.live.facts.directories, *others))]


def _build_metadata(tree: SourceTree, locked: LockedEnvironment) -> list[str]:
    """The directories of build metadata in the sources of editable projects; the environment has it as `.dist-info`.

    Git usually ignores them, so a clone would differ from the capture.
    """
    projects = [(Path(os.path.realpath(project(dist))), dist.facts.name) for _, dist in locked.installed if dist.facts.editable]
    paths = []
    for path in (file.path for file in tree.found if file.path.endswith(".egg-info") and tree.git is not None):
        name = re.sub(r"[-_.]+", "-", path.rpartition("/")[2].removesuffix(".egg-info")).lower()
        parents = (tree.root / path).parents
        if any(name == project_name and directory in parents for directory, project_name in projects):
            paths.append(path)
    return paths
