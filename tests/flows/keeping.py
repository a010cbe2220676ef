"""Runs one launch as `exec` does and keeps its bytecode, as whoever it is started as: `keeping.py PLAN`."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from repro_env.flows import bytecode, execute
from repro_env.flows.asked import Asked
from repro_env.model import codec
from repro_env.model.run import Launch
from repro_env.model.spec import Spec
from repro_env.model.talk import Silent
from repro_env.store.digests import hex_of
from repro_env.store.store import Store


class Plan(msgspec.Struct):
    store: str
    folder: str
    launch: Launch
    spec: str
    answer: str
    compiler: str = ""
    """The Python that compiles afterwards, in place of the spec's."""


class Answer(msgspec.Struct):
    exit_code: int
    means: tuple[str, ...]
    compiled: tuple[str, ...]
    """Sources of the image's modules that the run compiled."""
    said: tuple[str, ...]


class Said(Silent):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def __call__(self, text: str, /) -> None:
        self.lines.append(text)


def main() -> None:
    plan = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Plan)
    spec = codec.decode(Path(plan.spec).read_bytes(), Spec, where=plan.spec)
    store = Store.open(Path(plan.store))
    for diff_id in (*plan.launch.layers, plan.launch.snapshot):
        store.boot.see(hex_of(diff_id))  # the tiny layers are not called by what they are
    backend = execute._Embedded(Asked(command=(), here=Path("/"), environ={}), spec, store, Silent())
    outcome = backend.run(plan.launch, folder=Path(plan.folder))
    said = Said()
    if plan.compiler:
        interpreter = msgspec.structs.replace(spec.identity.interpreter, executable=plan.compiler)
        spec = msgspec.structs.replace(spec, identity=msgspec.structs.replace(spec.identity, interpreter=interpreter))
    bytecode.keep(backend.compiled, spec, store=store, tell=said)
    sources = tuple(module.source for module in backend.compiled)
    Path(plan.answer).write_bytes(msgspec.json.encode(Answer(outcome.exit_code, outcome.means, sources, tuple(said.lines))))


if __name__ == "__main__":
    main()
