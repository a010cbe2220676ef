from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from repro_env.flows.results import Globs
from repro_env.model.environment import Variable
from repro_env.model.run import Count, End, Fact, SourceFact, Start
from repro_env.verify.compared import File
from repro_env.verify.ignore import parse
from repro_env.verify.verdict import Here, Promise, causes, promised, verdict
from tests.fakes.tensors import Tensor, events, npy
from tests.verify import sides

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
    given=(),
    network=False,
    host=HOST,
    determinism="warn",
    threads=(Variable(name="OMP_NUM_THREADS", value="4"),),
)
END: End = sides.end()
HERE = Here(host=HOST, threads={"OMP_NUM_THREADS": "4"})


def test_the_same_machine_promises_every_bit() -> None:
    found = promised(START, END, HERE)
    assert found.level == "bitwise"
    assert found.sentence == "expected: bitwise identical (same image, code, data, seed, threads and CPU type)"


@pytest.mark.parametrize(
    ("here", "why"),
    [
        (
            {"host": ("cpu Slow (x86_64)", "isa avx avx2 fma", "cores 8")},
            "this CPU is Slow (x86_64), the run's was Fast (x86_64)",
        ),
        ({"host": ("cpu Fast (x86_64)", "isa avx avx2 avx512f fma", "cores 8")}, "other instruction sets (avx512f)"),
        ({"host": ("cpu Fast (x86_64)", "isa avx avx2 fma", "cores 2")}, "this machine has 2 cores, the run's had 8"),
        ({"threads": {"OMP_NUM_THREADS": "2"}}, "OMP_NUM_THREADS is 2, the run's was 4"),
        ({"threads": {}}, "OMP_NUM_THREADS is not set, the run's was 4"),
        ({"host": ()}, "this CPU is not known"),
    ],
)
def test_another_machine_promises_less_and_says_why_in_one_sentence(here: dict[str, object], why: str) -> None:
    found = promised(START, END, msgspec.structs.replace(HERE, **here))
    assert found.level == "numeric"
    assert why in found.sentence
    assert "\n" not in found.sentence


def test_a_run_on_the_host_names_what_is_not_held() -> None:
    on_host = msgspec.structs.replace(START, runner="host", network=True)
    unrecorded = "files that the recorded run read outside of its source, environment and --data"
    found = promised(on_host, END, HERE)
    assert found.sentence.startswith("expected: bitwise identical (same environment, code, data")
    assert unrecorded in found.sentence
    again = promised(on_host, END, msgspec.structs.replace(HERE, runner="host", unrecorded=("/data",)))
    for part in (unrecorded, "other data in /data", "isolation is none on the host", "the source is at another path"):
        assert part in again.sentence
    of_image = promised(START, END, msgspec.structs.replace(HERE, runner="host")).sentence
    assert unrecorded not in of_image
    assert "isolation is none on the host" in of_image


def test_another_gpu_promises_less() -> None:
    end = msgspec.structs.replace(END, effective=(Fact(name="cuda devices", value="H100 (9.0)"),))
    assert promised(START, end, msgspec.structs.replace(HERE, devices=("H100",))).level == "bitwise"
    for devices, said in ((("H200",), "H200"), ((), "no GPU that can be seen")):
        found = promised(START, end, msgspec.structs.replace(HERE, devices=devices))
        assert found.level == "numeric"
        assert f"the run was on H100 (9.0), and here is {said}" in found.sentence


def test_what_ran_without_a_repeatable_form_promises_less() -> None:
    end = msgspec.structs.replace(END, operations=(Count(what="index_add_", count=3, file="train.py", line=12),))
    found = promised(START, end, HERE)
    assert found.level == "numeric"
    assert "index_add_ at train.py:12" in found.sentence
    off = promised(msgspec.structs.replace(START, determinism="off"), END, HERE)
    assert off.level == "numeric"


def test_what_no_seed_reaches_is_said_and_names_are_not() -> None:
    asked = Count(what="os.urandom", count=1, file="train.py", line=3)
    name = Count(what="uuid.uuid4", count=1, file="torch/x.py", line=3)
    found = promised(START, msgspec.structs.replace(END, entropy=(name, asked)), HERE)
    assert (found.level, "os.urandom at train.py:3" in found.sentence) == ("bitwise", True)
    assert "uuid" not in promised(START, msgspec.structs.replace(END, entropy=(name,)), HERE).sentence
    random = msgspec.structs.replace(END, effective=(Fact(name="address randomisation", value="on"),))
    assert "addresses were random" in promised(START, random, HERE).sentence
    assert "the network" in promised(msgspec.structs.replace(START, network=True), END, HERE).sentence
    assert "another value of LR" in promised(START, END, msgspec.structs.replace(HERE, given=("LR",))).sentence


def test_compiling_what_was_compiled_then_is_said_beforehand() -> None:
    here = msgspec.structs.replace(HERE, compiles=True)
    found = promised(START, END, here)
    assert found.level == "bitwise"
    assert found.sentence.endswith("since the run found its modules compiled and no run did here yet")
    random = msgspec.structs.replace(END, effective=(Fact(name="address randomisation", value="on"),))
    assert promised(START, random, here).sentence.count("hashed by address") == 1
    assert "hashed by address" not in promised(msgspec.structs.replace(START, determinism="off"), END, here).sentence


def test_causes_are_what_was_in_force_in_one_run_alone() -> None:
    then = (Fact(name="threads torch", value="2"), Fact(name="torch", value="2.13"))
    now = (Fact(name="threads torch", value="1"), Fact(name="torch", value="2.13"), Fact(name="cudnn", value="9"))
    assert causes(then, now) == ("cudnn is 9, it was not known", "threads torch is 1, it was 2")
    assert causes((), now) == ()


def one(level: object, kind: str = "result", why: str = "") -> File:
    return msgspec.structs.replace(File(path="w", now="w", kind="result", level=None), level=level, kind=kind, why=why)


def test_nothing_compared_is_never_the_same() -> None:
    for files in ((), (one("bitwise", "console"),), (one(None, "ignored"),), (one(None),)):
        found = verdict(files, sides.BITWISE)
        assert (found.level, found.same) == (None, False)
        assert found.sentence.startswith("nothing was compared: ")


def test_one_result_that_could_not_be_compared_spoils_the_rest() -> None:
    found = verdict((one("bitwise"), one(None, why="it is no file")), sides.BITWISE)
    assert (found.level, found.same) == ("bitwise", False)
    assert "1 result could not be compared: w" in found.sentence


def test_the_worst_result_decides_and_what_was_printed_does_not() -> None:
    assert verdict((one("bitwise"), one("numeric"), one("different", "console")), sides.BITWISE).level == "numeric"
    found = verdict((one("bitwise"), one("different", "console")), sides.BITWISE)
    assert (found.level, found.same) == ("bitwise", True)
    assert "what was printed differs" in found.sentence


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
def test_it_is_the_same_when_the_promise_is_kept(level: str, promise: Promise, same: bool) -> None:
    found = verdict((one(level, why="x"),), promise)
    assert found.same is same
    assert ("which is what was promised" in found.sentence) is (level == "numeric" and same)


def test_another_exit_code_is_different_whatever_was_written() -> None:
    found = verdict((one("bitwise"),), sides.BITWISE, problem="the command ended with exit code 1, then with 0")
    assert (found.level, found.same) == ("different", False)
    assert found.sentence == "different: the command ended with exit code 1, then with 0"


def test_every_file_is_a_result_but_what_the_user_leaves_out() -> None:
    kinds = Globs(results=("stdout.log",), ignored=(parse("out"), parse("a.json:time")))
    assert [kinds.of(path) for path in ("train.log", "events.out.tfevents.1.h.2.0", "out/model.pt", "a.json")] == [
        *("result", "result"),
        *("ignored", "result"),
    ]
    assert [kinds.of(path, "console") for path in ("stdout.log", "stderr.log")] == ["result", "console"]


def test_nothing_is_explained_in_what_the_user_names(tmp_path: Path) -> None:
    then, now = (events([(1, "loss", 0.5)], at=at) for at in (1.0, 9.0))
    name = "events.out.tfevents.1.h.1.0"
    assert sides.judged(tmp_path / "a", {name: then}, {name: now}).level == "equal except for"
    assert sides.judged(tmp_path / "b", {name: then}, {name: now}, results=("*",)).level == "different"


def test_a_file_that_is_left_out_is_named_in_the_verdict(tmp_path: Path) -> None:
    found = sides.judged(tmp_path, {"a": b"1", "b": b"1"}, {"a": b"1", "b": b"2"}, ignored=("b",))
    assert (found.level, found.same) == ("equal except for", True)
    assert "1 file left out" in found.sentence


def test_links_and_removed_files_count(tmp_path: Path) -> None:
    w = {"w.npy": npy(Tensor([1]))}
    same = sides.judged(tmp_path / "a", w, w, links=(("last -> out/1/w",), ("last -> out/1/w",)))
    assert same.same
    other = sides.judged(tmp_path / "b", w, w, links=(("last -> epoch=1",), ("last -> epoch=2",)))
    assert other.level == "different"
    assert sides.judged(tmp_path / "c", w, w, links=(("last -> a",), ())).level == "different"
    unread = sides.judged(tmp_path / "d", w, w, links=(("p (Permission denied)",), ("p (Permission denied)",)))
    assert (unread.level, unread.same) == ("bitwise", False)
    assert sides.judged(tmp_path / "e", w, w, removed=(("old.txt",), ())).level == "different"


def test_a_recorded_file_that_was_changed_since_is_never_the_same(tmp_path: Path) -> None:
    from repro_env.flows import results

    left = sides.side(tmp_path / "l", {"w.npy": npy(Tensor([1]))})
    right = sides.side(tmp_path / "r", {"w.npy": npy(Tensor([2]))})
    (tmp_path / "l" / "w.npy").write_bytes(npy(Tensor([2])))
    (found,) = results.compare(left, right, results.Globs(), sides.look)
    assert found.level == "different"
    assert "was changed since the run" in found.why
    (tmp_path / "l" / "w.npy").unlink()
    (found,) = results.compare(left, right, results.Globs(), sides.look)
    assert "cannot be read" in found.why


def test_event_files_differ_by_their_values(tmp_path: Path) -> None:
    name = "events.out.tfevents.1.h.1.0"
    left = {name: events([(1, "loss", 0.5), (2, "loss", 0.25)], at=1.0)}
    right = {name: events([(1, "loss", 0.5), (2, "loss", 0.75)], at=9.0)}
    (found,) = sides.judged(tmp_path, left, right).files
    assert (found.level, found.why) == ("different", "loss differs")
    assert found.shown == ("- event 2, loss: 0.25", "+ event 2, loss: 0.75")
    assert found.accept == (f"{name}:loss",)
