"""Facts that were observed about the live environment."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from repro_env.schema.codec import Frozen
from repro_env.schema.text import AbsPath, Digest, EnvName, Line, Name, RelPath, Timestamp, Version

Kind = Literal["venv", "conda", "interpreter", "system"]
"""`interpreter`: a Python with its own prefix (pyenv, uv, a module, `/opt/python`). `system`: one that shares its prefix with
other programs."""


class Layout(Frozen, frozen=True, kw_only=True):
    """A site directory: its prefix, and its paths relative to the prefix (sysconfig)."""

    prefix: AbsPath
    """`sys.prefix` of an environment; or `/usr/local`, `~/.local`."""
    in_place: bool = False
    """Whether the image has these files at the prefix, and not at `oci.paths.ENVIRONMENT`."""
    real: AbsPath | None = None
    """The resolved path, if the prefix is a symlink."""
    purelib: RelPath
    """e.g. `lib/python3.11/site-packages`."""
    platlib: RelPath
    scripts: RelPath
    """`bin`."""
    headers: RelPath
    """e.g. `include/site/python3.11`."""
    python: AbsPath | None = None
    """The Python that scripts start; None for that in their directory."""

    @property
    def sites(self) -> tuple[str, ...]:
        """The absolute paths of purelib and platlib; only one if both are the same."""
        return tuple(dict.fromkeys(f"{self.prefix}/{path}" for path in (self.purelib, self.platlib)))


class Interpreter(Frozen, frozen=True, kw_only=True):
    """The Python interpreter, as it describes itself."""

    version: Version
    """`3.11.7`."""
    executable: AbsPath
    """`sys._base_executable`, resolved."""
    prefix: AbsPath
    """`sys.base_prefix`."""
    stdlib: AbsPath
    platstdlib: AbsPath
    """The directory with `lib-dynload`."""
    libpython: AbsPath | None
    """The loaded libpython, resolved; None for a static build."""
    cache_tag: Line
    """`cpython-311`."""

    @property
    def library(self) -> tuple[str, ...]:
        """The directories of the standard library; only one if both are the same."""
        return tuple(dict.fromkeys((self.stdlib, self.platstdlib)))


class Interpretation(Frozen, frozen=True, kw_only=True):
    """The report of the static probe: the interpreter, the layout, and what determines `sys.path`."""

    interpreter: Interpreter
    layout: Layout
    kind: Kind
    command: AbsPath
    """The environment's Python command, e.g. `<prefix>/bin/python`."""

    @property
    def is_venv(self) -> bool:
        return self.kind == "venv"

    @property
    def is_conda(self) -> bool:
        return self.kind == "conda"

    @property
    def is_system(self) -> bool:
        """Whether it is the Python of the operating system, which shares its prefix with other programs."""
        return self.kind == "system"

    @property
    def directories(self) -> tuple[str, ...]:
        """The directories of the standard library and of the environment, without the rest of a shared prefix."""
        return (*self.interpreter.library, *(self.layout.sites if self.is_system else (self.layout.prefix,)))


class Startup(Frozen, frozen=True, kw_only=True):
    """How the environment's Python started."""

    problem: Line
    """Why Python did not start or report."""
    sys_path: tuple[Line, ...]
    locale: Line
    """`LC_CTYPE` and `locale.getpreferredencoding()`."""


class Distribution(Frozen, frozen=True, kw_only=True):
    """An installed distribution, as described by its `.dist-info` directory."""

    name: Name
    version: Version
    dist_info: RelPath
    """The `.dist-info` directory, relative to the prefix."""
    site: RelPath
    """Its site-packages directory, relative to the prefix. The paths in RECORD are relative to it."""
    tags: tuple[Line, ...]
    """The `Tag:` lines of WHEEL, sorted; empty without a WHEEL file."""
    build: Line
    """`Build:` of WHEEL, or empty."""
    direct_url: Line
    """The URL of `direct_url.json` (PEP 610), or empty: pip does not record it for files from an index.
    It may contain credentials: write only `redact.url` of it."""
    editable: bool
    has_record: bool


class Variable(Frozen, frozen=True, kw_only=True):
    """An environment variable and its value."""

    name: EnvName
    value: Line


class Environ(dict[str, str]):
    """The environment variables of a process. Its text has no values: help, tracebacks and debuggers print it."""

    def __repr__(self) -> str:
        return f"<{len(self)} environment variables>"


def values_of(variables: Iterable[Variable]) -> dict[str, str]:
    """Return the values of environment variables by name."""
    return {variable.name: variable.value for variable in variables}


class Variables(Frozen, frozen=True, kw_only=True):
    """The caller's environment variables."""

    replayed: tuple[Variable, ...]
    """Those that affect results (threads, TF32, LANG, TZ ...), set again in every run."""
    recorded: tuple[Variable, ...]
    """Those for placement and paths, not set again."""
    named: tuple[EnvName, ...]
    """All others, without values."""
    added: tuple[EnvName, ...] = ()
    """Those of `replayed` that `capture --env` named."""


class SystemPackage(Frozen, frozen=True, kw_only=True):
    """A package of the operating system in the base."""

    name: Line
    version: Line


class Host(Frozen, frozen=True, kw_only=True):
    """The machine and its operating system."""

    os: Line
    """`PRETTY_NAME` of os-release."""
    kernel: Line
    machine: Line
    """`x86_64`."""
    cpu: Line
    isa: tuple[Line, ...]
    """Sorted CPU flags that numeric libraries look at."""
    cores: int
    """Those that this process may use."""
    memory: int
    """Bytes."""
    gpus: tuple[Line, ...] = ()
    """As the kernel's drivers list them. `Frameworks.devices` has those that torch can use."""
    nvidia: Line = ""
    """Version of NVIDIA's kernel driver."""
    amdgpu: Line = ""
    """Version of AMD's kernel driver; `of the kernel` for the built-in one."""


class Excluded(Frozen, frozen=True, kw_only=True):
    """A path in the source directory that is not in the snapshot."""

    path: RelPath
    size: int
    why: Line


class Git(Frozen, frozen=True, kw_only=True):
    """The Git repository of the source."""

    commit: Line
    date: Timestamp | None = None
    """Of the commit."""
    branch: Line
    """Empty if HEAD is detached."""
    remote: Line
    """Redacted."""
    dirty: bool
    """Whether files of the source differ from the commit; untracked files count."""
    untracked: tuple[RelPath, ...]


class Bundled(Frozen, frozen=True, kw_only=True):
    """A bundled distribution or part of the environment."""

    name: Line
    version: Line
    why: Line
    size: int = 0


class SharedLibrary(Frozen, frozen=True, kw_only=True):
    """A shared library, and the package that owns it."""

    path: AbsPath
    owner: Line
    """`wheel torch 2.3.0`, `conda openssl 3.2.1`, `deb libssl3 3.0.11-1`, `rpm …`, `interpreter`, `driver`, or empty if
    unpackaged."""
    sha256: Digest | None
    """None for a driver library."""
