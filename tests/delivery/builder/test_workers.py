from __future__ import annotations

import os
import signal

import pytest

from repro_env.delivery.builder.workers import Workers
from repro_env.schema.errors import ArtifactError, BuildError
from repro_env.schema.progress import Advance


def serve(job: str, advance: Advance, /) -> None:
    if job == "bad":
        raise ArtifactError("is bad", where="here", hint="do better")
    if job == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if job == "elsewhere" and os.getpid() == PARENT:
        raise AssertionError("ran in the parent")
    advance(len(job))


PARENT = os.getpid()


@pytest.mark.parametrize("count", [0, 2])
def test_jobs_run_and_their_bytes_are_counted(count: int) -> None:
    with Workers(count, serve) as workers:
        for _ in range(5):
            workers.run("four")
        assert workers.done == 20


def test_jobs_run_in_other_processes() -> None:
    with Workers(2, serve) as workers:
        workers.run("elsewhere")


@pytest.mark.parametrize("count", [0, 1])
def test_an_error_is_passed_on_and_the_worker_continues(count: int) -> None:
    with Workers(count, serve) as workers:
        with pytest.raises(ArtifactError) as caught:
            workers.run("bad")
        assert (caught.value.what, caught.value.where, caught.value.hint) == ("is bad", "here", "do better")
        workers.run("good")


def test_a_killed_worker_gives_a_clear_error() -> None:
    with Workers(1, serve) as workers, pytest.raises(BuildError, match="killed"):
        workers.run("die")


def test_no_worker_outlives_the_block() -> None:
    with Workers(2, serve) as workers:
        processes = list(workers._processes)
    assert [process.exitcode for process in processes] == [0, 0]
