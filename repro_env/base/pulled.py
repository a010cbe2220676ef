"""A base that is an image of a registry: pulled by digest, made into one canonical tree, and held against what is needed.

The rule (pulled rule 1, frozen: what it makes has to come out again from the same image). In: what all layers of the image
together show (`image.flat`), in canonical form: owner, times, set-uid bits and extended attributes go, as with every other
layer. Added: the folders that every base has, where the image has nothing. Out: devices and pipes, which are the machine's
own, and bytecode. An image that tools would unpack in different ways is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO, cast

import msgspec

from repro_env.base import dpkg
from repro_env.base.host import FOLDERS
from repro_env.base.tree import Tree
from repro_env.image import flat, foreign, layer, tar
from repro_env.image.entry import CHUNK, Entry, Members, entries_of, ordered
from repro_env.image.flat import Flat
from repro_env.io.files import FileContents, keys_of, room, walk
from repro_env.model import codec
from repro_env.model.artifact import TreeBlob
from repro_env.model.environment import SystemPackage
from repro_env.model.errors import ArtifactError, LockError, NetworkError, SpecError
from repro_env.model.spec import BaseHint, Platform
from repro_env.model.talk import Advance, Tell
from repro_env.model.text import Digest
from repro_env.registry import reference
from repro_env.registry.client import Registry
from repro_env.registry.manifest import Manifest
from repro_env.store.store import Store

RULE = 1
FACTS = "pulled"
"""Kind of the facts in the store's cache: the tree that an image became."""
MOST = 64 << 30
"""Bytes of all layers' tars together."""
_BYTECODE = "__pycache__"
_HINT = "name another image with --base, or cut the base from this machine: --base host"


class Base(msgspec.Struct, frozen=True, kw_only=True):
    """A pulled base, unpacked in the store."""

    hint: BaseHint
    blob: TreeBlob
    root: Path
    """Where the store has it."""
    tree: Tree

    @property
    def entries(self) -> Mapping[str, Entry]:
        return {entry.path: entry for entry in self.tree.entries}


def pull(text: str, platform: Platform, *, kept: bool, store: Store, tell: Tell) -> Base:
    """The image that a reference stands for now. Raises `UsageError`, `NetworkError`, `ArtifactError`, `PlatformError`, `DiskError`."""
    ref = reference.parse(text)
    registry = Registry(ref.host)
    try:
        manifest, _, digest = registry.image(ref.repository, ref.named, architecture=platform.architecture)
        tell.detail(f"{ref} is {ref.name}@{digest}")
        hint = BaseHint(
            reference=str(ref), digest=digest, platform=platform, layers=tuple(one.blob for one in manifest.layers), kept=kept
        )
        return _opened(hint, _made(hint, manifest, registry, store, tell), store)
    finally:
        registry.close()


def again(hint: BaseHint, store: Store, tell: Tell, stop: Iterable[bool] = ()) -> Base:
    """The very image that a hint names, out of the store where it is there. Raises as `pull`."""
    known = _known(hint, store)
    if known is not None:
        return _opened(hint, known, store)
    ref = reference.parse(hint.reference)
    registry = Registry(ref.host)
    try:
        manifest, _, _ = registry.image(ref.repository, hint.digest, architecture=hint.platform.architecture)
        return _opened(hint, _made(hint, manifest, registry, store, tell, iter(stop)), store)
    finally:
        registry.close()


def _known(hint: BaseHint, store: Store) -> TreeBlob | None:
    known = store.facts.recall(FACTS, f"{hint.digest} {RULE}", TreeBlob)
    return known if known is not None and store.layers.path(known.sha256) is not None else None


class _Rootfs(msgspec.Struct, frozen=True):
    diff_ids: list[Digest]


class _Config(msgspec.Struct, frozen=True):
    rootfs: _Rootfs


def _made(
    hint: BaseHint, manifest: Manifest, registry: Registry, store: Store, tell: Tell, stop: Iterator[bool] | None = None
) -> TreeBlob:
    """The canonical tree of an image in the store: fetched, each layer proven, unless it is known and there."""
    known = _known(hint, store)
    if known is not None:
        return known
    ref = reference.parse(hint.reference)
    where = f"{ref.name}@{hint.digest}"
    try:
        config = codec.decode(registry.small(ref.repository, manifest.config), _Config, where=where)
    except SpecError as error:
        raise ArtifactError(f"has a config that cannot be read: {error.what}", where=where, hint=_HINT) from None
    if len(config.rootfs.diff_ids) != len(manifest.layers):
        raise ArtifactError("has a config of other layers", where=where, hint=_HINT)
    with room(store.root), store.temp.folder() as folder, ExitStack() as opened:
        files, nodes = [], []
        problems: list[str] = []
        left = MOST
        with tell.progress(sum(one.size for one in manifest.layers), f"pulling {ref}") as advance:
            for number, (one, wanted) in enumerate(zip(manifest.layers, config.rootfs.diff_ids, strict=True)):
                file = opened.enter_context((folder / str(number)).open("w+b"))
                chunks = _counted(registry.blob(ref.repository, one.digest, one.size), advance, stop, where)
                found = foreign.scan(chunks, where=f"{where}, layer {number + 1}", most=left, sink=file.write)
                for _ in chunks:  # its digest is proven at the end
                    pass
                if found.diff_id != wanted:
                    raise ArtifactError(f"is {found.diff_id}, and the config says {wanted}", where=where, hint=_HINT)
                left -= found.size
                problems += found.problems
                files.append(file)
                nodes.append(found.nodes)
        tree = flat.flatten(nodes)
        problems += tree.problems
        if problems:
            more = f", and {len(problems) - 1:,} more" if len(problems) > 1 else ""
            raise ArtifactError(f"cannot be a base: it {problems[0]}{more}", where=where, hint=_HINT)
        with tell.progress(0, f"unpacking {ref}"):
            entries = canonical(tree)
            blob = _add(entries, tree, cast("list[BinaryIO]", files), store)
    store.facts.put(FACTS, f"{hint.digest} {RULE}", codec.canonical(blob))
    return blob


def canonical(tree: Flat) -> list[Entry]:
    """What of an image's tree the base holds (rule 1)."""
    entries = [entry for entry in tree.entries() if _BYTECODE not in entry.path.split("/")]
    there = {entry.path: entry for entry in entries}
    missing = [
        Entry(path, "dir") for path in FOLDERS if path not in there and there.get(path.partition("/")[0], _DIR).kind == "dir"
    ]
    return ordered([*entries, *missing])


_DIR = Entry("", "dir")


def _add(entries: list[Entry], tree: Flat, files: list[BinaryIO], store: Store) -> TreeBlob:
    def members() -> Members:
        for entry in entries:
            if entry.kind != "file":
                yield entry, ()
                continue
            placed = tree.placed[entry.path]
            yield entry, _read(files[placed.layer], placed.node.offset, entry.size)

    size = sum(len(tar.header(entry)) + entry.size + -entry.size % tar.BLOCK for entry in entries) + 2 * tar.BLOCK
    diff_id = store.layers.add(layer.checked(members()), size=size)
    return TreeBlob(sha256=diff_id, size=size, files=len(entries))


def _read(file: BinaryIO, at: int, left: int) -> Iterator[bytes]:
    while left:
        file.seek(at)
        chunk = file.read(min(left, CHUNK))
        if not chunk:
            return  # whoever takes the bytes counts them
        yield chunk
        at, left = at + len(chunk), left - len(chunk)


def _counted(chunks: Iterator[bytes], advance: Advance, stop: Iterator[bool] | None, where: str) -> Iterator[bytes]:
    for chunk in chunks:
        if stop is not None and next(stop, False):
            raise NetworkError("stopped", where=where, hint="try again: what is there already is not fetched again")
        advance(len(chunk))
        yield chunk


def _opened(hint: BaseHint, blob: TreeBlob, store: Store) -> Base:
    root = store.layers.path(blob.sha256)
    if root is None:
        raise ArtifactError("was removed from the store meanwhile", where=hint.reference, hint="try again")
    found = tuple(walk(root))
    entries = ordered(entries_of(found, store.hashes.of(root, found)))
    packages, unknown = _packages(root)
    tree = Tree(
        entries=tuple(entries),
        contents=FileContents(root, keys=keys_of(found)),
        packages=packages,
        unknown=unknown,
        notes=(f"the base is {hint.reference}, {hint.digest}: its own packages, certificates and time zone, not this machine's",),
    )
    return Base(hint=hint, blob=blob, root=root, tree=tree)


def _packages(root: Path) -> tuple[tuple[SystemPackage, ...], tuple[str, ...]]:
    """What the image's own package database says that it holds."""
    # A stranger's image: a symlink there would lead to a file of this machine.
    own = root.resolve() / "var/lib/dpkg"
    inside = own.resolve() == own and not any((own / name).is_symlink() for name in ("status", "diversions", "info"))
    if not inside or not dpkg.present(root):
        return (), ("which packages the base holds: only dpkg's database is read in a pulled image",)
    try:
        system = dpkg.Database(root)
    except (LockError, OSError) as error:
        return (), (f"which packages the base holds: {error}",)
    found = {SystemPackage(name=system.shown(one), version=one.version) for one in system.packages.values()}
    return tuple(sorted(found, key=lambda one: (one.name, one.version))), ()
