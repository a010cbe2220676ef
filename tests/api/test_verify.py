"""Verifying a recorded run: what it starts from, and what is refused. Each test defines what the run does."""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from repro_env.api import verify
from repro_env.api.execute import FinishedRun
from repro_env.api.verify import Verified
from repro_env.compare.outputs import ignorefile, results
from repro_env.runs.records import annotation, checkpointstate, pulled, records
from repro_env.runs.start import repeat
from repro_env.schema import codec
from repro_env.schema.environment import Variable
from repro_env.schema.errors import RecordError, SourceError, SpecError, UsageError
from repro_env.schema.run import Launch, Mount, Outcome
from repro_env.schema.rundirectory import CHECKPOINTS_AFTER, CHECKPOINTS_BEFORE
from tests.api.place import Fake, Place, Work, writes
from tests.compare.outputs import sides
from tests.environment.conftest import Git, git  # noqa: F401
from tests.fakes import wheels
from tests.fakes.tensors import Tensor, npy


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    made = Place(tmp_path)
    monkeypatch.chdir(made.project)
    (made.directory / "spec.json").write_bytes(codec.pretty(made.spec))
    return made


def verify_run(place: Place, work: Work | None, backend: Fake | None = None, **more: Any) -> Verified:
    options: dict[str, Any] = {
        "environ": {"HOME": "/home/ann", "NAME": "value"},
        "backend": backend or Fake(work),
        "look": sides.look,
    }
    return verify.verify(store=place.store, tell=place, **(options | more))


def training(value: float = 1.0, **others: str) -> Work:
    """Return a script that writes weights, and the other files of a test."""

    def work(launch: Launch, directory: Path) -> int:
        (directory / "files" / "w.npy").write_bytes(npy(Tensor([value, 2.0])))
        return writes(**others)(launch, directory)

    return work


def test_an_identical_run_is_the_same_and_leaves_no_files(place: Place) -> None:
    first = place.run("train.py", "--lr", "1", backend=Fake(training(log_txt="a")), seed=9, threads=2, determinism="strict")
    again = Fake(training(log_txt="a"))
    found = verify_run(place, None, again)
    assert (found.verdict.same, found.verdict.level, found.directory) == (True, "bitwise", None)
    assert found.verdict.promise.level == "bitwise"
    assert "expected: bitwise" in place.talk
    assert "source of the run" in place.talk
    assert place.runs == [first.directory], "the new run is removed"
    launch = again.launch
    assert launch is not None
    values = {variable.name: variable.value for variable in launch.env}
    assert launch.argv[1:] == ("train.py", "--lr", "1")
    assert [values[name] for name in ("REPRO_ENV_SEED", "REPRO_ENV_DETERMINISM", "OMP_NUM_THREADS")] == ["9", "strict", "2"]
    assert launch.snapshot == first.start.source.digest


def test_a_kept_run_is_in_the_runs_directory(place: Place) -> None:
    first = place.run(backend=Fake(training()))
    found = verify_run(place, training(), keep=True)
    assert found.directory is not None
    assert set(place.runs) == {first.directory, found.directory}
    assert records.read(found.directory).state == "done"
    assert [note.text for note in annotation.of(found.directory)] == [(f"verifies {records.read(first.directory).short}",)]


def test_a_changed_weight_is_a_difference(place: Place) -> None:
    place.run(backend=Fake(training()))
    found = verify_run(place, training(1.0000001)).verdict
    assert (found.same, found.level) == (False, "numeric")
    assert "1 of 2 elements from [0]" in found.sentence
    assert verify_run(place, training(3.0)).verdict.level == "different"


def test_another_exit_code_is_different(place: Place) -> None:
    place.run(backend=Fake(training()))

    def failing(launch: Launch, directory: Path) -> int:
        training()(launch, directory)
        return 1

    found = verify_run(place, failing).verdict
    assert (found.same, found.level) == (False, "different")
    assert "ended with exit code 1 and not 0; -v prints its output" in found.sentence


@pytest.mark.parametrize(
    ("number", "out_of_memory", "name", "stopped"),
    [(2, False, "SIGINT", 2), (15, False, "SIGTERM", 15), (9, True, "SIGKILL, out of memory", 0), (40, False, "signal 40", 0)],
)
def test_a_new_run_that_was_ended_by_a_signal_is_not_compared(
    place: Place, number: int, out_of_memory: bool, name: str, stopped: int
) -> None:
    place.run(backend=Fake(training()))

    class Ended(Fake):
        def run(self, launch: Launch, *, directory: Path) -> Outcome:
            return msgspec.structs.replace(
                super().run(launch, directory=directory), signal=number, exit_code=128 + number, out_of_memory=out_of_memory
            )

    found = verify_run(place, None, Ended(training()))
    assert (found.verdict.same, found.verdict.level, found.stopped) == (False, None, stopped)
    assert found.verdict.sentence == f"nothing was compared: the new run was ended by {name}"


def test_the_recorded_code_is_run_even_if_the_directory_changed(place: Place) -> None:
    (place.project / "train.py").write_text("edit before the run\n")
    first = place.run(backend=Fake(training()))
    (place.project / "train.py").write_text("edit after the run\n")
    again = Fake(training())
    assert verify_run(place, None, again).verdict.same
    assert again.launch is not None
    tree = place.store.layers.path(again.launch.snapshot)
    assert tree is not None
    assert (tree / "train.py").read_text() == "edit before the run\n"
    assert first.start.source.digest == again.launch.snapshot


def test_code_is_found_in_the_directory_and_missing_code_is_an_error(place: Place) -> None:
    (place.project / "train.py").write_text("edit before the run\n")
    digest = place.run(backend=Fake(training())).start.source.digest
    place.store.layers.discard(digest)
    assert verify_run(place, training()).verdict.same, "the directory did not change"
    place.store.layers.discard(digest)
    (place.project / "train.py").write_text("edit after the run\n")
    with pytest.raises(SourceError, match="was not found in the store, next to the spec"):
        verify_run(place, training())


def test_variables_must_be_passed_again(place: Place) -> None:
    place.run(backend=Fake(training()), env=(("LR", "1"), ("NAME", None)), environ={"HOME": "/h", "NAME": "value"})
    with pytest.raises(UsageError, match="LR was passed to the run") as caught:
        verify_run(place, training())
    assert caught.value.hint == "pass it again: --env LR=VALUE, or --env LR for its value in your shell"
    with pytest.raises(UsageError, match="NAME was passed to the run"):  # an untrusted record does not get the caller's variables
        verify_run(place, training(), env={"LR": "1"})
    again = Fake(training())
    assert verify_run(place, None, again, env={"LR": "1", "NAME": None}).verdict.same
    assert again.launch is not None
    assert {Variable(name="LR", value="1"), Variable(name="NAME", value="value")} <= set(again.launch.env)


def test_the_network_must_be_allowed_again(place: Place) -> None:
    place.run(backend=Fake(training()), network=True)
    with pytest.raises(UsageError, match="had access to the network") as caught:
        verify_run(place, training())
    assert caught.value.hint == "allow it with --network"
    again = Fake(training())
    verify_run(place, None, again, network=True)
    assert again.launch is not None
    assert again.launch.network


def data(place: Place) -> Path:
    directory = place.project.parent / "data"
    directory.mkdir()
    (directory / "a.bin").write_bytes(b"0123")
    return directory


def test_changed_data_is_found_before_the_command_runs(place: Place) -> None:
    directory = data(place)
    place.run(backend=Fake(training()), data=((str(directory), ""),))
    assert verify_run(place, training()).verdict.same
    (directory / "a.bin").write_bytes(b"0124")
    again = Fake(training())
    found = verify_run(place, None, again).verdict
    assert (found.same, found.level, again.launch) == (False, None, None)
    what = f"data {directory} have changed since the run (restore it, or name a copy of it: verify --data SRC:DST)"
    assert found.sentence == f"nothing was compared: the new run cannot start from the same files: {what}"
    shutil.rmtree(directory)
    assert "/data: this path does not exist" in verify_run(place, None).verdict.sentence


def test_another_spec_is_refused_if_the_spec_of_the_run_is_lost(place: Place) -> None:
    place.run(backend=Fake(training()))
    package = wheels.artifact(wheels.make(place.project.parent, "alpha"), "alpha")
    other = msgspec.structs.replace(place.spec.identity, distributions=(package,))
    (place.directory / "spec.json").write_bytes(codec.pretty(msgspec.structs.replace(place.spec, identity=other)))
    assert verify_run(place, training()).verdict.level == "bitwise", "its own spec was kept with it"
    shutil.rmtree(place.project / "runs" / "specs")
    with pytest.raises(SpecError, match="was not found next to the runs"):
        verify_run(place, training())


class Saving(Fake):
    """Write into the directory of the checkpoints."""

    def __init__(self, value: float, *, resume: bool = False) -> None:
        super().__init__()
        self.value = value
        self.resume = resume

    def run(self, launch: Launch, *, directory: Path) -> Outcome:
        (mount,) = launch.mounts
        root = Path(mount.source)
        start = float((root / "step.txt").read_text()) if self.resume and (root / "step.txt").exists() else 0.0
        (root / "w.npy").write_bytes(npy(Tensor([self.value + start])))
        return super().run(launch, directory=directory)


def test_checkpoints_start_from_private_copies_and_are_compared(place: Place) -> None:
    directory = place.project.parent / "ck"
    directory.mkdir()
    (directory / "step.txt").write_text("3")
    done = place.run(backend=Saving(1.0, resume=True), checkpoints=((str(directory), "/ck"),))
    assert done.start.checkpoints_before is not None
    assert done.end.checkpoints_after is not None
    weights = directory / "w.npy"
    digest = hashlib.sha256(weights.read_bytes()).hexdigest()
    assert verify_run(place, None, Saving(1.0, resume=True)).verdict.same
    other = verify_run(place, None, Saving(2.0, resume=True)).verdict
    assert (other.level, "/ck/w.npy" in other.sentence) == ("different", True)
    assert hashlib.sha256(weights.read_bytes()).hexdigest() == digest, "the checkpoints of the user do not change"


def test_changed_checkpoints_are_named_and_the_command_does_not_run(place: Place) -> None:
    directory = place.project.parent / "ck"
    directory.mkdir()
    (directory / "step.txt").write_text("3")
    place.run(backend=Saving(1.0, resume=True), checkpoints=((str(directory), "/ck"),))
    (directory / "step.txt").write_text("4")
    again = Saving(1.0)
    found = verify_run(place, None, again).verdict
    assert (found.same, found.level, again.launch) == (False, None, None)
    assert "/ck/step.txt existed before the run and has changed since (restore these checkpoints" in found.sentence
    assert "exec --data OLD --checkpoints NEW:/ck" in found.sentence
    (directory / "step.txt").unlink()
    assert "is missing" in verify_run(place, None, again).verdict.sentence


def test_links_in_checkpoints_are_copied_and_do_not_lead_out_of_the_copy(place: Place) -> None:
    directory, out = place.project.parent / "ck", place.project.parent / "out"
    directory.mkdir()
    out.mkdir()
    (directory / "step.txt").write_text("3")
    (directory / "last").symlink_to("step.txt")
    done = place.run(backend=Saving(1.0, resume=True), checkpoints=((str(directory), "/ck"),))
    listing = checkpointstate.read(done.directory, CHECKPOINTS_BEFORE, done.start.checkpoints_before)
    assert listing is not None
    assert listing.links == (checkpointstate.CheckpointLink(target="/ck", path="last", to="step.txt"),)
    assert verify_run(place, None, Saving(1.0, resume=True)).verdict.same
    evil = (
        checkpointstate.CheckpointLink(target="/ck", path="a", to=str(out)),
        checkpointstate.CheckpointLink(target="/ck", path="a/b", to="x"),
    )
    copies, problems = checkpointstate.copy_files(
        msgspec.structs.replace(listing, links=evil),
        [Mount(kind="checkpoints", source=str(directory), target="/ck")],
        place.project.parent / "copies",
    )
    assert (len(copies), problems) == (1, ["/ck/a/b is inside another symbolic link"])
    assert not list(out.iterdir())


@pytest.mark.parametrize("name", ["a\nb", "of-ghp_" + "a1" * 18])
def test_a_checkpoint_with_a_name_that_cannot_be_recorded_is_reported(place: Place, name: str) -> None:
    directory = place.project.parent / "ck"
    directory.mkdir()
    (directory / name).write_text("3")
    done = place.run(backend=Saving(1.0), checkpoints=((str(directory), "/ck"),))
    listing = checkpointstate.read(done.directory, CHECKPOINTS_BEFORE, done.start.checkpoints_before)
    assert listing is not None
    assert ([file.shown for file in listing.files], len(listing.special_files)) == ([], 1)
    again = Saving(1.0)
    found = verify_run(place, None, again).verdict
    assert (found.same, again.launch) == (False, None)
    assert "its name cannot be recorded): it could not be recorded before the run" in found.sentence


@pytest.mark.parametrize("path", ["../x", "/etc/x", "a/../../x", "."])
def test_a_list_of_checkpoints_cannot_name_paths_outside_them(place: Place, path: str) -> None:
    done = place.run(backend=Saving(1.0), checkpoints=(("ck", "/ck"),))
    raw = json.loads((done.directory / CHECKPOINTS_AFTER).read_bytes())
    raw["files"][0]["path"] = path
    (done.directory / CHECKPOINTS_AFTER).write_text(json.dumps(raw))
    with pytest.raises(RecordError, match="changed since the run"):
        checkpointstate.read(done.directory, CHECKPOINTS_AFTER, done.end.checkpoints_after)
    with pytest.raises(SpecError, match="path"):
        checkpointstate.read(done.directory, CHECKPOINTS_AFTER, records.digest(done.directory / CHECKPOINTS_AFTER))


def test_code_is_found_in_its_directory_without_the_checkpoints_there(place: Place) -> None:
    (place.project / "train.py").write_text("print(1)\n")
    checkpoints = place.project / "ck"
    checkpoints.mkdir()
    (checkpoints / "step.txt").write_text("3")
    first = place.run(backend=Saving(1.0, resume=True), checkpoints=((str(checkpoints), "/ck"),))
    place.store.layers.discard(first.start.source.digest)
    assert verify_run(place, None, Saving(1.0, resume=True), source=place.project).verdict.same
    with pytest.raises(SourceError, match="is not in this directory"):
        verify_run(place, None, Saving(1.0, resume=True), source=checkpoints)


def test_an_edited_list_of_checkpoints_is_refused(place: Place) -> None:
    done = place.run(backend=Saving(1.0), checkpoints=(("ck", "/ck"),))
    path = done.directory / CHECKPOINTS_BEFORE
    path.write_bytes(path.read_bytes().replace(b'"special_files": []', b'"special_files": ["/ck/x (gone)"]'))
    with pytest.raises(RecordError, match="this file changed since the run"):
        verify_run(place, None, Saving(1.0))


def edit(done: FinishedRun, **more: Any) -> None:
    """Change fields of a record, and correct the digest of start.json in end.json."""
    start = codec.pretty(
        msgspec.structs.replace(done.start, **{key: value for key, value in more.items() if hasattr(done.start, key)})
    )
    fields = {key: value for key, value in more.items() if hasattr(done.end, key)}
    end = msgspec.structs.replace(done.end, start=f"sha256:{hashlib.sha256(start).hexdigest()}", **fields)
    for name, data in (("start", start), ("end", codec.pretty(end))):
        path = done.directory / f"{name}.json"
        path.chmod(0o644)
        path.write_bytes(data)


def test_a_changed_start_json_is_refused(place: Place) -> None:
    done = place.run(backend=Fake(training()))
    path = done.directory / "start.json"
    path.chmod(0o644)
    path.write_bytes(codec.pretty(msgspec.structs.replace(done.start, seed=12)))
    again = Fake(training())
    with pytest.raises(RecordError, match="this file was changed after the run"):
        verify_run(place, None, again)
    assert again.launch is None


def test_interrupted_runs_and_runs_ended_by_a_signal_are_refused(place: Place) -> None:
    done = place.run(backend=Fake(training()))
    edit(done, outcome=msgspec.structs.replace(done.end.outcome, signal=9, exit_code=137))
    with pytest.raises(RecordError, match="was ended by signal 9"):
        verify_run(place, training())
    (done.directory / "end.json").unlink()
    with pytest.raises(RecordError, match="was interrupted"):
        verify_run(place, training())


def test_a_command_with_a_secret_is_refused(place: Place) -> None:
    place.run("train.py", "--api-key", "sk-abcdefghij0123456789abcdefghij", backend=Fake(training()))
    with pytest.raises(RecordError, match="the command of this run has a secret"):
        verify_run(place, training())


def test_a_command_of_several_lines_is_repeated_exactly(place: Place) -> None:
    command = ("-c", "a = 1\nb = 2", "tab\there")
    done = place.run(*command, backend=Fake(training()))
    assert (done.start.command_is_exact, done.start.command) == (True, ("-c", "a = 1 b = 2", "tab here"))
    assert done.start.command_line == r"'-c' 'a = 1\nb = 2' 'tab\there'"
    backend = Fake(training())
    assert verify_run(place, training(), backend=backend).verdict.same
    assert backend.launch is not None
    assert backend.launch.argv[1:] == command


def test_a_command_with_undecodable_bytes_is_refused(place: Place) -> None:
    done = place.run("-c", "a = 1\nb = '\udcff'", backend=Fake(training()))
    assert (done.start.command_is_exact, done.start.words) == (False, ())
    with pytest.raises(RecordError, match="not UTF-8"):
        verify_run(place, training())


def test_a_command_of_several_lines_with_a_secret_is_refused(place: Place) -> None:
    done = place.run("-c", "a = 1\napi_key = 'sk-abcdefghij0123456789abcdefghij'", backend=Fake(training()))
    assert (done.start.command_is_exact, done.start.words) == (False, ())
    with pytest.raises(RecordError, match="has a secret"):
        verify_run(place, training())


@pytest.mark.parametrize(
    ("work", "ignored", "why"),
    [
        (None, (), "the run has no outputs; write its results to a file"),
        (training(), ("*",), "the run has only files that are left out; name its results with --result GLOB"),
    ],
)
def test_the_command_does_not_run_if_there_is_nothing_to_compare(
    place: Place, work: Work | None, ignored: tuple[str, ...], why: str
) -> None:
    place.run(backend=Fake(work))
    again = Fake(work)
    found = verify_run(place, None, again, ignore=ignored).verdict
    assert (found.same, found.level, again.launch) == (False, None, None)
    assert found.sentence == f"nothing was compared: {why}. The command was not run again"
    assert "expected" not in place.talk


def test_a_difference_accepted_in_the_ignore_file_is_ignored_with_its_reason(place: Place) -> None:
    place.run(backend=Fake(training(m_json='{"auc": 0.9, "runtime": 1.5}')))
    again = training(m_json='{"auc": 0.9, "runtime": 1.7}')
    found = verify_run(place, again)
    assert (found.verdict.same, found.verdict.level, found.project) == (False, "different", place.project)
    accepted = ignorefile.accept(place.project, found.verdict.files, found.problem)
    assert [added.text for added in accepted.added] == ["m.json:runtime"]
    verdict = verify_run(place, again).verdict
    assert (verdict.same, verdict.level) == (True, "equal except for")
    (ignored,) = [ignored for file in verdict.files for ignored in file.ignored]
    assert (ignored.place, ignored.reason, ignored.by) == ("runtime", "as repro-env.ignore says", "user")
    assert not verify_run(place, training(m_json='{"auc": 0.8, "runtime": 1.7}')).verdict.same


def test_nothing_is_compared_if_the_ignore_file_ignores_every_result(place: Place) -> None:
    place.run(backend=Fake(training()))
    (place.project / "repro-env.ignore").write_text("*\n")
    found = verify_run(place, training(2.0)).verdict
    assert (found.same, found.level) == (False, None)
    assert found.sentence.startswith("nothing was compared")


def test_an_invalid_ignore_file_is_refused_before_the_command_runs(place: Place) -> None:
    place.run(backend=Fake(training()))
    (place.project / "repro-env.ignore").write_text("m.json:\n")
    again = Fake(training())
    with pytest.raises(UsageError, match="after the colon is missing"):
        verify_run(place, None, again)
    assert again.launch is None


def test_a_time_without_a_zone_is_read_in_utc_and_in_the_zone_of_this_machine(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = place.run(backend=Fake(training()))
    try:
        for zone, offset in (("IST-5:30", 19800), ("EST5", -18000)):
            monkeypatch.setenv("TZ", zone)
            time.tzset()
            assert results.evidence(done.directory, done.start, done.end).zones == (0, offset), "a record has no zone"
    finally:
        monkeypatch.undo()
        time.tzset()


def test_a_record_without_valid_times_is_refused(place: Place) -> None:
    done = place.run(backend=Fake(training()))
    with pytest.raises(RecordError, match="time of this run cannot be read"):
        results.evidence(done.directory, msgspec.structs.replace(done.start, started="yesterday"), done.end)


def test_another_exit_code_cannot_be_accepted(place: Place) -> None:
    place.run(backend=Fake(training(m_json="{}")))

    def failing(launch: Launch, directory: Path) -> int:
        training(m_json="{}")(launch, directory)
        return 1

    found = verify_run(place, failing)
    assert "exit code 1 and not 0" in ignorefile.accept(place.project, found.verdict.files, found.problem).refused[0]


def test_a_task_of_a_step_verifies_as_one_process(place: Place) -> None:
    place.run(backend=Fake(training()))
    step = {"SLURM_JOB_ID": "17", "SLURM_STEP_ID": "2", "SLURM_STEP_NUM_TASKS": "8", "SLURM_PROCID": "3", "SLURM_LOCALID": "1"}
    backend = Fake(training())
    assert verify_run(place, None, backend, environ={"HOME": "/home/ann", **step}).verdict.same
    assert backend.launch is not None
    assert backend.launch.member.is_alone


def test_another_cpu_is_reported_before_the_run(place: Place) -> None:
    done = place.run(backend=Fake(training()))
    edit(done, host=("cpu Other (x86_64)",))
    found = verify_run(place, training(1.0000001)).verdict
    assert found.promise.level == "numeric"
    assert "the run's was Other (x86_64)" in found.promise.sentence
    assert (found.level, found.same) == ("numeric", True)
    assert "as expected" in found.sentence


def test_threads_of_the_option_and_of_the_capture_are_distinguished() -> None:
    names = ("BLIS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    four = tuple(Variable(name=name, value="4") for name in names)
    assert repeat.threads_option(four) == 4
    assert repeat.threads_option((*four, Variable(name="LOKY_MAX_CPU_COUNT", value="4"))) is None
    assert repeat.threads_option(four[:2]) is None
    assert repeat.threads_option(()) is None


@pytest.mark.parametrize("result", ["metrics/*", ""])
def test_a_glob_without_a_match_is_refused_before_the_command_runs(place: Place, result: str) -> None:
    place.run(backend=Fake(training(log_txt="a")))
    again = Fake(training(log_txt="b"))
    with pytest.raises(UsageError) as caught:
        verify_run(place, None, again, results=[result])
    assert again.launch is None
    assert caught.value.hint == "its outputs are log.txt, w.npy"
    found = verify_run(place, None, again, results=["w.*"], ignore=["*.png", "log.txt"]).verdict
    assert found.same


@pytest.mark.parametrize(("then", "now"), [("xterm-256color", "dumb"), ("xterm", None), (None, "xterm"), ("../x", "xterm")])
def test_the_terminal_type_is_that_of_the_recorded_run(place: Place, then: str | None, now: str | None) -> None:
    """TERM is a variable in the environment of the command, which affects the addresses of its objects."""

    def environ(term: str | None) -> dict[str, str]:
        return {"HOME": "/home/ann"} | ({} if term is None else {"TERM": term})

    first, again = Fake(training()), Fake(training())
    done = place.run(backend=first, environ=environ(then))
    assert done.start.terminal_type == (then if then and then.startswith("x") else "")
    verify_run(place, None, again, environ=environ(now))
    assert first.launch is not None
    assert again.launch is not None
    terms = [[variable for variable in launch.env if variable.name == "TERM"] for launch in (first.launch, again.launch)]
    assert terms[0] == terms[1]


@pytest.mark.parametrize("how", ["clone", "copy"])
def test_code_is_found_in_another_clone_or_copy(
    place: Place,
    git: Git,  # noqa: F811
    how: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The runs are in a clone or copy at another path, and the project's own directory does not exist."""
    (place.project / "train.py").write_text("print(1)\n")
    if how == "clone":
        git(place.project, "init")
        git(place.project, "add", "train.py")
        git(place.project, "commit", "-m", "one")
    first = place.run(backend=Fake(training()))
    place.store.layers.discard(first.start.source.digest)
    elsewhere = place.project.parent / "elsewhere"
    if how == "clone":
        git(place.project.parent, "clone", str(place.project), str(elsewhere))
        shutil.move(place.project / "runs", elsewhere / "runs")
    else:
        shutil.copytree(place.project, elsewhere, symlinks=True)
    shutil.rmtree(place.project)
    again = Fake(training())
    monkeypatch.chdir(elsewhere)
    assert verify_run(place, None, again).verdict.same
    assert again.launch is not None
    assert (again.launch.workspace, again.launch.snapshot) == (str(place.project), first.start.source.digest)


def test_an_ignored_file_that_no_run_wrote_is_reported(place: Place) -> None:
    place.run("train.py", backend=Fake(training(log_txt="a")))
    verify_run(place, training(log_txt="a"), ignore=["log.txt:a {}", "lgo.txt"])
    assert "--ignore lgo.txt does not match an output of the two runs" in place.talk
    assert "--ignore log.txt" not in place.talk


def test_an_ignored_file_that_is_equal_does_not_lower_the_level(place: Place) -> None:
    place.run("train.py", backend=Fake(training(log_txt="a")))
    assert verify_run(place, training(log_txt="a"), ignore=["log.txt"]).verdict.level == "bitwise"
    assert verify_run(place, training(log_txt="b"), ignore=["log.txt"]).verdict.level == "equal except for"


def test_an_output_that_was_left_out_of_a_pulled_run_is_never_the_same_by_default(place: Place) -> None:
    done = place.run(backend=Fake(training(log_txt="a", more_txt="b")))
    for name in ("w.npy", "more.txt"):
        (done.directory / "files" / name).unlink()
    pulled.write(done.directory, pulled.Pulled(source="/team", left_out=("w.npy",)))
    found = verify_run(place, training(2.0, log_txt="a", more_txt="c")).verdict
    levels = {file.path: (file.level, file.why) for file in found.files}
    assert levels["w.npy"][0] is None
    assert "its bytes differ, and the recorded file is not here: it was left out" in levels["w.npy"][1]
    assert levels["more.txt"][0] == "different"  # it was lost, not left out
    assert levels["log.txt"][0] == "bitwise"
    assert not found.same
    equal = verify_run(place, training(log_txt="a", more_txt="b")).verdict
    assert (equal.same, equal.level) == (True, "bitwise")  # by the recorded digests


def test_a_resumed_run_is_repeated_from_the_same_outputs(place: Place) -> None:
    first = place.run(backend=Fake(writes(state_txt="1")), seed=4)
    second = place.run(backend=Fake(training(state_txt="2")), resume="latest")
    again = Fake(training(state_txt="2"))
    found = verify_run(place, None, again)
    assert (found.verdict.same, found.run.id) == (True, second.start.id)
    assert again.launch is not None
    assert again.launch.resumed == str(first.directory)
    values = {variable.name: variable.value for variable in again.launch.env}
    assert (values["REPRO_ENV_SEED"], values["REPRO_ENV_RESUMES"]) == ("4", "1")
    (first.directory / "files/state.txt").write_text("3")
    with pytest.raises(RecordError, match="does not have its recorded output any more"):
        verify_run(place, training())
    records.remove(first.directory)
    with pytest.raises(RecordError, match="was not found"):
        verify_run(place, training())


def test_a_run_that_resumed_a_killed_one_is_not_repeated(place: Place) -> None:
    first = place.run(backend=Fake(writes(state_txt="1")))
    (first.directory / "end.json").unlink()
    place.run(backend=Fake(training()), resume="latest")
    with pytest.raises(RecordError, match="was killed, so its outputs are not recorded"):
        verify_run(place, training())
