"""The Docker runner: a launch as a container of an engine, Podman's too. The image is in the engine already.

    this process         copies the source, makes the private folders, joins its streams and signals to the container
      |- watcher         waits for this process to be gone, and removes the container then
    the engine
      `- init.py (pid 1) starts the command, reaps, says how it ended

The container is locked to a scratch folder: one whose folder nobody holds is left over, and removed by the next run.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from repro_env.image import layout
from repro_env.io.engine import Engine
from repro_env.io.files import read_regular
from repro_env.model import redact
from repro_env.model.errors import CaptureError, EngineError, ReproEnvError, StoreError
from repro_env.model.run import Launch, Lost, Outcome
from repro_env.run import attached, container, inner, layer, outside, place, scratch, watch
from repro_env.run.console import Log
from repro_env.run.container import Bind, Place
from repro_env.run.interface import Runner, check
from repro_env.run.outside import Bound, Source, Unkept, Written
from repro_env.run.pycache import Pycache
from repro_env.run.redirection import open_logs

_NOTES = 8
"""The most notes that are kept: the command could write the file too."""
_LONGEST = 1 << 16
"""Bytes of the report of `init.py`."""
_LATE = 0.5
"""Seconds that an engine may take to tell that memory was short, after the end."""


class _Ended(msgspec.Struct):
    """What `init.py` says."""

    status: int
    starved: bool | None = None
    refused: tuple[str, list[tuple[str, int]]] | None = None
    notes: tuple[str, ...] = ()
    """What could not be set up, for the record."""


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
        bound: Bound = outside.DEFAULT,
        hidden: Collection[str] | None = None,
        before: Callable[[], None] | None = None,
    ) -> None:
        """`before`: called once, before the command's first output. `layers`, `merged`, `bytecode`, `bound`, `hidden`: as the embedded runner's. `interpreter`: the image's Python, by its path inside.

        `suitable` has to hold for the engine.
        """
        self._layers = layers
        self._engine = engine
        self._interpreter = interpreter
        self._merged = merged
        self._bytecode = bytecode
        self._bound = bound
        self._hidden = hidden
        self._before = before
        self.lost: Lost | None = None
        """As of the embedded runner."""
        self.began = False
        """The command was started, so that there is something to record whatever happens."""
        self.compiled: tuple[str, ...] = ()

    def run(self, launch: Launch, *, folder: Path) -> Outcome:
        """See `interface.Runner`. Raises `EngineError` too: with `began`, the engine went away under the command."""
        check(launch)
        watch.clear(self._engine)
        with contextlib.ExitStack() as stack:
            own = scratch.beside(folder)
            stack.callback(own.remove)
            disk = scratch.local(folder, own)
            if disk is not own:
                stack.callback(disk.remove)
            pycache = Pycache(self._bytecode, disk.folder("own-pycache"), disk.folder("pycache-work"))
            made = place.make(
                launch,
                folder,
                tree=self._tree,
                merged_trees=self._merged,
                interpreter=self._interpreter,
                own=own,
                disk=disk,
                pycache=pycache,
                keep_id=self._engine.facts.product == "Podman" and self._engine.facts.rootless,
            )
            asked = container.to_container(launch, made)
            logs = {} if self._hidden is None else open_logs(folder, self._hidden)
            for log in set(logs.values()):
                stack.callback(log.close)
            rules, written = outside.rules_of(launch), disk.folder("layer")
            shown = {*rules.mounted, *(bind.target for bind in made.binds)}
            of_layer = msgspec.structs.replace(rules, mounted=tuple(sorted(shown)))
            unkept: list[Unkept] = []

            def fetch(name: str) -> None:
                try:
                    unkept.extend(layer.fetch(self._engine, name, written, of_layer, self._bound))
                except (EngineError, OSError) as error:
                    unkept.append(Unkept(Written("/", "", 0), str(error)))

            try:
                with watch.watched(self._engine.address, container.name(launch), (own.path, disk.path)):
                    outcome = self._contained(launch, made, asked, pycache.means, logs, fetch)
            finally:
                private = [bind for bind in made.binds if _is_private(bind)]
                sources = [Source(bind.target, Path(bind.source), is_covered=not bind.is_filled) for bind in private]
                image = [self._merged / launch.image.removeprefix("sha256:")]
                image += [self._tree(launch.siblings)] if launch.siblings else []
                self.lost = outside.keep(folder, [*sources, Source("/", written)], rules, image, self._bound, unkept)
            with contextlib.suppress(OSError, CaptureError):  # what a script did there must not cost the run its end
                self.compiled = tuple(pycache.written())
            return outcome

    def _tree(self, diff_id: str) -> Path:
        path = self._layers(diff_id)
        if path is None:
            raise StoreError("is not in the store", where=diff_id, hint="run `repro-env rebuild`")
        return path

    def _contained(
        self,
        launch: Launch,
        there: Place,
        asked: dict[str, object],
        bytecode: str,
        logs: Mapping[int, Log],
        fetch: Callable[[str], None],
    ) -> Outcome:
        """From the container's making to its end. `fetch` takes what the command wrote in it."""
        engine, control = self._engine, Path(there.control)
        with contextlib.ExitStack() as stack:
            with engine.talk("make the container"):
                made = engine.client.api.create_container_from_config(asked, container.name(launch))["Id"]
            stack.callback(watch.remove, engine, made)
            with engine.talk("start the container"):
                stream = engine.client.api.attach_socket(made, params={"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1})
                stack.callback(stream.close)
                engine.client.api.start(made)
            self.began = True
            pid = _pid(engine, made)
            try:
                attached.Attached(
                    stream=getattr(stream, "_sock", stream),
                    terminal=there.terminal,
                    kill=lambda number: _kill(engine, made, number),
                    resize=lambda rows, columns: _resize(engine, made, rows, columns),
                    started=control / "started",
                    logs=logs,
                    before=self._before,
                ).wait()
                code, starved = _end(engine, made, told=os.path.lexists(control / "ended.json"))
            except (EngineError, OSError) as error:
                _end_alone(pid, made)
                if os.path.lexists(control / "ended.json"):
                    return self._outcome(launch, control, 0, bytecode, starved=False, lost=True)
                what = error.what if isinstance(error, ReproEnvError) else str(error)
                raise EngineError(
                    f"the engine went away while the command ran, so its end is not known ({what})",
                    where=engine.address,
                    hint="what it wrote is in the run's files; the next run removes its container, once the engine is back",
                ) from None
            if not os.path.lexists(control / "started"):
                self.began = False
                raise _not_begun(engine, code)
            fetch(made)
        return self._outcome(launch, control, code, bytecode, starved=starved)

    def _outcome(self, launch: Launch, control: Path, code: int, bytecode: str, *, starved: bool, lost: bool = False) -> Outcome:
        try:
            ended = msgspec.json.decode(read_regular(control / "ended.json", _LONGEST), type=_Ended)
            result = os.waitstatus_to_exitcode(ended.status)
        except (OSError, ValueError, msgspec.MsgspecError):  # init itself was killed: the engine's word alone
            ended, result = None, 128 - code if code > 128 else code
        if ended is not None and ended.refused is not None:
            self.began = False
            raise _refusal(launch, *ended.refused)
        starved = starved or bool(ended and ended.starved)
        facts = self._engine.facts
        means = [f"engine: {facts.product} {facts.version}", "root: the engine's", "workspace: copy", bytecode]
        if launch.gpus:
            means.append(f"gpus: {launch.gpus}")
        if ended is not None:
            means += [redact.line(note) for note in ended.notes[:_NOTES]]
        if lost:
            means.append("engine: went away at the end")
        return Outcome(
            exit_code=result if result >= 0 else 128 - result,
            signal=max(0, -result),
            out_of_memory=starved and result != 0,
            isolation="docker",
            means=tuple(means),
        )


def _is_private(bind: Bind) -> bool:
    """Whether what a container shows there is a directory for the command alone to write in."""
    return not bind.read_only and bind.target != layout.PYCACHE


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
        return inner.no_directory(launch.cwd, refused[0][1])
    path = next((variable.value for variable in launch.env if variable.name == "PATH"), os.defpath)
    return inner.refusal(launch.argv[0], path, refused)
