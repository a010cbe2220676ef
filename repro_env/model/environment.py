"""What was observed of the live environment. Facts only; nothing here is a decision."""

from __future__ import annotations

from typing import Literal

from repro_env.model.codec import Frozen
from repro_env.model.text import AbsPath, Digest, EnvName, Line, Name, RelPath, Version


class Layout(Frozen, frozen=True, kw_only=True):
    """Where the parts of an environment lie: its prefix, and the install scheme relative to it (sysconfig)."""

    prefix: AbsPath
    """`sys.prefix` of the captured environment, e.g. `/home/ann/project/.venv`."""
    purelib: RelPath
    """e.g. `lib/python3.11/site-packages`."""
    platlib: RelPath
    scripts: RelPath
    """`bin`."""
    headers: RelPath
    """Parent of each distribution's own header folder, e.g. `include/site/python3.11`."""


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
    command: AbsPath
    """The environment's own python, e.g. `<prefix>/bin/python`."""
    is_venv: bool
    system_site: bool
    """`include-system-site-packages` of `pyvenv.cfg`."""


class Startup(Frozen, frozen=True, kw_only=True):
    """What the start-up probe reports: the environment as it really starts. A crash is a fact."""

    problem: Line
    """Empty when Python started and reported; else one line that says what it did instead."""
    printed: Line
    """What it wrote to stdout or stderr of its own accord (the start), empty when silent."""
    sys_path: tuple[Line, ...]
    flags: Line
    """`repr(sys.flags)`."""
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
    """The redacted URL of `direct_url.json` (PEP 610), or empty: pip keeps no origin of what an index gave."""
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
    memory: int
    """Bytes."""


class Excluded(Frozen, frozen=True, kw_only=True):
    """Something under the source that is not in the snapshot."""

    path: RelPath
    size: int
    why: Line


class Git(Frozen, frozen=True, kw_only=True):
    """The state of the repository that holds the source."""

    commit: Line
    """Empty on an unborn branch."""
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
    """`<commit> <path>`."""


class Carried(Frozen, frozen=True, kw_only=True):
    """A distribution, or a part of the environment, that nothing can give again."""

    name: Line
    version: Line
    why: Line
