"""Keeping the spec of a run beside its record: a later capture may overwrite the one that it ran from, and what it carries."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from repro_env.catalog import specs
from repro_env.flows.asked import Asked
from repro_env.flows.locate import FILE, MAX_SIZE
from repro_env.io.files import atomic_write, open_regular, read_regular, room
from repro_env.model import codec
from repro_env.model import spec as model
from repro_env.model.errors import ReproEnvError
from repro_env.model.spec import Spec
from repro_env.model.talk import Tell
from repro_env.run.workspace import copy_file
from repro_env.store import parts
from repro_env.store.carried import SENT, Carried, key_of
from repro_env.store.store import Store
from repro_env.store.temp import Temp

_PROVEN = ("carried", SENT)
"""Facts of a blob's file by its key, as `store.carried` knows them."""
_NO_LINK = (errno.EXDEV, errno.EPERM, errno.EACCES, errno.EMLINK, errno.EOPNOTSUPP, errno.ENOSYS)


def keep(asked: Asked, spec: Spec, folder: Path, runs: Path, *, store: Store, tell: Tell) -> str | None:
    """Keep the spec in `folder` beside the runs that it is used for; returns the sha256 of its file (`Start.spec_file`).

    None for a run that is not kept itself. What it carries is linked, or copied where links cannot be; what of it
    cannot be kept is told. Raises `RecordError`, `DiskError` when the spec itself cannot be written.
    """
    if not asked.kept:
        return None
    digest = specs.write(runs, _bytes(spec, folder))
    to = specs.place(runs, digest)
    problems: list[str] = []
    with _noted(problems):
        _carry(spec, folder, to, store, problems)
    if problems:
        more = f" and {len(problems) - 1} more" if len(problems) > 1 else ""
        tell.warn(
            f"note: not all that the spec carries could be kept in {to}, so another capture may lose it: {problems[0]}{more}"
        )
    return digest


@contextlib.contextmanager
def _noted(problems: list[str]) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        problems.append(str(error.strerror))
    except ReproEnvError as error:
        problems.append(error.what)


def _bytes(spec: Spec, folder: Path) -> bytes:
    """Those of its file; where the file is another one by now, the spec as it is at hand."""
    made = codec.pretty(spec)
    with contextlib.suppress(OSError, ReproEnvError):
        path = folder / FILE
        data = read_regular(path, MAX_SIZE)
        if data == made or _is(model.read(data, where=str(path)), spec):
            return data
    return made


def _is(one: Spec, spec: Spec) -> bool:
    """Whether a spec is the one that was adapted for a run that repeats another: its source and data are that run's."""
    return _common(one) == _common(spec)


def _common(spec: Spec) -> Spec:
    source = spec.observed.source
    if source is not None:
        source = msgspec.structs.replace(source, path="/", tree=spec.identity.base)
    return msgspec.structs.replace(spec, observed=msgspec.structs.replace(spec.observed, source=source, data=()))


def _carry(spec: Spec, folder: Path, to: Path, store: Store, problems: list[str]) -> None:
    """What cannot be kept is added to `problems`, and the rest is kept. Raises `OSError`, `DiskError`."""
    if os.path.realpath(folder) == os.path.realpath(to):
        return
    remote = folder / parts.REMOTE
    if os.path.lexists(remote):
        data = read_regular(remote, parts.MAX_SIZE)
        kept = to / parts.REMOTE
        if not kept.is_file() or read_regular(kept, parts.MAX_SIZE) != data:
            atomic_write(kept, data)
    theirs, ours = Carried(folder / parts.BLOBS), Carried(to / parts.BLOBS)
    wanted = [path for digest in sorted(spec.carried) if (path := theirs.path(digest)) is not None and ours.path(digest) is None]
    if not wanted:
        return
    with room(to):
        ours.folder.mkdir(exist_ok=True)
        with contextlib.suppress(FileExistsError), (ours.folder / ".gitignore").open("x", encoding="ascii") as file:
            file.write("*\n")
    for path in wanted:
        with _noted(problems), room(to):
            os.close(open_regular(path))
            _link(path, ours.folder / path.name, store)


def _link(path: Path, to: Path, store: Store) -> None:
    """Another name for a blob. Blobs are never written to, only replaced: what the one name leads to stays with the other."""
    before = key_of(path)
    try:
        os.link(path, to)
    except FileExistsError:
        return  # another run was faster
    except OSError as error:
        if error.errno not in _NO_LINK:
            raise
        with Temp(to.parent / ".temp").folder() as temporary:
            copy_file(path, temporary / "blob")
            _flush(temporary / "blob")
            (temporary / "blob").replace(to)
        return
    # A new name changes the file's ctime, by which it is known; its bytes are those that were proven.
    for kind in _PROVEN:
        known = store.facts.get(kind, before)
        if known is not None:
            store.facts.put(kind, key_of(path), known)


def _flush(path: Path) -> None:
    """The copy may once be the only one."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
