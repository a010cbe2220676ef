"""The Docker runner: runs a launch in a container of Docker or Podman. The engine already has the image.

    this process         copies the source, makes private directories, forwards streams and signals
      |  a socket
    the engine
      `- init.py (PID 1) connects to the socket, starts the command, reaps processes, reports how the command ended

The engine only starts the container and removes it at its end. If this process dies, the socket is closed, and the container ends.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import secrets
import tarfile
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from repro_env.io import engine as engines
from repro_env.io.engine import Engine
from repro_env.sandbox import handover, mounts
from repro_env.sandbox.docker import container
from repro_env.sandbox.doctor import Finding
from repro_env.sandbox.image import Image, image_means
from repro_env.sandbox.limits import Group
from repro_env.sandbox.runner import Runner
from repro_env.sandbox.session import Result
from repro_env.sandbox.streams import Streams
from repro_env.schema import redact
from repro_env.schema.errors import EngineError
from repro_env.schema.run import Launch, Limits
from repro_env.schema.rundirectory import SCRATCH
from repro_env.schema.spec import Spec

_TIMEOUT = 5.0
"""Seconds in which `doctor` waits for the answer of an engine."""
_SECOND_TRY = 30.0
"""Seconds that a container may run that is started again to see why it ends."""


class DockerRunner(Runner):
    """Runs a launch in a container of a local engine, which passed `check_engine`."""

    name = "docker"
    reads_ahead = True
    enforces_limits = False

    def __init__(self, image: Image, *, address: str = "", hidden: Collection[str] | None = None) -> None:
        """Set up a runner. `address`: of the engine; by default the engine that Docker's commands would use."""
        super().__init__(image, hidden=hidden)
        self._address = address

    @classmethod
    def find(cls) -> Finding:
        """See `Runner`."""
        name = "container engine"
        try:
            with engines.connect(timeout=_TIMEOUT) as engine:
                facts = engine.facts
                name = f"{facts.product.lower()} engine"
                check_engine(engine)
                return Finding(name=name, state="ok", text=f"{facts.product} {facts.version} at {engine.address}")
        except EngineError as error:
            text = f"{error.what} ({error.where}); only --runner docker and --output docker: need an engine"
            return Finding(name=name, state="absent", text=text, fix=error.hint)

    @classmethod
    def check(cls, spec: Spec, requested: Limits) -> tuple[str, ...]:  # noqa: ARG003
        """See `Runner`. The engine enforces the limits."""
        with engines.connect() as engine:
            check_engine(engine)
            return tuple(ignored_limits(engine, requested))

    @classmethod
    @contextlib.contextmanager
    def tiny_image(cls, tree: Path, digest: str) -> Iterator[str]:  # noqa: ARG003
        """See `Runner`. The engine has the image as long as the block runs."""
        archive = io.BytesIO()
        with tarfile.open(fileobj=archive, mode="w") as tar:
            tar.add(tree, arcname="/")
        with engines.connect() as engine:
            with engine.talk("import a tiny image"):
                lines = engine.client.api.import_image_from_data(
                    archive.getvalue(), changes=[f"LABEL repro-env-doctor={secrets.token_hex(8)}"]
                )
            image = str(json.loads(lines.splitlines()[-1])["status"])
            try:
                yield image
            finally:
                with engine.talk("remove the tiny image"):
                    engine.client.api.remove_image(image, force=True)

    def execute(self, launch: Launch, directory: Path, streams: Streams, group: Group, stack: contextlib.ExitStack) -> Result:  # noqa: ARG002
        """See `Runner`. Also raises `EngineError`."""
        engine = stack.enter_context(engines.connect(self._address))
        keep_id = engine.facts.product == "Podman" and engine.facts.rootless
        control = directory / SCRATCH / "control"
        control.mkdir(mode=0o700)
        made = mounts.make(launch, directory, self._image, control)
        image = engine.find_image(launch.image) or launch.image
        request = container.to_container(launch, image, made, self._image.interpreter, keep_id=keep_id)
        listener = stack.enter_context(handover.listen(control))
        with engine.talk("create the container"):
            created = engine.client.api.create_container_from_config(request, f"repro-env-{launch.run_id}")
        container_id = created["Id"]
        stack.callback(_remove, engine, container_id)
        with engine.talk("start the container"):
            engine.client.api.start(container_id)

        def failure() -> EngineError | None:
            if _is_running(engine, container_id):
                return None
            what = f"the container ended before the command started: {_reason(engine, request)}"
            return EngineError(what, where=engine.address, hint="use an engine on this machine, or the embedded runner")

        result = handover.attend(listener, launch, streams, failure)
        means = [f"engine: {engine.facts.product} {engine.facts.version}", *ignored_limits(engine, launch.limits)]
        # For example, that the engine ignores a limit because the kernel does not support it.
        means += [redact.line(f"engine: {warning}") for warning in created.get("Warnings") or ()]
        result.methods = (*means, *image_means(self._image, launch))
        return result


def ignored_limits(engine: Engine, limits: Limits) -> list[str]:
    """Return a note for each of these limits that the engine would ignore."""
    wanted = {"memory": limits.memory, "cpus": limits.cpus}
    why = "not limited, because rootless Podman needs control groups of version 2 for this"
    return [f"{name}: {why}" for name, limit in wanted.items() if limit and not engine.facts.has_limits]


def _is_running(engine: Engine, container_id: str) -> bool:
    with contextlib.suppress(EngineError), engine.talk("inspect the container"):
        return bool(engine.client.api.inspect_container(container_id)["State"]["Running"])
    return False


def _reason(engine: Engine, request: Mapping[str, Any]) -> str:
    """Return why a container ends before it has a command. It is started again with a log, which others have not, and kept."""
    kept = {"AutoRemove": False, "LogConfig": {"Type": "json-file", "Config": {}}}
    output = b""
    try:
        with contextlib.ExitStack() as stack, engine.talk("start the container"):
            container_id = engine.client.api.create_container_from_config(
                {**request, "HostConfig": request["HostConfig"] | kept}
            )["Id"]
            stack.callback(_remove, engine, container_id)
            engine.client.api.start(container_id)
            code = engine.client.api.wait(container_id, timeout=_SECOND_TRY)["StatusCode"]
            output = engine.client.api.logs(container_id)
    except EngineError as error:
        return error.what
    lines = output.decode(errors="replace").split("\n")
    last = next((line for line in reversed(lines) if line.strip()), "it printed nothing")
    return redact.line(f"{last} (exit code {code})")


def _remove(engine: Engine, container_id: str) -> None:
    """Remove a container, even if it runs. Does nothing if it does not exist."""
    with contextlib.suppress(EngineError), engine.talk("remove the container"):
        engine.client.api.remove_container(container_id, v=True, force=True)


def check_engine(engine: Engine) -> None:
    """Raise `EngineError` if an engine cannot run commands with this machine's files and user."""
    facts = engine.facts
    if facts.remote_reason:
        raise EngineError(
            f"{facts.remote_reason}, so its containers cannot mount the data, source and outputs, which are on this machine",
            where=engine.address,
            hint="use an engine on this machine (unset DOCKER_HOST, docker context use default), or the embedded runner",
        )
    if facts.rootless and facts.product == "Docker" and os.geteuid() != 0:
        raise EngineError(
            "this is a rootless Docker, in which the command cannot run as your user",
            where=engine.address,
            hint="use the embedded runner, rootless Podman, or the system's Docker",
        )
