"""Use an image from a registry as the base: pull it by digest and convert it to one canonical tree.

Pulled rule 1, frozen: the same image always gives the same tree. The tree is what all layers of the image show together
(`oci.imagetree`), in canonical form: without owners, times, set-uid bits and extended attributes, like every layer. The
directories that every base has are added if they are missing. Devices, pipes and bytecode are removed. Images that tools
unpack in different ways are rejected.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import BinaryIO, cast

import msgspec

from repro_env.environment.system import dpkg
from repro_env.environment.system.host import DIRECTORIES
from repro_env.environment.system.tree import Tree
from repro_env.io.files import FileContents, keys_of, room, walk
from repro_env.oci import imagetree, layer, layerreader, tar
from repro_env.oci.config import ImageConfig
from repro_env.oci.entry import CHUNK, Entry, Members, entries_of, sort_with_parents
from repro_env.oci.imagetree import ImageTree
from repro_env.oci.manifestreader import Manifest
from repro_env.registry import reference
from repro_env.registry.client import Registry
from repro_env.schema import codec
from repro_env.schema.artifact import TreeBlob
from repro_env.schema.environment import SystemPackage
from repro_env.schema.errors import ArtifactError, LockError, NetworkError, SpecError
from repro_env.schema.progress import Advance, Tell
from repro_env.schema.spec import BaseHint, Platform
from repro_env.store.store import Store

RULE = 1
FACTS = "pulled"
"""Kind of the cached facts: the tree of an image."""
MAX_SIZE = 64 << 30
"""Bytes of the tar archives of all layers together."""
_BYTECODE = "__pycache__"
_HINT = "choose another image with --base, or make the base from this machine: --base host"


class BaseImage(msgspec.Struct, frozen=True, kw_only=True):
    """A base image, unpacked in the store."""

    hint: BaseHint
    blob: TreeBlob
    root: Path
    """Its directory in the store."""
    tree: Tree

    @property
    def entries(self) -> Mapping[str, Entry]:
        return {entry.path: entry for entry in self.tree.entries}


def pull(text: str, platform: Platform, *, kept: bool, store: Store, tell: Tell) -> BaseImage:
    """Pull the image that a reference names now.

    Raises `UsageError`, `NetworkError`, `ArtifactError`, `PlatformError`, `DiskError`.
    """
    ref = reference.parse(text)
    with closing(Registry(ref.host)) as registry:
        manifest, _, digest = registry.image(ref.repository, ref.tag_or_digest, architecture=platform.architecture)
        tell.detail(f"{ref} is {ref.name}@{digest}")
        hint = BaseHint(
            reference=str(ref), digest=digest, platform=platform, layers=tuple(layer.blob for layer in manifest.layers), kept=kept
        )
        return _open(hint, _fetch_tree(hint, manifest, registry, store, tell), store)


def fetch(hint: BaseHint, store: Store, tell: Tell, stop: Iterable[bool] = ()) -> BaseImage:
    """The image of a hint, by digest; from the store if it is there. Raises the same errors as `pull`."""
    blob = _cached_tree(hint, store)
    if blob is not None:
        return _open(hint, blob, store)
    ref = reference.parse(hint.reference)
    with closing(Registry(ref.host)) as registry:
        manifest, _, _ = registry.image(ref.repository, hint.digest, architecture=hint.platform.architecture)
        return _open(hint, _fetch_tree(hint, manifest, registry, store, tell, stop), store)


def _cached_tree(hint: BaseHint, store: Store) -> TreeBlob | None:
    blob = store.facts.recall(FACTS, f"{hint.digest} {RULE}", TreeBlob)
    return blob if blob is not None and store.layers.path(blob.sha256) is not None else None


def _fetch_tree(
    hint: BaseHint, manifest: Manifest, registry: Registry, store: Store, tell: Tell, stop: Iterable[bool] = ()
) -> TreeBlob:
    """The canonical tree of an image, in the store. It is fetched and checked layer by layer if it is not there yet."""
    blob = _cached_tree(hint, store)
    if blob is not None:
        return blob
    ref = reference.parse(hint.reference)
    where = f"{ref.name}@{hint.digest}"
    try:
        config = codec.decode(registry.small(ref.repository, manifest.config), ImageConfig, where=where)
    except SpecError as error:
        raise ArtifactError(f"the config of this image cannot be read: {error.what}", where=where, hint=_HINT) from None
    if len(config.diff_ids) != len(manifest.layers):
        raise ArtifactError("the config of this image does not match its layers", where=where, hint=_HINT)
    stops = iter(stop)
    with room(store.root), store.temp.directory() as directory, ExitStack() as stack:
        files, nodes = [], []
        problems: list[str] = []
        remaining = MAX_SIZE
        with tell.progress(sum(layer.size for layer in manifest.layers), f"pulling {ref}") as advance:
            for number, (descriptor, diff_id) in enumerate(zip(manifest.layers, config.diff_ids, strict=True)):
                file = stack.enter_context((directory / str(number)).open("w+b"))
                chunks = _with_progress(registry.blob(ref.repository, descriptor.digest, descriptor.size), advance, stops, where)
                scan = layerreader.scan(chunks, where=f"{where}, layer {number + 1}", limit=remaining, sink=file.write)
                for _ in chunks:  # the digest is checked at the end
                    pass
                if scan.diff_id != diff_id:
                    what = f"layer {number + 1} of this image has the diff ID {scan.diff_id}, but the config says {diff_id}"
                    raise ArtifactError(what, where=where, hint=_HINT)
                remaining -= scan.size
                problems += scan.problems
                files.append(file)
                nodes.append(scan.nodes)
        tree = imagetree.flatten(nodes)
        problems += tree.problems
        if problems:
            more = f", and {len(problems) - 1:,} more" if len(problems) > 1 else ""
            raise ArtifactError(f"this image cannot be used as a base: it {problems[0]}{more}", where=where, hint=_HINT)
        with tell.progress(0, f"unpacking {ref}"):
            entries = canonical(tree)
            blob = _add(entries, tree, cast("list[BinaryIO]", files), store)
    store.facts.put(FACTS, f"{hint.digest} {RULE}", codec.canonical(blob))
    return blob


def canonical(tree: ImageTree) -> list[Entry]:
    """The entries of an image that belong to the base (rule 1)."""
    entries = [entry for entry in tree.entries() if _BYTECODE not in entry.path.split("/")]
    by_path = {entry.path: entry for entry in entries}
    missing = [
        Entry(path, "dir")
        for path in DIRECTORIES
        if path not in by_path and by_path.get(path.partition("/")[0], _DIR).kind == "dir"
    ]
    return sort_with_parents([*entries, *missing])


_DIR = Entry("", "dir")


def _add(entries: list[Entry], tree: ImageTree, files: list[BinaryIO], store: Store) -> TreeBlob:
    def members() -> Members:
        for entry in entries:
            if entry.kind != "file":
                yield entry, ()
                continue
            placed = tree.placed[entry.path]
            yield entry, _read(files[placed.layer], placed.node.offset, entry.size)

    size = sum(len(tar.header(entry)) + entry.size + -entry.size % tar.BLOCK for entry in entries) + 2 * tar.BLOCK
    diff_id = store.layers.add(layer.check_contents(members()), size=size)
    return TreeBlob(sha256=diff_id, size=size, files=len(entries))


def _read(file: BinaryIO, offset: int, size: int) -> Iterator[bytes]:
    while size:
        file.seek(offset)
        chunk = file.read(min(size, CHUNK))
        if not chunk:
            return  # the layer writer checks the size
        yield chunk
        offset, size = offset + len(chunk), size - len(chunk)


def _with_progress(chunks: Iterator[bytes], advance: Advance, stop: Iterator[bool], where: str) -> Iterator[bytes]:
    for chunk in chunks:
        if next(stop, False):
            raise NetworkError("the download was stopped", where=where, hint="try again: finished downloads are not repeated")
        advance(len(chunk))
        yield chunk


def _open(hint: BaseHint, blob: TreeBlob, store: Store) -> BaseImage:
    root = store.layers.path(blob.sha256)
    if root is None:
        raise ArtifactError("this image was removed from the store during the command", where=hint.reference, hint="try again")
    files = tuple(walk(root))
    entries = sort_with_parents(entries_of(files, store.hashes.of(root, files)))
    packages, unknown = _packages(root)
    tree = Tree(
        entries=tuple(entries),
        contents=FileContents(root, keys=keys_of(files)),
        packages=packages,
        unknown=unknown,
        notes=(f"the base is {hint.reference} ({hint.digest}); packages, certificates and time zone are those of this image",),
    )
    return BaseImage(hint=hint, blob=blob, root=root, tree=tree)


def _packages(root: Path) -> tuple[tuple[SystemPackage, ...], tuple[str, ...]]:
    """The packages in the image's own database, and a line if it cannot be read."""
    if not dpkg.present(root):
        return (), ("the packages of the base are unknown: repro-env reads only dpkg's database in a base image",)
    try:
        system = dpkg.Database(root)
    except (LockError, OSError) as error:
        return (), (f"the packages of the base are unknown: {error}",)
    packages = {SystemPackage(name=system.display_name(package), version=package.version) for package in system.packages}
    return tuple(sorted(packages, key=lambda package: (package.name, package.version))), ()
