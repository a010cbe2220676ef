"""Runs of a tiny real spec go from one user to another, through a directory and through a real registry."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import msgspec
import pytest

from repro_env.api import audit, lineage, runsshare
from repro_env.api import runs as use_case
from repro_env.api.execute import FinishedRun
from repro_env.api.runsshare import list_shared_runs, pull_runs, push_runs
from repro_env.io.files import sha256_of
from repro_env.runs.catalog import part
from repro_env.runs.records import annotation, pulled, records, verdicts
from repro_env.schema import codec
from repro_env.schema.errors import ArtifactError, CaptureError, RecordError, ReproEnvError, SpecVersionError, UsageError
from repro_env.schema.progress import Advance, Silent
from repro_env.schema.run import Launch
from repro_env.schema.rundirectory import PULLED
from repro_env.store.store import Store
from tests.api.place import Fake, Place, writes
from tests.fakes.messages import Messages
from tests.fakes.rights import file_modes_obeyed
from tests.registries import registry

LARGE = "x" * (part.SMALL + 1)


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with registry(tmp_path_factory.mktemp("registry")) as found:
        yield found


@pytest.fixture
def directory(tmp_path: Path) -> str:
    (tmp_path / "team").mkdir()
    return str(tmp_path / "team")


@pytest.fixture(params=["directory", "registry"])
def catalog(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "no-docker"))
    if request.param == "registry":
        return f"{request.getfixturevalue('host')}/{tmp_path.name.lower().replace('_', '-').strip('-')}"
    found = request.getfixturevalue("directory")
    assert isinstance(found, str)
    return found


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


class User:
    """Another user: an empty directory of runs, and a store."""

    def __init__(self, root: Path) -> None:
        root.mkdir()
        self.runs = root / "runs"
        self.store = Store.open(root / "store")

    def pull(self, catalog: str, *words: str, **options: object) -> list[tuple[str, str]]:
        """Pull runs; nothing may fail. Returns (ID, state)."""
        done = self.try_pull(catalog, *words, **options)
        assert done.failed == ()
        return [(run.id, run.state) for run in done.runs]

    def try_pull(self, catalog: str, *words: str, **options: object) -> runsshare.PulledRuns:
        return pull_runs(catalog, words, runs=self.runs, store=self.store, **options)  # type: ignore[arg-type]

    def refuses(self, catalog: str, text: str, kind: type[ReproEnvError] = RecordError) -> ReproEnvError:
        """Pull, and return the error, which must have this text. Nothing of the run may be left behind."""
        before = sorted(path.name for path in self.runs.glob("*-train-*"))
        (failed,) = self.try_pull(catalog).failed
        assert isinstance(failed.why, kind), failed.why
        assert text in str(failed.why), failed.why
        assert failed.why.hint
        assert sorted(path.name for path in self.runs.glob("*-train-*")) == before
        return failed.why


@pytest.fixture
def ben(tmp_path: Path) -> User:
    return User(tmp_path / "ben")


def run(place: Place, *command: str, **files: str) -> FinishedRun:
    return place.run(*command, backend=Fake(writes(**(files or {"ck__w_pt": "weights", "log_txt": "1"}))))


def push(place: Place, catalog: str, *words: str, **options: object) -> runsshare.Pushed:
    done = push_runs(catalog, words, runs=place.project / "runs", store=place.store, **options)  # type: ignore[arg-type]
    assert done.failed == ()
    return done


def files_of(directory: Path) -> dict[str, str]:
    """The files of a run by path, without those that only this machine needs."""
    paths = (path for path in directory.rglob("*") if path.is_file())
    return {str(path.relative_to(directory)): sha256_of(path) for path in paths if path.name not in ("lock", PULLED)}


def blob(catalog: str, file: Path) -> Path:
    return Path(catalog, "blobs", "sha256", sha256_of(file))


def test_a_run_comes_home_with_its_spec_and_its_changed_code(place: Place, ben: User, catalog: str) -> None:
    (place.project / "train.py").write_text("print('changed since the capture')\n")
    done = run(place, ck__w_pt=LARGE, log_txt="1")
    annotation.add(done.directory, kind="tag", text="paper/1")
    verdicts.write(done.directory, {"level": "bitwise", "same": True, "ignored": 0}, ["bitwise"])
    pushed = push(place, catalog)
    assert [(sent.id, sent.left_out) for sent in pushed.runs] == [(done.start.id, ())]
    assert ben.pull(catalog) == [(done.start.id, "pulled")]
    (directory,) = records.directories(ben.runs)
    assert directory.name == done.directory.name
    assert files_of(directory) == files_of(done.directory)
    home = records.read(directory)
    assert (home.start, home.end, home.state, home.tags) == (done.start, done.end, "done", ("paper/1",))
    found = audit.audit(ben.runs, (), here=ben.runs.parent, store=ben.store, ask=False, tell=Silent())
    assert (found.findings, found.checked["code"], found.checked["image"]) == ((), 1, 1)
    assert ben.store.layers.path(done.start.source.digest) is not None
    answer = lineage.lineage(str(directory / "files" / "ck" / "w.pt"), here=ben.runs.parent, store=ben.store)
    assert answer.run is not None
    assert answer.run.id == done.start.id
    assert records.find(ben.runs, "latest") == directory


def test_what_was_moved_is_not_moved_again(place: Place, ben: User, directory: str) -> None:
    first, second = run(place), run(place)
    assert [bool(sent.size) for sent in push(place, directory).runs] == [True, True]
    again = push(place, directory)
    assert [(sent.files, sent.blobs, sent.size) for sent in again.runs] == [(0, 0, 0)] * 2
    assert ben.pull(directory) == [(first.start.id, "pulled"), (second.start.id, "pulled")]
    assert ben.pull(directory) == [(first.start.id, "unchanged"), (second.start.id, "unchanged")]
    assert [sent.blobs for sent in push_runs(directory, runs=ben.runs, store=ben.store).runs] == [0, 0]


def test_a_second_run_sends_only_what_differs(place: Place, directory: str) -> None:
    run(place, ck__w_pt=LARGE, log_txt="1")
    push(place, directory)
    before = set(Path(directory, "blobs", "sha256").iterdir())
    run(place, ck__w_pt=LARGE, log_txt="2")
    push(place, directory)
    new = set(Path(directory, "blobs", "sha256").iterdir()) - before
    assert len(new) == 2  # its small files, and its list of files
    assert max(path.stat().st_size for path in new) < part.SMALL


def test_notes_of_both_users_meet_in_the_catalog(place: Place, ben: User, catalog: str) -> None:
    done = run(place)
    push(place, catalog)
    ben.pull(catalog)
    (theirs,) = records.directories(ben.runs)
    annotation.add(theirs, kind="note", text="from ben", by="ben")
    annotation.add(done.directory, kind="tag", text="from-ann")
    push_runs(catalog, runs=ben.runs, store=ben.store)
    push(place, catalog)
    assert [listed.tags for listed in list_shared_runs(catalog).runs] == [("from-ann",)]
    assert ben.pull(catalog) == [(done.start.id, "completed")]
    pull_runs(catalog, runs=place.project / "runs", store=place.store)
    for directory in (theirs, done.directory):
        assert sorted(note.text for note in annotation.of(directory)) == [("from ben",), ("from-ann",)]


def test_runs_are_listed_and_found_by_the_beginning_of_their_ids(place: Place, ben: User, directory: str) -> None:
    first, second = run(place, "train.py", "--lr", "1"), run(place)
    assert list_shared_runs(directory).runs == ()
    push(place, directory)
    listed = list_shared_runs(directory)
    assert [entry.id for entry in listed.runs] == [second.start.id, first.start.id]
    summary = listed.runs[1].summary
    assert (summary.command, listed.runs[1].ending, summary.outputs, summary.size) == (
        ("train.py", "--lr", "1"),
        "exit 0",
        2,
        8,
    )
    assert ben.pull(directory, listed.runs[1].short[:6]) == [(first.start.id, "pulled")]
    with pytest.raises(RecordError, match="does not have a run 'zzz'"):
        ben.try_pull(directory, "zzz")


def test_large_outputs_are_left_out_by_name(place: Place, ben: User, directory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runsshare, "MOST", 10)
    done = run(place, ck__w_pt="more than ten bytes", log_txt="1")
    assert push(place, directory).runs[0].left_out == ("ck/w.pt",)
    received = ben.try_pull(directory).runs[0]
    assert (received.left_out, received.not_pushed) == ((), ("ck/w.pt",))
    push(place, directory, outputs=["*.pt"])
    received = ben.try_pull(directory).runs[0]
    assert (received.state, received.left_out, received.not_pushed) == ("unchanged", ("ck/w.pt",), ())
    (home,) = records.directories(ben.runs)
    found = audit.audit(ben.runs, (), here=ben.runs.parent, store=ben.store, ask=False, tell=Silent())
    assert [(finding.state, finding.what) for finding in found.findings] == [("unknown", "ck/w.pt")]
    assert (found.bad, "left out when the run was pushed or pulled" in found.findings[0].why) == (0, True)
    tell = Messages()
    use_case.copy_outputs(records.read(home), None, ben.runs.parent / "got", force=False, tell=tell)
    assert any("not here: ck/w.pt: it was left out" in line for line in tell.lines)
    with pytest.raises(RecordError, match=r"not here: ck/w\.pt"):
        use_case.select_outputs(records.read(home), "*.pt")
    assert ben.pull(directory, outputs=["all"]) == [(done.start.id, "completed")]
    assert files_of(home) == files_of(done.directory)
    assert pulled.read(home) == pulled.Pulled(source=directory)


@pytest.mark.parametrize(
    ("patterns", "chosen"),
    [
        (["all"], {"a.pt", "logs/b.txt", "/scratch/c.pt"}),
        (["none"], set()),
        (["*.pt"], {"a.pt", "/scratch/c.pt"}),
        (["logs", "/scratch/*"], {"logs/b.txt", "/scratch/c.pt"}),
    ],
)
def test_outputs_are_chosen_by_pattern(patterns: list[str], chosen: set[str]) -> None:
    assert runsshare.choose(patterns)({"a.pt": 1, "logs/b.txt": 2, "/scratch/c.pt": 3}) == chosen


def test_all_and_none_exclude_patterns() -> None:
    with pytest.raises(UsageError, match="exclude every other"):
        runsshare.choose(["all", "*.pt"])


def test_files_outside_the_project_come_home(place: Place, ben: User, directory: str) -> None:
    def work(launch: Launch, run_directory: Path) -> int:
        path = run_directory / "outside" / "scratch" / "w.pt"
        path.parent.mkdir(parents=True)
        path.write_text("weights")
        (run_directory / "files" / "outside").mkdir()
        (run_directory / "files" / "outside" / "x").write_text("inside")
        (run_directory / "files" / "last").symlink_to("/etc/passwd")
        return 0

    done = place.run(backend=Fake(work))
    assert [output.path for output in done.end.outputs] == ["/scratch/w.pt", "outside/x"]
    push(place, directory)
    ben.pull(directory)
    (home,) = records.directories(ben.runs)
    assert (home / "outside" / "scratch" / "w.pt").read_text() == "weights"
    assert (home / "files" / "outside" / "x").read_text() == "inside"
    assert not os.path.lexists(home / "files" / "last")
    found = audit.audit(ben.runs, (), here=ben.runs.parent, store=ben.store, ask=False, tell=Silent())
    assert [(finding.state, finding.why) for finding in found.findings] == [("unknown", "symbolic links are not pulled")]


def test_an_interrupted_run_can_be_completed_later(place: Place, ben: User, directory: str) -> None:
    done = run(place)
    kept = (done.directory / "end.json").rename(done.directory / "end.kept")
    push(place, directory)
    assert [entry.ending for entry in list_shared_runs(directory).runs] == ["interrupted"]
    ben.pull(directory)
    (home,) = records.directories(ben.runs)
    assert records.read(home).state == "interrupted"
    kept.rename(done.directory / "end.json")
    push(place, directory)
    assert [entry.ending for entry in list_shared_runs(directory).runs] == ["exit 0"]
    assert ben.pull(directory) == [(done.start.id, "completed")]
    assert records.read(home).end == done.end


def test_a_running_run_is_not_pushed(place: Place, directory: str) -> None:
    done = run(place)
    (done.directory / "end.json").unlink()
    code = (
        "import fcntl, os, sys; fd = os.open(sys.argv[1], os.O_RDWR); fcntl.flock(fd, fcntl.LOCK_EX); print('x', flush=True);"
        "sys.stdin.read()"
    )
    words = [sys.executable, "-c", code, str(done.directory / "lock")]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.read(1)
        assert push(place, directory).runs == ()
        with pytest.raises(RecordError, match="still running"):
            push(place, directory, "latest")
        holder.communicate()


def test_a_secret_in_an_output_or_in_changed_code_is_not_pushed(place: Place, directory: str) -> None:
    token = "ghp_" + "aB3dE5gH7jK9mN1pQ3sT5vW7yZ9bC1dE3fG5"
    (place.project / "train.py").write_text(f"TOKEN = '{token}'\n")
    run(place, conf_json=json.dumps({"token": token}))
    done = push_runs(directory, runs=place.project / "runs", store=place.store)
    (failed,) = done.failed
    assert isinstance(failed.why, CaptureError)
    assert "2 files contain a secret, so nothing was written or sent" in str(failed.why)
    assert all(text in failed.why.hint for text in ("conf.json: GitHub token", "train.py: GitHub token", "--not-secret"))
    assert token not in failed.why.hint
    assert list_shared_runs(directory).runs == ()
    push(place, directory, not_secret=["conf.json", "train.py"])
    assert len(list_shared_runs(directory).runs) == 1


def test_a_changed_output_is_refused_and_other_runs_are_pushed(place: Place, directory: str) -> None:
    changed, good = run(place), run(place)
    (changed.directory / "files" / "log.txt").write_text("2")
    done = push_runs(directory, runs=place.project / "runs", store=place.store)
    assert [sent.id for sent in done.runs] == [good.start.id]
    (failed,) = done.failed
    assert (failed.id, "log.txt: this file differs from the record" in str(failed.why)) == (changed.start.id, True)
    assert [sent.left_out for sent in push(place, directory, outputs=["*.pt"]).runs] == [("log.txt",), ()]


def test_a_run_with_other_content_is_refused_on_both_sides(place: Place, ben: User, directory: str) -> None:
    done = run(place)
    push(place, directory)
    ben.pull(directory)
    (home,) = records.directories(ben.runs)
    other = codec.pretty(msgspec.structs.replace(done.start, seed=1))
    for path in (home / "start.json", home / "end.json"):
        path.chmod(0o644)
    (home / "start.json").write_bytes(other)
    (failed,) = push_runs(directory, runs=ben.runs, store=ben.store).failed
    assert "with a different start.json" in str(failed.why)
    before = files_of(home)
    ben.refuses(directory, "this run is here, and its start.json differs")
    assert files_of(home) == before


# -- a catalog that was changed


def test_changed_and_truncated_blobs_are_refused_by_name(place: Place, ben: User, directory: str) -> None:
    done = run(place, ck__w_pt=LARGE, log_txt="1")
    push(place, directory)
    path = blob(directory, done.directory / "files" / "ck" / "w.pt")
    path.chmod(0o644)
    path.write_text(LARGE.replace("x", "y", 1))
    assert path.name in str(ben.refuses(directory, "files/ck/w.pt of run", ArtifactError))
    path.write_text(LARGE[:-1])
    ben.refuses(directory, "has 1,048,576 bytes instead of 1,048,577 (files/ck/w.pt of run", ArtifactError)
    path.unlink()
    ben.refuses(directory, "No such file or directory (files/ck/w.pt of run", ArtifactError)
    path.symlink_to(done.directory / "files" / "ck" / "w.pt")
    ben.refuses(directory, "it is a symbolic link, not a regular file", ArtifactError)
    assert [bool(sent.size) for sent in push(place, directory).runs] == [True]  # a push repairs it
    assert ben.pull(directory) == [(done.start.id, "pulled")]


def test_a_changed_blob_in_a_registry_is_refused_by_name(
    place: Place, ben: User, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "no-docker"))
    with registry(tmp_path / "registry") as host:
        done = run(place, ck__w_pt=LARGE, log_txt="1")
        push(place, f"{host}/team/runs")
        name = sha256_of(done.directory / "files" / "ck" / "w.pt")
        (data,) = (tmp_path / "registry" / "data").glob(f"**/blobs/sha256/{name[:2]}/{name}/data")
        data.write_text(LARGE.replace("x", "y", 1))
        error = ben.refuses(f"{host}/team/runs", "files/ck/w.pt of run", ArtifactError)
        assert f"{host}/team/runs@sha256:{name}" in str(error)


def test_a_changed_manifest_is_refused_and_listed(place: Place, ben: User, directory: str) -> None:
    run(place)
    push(place, directory)
    (path,) = Path(directory, "runs").iterdir()
    path.chmod(0o644)
    path.write_bytes(path.read_bytes().replace(b'"schemaVersion":2', b'"schemaVersion": 2'))
    ben.refuses(directory, "does not have the digest in its name", ArtifactError)
    listed = list_shared_runs(directory)
    assert (listed.runs, len(listed.unreadable)) == ((), 1)


def test_a_directory_that_is_no_catalog_is_refused(place: Place, tmp_path: Path, directory: str) -> None:
    Path(directory, "thesis.tex").write_text("x")
    with pytest.raises(UsageError, match=r"neither empty nor a catalog of runs: it has 'thesis\.tex'"):
        push(place, directory)
    assert sorted(path.name for path in Path(directory).iterdir()) == ["thesis.tex"]
    with pytest.raises(UsageError, match="neither an existing directory nor a repository"):
        list_shared_runs(str(tmp_path / "missing"))
    with pytest.raises(UsageError, match="the repository in this image name is invalid"):
        list_shared_runs("registry.example.com/Team/runs")
    with pytest.raises(UsageError, match="a catalog is a repository without a tag"):
        list_shared_runs("registry.example.com/team/runs:1")


def test_a_catalog_of_a_newer_version_is_refused(place: Place, directory: str) -> None:
    Path(directory, "catalog.json").write_text('{"schema": "repro-env/catalog/2"}')
    with pytest.raises(SpecVersionError):
        push(place, directory)


def test_a_catalog_gets_the_permissions_of_its_directory(place: Place, directory: str) -> None:
    run(place)
    Path(directory).chmod(0o2770)
    push(place, directory)
    modes = {
        path.relative_to(directory).parts[0]: oct(path.stat().st_mode & 0o7777)
        for path in Path(directory).rglob("*")
        if path.is_file()
    }
    assert modes == {"blobs": "0o440", "runs": "0o440", "catalog.json": "0o440"}
    assert oct(Path(directory, "blobs", "sha256").stat().st_mode & 0o7777) == "0o2770"


def test_a_catalog_that_may_not_be_written_is_refused_before_anything_is_sent(place: Place, directory: str) -> None:
    run(place)
    Path(directory).chmod(0o555)
    with file_modes_obeyed(), pytest.raises(UsageError, match="the catalog cannot be written: Permission denied"):
        runsshare.check_catalog(directory)
    assert list(Path(directory).iterdir()) == []
    Path(directory).chmod(0o755)
    push(place, directory)
    for part_of_it in ("runs", "blobs/sha256"):
        Path(directory, part_of_it).chmod(0o555)
        with file_modes_obeyed(), pytest.raises(UsageError, match="the catalog cannot be written: Permission denied"):
            runsshare.check_catalog(directory)
        Path(directory, part_of_it).chmod(0o755)
    runsshare.check_catalog(directory)


# -- several at once


def test_pushes_at_the_same_time_lose_no_run(place: Place, ben: User, catalog: str) -> None:
    for _ in range(20):
        run(place)
    names = [path.name for path in records.directories(place.project / "runs")]
    code = (
        "import sys; from pathlib import Path; from repro_env.api.runsshare import push_runs; from repro_env.store.store import Store;"
        "done = push_runs(sys.argv[1], sys.argv[4:], runs=sys.argv[2], store=Store.open(Path(sys.argv[3]))); sys.exit(len(done.failed))"
    )
    # Each run is pushed by two of the four processes.
    halves = (names[:10], names[10:], names[::2], names[1::2])
    words = [[sys.executable, "-c", code, catalog, str(place.project / "runs"), str(place.store.root), *half] for half in halves]
    processes = [subprocess.Popen(command) for command in words]
    assert [process.wait() for process in processes] == [0] * 4
    assert len(list_shared_runs(catalog).runs) == 20
    assert len(ben.pull(catalog)) == 20
    for directory in records.directories(ben.runs):
        assert files_of(directory) == files_of(place.project / "runs" / directory.name)


def test_pulls_of_a_run_at_the_same_time_are_one_run(place: Place, ben: User, directory: str) -> None:
    done = run(place)
    push(place, directory)

    class Overtaken(Silent):
        """Another pull of the run, from its start to its end, while this one pulls the spec."""

        def progress(self, total: int, label: str, /) -> AbstractContextManager[Advance]:
            if label == "pulling its spec" and not records.directories(ben.runs):
                ben.pull(directory)
            return super().progress(total, label)

    assert ben.pull(directory, tell=Overtaken()) == [(done.start.id, "unchanged")]
    (home,) = records.directories(ben.runs)
    assert files_of(home) == files_of(done.directory)


def test_a_pull_of_a_damaged_spec_leaves_no_run(place: Place, ben: User, directory: str) -> None:
    done = run(place)
    push(place, directory)
    (spec,) = (done.directory.parent / "specs").glob("*/spec.json")
    path = blob(directory, spec)
    path.chmod(0o644)
    path.write_bytes(spec.read_bytes().replace(b'"name"', b'"eman"', 1))
    ben.refuses(directory, "spec/spec.json of run", ArtifactError)
    shutil.rmtree(ben.runs)
