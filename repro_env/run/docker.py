"""The Docker runner: a launch as a container of an engine, Podman's too. The image is in the engine already.

    this process         copies the source, makes the private folders, joins its streams and signals to the container
      |- watcher         waits for this process to be gone, and removes the container then
    the engine
      `- init.py (pid 1) starts the command, reaps, says how it ended

The container is locked to a scratch folder: one whose folder nobody holds is left over, and removed by the next run.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from repro_env.image import layout
from repro_env.io import engine as engines
from repro_env.io.engine import Engine
from repro_env.model.errors import CaptureError, EngineError, ReproEnvError, RunError, StoreError
from repro_env.model.run import Launch, Outcome
from repro_env.run import attached, container, embedded, filesystem, inner, memory, merged, rootfs, scratch
from repro_env.run.container import Bind, Place
from repro_env.run.cover import cover, within
from repro_env.run.interface import Runner
from repro_env.run.pycache import Pycache
from repro_env.run.workspace import CopiedWorkspace, Point, make_points

INIT = Path(__file__).resolve().parents[1] / "inside" / "init.py"
_LATE = 0.5
"""Seconds that an engine may take to tell that memory was short, after the end."""


class _Ended(msgspec.Struct):
    """What `init.py` says."""

    status: int
    starved: bool | None = None
    refused: tuple[str, list[tuple[str, int]]] | None = None


class DockerRunner:
    """Runs launches in containers of a local engine."""

    def __init__(
        self,
        layers: Callable[[str], Path | None],
        *,
        engine: Engine,
        interpreter: str,
        merged: Path,
        bytecode: Path | None = None,
    ) -> None:
        """`layers`, `merged`, `bytecode`: as the embedded runner's. `interpreter`: the image's Python, by its path inside.

        `suitable` has to hold for the engine.
        """
        self._layers = layers
        self._engine = engine
        self._interpreter = interpreter
        self._merged = merged
        self._bytecode = bytecode
        self.began = False
        """The command was started, so that there is something to record whatever happens."""
        self.compiled: tuple[str, ...] = ()

    def run(self, launch: Launch, *, folder: Path) -> Outcome:
        """See `interface.Runner`. Raises `EngineError` too: with `began`, the engine went away under the command."""
        embedded.check(launch)
        _clear(self._engine)
        with contextlib.ExitStack() as stack:
            own = scratch.beside(folder)
            stack.callback(own.remove)
            disk = scratch.local(folder, own)
            if disk is not own:
                stack.callback(disk.remove)
            pycache = Pycache(self._bytecode, disk.folder("own-pycache"), disk.folder("pycache-work"))
            place = self._place(launch, folder, own, disk, pycache)
            asked = container.to_container(launch, place)
            with _watched(self._engine.address, container.name(launch), (own.path, disk.path)):
                outcome = self._contained(launch, place, asked)
            with contextlib.suppress(OSError, CaptureError):  # what a script did there must not cost the run its end
                self.compiled = tuple(pycache.written())
            return outcome

    def _tree(self, diff_id: str) -> Path:
        path = self._layers(diff_id)
        if path is None:
            raise StoreError("is not in the store", where=diff_id, hint="run `repro-env rebuild`")
        return path

    def _place(self, launch: Launch, folder: Path, own: scratch.Scratch, disk: scratch.Scratch, pycache: Pycache) -> Place:
        """Make everything on this machine that the container will be shown."""
        files = folder / "files"
        files.mkdir(mode=0o755, exist_ok=True)
        CopiedWorkspace(self._tree(launch.snapshot), files, needed=embedded.inside(launch)).prepare()
        trees = [self._tree(diff_id) for diff_id in launch.layers]
        image = merged.tree(trees, self._merged / launch.image.removeprefix("sha256:"))
        binds = [Bind(source=_shown(image, one.root), target=one.target, read_only=True) for one in launch.trees]
        links = [one.target for one in launch.trees if os.path.islink(f"{image}{one.target}")]  # noqa: PTH114
        targets = [launch.workspace, *(one.target for one in launch.trees), *(one.target for one in launch.mounts)]

        def private(path: str) -> Path:
            open_to_all = path in ("/tmp", "/var/tmp")  # noqa: S108
            return disk.folder(f"root{path.replace('/', '-')}", 0o1777 if open_to_all else 0o755)

        for bind in list(cover(container.covered(launch, links), image, targets, private)):  # before there are points in it
            binds.append(bind)
            if not bind.read_only:
                below = [target for target in targets if target.startswith(bind.target + "/")]
                points = [Point(target[len(bind.target) + 1 :], _is_folder(target, launch)) for target in below]
                make_points(Path(bind.source), points)
        binds += _submounts(launch)
        binds += [_file(own, name, text) for name, text in _etc(launch, image).items()]
        kept = pycache.linked()
        binds.append(Bind(source=str(pycache.own), target=layout.PYCACHE, read_only=False))
        if kept is not None:
            binds.append(Bind(source=str(kept), target=layout.KEPT, read_only=True))
        control = own.folder("control")
        control.chmod(0o700)  # the values of secret variables are in it
        shutil.copyfile(INIT, control / "init.py")
        _tell(control / "launch.json", launch)
        cpus = os.sched_getaffinity(0)
        return Place(
            scratch=str(own.path),
            origin=_origin(),
            control=str(control),
            interpreter=self._interpreter,
            workspace=str(files),
            binds=tuple(binds),
            groups=tuple(sorted(set(os.getgroups()) - {launch.user.gid})),
            shared=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2,
            memory=memory.limit(),
            cpus=container.ranges(sorted(cpus)) if len(cpus) < (os.cpu_count() or 0) else "",
            terminal=attached.is_terminal(),
            keep_id=self._engine.facts.product == "Podman" and self._engine.facts.rootless,
        )

    def _contained(self, launch: Launch, place: Place, asked: dict[str, object]) -> Outcome:
        """From the container's making to its end."""
        engine, control = self._engine, Path(place.control)
        with contextlib.ExitStack() as stack:
            with engine.talk("make the container"):
                made = engine.client.api.create_container_from_config(asked, container.name(launch))["Id"]
            stack.callback(_remove, engine, made)
            with engine.talk("start the container"):
                stream = engine.client.api.attach_socket(made, params={"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1})
                stack.callback(stream.close)
                engine.client.api.start(made)
            self.began = True
            pid = _pid(engine, made)
            try:
                attached.Attached(
                    stream=getattr(stream, "_sock", stream),
                    terminal=place.terminal,
                    kill=lambda number: _kill(engine, made, number),
                    resize=lambda rows, columns: _resize(engine, made, rows, columns),
                    started=control / "started",
                ).wait()
                code, starved = _end(engine, made, told=(control / "ended.json").exists())
            except (EngineError, OSError) as error:
                _end_alone(pid, made)
                if (control / "ended.json").exists():
                    return self._outcome(launch, control, 0, starved=False, lost=True)
                what = error.what if isinstance(error, ReproEnvError) else str(error)
                raise EngineError(
                    f"the engine went away while the command ran, so its end is not known ({what})",
                    where=engine.address,
                    hint="what it wrote is in the run's files; the next run removes its container, once the engine is back",
                ) from None
            if not (control / "started").exists():
                self.began = False
                raise _not_begun(engine, code)
        return self._outcome(launch, control, code, starved=starved)

    def _outcome(self, launch: Launch, control: Path, code: int, *, starved: bool, lost: bool = False) -> Outcome:
        try:
            ended = msgspec.json.decode((control / "ended.json").read_bytes(), type=_Ended)
            result = os.waitstatus_to_exitcode(ended.status)
        except (OSError, ValueError, msgspec.MsgspecError):  # init itself was killed: the engine's word alone
            ended, result = None, 128 - code if code > 128 else code
        if ended is not None and ended.refused is not None:
            self.began = False
            raise _refusal(launch, *ended.refused)
        starved = starved or bool(ended and ended.starved)
        facts = self._engine.facts
        means = [f"engine: {facts.product} {facts.version}", "root: the engine's, read-only", "workspace: copy"]
        if launch.gpus:
            means.append(f"gpus: {launch.gpus}")
        if lost:
            means.append("engine: went away at the end")
        return Outcome(
            exit_code=result if result >= 0 else 128 - result,
            signal=max(0, -result),
            out_of_memory=starved and result != 0,
            isolation="docker",
            means=tuple(means),
        )


_: type[Runner] = DockerRunner


def suitable(engine: Engine, launch_gpus: int | str = 0) -> None:
    """Raises `EngineError` for an engine whose containers would not see this machine as it is."""
    facts = engine.facts
    if facts.elsewhere:
        raise EngineError(
            f"{facts.elsewhere}: data, source and outputs are folders of this machine, which its containers cannot be shown",
            where=engine.address,
            hint="use an engine of this machine (unset DOCKER_HOST, docker context use default), or the embedded runner",
        )
    if facts.os and facts.os != "linux":
        raise EngineError(f"its containers are {facts.os}'s", where=engine.address, hint="switch it to Linux containers")
    if facts.rootless and facts.product == "Docker" and os.geteuid() != 0:
        raise EngineError(
            "is a rootless Docker, in which a command can be root or somebody else, and never you",
            where=engine.address,
            hint="use the embedded runner, rootless Podman, or the system's Docker",
        )
    if launch_gpus and facts.product == "Podman":
        raise EngineError(
            "Podman's compatible socket takes no notice of requests for GPUs",
            where="--gpus",
            hint="use a Docker engine with nvidia-container-toolkit",
        )


def _shown(image: Path, root: str) -> str:
    found = within(image, root)
    if found is None or not found.is_dir():
        raise RunError("is no folder of the image", where=root, hint="capture again")
    return str(found)


def _is_folder(target: str, launch: Launch) -> bool:
    return next((os.path.isdir(mount.source) for mount in launch.mounts if mount.target == target), True)  # noqa: PTH112


def _submounts(launch: Launch) -> Iterator[Bind]:
    """Mounts inside read-only ones: engines leave those writable."""
    table = filesystem.mounts()
    for mount in launch.mounts:
        if mount.read_only:
            below = mount.source.rstrip("/") + "/"
            for point in dict.fromkeys(one.point for one in table if one.point.startswith(below)):
                yield Bind(source=point, target=f"{mount.target}/{point[len(below) :]}", read_only=True)


def _etc(launch: Launch, image: Path) -> dict[str, bytes]:
    hosts, resolv = embedded.names() if launch.network else (None, b"")

    def of_image(name: str) -> bytes:
        found = within(image, f"/etc/{name}")
        return b"" if found is None else rootfs.read(str(found))

    shell = next(
        (path for path in ("/bin/bash", "/usr/bin/bash") if (found := within(image, path)) and found.exists()), "/bin/sh"
    )
    return rootfs.files_of_etc(
        launch.user,
        launch.hostname,
        passwd=of_image("passwd"),
        group=of_image("group"),
        shell=shell,
        hosts=hosts,
        resolv=resolv,
    )


def _file(own: scratch.Scratch, name: str, text: bytes) -> Bind:
    path = own.folder("etc") / name
    path.write_bytes(text)
    path.chmod(0o644)
    return Bind(source=str(path), target=f"/etc/{name}", read_only=True)


def _tell(path: Path, launch: Launch) -> None:
    umask = os.umask(0o022)
    os.umask(umask)
    env = {variable.name: variable.value for variable in launch.env}
    # json, since a word of a command line may hold bytes that are not UTF-8
    path.write_text(json.dumps({"argv": launch.argv, "env": env, "cwd": launch.cwd, "umask": umask}), encoding="ascii")


@contextlib.contextmanager
def _watched(address: str, name: str, folders: Sequence[Path]) -> Iterator[None]:
    """Whatever becomes of this process inside the block: the container of this name does not outlive it, nor do its folders."""
    read, write = os.pipe2(os.O_CLOEXEC)
    watcher = os.fork()
    if watcher == 0:
        try:
            os.setsid()
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, signal.SIG_IGN)
            nothing = os.open(os.devnull, os.O_RDWR)
            for handle in [int(item.name) for item in Path("/proc/self/fd").iterdir()]:
                if handle not in (read, nothing):
                    with contextlib.suppress(OSError):
                        os.dup2(nothing, handle) if handle < 3 else os.close(handle)
            if not os.read(read, 1):  # nobody said that it is well
                with contextlib.suppress(EngineError), engines.opened(address) as engine:
                    _remove(engine, name)
                for folder in folders:
                    scratch.clear(folder)
        finally:
            os._exit(0)
    os.close(read)
    try:
        yield
        os.write(write, b".")
    except ReproEnvError:
        os.write(write, b".")
        raise
    finally:
        os.close(write)
        os.waitpid(watcher, 0)


def _remove(engine: Engine, name: str) -> None:
    with contextlib.suppress(EngineError), engine.talk("remove the container"):
        engine.client.api.remove_container(name, v=True, force=True)


def _clear(engine: Engine) -> None:
    """Remove containers whose run is over without having removed them: nobody holds their scratch folder."""
    with engine.talk("list its containers"):
        found = engine.client.api.containers(all=True, filters={"label": container.LABEL})
    for one in found:
        labels: dict[str, str] = one.get("Labels") or {}
        path = labels.get(container.LABEL, "")
        if path and _is_over(path, seen=labels.get(container.ORIGIN) == _origin()):
            _remove(engine, one["Id"])


def _origin() -> str:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {os.stat('/proc/self/ns/mnt').st_ino}"  # noqa: PTH116


def _is_over(path: str, *, seen: bool) -> bool:
    """`seen`: the folder is gone when it is not there; else it may be somewhere that this process does not see."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return seen
    except OSError:
        return False  # somebody else's
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(handle)
    return True


def _pid(engine: Engine, made: str) -> int:
    """The container's first process, as this machine counts; 0 where the engine does not say."""
    with contextlib.suppress(EngineError), engine.talk("inspect the container"):
        return int(engine.client.api.inspect_container(made)["State"].get("Pid") or 0)
    return 0


def _end_alone(pid: int, made: str) -> None:
    """Without the engine: end the container's processes, if they still are these."""
    with contextlib.suppress(OSError, ValueError):
        if pid and made in Path(f"/proc/{pid}/cgroup").read_text():
            os.kill(pid, signal.SIGTERM)
            deadline = time.monotonic() + 1
            while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
                time.sleep(0.02)
            os.kill(pid, signal.SIGKILL)


@contextlib.contextmanager
def _may_be_over() -> Iterator[None]:
    """An engine that refuses what comes too late is no failure; one that does not answer is."""
    try:
        yield
    except EngineError as error:
        if not error.status:
            raise


def _kill(engine: Engine, made: str, number: int) -> None:
    with _may_be_over(), engine.talk("pass a signal on"):
        engine.client.api.kill(made, signal=number)


def _resize(engine: Engine, made: str, rows: int, columns: int) -> None:
    with _may_be_over(), engine.talk("resize the terminal"):
        engine.client.api.resize(made, rows, columns)


def _end(engine: Engine, made: str, *, told: bool) -> tuple[int, bool]:
    """The container's exit code, and whether the engine saw it run out of memory. `told`: init has said how it ended."""
    with engine.talk("wait for the container"):
        code = int(engine.client.api.wait(made)["StatusCode"])
        deadline = time.monotonic() + _LATE
        while True:
            state: dict[str, Any] = engine.client.api.inspect_container(made)["State"]
            starved = bool(state.get("OOMKilled"))
            if told or starved or code != 128 + signal.SIGKILL or time.monotonic() > deadline:
                return code, starved
            time.sleep(0.05)


def _not_begun(engine: Engine, code: int) -> EngineError:
    """The container was over before `init.py` could say anything."""
    return EngineError(
        f"the container ended at once with exit code {code}: its engine does not show it this machine's folders, "
        "or the image's Python does not start in it",
        where=engine.address,
        hint="use an engine that runs on this machine itself; the embedded runner needs none",
    )


def _refusal(launch: Launch, what: str, refused: list[tuple[str, int]]) -> ReproEnvError:
    if what == "cwd":
        return inner.no_folder(launch.cwd, refused[0][1])
    path = next((variable.value for variable in launch.env if variable.name == "PATH"), os.defpath)
    return inner.refusal(launch.argv[0], path, refused)
