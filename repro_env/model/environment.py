"""What was observed of the live environment. Facts only; nothing here is a decision."""

from __future__ import annotations

from typing import Literal

from repro_env.model.codec import Frozen
from repro_env.model.text import AbsPath, Digest, EnvName, Line, Name, RelPath, Timestamp, Version

Kind = Literal["venv", "conda", "interpreter", "system"]
"""`venv`: a virtual environment (venv, virtualenv, uv). `conda`: the prefix of a conda environment. `interpreter`: a Python
with a prefix of its own (pyenv, uv, a module, `/opt/python`). `system`: one whose prefix is shared with other programs
(`/usr`, `/usr/local`)."""


class Layout(Frozen, frozen=True, kw_only=True):
    """One place that distributions are installed to: its prefix, and the install scheme relative to it (sysconfig)."""

    prefix: AbsPath
    """Of a virtual environment or conda environment `sys.prefix`, e.g. `/home/ann/project/.venv`; `/usr/local`, `~/.local`."""
    in_place: bool = False
    """Whether the image holds it at the prefix itself; a virtual environment lies at `image.layout.ENVIRONMENT` instead."""
    real: AbsPath | None = None
    """Where the tree of a prefix in place really lies, when the prefix leads there by a symlink."""
    purelib: RelPath
    """e.g. `lib/python3.11/site-packages`."""
    platlib: RelPath
    scripts: RelPath
    """`bin`."""
    headers: RelPath
    """Parent of each distribution's own header folder, e.g. `include/site/python3.11`."""
    python: AbsPath | None = None
    """What console scripts start; None: the python beside them, wherever the tree lies."""


class Interpreter(Frozen, frozen=True, kw_only=True):
    """The Python that the environment runs on, as it describes itself."""

    implementation: Line
    """`cpython`."""
    version: Version
    """`3.11.7`."""
    banner: Line
    """`sys.version`, newlines turned into spaces."""
    executable: AbsPath
    """The real binary: `sys._base_executable` with every symlink resolved."""
    prefix: AbsPath
    """`sys.base_prefix`."""
    stdlib: AbsPath
    platstdlib: AbsPath
    """Holds `lib-dynload`; equals `stdlib` unless the build splits them."""
    libpython: AbsPath | None
    """The shared libpython that is really mapped, symlinks resolved; None for a static build."""
    cache_tag: Line
    """`cpython-311`."""
    soabi: Line
    libc: Line
    """`platform.libc_ver()` joined by a space."""
    openssl: Line
    """`ssl.OPENSSL_VERSION`, or why there is none."""
    platform: Line
    """`sysconfig.get_platform()`."""


class Interpretation(Frozen, frozen=True, kw_only=True):
    """What the static probe reports: the interpreter, the layout, and how `sys.path` comes about."""

    interpreter: Interpreter
    layout: Layout
    kind: Kind
    command: AbsPath
    """The environment's own python, e.g. `<prefix>/bin/python`."""
    system_site: bool
    """`include-system-site-packages` of `pyvenv.cfg`."""

    @property
    def is_venv(self) -> bool:
        return self.kind == "venv"


class Startup(Frozen, frozen=True, kw_only=True):
    """What the start-up probe reports: the environment as it really starts. A crash is a fact."""

    problem: Line
    """Empty when Python started and reported; else one line that says what it did instead."""
    printed: Line
    """What it wrote to stdout or stderr of its own accord (the start), empty when silent."""
    sys_path: tuple[Line, ...]
    flags: Line
    """`repr(sys.flags)`."""
    user_base: Line = ""
    """`site.getuserbase()` where the user's own site-packages are in use (`ENABLE_USER_SITE`), else empty."""
    mapped: tuple[AbsPath, ...]
    """Shared libraries mapped after importing every top-level extension that starts by itself, sorted."""
    locale: Line
    """`LC_CTYPE` in force and `locale.getpreferredencoding()`."""


class Distribution(Frozen, frozen=True, kw_only=True):
    """One installed distribution, as its `.dist-info` folder tells it."""

    name: Name
    version: Version
    dist_info: RelPath
    """Its `.dist-info` folder, relative to the prefix."""
    site: RelPath
    """The site-packages folder that holds it, relative to the prefix; RECORD paths start there."""
    installer: Line
    tags: tuple[Line, ...]
    """`Tag:` lines of WHEEL, sorted; empty when there is no WHEEL file."""
    build: Line
    """`Build:` of WHEEL, or empty."""
    requested: bool
    direct_url: Line
    """The URL of `direct_url.json` (PEP 610) unchanged, or empty: pip does not record the origin of files from an index.
    It may hold credentials, and is written only through `redact.url`."""
    editable: bool
    has_record: bool


class Variable(Frozen, frozen=True, kw_only=True):
    """One environment variable with its value."""

    name: EnvName
    value: Line


class Variables(Frozen, frozen=True, kw_only=True):
    """The caller's variables, sorted into what may be written down (design, section 3)."""

    replayed: tuple[Variable, ...]
    """They change numbers (threads, TF32, LANG, TZ ...): set again in every run."""
    recorded: tuple[Variable, ...]
    """Placement and paths: kept as facts, never set again."""
    named: tuple[EnvName, ...]
    """All others, by name alone."""
    added: tuple[EnvName, ...] = ()
    """Those of `replayed` that were requested by name (`capture --env`)."""
    version: int = 1
    """Version of the list that sorted them (`capture.variablelist`)."""


class SystemPackage(Frozen, frozen=True, kw_only=True):
    """One package of the operating system that the base was cut from."""

    name: Line
    version: Line


class Host(Frozen, frozen=True, kw_only=True):
    """The machine and its operating system: observations, never identity."""

    os: Line
    """`PRETTY_NAME` of os-release."""
    kernel: Line
    machine: Line
    """`x86_64`."""
    cpu: Line
    isa: tuple[Line, ...]
    """CPU flags that choose code paths in numeric libraries, sorted."""
    cores: int
    """That this process may run on."""
    quota: int | None = None
    """Thousandths of a core that its control groups grant it; None where they set no limit."""
    memory: int
    """Bytes."""
    libc: Line = ""
    """`glibc 2.36`."""
    compilers: tuple[Line, ...] = ()
    """First line of each C, C++ and CUDA compiler's `--version`, with its path: `/usr/bin/gcc: gcc (Debian …) 12.2.0`."""


class Excluded(Frozen, frozen=True, kw_only=True):
    """Something under the source that is not in the snapshot."""

    path: RelPath
    size: int
    why: Line


class Git(Frozen, frozen=True, kw_only=True):
    """The state of the repository that holds the source."""

    commit: Line
    """Empty on an unborn branch."""
    date: Timestamp | None = None
    """When it was committed; None on an unborn branch."""
    branch: Line
    """Empty when detached."""
    remote: Line
    """Redacted; empty when there is none."""
    pushed: Literal["yes", "no", "unknown"]
    dirty: bool
    diff: Digest | None
    """sha256 of the binary diff against the commit; None when clean."""
    untracked: tuple[RelPath, ...]
    submodules: tuple[Line, ...]
    """`<commit> <path>`, those in submodules too."""
    shallow: bool = False
    """Its history is cut."""
    sparse: bool = False
    """Some committed files are not on disk, by a sparse checkout."""
    worktree: bool = False
    """A linked one (`git worktree add`)."""
    state: Line = ""
    """What is under way: `merge`, `rebase`, `cherry-pick`, `revert`, `bisect`."""
    lfs: tuple[RelPath, ...] = ()
    """Files of which only the Git LFS pointer is on disk."""


class Carried(Frozen, frozen=True, kw_only=True):
    """A distribution, or a part of the environment, that nothing can give again."""

    name: Line
    version: Line
    why: Line
    size: int = 0
    """Bytes, where they are told; 0 where not."""


class SharedLibrary(Frozen, frozen=True, kw_only=True):
    """A shared library that the environment really uses, and whose it is."""

    path: AbsPath
    owner: Line
    """`wheel torch 2.3.0`, `conda openssl 3.2.1`, `deb libssl3 3.0.11-1`, `rpm …`, `interpreter`, `driver`, or empty: nobody's."""
    sha256: Digest | None
    """None for a driver's, which is never captured."""
