"""The story of a run, with a backend that does what each test needs; the image is a real one, rebuilt from tiny trees."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from repro_env.catalog import annotation, records
from repro_env.flows import asked, execute, sourcedir
from repro_env.flows.asked import Asked
from repro_env.flows.execute import Done
from repro_env.model.errors import (
    ArtifactError,
    CommandMissingError,
    DataError,
    DriftError,
    EngineError,
    RecordError,
    ReproEnvError,
    SourceError,
    UsageError,
)
from repro_env.model.run import GivenVariable, Launch, Lost, Outcome, User
from repro_env.model.spec import Data, Spec
from repro_env.model.talk import Silent
from repro_env.run.bytecode import Module
from repro_env.store.store import Store
from tests.fakes import specs

Work = Callable[[Launch, Path], int]


class Fake:
    """Writes what a test says into the run's files, as the embedded runner would."""

    def __init__(self, work: Work | None = None, removed: tuple[str, ...] = ()) -> None:
        self.work = work
        self.removed = removed
        self.launch: Launch | None = None
        self.began = False
        self.compiled: tuple[Module, ...] = ()
        self.lost: Lost | None = None

    def run(self, launch: Launch, *, folder: Path) -> Outcome:
        self.launch = launch
        code = self.work(launch, folder) if self.work else 0
        return Outcome(exit_code=code, signal=0, out_of_memory=False, isolation="embedded", means=("root: fake",))

    def collect(self, workspace: Path, snapshot: Path, files: Path) -> tuple[str, ...]:
        assert (snapshot / "train.py").is_file()
        return self.removed


class Place(Silent):
    """A project with a spec beside its source, and a store."""

    def __init__(self, root: Path) -> None:
        self.project = root / "project"
        self.project.mkdir()
        (self.project / "train.py").write_bytes(specs.TREES["source"]["train.py"])
        self.folder = self.project / "repro"
        self.spec = self.at(specs.make(self.folder, {}, prefix=self.project / ".venv"))
        self.store = Store.open(root / "store")
        self.said: list[str] = []

    def at(self, spec: Spec, **observed: Any) -> Spec:
        assert spec.observed.source is not None
        source = msgspec.structs.replace(spec.observed.source, path=str(self.project))
        return msgspec.structs.replace(spec, observed=msgspec.structs.replace(spec.observed, source=source, **observed))

    def __call__(self, text: str, /) -> None:
        self.said.append(text)

    def progress(self, total: int, label: str, /) -> Any:
        from contextlib import nullcontext

        self(label)
        return nullcontext(lambda count: None)

    def run(self, *command: str, backend: Fake | None = None, **asked: Any) -> Done:
        options: dict[str, Any] = {
            "command": command or ("train.py",),
            "here": self.project,
            "environ": {"HOME": "/home/ann", "TERM": "x"},
        }
        request = Asked(**(options | asked))
        return execute.execute(request, self.spec, self.folder, store=self.store, tell=self, backend=backend or Fake())

    @property
    def runs(self) -> list[Path]:
        return records.folders(self.project / "runs")

    @property
    def talk(self) -> str:
        return "\n".join(self.said)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def writes(**files: str) -> Work:
    def work(launch: Launch, folder: Path) -> int:
        for name, text in files.items():
            path = folder / "files" / name.replace("__", "/").replace("_", ".")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return 0

    return work


def test_a_run_is_recorded_from_start_to_end(place: Place) -> None:
    backend = Fake(writes(ck__w_pt="weights", log_txt="1"), removed=("old.txt",))
    done = place.run("train.py", "--lr", "1", backend=backend, seed=9)
    run = records.read(done.folder)
    assert (run.start, run.end, run.state) == (done.start, done.end, "done")
    assert done.folder == place.runs[0] == (place.project / "runs" / "latest").resolve()
    assert done.start.command == ("train.py", "--lr", "1")
    assert (done.start.seed, done.start.spec, done.start.image) == (9, place.spec.digest, place.spec.expected.image_id)
    assert [(one.path, one.size) for one in done.end.outputs] == [("ck/w.pt", 7), ("log.txt", 1)]
    assert done.end.removed == ("old.txt",)
    assert sorted(path.name for path in done.folder.iterdir()) == ["end.json", "files", "lock", "start.json"]
    assert backend.launch is not None
    assert backend.launch.workspace == backend.launch.cwd == str(place.project)


def test_the_image_is_rebuilt_once_and_it_is_said(place: Place) -> None:
    place.run()
    assert "rebuilding it first" in place.talk
    place.said.clear()
    place.run()
    assert "rebuilding" not in place.talk


def test_an_unchanged_source_is_as_captured_and_not_written_again(place: Place) -> None:
    done = place.run()
    source = place.spec.observed.source
    assert source is not None
    assert (done.start.source.digest, done.start.source.differs, done.start.source.directory) == (
        source.tree.sha256,
        (),
        str(place.project),
    )
    assert "; source as captured\n" in place.talk
    assert f"  source {source.path}\n" in place.talk
    layers = sorted(path.name for path in (place.store.root / "layers").iterdir())
    place.run()
    assert sorted(path.name for path in (place.store.root / "layers").iterdir()) == layers


def test_what_differs_from_the_capture_is_said_and_recorded(place: Place) -> None:
    (place.project / "train.py").write_text("print('other')")
    (place.project / "new.py").touch()
    done = place.run()
    assert done.start.source.differs == ("+ new.py", "~ train.py")
    assert "; changed since capture: + new.py, ~ train.py\n" in place.talk
    assert "\n    + new.py\n    ~ train.py\n" in place.talk
    assert (place.store.layers.path(done.start.source.digest) or Path()).joinpath("train.py").read_text() == "print('other')"


def test_runs_and_spec_never_get_into_the_source(place: Place) -> None:
    first = place.run(backend=Fake(writes(out_txt="1")), runs=place.project / "elsewhere")
    second = place.run(runs=place.project / "elsewhere")
    assert first.start.source.digest == second.start.source.digest


def test_the_file_we_print_to_is_no_part_of_the_source(place: Place) -> None:
    with (place.project / "log.txt").open("w") as log:
        log.write("started")
        log.flush()
        held = os.dup(2)
        os.dup2(log.fileno(), 2)
        try:
            done = place.run()
        finally:
            os.dup2(held, 2)
            os.close(held)
    assert done.start.source.differs == ()
    assert place.run().start.source.differs == ("+ log.txt",)


def test_frozen_runs_what_was_captured(place: Place) -> None:
    (place.project / "train.py").write_text("print('other')")
    done = place.run(frozen=True)
    source = place.spec.observed.source
    assert source is not None
    assert (done.start.source.digest, done.start.source.directory, done.start.source.differs) == (source.tree.sha256, None, ())
    assert "; captured source (--frozen)\n" in place.talk
    assert f"  source as captured at {source.path}\n" in place.talk


def test_without_a_live_tree_the_captured_source_is_used_and_said(place: Place) -> None:
    moved = place.folder.rename(place.project.parent / "repro")
    (place.project / "train.py").unlink()
    place.project.rmdir()
    place.folder = moved
    done = place.run(here=place.project.parent)
    assert done.start.source.directory is None
    assert f"{place.project.parent} holds none of the captured files" in place.talk
    assert f"working folder {place.project}" in place.talk


def test_frozen_without_the_blob_says_so(place: Place) -> None:
    source = place.spec.observed.source
    assert source is not None
    specs.blob(place.folder, source.tree).unlink()
    with pytest.raises(ArtifactError):
        place.run(frozen=True)
    (place.project / "new.py").touch()
    assert place.run().start.source.differs == ("+ new.py",)


def test_a_spec_without_source_is_refused(place: Place) -> None:
    place.spec = msgspec.structs.replace(place.spec, observed=msgspec.structs.replace(place.spec.observed, source=None))
    with pytest.raises((SourceError, UsageError)):
        place.run()


@pytest.mark.parametrize("code", [0, 7, 137])
def test_the_commands_own_code_is_in_the_end(place: Place, code: int) -> None:
    assert place.run(backend=Fake(lambda launch, folder: code)).end.outcome.exit_code == code


def test_a_command_that_never_started_leaves_no_run(place: Place) -> None:
    def work(launch: Launch, folder: Path) -> int:
        raise CommandMissingError("not there", where="x", hint="y")

    with pytest.raises(CommandMissingError):
        place.run(backend=Fake(work))
    assert place.runs == []
    assert not (place.project / "runs" / "latest").is_symlink()


def test_a_run_that_is_torn_off_is_interrupted(place: Place) -> None:
    def work(launch: Launch, folder: Path) -> int:
        assert records.read(folder).state == "running"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        place.run(backend=Fake(work))
    (folder,) = place.runs
    assert records.read(folder).start.command == ("train.py",)


def test_outputs_that_cannot_be_collected_do_not_cost_the_record(place: Place) -> None:
    class Broken(Fake):
        def collect(self, workspace: Path, snapshot: Path, files: Path) -> tuple[str, ...]:
            raise PermissionError(13, "Permission denied", "files/x")

    done = place.run(backend=Broken(writes(a_txt="a")))
    assert [one.path for one in done.end.outputs] == ["a.txt"]
    assert "not complete" in done.end.others[0]
    assert "not complete" in place.talk


def test_an_end_that_cannot_be_written_is_said(place: Place) -> None:
    def work(launch: Launch, folder: Path) -> int:
        (folder / "end.json").mkdir()
        return code

    code = 0
    with pytest.raises(RecordError, match="cannot be written"):
        place.run(backend=Fake(work))
    assert "could not be recorded" in place.talk
    code = 3
    assert place.run(backend=Fake(work)).end.outcome.exit_code == 3


def test_secrets_in_the_command_do_not_reach_the_record(place: Place) -> None:
    done = place.run("train.py", "--password", "hunter2hunter2", "--password=hunter2hunter2", "ghp_" + "a1" * 20)
    assert "hunter2" not in (done.folder / "start.json").read_text()
    assert "ghp_a1" not in (done.folder / "start.json").read_text()
    assert done.start.command[:2] == ("train.py", "--password")


def test_a_command_with_line_ends_is_recorded_and_read_back(place: Place) -> None:
    done = place.run("-c", "import os\nprint(1)\x1b[31m\udcff")
    assert records.read(done.folder).start.command[0] == "-c"


def test_variables_are_passed_and_recorded_by_name(place: Place, tmp_path: Path) -> None:
    (tmp_path / "vars").write_text("# a comment\n\nA=from file\nTOKEN=hunter2\nOWN\n  C=x=y \n")
    backend = Fake()
    done = place.run(
        backend=backend,
        env=(("A", "from option"), ("HOST", None)),
        env_file=tmp_path / "vars",
        environ={"HOST": "of the host", "OWN": "own", "STRAY": "x"},
    )
    assert backend.launch is not None
    values = {variable.name: variable.value for variable in backend.launch.env}
    assert (values["A"], values["HOST"], values["TOKEN"], values["OWN"], values["C"]) == (
        "from option",
        "of the host",
        "hunter2",
        "own",
        "x=y ",
    )
    assert "STRAY" not in values
    assert GivenVariable(name="HOST", how="host") in done.start.given
    assert [one.name for one in done.start.given] == ["A", "C", "HOST", "OWN", "TOKEN"]
    assert "hunter2" not in (done.folder / "start.json").read_text()


@pytest.mark.parametrize(
    "asked",
    [
        {"env": (("MISSING", None),)},
        {"env": (("1A", "x"),)},
        {"env": (("", "x"),)},
        {"env": (("A", "x\0y"),)},
        {"env_file": Path("/nonexistent")},
        {"env_file": Path("/dev/null/x")},
    ],
)
def test_a_variable_that_cannot_be_is_refused_before_anything(place: Place, asked: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        place.run(**asked)
    assert place.said == []
    assert not (place.project / "runs").exists()


def test_a_damaged_env_file_names_its_line(place: Place, tmp_path: Path) -> None:
    (tmp_path / "vars").write_text("A=1\nnot a variable\n")
    with pytest.raises(UsageError) as caught:
        place.run(env_file=tmp_path / "vars")
    assert caught.value.where.endswith("line 2")


def test_seeds(place: Place) -> None:
    assert place.run().start.seed == 0
    drawn = {place.run(seed="random").start.seed for _ in range(3)}
    assert len(drawn) > 1
    assert f"seed {place.run(seed=4294967295).start.seed}" in place.talk


def test_mounts_are_shown_recorded_and_checked(place: Place, tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "a").write_text("a")
    (tmp_path / "link").symlink_to("images")
    done = place.run(data=(("../images", "/data/images/"), (str(tmp_path / "link"), "")), checkpoints=(("ck", ""),))
    data, link, checkpoints = sorted(done.start.data, key=lambda one: one.target)
    assert (data.source, data.target) == (str(tmp_path / "images"), "/data/images")
    assert (link.source, link.target, link.digest) == (str(tmp_path / "images"), str(tmp_path / "link"), data.digest)
    assert (checkpoints.source, checkpoints.digest) == (str(place.project / "ck"), None)
    assert (place.project / "ck").is_dir()
    assert "made" in place.talk
    assert f"data {tmp_path}/images at /data/images (read-only)" in place.talk
    with pytest.raises(DataError, match="not there"):
        place.run(data=(("none", ""),))
    with pytest.raises(UsageError, match="image's own"):
        place.run(data=((str(tmp_path), "/proc"),))


def expecting(place: Place, path: Path) -> None:
    from repro_env.capture.data import fingerprint

    found = fingerprint(path, str(path), place.store.hashes)
    place.spec = place.at(place.spec, data=(Data(path=str(path), digest=found.digest, files=found.files, size=found.size),))


def test_data_of_the_capture_is_mounted_where_it_was_and_unchanged(place: Place, tmp_path: Path) -> None:
    images = tmp_path / "images"
    images.mkdir()
    (images / "a").write_text("a")
    expecting(place, images)
    backend = Fake()
    done = place.run(backend=backend)
    assert [(one.source, one.target, one.kind) for one in done.start.data] == [(str(images), str(images), "data")]
    assert done.start.data[0].digest is not None
    assert backend.launch is not None
    assert [(one.kind, one.source, one.target) for one in backend.launch.mounts] == [("data", str(images), str(images))]
    values = {variable.name: variable.value for variable in backend.launch.env}
    assert json.loads(values["REPRO_ENV_DATA"]) == {str(images): done.start.data[0].digest}
    for other, said in (("b", "other names or contents"), ("bb", "had 1 files with 1 bytes"), ("", "is empty")):
        (images / "a").write_text(other)
        with pytest.raises(DataError, match=said) as caught:
            place.run()
        assert f"--data PATH:{images}" in caught.value.hint
    with pytest.raises(DataError, match="differs from the capture"):
        place.run(data=((str(images), ""),))
    assert place.run(data=((str(images), ""),), data_changed=True).start.data
    assert not place.run(data_changed=True).start.data, "changed data is mounted only when it is named"
    moved = images.rename(tmp_path / "moved")
    with pytest.raises(DataError, match="is not there"):
        place.run()
    (moved / "a").write_text("a")
    done = place.run(data=((str(moved), str(images)),))
    assert [(one.source, one.target) for one in done.start.data] == [(str(moved), str(images))]


def test_data_of_a_spec_is_mounted_only_by_who_captured_it_and_only_when_its_digest_proves_something(
    place: Place, tmp_path: Path
) -> None:
    images = tmp_path / "images"
    images.mkdir()
    (images / "a").write_text("a")
    expecting(place, images)
    os.mkfifo(images / "pipe")
    with pytest.raises(DataError, match="a pipe, a socket or a device"):
        place.run()
    (images / "pipe").unlink()
    (images / "a").unlink()
    expecting(place, images)
    with pytest.raises(DataError, match="is empty"):
        place.run()
    (images / "a").write_text("a")
    expecting(place, images)
    assert place.run().start.data
    place.folder = place.folder.rename(tmp_path / "repro")  # beside no source, and not captured here
    with pytest.raises(DataError, match="is not there"):
        place.run(runs=tmp_path / "runs")


def fails(*missed: tuple[str, str]) -> Work:
    """A command that failed, and what its exceptions missed."""

    def work(launch: Launch, folder: Path) -> int:
        lines = [json.dumps({"failure": kind, "what": what}) + "\n" for kind, what in missed]
        Path(launch.notes, "notes.jsonl").write_text("".join(lines))
        return 1

    return work


def test_a_failed_command_is_told_which_option_brings_what_it_missed(place: Place, tmp_path: Path) -> None:
    (tmp_path / "data" / "train").mkdir(parents=True)
    (tmp_path / "x y.csv").touch()
    (place.project / "kept.bin").touch()
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "gitx").touch(mode=0o755)
    site = place.project / ".venv" / place.spec.identity.layout.purelib
    (site / "newer").mkdir(parents=True)
    (site / "single.py").touch()
    earlier = place.run(backend=Fake(writes(gen__m_bin="m"))).start.id[-8:]
    environ = {"HOME": "/home/ann", "PATH": f"{tmp_path}/bin"}

    def advice(*missed: tuple[str, str], command: tuple[str, ...] = ("train.py",), **more: Any) -> tuple[str, ...]:
        return place.run(*command, backend=Fake(fails(*missed)), **{"environ": environ, **more}).advice

    root = place.project
    assert advice(("path", f"{tmp_path}/data/train/1.npy"), ("path", f"{root}/nothing")) == (
        f"{tmp_path}/data/train is not in the run; to write to it: --checkpoints ../data/train",
    )
    (tmp_path / "data" / "train" / "1.npy").touch()
    missed = ("path", f"{tmp_path}/data/train/1.npy")
    show = f"{tmp_path}/data is not in the run; to show it there: --data"
    assert advice(missed) == (f"{show} ../data; to write to it: --checkpoints ../data",)
    assert advice(missed, here=tmp_path) == (f"{show} data; to write to it: --checkpoints data",)
    assert advice(("path", f"{tmp_path}/x y.csv")) == (
        f"{tmp_path}/x y.csv is not in the run; to show it there: --data '../x y.csv'",
    )
    assert advice(missed, data=(("../data", ""),)) == ()
    assert advice(("module", "newer"), ("module", "single"), ("module", "nowhere")) == tuple(
        f"{name} is installed in {place.project}/.venv now, but is not in the image; to add it: repro-env capture"
        for name in ("newer", "single")
    )
    assert advice(("program", "gitx"), ("program", "no-such")) == (
        "gitx is not in the image; to add it, capture again with --with gitx",
    )
    assert advice(("host", "")) == ("the run has no network; to allow it: --network",)
    assert advice(("host", ""), network=True) == ()
    assert advice(("path", f"{root}/gen/m.bin")) == (
        f"run {earlier} wrote gen/m.bin; to put its files into the project: repro-env runs get {earlier} --to {root}",
    )
    read_only = advice(("read-only", f"{tmp_path}/data/out"), data=(("../data", ""),))
    assert read_only == (f"{tmp_path}/data is data, which a run cannot change; for a directory that it can: --checkpoints DIR",)
    # The words of the command count only where nothing else was found.
    by_word = ("train.py", f"--in={tmp_path}/x y.csv", "/usr/bin/env", "/dev/null", str(root))
    assert len(advice(command=by_word)) == 1
    assert "single" in advice(("module", "single"), command=by_word)[0]
    assert place.run(*by_word).advice == (), "it did not fail"


def test_what_a_failed_command_says_of_itself_is_not_trusted(place: Place, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    hostile = [
        ("path", "relative"),
        ("path", "/" + "a/" * 3000),
        ("path", f"{tmp_path}/data\x1b[31m"),
        ("path", f"{tmp_path}/a/../data"),
    ]
    hostile += [("module", "../../etc"), ("module", ""), ("program", "../x"), ("program", ""), ("path", "/\0"), ("read-only", "")]
    found = place.run(backend=Fake(fails(*hostile))).advice
    assert found == (
        f"{tmp_path}/data is not in the run; to show it there: --data ../data; to write to it: --checkpoints ../data",
    )


@pytest.mark.parametrize(
    ("option", "name", "said"),
    [
        ("save", "file/out", "/file is no folder"),
        ("record", "file/out.json", "/file is no folder"),
        ("record", "folder", "is a folder"),
        ("save", "file", "is not empty"),
    ],
)
def test_a_place_that_cannot_be_written_is_refused_before_the_run(
    place: Place, tmp_path: Path, option: str, name: str, said: str
) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "folder").mkdir()
    backend = Fake()
    with pytest.raises(RecordError, match=f"--{option} .*{said}"):
        place.run(backend=backend, **{option: tmp_path / name})
    assert backend.launch is None
    assert place.runs == []


def test_what_may_not_be_looked_at_is_named(place: Place) -> None:
    """A name that is too long stands in for a folder of somebody else's, which root may always look at."""
    given: dict[str, Any]
    for option in ("data", "checkpoints"):
        given = {option: (("x" * 300, ""),)}
        with pytest.raises(DataError, match=f"--{option} x+: (cannot be|is not there)"):
            place.run(**given)


def test_outputs_are_saved_where_nothing_is_overwritten(place: Place, tmp_path: Path) -> None:
    def work(launch: Launch, folder: Path) -> int:
        writes(ck__w_pt="w")(launch, folder)
        (folder / "files" / "last").symlink_to("ck/w.pt")
        return 0

    place.run(backend=Fake(work), save=tmp_path / "saved")
    assert (tmp_path / "saved" / "ck" / "w.pt").read_text() == "w"
    assert (tmp_path / "saved" / "last").readlink() == Path("ck/w.pt")
    backend = Fake()
    with pytest.raises(RecordError, match="not empty"):
        place.run(backend=backend, save=tmp_path / "saved")
    assert backend.launch is None


def test_the_whole_record_in_one_file(place: Place, tmp_path: Path) -> None:
    done = place.run(record=tmp_path / "r.json")
    whole = json.loads((tmp_path / "r.json").read_text())
    assert (whole["start"]["id"], whole["end"]["id"]) == (done.start.id, done.end.id)


def test_a_record_file_that_cannot_be_written_is_our_error_after_the_run_is_recorded(place: Place) -> None:
    with pytest.raises(RecordError):
        place.run(record=Path("/proc/none/r.json"))
    assert records.read(place.runs[0]).state == "done"


def test_holes_are_collected_once_each_and_garbage_is_not_believed(place: Place) -> None:
    def work(launch: Launch, folder: Path) -> int:
        hole = {"library": "numpy", "what": "generator without a seed", "file": "/p/t.py", "line": 3}
        lines = [
            json.dumps(hole),
            json.dumps(hole),
            "garbage",
            '{"library": 5}',
            "[]",
            json.dumps({"problem": "torch: x\n"}),
            "\udcff",
        ]
        (Path(launch.notes) / "notes.jsonl").write_bytes("\n".join(lines).encode(errors="surrogateescape"))
        return 0

    done = place.run(backend=Fake(work))
    assert done.end.holes[0] == "numpy generator without a seed at /p/t.py:3"
    assert done.end.holes[1].startswith("seeds: torch: x")
    assert len(done.end.holes) == 2
    assert records.read(done.folder).end == done.end


def test_the_end_vouches_for_the_beginning(place: Place) -> None:
    done = place.run()
    assert done.end.start == f"sha256:{hashlib.sha256((done.folder / 'start.json').read_bytes()).hexdigest()}"


def test_metrics_and_parameters_are_read_from_outputs(place: Place) -> None:
    def work(launch: Launch, folder: Path) -> int:
        (folder / "files" / ".hydra").mkdir()
        (folder / "files" / ".hydra" / "config.yaml").write_text("lr: 1e-3\n")
        (folder / "files" / "metrics.json").write_text('{"accuracy": 0.5}')
        (folder / "files" / "broken.json").write_text('{"accuracy": ')
        return 0

    end = place.run(backend=Fake(work)).end
    assert [(one.file, one.name, one.last) for one in end.metrics] == [("metrics.json", "accuracy", 0.5)]
    assert [(one.file, one.name, one.value) for one in end.parameters] == [(".hydra/config.yaml", "lr", "1e-3")]
    assert any("broken.json" in line for line in end.unread)


def test_a_trace_is_kept_beside_the_record(place: Place) -> None:
    def work(launch: Launch, folder: Path) -> int:
        (Path(launch.notes) / "trace").mkdir()
        (Path(launch.notes) / "trace" / "0.jsonl").write_text("{}\n")
        return 0

    done = place.run(backend=Fake(work), trace=0)
    assert [one.path for one in done.end.trace] == ["0.jsonl"]
    assert (done.folder / "trace" / "0.jsonl").read_text() == "{}\n"
    assert not (done.folder / "notes").exists()
    assert place.run(backend=Fake()).end.trace == ()


def test_a_link_is_no_trace(place: Place, tmp_path: Path) -> None:
    """The notes folder is the script's to write to."""

    def work(launch: Launch, folder: Path) -> int:
        (Path(launch.notes) / "trace").symlink_to(tmp_path)
        return 0

    done = place.run(backend=Fake(work), trace=0)
    assert done.end.trace == ()
    assert not (done.folder / "trace").exists()
    assert tmp_path.is_dir()


def test_recipe_parents_tags_and_notes(place: Place) -> None:
    (place.project / "recipe.yaml").write_text("lr: 1\n")
    first = place.run(tags=("base",), note="the first")
    second = place.run(
        parents=(first.start.id[-8:],), recipe=("recipe.yaml",), data=((str(first.folder / "files"), "/data/first"),)
    )
    assert [one.path for one in second.start.recipe] == ["recipe.yaml"]
    assert {(one.id, one.how) for one in second.start.parents} == {(first.start.id, "named"), (first.start.id, "data")}
    assert {one.record for one in second.start.parents} == {
        f"sha256:{hashlib.sha256((first.folder / 'end.json').read_bytes()).hexdigest()}"
    }
    assert annotation.tags(annotation.of(first.folder)) == ("base",)
    assert [one.text for one in annotation.of(first.folder) if one.kind == "note"] == [("the first",)]
    runs = len(place.runs)
    wrong: tuple[dict[str, Any], ...] = ({"parents": ("nope",)}, {"recipe": ("nope.yaml",)}, {"tags": ("no tag\n",)})
    for options in wrong:
        with pytest.raises(ReproEnvError):
            place.run(**options)
    assert len(place.runs) == runs


def test_checkpoints_in_the_project_are_no_code(place: Place) -> None:
    """Else each run would have another source than the one before."""

    def work(launch: Launch, folder: Path) -> int:
        (place.project / "ck" / f"{launch.run_id}.pt").write_text("weights")
        return 0

    sources = [place.run(backend=Fake(work), checkpoints=(("ck", ""),)).start.source for _ in range(2)]
    assert sources[0] == sources[1]
    assert sources[0].differs == ()
    (place.project / "ck" / "by hand").write_text("x")
    assert place.run(checkpoints=(("ck", ""),)).start.source == sources[0]
    assert place.run().start.source.differs != (), "a folder that is not named is code like any other"


def test_a_mount_above_the_project_takes_no_code_away(place: Place) -> None:
    assert place.run(checkpoints=((str(place.project), "/kept"),)).start.source.differs == ()


def test_without_network_it_is_said(place: Place) -> None:
    place.run()
    assert "no network; W&B and Hugging Face are set to offline" in place.talk
    assert place.run(network=True).start.network


def test_runs_can_lie_elsewhere(place: Place, tmp_path: Path) -> None:
    done = place.run(runs=tmp_path / "r" / "s")
    assert done.folder.parent == tmp_path / "r" / "s"
    (tmp_path / "file").touch()
    with pytest.raises(RecordError, match="cannot be made"):
        place.run(runs=tmp_path / "file")


def test_the_host_runner_refuses_what_it_cannot_do(place: Place, tmp_path: Path) -> None:
    for private in (False, True):
        with pytest.raises(DriftError, match="not on this machine"):
            place.run(runner="host", private=private)
        with pytest.raises(UsageError, match="another path"):
            place.run(runner="host", private=private, data=((str(tmp_path), "/data"),))
    assert place.runs == []


@pytest.mark.parametrize(
    ("environ", "home"),
    [({"HOME": "/home/x/"}, "/home/x"), ({"HOME": "relative"}, None), ({"HOME": "/"}, None), ({"HOME": ""}, None)],
)
def test_there_is_always_a_home(environ: dict[str, str], home: str | None) -> None:
    user = asked.user_of(environ)
    assert isinstance(user, User)
    assert user.uid == os.geteuid()
    assert user.name
    assert user.home == (home or user.home)
    assert user.home.startswith("/")
    assert user.home != "/"


def test_the_host_runner_passes_no_variable_that_a_spec_would_replay() -> None:
    request = Asked(command=("x",), here=Path("/"), environ={"OMP_NUM_THREADS": "3", "LANG": "C", "OTHER": "1"}, runner="host")
    assert {variable.name for variable in asked.caller_of(request)} == {"OTHER"}


def test_the_record_is_read_only(place: Place) -> None:
    done = place.run()
    assert all(stat.S_IMODE((done.folder / name).stat().st_mode) == 0o444 for name in ("start.json", "end.json"))


def test_a_strangers_spec_cannot_have_another_directory_read(place: Place, tmp_path: Path) -> None:
    """Neither by the path of its source, nor by the place of its source from the spec."""
    private = tmp_path / "home"
    private.mkdir()
    (private / "train.py").write_bytes(specs.TREES["source"]["train.py"])
    (private / "secret.txt").write_text("not yours")
    source = place.spec.observed.source
    assert source is not None

    def named(**changes: Any) -> Spec:
        changed = msgspec.structs.replace(source, **changes)
        return msgspec.structs.replace(place.spec, observed=msgspec.structs.replace(place.spec.observed, source=changed))

    place.spec = named(path=str(private))
    assert place.run().start.source.directory == str(place.project)
    for relative in ("../../home", "../link"):
        (place.project / "link").symlink_to(private) if relative == "../link" else None
        place.spec = named(relative=relative)
        with pytest.raises(SourceError, match="outside the directory that holds the spec's"):
            place.run()
        assert place.run(frozen=True).start.source.directory is None
    done = place.run(source=private)
    assert (done.start.source.directory, done.start.source.differs) == (str(private), ("+ secret.txt",))
    sourcedir.remember(place.spec, place.store)
    assert place.run().start.source.directory == str(place.project / "link")


def test_paths_of_a_clone_are_those_of_the_captured_project_inside(place: Place, tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    shutil.copytree(place.project, clone)
    (clone / "sub" / "data").mkdir(parents=True)
    (clone / "sub" / "train.py").touch()
    place.folder = clone / "repro"
    backend = Fake()
    done = place.run(here=clone / "sub", data=(("data", ""), (str(clone), "/all")), backend=backend)
    assert backend.launch is not None
    assert (backend.launch.cwd, backend.launch.workspace) == (f"{place.project}/sub", str(place.project))
    assert {one.target: one.source for one in done.start.data} == {
        f"{place.project}/sub/data": f"{clone}/sub/data",
        "/all": str(clone),
    }
    assert done.folder.parent == clone / "runs"
    assert f"; source {clone} changed since capture: + sub/train.py\n" in place.talk
    assert f"  source {clone} at {place.project}\n" in place.talk
    place.run(here=place.project, command=("train.py",))
    assert f"working folder {place.project}: {place.project} is not" not in place.talk
    place.run(frozen=True, here=clone)
    assert place.runs == []


def test_a_command_that_began_and_whose_end_is_not_known_is_interrupted(place: Place) -> None:
    """Its engine went away: what it wrote stays, and the record has no end."""

    def work(launch: Launch, folder: Path) -> int:
        (folder / "files/half.txt").write_text("half")
        (Path(launch.notes) / "trace").mkdir()
        (Path(launch.notes) / "trace" / "rank0.jsonl").write_text("{}\n")
        raise EngineError("the engine went away", where="unix:///x", hint="start it")

    fake = Fake(work)
    fake.began = True
    with pytest.raises(EngineError, match="went away"):
        place.run(backend=fake)
    (folder,) = place.runs
    run = records.read(folder)
    assert run.state == "interrupted"
    assert (run.files / "half.txt").read_text() == "half"
    assert (folder / "trace" / "rank0.jsonl").exists(), "the steps that it made can be compared"
    assert not (folder / "notes").exists()
    fake.began = False
    with pytest.raises(EngineError):
        place.run(backend=fake)
    assert place.runs == [folder], "one that never began leaves none"
