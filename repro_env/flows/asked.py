"""What the user asked of `exec`, held against what is there. All of it can be refused before a run's folder exists."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from repro_env.capture import variables
from repro_env.image import layout
from repro_env.model.environment import Variable
from repro_env.model.errors import DataError, RecordError, UsageError
from repro_env.model.run import GivenVariable, Ids, Launch, Mode, Mount, Ranks, RunnerName, SourceFact, User
from repro_env.model.spec import Spec
from repro_env.model.talk import Tell
from repro_env.model.text import RelPath
from repro_env.run import plan
from repro_env.run.outside import Bound

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,199}")
_TERM = re.compile(r"[0-9A-Za-z][0-9A-Za-z._+-]{0,63}")


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What the user asked for."""

    command: tuple[str, ...]
    here: Path
    """The caller's folder, absolute."""
    environ: Mapping[str, str]
    """The caller's variables."""
    runner: RunnerName = "embedded"
    data: tuple[tuple[str, str], ...] = ()
    """(SRC, DST) as typed; DST may be empty."""
    checkpoints: tuple[tuple[str, str], ...] = ()
    seed: int | Literal["random"] | None = None
    ranks: Ranks = "each"
    determinism: Mode = "warn"
    ids: Ids = "system"
    threads: int | None = None
    trace: int | None = None
    """As `model.run.Request`."""
    recipe: tuple[str, ...] = ()
    """Files as typed."""
    parents: tuple[str, ...] = ()
    """Runs, as a user names them."""
    tags: tuple[str, ...] = ()
    note: str = ""
    env: tuple[tuple[str, str | None], ...] = ()
    """(name, value); None stands for the caller's own value."""
    env_file: Path | None = None
    network: bool = False
    gpus: int | Literal["all"] = 0
    frozen: bool = False
    private: bool = False
    """The host runner runs in a private copy of the source (`run.hostcopy`), not in the live directory."""
    source: Path | None = None
    """The directory whose code is used, where the user names one."""
    data_changed: bool = False
    runs: Path | None = None
    save: Path | None = None
    record: Path | None = None
    keep_outside: Bound = Bound()
    """How much is kept of what the command writes outside the project."""
    repeats: bool = False
    """A recorded run is run again: its source stands for the captured one, and `here` is a path as the run saw it."""
    hidden: tuple[RelPath, ...] | Literal["all"] = ()
    """Kept bytecode that the run is not shown (`store.bytecode`): it compiles what a run that it repeats had to compile."""
    again: SourceFact | None = None
    """Of a run that is run again: its source, with the data of it that are in the store."""
    python_path: tuple[str, ...] = ()
    """Of a run that is run again: `Start.python_path`."""
    git: str | None = None
    """Of a run that is run again: `Start.git`."""
    kept: bool = True
    """The run's folder stays; where it does not, it is not spoken of."""
    output: bool = True
    """What the command prints reaches our own stdout and stderr."""


def given_of(asked: Asked) -> tuple[tuple[Variable, ...], tuple[GivenVariable, ...]]:
    """The variables given at run time: with their values for the launch, by name alone for the record."""
    values: dict[str, tuple[str, Literal["value", "host", "file"]]] = {}
    if asked.env_file is not None:
        for name, value in read_env_file(asked.env_file):
            values[name] = (_own(asked, name) if value is None else value, "file")
    for name, value in asked.env:
        values[name] = (_own(asked, name), "host") if value is None else (value, "value")
    for name, (value, _) in values.items():
        if not (name.isascii() and name.isidentifier()) or "\0" in value:
            raise UsageError("is no variable that can be set", where=f"--env {name!r}", hint="use --env NAME=VALUE")
    launched = tuple(Variable(name=name, value=value) for name, (value, _) in values.items())
    return launched, tuple(GivenVariable(name=name, how=how) for name, (_, how) in sorted(values.items()))


def python_path_of(asked: Asked, root: Path, workspace: str) -> tuple[str, ...]:
    """The entries of the caller's PYTHONPATH that are in the source at `root`, as a run sees them at `workspace`.

    They are code, so they need no option. Other entries are part of the environment, where the capture has them.
    """
    if asked.repeats:
        return asked.python_path
    entries = [os.path.realpath(asked.here / entry) for entry in asked.environ.get("PYTHONPATH", "").split(":") if entry]
    real = os.path.realpath(root)
    inside = [os.path.relpath(entry, real) for entry in entries if f"{entry}/".startswith(f"{real}/")]
    return tuple(dict.fromkeys(os.path.normpath(f"{workspace}/{path}") for path in inside))


def secrets_of(asked: Asked) -> frozenset[str]:
    """Values of variables that are secrets by their names, and are written down nowhere."""
    given = {name: value for name, value in asked.env if value is not None}
    if asked.env_file is not None:
        given |= {name: value for name, value in read_env_file(asked.env_file) if value is not None}
    return variables.secret({**asked.environ, **given})


def _own(asked: Asked, name: str) -> str:
    if name not in asked.environ:
        raise UsageError("is not set here", where=f"--env {name}", hint=f"export it first, or give a value: --env {name}=VALUE")
    return asked.environ[name]


def read_env_file(path: Path) -> list[tuple[str, str | None]]:
    """Lines `NAME=VALUE`, nothing unquoted; `NAME` alone takes the caller's value; empty lines and `#` lines are skipped."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise UsageError(
            f"cannot be read: {reason}", where=f"--env-file {path}", hint="give a file of NAME=VALUE lines"
        ) from None
    found: list[tuple[str, str | None]] = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, equals, value = line.lstrip().partition("=")
        if not (name.isascii() and name.isidentifier()):
            raise UsageError(
                "is no NAME=VALUE line", where=f"--env-file {path}, line {number}", hint="names have letters, digits and _"
            )
        found.append((name, value if equals else None))
    return found


def mounts_of(asked: Asked, spec: Spec, here: Path, tell: Tell) -> tuple[Mount, ...]:
    """The user's mounts. `here`: the caller's directory as the run sees it; a relative SRC is found at the same place from there."""
    mounts = []
    kinds: tuple[tuple[Literal["data", "checkpoints"], tuple[tuple[str, str], ...]], ...] = (
        ("data", asked.data),
        ("checkpoints", asked.checkpoints),
    )
    for kind, pairs in kinds:
        for source, target in pairs:
            absolute = Path(os.path.normpath(asked.here / source))
            if not _is_there(absolute, f"--{kind} {source}"):
                if kind == "data":
                    raise DataError("is not there", where=f"--data {source}", hint="give the path of a file or folder")
                try:
                    absolute.mkdir(parents=True)
                except OSError as error:
                    raise DataError(
                        f"cannot be made: {error.strerror}", where=f"--checkpoints {source}", hint="name another place"
                    ) from None
                tell.detail(f"made {absolute} for the checkpoints")
            mounts.append(
                Mount(kind=kind, source=str(absolute.resolve()), target=target.rstrip("/") or os.path.normpath(here / source))
            )
    if asked.runner == "host":
        for mount in mounts:
            check_place(asked, spec, mount)
    else:
        plan.check_mounts(spec, mounts)
    return tuple(mounts)


def check_place(asked: Asked, spec: Spec, mount: Mount) -> None:
    """Whether the host runner can show a mount: where it is, or in a private copy. Raises `UsageError`."""
    copied = (f"{plan.workspace_of(spec)}/", f"{user_of(asked.environ).home}/") if asked.private else ()
    if os.path.realpath(mount.target) != mount.source and not mount.target.startswith(copied):
        raise UsageError(
            "the host runner cannot show it at another path",
            where=f"--{mount.kind} {mount.source}:{mount.target}",
            hint="leave out DST, or leave out --runner host",
        )


def _is_there(path: Path, option: str) -> bool:
    try:
        return path.exists()
    except OSError as error:
        raise DataError(
            f"cannot be looked at: {error.strerror}", where=option, hint="name what you may read, or ask whoever owns it"
        ) from None


def check_save(asked: Asked) -> None:
    """Before the run: what can be known of `--save` and `--record` now would be bad news after hours. Raises `RecordError`."""
    for option, path in (("--save", asked.save), ("--record", asked.record)):
        if path is None:
            continue
        where = f"{option} {path}"
        try:
            if option == "--record" and path.is_dir():
                raise RecordError("is a folder", where=where, hint="name a file in it")
            if option == "--save" and path.exists() and (not path.is_dir() or any(path.iterdir())):
                raise RecordError("is not empty", where=where, hint="name a new or empty folder: nothing is overwritten")
            folder = next(one for one in path.parents if os.path.lexists(one))
            bad = (
                "is no folder"
                if not folder.is_dir()
                else "may not be written"
                if not os.access(folder, os.W_OK | os.X_OK)
                else ""
            )
        except OSError as error:
            raise RecordError(f"cannot be looked at: {error.strerror}", where=where, hint="name another place") from None
        if bad:
            raise RecordError(f"cannot be written: {folder} {bad}", where=where, hint="name another place")


def seed_of(asked: Asked, spec: Spec) -> int:
    if asked.seed == "random":
        return secrets.randbits(32)
    return spec.identity.determinism.seed if asked.seed is None else asked.seed


def term_of(environ: Mapping[str, str]) -> str:
    """The caller's TERM; empty where there is none, or one that names no terminal."""
    term = environ.get("TERM", "")
    return term if _TERM.fullmatch(term) else ""


def caller_of(asked: Asked) -> tuple[Variable, ...]:
    if asked.runner != "host":
        term = term_of(asked.environ)
        return (Variable(name="TERM", value=term),) if term else ()
    from repro_env.capture import variables

    # Listed variables get their value at capture, or stay unset, as in the image.
    return tuple(
        Variable(name=name, value=value) for name, value in sorted(asked.environ.items()) if variables.effect(name) != "replayed"
    )


def passed_of(asked: Asked, spec: Spec, launch: Launch, given: Sequence[GivenVariable]) -> tuple[str, ...]:
    """Names of the caller's variables that reach the command only in the host runner; a run in the image has none of them."""
    if asked.runner != "host":
        return ()
    from repro_env.capture import variables

    explained = {one.name for one in spec.identity.config.env} | {one.name for one in given}
    launched = {variable.name: variable.value for variable in launch.env}
    return tuple(
        name
        for name in variables.unlisted(sorted(asked.environ))
        if variables.effect(name) != "ours"
        and name not in explained
        and _NAME.fullmatch(name)
        and launched.get(name) == asked.environ[name]
    )


def user_of(environ: Mapping[str, str]) -> User:
    """Return the caller's uid and gid with a fixed name, so that runs of all users agree, and the home directory."""
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
