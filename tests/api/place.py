"""A project with a spec and a store, whose runs write files without an image."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from repro_env.api import execute
from repro_env.api.execute import FinishedRun
from repro_env.runs.records import records
from repro_env.runs.start.origin import Origin
from repro_env.runs.start.request import RunOptions
from repro_env.sandbox.image import Image
from repro_env.sandbox.runner import Runner
from repro_env.sandbox.session import Result
from repro_env.schema.progress import Silent
from repro_env.schema.run import Launch, Outcome
from repro_env.schema.spec import Spec
from repro_env.specs.argument import Opened
from repro_env.store.store import Store
from tests.fakes import specs

Work = Callable[[Launch, Path], int]


class Fake(Runner):
    """A backend that writes the files of a test to the run directory, like the embedded runner."""

    name = "embedded"

    def __init__(self, work: Work | None = None) -> None:
        super().__init__(Image(lambda _: None, merged=Path("/"), interpreter="/"))
        self.work = work
        self.launch: Launch | None = None

    def run(self, launch: Launch, *, directory: Path) -> Outcome:
        self.launch = launch
        code = self.work(launch, directory) if self.work else 0
        return Outcome(exit_code=code, signal=0, out_of_memory=False, isolation="embedded", methods=("root: fake",))

    def execute(self, *_: Any) -> Result:
        raise NotImplementedError


class Place(Silent):
    """A project with a spec next to its source, and a store."""

    def __init__(self, root: Path) -> None:
        self.project = root / "project"
        self.project.mkdir()
        (self.project / "train.py").write_bytes(specs.TREES["source"]["train.py"])
        self.directory = self.project / "repro"
        self.spec = self.at(specs.make(self.directory, {}, prefix=self.project / ".venv"))
        self.store = Store.open(root / "store")
        self.lines: list[str] = []

    def at(self, spec: Spec, **observed: Any) -> Spec:
        assert spec.observed.source is not None
        source = msgspec.structs.replace(spec.observed.source, path=str(self.project))
        return msgspec.structs.replace(spec, observed=msgspec.structs.replace(spec.observed, source=source, **observed))

    def __call__(self, text: str, /) -> None:
        self.lines.append(text)

    def progress(self, total: int, label: str, /) -> Any:
        from contextlib import nullcontext

        self(label)
        return nullcontext(lambda count: None)

    def run(self, *command: str, backend: Fake | None = None, start: Origin | None = None, **options: Any) -> FinishedRun:
        defaults: dict[str, Any] = {
            "command": command or ("train.py",),
            "here": self.project,
            "environ": {"HOME": "/home/ann", "TERM": "x"},
        }
        run_options = RunOptions(**(defaults | options))
        opened = Opened(self.spec, self.directory)
        return execute.run(run_options, opened, start, store=self.store, tell=self, backend=backend or Fake())

    @property
    def runs(self) -> list[Path]:
        return records.directories(self.project / "runs")

    @property
    def talk(self) -> str:
        return "\n".join(self.lines)


def writes(**files: str) -> Work:
    def work(launch: Launch, directory: Path) -> int:
        for name, text in files.items():
            path = directory / "files" / name.replace("__", "/").replace("_", ".")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return 0

    return work
