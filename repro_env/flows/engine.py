"""The Docker runner's part of `exec`: an engine that can be used, the image in it, and the run."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path

from repro_env.flows.asked import Asked, secrets_of
from repro_env.image import config, tar
from repro_env.io import engine as engines
from repro_env.model.errors import ReproEnvError
from repro_env.model.run import Launch, Lost, Outcome
from repro_env.model.spec import Spec
from repro_env.model.talk import Tell
from repro_env.output import engine as output
from repro_env.output.engine import Layer
from repro_env.run import bytecode
from repro_env.run.bytecode import Module
from repro_env.run.docker import DockerRunner, suitable
from repro_env.store.store import Store


def check(asked: Asked) -> None:
    """Whether there is an engine that this can run in; before anything is rebuilt for it. Raises `EngineError`."""
    with engines.opened(environ=asked.environ) as engine:
        suitable(engine, asked.gpus)


def load(asked: Asked, spec: Spec, store: Store, tell: Tell) -> None:
    """Put the image into the engine, from the store's unpacked layers, unless it is there.

    Raises `EngineError`, `BuildError`, `StoreError`.
    """
    layers = [_layer(store, one.diff_id) for one in spec.expected.layers]
    with engines.opened(environ=asked.environ) as engine:
        if not output.has(engine, spec.expected.image_id):
            data = config.config(spec.identity, [one.diff_id for one in spec.expected.layers])
            with tell.progress(0, f"loading the image into {engine.facts.product}"):
                output.load(engine, data, layers, output.default_name(spec.expected.image_id))


def _layer(store: Store, diff_id: str) -> Layer:
    def size() -> int:
        found = 2 * tar.BLOCK
        for entry, _ in store.layers.members(diff_id):
            found += len(tar.header(entry)) + (-(-entry.size // tar.BLOCK) * tar.BLOCK if entry.kind == "file" else 0)
        return found

    def chunks() -> Iterable[bytes]:
        return tar.write(store.layers.members(diff_id))

    return Layer(diff_id, size, chunks)


class Docker:
    """The Docker runner as `flows.execute.Backend`."""

    def __init__(self, asked: Asked, spec: Spec, store: Store, tell: Tell) -> None:
        self._asked = asked
        self._spec = spec
        self._store = store
        self._tell = tell
        self.began = False
        self.compiled: tuple[Module, ...] = ()
        self.lost: Lost | None = None

    def run(self, launch: Launch, *, folder: Path) -> Outcome:
        store = self._store
        shown = store.bytecode.shown(launch.image, hidden=self._asked.hidden)
        with ExitStack() as waiting, engines.opened(environ=self._asked.environ) as engine, shown as kept:
            if not self._asked.repeats:
                label = "waiting for output" + ("; a first run compiles what it imports" if kept is None else "")
                waiting.enter_context(self._tell.progress(0, label))
            runner = DockerRunner(
                store.layers.path,
                engine=engine,
                interpreter=self._spec.identity.interpreter.executable,
                merged=store.root / "merged",
                bytecode=kept,
                bound=self._asked.keep_outside,
                hidden=secrets_of(self._asked),
                before=waiting.close,
            )
            try:
                outcome = runner.run(launch, folder=folder)
            except ReproEnvError:
                self.began = runner.began
                raise
            self.lost = runner.lost
        if not outcome.signal:
            self.compiled = bytecode.modules(runner.compiled, self._spec, launch)
        return outcome

    def collect(self, workspace: Path, snapshot: Path, files: Path) -> tuple[str, ...]:  # noqa: ARG002
        from repro_env.run.workspace import harvest

        return harvest(files, snapshot)
