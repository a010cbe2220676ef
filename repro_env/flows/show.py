"""The story of `repro-env show`: what a spec says, part by part, and what of it is here.

A spec may come from a stranger: beside it and the store nothing is looked at, and nothing that it names is touched.
"""

from __future__ import annotations

import posixpath
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from repro_env.model.accelerator import Accelerators, Frameworks
from repro_env.model.artifact import CondaPackage, TreeBlob, Wheel
from repro_env.model.environment import Carried, Excluded, Git, Host, SharedLibrary, SystemPackage, Variable
from repro_env.model.errors import StoreError
from repro_env.model.image import Layer
from repro_env.model.spec import Data, FileDigest, InstalledFrom, Notebook, Spec
from repro_env.store.carried import Carried as Blobs
from repro_env.store.digests import hex_of
from repro_env.store.store import Store


class Environment(msgspec.Struct, frozen=True, kw_only=True):
    spec: str
    """Path of the spec's folder."""
    spec_digest: str
    image_id: str
    image: str
    """`in the store`, `not in the store`, or why the store cannot be asked."""
    kind: str
    python: str
    banner: str
    prefix: str
    command: str
    interpreter: str
    """The real binary."""
    others: tuple[str, ...]
    """Prefixes of further places that packages are imported from."""
    platform: str
    os: str
    libc: str
    openssl: str
    seed: int
    written_by: str


class Distribution(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    version: str
    filename: str
    size: int
    """Of the wheel or conda package, in bytes."""
    kind: str
    """`wheel` or `conda`."""
    origin: str
    """`index`, `direct`: downloadable. `carried`: the original file is a blob. `repacked`: made from the installed files."""
    index: str
    place: int


class Distributions(msgspec.Struct, frozen=True, kw_only=True):
    count: int
    downloadable: int
    bundled: int
    size: int
    origins: dict[str, int]
    indexes: tuple[str, ...]
    installers: dict[str, int]
    requested: int
    editable: tuple[str, ...]
    all: tuple[Distribution, ...]
    """Largest first."""


class Outside(msgspec.Struct, frozen=True, kw_only=True):
    path: str
    why: str


class System(msgspec.Struct, frozen=True, kw_only=True):
    packages: tuple[SystemPackage, ...]
    libraries: tuple[SharedLibrary, ...]
    owners: dict[str, int]
    """Owner -> how many libraries of it are in use; the empty one is nobody's."""
    programs: tuple[str, ...]
    unowned: int
    """Bytes of what belongs to no package."""


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    host: Host
    accelerators: Accelerators
    frameworks: Frameworks


class Code(msgspec.Struct, frozen=True, kw_only=True):
    path: str
    digest: str
    files: int
    """Entries of the snapshot, folders included."""
    size: int
    git: Git | None
    notebooks: tuple[Notebook, ...]
    requirements: tuple[FileDigest, ...]
    include: tuple[str, ...]
    exclude: tuple[str, ...]
    excluded: tuple[Excluded, ...]
    """Largest first."""


class Variables(msgspec.Struct, frozen=True, kw_only=True):
    image: tuple[Variable, ...]
    """Set in every run: those that change numbers as they were captured, and those that find the environment."""
    recorded: tuple[Variable, ...]
    named: tuple[str, ...]


class ShownLayer(msgspec.Struct, frozen=True, kw_only=True):
    kind: str
    diff_id: str
    size: int
    """Bytes: of the tar for a tree, of the wheels or packages for what holds these."""
    holds: tuple[str, ...]
    stored: bool


class Blob(msgspec.Struct, frozen=True, kw_only=True):
    what: str
    sha256: str
    size: int
    """As the spec says, uncompressed."""
    here: bool
    stored: int
    """Bytes of its file beside the spec; 0 when it is not here."""


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """The sections, in the order in which they are shown; `--json` prints exactly this."""

    environment: Environment
    distributions: Distributions
    bundled: tuple[Carried, ...]
    edited: tuple[str, ...]
    outside: tuple[Outside, ...]
    system: System
    machine: Machine
    code: Code | None
    data: tuple[Data, ...]
    variables: Variables
    layers: tuple[ShownLayer, ...]
    blobs: tuple[Blob, ...]
    notes: tuple[str, ...]
    unknown: tuple[str, ...]


def show(spec: Spec, folder: Path, store: Store | None, why: str = "") -> Page:
    """`folder` holds the spec. Without a store, `why` says why there is none."""
    return Page(
        environment=_environment(spec, folder, store, why),
        distributions=_distributions(spec),
        bundled=tuple(sorted(spec.observed.carried, key=lambda one: (-one.size, one.name))),
        edited=spec.observed.edited,
        outside=tuple(_outside(spec)),
        system=_system(spec),
        machine=Machine(host=spec.observed.host, accelerators=spec.observed.accelerators, frameworks=spec.observed.frameworks),
        code=_code(spec),
        data=spec.observed.data,
        variables=Variables(
            image=spec.identity.config.env, recorded=spec.observed.variables.recorded, named=spec.observed.variables.named
        ),
        layers=tuple(_layers(spec, store)),
        blobs=tuple(_blobs(spec, folder)),
        notes=spec.observed.notes,
        unknown=tuple(_unknown(spec)),
    )


def opened() -> tuple[Store | None, str]:
    """The store, or why there is none: a spec can be shown without."""
    try:
        return Store.open(), ""
    except StoreError as error:
        return None, str(error)


def _environment(spec: Spec, folder: Path, store: Store | None, why: str) -> Environment:
    identity, observed = spec.identity, spec.observed
    image = why or ("in the store" if store is not None and _there(spec, store) else "not in the store")
    return Environment(
        spec=str(folder),
        spec_digest=spec.digest,
        image_id=spec.expected.image_id,
        image=image,
        kind=observed.kind,
        python=identity.interpreter.version,
        banner=observed.interpreter.banner,
        prefix=identity.layout.prefix,
        command=identity.command,
        interpreter=identity.interpreter.executable,
        others=tuple(one.prefix for one in identity.others),
        platform=f"{identity.platform.os}/{identity.platform.architecture}",
        os=observed.host.os,
        libc=observed.host.libc or observed.interpreter.libc,
        openssl=observed.interpreter.openssl,
        seed=identity.determinism.seed,
        written_by=observed.tool,
    )


def _there(spec: Spec, store: Store) -> bool:
    """Whether a rebuild would find the image there; no layer is read for it."""
    made = store.images.get(spec.expected.image_id) is not None
    return made and all(_is_stored(one.diff_id, store) for one in spec.expected.layers)


def _is_stored(digest: str, store: Store) -> bool:
    return (store.root / "layers" / hex_of(digest)).is_dir()


def _distributions(spec: Spec) -> Distributions:
    identity, observed = spec.identity, spec.observed
    hints = {hint.sha256: hint for hint in (*spec.hints.wheels, *spec.hints.packages)}
    found = []
    for kind, artifacts in (("conda", identity.packages), ("wheel", identity.distributions)):
        for one in artifacts:
            hint = hints.get(one.sha256)
            found.append(
                Distribution(
                    name=one.name,
                    version=one.version,
                    filename=one.filename,
                    size=one.size,
                    kind=kind,
                    origin=hint.origin if hint is not None else "",
                    index=hint.index if hint is not None else "",
                    place=getattr(one, "place", 0),
                )
            )
    downloadable = sum(one.origin in ("index", "direct") for one in found)
    return Distributions(
        count=len(found),
        downloadable=downloadable,
        bundled=len(found) - downloadable,
        size=sum(one.size for one in found),
        origins=_counted(one.origin or "unknown" for one in found),
        indexes=spec.hints.indexes,
        installers=_counted(one.installer or "unknown" for one in observed.distributions),
        requested=sum(one.requested for one in observed.distributions),
        editable=tuple(_editable(one) for one in observed.distributions if one.editable),
        all=tuple(sorted(found, key=lambda one: (-one.size, one.name, one.place))),
    )


def _editable(one: InstalledFrom) -> str:
    return f"{one.name} {one.version} from {one.direct_url}" if one.direct_url else f"{one.name} {one.version}"


def _outside(spec: Spec) -> Iterator[Outside]:
    """What Python imports from that is neither the environment's, nor the interpreter's."""
    observed, identity = spec.observed, spec.identity
    source = observed.source.path if observed.source is not None else ""
    zipped = f"python{''.join(observed.interpreter.version.split('.')[:2])}.zip"
    places = [identity.layout, *identity.others]
    own = [*(one.prefix for one in places), observed.interpreter.stdlib, observed.interpreter.platstdlib]
    for path in observed.startup.sys_path:
        if not path.startswith("/") or _below(path, own) or posixpath.basename(path) == zipped:
            continue
        where = "in the source" if source and _below(path, [source]) else "bundled at its own path"
        yield Outside(path=path, why=f"on sys.path, {where}")
    for one in identity.others:
        yield Outside(path=one.prefix, why="another directory that packages are imported from, bundled at its own path")


def _below(path: str, folders: Sequence[str]) -> bool:
    return any(path == folder or path.startswith(folder.rstrip("/") + "/") for folder in folders)


def _system(spec: Spec) -> System:
    observed = spec.observed
    unowned = spec.identity.unowned
    return System(
        packages=observed.system_packages,
        libraries=observed.libraries,
        owners=_counted(one.owner for one in observed.libraries),
        programs=observed.programs,
        unowned=0 if unowned is None else unowned.size,
    )


def _code(spec: Spec) -> Code | None:
    source = spec.observed.source
    if source is None:
        return None
    return Code(
        path=source.path,
        digest=source.tree.sha256,
        files=source.tree.files,
        size=source.size,
        git=source.git,
        notebooks=source.notebooks,
        requirements=source.requirements,
        include=source.include,
        exclude=source.exclude,
        excluded=tuple(sorted(spec.observed.excluded, key=lambda one: (-one.size, one.path))),
    )


def _layers(spec: Spec, store: Store | None) -> Iterator[ShownLayer]:
    identity = spec.identity
    trees = {tree.sha256: tree.size for _, tree in _trees(spec)}
    sizes = {f"{one.key}=={one.version}": one.size for one in identity.distributions}
    sizes |= {f"{one.key}=={one.version}": one.size for one in identity.packages}
    sizes |= {f"{one.name}=={one.version}": one.size for one in identity.packages}
    for one in spec.expected.layers:
        yield ShownLayer(
            kind=one.kind,
            diff_id=one.diff_id,
            size=_size(one, trees, sizes),
            holds=one.holds,
            stored=store is not None and _is_stored(one.diff_id, store),
        )


def _size(one: Layer, trees: Mapping[str, int], sizes: Mapping[str, int]) -> int:
    if one.kind in ("distributions", "conda"):
        return sum(sizes.get(name, 0) for name in one.holds)
    return trees.get(one.diff_id, 0)


def _trees(spec: Spec) -> Iterator[tuple[str, TreeBlob]]:
    identity, source = spec.identity, spec.observed.source
    named = (
        ("base", identity.base),
        ("unowned", identity.unowned),
        ("interpreter", identity.interpreter.tree),
        ("overlay", identity.overlay),
        ("source", source.tree if source is not None else None),
    )
    for what, tree in named:
        if tree is not None:
            yield what, tree


def _blobs(spec: Spec, folder: Path) -> Iterator[Blob]:
    blobs = Blobs(folder / "blobs")
    carried = spec.carried
    wanted = {  # a downloadable base need not be there
        tree.sha256: (what, tree.size)
        for what, tree in reversed(list(_trees(spec)))
        if tree.sha256 in carried or blobs.path(tree.sha256) is not None
    }
    artifacts: tuple[Wheel | CondaPackage, ...] = (*spec.identity.distributions, *spec.identity.packages)
    wanted |= {one.sha256: (one.filename, one.size) for one in artifacts if one.sha256 in carried}
    for digest, (what, size) in wanted.items():
        path = blobs.path(digest)
        yield Blob(
            what=what, sha256=digest, size=size, here=path is not None, stored=path.stat().st_size if path is not None else 0
        )


def _unknown(spec: Spec) -> Iterator[str]:
    observed = spec.observed
    yield from observed.unknown
    yield from (f"GPU: {line}" for line in observed.accelerators.unknown)
    yield from (f"GPU {one.index} ({one.name}): {line}" for one in observed.accelerators.devices for line in one.unknown)
    yield from (f"frameworks: {line}" for line in observed.frameworks.unknown)


def _counted(names: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(names).items(), key=lambda pair: (-pair[1], pair[0])))
