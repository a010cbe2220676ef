"""Runs with a fake backend that does what each test needs. The image is real, rebuilt from small trees."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import shutil
import stat
from pathlib import Path
from typing import Any

import msgspec
import pytest

from repro_env.api import execute
from repro_env.runs.records import annotation, ids, records, submissions
from repro_env.runs.records.submissions import Submission
from repro_env.runs.start import request, sourcedirectory
from repro_env.runs.start.request import RunOptions
from repro_env.sandbox import gpus, memory
from repro_env.schema.environment import values_of
from repro_env.schema.errors import (
    ArtifactError,
    CommandMissingError,
    DataError,
    DriftError,
    RecordError,
    ReproEnvError,
    RunError,
    SourceError,
    UsageError,
)
from repro_env.schema.run import Job, Launch, Limits, User
from repro_env.schema.runners import RunnerName
from repro_env.schema.spec import Data, Defaults, Spec
from repro_env.specs.argument import Opened
from tests.api.place import Fake, Place, Work, writes
from tests.fakes import gpus as fake_gpus
from tests.fakes import specs
from tests.parts import need
from tests.sandbox import engines as fake_engines


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_a_run_is_recorded_from_start_to_end(place: Place) -> None:
    backend = Fake(writes(ck__w_pt="weights", log_txt="1"))
    done = place.run("train.py", "--lr", "1", backend=backend, seed=9)
    run = records.read(done.directory)
    assert (run.start, run.end, run.state) == (done.start, done.end, "done")
    assert done.directory == place.runs[0] == (place.project / "runs" / "latest").resolve()
    assert done.start.command == ("train.py", "--lr", "1")
    assert (done.start.seed, done.start.spec, done.start.image) == (9, place.spec.digest, place.spec.expected.image_id)
    assert [(output.path, output.size) for output in done.end.outputs] == [("ck/w.pt", 7), ("log.txt", 1)]
    assert sorted(path.name for path in done.directory.iterdir()) == ["end.json", "files", "lock", "start.json"]
    assert backend.launch is not None
    assert backend.launch.workspace == backend.launch.cwd == str(place.project)


def test_the_image_is_rebuilt_once_with_a_message(place: Place) -> None:
    place.run()
    assert "rebuilding it first" in place.talk
    place.lines.clear()
    place.run()
    assert "rebuilding" not in place.talk


def test_an_unchanged_source_is_not_stored_again(place: Place) -> None:
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


def test_differences_from_the_capture_are_printed_and_recorded(place: Place) -> None:
    (place.project / "train.py").write_text("print('other')")
    (place.project / "new.py").touch()
    done = place.run()
    assert done.start.source.differs == ("+ new.py", "~ train.py")
    assert "; changed since capture: + new.py, ~ train.py\n" in place.talk
    assert "\n    + new.py\n    ~ train.py\n" in place.talk
    assert (place.store.layers.path(done.start.source.digest) or Path()).joinpath("train.py").read_text() == "print('other')"


def test_runs_and_spec_are_not_part_of_the_source(place: Place) -> None:
    first = place.run(backend=Fake(writes(out_txt="1")), runs=place.project / "elsewhere")
    second = place.run(runs=place.project / "elsewhere")
    assert first.start.source.digest == second.start.source.digest


def test_the_file_that_exec_prints_to_is_not_part_of_the_source(place: Place) -> None:
    with (place.project / "log.txt").open("w") as log:
        log.write("started")
        log.flush()
        stderr = os.dup(2)
        os.dup2(log.fileno(), 2)
        try:
            done = place.run()
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)
    assert done.start.source.differs == ()
    assert place.run().start.source.differs == ("+ log.txt",)


def test_frozen_runs_the_captured_source(place: Place) -> None:
    (place.project / "train.py").write_text("print('other')")
    done = place.run(frozen=True)
    source = place.spec.observed.source
    assert source is not None
    assert (done.start.source.digest, done.start.source.directory, done.start.source.differs) == (source.tree.sha256, None, ())
    assert "; captured source (--frozen)\n" in place.talk
    assert f"  source as captured at {source.path}\n" in place.talk


def test_the_captured_source_is_used_with_a_message_if_there_is_no_source_directory(place: Place) -> None:
    spec_directory = place.directory.rename(place.project.parent / "repro")
    (place.project / "train.py").unlink()
    place.project.rmdir()
    place.directory = spec_directory
    done = place.run(here=place.project.parent)
    assert done.start.source.directory is None
    assert f"{place.project.parent} has none of the captured files" in place.talk
    assert f"working directory {place.project}" in place.talk


def test_frozen_fails_without_the_blob_of_the_source(place: Place) -> None:
    source = place.spec.observed.source
    assert source is not None
    specs.blob(place.directory, source.tree).unlink()
    with pytest.raises(ArtifactError):
        place.run(frozen=True)
    (place.project / "new.py").touch()
    assert place.run().start.source.differs == ("+ new.py",)


def test_exec_refuses_a_spec_without_source(place: Place) -> None:
    place.spec = msgspec.structs.replace(place.spec, observed=msgspec.structs.replace(place.spec.observed, source=None))
    with pytest.raises((SourceError, UsageError)):
        place.run()


@pytest.mark.parametrize("code", [0, 7, 137])
def test_the_exit_code_of_the_command_is_recorded(place: Place, code: int) -> None:
    assert place.run(backend=Fake(lambda launch, directory: code)).end.outcome.exit_code == code


def test_a_command_that_cannot_start_is_not_recorded(place: Place) -> None:
    def work(launch: Launch, directory: Path) -> int:
        raise CommandMissingError("not there", where="x", hint="y")

    with pytest.raises(CommandMissingError):
        place.run(backend=Fake(work))
    assert place.runs == []
    assert not (place.project / "runs" / "latest").is_symlink()


def test_an_interrupted_run_is_recorded(place: Place) -> None:
    def work(launch: Launch, directory: Path) -> int:
        assert records.read(directory).state == "running"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        place.run(backend=Fake(work))
    (directory,) = place.runs
    assert records.read(directory).start.command == ("train.py",)


def test_a_run_is_recorded_if_its_outputs_cannot_be_collected(place: Place) -> None:
    def work(launch: Launch, directory: Path) -> int:
        (directory / ".unfinished.json").write_text("damaged")
        return writes(a_txt="a")(launch, directory)

    done = place.run(backend=Fake(work))
    assert [output.path for output in done.end.outputs] == ["a.txt"]
    assert "not complete" in done.end.special_files[0]
    assert "not complete" in place.talk


def test_an_end_that_cannot_be_written_is_reported(place: Place) -> None:
    def work(launch: Launch, directory: Path) -> int:
        (directory / "end.json").mkdir()
        return code

    code = 0
    with pytest.raises(RecordError, match="cannot be written"):
        place.run(backend=Fake(work))
    assert "could not be recorded" in place.talk
    code = 3
    assert place.run(backend=Fake(work)).end.outcome.exit_code == 3


def test_secrets_in_the_command_are_not_recorded(place: Place) -> None:
    done = place.run("train.py", "--password", "hunter2hunter2", "--password=hunter2hunter2", "ghp_" + "a1" * 20)
    assert "hunter2" not in (done.directory / "start.json").read_text()
    assert "ghp_a1" not in (done.directory / "start.json").read_text()
    assert done.start.command[:2] == ("train.py", "--password")


def test_a_command_with_control_characters_is_recorded(place: Place) -> None:
    done = place.run("-c", "import os\nprint(1)\x1b[31m\udcff")
    assert records.read(done.directory).start.command[0] == "-c"


def test_variables_are_passed_and_recorded_by_name(place: Place, tmp_path: Path) -> None:
    (tmp_path / "vars").write_text("# a comment\n\nA=from file\nTOKEN=hunter2\nOWN\n  C=x=y \n")
    backend = Fake()
    done = place.run(
        backend=backend,
        env=(*request.read_env_file(tmp_path / "vars"), ("A", "from option"), ("HOST", None)),
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
    assert done.start.env_names == ("A", "C", "HOST", "OWN", "TOKEN")
    assert "hunter2" not in (done.directory / "start.json").read_text()


def test_the_hidden_secret_is_the_value_that_the_command_gets(tmp_path: Path) -> None:
    (tmp_path / "vars").write_text("API_TOKEN=from-the-env-file\n")
    options = RunOptions(
        command=("x",),
        here=Path("/"),
        environ={"API_TOKEN": "from-the-caller"},
        env={**dict(request.read_env_file(tmp_path / "vars")), "API_TOKEN": "from-the-option"},
    )
    assert request.secrets_of(options) == {"from-the-option"}


@pytest.mark.parametrize(
    "options",
    [
        {"env": (("MISSING", None),)},
        {"env": (("1A", "x"),)},
        {"env": (("", "x"),)},
        {"env": (("A", "x\0y"),)},
    ],
)
def test_exec_refuses_an_invalid_variable_before_anything_else(place: Place, options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        place.run(**options)
    assert place.lines == []
    assert not (place.project / "runs").exists()


@pytest.mark.parametrize("path", ["/nonexistent", "/dev/null/x"])
def test_an_env_file_that_cannot_be_read_is_refused(path: str) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        request.read_env_file(Path(path))


def test_the_error_for_an_env_file_names_the_line(tmp_path: Path) -> None:
    (tmp_path / "vars").write_text("A=1\nnot a variable\n")
    with pytest.raises(UsageError) as caught:
        request.read_env_file(tmp_path / "vars")
    assert caught.value.where.endswith("line 2")


def test_the_seed_is_given_drawn_or_the_default_of_the_spec(place: Place) -> None:
    assert place.run().start.seed == 0
    place.spec = msgspec.structs.replace(place.spec, defaults=Defaults(seed=7))
    assert place.run().start.seed == 7
    seeds = {place.run(seed="random").start.seed for _ in range(3)}
    assert len(seeds) > 1
    assert f"seed {place.run(seed=4294967295).start.seed}" in place.talk


def test_mounts_are_printed_recorded_and_checked(place: Place, tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "a").write_text("a")
    (tmp_path / "link").symlink_to("images")
    done = place.run(data=(("../images", "/data/images/"), (str(tmp_path / "link"), "")), checkpoints=(("ck", ""),))
    data, link, checkpoints = sorted(done.start.data, key=lambda mount: mount.target)
    assert (data.source, data.target) == (str(tmp_path / "images"), "/data/images")
    assert (link.source, link.target, link.digest) == (str(tmp_path / "images"), str(tmp_path / "link"), data.digest)
    assert (checkpoints.source, checkpoints.digest) == (str(place.project / "ck"), None)
    assert (place.project / "ck").is_dir()
    assert "created" in place.talk
    assert f"data {tmp_path}/images at /data/images (read-only)" in place.talk
    with pytest.raises(DataError, match="does not exist"):
        place.run(data=(("none", ""),))
    with pytest.raises(UsageError, match="belongs to the image"):
        place.run(data=((str(tmp_path), "/proc"),))


def capture_data(place: Place, path: Path) -> None:
    """Add data to the spec as if they had been named at capture."""
    from repro_env.environment.source.data import look

    data = look(path, str(path), place.store.hashes).data
    place.spec = place.at(place.spec, data=(Data(path=str(path), digest=data.digest, files=data.files, size=data.size),))


def test_captured_data_are_mounted_if_they_are_unchanged(place: Place, tmp_path: Path) -> None:
    images = tmp_path / "images"
    images.mkdir()
    (images / "a").write_text("a")
    capture_data(place, images)
    backend = Fake()
    done = place.run(backend=backend)
    assert [(data.source, data.target, data.kind) for data in done.start.data] == [(str(images), str(images), "data")]
    assert done.start.data[0].digest is not None
    assert backend.launch is not None
    assert [(mount.kind, mount.source, mount.target) for mount in backend.launch.mounts] == [("data", str(images), str(images))]
    values = {variable.name: variable.value for variable in backend.launch.env}
    assert json.loads(values["REPRO_ENV_DATA"]) == {str(images): done.start.data[0].digest}
    for text, error in (("b", "names or contents differ"), ("bb", "had 1 files with 1 bytes"), ("", "is empty")):
        (images / "a").write_text(text)
        with pytest.raises(DataError, match=error) as caught:
            place.run()
        assert f"--data PATH:{images}" in caught.value.hint
    with pytest.raises(DataError, match="differ from the capture"):
        place.run(data=((str(images), ""),))
    assert place.run(data=((str(images), ""),), data_changed=True).start.data
    assert not place.run(data_changed=True).start.data, "changed data are mounted only if they are named"
    moved = images.rename(tmp_path / "moved")
    with pytest.raises(DataError, match="were not found"):
        place.run()
    (moved / "a").write_text("a")
    done = place.run(data=((str(moved), str(images)),))
    assert [(data.source, data.target) for data in done.start.data] == [(str(moved), str(images))]


def test_captured_data_are_mounted_only_for_a_trusted_spec_and_a_conclusive_digest(place: Place, tmp_path: Path) -> None:
    images = tmp_path / "images"
    images.mkdir()
    (images / "a").write_text("a")
    capture_data(place, images)
    os.mkfifo(images / "pipe")
    with pytest.raises(DataError, match="a pipe, socket or device"):
        place.run()
    (images / "pipe").unlink()
    (images / "a").unlink()
    capture_data(place, images)
    with pytest.raises(DataError, match="is empty"):
        place.run()
    (images / "a").write_text("a")
    capture_data(place, images)
    assert place.run().start.data
    place.directory = place.directory.rename(tmp_path / "repro")  # not next to its source, and not captured here
    with pytest.raises(DataError, match="were not found"):
        place.run(runs=tmp_path / "runs")


def fails(*missed: tuple[str, str]) -> Work:
    """Return a command that fails; `missed` is what its exceptions did not find."""

    def work(launch: Launch, directory: Path) -> int:
        lines = [json.dumps({"failure": kind, "what": what}) + "\n" for kind, what in missed]
        Path(launch.reports, "reports.jsonl").write_text("".join(lines))
        return 1

    return work


def test_advice_names_the_option_that_provides_what_a_command_missed(place: Place, tmp_path: Path) -> None:
    (tmp_path / "data" / "train").mkdir(parents=True)
    (tmp_path / "x y.csv").touch()
    (place.project / "kept.bin").touch()
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "gitx").touch(mode=0o755)
    site = place.project / ".venv" / place.spec.identity.layout.purelib
    (site / "newer").mkdir(parents=True)
    (site / "single.py").touch()
    environ = {"HOME": "/home/ann", "PATH": f"{tmp_path}/bin"}

    def advice(*missed: tuple[str, str], command: tuple[str, ...] = ("train.py",), **options: Any) -> tuple[str, ...]:
        return place.run(*command, backend=Fake(fails(*missed)), **{"environ": environ, **options}).advice

    root = place.project
    assert advice(("path", f"{tmp_path}/data/train/1.npy"), ("path", f"{root}/nothing")) == (
        f"{tmp_path}/data/train is not in the run; to write to it: --checkpoints {tmp_path}/data/train",
    )
    (tmp_path / "data" / "train" / "1.npy").touch()
    missed = ("path", f"{tmp_path}/data/train/1.npy")
    show = f"{tmp_path}/data is not in the run; to mount it: --data"
    assert advice(missed) == (f"{show} {tmp_path}/data; to write to it: --checkpoints {tmp_path}/data",)
    single = f"{tmp_path}/x y.csv"
    assert advice(("path", single)) == (f"{single} is not in the run; to mount it: --data '{single}'",)
    (root / "linked").symlink_to(single)
    assert advice(("path", f"{root}/linked")) == (f"{single} is not in the run; to mount it: --data '{single}'",)
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
    read_only = advice(("read-only", f"{tmp_path}/data/out"), data=(("../data", ""),))
    assert read_only == (
        f"{tmp_path}/data is data, which is read-only in a run; to mount a writable directory: --checkpoints DIR",
    )
    # The arguments of the command are used only if the exceptions gave no advice.
    command = ("train.py", f"--in={tmp_path}/x y.csv", "/usr/bin/env", "/dev/null", str(root))
    assert len(advice(command=command)) == 1
    assert "single" in advice(("module", "single"), command=command)[0]
    assert place.run(*command).advice == (), "the command did not fail"


def test_what_a_failed_command_reports_is_not_trusted(place: Place, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    hostile = [
        ("path", "relative"),
        ("path", "/" + "a/" * 3000),
        ("path", f"{tmp_path}/data\x1b[31m"),
        ("path", f"{tmp_path}/a/../data"),
    ]
    hostile += [("module", "../../etc"), ("module", ""), ("program", "../x"), ("program", ""), ("path", "/\0"), ("read-only", "")]
    assert place.run(backend=Fake(fails(*hostile))).advice == (
        f"{tmp_path}/data is not in the run; to mount it: --data {tmp_path}/data; to write to it: --checkpoints {tmp_path}/data",
    )


def test_the_error_for_an_inaccessible_path_names_the_option(place: Place) -> None:
    """The name is too long. An unreadable directory would not be an error for root."""
    options: dict[str, Any]
    for option in ("data", "checkpoints"):
        options = {option: (("x" * 300, ""),)}
        with pytest.raises(DataError, match=f"--{option} x+: (this path cannot be accessed|this path does not exist)"):
            place.run(**options)


def test_unseeded_generators_are_recorded_once_each_and_invalid_reports_are_skipped(place: Place) -> None:
    def work(launch: Launch, directory: Path) -> int:
        note = {"library": "numpy", "what": "generator without a seed", "file": "/p/t.py", "line": 3}
        lines = [
            json.dumps(note),
            json.dumps(note),
            "garbage",
            '{"library": 5}',
            "[]",
            json.dumps({"problem": "torch: x\n"}),
            "\udcff",
        ]
        (Path(launch.reports) / "reports.jsonl").write_bytes("\n".join(lines).encode(errors="surrogateescape"))
        return 0

    done = place.run(backend=Fake(work))
    assert done.end.auto_seeded[0] == "numpy generator without a seed at /p/t.py:3"
    assert done.end.auto_seeded[1].startswith("seeds: torch: x")
    assert len(done.end.auto_seeded) == 2
    assert records.read(done.directory).end == done.end


def test_the_end_has_the_digest_of_the_start(place: Place) -> None:
    done = place.run()
    assert done.end.start == f"sha256:{hashlib.sha256((done.directory / 'start.json').read_bytes()).hexdigest()}"


def test_metrics_and_parameters_are_read_from_outputs(place: Place) -> None:
    def work(launch: Launch, directory: Path) -> int:
        (directory / "files" / ".hydra").mkdir()
        (directory / "files" / ".hydra" / "config.yaml").write_text("lr: 1e-3\n")
        (directory / "files" / "metrics.json").write_text('{"accuracy": 0.5}')
        (directory / "files" / "broken.json").write_text('{"accuracy": ')
        return 0

    end = place.run(backend=Fake(work)).end
    assert [(metric.file, metric.name, metric.last) for metric in end.metrics] == [("metrics.json", "accuracy", 0.5)]
    assert [(parameter.file, parameter.name, parameter.value) for parameter in end.parameters] == [
        (".hydra/config.yaml", "lr", "1e-3")
    ]
    assert any("broken.json" in line for line in end.unparsed_outputs)


def test_a_trace_is_kept_in_the_run_directory(place: Place) -> None:
    def work(launch: Launch, directory: Path) -> int:
        (Path(launch.reports) / "trace").mkdir()
        (Path(launch.reports) / "trace" / "0.jsonl").write_text("{}\n")
        return 0

    done = place.run(backend=Fake(work), trace=True)
    assert [file.path for file in done.end.trace] == ["0.jsonl"]
    assert (done.directory / "trace" / "0.jsonl").read_text() == "{}\n"
    assert not (done.directory / "reports").exists()
    assert place.run(backend=Fake()).end.trace == ()


def test_a_symlink_is_not_followed_to_a_trace(place: Place, tmp_path: Path) -> None:
    """The script can write to the directory of the reports."""

    def work(launch: Launch, directory: Path) -> int:
        (Path(launch.reports) / "trace").symlink_to(tmp_path)
        return 0

    done = place.run(backend=Fake(work), trace=True)
    assert done.end.trace == ()
    assert not (done.directory / "trace").exists()
    assert tmp_path.is_dir()


def test_parents_tags_and_notes_are_recorded(place: Place) -> None:
    first = place.run(tags=("base",), note="the first")
    second = place.run(parents=(first.start.id[-8:],), data=((str(first.directory / "files"), "/data/first"),))
    assert {(parent.id, parent.how) for parent in second.start.parents} == {(first.start.id, "named"), (first.start.id, "data")}
    assert {parent.record for parent in second.start.parents} == {
        f"sha256:{hashlib.sha256((first.directory / 'end.json').read_bytes()).hexdigest()}"
    }
    assert annotation.tags(annotation.of(first.directory)) == ("base",)
    assert [note.text for note in annotation.of(first.directory) if note.kind == "note"] == [("the first",)]
    runs = len(place.runs)
    invalid: tuple[dict[str, Any], ...] = ({"parents": ("nope",)}, {"tags": ("no tag\n",)})
    for options in invalid:
        with pytest.raises(ReproEnvError):
            place.run(**options)
    assert len(place.runs) == runs


def test_checkpoints_in_the_project_are_not_part_of_the_source(place: Place) -> None:
    """Otherwise the source would change with every run."""

    def work(launch: Launch, directory: Path) -> int:
        (place.project / "ck" / f"{launch.run_id}.pt").write_text("weights")
        return 0

    sources = [place.run(backend=Fake(work), checkpoints=(("ck", ""),)).start.source for _ in range(2)]
    assert sources[0] == sources[1]
    assert sources[0].differs == ()
    (place.project / "ck" / "by hand").write_text("x")
    assert place.run(checkpoints=(("ck", ""),)).start.source == sources[0]
    assert place.run().start.source.differs != (), "a directory that is not named is part of the source"


def test_a_checkpoint_mount_of_the_project_itself_keeps_the_source(place: Place) -> None:
    assert place.run(checkpoints=((str(place.project), "/kept"),)).start.source.differs == ()


def test_exec_reports_that_there_is_no_network(place: Place) -> None:
    place.run()
    assert "no network; W&B and Hugging Face are set to offline" in place.talk
    assert place.run(network=True).start.network


def test_runs_can_be_recorded_in_another_directory(place: Place, tmp_path: Path) -> None:
    done = place.run(runs=tmp_path / "r" / "s")
    assert done.directory.parent == tmp_path / "r" / "s"
    (tmp_path / "file").touch()
    with pytest.raises(RecordError, match="cannot be written"):
        place.run(runs=tmp_path / "file")


def test_the_host_runner_refuses_a_missing_environment_and_mounts_at_other_paths(place: Place, tmp_path: Path) -> None:
    with pytest.raises(DriftError, match="not on this machine"):
        place.run(runner="host")
    with pytest.raises(UsageError, match="another path"):
        place.run(runner="host", data=((str(tmp_path), "/data"),))
    assert place.runs == []


@pytest.mark.parametrize(
    ("environ", "home"),
    [({"HOME": "/home/x/"}, "/home/x"), ({"HOME": "relative"}, None), ({"HOME": "/"}, None), ({"HOME": ""}, None)],
)
def test_every_user_has_a_home_directory(environ: dict[str, str], home: str | None) -> None:
    user = request.user_of(environ)
    assert isinstance(user, User)
    assert user.uid == os.geteuid()
    assert user.name
    assert user.home == (home or user.home)
    assert user.home.startswith("/")
    assert user.home != "/"


def test_the_host_runner_does_not_pass_replayed_variables() -> None:
    options = RunOptions(
        command=("x",), here=Path("/"), environ={"OMP_NUM_THREADS": "3", "LANG": "C", "OTHER": "1"}, runner="host"
    )
    assert {variable.name for variable in request.caller_variables_of(options)} == {"OTHER"}


def test_the_files_of_a_record_are_read_only(place: Place) -> None:
    done = place.run()
    assert all(stat.S_IMODE((done.directory / name).stat().st_mode) == 0o444 for name in ("start.json", "end.json"))


def test_a_foreign_spec_cannot_make_exec_read_another_directory(place: Place, tmp_path: Path) -> None:
    """Neither by the absolute nor by the relative path of its source."""
    private = tmp_path / "home"
    private.mkdir()
    (private / "train.py").write_bytes(specs.TREES["source"]["train.py"])
    (private / "secret.txt").write_text("not yours")
    source = place.spec.observed.source
    assert source is not None

    def with_source(**changes: Any) -> Spec:
        changed = msgspec.structs.replace(source, **changes)
        return msgspec.structs.replace(place.spec, observed=msgspec.structs.replace(place.spec.observed, source=changed))

    place.spec = with_source(path=str(private))
    assert place.run().start.source.directory == str(place.project)
    for relative in ("../../home", "../link"):
        (place.project / "link").symlink_to(private) if relative == "../link" else None
        place.spec = with_source(relative=relative)
        with pytest.raises(SourceError, match="which is outside its project"):
            place.run()
        assert place.run(frozen=True).start.source.directory is None
    done = place.run(source=private)
    assert (done.start.source.directory, done.start.source.differs) == (str(private), ("+ secret.txt",))
    sourcedirectory.remember(place.spec, place.store)
    assert place.run().start.source.directory == str(place.project / "link")


def test_a_run_sees_a_clone_at_the_path_of_the_captured_project(place: Place, tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    shutil.copytree(place.project, clone)
    (clone / "sub" / "data").mkdir(parents=True)
    (clone / "sub" / "train.py").touch()
    place.directory = clone / "repro"
    backend = Fake()
    done = place.run(here=clone / "sub", data=(("data", ""), (str(clone), "/all")), backend=backend)
    assert backend.launch is not None
    assert (backend.launch.cwd, backend.launch.workspace) == (f"{place.project}/sub", str(place.project))
    assert {mount.target: mount.source for mount in done.start.data} == {
        f"{place.project}/sub/data": f"{clone}/sub/data",
        "/all": str(clone),
    }
    assert done.directory.parent == clone / "runs"
    assert f"; source {clone} changed since capture: + sub/train.py\n" in place.talk
    assert f"  source {clone} at {place.project}\n" in place.talk
    place.run(here=place.project, command=("train.py",))
    assert f"working directory {place.project}, because" not in place.talk
    place.run(frozen=True, here=clone)
    assert place.runs == []


def test_execute_completes_the_options_with_the_command_and_the_caller(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[RunOptions] = []
    monkeypatch.chdir(place.project)
    monkeypatch.setattr(execute, "run", lambda options, opened, **others: seen.append(options))
    opened = Opened(place.spec, place.directory)
    (place.project / "vars").write_text("A=file\nC=3\n")
    asked = RunOptions(data={"a": "/b"}, env={"A": "1", "B": None}, env_file=Path("vars"), runs=Path("r"), source=Path("s"))
    execute.execute(opened, ["x", "y"], asked, store=place.store)
    (made,) = seen
    assert (made.command, made.data, made.here) == (("x", "y"), {"a": "/b"}, place.project)
    assert (made.env, made.env_file) == ({"A": "1", "C": "3", "B": None}, None)
    assert (made.runs, made.source) == (place.project / "r", place.project / "s")
    (place.project / "vars").unlink()
    assert made.with_command(made.command, place.project) == made
    for command in ([], [""]):
        with pytest.raises(UsageError):
            execute.execute(opened, command, store=place.store)


def test_random_ids_are_seeded_with_strict_determinism(place: Place) -> None:
    options: tuple[dict[str, Any], ...] = ({}, {"determinism": "strict"}, {"determinism": "strict", "ids": "system"})
    assert [place.run(**each).start.ids for each in options] == ["system", "seeded", "system"]


def captured_with_gpus(place: Place) -> None:
    host = msgspec.structs.replace(place.spec.observed.host, gpus=("NVIDIA H100 80GB HBM3",) * 2)
    place.spec = place.at(place.spec, host=host)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The root of a machine, whose files of GPUs a run sees instead of this machine's."""
    root = tmp_path / "machine"
    root.mkdir()
    monkeypatch.setattr(gpus, "look", functools.partial(gpus.look, root=root))
    return root


def test_a_run_gets_all_gpus_if_the_environment_was_captured_with_gpus(place: Place, machine: Path) -> None:
    fake_gpus.with_cdi(fake_gpus.nvidia(machine, mig=True))
    backend = Fake()
    assert place.run(backend=backend).start.gpus == 0
    captured_with_gpus(place)
    for options, count in (({}, 2), ({"gpus": "none"}, 0), ({"gpus": 0}, 0), ({"gpus": 1}, 1), ({"gpus": "all"}, 2)):
        start = place.run(backend=backend, **options).start
        assert backend.launch is not None
        assert (start.gpus, len(start.devices), len(backend.launch.gpus.facts)) == (count, count, count)
        assert ("NVIDIA_VISIBLE_DEVICES" in values_of(backend.launch.env)) == bool(count)
        assert all(fact.driver == "nvidia 580.159.04" for fact in start.devices)
    assert fake_gpus.UUID.format(1) not in (place.runs[-1] / "start.json").read_text()
    assert "  GPU NVIDIA H100 80GB HBM3 (2 of them)" in place.lines
    given = place.run(backend=backend, env=(("NVIDIA_VISIBLE_DEVICES", "1"),))
    assert backend.launch is not None
    assert (values_of(backend.launch.env)["NVIDIA_VISIBLE_DEVICES"], given.start.gpus) == ("1", 2)


def test_a_machine_without_gpus_is_reported_if_the_environment_was_captured_with_gpus(place: Place, machine: Path) -> None:
    place.run()
    assert "GPU" not in place.talk
    captured_with_gpus(place)
    assert place.run().start.gpus == 0
    assert "the run has no GPU: this machine has no GPU (GPUs here: none; captured: 2 x NVIDIA H100 80GB HBM3)" in place.talk


@pytest.mark.parametrize("runner", ["embedded", "docker"])
def test_requested_gpus_that_this_machine_lacks_are_an_error_before_the_run(
    place: Place, machine: Path, runner: RunnerName
) -> None:
    if runner == "docker":
        need(fake_engines.answers(), "a Docker engine that answers")
    with pytest.raises(RunError, match="this machine has no GPU"):
        place.run(runner=runner, gpus=1)
    assert not place.runs


def test_the_host_runner_refuses_a_choice_of_gpus(place: Place) -> None:
    with pytest.raises(UsageError, match=r"the host runner uses all GPUs and does not support --gpus 1"):
        place.run(runner="host", gpus=1)


def test_limits_are_recorded_and_what_is_not_enforced_is_said(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = Fake()
    wanted: dict[str, Any] = {"memory": 8 << 30, "cpus": 1, "seconds": 60}
    done = place.run(backend=backend, **wanted)
    assert backend.launch is not None
    assert done.start.limits == backend.launch.limits == Limits(memory=8 << 30, cpus=1, seconds=60)
    monkeypatch.setattr(memory, "directories", lambda controller: iter(()))
    place.run(**wanted)
    assert "not as requested: memory: not limited, because no control group can be made here" in place.lines
    assert "not as requested: cpus: limited to 1 by affinity, because no control group can be made here" in place.lines


def test_a_resumed_run_has_the_outputs_and_the_seed_of_the_other_run(place: Place) -> None:
    first = place.run(backend=Fake(writes(state_txt="1")), seed=5)
    backend = Fake()
    second = place.run(backend=backend, resume="latest")
    assert backend.launch is not None
    assert backend.launch.resumed == str(first.directory)
    assert (second.start.resume_of, second.start.seed, second.start.resumes) == (first.start.id, 5, 1)
    (parent,) = second.start.parents
    assert (parent.id, parent.how, parent.record) == (first.start.id, "outputs", records.digest(first.directory / "end.json"))
    assert place.run(resume="latest", seed=6).start.seed == 6
    assert "resumes the run" in place.talk


def test_a_killed_run_without_its_code_in_the_store_is_not_resumed(place: Place) -> None:
    directory = place.run(backend=Fake(writes(state_txt="1"))).directory
    (directory / "end.json").unlink()
    (directory / ".unfinished.json").write_text("{}")
    with pytest.raises(RecordError, match="cannot be separated from its code"):
        place.run(resume="latest")


def test_a_run_with_a_chosen_id_uses_the_code_of_its_submission(place: Place) -> None:
    run_id = ids.new()
    options = RunOptions(command=("train.py",), here=place.project, environ={"HOME": "/home/ann"})
    inputs = execute.prepare(
        options, Opened(place.spec, place.directory), compiles=False, is_here=False, store=place.store, tell=place
    )
    start = msgspec.structs.replace(inputs.start, id=run_id)
    submissions.write(inputs.runs, Submission(engine="slurm", start=start))
    assert place.runs == []
    (place.project / "train.py").write_text("print('edited later')")
    environ = {"HOME": "/home/ann", "SLURM_JOB_ID": "7", "SLURMD_NODENAME": "n1"}
    done = place.run(run_id=run_id, environ=environ)
    assert (done.start.id, done.start.source) == (run_id, start.source)
    assert done.start.job == Job(engine="slurm", id="7", node="n1")
    again = place.run(run_id=run_id, environ=environ)  # the job was queued again
    assert again.start.id != run_id
    assert (again.start.resume_of, again.start.source) == (run_id, start.source)
    third = place.run(run_id=run_id, environ=environ)
    assert (third.start.resume_of, third.start.resumes) == (again.start.id, 2)


def test_a_submitted_run_whose_code_is_not_in_the_store_does_not_start(place: Place) -> None:
    run_id = ids.new()
    start = place.run().start
    source = msgspec.structs.replace(start.source, digest="sha256:" + "1" * 64, with_ignored=None)
    submissions.write(
        place.project / "runs", Submission(engine="slurm", start=msgspec.structs.replace(start, id=run_id, source=source))
    )
    with pytest.raises(ArtifactError, match="the code of the submitted run is not in this store"):
        place.run(run_id=run_id)
