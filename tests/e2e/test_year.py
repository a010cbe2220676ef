"""A year of weekly jobs on one project, with four events: each is reported in its week, with its cause, and nothing else is.

The clock is moved: `due` gets the time, and the times that `verify` writes are changed to it. Everything else is real: runs, data, an
index on this machine, whose wheels disappear and get advisories. Only the other CPU is a text, because this machine has one.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from repro_env.api import due as use_case
from repro_env.policy.due import Reason
from repro_env.runs.start.inputs import host_facts
from repro_env.store.store import Store
from tests.e2e import parts
from tests.e2e.parts import Project
from tests.fakes import wheels as fake
from tests.fakes.index import Index, through

START = datetime(2026, 11, 30, tzinfo=timezone.utc)
OTHER_CPU = tuple(f"cpu Other CPU @ 1 GHz{line[len('cpu') :]}" if line.startswith("cpu ") else line for line in host_facts())
TRAIN = """\
import json, labels, shapes
numbers = [float(line) for line in open("/data/numbers.txt")]
json.dump({"accuracy": sum(numbers) / len(numbers)}, open("metrics.json", "w"))
"""
SETTINGS = """\
[tool.repro-env.due]
every = "11w"

[tool.repro-env.protocol.numbers]
command = ["train.py"]
metrics = {accuracy = ">= 0.5"}
"""


class Year:
    """The project, and what its team does in a week."""

    def __init__(self, project: Project, data: Path, env: dict[str, str]) -> None:
        self.project = project
        self.data = data
        self.env = env
        self.host = host_facts()
        self.verified = 0

    @property
    def runs(self) -> Path:
        return self.project.directory / "runs"

    def install(self, *packages: str) -> None:
        words = [sys.executable, "-m", "pip", "--python", str(self.project.python), "install", "-qq", *packages]
        subprocess.run(words, check=True, env=parts.environ(self.project.store, self.env))

    def capture(self, *options: str) -> None:
        self.project.capture(*options, "--data", f"{self.data}:/data", env=self.env)

    def train(self, now: datetime) -> None:
        self.project.run("exec", "--data", f"{self.data}:/data", "train.py", env=self.env)
        self.verify(now)

    def verify(self, now: datetime) -> None:
        """Verify the last run, at another time and on another machine."""
        self.project.run("verify", env=self.env)
        self.verified += 1
        newest = max((self.runs / "latest").resolve().glob("verified/*.json"), key=lambda path: path.stat().st_mtime_ns)
        verdict = json.loads(newest.read_text())
        newest.unlink()
        moved = newest.with_name(f"{now:%Y%m%dT%H%M%SZ}-{newest.name.partition('-')[2]}")
        moved.write_text(json.dumps({**verdict, "written": f"{now:%Y-%m-%dT%H:%M:%SZ}", "host": list(self.host)}))

    def due(self, now: datetime) -> tuple[Reason, ...]:
        """What is due at a time, and nothing unknown."""
        found = use_case.due(self.runs, ask=True, now=now, store=Store.open(self.project.store))
        (run,) = found.runs
        assert run.unknown == ()
        return run.reasons


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    for name, version in (("labels", "1.0"), ("labels", "1.1"), ("shapes", "2.0")):
        fake.make(wheels, name, version)
    with Index(wheels, yanked=False, advisories={}) as index:
        yield index


@pytest.mark.index
def test_a_year_of_weekly_jobs(tmp_path: Path, index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    env = through(index, "mirror-a.test", tmp_path / "caches")
    for name, text in env.items():
        monkeypatch.setenv(name, text)
    directory, data = tmp_path / "project", tmp_path / "data"
    project = parts.project(directory, parts.venv(directory / ".venv", own_pip=False), tmp_path / "store")
    data.mkdir()
    (data / "numbers.txt").write_text("1\n0\n1\n")
    (directory / "train.py").write_text(TRAIN)
    (directory / "pyproject.toml").write_text(SETTINGS)
    monkeypatch.chdir(directory)
    year = Year(project, data, env)
    year.install("labels==1.0", "shapes==2.0")
    year.capture()
    year.train(START)
    monkeypatch.setattr(use_case, "host_facts", lambda: year.host)
    reported: dict[int, list[tuple[str, str]]] = {}
    for week in range(1, 53):
        now = START + timedelta(weeks=week)
        if week == 10:
            (data / "numbers.txt").write_text("1\n0\n1\n1\n")
        elif week == 20:
            assert index.advisories is not None
            index.advisories["labels/1.0"] = ["PYSEC-2026-1"]
        elif week == 30:
            (index.directory / "shapes-2.0-py3-none-any.whl").unlink()
        elif week == 40:
            year.host = OTHER_CPU
        reasons = year.due(now)
        causes = {reason.cause for reason in reasons}
        if causes - {"interval"}:
            reported[week] = [(reason.cause, reason.text) for reason in reasons if reason.cause != "interval"]
        # What the team does then.
        if "vulnerable" in causes:
            year.install("labels==1.1")
            year.capture()
            year.train(now)
        elif "download" in causes:
            year.capture("--ask")  # which bundles what cannot be downloaded any more
            year.train(now)
        elif "data" in causes:
            year.capture()  # which accepts them
            year.train(now)
        elif causes:
            year.verify(now)
    assert [*reported] == [10, 20, 30, 40]
    assert [[cause for cause, _ in found] for found in reported.values()] == [["data"], ["vulnerable"], ["download"], ["machine"]]
    for week, text in ((10, str(data)), (20, "labels 1.0 is vulnerable (PYSEC-2026-1)"), (30, "shapes"), (40, "Other CPU")):
        assert text in reported[week][0][1]
    assert year.verified == 1 + 3 + 1 + 1  # after each training, on the other CPU, and in the last week
