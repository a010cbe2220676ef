"""The options of `exec`, checked and resolved on this machine before a run directory exists."""

from __future__ import annotations

import functools
import os
import re
import secrets
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from repro_env.environment.machine import variables
from repro_env.oci import paths as layout
from repro_env.sandbox import plan, streams
from repro_env.sandbox.gpus import parse as parse_gpus
from repro_env.sandbox.limits import parse_memory, parse_time
from repro_env.schema import redact
from repro_env.schema.environment import Environ, Variable, values_of
from repro_env.schema.errors import DataError, UsageError, os_errors_as
from repro_env.schema.options import Option, options_of, parse_mount
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
from repro_env.schema.runners import DEFAULT, HELP, ISOLATED, TRAITS, RunnerName, Traits
from repro_env.schema.spec import Spec

Pairs = Mapping[str, str] | Sequence[str | tuple[str, str]]
"""Paths to mount: `{SRC: DST}` or `[(SRC, DST)]`, or `[SRC]` for the same absolute path in the run."""
_MOUNTS = "it shows the command files of yours"
_RUNNERS = "the runner must isolate the command from this machine"
_VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,199}")
SIZES: tuple[Literal["COLUMNS", "LINES"], ...] = ("COLUMNS", "LINES")
"""Variables with the size of a terminal, which take precedence over the terminal itself."""
_SIZE = re.compile(r"[0-9]{1,9}")
_TERM = re.compile(r"[0-9A-Za-z][0-9A-Za-z._+-]{0,63}")


def parse_seed(text: str) -> int | Literal["random"]:
    """Parse the value of `--seed`. Raises `UsageError`."""
    if text == "random":
        return "random"
    if not (text.isascii() and text.isdigit() and int(text) < 2**32):
        message = f'--seed must be an integer between 0 and 4294967295, or "random" (got "{text}")'
        raise UsageError(message, hint="for example: --seed 7")
    return int(text)


def parse_variable(text: str) -> tuple[str, str | None]:
    """Parse `NAME=VALUE`; the value of `NAME` is None."""
    name, equals, value = text.partition("=")
    return name, value if equals else None


def parse_exception(text: str) -> str:
    """Check the value of `--except`. Raises `UsageError`."""
    rule, _, reason = text.partition("=")
    if not rule.strip() or not reason.strip():
        hint = "for example: --except 'clean-tree=a first try'"
        raise UsageError(f'--except must be RULE=REASON (got "{text}")', hint=hint)
    return text


class RunOptions(msgspec.Struct, frozen=True, kw_only=True, rename="kebab"):
    """The options of `exec`: the command line, the API and jobs pass them on as this value."""

    data: Annotated[
        Pairs,
        Option(
            "Mount a file or directory read-only. DST defaults to the same absolute path. Captured data that is unchanged and at "
            "the same path needs no option. With --on kubernetes, SRC is CLAIM or CLAIM/PATH. Repeatable.",
            "SRC[:DST]",
            functools.partial(parse_mount, "--data"),
            refusal=_MOUNTS,
        ),
    ] = ()
    checkpoints: Annotated[
        Pairs,
        Option(
            "Mount a persistent, writable directory; created if missing. Repeatable.",
            "SRC[:DST]",
            functools.partial(parse_mount, "--checkpoints"),
            refusal=_MOUNTS,
        ),
    ] = ()
    data_changed: Annotated[bool, Option("Run even if captured data is missing or changed; to mount it, add --data.")] = False
    seed: Annotated[
        int | Literal["random"] | None,
        Option("Set the master seed, 0 to 4294967295. Default: that of the capture.", "N|random", parse_seed, project=True),
    ] = None
    ranks: Annotated[
        Ranks,
        Option(
            "each (default): give each rank of a distributed run its own random streams. same: give all ranks those of rank 0.",
            "each|same",
            project=True,
        ),
    ] = "each"
    determinism: Annotated[
        Mode,
        Option(
            "warn (default): use deterministic implementations, and record the operations that have none. strict: fail at such "
            "operations. off: do not change the settings of libraries.",
            "MODE",
            project=True,
        ),
    ] = "warn"
    ids: Annotated[
        Ids | None,
        Option(
            "system: draw uuid4, secrets, os.urandom and the names of tempfile from the system. seeded: draw them from the seed; "
            "they are then predictable, so do not use them for secrets. Default: system, or seeded with --determinism strict.",
            "system|seeded",
            project=True,
        ),
    ] = None
    threads: Annotated[
        int | None,
        Option("Set the number of threads of numeric libraries. Default: as captured.", "N", min=1, max=4096, project=True),
    ] = None
    trace: Annotated[
        bool,
        Option(
            "Record the loss and a checksum of the weights for each training step (the first 10,000, then every 1,000th), "
            "and the SHA-256 of all weights every 1,000 steps.",
            project=True,
        ),
    ] = False
    env: Annotated[
        Mapping[str, str | None] | Sequence[tuple[str, str | None]],
        Option(
            "Set a variable. NAME alone passes the value from your shell. Only the name is recorded. Repeatable.",
            "NAME[=VALUE]",
            parse_variable,
            refusal="it could pass a secret of your shell to the command",
        ),
    ] = ()
    """By name; None means the caller's value."""
    env_file: Annotated[
        Path | None, Option("Set variables from the lines NAME=VALUE of this file.", "FILE", refusal="it reads a file of yours")
    ] = None
    network: Annotated[bool, Option("Allow access to the network.", refusal="it lets the command send your data away")] = False
    source: Annotated[
        Path | None,
        Option(
            "Use the code in this directory. Default: the directory that holds the spec's directory.",
            "DIR",
            refusal="it reads a directory of yours",
        ),
    ] = None
    frozen: Annotated[bool, Option("Run the captured code, not the current code.")] = False
    runner: Annotated[RunnerName, Option(f"{HELP}.", "NAME", project=ISOLATED, refusal=_RUNNERS)] = DEFAULT
    gpus: Annotated[
        int | str | None,
        Option(
            "Use N GPUs, all, none, or those with these indices or UUIDs. Default: all if the environment was "
            "captured with GPUs, otherwise none. With --on, request N for each node; default: none.",
            "N|all|none|0,1",
            parse_gpus,
            refusal="it gives the command devices of this machine",
        ),
    ] = None
    """As `sandbox.gpus.choose`."""
    cpus: Annotated[
        float,
        Option(
            "Limit the run to the time of N CPUs, such as 4 or 0.5. Default: no limit.", "N", min=0.01, max=4096, project=True
        ),
    ] = 0
    memory: Annotated[
        int,
        Option(
            "Limit the memory of all processes of the run together, such as 8G. Default: no limit.",
            "SIZE",
            parse_memory,
            project=True,
        ),
    ] = 0
    """Bytes."""
    seconds: Annotated[
        int,
        Option(
            "End the command after this time: a number of minutes, 90s, 1h30m, 2d, H:M:S or D-H. It gets SIGTERM, and SIGKILL after "
            "30 seconds. With --on, the job has a time limit too. Default: no limit.",
            "TIME",
            parse_time,
            project=True,
        ),
    ] = msgspec.field(default=0, name="time")
    parents: Annotated[
        Sequence[str],
        Option("Record that this run starts from another run: an ID, `latest`, or a directory. Repeatable.", "RUN"),
    ] = msgspec.field(default=(), name="parent")
    resume: Annotated[
        str | None,
        Option(
            "Resume this run (an ID, `latest`, or its directory): start with its outputs in the project, and with its seed.",
            "RUN",
        ),
    ] = None
    tags: Annotated[Sequence[str], Option("Tag the run, like `repro-env runs tag`. Repeatable.", "TAG")] = msgspec.field(
        default=(), name="tag"
    )
    exceptions: Annotated[
        Sequence[str],
        Option(
            "Accept that this run breaks a rule of the project's policy, and note the reason in the record. Repeatable.",
            "RULE=REASON",
            parse_exception,
        ),
    ] = msgspec.field(default=(), name="except")
    note: Annotated[str, Option("Add a note to the run, like `repro-env runs note`.", "TEXT")] = ""
    runs: Annotated[
        Path | None,
        Option(
            "Record the run in this directory. Default: runs/ next to the spec's directory.",
            "DIR",
            refusal="it writes to a directory of yours",
        ),
    ] = None
    no_defaults: Annotated[bool, Option("Ignore the defaults in `[tool.repro-env]` of the project's pyproject.toml.")] = False
    run_id: Annotated[
        str | None,
        Option(
            "Use this ID: that of a submitted run, or of the run that a requeued job resumes. Processes with the same ID share the "
            "run if RANK, LOCAL_RANK and WORLD_SIZE are set.",
            "ID",
        ),
    ] = None

    defaults: tuple[str, ...] = ()
    """The options that the project's `pyproject.toml` set, such as `seed 7`."""
    output: bool = False
    """Forward what the command prints to stdout and stderr."""
    keeps_record: bool = True
    """Keep the run directory. If not, messages do not mention it, because the caller removes it."""
    streams: StandardStreams | None = None
    """The standard streams of another run (`Start.streams`), to connect those of this one in the same way, without input; None for
    streams like those of the caller."""

    command: tuple[str, ...] = ()
    here: Path = Path("/")
    """The caller's working directory, absolute."""
    environ: Mapping[str, str] = msgspec.field(default_factory=dict)
    """The caller's environment variables."""
    member: Member = Member()
    """This process, which may share the run with others."""

    @property
    def traits(self) -> Traits:
        """The traits of the runner."""
        return TRAITS[self.runner]

    @property
    def limits(self) -> Limits:
        return Limits(cpus=self.cpus, memory=self.memory, seconds=self.seconds)

    def with_command(self, command: Sequence[str], here: Path) -> RunOptions:
        """Return the options for a command that this process runs in the working directory `here`. Raises `UsageError`."""
        if not command:
            raise UsageError("no command was given", hint="for example: train.py --epochs 3")
        if not command[0]:
            raise UsageError("the command is an empty string", hint="check the variable that it came from")
        return msgspec.structs.replace(
            self,
            command=tuple(command),
            here=here,
            environ=Environ(os.environ),
            env={**dict(read_env_file(self.env_file and here / self.env_file)), **dict(self.env)},
            env_file=None,
            source=self.source and (here / self.source).resolve(),
            runs=self.runs and here / self.runs,
        )

    def words(self, excluded: Collection[str]) -> Iterator[str]:
        """Yield the options as words of a command line, without those of the `excluded` fields and defaults.

        The defaults of a project are among them, so the command that has these words must not read them again.
        """
        yield "--no-defaults"
        for name, (field, _) in options_of(RunOptions).items():
            value = getattr(self, name)
            if name in excluded or name == "no_defaults" or value == field.default:
                continue
            for item in value if isinstance(value, (list, tuple)) else [value]:
                yield f"--{field.encode_name}"
                if item is not True:
                    yield ":".join(filter(None, item)) if isinstance(item, tuple) else str(item)

    def seed_for(self, spec: Spec) -> int:
        """Return the seed of a run: as given, drawn for "random", or the default of the spec."""
        if self.seed == "random":
            return secrets.randbits(32)
        return spec.defaults.seed if self.seed is None else self.seed

    def variables(self) -> tuple[Variable, ...]:
        """Return the variables of `--env` and `--env-file`, sorted by name."""
        values: dict[str, str] = {}
        for name, value in dict(self.env).items():
            if not (name.isascii() and name.isidentifier()) or "\0" in (value or ""):
                raise UsageError(
                    "a variable needs a name of letters, digits and _, and a value without null bytes",
                    where=f"--env {name!r}",
                    hint="use --env NAME=VALUE",
                )
            if value is None and name not in self.environ:
                hint = f"export it first, or give a value: --env {name}=VALUE"
                raise UsageError("this variable is not set", where=f"--env {name}", hint=hint)
            values[name] = self.environ[name] if value is None else value
        return tuple(Variable(name=name, value=value) for name, value in sorted(values.items()))

    def mounts(self, spec: Spec, here: Path, tell: Tell) -> tuple[Mount, ...]:
        """Return the user's mounts. A missing directory for `--checkpoints` is created.

        `here`: the caller's working directory inside the run. Without DST, a relative SRC is mounted at the same path relative to it.
        """
        mounts = []
        kinds: tuple[tuple[Literal["data", "checkpoints"], Pairs], ...] = (
            ("data", self.data),
            ("checkpoints", self.checkpoints),
        )
        for kind, pairs in kinds:
            for source, target in pairs_of(pairs):
                absolute = Path(os.path.normpath(self.here / source))
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
        if not self.traits.moves_mounts:
            for mount in mounts:
                check_mount(self, spec, mount)
        else:
            plan.check_mounts(spec, mounts)
        return tuple(mounts)


def pairs_of(paths: Pairs) -> tuple[tuple[str, str], ...]:
    """Return (SRC, DST) for each path; DST is empty if it is not given."""
    if isinstance(paths, Mapping):
        return tuple(paths.items())
    return tuple(path if isinstance(path, tuple) else (str(path), "") for path in paths)


def python_path_of(options: RunOptions, root: Path, workspace: str) -> tuple[str, ...]:
    """Return the entries of the caller's PYTHONPATH below `root`, the source directory, as paths below `workspace`.

    These entries are code, so they need no option. Other entries are part of the captured environment.
    """
    entries = [os.path.realpath(options.here / entry) for entry in options.environ.get("PYTHONPATH", "").split(":") if entry]
    real_root = os.path.realpath(root)
    paths = [os.path.relpath(entry, real_root) for entry in entries if f"{entry}/".startswith(f"{real_root}/")]
    return tuple(dict.fromkeys(os.path.normpath(f"{workspace}/{path}") for path in paths))


def secrets_of(options: RunOptions) -> frozenset[str]:
    """Return the values of variables whose names mark them as secrets. They must never be recorded."""
    return variables.secret_values({**options.environ, **values_of(options.variables())})


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
    explained = {variable.name for variable in (*spec.identity.config.env, *options.variables())}
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


def exact_words(command: tuple[str, ...], redacted: tuple[str, ...]) -> tuple[str, ...]:
    """Return the command if it differs from `redacted`, its form in the record, only in newlines and control characters, else ()."""
    if redacted == command or redacted != tuple(map(redact.one_line, command)):
        return ()
    return command if all(map(redact.encodable, command)) else ()


def redact_command(command: tuple[str, ...], hidden: frozenset[str] = frozenset()) -> tuple[str, ...]:
    """Return the command as the record stores it, without secrets, even if one follows its option as a separate word.

    `hidden`: values of the caller's variables whose names mark them as secrets.
    """
    words = []
    for number, word in enumerate(command):
        line = redact.line(word, hidden)
        if number:
            before = redact.line(command[number - 1])
            if redact.REDACTED not in line and redact.line(f"{command[number - 1]} {word}") != f"{before} {line}":
                line = redact.REDACTED
            if command[number - 1].startswith("-") and "=" not in command[number - 1] and not word.startswith("-"):
                line = redact.value(command[number - 1], line)
        name, sign, value = line.partition("=")
        if sign and " " not in name and redact.REDACTED not in line:
            line = f"{name}={redact.value(name, value)}"
        words.append(line)
    return tuple(words)
