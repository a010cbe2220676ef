"""The story of a run that is verified: from what it started, and what is refused. The run itself is what each test says."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from repro_env.catalog import annotation, records
from repro_env.flows import before, origin, projectfile, verify
from repro_env.flows.execute import Done
from repro_env.flows.results import Globs
from repro_env.flows.verify import Verified, Wanted
from repro_env.model import codec
from repro_env.model.environment import Variable
from repro_env.model.errors import RecordError, SourceError, SpecError, UsageError
from repro_env.model.run import Launch, Mount, Outcome
from repro_env.run import pycache
from repro_env.run.bytecode import Module
from repro_env.verify.ignore import parse
from tests.capture.conftest import Git, git  # noqa: F401
from tests.fakes.tensors import Tensor, npy
from tests.flows.test_execute import Fake, Place, Work, writes
from tests.verify import sides


@pytest.fixture
def place(tmp_path: Path) -> Place:
    made = Place(tmp_path)
    (made.folder / "spec.json").write_bytes(codec.pretty(made.spec))
    return made


def unkept(modules: Sequence[Module], *_: object, **__: object) -> None:
    """Nothing to compile: there is no image here that it could be compiled in."""
    assert not modules


def verified(
    place: Place, work: Work | None, backend: Fake | None = None, kept: Callable[..., None] = unkept, **more: Any
) -> Verified:
    options: dict[str, Any] = {"word": "latest", "here": place.project, "environ": {"HOME": "/home/ann", "NAME": "value"}}
    wanted = Wanted(**(options | more))
    return verify.verify(
        wanted, store=place.store, tell=place, backend=backend or Fake(work), look=sides.look, keep_bytecode=kept
    )


def trained(value: float = 1.0, **others: str) -> Work:
    """A script that writes weights, and what else a test wants."""

    def work(launch: Launch, folder: Path) -> int:
        (folder / "files" / "w.npy").write_bytes(npy(Tensor([value, 2.0])))
        return writes(**others)(launch, folder)

    return work


def test_a_run_that_comes_back_is_the_same_and_leaves_nothing(place: Place) -> None:
    first = place.run("train.py", "--lr", "1", backend=Fake(trained(log_txt="a")), seed=9, threads=2, determinism="strict")
    again = Fake(trained(log_txt="a"))
    found = verified(place, None, again)
    assert (found.verdict.same, found.verdict.level, found.folder) == (True, "bitwise", None)
    assert found.verdict.promise.level == "bitwise"
    assert "expected: bitwise" in place.talk
    assert "source of the run" in place.talk
    assert place.runs == [first.folder], "the new run is gone"
    launch = again.launch
    assert launch is not None
    values = {one.name: one.value for one in launch.env}
    assert launch.argv[1:] == ("train.py", "--lr", "1")
    assert (launch.seed, values["REPRO_ENV_DETERMINISM"], values["OMP_NUM_THREADS"]) == (9, "strict", "2")
    assert launch.snapshot == first.start.source.digest


def test_kept_it_is_a_run_among_the_others(place: Place) -> None:
    first = place.run(backend=Fake(trained()))
    found = verified(place, trained(), keep=True)
    assert found.folder is not None
    assert set(place.runs) == {first.folder, found.folder}
    assert records.read(found.folder).state == "done"
    assert [one.text for one in annotation.of(found.folder)] == [(f"verifies {records.read(first.folder).short}",)]


def test_another_weight_is_found_and_the_answer_is_no(place: Place) -> None:
    place.run(backend=Fake(trained()))
    found = verified(place, trained(1.0000001)).verdict
    assert (found.same, found.level) == (False, "numeric")
    assert "1 of 2 elements from [0]" in found.sentence
    assert verified(place, trained(3.0)).verdict.level == "different"


def test_another_exit_code_is_different(place: Place) -> None:
    place.run(backend=Fake(trained()))

    def failing(launch: Launch, folder: Path) -> int:
        trained()(launch, folder)
        return 1

    found = verified(place, failing).verdict
    assert (found.same, found.level) == (False, "different")
    assert "ended with exit code 1 and not 0; -v shows what it prints" in found.sentence


@pytest.mark.parametrize(
    ("number", "starved", "name", "stopped"),
    [(2, False, "SIGINT", 2), (15, False, "SIGTERM", 15), (9, True, "SIGKILL, out of memory", 0), (40, False, "signal 40", 0)],
)
def test_a_new_run_that_was_ended_says_nothing(place: Place, number: int, starved: bool, name: str, stopped: int) -> None:
    place.run(backend=Fake(trained()))

    class Ended(Fake):
        def run(self, launch: Launch, *, folder: Path) -> Outcome:
            return msgspec.structs.replace(
                super().run(launch, folder=folder), signal=number, exit_code=128 + number, out_of_memory=starved
            )

    found = verified(place, None, Ended(trained()))
    assert (found.verdict.same, found.verdict.level, found.stopped) == (False, None, stopped)
    assert found.verdict.sentence == f"nothing was compared: the new run was ended by {name}"


def test_the_code_is_that_of_the_run_whatever_became_of_the_folder(place: Place) -> None:
    (place.project / "train.py").write_text("edited before the run\n")
    first = place.run(backend=Fake(trained()))
    (place.project / "train.py").write_text("edited after the run\n")
    again = Fake(trained())
    assert verified(place, None, again).verdict.same
    assert again.launch is not None
    tree = place.store.layers.path(again.launch.snapshot)
    assert tree is not None
    assert (tree / "train.py").read_text() == "edited before the run\n"
    assert first.start.source.digest == again.launch.snapshot


def test_code_that_is_nowhere_is_a_sentence_and_that_of_the_folder_is_found(place: Place) -> None:
    (place.project / "train.py").write_text("edited before the run\n")
    digest = place.run(backend=Fake(trained())).start.source.digest
    place.store.layers.remove(digest)
    assert verified(place, trained()).verdict.same, "the folder is as it was"
    place.store.layers.remove(digest)
    (place.project / "train.py").write_text("edited after the run\n")
    with pytest.raises(SourceError, match="neither in the store"):
        verified(place, trained())


def test_variables_have_to_come_again(place: Place) -> None:
    place.run(backend=Fake(trained()), env=(("LR", "1"), ("NAME", None)), environ={"HOME": "/h", "NAME": "value"})
    with pytest.raises(UsageError, match="LR was given to the run") as caught:
        verified(place, trained())
    assert caught.value.hint == "give it again: --env LR=VALUE"
    with pytest.raises(UsageError, match="NAME was given to the run") as caught:
        verified(place, trained(), env=(("LR", "1"),))
    assert caught.value.hint == "give it again: --env NAME", "a stranger's record does not get the caller's variables"
    again = Fake(trained())
    assert verified(place, None, again, env=(("LR", "1"), ("NAME", None))).verdict.same
    assert again.launch is not None
    assert {Variable(name="LR", value="1"), Variable(name="NAME", value="value")} <= set(again.launch.env)


def test_the_network_has_to_be_allowed_again(place: Place) -> None:
    place.run(backend=Fake(trained()), network=True)
    with pytest.raises(UsageError, match="had access to the network") as caught:
        verified(place, trained())
    assert caught.value.hint == "allow access to the network: --network"
    again = Fake(trained())
    verified(place, None, again, network=True)
    assert again.launch is not None
    assert again.launch.network


def data(place: Place) -> Path:
    folder = place.project.parent / "data"
    folder.mkdir()
    (folder / "a.bin").write_bytes(b"0123")
    return folder


def test_a_data_byte_is_found_before_anything_runs(place: Place) -> None:
    folder = data(place)
    place.run(backend=Fake(trained()), data=((str(folder), ""),))
    assert verified(place, trained()).verdict.same
    (folder / "a.bin").write_bytes(b"0124")
    again = Fake(trained())
    found = verified(place, None, again).verdict
    assert (found.same, found.level, again.launch) == (False, None, None)
    what = f"data {folder} have changed since the run (restore it, or say where a copy is: verify --data SRC:DST)"
    assert found.sentence == f"nothing was compared: it cannot start from the same: {what}"
    shutil.rmtree(folder)
    assert "no such data" in verified(place, None).verdict.sentence


def test_another_package_version_is_another_spec_and_is_refused_where_the_run_s_own_is_lost(place: Place) -> None:
    place.run(backend=Fake(trained()))
    other = msgspec.structs.replace(
        place.spec.identity, determinism=msgspec.structs.replace(place.spec.identity.determinism, seed=5)
    )
    (place.folder / "spec.json").write_bytes(codec.pretty(msgspec.structs.replace(place.spec, identity=other)))
    assert verified(place, trained()).verdict.level == "bitwise", "its own spec was kept with it"
    shutil.rmtree(place.project / "runs" / "specs")
    with pytest.raises(SpecError, match="neither beside the runs"):
        verified(place, trained())


class Saving(Fake):
    """Writes into the folder of its checkpoints."""

    def __init__(self, value: float, *, resume: bool = False) -> None:
        super().__init__()
        self.value = value
        self.resume = resume

    def run(self, launch: Launch, *, folder: Path) -> Outcome:
        (mount,) = launch.mounts
        root = Path(mount.source)
        start = float((root / "step.txt").read_text()) if self.resume and (root / "step.txt").exists() else 0.0
        (root / "w.npy").write_bytes(npy(Tensor([self.value + start])))
        return super().run(launch, folder=folder)


def test_checkpoints_start_from_private_copies_and_are_compared(place: Place) -> None:
    folder = place.project.parent / "ck"
    folder.mkdir()
    (folder / "step.txt").write_text("3")
    done = place.run(backend=Saving(1.0, resume=True), checkpoints=((str(folder), "/ck"),))
    assert done.start.before is not None
    assert done.end.after is not None
    mine = folder / "w.npy"
    held = hashlib.sha256(mine.read_bytes()).hexdigest()
    assert verified(place, None, Saving(1.0, resume=True)).verdict.same
    other = verified(place, None, Saving(2.0, resume=True)).verdict
    assert (other.level, "/ck/w.npy" in other.sentence) == ("different", True)
    assert hashlib.sha256(mine.read_bytes()).hexdigest() == held, "the user's own checkpoints are as they were"


def test_checkpoints_that_changed_since_are_named_and_nothing_runs(place: Place) -> None:
    folder = place.project.parent / "ck"
    folder.mkdir()
    (folder / "step.txt").write_text("3")
    place.run(backend=Saving(1.0, resume=True), checkpoints=((str(folder), "/ck"),))
    (folder / "step.txt").write_text("4")
    again = Saving(1.0)
    found = verified(place, None, again).verdict
    assert (found.same, found.level, again.launch) == (False, None, None)
    assert "/ck/step.txt was there before the run and has changed since (restore these checkpoints" in found.sentence
    assert "exec --data OLD --checkpoints NEW:/ck" in found.sentence
    (folder / "step.txt").unlink()
    assert "is gone" in verified(place, None, again).verdict.sentence


def test_links_among_checkpoints_come_again_and_none_leads_out_of_the_copy(place: Place) -> None:
    folder, out = place.project.parent / "ck", place.project.parent / "out"
    folder.mkdir()
    out.mkdir()
    (folder / "step.txt").write_text("3")
    (folder / "last").symlink_to("step.txt")
    done = place.run(backend=Saving(1.0, resume=True), checkpoints=((str(folder), "/ck"),))
    listing = before.read(done.folder, before.BEFORE, done.start.before)
    assert listing is not None
    assert listing.links == (before.Link(target="/ck", path="last", to="step.txt"),)
    assert verified(place, None, Saving(1.0, resume=True)).verdict.same
    evil = (before.Link(target="/ck", path="a", to=str(out)), before.Link(target="/ck", path="a/b", to="x"))
    copies, problems = before.copies(
        msgspec.structs.replace(listing, links=evil),
        [Mount(kind="checkpoints", source=str(folder), target="/ck")],
        place.project.parent / "copies",
    )
    assert (len(copies), problems) == (1, ["/ck/a/b would lie behind another link"])
    assert not list(out.iterdir())


@pytest.mark.parametrize("name", ["a\nb", "of-ghp_" + "a1" * 18])
def test_a_checkpoint_whose_name_no_record_holds_is_told(place: Place, name: str) -> None:
    folder = place.project.parent / "ck"
    folder.mkdir()
    (folder / name).write_text("3")
    done = place.run(backend=Saving(1.0), checkpoints=((str(folder), "/ck"),))
    listing = before.read(done.folder, before.BEFORE, done.start.before)
    assert listing is not None
    assert ([one.shown for one in listing.files], len(listing.others)) == ([], 1)
    again = Saving(1.0)
    found = verified(place, None, again).verdict
    assert (found.same, again.launch) == (False, None)
    assert "a name that no record holds): it could not be recorded before the run" in found.sentence


@pytest.mark.parametrize("path", ["../x", "/etc/x", "a/../../x", "."])
def test_a_list_of_checkpoints_names_nothing_outside_them(place: Place, path: str) -> None:
    done = place.run(backend=Saving(1.0), checkpoints=(("ck", "/ck"),))
    raw = json.loads((done.folder / before.AFTER).read_bytes())
    raw["files"][0]["path"] = path
    (done.folder / before.AFTER).write_text(json.dumps(raw))
    with pytest.raises(SpecError, match="path"):
        before.read(done.folder, before.AFTER, done.end.after)


def test_code_is_found_in_history_though_checkpoints_lie_in_the_project(place: Place, git: Git) -> None:  # noqa: F811
    (place.project / "train.py").write_text("print(1)\n")
    git(place.project, "init")
    git(place.project, "add", "train.py")
    git(place.project, "commit", "-m", "one")
    checkpoints = place.project / "ck"
    checkpoints.mkdir()
    (checkpoints / "step.txt").write_text("3")
    git(place.project, "add", "-f", "ck")
    git(place.project, "commit", "-m", "two")
    first = place.run(backend=Saving(1.0, resume=True), checkpoints=((str(checkpoints), "/ck"),))
    place.store.layers.remove(first.start.source.digest)
    (place.project / "train.py").write_text("print(2)\n")
    assert "/ck/w.npy" in verified(place, None, Saving(2.0, resume=True)).verdict.sentence
    place.store.layers.remove(first.start.source.digest)
    (place.project / "train.py").write_text("print(3)\n")
    git(place.project, "commit", "-a", "-m", "later, of what the run never saw")
    assert verified(place, None, Saving(1.0, resume=True), source=place.project).verdict.same
    with pytest.raises(SourceError, match="not the code of the run"):
        verified(place, None, Saving(1.0, resume=True), source=checkpoints)


def test_a_list_of_checkpoints_that_was_edited_is_refused(place: Place) -> None:
    done = place.run(backend=Saving(1.0), checkpoints=(("ck", "/ck"),))
    path = done.folder / before.BEFORE
    path.write_bytes(path.read_bytes().replace(b'"others": []', b'"others": ["/ck/x (gone)"]'))
    with pytest.raises(RecordError, match="was changed since"):
        verified(place, None, Saving(1.0))


def edited(done: Done, **more: Any) -> None:
    """The record with other fields, and an end that vouches for its beginning."""
    start = codec.pretty(
        msgspec.structs.replace(done.start, **{key: one for key, one in more.items() if hasattr(done.start, key)})
    )
    fields = {key: one for key, one in more.items() if hasattr(done.end, key)}
    end = msgspec.structs.replace(done.end, start=f"sha256:{hashlib.sha256(start).hexdigest()}", **fields)
    for name, data in (("start", start), ("end", codec.pretty(end))):
        path = done.folder / f"{name}.json"
        path.chmod(0o644)
        path.write_bytes(data)


def test_a_beginning_that_was_changed_since_is_refused(place: Place) -> None:
    done = place.run(backend=Fake(trained()))
    path = done.folder / "start.json"
    path.chmod(0o644)
    path.write_bytes(codec.pretty(msgspec.structs.replace(done.start, seed=12)))
    again = Fake(trained())
    with pytest.raises(RecordError, match="was changed since the run"):
        verified(place, None, again)
    assert again.launch is None


def test_runs_without_an_end_of_their_own_are_refused(place: Place) -> None:
    done = place.run(backend=Fake(trained()))
    edited(done, outcome=msgspec.structs.replace(done.end.outcome, signal=9, exit_code=137))
    with pytest.raises(RecordError, match="was ended by signal 9"):
        verified(place, trained())
    (done.folder / "end.json").unlink()
    with pytest.raises(RecordError, match="was interrupted"):
        verified(place, trained())


def test_a_secret_in_the_command_cannot_be_run_again(place: Place) -> None:
    place.run("train.py", "--api-key", "sk-abcdefghij0123456789abcdefghij", backend=Fake(trained()))
    with pytest.raises(RecordError, match="has a secret in its command"):
        verified(place, trained())


def test_a_command_of_several_lines_is_not_guessed(place: Place) -> None:
    done = place.run("-c", "a = 1\nb = 2", backend=Fake(trained()))
    assert (done.start.exact, done.start.command) == (False, ("-c", "a = 1 b = 2"))
    with pytest.raises(RecordError, match="more than one line"):
        verified(place, trained())


@pytest.mark.parametrize(
    ("work", "ignored", "why"),
    [
        (None, (), "the run left no outputs; let it write what counts into a file"),
        (trained(), ("*",), "the run left only files that are left out; name what counts with --result GLOB"),
    ],
)
def test_nothing_runs_where_the_record_shows_that_there_is_nothing_to_compare(
    place: Place, work: Work | None, ignored: tuple[str, ...], why: str
) -> None:
    place.run(backend=Fake(work))
    again = Fake(work)
    found = verified(place, None, again, globs=Globs(ignored=tuple(map(parse, ignored)))).verdict
    assert (found.same, found.level, again.launch) == (False, None, None)
    assert found.sentence == f"nothing was compared: {why}. The command was not run again"
    assert "expected" not in place.talk


def test_what_is_accepted_in_pyproject_is_ignored_with_its_reason(place: Place) -> None:
    place.run(backend=Fake(trained(m_json='{"auc": 0.9, "runtime": 1.5}')))
    again = trained(m_json='{"auc": 0.9, "runtime": 1.7}')
    found = verified(place, again)
    assert (found.verdict.same, found.verdict.level, found.project) == (False, "different", place.project)
    assert projectfile.accept(place.project, found.verdict.files, found.problem).texts == ("m.json:runtime",)
    verdict = verified(place, again).verdict
    assert (verdict.same, verdict.level) == (True, "equal except for")
    (ignored,) = [ignored for file in verdict.files for ignored in file.ignored]
    assert (ignored.place, ignored.reason, ignored.by) == ("runtime", "as pyproject.toml says", "user")
    assert not verified(place, trained(m_json='{"auc": 0.8, "runtime": 1.7}')).verdict.same


def test_where_pyproject_ignores_every_result_nothing_was_compared(place: Place) -> None:
    place.run(backend=Fake(trained()))
    (place.project / "pyproject.toml").write_text("[tool.repro-env.verify]\nignore = ['*']\n")
    found = verified(place, trained(2.0)).verdict
    assert (found.same, found.level) == (False, None)
    assert found.sentence.startswith("nothing was compared")


def test_a_pyproject_that_cannot_be_understood_is_refused_before_anything_runs(place: Place) -> None:
    place.run(backend=Fake(trained()))
    (place.project / "pyproject.toml").write_text("[tool.repro-env.verify]\nignore = '*.log'\n")
    again = Fake(trained())
    with pytest.raises(UsageError, match="is not a list of texts"):
        verified(place, None, again)
    assert again.launch is None


def test_another_exit_code_cannot_be_accepted(place: Place) -> None:
    place.run(backend=Fake(trained(m_json="{}")))

    def failing(launch: Launch, folder: Path) -> int:
        trained(m_json="{}")(launch, folder)
        return 1

    found = verified(place, failing)
    assert "exit code 1 and not 0" in projectfile.accept(place.project, found.verdict.files, found.problem).refused[0]


def test_another_cpu_is_said_beforehand(place: Place) -> None:
    done = place.run(backend=Fake(trained()))
    edited(done, host=("cpu Other (x86_64)",))
    found = verified(place, trained(1.0000001)).verdict
    assert found.promise.level == "numeric"
    assert "the run's was Other (x86_64)" in found.promise.sentence
    assert (found.level, found.same) == ("numeric", True)
    assert "which is what was promised" in found.sentence


def test_threads_as_asked_and_as_captured_are_told_apart() -> None:
    names = ("BLIS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    four = tuple(Variable(name=name, value="4") for name in names)
    assert origin.threads_asked(four) == 4
    assert origin.threads_asked((*four, Variable(name="LOKY_MAX_CPU_COUNT", value="4"))) is None
    assert origin.threads_asked(four[:2]) is None
    assert origin.threads_asked(()) is None


class Compiling(Fake):
    """Finds bytecode as its `means` say, and has to compile these modules."""

    def __init__(self, means: str, *names: str) -> None:
        super().__init__(trained())
        self.means = means
        self.compiled = tuple(Module(path=name, source=f"/{name[:-16]}.py", optimize=0) for name in names)

    def run(self, launch: Launch, *, folder: Path) -> Outcome:
        return msgspec.structs.replace(super().run(launch, folder=folder), means=("root: fake", self.means))


A, B = "opt/env/lib/a.cpython-311.pyc", "opt/env/lib/b.cpython-311.pyc"


@pytest.mark.parametrize(
    ("means", "compiled", "recorded", "hidden"),
    [
        (pycache.NONE, (A, B), (), "all"),
        (pycache.KEPT, (A, B), (A, B), (A, B)),
        (pycache.KEPT, (A,), (A,), (A,)),
        ("workspace: copy", (A, B), (), ()),
    ],
)
def test_a_run_that_is_repeated_finds_the_bytecode_that_the_first_one_found(
    place: Place, means: str, compiled: tuple[str, ...], recorded: tuple[str, ...], hidden: object
) -> None:
    done = place.run(backend=Compiling(means, *compiled))
    assert done.end.compiled == recorded
    assert origin.hidden(done.end) == hidden
    place.said.clear()
    found = verified(place, None, Compiling(means, *compiled)).verdict
    assert (found.same, found.causes) == (True, ())
    assert ("recompiling bytecode" in place.talk) == bool(hidden)


@pytest.mark.parametrize("result", ["metrics/*", ""])
def test_a_result_that_means_nothing_is_refused_before_anything_runs(place: Place, result: str) -> None:
    place.run(backend=Fake(trained(log_txt="a")))
    again = Fake(trained(log_txt="b"))
    with pytest.raises(UsageError) as caught:
        verified(place, None, again, globs=Globs(results=(result,)))
    assert again.launch is None
    assert caught.value.hint == "there are log.txt, w.npy"
    ignored = parse("*.png"), parse("log.txt")
    found = verified(place, None, again, globs=Globs(results=("w.*",), ignored=ignored)).verdict
    assert found.same


def test_what_is_compiled_now_alone_is_a_cause_and_said_beforehand(place: Place) -> None:
    place.run(backend=Compiling(pycache.KEPT, A))
    kept: list[str] = []

    def keep(modules: Sequence[Module], *_: object, **__: object) -> None:
        kept.extend(one.path for one in modules)

    found = verified(place, None, Compiling(pycache.NONE, A, B), kept=keep).verdict
    assert kept == [B], "what the run found compiled is kept, for the next one"
    assert "since the run found its modules compiled" in found.promise.sentence
    (cause,) = found.causes
    assert cause.startswith("1 module was compiled")


@pytest.mark.parametrize(("then", "now"), [("xterm-256color", "dumb"), ("xterm", None), (None, "xterm"), ("../x", "xterm")])
def test_the_terminal_is_that_of_the_run(place: Place, then: str | None, now: str | None) -> None:
    """It is one variable more in the environment of the command, which moves its objects."""

    def environ(term: str | None) -> dict[str, str]:
        return {"HOME": "/home/ann"} | ({} if term is None else {"TERM": term})

    first, again = Fake(trained()), Fake(trained())
    done = place.run(backend=first, environ=environ(then))
    assert done.start.term == (then if then and then.startswith("x") else "")
    verified(place, None, again, environ=environ(now))
    assert first.launch is not None
    assert again.launch is not None
    kept = [[one for one in launch.env if one.name == "TERM"] for launch in (first.launch, again.launch)]
    assert kept[0] == kept[1]


@pytest.mark.parametrize("how", ["clone", "copy"])
def test_code_is_found_where_a_colleague_has_it(place: Place, git: Git, how: str) -> None:  # noqa: F811
    """At another path, with the runs in it; the project's own folder is not on that machine."""
    (place.project / "train.py").write_text("print(1)\n")
    if how == "clone":
        git(place.project, "init")
        git(place.project, "add", "train.py")
        git(place.project, "commit", "-m", "one")
    first = place.run(backend=Fake(trained()))
    place.store.layers.remove(first.start.source.digest)
    elsewhere = place.project.parent / "elsewhere"
    if how == "clone":
        git(place.project.parent, "clone", str(place.project), str(elsewhere))
        shutil.move(place.project / "runs", elsewhere / "runs")
        (elsewhere / "train.py").write_text("print(2)\n")
    else:
        shutil.copytree(place.project, elsewhere, symlinks=True)
    shutil.rmtree(place.project)
    again = Fake(trained())
    assert verified(place, None, again, here=elsewhere).verdict.same
    assert again.launch is not None
    assert (again.launch.workspace, again.launch.snapshot) == (str(place.project), first.start.source.digest)
    assert ("its code is that of commit" in place.talk) == (how == "clone")
