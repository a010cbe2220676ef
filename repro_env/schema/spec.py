"""The spec: the content of the image (`identity`), defaults for runs, download locations (`hints`), observed facts, and the
expected image.

The spec digest is the sha256 of the canonical bytes of `identity` only. It does not depend on mirrors, GPUs or the default
seed.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, field

from repro_env.schema import codec
from repro_env.schema.artifact import Artifact, CondaPackage, Size, TreeBlob, Wheel
from repro_env.schema.codec import Frozen
from repro_env.schema.environment import (
    Bundled,
    Excluded,
    Git,
    Host,
    Interpreter,
    Kind,
    Layout,
    SharedLibrary,
    Startup,
    SystemPackage,
    Variables,
)
from repro_env.schema.errors import SpecError, SpecVersionError
from repro_env.schema.frameworks import Frameworks
from repro_env.schema.image import Config, Expected
from repro_env.schema.text import AbsPath, Digest, FileNote, FromHere, Line, RelPath, Url

FAMILY = "repro-env/spec"
VERSION = 2

Seed = Annotated[int, Meta(ge=0, lt=2**32)]
"""The master seed has 32 bits, because NumPy's legacy generator does not accept more."""


class Rules(Frozen, frozen=True, kw_only=True):
    """Versions of the rules that determine digests. A rule is never changed; a new version replaces it."""

    base: Literal[1] = 1
    """Which files of the machine are in a base."""
    conda: Literal[1] = 1
    """Which files of a conda package are compared, and how they are linked into a prefix."""
    canonical: Literal[1] = 1
    """Which files of a distribution are compared, and how they are normalized."""
    grouping: Literal[1] = 1
    """Which distributions share a layer."""
    layer: Literal[2] = 2
    """How entries are written as a tar."""


class Platform(Frozen, frozen=True, kw_only=True):
    os: Literal["linux"]
    architecture: Literal["amd64", "arm64"]
    """In the terms of the OCI image spec (GOARCH)."""


class Runtime(Frozen, frozen=True, kw_only=True):
    """The interpreter as an artifact, and the path of its executable."""

    tree: TreeBlob | None
    """None if the interpreter is a package of the environment, as with conda."""
    executable: AbsPath
    version: Line


TreeName = Literal["base", "unpackaged", "interpreter", "overlay"]


class Identity(Frozen, frozen=True, kw_only=True):
    """Everything that determines the files and settings of the image. Its digest is the spec digest."""

    rules: Rules
    platform: Platform
    base: TreeBlob
    unpackaged: TreeBlob | None = None
    """Unpackaged libraries and programs of the machine, at their original paths."""
    interpreter: Runtime
    layout: Layout
    other_layouts: tuple[Layout, ...] = ()
    """Further site directories on `sys.path`: of the Python below a virtual environment, and of the user."""
    command: AbsPath
    """The environment's Python command."""
    packages: tuple[CondaPackage, ...] = ()
    """Sorted by name."""
    distributions: tuple[Wheel, ...]
    """Sorted by key."""
    overlay: TreeBlob | None
    """Files of the environment that do not belong to a distribution, and changes to the files of distributions."""
    config: Config

    @property
    def trees(self) -> dict[TreeName, TreeBlob | None]:
        """The trees by name, the lowest layer first."""
        return {
            "base": self.base,
            "unpackaged": self.unpackaged,
            "interpreter": self.interpreter.tree,
            "overlay": self.overlay,
        }

    @property
    def artifacts(self) -> tuple[Artifact, ...]:
        """All conda packages and wheels."""
        return (*self.packages, *self.distributions)

    def layout_of(self, wheel: Artifact) -> Layout:
        """Return where an artifact is installed: a wheel in a site directory. Raises `SpecError` if `Wheel.site` is invalid."""
        if isinstance(wheel, CondaPackage):
            return self.layout
        if wheel.site > len(self.other_layouts):
            raise SpecError(
                f"{wheel.name} is installed to site directory {wheel.site}, but there are only {len(self.other_layouts) + 1}",
                where="identity.distributions",
                hint="the spec was edited or damaged; restore it from a backup, or capture again",
            )
        return self.other_layouts[wheel.site - 1] if wheel.site else self.layout


class Defaults(Frozen, frozen=True, kw_only=True):
    """Default settings of a run. No digest of the image depends on them."""

    seed: Seed
    """The master seed."""


class WheelHint(Frozen, frozen=True, kw_only=True):
    """Where a wheel or conda package can be found. The sha256 in `identity` decides whether a file is the right one."""

    sha256: Digest
    origin: Literal["index", "direct", "bundled", "repacked"]
    """`index`, `direct`: downloadable. `bundled`: the original file is bundled. `repacked`: built from the installed files."""
    urls: tuple[Url, ...]
    index: Line
    """Redacted URL of the index that provided it, or empty."""


class Hints(Frozen, frozen=True, kw_only=True):
    """Where the artifacts of the identity can be found."""

    wheels: tuple[WheelHint, ...]
    """Sorted by sha256."""
    packages: tuple[WheelHint, ...] = ()
    """Conda packages, sorted by sha256. `index` is the channel."""


class Source(Frozen, frozen=True, kw_only=True):
    """The source code. It is a separate artifact that a run mounts at its captured path."""

    path: AbsPath
    tree: TreeBlob
    size: Size
    """Total size of the files, in bytes."""
    relative: FromHere = ".."
    """Path relative to the spec's directory. With it, the code is also found in a clone, a worktree or a moved project."""
    files: dict[RelPath, FileNote]
    """Files and symlinks by path (`oci.entry.file_notes`). Directories are omitted, because Git does not store empty ones."""
    times: dict[RelPath, int] = field(default_factory=dict)
    """When each file and directory was last modified, in nanoseconds since 1970, for runs of the captured files."""
    git: Git | None
    include: tuple[Line, ...] = ()
    """`--include` and `--exclude` of the capture. A run applies them to the live tree."""
    exclude: tuple[Line, ...] = ()


class Data(Frozen, frozen=True, kw_only=True):
    """Data that was named at capture, and that runs check again."""

    path: AbsPath
    """Path in a run."""
    source: AbsPath | None = None
    """Path at capture; None if it is the same as `path`."""
    digest: Digest
    """Of the names, sizes and contents in a directory, or of the content of a file."""
    files: Size
    size: Size


class InstalledFrom(Frozen, frozen=True, kw_only=True):
    """How a distribution was installed, as recorded in the environment."""

    name: Line
    version: Line
    editable: bool
    direct_url: Line
    site: AbsPath | None = None
    """The directory that contains its metadata."""


class Observed(Frozen, frozen=True, kw_only=True):
    """Facts about the machine and the capture. They do not affect the spec digest."""

    tool: Line
    """The version of repro-env that wrote the spec."""
    kind: Kind
    interpreter: Interpreter
    startup: Startup
    host: Host
    frameworks: Frameworks
    libraries: tuple[SharedLibrary, ...] = ()
    """Shared libraries that the environment uses, by path: loaded at start-up or by its frameworks, or on an external path."""
    variables: Variables
    system_packages: tuple[SystemPackage, ...]
    """The packages in the base, sorted by name."""
    distributions: tuple[InstalledFrom, ...]
    bundled: tuple[Bundled, ...]
    edited: tuple[Line, ...]
    """Files of a distribution that were changed after installation: `<path> (<distribution>: changed|missing)`."""
    excluded: tuple[Excluded, ...]
    notes: tuple[Line, ...]
    """Information for the user that does not indicate a problem."""
    unknown: tuple[Line, ...]
    source: Source | None
    data: tuple[Data, ...]
    home: tuple[RelPath, ...] = ()
    """Configuration files of libraries, in the overlay below `oci.paths.HOME`. A run copies them to its home directory."""
    programs: tuple[Line, ...] = ()
    """`--with` of the capture: programs that were added to the base."""


class Spec(Frozen, frozen=True, kw_only=True):
    """The complete spec file."""

    schema: Literal["repro-env/spec/2"]
    identity: Identity
    defaults: Defaults
    hints: Hints
    observed: Observed
    expected: Expected

    @property
    def digest(self) -> str:
        """The spec digest."""
        return codec.digest(self.identity)

    @property
    def trees(self) -> dict[str, TreeBlob]:
        """The bundled trees by name, the lowest layer first. The source comes last; it is not a layer."""
        source = self.observed.source
        trees: list[tuple[str, TreeBlob | None]] = [*self.identity.trees.items()]
        trees.append(("source", source.tree if source is not None else None))
        return {name: tree for name, tree in trees if tree is not None}

    @property
    def sizes(self) -> dict[str, int]:
        """The size of everything that the spec names by its digest: packages, wheels and trees."""
        return {content.sha256: content.size for content in (*self.identity.artifacts, *self.trees.values())}

    @property
    def bundled(self) -> frozenset[str]:
        """The digests of everything that is bundled with the spec as a blob."""
        hints = (*self.hints.wheels, *self.hints.packages)
        wheels = {hint.sha256 for hint in hints if hint.origin in ("bundled", "repacked")}
        return frozenset(wheels | {tree.sha256 for tree in self.trees.values()})


def read(data: bytes, *, where: str) -> Spec:
    """Decode and check a spec. Raises `SpecError`, or `SpecVersionError` if another version wrote it."""
    schema = codec.schema_of(data, family=FAMILY, newest=VERSION, where=where)
    if schema < VERSION:
        raise SpecVersionError(
            f"this spec was written by an older version of repro-env (schema {schema}, this version reads {VERSION})",
            where=where,
            hint="capture the environment again",
        )
    return codec.decode(data, Spec, where=where)
