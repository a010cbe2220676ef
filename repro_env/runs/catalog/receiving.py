"""Copy a run from a catalog into a directory of runs. The catalog is untrusted: every file is checked against the record first.

Nothing is overwritten, no link is made or followed, and a run appears only when it is complete.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Literal

import msgspec

from repro_env.io.files import expect, read_regular, room, sha256_of
from repro_env.oci import tar
from repro_env.oci.layer import Measured
from repro_env.runs.catalog import contents, part
from repro_env.runs.catalog.part import CODE, SPEC, SharedFile, SharedRun, StoredPart
from repro_env.runs.catalog.place import Catalog
from repro_env.runs.records import ids, pulled, records
from repro_env.runs.records.pulled import Pulled
from repro_env.runs.records.records import Run
from repro_env.runs.records.summary import summary_of
from repro_env.schema import codec
from repro_env.schema import spec as specs
from repro_env.schema.errors import ArtifactError, BuildError, RecordError, SpecError, os_errors_as
from repro_env.schema.progress import Advance, Tell, counted
from repro_env.schema.rundirectory import ANNOTATIONS, END, FILES, PULLED, START, output_of, path_of
from repro_env.schema.spec import Spec
from repro_env.store.specs import archive, files
from repro_env.store.specs.blobs import SpecBlobs
from repro_env.store.store import Store
from repro_env.store.temporary import Temp

_HINT = "the catalog was changed or damaged: ask the person who pushed the run"
_RECORD = (START, END)
_MOST_FILES = 1 << 20
_MOST_BYTES = 4 << 30
"""Of a run, without its outputs and its spec."""


class Received(msgspec.Struct, frozen=True, kw_only=True):
    """A run that was pulled."""

    id: str
    directory: Path
    state: Literal["pulled", "completed", "unchanged"]
    """`completed`: the run was here, and got files that it lacked."""
    files: int
    """Files that were written to the run's directory."""
    left_out: tuple[str, ...]
    """Recorded outputs that are in the catalog, but not in the directory. Sorted, like `not_pushed`."""
    not_pushed: tuple[str, ...]
    """Recorded outputs that are in neither."""


class Receiver:
    """Pulls runs from a catalog."""

    def __init__(self, catalog: Catalog, runs: Path, store: Store, *, tell: Tell) -> None:
        """`runs`: the directory of runs; it is created if it is missing."""
        self._catalog = catalog
        self._runs = runs
        self._store = store
        self._tell = tell

    def receive(self, shared: SharedRun, chosen: Collection[str]) -> Received:
        """Pull a run. `chosen`: the paths in the catalog of the outputs that come along; all other files always do.

        Raises `RecordError` if another run with this ID is here, or if files do not belong to the record, `SpecError`,
        `ArtifactError` for changed bytes, `NetworkError`, `DiskError`.
        """
        size = sum(file.size for path, file in shared.files.items() if output_of(path) is None and not path.startswith(SPEC))
        for count, most, what in ((len(shared.files), _MOST_FILES, "files"), (size, _MOST_BYTES, "bytes without its outputs")):
            if count > most:
                raise self._refused(shared, f"it has {count:,} {what}, but at most {most:,} are allowed")
        hint = "name another directory with --runs DIR"
        with os_errors_as(RecordError, "the run cannot be written", default=self._runs, hint=hint):
            try:
                return self._receive(shared, chosen)
            except OSError as error:
                if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                    raise
                return self._receive(shared, chosen)  # another pull has added the run in the meantime

    def _receive(self, shared: SharedRun, chosen: Collection[str]) -> Received:
        existing = _find(self._runs, shared.id)
        if existing is not None:
            _check_existing(existing, shared)
        wanted = [
            file
            for path, file in shared.files.items()
            if not part.is_shared(path) and (path in chosen or output_of(path) is None)
            if existing is None or not os.path.lexists(existing.directory / path)
        ]
        size, temp = sum(file.size for file in wanted), Temp(self._runs)
        with room(self._runs, size):
            self._runs.mkdir(parents=True, exist_ok=True)
            temp.clean()
            with temp.directory() as temporary:
                directory = temporary / "run"
                directory.mkdir()
                with self._tell.progress(size, f"pulling run {shared.short}") as advance:
                    for stored in shared.parts:
                        self._fetch(stored, shared, wanted, directory, advance)
                run = _read(directory, existing)
                self._check(run, shared)
                self._bring_spec(run, shared)
                self._bring_code(run, shared)
                self._store.run_directories.add(self._runs, run.start.source.trees)
                return self._keep(run, shared, directory, existing, len(wanted))

    def _refused(self, shared: SharedRun, what: str) -> RecordError:
        return RecordError(f"this run is refused: {what}", where=f"{self._catalog.name}: run {shared.short}", hint=_HINT)

    def _fetch(
        self, stored: StoredPart, shared: SharedRun, wanted: Iterable[SharedFile], directory: Path, advance: Advance
    ) -> None:
        """Write the wanted files of a part, as far as earlier parts did not have them."""
        own = {file.path for file in stored.part.files}
        needed = {file.path: file for file in wanted if file.path in own and not (directory / file.path).exists()}
        packed = {path: file for path, file in needed.items() if file.sha256 not in stored.blobs}
        for path in needed.keys() - packed.keys():
            with self._named(shared, path):
                chunks = self._catalog.read(stored.blobs[needed[path].sha256])
                self._write(directory, needed[path], counted(chunks, advance), shared)
        if not packed:
            return
        if stored.tar is None:
            raise self._refused(shared, f"its part {stored.tag} has no tar with {min(packed)}")
        with self._named(shared, "the tar of its small files"):
            where = f"{self._catalog.name}: {stored.tar.digest}"
            for entry, content in tar.read(self._catalog.read(stored.tar), where=where):
                if entry.kind != "file" or entry.path not in own:
                    raise self._refused(shared, f"its part {stored.tag} has {entry.path!r}, which is not in its list")
                if entry.path in packed:
                    self._write(directory, packed.pop(entry.path), counted(content, advance), shared)
                else:
                    Measured(content).read()
        if packed:
            raise self._refused(shared, f"its part {stored.tag} lacks {min(packed)}")

    @contextlib.contextmanager
    def _named(self, shared: SharedRun, path: str) -> Iterator[None]:
        """Add to an error which file of which run it concerns."""
        try:
            yield
        except ArtifactError as error:
            raise ArtifactError(f"{error.what} ({path} of run {shared.short})", where=error.where, hint=error.hint) from None

    def _write(self, directory: Path, file: SharedFile, chunks: Iterable[bytes], shared: SharedRun) -> None:
        target, content = directory / file.path, Measured(chunks)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("xb") as output:
                for chunk in content:
                    if content.size > file.size:
                        break
                    output.write(chunk)
        except (FileExistsError, NotADirectoryError):
            raise self._refused(shared, f"the path {file.path} is a file and a directory") from None
        if (content.digest, content.size) != (file.sha256, file.size):
            raise ArtifactError("the file does not have the listed sha256", where=self._catalog.name, hint=_HINT)
        if output_of(file.path) is None:
            target.chmod(0o444)

    def _check(self, run: Run, shared: SharedRun) -> None:
        """Raise `RecordError` unless the record is that of the run, and names every file."""
        start, end = run.start, run.end
        if start.id != shared.id or (end is not None and end.id != shared.id):
            raise self._refused(shared, f"its record is of run {start.id if start.id != shared.id else ids.short(shared.id)}")
        if run.intact is False:
            raise self._refused(shared, "its start.json does not have the sha256 in its end.json")
        if summary_of(run) != shared.summary:
            raise self._refused(shared, "the list of runs describes it differently from its record")
        recorded = contents.recorded_files(start, end)
        if start.spec_file is not None:
            recorded[SPEC + files.SPEC] = start.spec_file
        recorded[CODE] = start.source.digest
        for path, file in shared.files.items():
            if path in _RECORD or contents.VERDICT.fullmatch(path) or (path.startswith(SPEC) and path != SPEC + files.SPEC):
                continue
            if recorded.get(path) != file.sha256:
                problem = "which its record does not name" if path not in recorded else "with another sha256 than its record"
                raise self._refused(shared, f"it comes with {path}, {problem}")

    def _bring_spec(self, run: Run, shared: SharedRun) -> None:
        """Store the spec next to the runs, with the blobs that come along and are not there yet."""
        if SPEC + files.SPEC not in shared.files:
            return
        data = self._bytes(shared, SPEC + files.SPEC, files.MAX_SIZE)
        spec = specs.read(data, where=f"{self._catalog.name}: run {shared.short}: {files.SPEC}")
        if spec.digest != run.start.spec:
            raise self._refused(shared, f"its spec is {spec.digest[:19]}…, but its record names {run.start.spec[:19]}…")
        digest = archive.write(self._runs, data)
        directory = archive.directory_of(self._runs, digest)
        self._bring_blobs(spec, directory, shared)
        if SPEC + files.REMOTE in shared.files and not (directory / files.REMOTE).exists():
            (directory / files.REMOTE).write_bytes(self._bytes(shared, SPEC + files.REMOTE, files.MAX_SIZE))

    def _bring_blobs(self, spec: Spec, directory: Path, shared: SharedRun) -> None:
        target, prefix = SpecBlobs(directory / files.BLOBS), f"{SPEC}{files.BLOBS}/"
        for path, file in shared.files.items():
            name = path.removeprefix(prefix)
            if not path.startswith(SPEC) or path in (SPEC + files.SPEC, SPEC + files.REMOTE):
                continue
            digest = f"sha256:{name.removesuffix('.gz')}"
            if not path.startswith(prefix) or not files.BLOB.fullmatch(name) or digest not in spec.bundled:
                raise self._refused(shared, f"it comes with {path}, which its spec does not bundle")
            if target.path(digest) is not None:
                continue
            with self._named(shared, path), self._tell.progress(file.size, "pulling its spec") as advance:
                chunks = counted(self._chunks(shared, path), advance)
                where = f"{self._catalog.name}: {file.sha256}"
                target.restore(digest, chunks, is_gzip=name.endswith(".gz"), size=spec.sizes[digest], where=where)

    def _bring_code(self, run: Run, shared: SharedRun) -> None:
        """Unpack the code into the store, where that of the user's own runs is too."""
        digest = run.start.source.digest
        if CODE not in shared.files or self._store.layers.path(digest) is not None:
            return
        with self._named(shared, CODE):
            members = tar.read(self._chunks(shared, CODE), where=f"{self._catalog.name}: {digest}")
            try:
                self._store.layers.unpack(digest, members, size=shared.files[CODE].size)
            except BuildError as error:
                raise self._refused(shared, f"its code cannot be used: {error}") from None

    def _bytes(self, shared: SharedRun, path: str, most: int) -> bytes:
        if shared.files[path].size > most:
            raise self._refused(shared, f"its {path} has {shared.files[path].size:,} bytes, but at most {most:,} are allowed")
        with self._named(shared, path):
            return b"".join(self._chunks(shared, path))

    def _chunks(self, shared: SharedRun, path: str) -> Iterator[bytes]:
        """Return the checked bytes of a file that is a blob."""
        digest = shared.files[path].sha256
        for stored in shared.parts:
            if digest in stored.blobs:
                return self._catalog.read(stored.blobs[digest])
        raise self._refused(shared, f"none of its parts has {path}")

    def _keep(self, run: Run, shared: SharedRun, directory: Path, existing: Run | None, count: int) -> Received:
        """Move the files into place."""
        have = {path.stem for path in (existing.directory / ANNOTATIONS).glob("*.json")} if existing else set()
        notes = [note for note in shared.annotations.values() if note.id not in have]
        for note in notes:
            path = directory / ANNOTATIONS / f"{note.id}.json"
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(codec.pretty(note))
            path.chmod(0o444)
        state: Literal["pulled", "completed", "unchanged"] = "pulled"
        if existing is None:
            (directory / FILES).mkdir(exist_ok=True)
            final = self._runs / _name(run)
            missing = _missing(run, directory)
            self._write_pulled(directory, missing)
            directory.rename(final)
        else:
            final = existing.directory
            paths = (path.relative_to(directory) for path in directory.rglob("*") if path.is_file())
            for path in sorted(paths, key=lambda path: (path == Path(END), path)):  # the end after what it names
                _move(directory / path, final, path.parts)
            missing = _missing(run, final)
            state = "completed" if count or notes else "unchanged"
            if count and (missing or (final / PULLED).exists()):
                self._write_pulled(final, missing)
        outputs = [output.path for output in contents.outputs_of(run) if output.path in missing]
        in_catalog = {path for path in outputs if path_of(path) in shared.files}
        return Received(
            id=shared.id,
            directory=final,
            state=state,
            files=count + len(notes),
            left_out=tuple(path for path in outputs if path in in_catalog),
            not_pushed=tuple(path for path in outputs if path not in in_catalog),
        )

    def _write_pulled(self, directory: Path, missing: Iterable[str]) -> None:
        pulled.write(directory, Pulled(source=self._catalog.name, left_out=tuple(sorted(missing))))


def _find(runs: Path, run_id: str) -> Run | None:
    """Return the run with this ID. Raises what `records.read` raises, since an unreadable run may be this one."""
    for directory in records.directories(runs) if runs.is_dir() else ():
        if directory.name.endswith(f"-{ids.short(run_id)}"):
            run = records.read(directory)
            if run.id == run_id:
                return run
    return None


def _check_existing(run: Run, shared: SharedRun) -> None:
    """Raise `RecordError` if the run that is here differs from the one in the catalog."""
    if run.state == "running":
        raise RecordError("this run is still running", where=str(run.directory), hint="pull it when it has ended")
    for path, file in shared.files.items():
        local = run.directory / path
        if part.is_shared(path) or not os.path.lexists(local):
            continue
        is_output = output_of(path) is not None
        with os_errors_as(RecordError, "this file cannot be compared", where=local, hint="remove it"):
            facts = local.lstat()
            expect(facts.st_mode, stat.S_IFREG, str(local))
            # Hashing all outputs would take long; `runs audit` does that.
            same = facts.st_size == file.size and (is_output or f"sha256:{sha256_of(local)}" == file.sha256)
        if not same:
            what = f"this run is here, and its {path} differs from the one in the catalog"
            hint = "find out which is right: `repro-env runs audit` compares the run with its record; nothing was changed"
            raise RecordError(what, where=str(run.directory), hint=hint)


def _read(directory: Path, existing: Run | None) -> Run:
    """Read the record from the files that were pulled, and from those that were here before."""
    if existing is None:
        return records.read(directory)
    if not (directory / END).exists():
        return existing
    (directory / START).write_bytes(read_regular(existing.directory / START, records.LARGEST))
    try:
        return msgspec.structs.replace(records.read(directory), directory=existing.directory)
    finally:
        (directory / START).unlink()


def _name(run: Run) -> str:
    """Return the name of the run's directory, which only its record decides. Raises `SpecError`."""
    try:
        started = datetime.fromisoformat(run.start.started.replace("Z", "+00:00"))
        name = records.name_of(started, run.start.command, run.id)
    except (ValueError, OverflowError):
        name = ""
    if not records.NAME.fullmatch(name):
        raise SpecError(f"the start time of this run is invalid: {run.start.started}", where=run.short, hint=_HINT)
    return name


def _missing(run: Run, directory: Path) -> set[str]:
    """Return the recorded outputs, and the lines of recorded links, that are not in the directory of a run."""
    if run.end is None:
        return set()
    outputs = [output.path for output in run.end.outputs if not os.path.lexists(directory / path_of(output.path))]
    links = {line: path_of(line.partition(" -> ")[0]) for line in run.end.special_files if " -> " in line}
    return {*outputs, *(line for line, path in links.items() if not os.path.lexists(directory / path))}


def _move(source: Path, directory: Path, parts: Sequence[str]) -> None:
    """Move a file into the directory of a run, without following a symlink and without replacing anything."""
    target = directory
    hint = "remove what is there, and pull again"
    with os_errors_as(RecordError, "the file cannot be moved into place", default=target, hint=hint):
        for name in parts[:-1]:
            target /= name
            with contextlib.suppress(FileExistsError):
                target.mkdir()
            expect(target.lstat().st_mode, stat.S_IFDIR, str(target))
        target /= parts[-1]
        if os.path.lexists(target):
            raise RecordError("this file appeared while the run was pulled", where=str(target), hint="pull again")
        source.rename(target)
