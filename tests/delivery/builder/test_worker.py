"""Layers that worker processes make: the same image, the same errors, and nothing is left behind."""

from __future__ import annotations

import os
import pickle
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from repro_env.delivery.builder import build
from repro_env.delivery.builder.build import Build
from repro_env.delivery.builder.sinks import StoreSink, send
from repro_env.delivery.builder.worker import Job, Worker
from repro_env.delivery.targets.ocilayout import Oci
from repro_env.io import process
from repro_env.schema.errors import ArtifactError, BuildError
from repro_env.schema.progress import Silent
from repro_env.schema.spec import Spec
from repro_env.store.store import Store
from tests.fakes import specs, wheels
from tests.fakes.index import configured

PIDS: list[int] = []


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "repro"


@pytest.fixture
def spec(directory: Path, tmp_path: Path) -> Spec:
    made = {name: wheels.make(tmp_path / "wheels", name, files={f"{name}.py": b"X = 1\n" * 99}) for name in ("alpha", "beta")}
    return specs.make(directory, made, carry=list(made), overlay={"opt/env/pyvenv.cfg": b"home = /opt/python/bin\n"})


@pytest.fixture(autouse=True)
def _workers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make even small layers in worker processes, as on a machine with three cores, and note the processes."""
    start = process.PythonProcess
    PIDS.clear()

    def noted(code: str) -> process.PythonProcess:
        started = start(code)
        PIDS.append(started.pid)
        return started

    monkeypatch.setattr(process, "PythonProcess", noted)
    monkeypatch.setattr(build, "WORKER_BYTES", 0)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2})
    with configured(monkeypatch, no_index="1"):
        yield


def rebuild(spec: Spec, directory: Path, store: Store, tell: Silent | None = None) -> Build:
    made = Build(spec, directory, store, StoreSink(store))
    made.run(made.plan(ask=False), tell or Silent(), "rebuilding")
    return made


def is_running(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def temporary(store: Store) -> list[Path]:
    return list((store.root / "temp").iterdir())


def test_workers_make_the_layers_of_this_process(spec: Spec, directory: Path, tmp_path: Path) -> None:
    """One process less than cores is started; the layers, the counted bytes and the image of an output are the same."""
    store, alone = Store.open(), Store.open(tmp_path / "alone")
    made = rebuild(spec, directory, store)
    assert 1 <= len(PIDS) <= 2
    assert not any(map(is_running, PIDS))
    layers = [layer.diff_id for layer in spec.expected.layers]
    assert all(store.layers.path(layer) is not None and store.layers.verify(layer) for layer in layers)
    sent = [send(spec, directory, at, Oci(tmp_path / name, ""), tell=Silent()) for at, name in ((store, "one"), (alone, "two"))]
    assert 2 <= len(PIDS) <= 6
    PIDS.clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "sched_getaffinity", lambda _: {0})
        here = rebuild(spec, directory, alone)
        sent.append(send(spec, directory, Store.open(tmp_path / "third"), Oci(tmp_path / "three", ""), tell=Silent()))
    assert PIDS == []
    assert here.written.total == made.written.total
    assert [output.image.manifest for output in sent] == [sent[0].image.manifest] * 3
    assert sent[0].image_id == spec.expected.image_id


def test_a_small_image_is_made_in_one_process(spec: Spec, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "WORKER_BYTES", 16 << 20)
    rebuild(spec, directory, Store.open())
    assert PIDS == []


def job(spec: Spec, directory: Path, store: Store) -> Job:
    made = Build(spec, directory, store, StoreSink(store))
    task = next(task for task in made.tasks if task.artifacts)
    with made.sources:
        found = made._find(task)
    assert found is not None
    return Job(task, found, store, StoreSink(store))


def test_an_error_of_a_worker_is_raised_and_the_worker_makes_the_next_layer(spec: Spec, directory: Path) -> None:
    store, worker = Store.open(), Worker()
    right = job(spec, directory, store)
    wrong = msgspec.structs.replace(right, task=msgspec.structs.replace(right.task, diff_id="sha256:" + "0" * 64))
    counts: list[int] = []
    for _ in range(2):
        with pytest.raises(BuildError, match="not the expected") as caught:
            worker.make(wrong, counts.append)
        assert caught.value.hint
    assert temporary(store) == []
    assert worker.make(right, counts.append).diff_id == right.task.diff_id
    assert store.layers.verify(right.task.diff_id)
    worker.close()
    assert len(PIDS) == 1
    assert not is_running(PIDS[0])


def test_a_user_who_may_not_start_python_makes_the_layer_in_this_process(
    spec: Spec, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(directory))
    store, worker = Store.open(), Worker()
    counts: list[int] = []
    task = job(spec, directory, store).task
    assert worker.make(job(spec, directory, store), counts.append).diff_id == task.diff_id
    assert store.layers.verify(task.diff_id)
    assert not PIDS
    worker.close()


def test_a_worker_that_was_killed_is_an_error(spec: Spec, directory: Path) -> None:
    store, worker = Store.open(), Worker()
    right = job(spec, directory, store)
    worker.make(right, lambda _: None)
    os.kill(PIDS[0], signal.SIGKILL)
    with pytest.raises(BuildError, match="the process that made the layer was ended"):
        worker.make(right, lambda _: None)
    worker.close()


class Slow(msgspec.Struct, frozen=True):
    """Writes a layer until it is stopped."""

    store: Store

    def write(self, task: object, content: object, advance: object) -> None:
        import time

        with self.store.temp.directory():
            advance(1 << 20)  # type: ignore[operator]
            time.sleep(600)


def test_a_stopped_worker_removes_what_it_wrote(spec: Spec, directory: Path) -> None:
    """Its stdin is closed, as the kernel does if this process is killed."""
    store, worker = Store.open(), Worker()
    right = msgspec.structs.replace(job(spec, directory, store), writer=Slow(store))

    def stop(_: int) -> None:
        if not temporary(store):
            raise ArtifactError("the build was stopped")
        worker.stop()

    with pytest.raises(ArtifactError, match="stopped"):
        worker.make(right, stop)
    worker.close()
    assert not is_running(PIDS[0])
    assert temporary(store) == []


def test_a_copy_of_an_output_holds_only_what_it_needs(tmp_path: Path) -> None:
    (tmp_path / "layout").mkdir()
    copy = pickle.loads(pickle.dumps(Oci(tmp_path / "layout", "tag")))
    assert copy.take(lambda: iter([b"layer"])).size == 5
