"""The spec: what must be (`identity`), where it may be had (`hints`), what was seen, what to expect.

The spec digest is the sha256 of the canonical bytes of `identity` alone: the same environment through
two mirrors, on two machines with other GPUs, has the same one.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from repro_env.model import codec
from repro_env.model.accelerator import Accelerators, Frameworks
from repro_env.model.artifact import CondaPackage, Size, TreeBlob, Wheel
from repro_env.model.codec import Frozen
from repro_env.model.environment import (
    Carried,
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
from repro_env.model.errors import SpecError
from repro_env.model.image import Blob, Config, Expected
from repro_env.model.text import AbsPath, Digest, FileNote, FromHere, Line, RelPath, Url

FAMILY = "repro-env/spec"
NEWEST = 1

Seed = Annotated[int, Meta(ge=0, lt=2**32)]
"""NumPy's legacy generator takes 32 bits, so the master seed has no more."""


class Rules(Frozen, frozen=True, kw_only=True):
    """Versions of the written rules that decide digests. A rule never changes; it gets a successor."""

    base: Literal[1] = 1
    """How a base is cut from the live machine."""
    conda: Literal[1] = 1
    """What of a conda package is compared, and how it is linked into a prefix."""
    canonical: Literal[1] = 1
    """What of a distribution is compared and how it is normalised."""
    grouping: Literal[1] = 1
    """Which distributions share a layer."""
    layer: Literal[2] = 2
    """How entries become tar bytes."""


class Platform(Frozen, frozen=True, kw_only=True):
    os: Literal["linux"]
    architecture: Literal["amd64", "arm64"]
    """As the OCI image spec (GOARCH) names it."""


class Runtime(Frozen, frozen=True, kw_only=True):
    """The interpreter as an artifact, and the path it is started by."""

    tree: TreeBlob | None
    """None where the interpreter is a package of the environment itself, as conda's is."""
    executable: AbsPath
    version: Line


class Determinism(Frozen, frozen=True, kw_only=True):
    seed: Seed


class Identity(Frozen, frozen=True, kw_only=True):
    """Everything that makes this environment this environment. Its digest is the spec digest."""

    rules: Rules
    platform: Platform
    base: TreeBlob
    unowned: TreeBlob | None = None
    """Libraries and programs of the machine that belong to no package of its, at their own paths."""
    interpreter: Runtime
    layout: Layout
    others: tuple[Layout, ...] = ()
    """Further places that `sys.path` has distributions in: the Python below a virtual environment, the user's own."""
    command: AbsPath
    """The environment's own python."""
    packages: tuple[CondaPackage, ...] = ()
    """Sorted by name."""
    distributions: tuple[Wheel, ...]
    """Sorted by key."""
    overlay: TreeBlob | None
    """What the environment holds beside its distributions' own files, and where it differs from them."""
    config: Config
    determinism: Determinism

    def layout_of(self, wheel: Wheel) -> Layout:
        """The place that a wheel is installed to. Raises `SpecError` for one that the identity does not name."""
        if wheel.place > len(self.others):
            raise SpecError(
                f"{wheel.name} is installed to place {wheel.place}, and there are {len(self.others) + 1}",
                where="identity.distributions",
                hint="the spec was edited or damaged; restore it or capture again",
            )
        return self.others[wheel.place - 1] if wheel.place else self.layout


class WheelHint(Frozen, frozen=True, kw_only=True):
    """Where one wheel or conda package may be had. A hint: the sha256 in `identity` is the truth."""

    sha256: Digest
    origin: Literal["index", "direct", "carried", "repacked"]
    """`index`, `direct`: linked. `carried`: the original file is a blob. `repacked`: made from the installed files."""
    urls: tuple[Url, ...]
    index: Line
    """The index that gave it, redacted; empty when none did."""


class BaseHint(Frozen, frozen=True, kw_only=True):
    """The image that the base was made of (`capture --base REF`). A hint: `identity.base` is the truth."""

    reference: Line
    """`host/repository:tag`, as it was named."""
    digest: Digest
    """Of the image's manifest, which the tag stood for at capture."""
    platform: Platform
    layers: tuple[Blob, ...]
    """As the registry has them, lowest first."""
    rule: Literal[1] = 1
    """How the image's layers become one tree (`base.pulled`)."""
    kept: bool = False
    """The tree is carried too (`--keep-base`); else it is linked, and fetched again."""


class Hints(Frozen, frozen=True, kw_only=True):
    wheels: tuple[WheelHint, ...]
    """Sorted by sha256."""
    packages: tuple[WheelHint, ...] = ()
    """Of conda packages; sorted by sha256. `index` is the channel."""
    indexes: tuple[Line, ...]
    """As configured at capture, redacted."""
    base: BaseHint | None = None
    """None for a base that was cut from the machine, which is always carried."""


class Source(Frozen, frozen=True, kw_only=True):
    """The code: an artifact of its own, mounted at its captured path when a run starts."""

    path: AbsPath
    tree: TreeBlob
    size: Size
    """Of the files' contents, in bytes."""
    relative: FromHere = ".."
    """Where it is from the spec's own directory: the code of a clone, of a worktree and of a moved project is there too."""
    files: dict[RelPath, FileNote]
    """Its files and symlinks by path (`image.entry.notes`), without directories: git holds no empty one."""
    git: Git | None
    notebooks: tuple[Notebook, ...] = ()
    """Sorted by path."""
    requirements: tuple[FileDigest, ...] = ()
    """The files that say what the project needs (`requirements*.txt`, `pyproject.toml`, `environment.yml` …); sorted by path."""
    include: tuple[Line, ...] = ()
    """`--include` and `--exclude` of the capture: a run looks at the live tree by the same rule."""
    exclude: tuple[Line, ...] = ()


class Notebook(Frozen, frozen=True, kw_only=True):
    """A Jupyter notebook by its parts: run again with other outputs, its code is the same."""

    path: RelPath
    code: Digest
    """Of the sources of its code cells, in order."""
    text: Digest
    """Of all its other cells' sources, attachments and metadata that no run changes."""
    outputs: Digest
    """Of the outputs of its code cells."""
    counts: Digest
    """Of their execution counts."""


class FileDigest(Frozen, frozen=True, kw_only=True):
    path: RelPath
    sha256: Digest


class Data(Frozen, frozen=True, kw_only=True):
    """Data named at capture: expected again at run."""

    path: AbsPath
    """Where it appears in a run."""
    source: AbsPath | None = None
    """Where it was at capture; None where that is `path`."""
    digest: Digest
    """Of its tree: names, sizes and contents; of its bytes when it is one file."""
    files: Size
    size: Size
    croissant: tuple[FileDigest, ...] = ()
    """Croissant descriptions (`croissant.json`) in it, by path from its root."""


class InstalledFrom(Frozen, frozen=True, kw_only=True):
    """How one distribution came to be where it is, as far as the environment tells."""

    name: Line
    version: Line
    installer: Line
    requested: bool
    editable: bool
    direct_url: Line
    site: AbsPath | None = None
    """The folder that holds its metadata."""


class Observed(Frozen, frozen=True, kw_only=True):
    """Facts about the machine and the capture. None of them is part of the spec digest."""

    tool: Line
    """`repro-env <version>` that wrote the spec."""
    kind: Kind
    interpreter: Interpreter
    startup: Startup
    host: Host
    accelerators: Accelerators
    frameworks: Frameworks
    libraries: tuple[SharedLibrary, ...] = ()
    """Every shared library that it really uses: mapped when it starts and loads its frameworks, or led to from outside; by path."""
    variables: Variables
    system_packages: tuple[SystemPackage, ...]
    """Those the base was cut from, sorted by name."""
    distributions: tuple[InstalledFrom, ...]
    carried: tuple[Carried, ...]
    edited: tuple[Line, ...]
    """Files of a distribution that are not as it installed them: `<path> (<distribution>: changed|missing)`."""
    excluded: tuple[Excluded, ...]
    notes: tuple[Line, ...]
    """What the user should know, and nothing is wrong with."""
    unknown: tuple[Line, ...]
    source: Source | None
    data: tuple[Data, ...]
    home: tuple[RelPath, ...] = ()
    """Configuration of libraries, held in the overlay below `image.layout.HOME`; a run has each file in its home directory."""
    programs: tuple[Line, ...] = ()
    """`--with` of the capture: the base was cut with these."""


class Spec(Frozen, frozen=True, kw_only=True):
    schema: Literal["repro-env/spec/1"]
    identity: Identity
    hints: Hints
    observed: Observed
    expected: Expected

    @property
    def digest(self) -> str:
        """The spec digest."""
        return codec.digest(self.identity)

    @property
    def carried(self) -> frozenset[str]:
        """Digests of everything that travels beside the spec as a blob."""
        base = None if self.hints.base is not None and not self.hints.base.kept else self.identity.base
        trees = [base, self.identity.unowned, self.identity.interpreter.tree, self.identity.overlay]
        trees.append(self.observed.source.tree if self.observed.source else None)
        hints = (*self.hints.wheels, *self.hints.packages)
        wheels = {hint.sha256 for hint in hints if hint.origin in ("carried", "repacked")}
        return frozenset(wheels | {tree.sha256 for tree in trees if tree is not None})


def read(data: bytes, *, where: str) -> Spec:
    """Decode and check a spec. Raises `SpecError`, or `SpecVersionError` for a newer one."""
    codec.schema_of(data, family=FAMILY, newest=NEWEST, where=where)
    return codec.decode(data, Spec, where=where)
