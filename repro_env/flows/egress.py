"""The last search for secrets in what leaves the machine: a spec's files, its bundled blobs and the code.

Files that capture, or an earlier search, found clean by the same rules are recognized by digest and not searched again.
"""

from __future__ import annotations

import re
import zipfile
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from repro_env.capture import secrets
from repro_env.capture.secrets import Secret
from repro_env.image.entry import CHUNK, Members
from repro_env.io.files import sha256_of, walk
from repro_env.model import codec
from repro_env.model.credentials import RULE
from repro_env.model.errors import CaptureError
from repro_env.model.spec import Spec
from repro_env.store import condafile, parts
from repro_env.store.carried import Carried
from repro_env.store.store import Store


def remember(spec: Spec, store: Store) -> None:
    """Record in the store that capture searched the bundled blobs of a spec."""
    for digest in spec.carried:
        store.facts.put("secrets", _key(digest), b"none")


def check(spec: Spec, folder: Path, *, store: Store) -> None:
    """Raises `CaptureError` with every secret in what would leave the machine. `folder` holds the spec.

    Files that were declared at capture to hold none (`--not-secret`) are accepted: the spec lists them.
    """
    notes = (note.partition(" looks like a secret") for note in spec.observed.notes)
    declared = [re.sub(r", line \d+\Z", "", path) for path, mark, _ in notes if mark]
    refused = []
    for digest, found in (*_files(folder), *_trees(spec, folder), *_artifacts(spec, folder, store)):
        if store.facts.get("secrets", _key(digest)) is None:
            here = [one for one in found if not _is_declared(one.path.partition(": ")[2] or one.path, declared)]
            refused += here
            if not here:
                store.facts.put("secrets", _key(digest), b"none")
    if refused:
        files = len(dict.fromkeys(one.path for one in refused))
        raise CaptureError(
            f"{files} file{' holds' if files == 1 else 's hold'} a secret, and nothing was sent or written",
            where=str(folder),
            hint="remove the secrets and capture again; a capture with --not-secret accepts files that hold none:\n"
            f"     {secrets.report(refused, '--not-secret')}",
        )


def _is_declared(path: str, declared: Sequence[str]) -> bool:
    """Whether a note of the spec declares this path. Notes have absolute paths for the environment, blobs relative ones."""
    return any(one == path or one.endswith(f"/{path}") for one in declared)


def _key(digest: str) -> str:
    return codec.digest([RULE, "blob", digest])


def _files(folder: Path) -> Iterator[tuple[str, Iterator[Secret]]]:
    for name in parts.present(folder):
        yield f"sha256:{sha256_of(folder / name)}", secrets.in_file(folder, name)


def _trees(spec: Spec, folder: Path) -> Iterator[tuple[str, Iterator[Secret]]]:
    carried, identity, source = Carried(folder / parts.BLOBS), spec.identity, spec.observed.source
    trees = (
        ("base", identity.base),
        ("unowned", identity.unowned),
        ("interpreter", identity.interpreter.tree),
        ("overlay", identity.overlay),
        ("source", source.tree if source else None),
    )
    for what, tree in trees:
        if tree is not None and carried.path(tree.sha256) is not None:
            yield tree.sha256, _in_members(what, carried.tree(tree), below="etc/" if what == "base" else "")


def _artifacts(spec: Spec, folder: Path, store: Store) -> Iterator[tuple[str, Iterator[Secret]]]:
    carried = Carried(folder / parts.BLOBS)
    for wheel in spec.identity.distributions:
        if wheel.sha256 in spec.carried and (path := carried.file(wheel.sha256, wheel.size, store.blobs)) is not None:
            yield wheel.sha256, _in_wheel(path, wheel.filename)
    for package in spec.identity.packages:
        if package.sha256 in spec.carried and (path := carried.file(package.sha256, package.size, store.blobs)) is not None:
            yield package.sha256, _in_package(path, package.filename, store)


def _in_members(what: str, members: Members, *, below: str = "") -> Iterator[Secret]:
    for entry, chunks in members:
        stream = iter(chunks)
        if entry.path.startswith(below):
            yield from _in_member(what, entry.path, stream)
        deque(stream, 0)  # each has to be read to its end


def _in_wheel(path: Path, filename: str) -> Iterator[Secret]:
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            with archive.open(member) as file:
                yield from _in_member(filename, member.filename, iter(lambda: file.read(CHUNK), b""))


def _in_member(what: str, path: str, chunks: Iterable[bytes]) -> Iterator[Secret]:
    for one in (*secrets.in_names([path]), *(Secret(path, *place) for place in secrets.in_chunks(chunks, path))):
        yield Secret(f"{what}: {one.path}", one.line, one.kind)


def _in_package(path: Path, filename: str, store: Store) -> Iterator[Secret]:
    with store.temp.folder() as temporary:
        condafile.unpack(path, filename, temporary)
        for one in secrets.among(temporary, walk(temporary)):
            yield Secret(f"{filename}: {one.path}", one.line, one.kind)
