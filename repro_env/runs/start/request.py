"""The options of `exec`, checked and resolved on this machine before a run directory exists."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import msgspec

from repro_env.environment.machine import variables
from repro_env.oci import paths as layout
from repro_env.sandbox import plan, streams
from repro_env.schema.environment import Variable, values_of
from repro_env.schema.errors import DataError, UsageError, os_errors_as
from repro_env.schema.progress import Tell
from repro_env.schema.run import (
    End,
    Ids,
    Launch,
    Limits,
    Member,
    Mode,
    Mount,
    Ranks,
    StandardStreams,
    Start,
    User,
)
from repro_env.schema.runners import DEFAULT, TRAITS, RunnerName, Traits
from repro_env.schema.spec import Spec

_VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,199}")
SIZES: tuple[Literal["COLUMNS", "LINES"], ...] = ("COLUMNS", "LINES")
"""Variables with the size of a terminal, which take precedence over the terminal itself."""
_SIZE = re.compile(r"[0-9]{1,9}")
_TERM = re.compile(r"[0-9A-Za-z][0-9A-Za-z._+-]{0,63}")


class RunOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What the user requested for a run."""

    command: tuple[str, ...]
    here: Path
    """The caller's working directory, absolute."""
    environ: Mapping[str, str]
    """The caller's environment variables."""
    runner: RunnerName = DEFAULT
    data: tuple[tuple[str, str], ...] = ()
    """(SRC, DST) as typed; DST is empty if it was not given."""
    checkpoints: tuple[tuple[str, str], ...] = ()
    seed: int | Literal["random"] | None = None
    ranks: Ranks = "each"
    determinism: Mode = "warn"
    ids: Ids = "system"
    threads: int | None = None
    trace: bool = False
    parents: tuple[str, ...] = ()
    """Parent runs, as typed."""
    tags: tuple[str, ...] = ()
    note: str = ""
    env: tuple[tuple[str, str | None], ...] = ()
    """(name, value) of `--env-file` and `--env`; None means the caller's value."""
    network: bool = False
    gpus: int | str | None = None
    """As `sandbox.gpus.choose`; None for all GPUs if the spec was captured with any."""
    limits: Limits = Limits()
    frozen: bool = False
    source: Path | None = None
    """The source directory, if the user named one."""
    data_changed: bool = False
    runs: Path | None = None
    recorded: Start | None = None
    """The start of the recorded run to run again; None for a new run. Its source replaces the captured one, and has only those of
    its data that are in the store. `here` is a path inside the run."""
    run_id: str | None = None
    """The id of the run, if another process has chosen it: the one that submitted the job."""
    resume: str | None = None
    """The run to resume, as typed."""
    member: Member | None = None
    """This process, if it shares the run with others."""
    keeps_record: bool = True
    """Keep the run directory. If not, messages do not mention it."""
    output: bool = True
    """Forward what the command prints to stdout and stderr."""
    streams: StandardStreams | None = None
    """The standard streams of another run, to connect those of this one in the same way; None for streams like those of the caller."""

    @property
    def traits(self) -> Traits:
        """The traits of the runner."""
        return TRAITS[self.runner]


def variables_of(options: RunOptions) -> tuple[Variable, ...]:
    """Return the variables of `--env` and `--env-file`, sorted by name. The last value of a name is used."""
    values: dict[str, str] = {}
    for name, value in options.env:
        if not (name.isascii() and name.isidentifier()) or "\0" in (value or ""):
            raise UsageError(
                "a variable needs a name of letters, digits and _, and a value without null bytes",
                where=f"--env {name!r}",
                hint="use --env NAME=VALUE",
            )
        if value is None and name not in options.environ:
            hint = f"export it first, or give a value: --env {name}=VALUE"
            raise UsageError("this variable is not set", where=f"--env {name}", hint=hint)
        values[name] = options.environ[name] if value is None else value
    return tuple(Variable(name=name, value=value) for name, value in sorted(values.items()))


def python_path_of(options: RunOptions, root: Path, workspace: str) -> tuple[str, ...]:
    """Return the entries of the caller's PYTHONPATH below `root`, the source directory, as paths below `workspace`.

    These entries are code, so they need no option. Other entries are part of the captured environment.
    """
    if options.recorded is not None:
        return options.recorded.python_path
    entries = [os.path.realpath(options.here / entry) for entry in options.environ.get("PYTHONPATH", "").split(":") if entry]
    real_root = os.path.realpath(root)
    paths = [os.path.relpath(entry, real_root) for entry in entries if f"{entry}/".startswith(f"{real_root}/")]
    return tuple(dict.fromkeys(os.path.normpath(f"{workspace}/{path}") for path in paths))


def secrets_of(options: RunOptions) -> frozenset[str]:
    """Return the values of variables whose names mark them as secrets. They must never be recorded."""
    return variables.secret_values({**options.environ, **values_of(variables_of(options))})


def read_env_file(path: Path | None) -> list[tuple[str, str | None]]:
    """Read lines `NAME=VALUE`; none without a file. Quotes are part of the value; `NAME` alone means the caller's value; empty and `#` lines are skipped."""
    if path is None:
        return []
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise UsageError(
            f"this file cannot be read: {reason}", where=f"--env-file {path}", hint="give a file of NAME=VALUE lines"
        ) from None
    pairs: list[tuple[str, str | None]] = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, equals, value = line.lstrip().partition("=")
        if not (name.isascii() and name.isidentifier()):
            raise UsageError(
                "this line is not NAME=VALUE",
                where=f"--env-file {path}, line {number}",
                hint="use only letters, digits and _ in the name",
            )
        pairs.append((name, value if equals else None))
    return pairs


def mounts_of(options: RunOptions, spec: Spec, here: Path, tell: Tell) -> tuple[Mount, ...]:
    """Return the user's mounts. A missing directory for `--checkpoints` is created.

    `here`: the caller's working directory inside the run. Without DST, a relative SRC is mounted at the same path relative to it.
    """
    mounts = []
    kinds: tuple[tuple[Literal["data", "checkpoints"], tuple[tuple[str, str], ...]], ...] = (
        ("data", options.data),
        ("checkpoints", options.checkpoints),
    )
    for kind, pairs in kinds:
        for source, target in pairs:
            absolute = Path(os.path.normpath(options.here / source))
            if not _exists(absolute, f"--{kind} {source}"):
                if kind == "data":
                    hint = "give the path of a file or directory"
                    raise DataError("this path does not exist", where=f"--data {source}", hint=hint)
                hint = "name another directory"
                with os_errors_as(DataError, "this directory cannot be created", where=f"--checkpoints {source}", hint=hint):
                    absolute.mkdir(parents=True)
                tell.detail(f"created {absolute} for the checkpoints")
            mounts.append(
                Mount(kind=kind, source=str(absolute.resolve()), target=target.rstrip("/") or os.path.normpath(here / source))
            )
    if not options.traits.moves_mounts:
        for mount in mounts:
            check_mount(options, spec, mount)
    else:
        plan.check_mounts(spec, mounts)
    return tuple(mounts)


def check_mount(options: RunOptions, spec: Spec, mount: Mount) -> None:
    """Raise `UsageError` if the host runner cannot show a mount at its target: it copies only the source and HOME."""
    copied = (f"{plan.workspace_of(spec)}/", f"{user_of(options.environ).home}/")
    if os.path.realpath(mount.target) != mount.source and not mount.target.startswith(copied):
        raise UsageError(
            f"the host runner cannot mount {mount.kind} at another path",
            where=f"--{mount.kind} {mount.source}:{mount.target}",
            hint="leave out DST, or leave out --runner host",
        )


def _exists(path: Path, option: str) -> bool:
    with os_errors_as(DataError, "this path cannot be accessed", where=option, hint="name a path that you can read"):
        return path.exists()


def seed_of(seed: int | Literal["random"] | None, spec: Spec) -> int:
    """Return the seed of a run: as given, drawn for "random", or the default of the spec."""
    if seed == "random":
        return secrets.randbits(32)
    return spec.defaults.seed if seed is None else seed


def term_of(environ: Mapping[str, str]) -> str:
    """Return the caller's TERM; empty if it is not set or not the name of a terminal."""
    term = environ.get("TERM", "")
    return term if _TERM.fullmatch(term) else ""


def streams_of(options: RunOptions) -> StandardStreams:
    """Return how the standard streams of the run are connected, for its record."""
    if options.streams is not None:
        return options.streams
    facts = streams.of_caller(prints=options.output)
    if options.traits.passes_environment:
        sizes = ((name, options.environ.get(name, "")) for name in SIZES)
        facts = msgspec.structs.replace(
            facts, variables=tuple((name, int(size)) for name, size in sizes if _SIZE.fullmatch(size))
        )
    return facts


def streams_to_repeat(start: Start, end: End | None) -> StandardStreams | None:
    """Return `RunOptions.streams` for a repetition of a run; None if its record does not have its streams."""
    if start.streams is None or end is None:
        return start.streams
    return msgspec.structs.replace(start.streams, typed=streams.TYPED in end.outcome.methods)


def caller_variables_of(options: RunOptions) -> tuple[Variable, ...]:
    """Return the caller's variables that the command gets: TERM in the image, all but the replayed ones on the host."""
    if not options.traits.passes_environment:
        term = term_of(options.environ)
        return (Variable(name="TERM", value=term),) if term else ()
    # Replayed variables have their captured value or are unset, as in the image.
    return tuple(
        Variable(name=name, value=value)
        for name, value in sorted(options.environ.items())
        if variables.effect(name) != "replayed"
    )


def host_variables_of(options: RunOptions, spec: Spec, launch: Launch) -> tuple[str, ...]:
    """Return the names of the caller's variables that the command has only because it runs on the host, not in the image."""
    if not options.traits.passes_environment:
        return ()
    explained = {variable.name for variable in (*spec.identity.config.env, *variables_of(options))}
    launched = values_of(launch.env)
    return tuple(
        name
        for name in variables.unlisted(sorted(options.environ))
        if variables.effect(name) != "captured"
        and name not in explained
        and _VARIABLE_NAME.fullmatch(name)
        and launched.get(name) == options.environ[name]
    )


def user_of(environ: Mapping[str, str]) -> User:
    """Return the caller's uid, gid and home directory, with a fixed name so that runs of different users agree."""
    import pwd

    uid, gid, home = os.geteuid(), os.getegid(), environ.get("HOME")
    if not home:
        try:
            home = pwd.getpwuid(uid).pw_dir
        except KeyError:
            home = "/"
    home = os.path.normpath(home)
    if not home.startswith("/") or home in ("/", "//"):
        home = f"/home/{layout.CONTAINER_USER}"
    return User(uid=uid, gid=gid, name=layout.CONTAINER_USER, home=home)
