from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from repro_env.compare.outputs.comparison import Accept, File
from repro_env.compare.outputs.ignore import parse
from repro_env.compare.outputs.results import Globs
from repro_env.compare.outputs.verdict import Promise, Repetition, causes, predict, verdict
from repro_env.schema.environment import Variable
from repro_env.schema.run import Count, End, Fact, SourceFact, Start
from tests.compare.outputs import sides
from tests.fakes.tensors import Tensor, events, npy

DIGEST = "sha256:" + "a" * 64
HOST = ("os Debian", "cpu Fast (x86_64)", "isa avx avx2 fma", "cores 8")
START = Start(
    schema="repro-env/run-start/1",
    id="id",
    started="2026-07-01T00:00:00.000Z",
    spec=DIGEST,
    image=DIGEST,
    runner="embedded",
    command=("train.py",),
    cwd="/p",
    seed=0,
    source=SourceFact(path="/p", digest=DIGEST, directory="/p", differs=()),
    data=(),
    env_names=(),
    network=False,
    host=HOST,
    determinism="warn",
    threads=(Variable(name="OMP_NUM_THREADS", value="4"),),
)
END: End = sides.end()
REPETITION = Repetition(host=HOST, threads={"OMP_NUM_THREADS": "4"})


def test_the_same_machine_is_expected_to_be_bitwise() -> None:
    found = predict(START, END, REPETITION)
    assert found.level == "bitwise"
    assert found.sentence == "expected: bitwise identical (same image, code, data, seed, threads and CPU type)"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        (
            {"host": ("cpu Slow (x86_64)", "isa avx avx2 fma", "cores 8")},
            "this CPU is Slow (x86_64), the run's was Fast (x86_64)",
        ),
        ({"host": ("cpu Fast (x86_64)", "isa avx avx2 avx512f fma", "cores 8")}, "different instruction sets (avx512f)"),
        ({"host": ("cpu Fast (x86_64)", "isa avx avx2 fma", "cores 2")}, "this machine has 2 cores, the run's had 8"),
        ({"threads": {"OMP_NUM_THREADS": "2"}}, "OMP_NUM_THREADS is 2, the run's was 4"),
        ({"threads": {}}, "OMP_NUM_THREADS is not set, the run's was 4"),
        ({"host": ()}, "this CPU is unknown"),
    ],
)
def test_a_different_machine_lowers_the_expected_level_with_a_reason(changes: dict[str, object], why: str) -> None:
    found = predict(START, END, msgspec.structs.replace(REPETITION, **changes))
    assert found.level == "numeric"
    assert why in found.sentence
    assert "\n" not in found.sentence


def test_the_prediction_names_a_library_that_lists_directories_itself() -> None:
    fact = Fact(name="directory order", value="sorted, but not by pyarrow")
    found = predict(START, msgspec.structs.replace(END, settings=(fact,)), REPETITION)
    assert found.level == "bitwise"
    assert "the order in which directories are listed (sorted, but not by pyarrow)" in found.sentence


def test_the_prediction_for_a_run_on_the_host_lists_the_risks() -> None:
    on_host = msgspec.structs.replace(START, runner="host", network=True)
    unrecorded = "files outside the source, environment and --data"
    found = predict(on_host, END, REPETITION)
    assert found.sentence.startswith("expected: bitwise identical (same environment, code, data")
    assert unrecorded in found.sentence
    found = predict(on_host, END, msgspec.structs.replace(REPETITION, runner="host", unrecorded=("/data",)))
    for part in (unrecorded, "changed data in /data", "the host runner does not isolate", "the source is at another path"):
        assert part in found.sentence
    of_image = predict(START, END, msgspec.structs.replace(REPETITION, runner="host")).sentence
    assert unrecorded not in of_image
    assert "the host runner does not isolate" in of_image


def test_a_different_gpu_lowers_the_expected_level() -> None:
    end = msgspec.structs.replace(END, settings=(Fact(name="cuda devices", value="H100 (9.0)"),))
    assert predict(START, end, msgspec.structs.replace(REPETITION, devices=("H100",))).level == "bitwise"
    for devices, shown in ((("H200",), "H200"), ((), "no GPU")):
        found = predict(START, end, msgspec.structs.replace(REPETITION, devices=devices))
        assert found.level == "numeric"
        assert f"the run used H100 (9.0), and this machine has {shown}" in found.sentence


def test_an_operation_without_a_deterministic_implementation_lowers_the_expected_level() -> None:
    end = msgspec.structs.replace(END, operations=(Count(what="index_add_", count=3, file="train.py", line=12),))
    found = predict(START, end, REPETITION)
    assert found.level == "numeric"
    assert "index_add_ at train.py:12" in found.sentence
    off = predict(msgspec.structs.replace(START, determinism="off"), END, REPETITION)
    assert off.level == "numeric"


def test_the_prediction_lists_random_bytes_but_not_uuids() -> None:
    random_bytes = Count(what="os.urandom", count=1, file="train.py", line=3)
    uuid = Count(what="uuid.uuid4", count=1, file="torch/x.py", line=3)
    found = predict(START, msgspec.structs.replace(END, system_randomness=(uuid, random_bytes)), REPETITION)
    assert (found.level, "os.urandom at train.py:3" in found.sentence) == ("bitwise", True)
    assert "uuid" not in predict(START, msgspec.structs.replace(END, system_randomness=(uuid,)), REPETITION).sentence
    random = msgspec.structs.replace(END, settings=(Fact(name="address randomisation", value="on"),))
    assert "addresses were random" in predict(START, random, REPETITION).sentence
    assert "the network" in predict(msgspec.structs.replace(START, network=True), END, REPETITION).sentence
    assert "other values of LR" in predict(START, END, msgspec.structs.replace(REPETITION, given=("LR",))).sentence


def test_causes_are_the_settings_that_differ() -> None:
    then = (Fact(name="threads torch", value="2"), Fact(name="torch", value="2.13"))
    now = (Fact(name="threads torch", value="1"), Fact(name="torch", value="2.13"), Fact(name="cudnn", value="9"))
    assert causes(then, now) == ("cudnn is 9, it was unknown", "threads torch is 1, it was 2")
    assert causes((), now) == ()


def result(level: object, kind: str = "result", why: str = "") -> File:
    return msgspec.structs.replace(File(path="w", now="w", kind="result", level=None), level=level, kind=kind, why=why)


def test_runs_without_a_comparison_are_not_the_same() -> None:
    for files in ((), (result("bitwise", "console"),), (result(None, "ignored"),), (result(None),)):
        found = verdict(files, sides.BITWISE)
        assert (found.level, found.same) == (None, False)
        assert found.sentence.startswith("nothing was compared: ")


def test_a_failure_without_results_is_named() -> None:
    found = verdict([result(None, "console")], Promise(level="bitwise", sentence=""), failure="the command failed in both runs")
    assert not found.same
    assert found.sentence.startswith("nothing was compared: the command failed in both runs; the run has only console output")


def test_runs_with_a_result_that_could_not_be_compared_are_not_the_same() -> None:
    found = verdict((result("bitwise"), result(None, why="it is not a regular file")), sides.BITWISE)
    assert (found.level, found.same) == ("bitwise", False)
    assert "1 result could not be compared: w" in found.sentence


def test_the_worst_result_decides_and_the_console_does_not() -> None:
    assert verdict((result("bitwise"), result("numeric"), result("different", "console")), sides.BITWISE).level == "numeric"
    found = verdict((result("bitwise"), result("different", "console")), sides.BITWISE)
    assert (found.level, found.same) == ("bitwise", True)
    assert "the console output differs" in found.sentence


@pytest.mark.parametrize(
    ("level", "promise", "same"),
    [
        ("bitwise", sides.BITWISE, True),
        ("numeric", sides.BITWISE, False),
        ("bitwise", sides.NUMERIC, True),
        ("equal except for", sides.BITWISE, True),
        ("numeric", sides.NUMERIC, True),
        ("different", sides.NUMERIC, False),
    ],
)
def test_the_runs_are_the_same_if_the_expected_level_is_reached(level: str, promise: Promise, same: bool) -> None:
    found = verdict((result(level, why="x"),), promise)
    assert found.same is same
    assert ("as expected" in found.sentence) is (level == "numeric" and same)


def test_runs_with_different_exit_codes_are_different_even_if_their_files_are_equal() -> None:
    found = verdict((result("bitwise"),), sides.BITWISE, problem="the command ended with exit code 1, then with 0")
    assert (found.level, found.same) == ("different", False)
    assert found.sentence == "different: the command ended with exit code 1, then with 0"


def test_every_file_is_a_result_unless_the_user_ignores_it() -> None:
    globs = Globs(results=("stdout.log",), ignored=(parse("out"), parse("a.json:time")))
    assert [globs.of(path) for path in ("train.log", "events.out.tfevents.1.h.2.0", "out/model.pt", "a.json")] == [
        *("result", "result"),
        *("ignored", "result"),
    ]
    assert [globs.of(path, "console") for path in ("stdout.log", "stderr.log")] == ["result", "console"]


def test_evidence_explains_nothing_in_a_strict_file(tmp_path: Path) -> None:
    then, now = (events([(1, "loss", 0.5)], at=at) for at in (1.0, 9.0))
    name = "events.out.tfevents.1.h.1.0"
    assert sides.judge(tmp_path / "a", {name: then}, {name: now}).level == "equal except for"
    assert sides.judge(tmp_path / "b", {name: then}, {name: now}, results=("*",)).level == "different"


def test_the_verdict_counts_files_that_are_left_out(tmp_path: Path) -> None:
    found = sides.judge(tmp_path, {"a": b"1", "b": b"1"}, {"a": b"1", "b": b"2"}, ignored=("b",))
    assert (found.level, found.same) == ("equal except for", True)
    assert "1 file left out" in found.sentence


def test_links_and_removed_files_count(tmp_path: Path) -> None:
    w = {"w.npy": npy(Tensor([1]))}
    assert sides.judge(tmp_path / "a", w, w, links=(("last -> out/1/w",), ("last -> out/1/w",))).same
    assert sides.judge(tmp_path / "b", w, w, links=(("last -> epoch=1",), ("last -> epoch=2",))).level == "different"
    assert sides.judge(tmp_path / "c", w, w, links=(("last -> a",), ())).level == "different"
    unread = sides.judge(tmp_path / "d", w, w, links=(("p (Permission denied)",), ("p (Permission denied)",)))
    assert (unread.level, unread.same) == ("bitwise", False)
    assert sides.judge(tmp_path / "e", w, w, removed=(("old.txt",), ())).level == "different"


def test_a_recorded_file_that_changed_after_the_run_is_different(tmp_path: Path) -> None:
    from repro_env.compare.outputs import results

    left = sides.side(tmp_path / "l", {"w.npy": npy(Tensor([1]))})
    right = sides.side(tmp_path / "r", {"w.npy": npy(Tensor([2]))})
    (tmp_path / "l" / "w.npy").write_bytes(npy(Tensor([2])))
    (found,) = results.compare(left, right, results.Globs(), sides.look)
    assert found.level == "different"
    assert "has changed since the run" in found.why
    (tmp_path / "l" / "w.npy").unlink()
    (found,) = results.compare(left, right, results.Globs(), sides.look)
    assert "cannot be read" in found.why


def test_event_files_are_compared_by_their_values(tmp_path: Path) -> None:
    name = "events.out.tfevents.1.h.1.0"
    left = {name: events([(1, "loss", 0.5), (2, "loss", 0.25)], at=1.0)}
    right = {name: events([(1, "loss", 0.5), (2, "loss", 0.75)], at=9.0)}
    (found,) = sides.judge(tmp_path, left, right).files
    assert (found.level, found.why) == ("different", "loss differs")
    assert found.shown == ("- event 2, loss: 0.25", "+ event 2, loss: 0.75")
    assert found.accept == (Accept(f"{name}:loss", "0.25", "0.75"),)
