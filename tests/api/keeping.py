"""Run a launch as `exec` does, in an image with compiled modules, as the current user: `keeping.py PLAN`."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from pathlib import Path

import msgspec

from repro_env.runs.execution import bytecode, imageprogram
from repro_env.runs.start.request import RunOptions
from repro_env.schema import codec
from repro_env.schema.progress import Advance, Silent, Tell
from repro_env.schema.run import Launch
from repro_env.schema.spec import Spec
from repro_env.store.filenames import hex_of
from repro_env.store.layers import _set_times
from repro_env.store.store import Store


class Plan(msgspec.Struct):
    store: str
    directory: str
    launch: Launch
    spec: str
    answer: str


class Answer(msgspec.Struct):
    exit_code: int
    means: tuple[str, ...]
    bytecode: str
    """The tree that was mounted in the run."""
    compiled: tuple[str, ...]
    """What was compiled, in the order of the runs of the compiler: diff IDs of layers, else the first directory."""
    printed: tuple[str, ...]


class Collected(Silent):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def __call__(self, text: str, /) -> None:
        self.lines.append(text)

    def progress(self, total: int, label: str, /) -> AbstractContextManager[Advance]:
        self(label)
        return super().progress(total, label)


def main() -> None:
    plan = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Plan)
    spec = codec.decode(Path(plan.spec).read_bytes(), Spec, where=plan.spec)
    store = Store.open(Path(plan.store))
    for diff_id in (*plan.launch.layers, plan.launch.snapshot):
        _set_times(store.root / "layers" / hex_of(diff_id))  # as if the store had unpacked it
        store.layers.mark(diff_id)  # the names of the tiny layers are not their digests
    asked, tell = RunOptions(command=(), here=Path("/"), environ={}), Collected()
    compiled: list[str] = []
    compile_part = bytecode._compile

    def counted(part: bytecode.Part, python: Path | None, options: RunOptions, store: Store, tell: Tell) -> str | None:
        compiled.append(part.layer or part.directories[0])
        return compile_part(part, python, options, store, tell)

    bytecode._compile = counted
    tree = bytecode.of_image(spec, asked, store=store, tell=tell)
    outcome = imageprogram.runner(spec, asked, store, bytecode=tree, hidden=()).run(plan.launch, directory=Path(plan.directory))
    answer = Answer(outcome.exit_code, outcome.methods, str(tree), tuple(compiled), tuple(tell.lines))
    Path(plan.answer).write_bytes(msgspec.json.encode(answer))


if __name__ == "__main__":
    main()
