from __future__ import annotations

import threading
from pathlib import Path

import msgspec
import pytest

from repro_env.runs.records import records
from repro_env.runs.records.processes import Gathering, Place, combine
from repro_env.schema.errors import RecordError, RunError
from repro_env.schema.run import Member, Outcome, Process
from tests.runs.records.examples import end

NAME = "20260701T101530Z-train-0000abcd"
GOOD = end("x").outcome


def member(rank: int, size: int = 2) -> Member:
    return Member(rank=rank, size=size, local_rank=rank, node=f"node{rank}")


def process(rank: int, code: int | None = None) -> Process:
    return Process(rank=rank, local_rank=rank, node=f"node{rank}", exit_code=code)


def failed(code: int, *, interrupted: int = 0) -> Outcome:
    signal = code - 128 if code > 128 else 0
    return msgspec.structs.replace(GOOD, exit_code=code, signal=signal, interrupted=interrupted, methods=(f"by {code}",))


@pytest.fixture
def gathering(tmp_path: Path) -> Gathering:
    (tmp_path / "runs" / NAME).mkdir(parents=True)
    return Gathering(tmp_path / "runs", "key")


def test_the_first_process_makes_the_run_and_the_last_one_records_its_end(tmp_path: Path, gathering: Gathering) -> None:
    directory = tmp_path / "runs" / NAME
    with gathering:
        assert gathering.current() is None
        gathering.announce(directory)
        first = Place(directory, member(0))
    with gathering:
        assert gathering.current() == directory
        second = Place(directory, member(1))
    waiting = threading.Thread(target=first.wait, args=(process(0), Gathering(tmp_path / "runs", "key")))
    waiting.start()
    assert [other.node for other in second.wait(process(1), gathering)] == ["node0", "node1"]
    waiting.join()
    assert not first.leave(gathering, process(0, 0), GOOD)
    assert records.is_running(directory)
    assert second.leave(gathering, process(1, 3), failed(3))
    processes, outcome = second.parts()
    assert ([part.exit_code for part in processes], outcome.exit_code) == ([0, 3], 3)
    second.tidy()
    second.close()
    assert not records.is_running(directory)
    assert [path.name for path in directory.rglob("*") if path.is_file()] == []
    assert not list((tmp_path / "runs/.processes").iterdir())


def test_a_process_that_was_killed_has_no_exit_code(tmp_path: Path, gathering: Gathering) -> None:
    with gathering:
        places = [Place(tmp_path / "runs" / NAME, member(rank)) for rank in (0, 1)]
    for place, rank in zip(places, (0, 1), strict=True):
        threading.Thread(target=place.wait, args=(process(rank), Gathering(tmp_path / "runs", "key")), daemon=True).start()
    places[0].wait(process(0), gathering)
    places[1].close()  # as the kernel does
    assert places[0].leave(gathering, process(0, 0), GOOD)
    processes, outcome = places[0].parts()
    assert ([part.exit_code for part in processes], outcome.exit_code, outcome.signal) == ([0, None], 137, 9)


def test_a_rank_can_come_only_once(tmp_path: Path, gathering: Gathering) -> None:
    with gathering:
        Place(tmp_path / "runs" / NAME, member(0))
        with pytest.raises(RecordError, match="another process of this run has the rank 0"):
            Place(tmp_path / "runs" / NAME, member(0))


def test_no_command_starts_if_a_process_is_missing_or_has_ended(tmp_path: Path, gathering: Gathering) -> None:
    with gathering:
        place, other = (Place(tmp_path / "runs" / NAME, member(rank, 3)) for rank in (0, 1))
    with pytest.raises(RunError, match="ranks 1, 2 of 3 did not start within 0 s"):
        place.wait(process(0), gathering, patience=0)
    other.close()
    with pytest.raises(RunError, match="rank 1 ended before its command could start"):
        place.wait(process(0), gathering)
    assert place.leave(gathering, None, None)
    assert not place.has_started


@pytest.mark.parametrize(
    ("outcomes", "code", "interrupted"),
    [
        ([GOOD, GOOD], 0, 0),
        ([GOOD, failed(3), failed(4)], 3, 0),
        ([failed(143, interrupted=15), failed(4)], 4, 0),
        ([failed(143, interrupted=15), None], 137, 0),
        ([GOOD, failed(138, interrupted=10)], 138, 10),
        ([GOOD, msgspec.structs.replace(GOOD, interrupted=10)], 0, 10),
    ],
    ids=["good", "the first failure", "a failure stops the others", "a killed one", "interrupted", "interrupted, and complete"],
)
def test_the_outcome_of_a_run_is_that_of_the_process_that_failed_by_itself(
    outcomes: list[Outcome | None], code: int, interrupted: int
) -> None:
    outcome = combine(outcomes)
    assert (outcome.exit_code, outcome.interrupted) == (code, interrupted)
    assert outcome.methods == tuple(dict.fromkeys(means for each in outcomes if each is not None for means in each.methods))
