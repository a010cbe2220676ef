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
    """Versions of the rules that determine digests."""

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
    """As in the OCI image spec."""


class Runtime(Frozen, frozen=True, kw_only=True):
    """The interpreter as an artifact."""

    tree: TreeBlob | None
    """None if it is a package of the environment, as with conda."""
    executable: AbsPath
    version: Line


TreeName = Literal["base", "unpackaged", "interpreter", "overlay"]


class Identity(Frozen, frozen=True, kw_only=True):
    """What determines the files and settings of the image. Its digest is the spec digest."""

    rules: Rules
    platform: Platform
    base: TreeBlob
    unpackaged: TreeBlob | None = None
    """Unpackaged libraries and programs, at their original paths."""
    interpreter: Runtime
    layout: Layout
    other_layouts: tuple[Layout, ...] = ()
    """Of the Python below a virtual environment, and of the user."""
    command: AbsPath
    """The environment's Python."""
    packages: tuple[CondaPackage, ...] = ()
    """Sorted by name."""
    distributions: tuple[Wheel, ...]
    """Sorted by key."""
    overlay: TreeBlob | None
    """Files without a distribution, and changes to the files of distributions."""
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
    """Default settings of a run."""

    seed: Seed
    """The master seed."""


class WheelHint(Frozen, frozen=True, kw_only=True):
    """Where a wheel or conda package can be found."""

    sha256: Digest
    origin: Literal["index", "direct", "bundled", "repacked"]
    """`bundled`: the original file. `repacked`: built from the installed files, and bundled."""
    urls: tuple[Url, ...]
    index: Line
    """Redacted URL of the index that provided it."""


class Hints(Frozen, frozen=True, kw_only=True):
    """Where artifacts can be found."""

    wheels: tuple[WheelHint, ...]
    """Sorted by sha256."""
    packages: tuple[WheelHint, ...] = ()
    """Conda packages, sorted by sha256. `index` is the channel."""


class Source(Frozen, frozen=True, kw_only=True):
    """The source code."""

    path: AbsPath
    tree: TreeBlob
    size: Size
    """Of the files."""
    relative: FromHere = ".."
    """Path relative to the spec's directory, by which the code is found in a clone or a moved project."""
    files: dict[RelPath, FileNote]
    """Files and symlinks by path (`oci.entry.file_notes`)."""
    times: dict[RelPath, int] = field(default_factory=dict)
    """As in `SourceFact`, for runs of the captured files."""
    git: Git | None
    include: tuple[Line, ...] = ()
    """`--include` and `--exclude` of the capture, which a run applies too."""
    exclude: tuple[Line, ...] = ()


class Data(Frozen, frozen=True, kw_only=True):
    """Data that was named at capture."""

    path: AbsPath
    """Path in a run."""
    source: AbsPath | None = None
    """Path at capture; None if it is `path`."""
    digest: Digest
    """Of the names, sizes and contents."""
    files: Size
    size: Size


class InstalledFrom(Frozen, frozen=True, kw_only=True):
    """How a distribution was installed."""

    name: Line
    version: Line
    editable: bool
    direct_url: Line
    site: AbsPath | None = None
    """The directory of its metadata."""


class Observed(Frozen, frozen=True, kw_only=True):
    """Facts about the machine and the capture, outside of the spec digest."""

    tool: Line
    """Of repro-env."""
    kind: Kind
    interpreter: Interpreter
    startup: Startup
    host: Host
    frameworks: Frameworks
    libraries: tuple[SharedLibrary, ...] = ()
    """By path: loaded at start-up or by frameworks, or on an external path."""
    variables: Variables
    system_packages: tuple[SystemPackage, ...]
    """The packages in the base, sorted by name."""
    distributions: tuple[InstalledFrom, ...]
    bundled: tuple[Bundled, ...]
    edited: tuple[Line, ...]
    """Changed files of distributions: `<path> (<distribution>: changed|missing)`."""
    excluded: tuple[Excluded, ...]
    remarks: tuple[Line, ...]
    """Information that is not a problem."""
    unknown: tuple[Line, ...]
    source: Source | None
    data: tuple[Data, ...]
    home: tuple[RelPath, ...] = ()
    """Configuration files of libraries, which a run has in its home directory."""
    programs: tuple[Line, ...] = ()
    """`--with` of the capture."""


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
