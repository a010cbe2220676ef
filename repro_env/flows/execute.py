"""The story of `repro-env exec`: a command, an image, a source -> a run with its record.

All that can be refused is refused before the run's folder exists. From then on there is a record, whatever
becomes of the command; without its end the run counts as interrupted.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import time
from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Literal, Protocol

import msgspec

from repro_env.catalog import ids, outputs, records
from repro_env.flows import rebuild, snapshot
from repro_env.flows.snapshot import Snapshot
from repro_env.io.files import atomic_write, remove_tree, room
from repro_env.model import codec, redact
from repro_env.model.environment import Variable
from repro_env.model.errors import DataError, DriftError, RecordError, ReproEnvError, UsageError
from repro_env.model.run import DataFact, End, GivenVariable, Launch, Mount, Outcome, Request, Start, User
from repro_env.model.spec import Spec
from repro_env.model.talk import Silent, Tell
from repro_env.run import bytecode, plan
from repro_env.run.bytecode import Module
from repro_env.store.store import Store

TOOLS = Path(__file__).resolve().parents[1] / "inside" / "seeds"
_NAMED = 10
"""How many things are named before the rest is counted."""


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What the user asked for."""

    command: tuple[str, ...]
    here: Path
    """The caller's folder, absolute."""
    environ: Mapping[str, str]
    """The caller's variables."""
    runner: Literal["embedded", "host"] = "embedded"
    data: tuple[tuple[str, str], ...] = ()
    """(SRC, DST) as typed; DST may be empty."""
    checkpoints: tuple[tuple[str, str], ...] = ()
    seed: int | Literal["random"] | None = None
    env: tuple[tuple[str, str | None], ...] = ()
    """(name, value); None stands for the caller's own value."""
    env_file: Path | None = None
    network: bool = False
    frozen: bool = False
    data_changed: bool = False
    runs: Path | None = None
    save: Path | None = None
    record: Path | None = None
    kept: bool = True
    """The run's folder stays; where it does not, it is not spoken of."""


class Done(msgspec.Struct, frozen=True):
    folder: Path
    start: Start
    end: End
    compiled: tuple[Module, ...] = ()
    """Modules of the image that the command had to compile (`flows.bytecode.keep`)."""


class Backend(Protocol):
    """A runner, and how its outputs come into the run's files."""

    def run(self, launch: Launch, *, folder: Path) -> Outcome:
        """As `run.interface.Runner`."""
        ...

    def collect(self, workspace: Path, snapshot: Path, files: Path) -> tuple[str, ...]:
        """Leave in `files` what the command made or changed; return the files of the source that it removed."""
        ...


def runs_of(folder: Path, given: Path | None = None) -> Path:
    """Where the runs of the spec in `folder` are recorded."""
    return given if given is not None else folder.parent / "runs"


def execute(asked: Asked, spec: Spec, folder: Path, *, store: Store, tell: Tell, backend: Backend | None = None) -> Done:
    """Run a command and record it. `folder` holds the spec. Raises before the start only; the command's own failure is in `End`.

    `UsageError`, `DataError`, `DriftError`, `RecordError` for what was asked; `SandboxError`, `RunError`,
    `CommandMissingError` when the command could not be started; what a rebuild raises.
    """
    runs = runs_of(folder, asked.runs)
    given, facts_given = _given(asked)
    mounts = _mounts(asked, spec, tell)
    _check_save(asked)
    seed = _seed(asked, spec)
    data = _data(asked, spec, mounts, store)
    if asked.runner == "embedded":
        _ensure(spec, folder, store, tell)
    source = snapshot.take(spec, folder, runs=runs, frozen=asked.frozen, store=store, tell=tell)
    if asked.runner == "host":
        _check_host(asked, spec, source)
    workspace = plan.workspace_of(spec)
    run_id = ids.uuid7(time.time_ns() // 1_000_000, secrets.token_bytes(10))
    started = datetime.now(timezone.utc)
    where = runs / records.name_of(started, asked.command, run_id)
    request = Request(
        run_id=run_id,
        runner=asked.runner,
        command=asked.command,
        cwd=plan.working_folder(str(asked.here), workspace, source.folders),
        snapshot=source.fact.digest,
        mounts=mounts,
        given=given,
        caller=_caller(asked, spec),
        user=_user(asked.environ),
        seed=seed,
        network=asked.network,
        tools=str(TOOLS),
        notes=str(where / "notes"),
    )
    launch = plan.plan(spec, request)
    if asked.runner == "host":
        _check_drift(spec, launch, store, tell)
    start = Start(
        schema="repro-env/run-start/1",
        id=run_id,
        started=_when(started),
        spec=launch.spec,
        image=launch.image,
        runner=asked.runner,
        command=_line(asked.command),
        cwd=launch.cwd,
        seed=seed,
        source=source.fact,
        data=data,
        given=facts_given,
        network=asked.network or asked.runner == "host",
        host=_host(),
    )
    for text in _opening(asked, start, where, source, launch, store):
        tell(text)
    backend = backend or _backend(asked, spec, folder, runs, store)
    done = _run(asked, launch, start, source, runs, backend, tell)
    return msgspec.structs.replace(done, compiled=backend.compiled) if isinstance(backend, _Embedded) else done


def _run(
    asked: Asked, launch: Launch, start: Start, source: Snapshot, runs: Path, backend: Backend, tell: Tell
) -> Done:
    """From the first byte of the record to its last."""
    notes = Path(launch.notes)
    recording = records.begin(runs, notes.parent.name, more=[notes.name])
    try:
        recording.start(start)
        began = time.monotonic()
        outcome = backend.run(launch, folder=recording.folder)
    except ReproEnvError:
        recording.discard()  # the command never started
        raise
    seconds = time.monotonic() - began
    with undisturbed():
        files = recording.folder / "files"
        removed: tuple[str, ...] = ()
        problems: list[str] = []
        try:
            removed = backend.collect(Path(launch.workspace), source.tree, files)
        except (OSError, ReproEnvError) as error:
            problems.append(redact.line(f"(the outputs are not complete: {error})"))
            tell(f"the outputs are not complete: {error}")
        left = outputs.collect(files)
        end = End(
            schema="repro-env/run-end/1",
            id=start.id,
            ended=_when(datetime.now(timezone.utc)),
            seconds=round(seconds, 3),
            outcome=outcome,
            outputs=left.outputs,
            others=(*left.others, *problems),
            removed=tuple(redact.line(path) for path in removed),
            holes=_holes(Path(launch.notes) / plan.HOLES),
        )
        with contextlib.suppress(OSError):
            remove_tree(Path(launch.notes))
        done = Done(recording.folder, start, end)
        _finish(asked, recording, done, tell)
    return done


def _finish(asked: Asked, recording: records.Recording, done: Done, tell: Tell) -> None:
    """Write the end, and what else was asked for. The command's own failure stays the answer; else ours is."""
    problem: ReproEnvError | None = None
    try:
        recording.finish(done.end)
    except ReproEnvError as error:
        problem = error
        tell(f"the run is over and its end could not be recorded: {error}")
        recording.close()
    try:
        if asked.record is not None:
            atomic_write(asked.record, codec.pretty({"start": done.start, "end": done.end}))
        if asked.save is not None:
            save(done.folder / "files", asked.save)
    except OSError as error:
        problem = RecordError(
            f"cannot be written: {error.strerror}",
            where=str(error.filename or asked.save),
            hint=f"the outputs are in {done.folder / 'files'}",
        )
    except ReproEnvError as error:
        problem = error
    if problem is not None:
        if done.end.outcome.exit_code == 0:
            raise problem
        tell(f"error: {problem}")


def save(files: Path, target: Path) -> None:
    """Copy a run's outputs, symlinks as symlinks, into a folder that holds none of them."""
    from repro_env.io.files import walk
    from repro_env.run.workspace import copy_file

    with room(target):
        target.mkdir(parents=True, exist_ok=True)
        for found in walk(files):
            here = target / found.path
            if found.kind == "dir":
                here.mkdir(exist_ok=True)
            elif found.kind == "link":
                here.symlink_to(found.target)
            elif found.kind == "file":
                copy_file(files / found.path, here)


class _Embedded:
    """The embedded runner; it writes into the run's files by itself."""

    def __init__(self, store: Store, spec: Spec) -> None:
        self._store = store
        self._spec = spec
        self.compiled: tuple[Module, ...] = ()

    def run(self, launch: Launch, *, folder: Path) -> Outcome:
        from repro_env.run.embedded import EmbeddedRunner

        store = self._store
        with store.bytecode.shown(launch.image) as kept:
            runner = EmbeddedRunner(store.layers.path, merged=store.root / "merged", bytecode=kept)
            outcome = runner.run(launch, folder=folder)
        if not outcome.signal:  # somebody who ended the run does not want to wait for more
            self.compiled = bytecode.modules(runner.compiled, self._spec, launch)
        return outcome

    def collect(self, workspace: Path, snapshot: Path, files: Path) -> tuple[str, ...]:  # noqa: ARG002
        from repro_env.run.workspace import harvest

        return harvest(files, snapshot)


def _backend(asked: Asked, spec: Spec, folder: Path, runs: Path, store: Store) -> Backend:
    if asked.runner == "embedded":
        return _Embedded(store, spec)
    from repro_env.run.host import HostRunner

    return HostRunner(skip=(Path(spec.identity.layout.prefix), folder, runs, runs_of(folder)))


# --- what was asked, against what is there


def _given(asked: Asked) -> tuple[tuple[Variable, ...], tuple[GivenVariable, ...]]:
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
        raise UsageError(f"cannot be read: {reason}", where=f"--env-file {path}", hint="give a file of NAME=VALUE lines") from None
    found: list[tuple[str, str | None]] = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, equals, value = line.lstrip().partition("=")
        if not (name.isascii() and name.isidentifier()):
            raise UsageError("is no NAME=VALUE line", where=f"--env-file {path}, line {number}", hint="names have letters, digits and _")
        found.append((name, value if equals else None))
    return found


def _mounts(asked: Asked, spec: Spec, tell: Tell) -> tuple[Mount, ...]:
    mounts = []
    kinds: tuple[tuple[Literal["data", "checkpoints"], tuple[tuple[str, str], ...]], ...] = (
        ("data", asked.data),
        ("checkpoints", asked.checkpoints),
    )
    for kind, pairs in kinds:
        for source, target in pairs:
            absolute = Path(os.path.normpath(asked.here / source))
            if not absolute.exists():
                if kind == "data":
                    raise DataError("is not there", where=f"--data {source}", hint="give the path of a file or folder")
                try:
                    absolute.mkdir(parents=True)
                except OSError as error:
                    raise DataError(f"cannot be made: {error.strerror}", where=f"--checkpoints {source}", hint="name another place") from None
                tell(f"made {absolute} for the checkpoints")
            mounts.append(Mount(kind=kind, source=str(absolute.resolve()), target=target.rstrip("/") or str(absolute)))
    if asked.runner == "host":
        for mount in mounts:
            if os.path.realpath(mount.target) != mount.source:
                raise UsageError(
                    "the host runner cannot show it at another place",
                    where=f"--{mount.kind} {mount.source}:{mount.target}",
                    hint="leave out DST, or leave out --runner host",
                )
    else:
        plan.check_mounts(spec, mounts)
    return tuple(mounts)


def _check_save(asked: Asked) -> None:
    if asked.save is None:
        return
    if asked.save.exists() and (not asked.save.is_dir() or any(asked.save.iterdir())):
        raise RecordError("is not empty", where=f"--save {asked.save}", hint="name a new or empty folder: nothing is overwritten")


def _seed(asked: Asked, spec: Spec) -> int:
    if asked.seed == "random":
        return secrets.randbits(32)
    return spec.identity.determinism.seed if asked.seed is None else asked.seed


def _data(asked: Asked, spec: Spec, mounts: tuple[Mount, ...], store: Store) -> tuple[DataFact, ...]:
    """Fingerprint what is mounted, and hold it against what was named at capture."""
    expected = {one.path: one for one in spec.observed.data}
    there = {mount.target: mount for mount in mounts if mount.kind == "data"}
    if asked.runner == "host":
        # On the host the data need no mount: they are where they are.
        there |= {path: Mount(kind="data", source=path, target=path) for path in expected if path not in there and Path(path).exists()}
    for path in expected:
        if path not in there:
            option = f"--data {path}" if Path(path).exists() else f"--data SRC:{path}"
            raise DataError("was named at capture and is not mounted", where=path, hint=f"add {option}")
    facts = []
    for path, mount in there.items():
        from repro_env.capture.data import fingerprint

        found = fingerprint(Path(mount.source), path, store.hashes)
        if path in expected and found.digest != expected[path].digest and not asked.data_changed:
            raise DataError(
                f"is not what it was at capture ({found.files} files, {found.size} bytes; then {expected[path].files} and "
                f"{expected[path].size})",
                where=mount.source,
                hint="mount the captured data, or say --data-changed if that is meant",
            )
        facts.append(DataFact(source=mount.source, target=path, kind="data", digest=found.digest))
    facts += [
        DataFact(source=mount.source, target=mount.target, kind="checkpoints", digest=None)
        for mount in mounts
        if mount.kind == "checkpoints"
    ]
    return tuple(sorted(facts, key=lambda fact: fact.target))


def _ensure(spec: Spec, folder: Path, store: Store, tell: Tell) -> None:
    """The image, rebuilt when it is not in the store."""
    rebuild.check_platform(spec)
    if rebuild.present(spec, folder, store):
        return
    tell("the image is not on this machine yet: rebuilding it first")
    rebuild.rebuild(spec, folder, store=store, dry_run=False, tell=tell)


def _check_host(asked: Asked, spec: Spec, source: Snapshot) -> None:
    if asked.frozen:
        raise UsageError("the host runner runs the live source", where="--frozen", hint="leave out --frozen, or --runner host")
    if source.fact.frozen:
        raise DriftError("the source's folder is not on this machine", where=source.fact.path, hint="leave out --runner host")
    if not Path(spec.identity.command).exists():
        raise DriftError("the captured environment is not on this machine", where=spec.identity.command, hint="leave out --runner host")


def _check_drift(spec: Spec, launch: Launch, store: Store, tell: Tell) -> None:
    """The live environment has to be the captured one, file for file."""
    from repro_env.image import layer
    from repro_env.image.entry import members
    from repro_env.lock import environment, layers
    from repro_env.lock.tree import Tree
    from repro_env.model.artifact import TreeBlob
    from repro_env.verify.environment import differences

    def hold(tree: Tree) -> TreeBlob:
        known = layers.known_blob(tree.entries, facts=store.facts)
        digest = known.sha256 if known else layer.diff_id(members(tree.entries, tree.contents))
        return TreeBlob(sha256=digest, size=0, files=len(tree.entries))

    environ = {variable.name: variable.value for variable in launch.env}
    captured = next((one.value for one in spec.identity.config.env if one.name == "PYTHONPATH"), None)
    environ.pop("PYTHONPATH")  # it names our seeds first
    if captured is not None:
        environ["PYTHONPATH"] = captured
    tell("checking that the environment is the captured one")
    locked = environment.lock(
        spec.identity.command,
        environ,
        workspace=Path(launch.workspace),
        programs=spec.observed.programs,
        store=store,
        tell=Silent(),  # what it would say is about a capture that nobody asked for
    )
    found = differences(spec.identity, environment.identity(locked, launch.seed, hold))
    if found:
        edited = sorted(set(locked.composition.edited) - set(spec.observed.edited))
        raise DriftError(
            f"the environment is no longer the captured one: {_some([*found, *edited], '; ')}",
            where=launch.prefix,
            hint="capture again, or leave out --runner host",
        )


def _caller(asked: Asked, spec: Spec) -> tuple[Variable, ...]:
    if asked.runner == "embedded":
        return (Variable(name="TERM", value=asked.environ["TERM"]),) if "TERM" in asked.environ else ()
    from repro_env.capture import variables

    # What changes numbers was recorded at capture; what was not set then is not set now.
    image = {variable.name for variable in spec.identity.config.env}
    numeric = {variable.name for variable in variables.sort(asked.environ).replayed} - image
    return tuple(Variable(name=name, value=value) for name, value in sorted(asked.environ.items()) if name not in numeric)


def _user(environ: Mapping[str, str]) -> User:
    """The caller by number; a name and a home even where the system knows none."""
    import pwd

    uid, gid = os.geteuid(), os.getegid()
    try:
        known = pwd.getpwuid(uid)
        name, home = known.pw_name, known.pw_dir
    except KeyError:
        name, home = environ.get("USER", ""), ""
    if not name.isascii() or not name.replace("-", "").replace("_", "").replace(".", "").isalnum():
        name = "user"
    home = os.path.normpath(environ.get("HOME") or home or "/")
    if not home.startswith("/") or home in ("/", "//"):
        home = f"/home/{name}"
    return User(uid=uid, gid=gid, name=name, home=home)


def _host() -> tuple[str, ...]:
    from repro_env.capture import system

    host = system.host()
    return (f"os {host.os}", f"kernel {host.kernel}", f"cpu {host.cpu} ({host.machine})", f"cores {host.cores}", f"memory {host.memory}")


# --- what is said and written


def _opening(asked: Asked, start: Start, where: Path, source: Snapshot, launch: Launch, store: Store) -> list[str]:
    said = [f"run {where}"] if asked.kept else []
    isolation = ", isolation none: the live environment on this machine" if asked.runner == "host" else ""
    said.append(f"  seed {start.seed}, image {start.image.removeprefix('sha256:')[:12]}{isolation}")
    fact = start.source
    state = "as captured" if not fact.differs else f"differs from the capture: {_some(fact.differs, ', ')}"
    said.append(f"  source {fact.path} ({'captured' if fact.frozen else 'live'}, {state})")
    for one in start.data:
        how = "read-only" if one.kind == "data" else "writable"
        said.append(f"  {one.kind} {one.source}" + (f" at {one.target}" if one.target != one.source else "") + f" ({how})")
    if launch.cwd != str(asked.here):
        said.append(f"  working folder {launch.cwd}: {asked.here} is not part of the source")
    if not asked.network:
        text = "no network" if asked.runner == "embedded" else "the network is this machine's"
        said.append(f"  {text}; W&B and Hugging Face are set to offline (--network)")
    if asked.runner == "embedded":
        missing = plan.named_paths(
            asked.command, here=str(asked.here), exists=os.path.exists, inside=lambda path: is_inside(path, launch, source, store)
        )
        said += [f"  {path} is named in the command and not in the run; to bring it: --data {path}" for path in missing]
    return said


def is_inside(path: str, launch: Launch, source: Snapshot, store: Store) -> bool:
    """Whether an absolute path of the host will be there in the run: by mount, source, image, or made by the runner."""
    if path in ("/", "/tmp", "/var/tmp", launch.user.home, launch.workspace) or _below(path, "/dev", "/proc", "/sys"):  # noqa: S108
        return True
    if any(_below(path, mount.target) for mount in launch.mounts):
        return True
    if _below(path, launch.prefix):
        return True
    if _below(path, launch.workspace):
        return path[len(launch.workspace) + 1 :] in source.paths
    if launch.workspace.startswith(path + "/") or any(mount.target.startswith(path + "/") for mount in launch.mounts):
        return True
    trees = (store.layers.path(diff_id) for diff_id in launch.layers)
    return any(tree is not None and os.path.lexists(f"{tree}{path}") for tree in trees)


def _below(path: str, *folders: str) -> bool:
    return any(path == folder or path.startswith(folder + "/") for folder in folders)


def _some(items: tuple[str, ...] | list[str], between: str) -> str:
    shown = between.join(items[:_NAMED])
    return shown if len(items) <= _NAMED else f"{shown}{between}and {len(items) - _NAMED} more"


def _line(command: tuple[str, ...]) -> tuple[str, ...]:
    """The command as the record shows it: secrets out, also one that follows its option as a word of its own."""
    shown = []
    for number, word in enumerate(command):
        line = redact.line(word)
        if number:
            before = redact.line(command[number - 1])
            if redact.line(f"{command[number - 1]} {word}") not in (f"{before} {line}", f"{before} {word}"):
                line = redact.REDACTED
        shown.append(line)
    return tuple(shown)


class _Hole(msgspec.Struct):
    library: str = ""
    what: str = ""
    file: str = ""
    line: int = 0
    problem: str = ""


def _holes(path: Path) -> tuple[str, ...]:
    """What the seeds noted, each once, in the order of the first note. The file is the script's to write: nothing in it is trusted."""
    try:
        with path.open("rb") as file:
            data = file.read(4 << 20)
    except OSError:
        return ()
    said: dict[str, None] = {}
    for line in data.splitlines():
        try:
            hole = msgspec.json.decode(line, type=_Hole)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            continue
        text = f"seeds: {hole.problem}" if hole.problem else f"{hole.library} {hole.what} at {hole.file}:{hole.line}"
        said[redact.line(text)] = None
    return tuple(said)


def _when(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03d}Z"


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """A second Ctrl-C must not cost the record of what the first one stopped."""

    def later(number: int, frame: object) -> None:
        """A handler, since the command is over and nothing else has to stop."""

    try:
        old = {number: signal.signal(number, later) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    except ValueError:  # not the main thread: signals are not ours
        old = {}
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
