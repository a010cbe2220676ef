"""The last search for secrets before a spec leaves the machine: in its files, its bundled blobs and the code.

Files without secrets according to the same rules are remembered by their digest and not searched again.
"""

from __future__ import annotations

import re
import zipfile
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from repro_env.environment.secrets import scanner
from repro_env.environment.secrets.scanner import Secret
from repro_env.io.files import sha256_of, walk
from repro_env.oci.entry import CHUNK, Members
from repro_env.schema.errors import CaptureError
from repro_env.schema.spec import Spec
from repro_env.store.packages import condafile
from repro_env.store.specs import files
from repro_env.store.specs.blobs import SpecBlobs
from repro_env.store.store import Store


def remember(spec: Spec, store: Store) -> None:
    """Record in the store that capture found no secrets in the bundled blobs of a spec."""
    for digest in spec.carried:
        scanner.remember_clean(store.facts, "blob", digest)


def check(spec: Spec, spec_directory: Path, *, store: Store) -> None:
    """Raise `CaptureError` with all secrets in what would leave the machine.

    Files that were declared at capture to contain no secret (`--not-secret`) are accepted: the notes of the spec list them.
    """
    notes = (note.partition(" looks like a secret") for note in spec.observed.notes)
    declared = [re.sub(r", line \d+\Z", "", path) for path, mark, _ in notes if mark]
    undeclared_secrets = []
    for digest, secrets_in_file in (
        *_search_files(spec_directory),
        *_search_trees(spec, spec_directory),
        *_search_artifacts(spec, spec_directory, store),
    ):
        if not scanner.is_clean(store.facts, "blob", digest):
            undeclared = [
                secret for secret in secrets_in_file if not _is_declared(secret.path.partition(": ")[2] or secret.path, declared)
            ]
            undeclared_secrets += undeclared
            if not undeclared:
                scanner.remember_clean(store.facts, "blob", digest)
    if undeclared_secrets:
        count = len({secret.path for secret in undeclared_secrets})
        raise CaptureError(
            f"{count} file{' contains' if count == 1 else 's contain'} a secret; nothing was sent or written",
            where=str(spec_directory),
            hint="remove the secrets and capture again, or capture with --not-secret to accept files without secrets:\n"
            f"     {scanner.report(undeclared_secrets, '--not-secret')}",
        )


def _is_declared(path: str, declared: Sequence[str]) -> bool:
    """Whether a note of the spec declares this path. Notes have absolute paths for the environment, blobs have relative paths."""
    return any(name == path or name.endswith(f"/{path}") for name in declared)


def _search_files(spec_directory: Path) -> Iterator[tuple[str, Iterator[Secret]]]:
    for name in files.present(spec_directory):
        yield f"sha256:{sha256_of(spec_directory / name)}", scanner.in_file(spec_directory, name)


def _search_trees(spec: Spec, spec_directory: Path) -> Iterator[tuple[str, Iterator[Secret]]]:
    blobs, identity, source = SpecBlobs(spec_directory / files.BLOBS), spec.identity, spec.observed.source
    trees = (
        ("base", identity.base),
        ("unowned", identity.unowned),
        ("interpreter", identity.interpreter.tree),
        ("overlay", identity.overlay),
        ("source", source.tree if source else None),
    )
    for name, tree in trees:
        if tree is not None and blobs.path(tree.sha256) is not None:
            yield tree.sha256, _search_members(name, blobs.tree(tree), below="etc/" if name == "base" else "")


def _search_artifacts(spec: Spec, spec_directory: Path, store: Store) -> Iterator[tuple[str, Iterator[Secret]]]:
    blobs = SpecBlobs(spec_directory / files.BLOBS)
    for wheel in spec.identity.distributions:
        if wheel.sha256 in spec.carried and (path := blobs.file(wheel.sha256, wheel.size, store.blobs)) is not None:
            yield wheel.sha256, _search_wheel(path, wheel.filename)
    for package in spec.identity.packages:
        if package.sha256 in spec.carried and (path := blobs.file(package.sha256, package.size, store.blobs)) is not None:
            yield package.sha256, _search_package(path, package.filename, store)


def _search_members(name: str, members: Members, *, below: str = "") -> Iterator[Secret]:
    for entry, chunks in members:
        stream = iter(chunks)
        if entry.path.startswith(below):
            yield from _search_member(name, entry.path, stream)
        deque(stream, 0)  # every member must be read to its end


def _search_wheel(path: Path, filename: str) -> Iterator[Secret]:
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            with archive.open(member) as file:
                yield from _search_member(filename, member.filename, iter(lambda: file.read(CHUNK), b""))


def _search_member(name: str, path: str, chunks: Iterable[bytes]) -> Iterator[Secret]:
    for secret in (*scanner.in_names([path]), *(Secret(path, *place) for place in scanner.in_chunks(chunks, path))):
        yield Secret(f"{name}: {secret.path}", secret.line, secret.kind)


def _search_package(path: Path, filename: str, store: Store) -> Iterator[Secret]:
    with store.temp.directory() as temporary:
        condafile.unpack(path, filename, temporary)
        for secret in scanner.among(temporary, walk(temporary)):
            yield Secret(f"{filename}: {secret.path}", secret.line, secret.kind)
