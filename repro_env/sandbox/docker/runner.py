"""The Docker runner: runs a launch in a container of Docker or Podman. The engine already has the image.

    this process         copies the source, makes private directories, connects its streams and signals to the container
      `- watcher         removes the container if this process dies
    the engine
      `- init.py (PID 1) starts the command, reaps processes, reports how the command ended

Each container belongs to a scratch directory, which its run keeps locked. If the lock is free, the run is over, and the next
run removes the container.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from repro_env.io import engine as engines
from repro_env.io.engine import Engine
from repro_env.io.files import read_regular
from repro_env.sandbox import externaloutputs, scratch
from repro_env.sandbox.console import Log
from repro_env.sandbox.docker import container, mounts, streams, watcher
from repro_env.sandbox.docker.container import Resources
from repro_env.sandbox.embedded import firstprocess
from repro_env.sandbox.externaloutputs import Bound, Source
from repro_env.sandbox.redirection import open_logs
from repro_env.sandbox.runner import Image, Runner, check, outcome
from repro_env.schema import redact
from repro_env.schema.environment import values_of
from repro_env.schema.errors import EngineError, ReproEnvError
from repro_env.schema.run import Launch, Outcome

_NOTES = 8
"""How many notes of the report are recorded at most, because the command could write the report too."""
_MAX_REPORT = 1 << 16
"""Bytes that are read of the report of `init.py`."""
_OOM_DELAY = 0.5
"""Seconds that an engine may take after the end to report that memory ran out."""


class _Report(msgspec.Struct):
    """The report of `init.py`."""

    status: int
    starved: bool | None = None
    refused: tuple[str, list[tuple[str, int]]] | None = None
    notes: tuple[str, ...] = ()
    """What `init.py` could not set up, for the record."""


class DockerRunner(Runner):
    """Runs a launch in a container of a local engine, which passed `check_engine`."""

    def __init__(
        self,
        image: Image,
        *,
        address: str = "",
        hidden: Collection[str] | None = None,
        bound: Bound = externaloutputs.DEFAULT,
    ) -> None:
        """Set up a runner. `address`: of the engine; by default the engine that Docker's commands would use."""
        super().__init__(hidden=hidden, bound=bound)
        self._image = image
        self._address = address

    def run(self, launch: Launch, *, directory: Path) -> Outcome:
        """See `Runner`. Also raises `EngineError`; if `began` is set, the engine went away during the command."""
        check(launch)
        with contextlib.ExitStack() as stack:
            engine = stack.enter_context(engines.connect(self._address))
            watcher.remove_stale(engine)
            own, disk = scratch.in_run_and_on_local_disk(directory, stack)
            keep_id = engine.facts.product == "Podman" and engine.facts.rootless
            resources = mounts.make(launch, directory, self._image, own=own, disk=disk, keep_id=keep_id)
            logs = {} if self._hidden is None else open_logs(directory, self._hidden)
            for log in set(logs.values()):
                stack.callback(log.close)
            try:
                with watcher.watch_container(engine.address, container.name(launch), (own.path, disk.path)):
                    result = self._run_container(engine, launch, resources, logs)
            finally:
                private = [bind for bind in resources.binds if not bind.read_only]
                sources = [Source(bind.target, Path(bind.source), is_covered=not bind.is_filled) for bind in private]
                rules = externaloutputs.rules_of(launch)
                self.lost = externaloutputs.keep(directory, sources, rules, self._image.trees(launch), self._bound)
            return result

    def _run_container(self, engine: Engine, launch: Launch, resources: Resources, logs: Mapping[int, Log]) -> Outcome:
        """Create the container and wait for its end."""
        control, request = Path(resources.control), container.to_container(launch, resources)
        with contextlib.ExitStack() as stack:
            with engine.talk("create the container"):
                container_id = engine.client.api.create_container_from_config(request, container.name(launch))["Id"]
            stack.callback(watcher.remove, engine, container_id)
            with engine.talk("start the container"):
                params = {"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1}
                stream = engine.client.api.attach_socket(container_id, params=params)
                stack.callback(stream.close)
                engine.client.api.start(container_id)
            self.began = True
            pid = _pid(engine, container_id)
            try:
                streams.Attachment(
                    stream=getattr(stream, "_sock", stream),
                    terminal=resources.terminal,
                    kill=lambda number: _kill(engine, container_id, number),
                    resize=lambda rows, columns: _resize(engine, container_id, rows, columns),
                    started=control / "started",
                    logs=logs,
                ).wait()
                code, starved = _wait(engine, container_id, is_reported=os.path.lexists(control / "ended.json"))
            except (EngineError, OSError) as error:
                _end_processes(pid, container_id)
                if os.path.lexists(control / "ended.json"):
                    return self._outcome(engine, launch, control, 0, starved=False, lost=True)
                what = error.what if isinstance(error, ReproEnvError) else str(error)
                raise EngineError(
                    f"the engine went away while the command ran, so the command's exit code is unknown ({what})",
                    where=engine.address,
                    hint="its outputs are in the run's files; the next run removes the container when the engine is back",
                ) from None
            if not os.path.lexists(control / "started"):
                self.began = False
                raise _not_started(engine, code)
        return self._outcome(engine, launch, control, code, starved=starved)

    def _outcome(self, engine: Engine, launch: Launch, control: Path, code: int, *, starved: bool, lost: bool = False) -> Outcome:
        try:
            report = msgspec.json.decode(read_regular(control / "ended.json", _MAX_REPORT), type=_Report)
            result = os.waitstatus_to_exitcode(report.status)
        except (OSError, ValueError, msgspec.MsgspecError):  # init was killed: only the engine knows the exit code
            report, result = None, 128 - code if code > 128 else code
        if report is not None and report.refused is not None:
            self.began = False
            raise _refusal(launch, *report.refused)
        starved = starved or bool(report and report.starved)
        means = [f"engine: {engine.facts.product} {engine.facts.version}", "root: engine", "workspace: copy"]
        if self._image.bytecode is None:
            means.append("bytecode: none")
        if launch.gpus:
            means.append(f"gpus: {launch.gpus}")
        if report is not None:
            means += [redact.line(note) for note in report.notes[:_NOTES]]
        if lost:
            means.append("engine: went away at the end")
        return outcome(result, "docker", means, starved=starved)


def check_engine(engine: Engine, gpus: int | str = 0) -> None:
    """Raise `EngineError` if an engine cannot run commands with this machine's files, user and `gpus`."""
    facts = engine.facts
    if facts.remote_reason:
        raise EngineError(
            f"{facts.remote_reason}, so its containers cannot mount the data, source and outputs, which are on this machine",
            where=engine.address,
            hint="use an engine on this machine (unset DOCKER_HOST, docker context use default), or the embedded runner",
        )
    if facts.os and facts.os != "linux":
        raise EngineError(
            f"this engine runs {facts.os} containers", where=engine.address, hint="switch the engine to Linux containers"
        )
    if facts.rootless and facts.product == "Docker" and os.geteuid() != 0:
        raise EngineError(
            "this is a rootless Docker, in which the command cannot run as your user",
            where=engine.address,
            hint="use the embedded runner, rootless Podman, or the system's Docker",
        )
    if gpus and facts.product == "Podman":
        raise EngineError(
            "Podman's Docker-compatible API ignores requests for GPUs",
            where="--gpus",
            hint="use a Docker engine with nvidia-container-toolkit",
        )


def _pid(engine: Engine, container_id: str) -> int:
    """The host PID of the container's first process; 0 if the engine does not report it."""
    with contextlib.suppress(EngineError), engine.talk("inspect the container"):
        return int(engine.client.api.inspect_container(container_id)["State"].get("Pid") or 0)
    return 0


def _end_processes(pid: int, container_id: str) -> None:
    """End the container's processes without the engine, if `pid` still belongs to the container."""
    with contextlib.suppress(OSError, ValueError):
        if pid and container_id in Path(f"/proc/{pid}/cgroup").read_text():
            os.kill(pid, signal.SIGTERM)
            deadline = time.monotonic() + 1
            while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
                time.sleep(0.02)
            os.kill(pid, signal.SIGKILL)


@contextlib.contextmanager
def _ignore_refusal() -> Iterator[None]:
    """Ignore errors that the engine answers with, since the container may have ended. Raise if it does not answer."""
    try:
        yield
    except EngineError as error:
        if not error.status:
            raise


def _kill(engine: Engine, container_id: str, number: int) -> None:
    with _ignore_refusal(), engine.talk("forward a signal"):
        engine.client.api.kill(container_id, signal=number)


def _resize(engine: Engine, container_id: str, rows: int, columns: int) -> None:
    with _ignore_refusal(), engine.talk("resize the terminal"):
        engine.client.api.resize(container_id, rows, columns)


def _wait(engine: Engine, container_id: str, *, is_reported: bool) -> tuple[int, bool]:
    """Wait for the end. Returns the exit code and whether the container ran out of memory. `is_reported`: by `init.py`."""
    with engine.talk("wait for the container"):
        code = int(engine.client.api.wait(container_id)["StatusCode"])
        deadline = time.monotonic() + _OOM_DELAY
        while True:
            state: dict[str, Any] = engine.client.api.inspect_container(container_id)["State"]
            starved = bool(state.get("OOMKilled"))
            if is_reported or starved or code != 128 + signal.SIGKILL or time.monotonic() > deadline:
                return code, starved
            time.sleep(0.05)


def _not_started(engine: Engine, code: int) -> EngineError:
    """The error for a container that ended before `init.py` started the command."""
    return EngineError(
        f"the container ended with exit code {code} before the command started: the engine cannot mount this machine's "
        "directories, or the image's Python does not start in the container",
        where=engine.address,
        hint="use an engine on this machine, or the embedded runner",
    )


def _refusal(launch: Launch, what: str, refused: list[tuple[str, int]]) -> ReproEnvError:
    if what == "cwd":
        return firstprocess.no_directory(launch.cwd, refused[0][1])
    path = values_of(launch.env).get("PATH", os.defpath)
    return firstprocess.refusal(launch.argv[0], path, refused)
