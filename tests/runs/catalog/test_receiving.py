"""Catalogs of a stranger: every digest fits, but the content is not what a push would have written."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from repro_env.api.runsshare import pull_runs, push_runs
from repro_env.oci import tar
from repro_env.oci.entry import Entry
from repro_env.oci.manifest import blob_of
from repro_env.runs.catalog import part
from repro_env.runs.records import annotation, records
from repro_env.schema import codec
from repro_env.schema.codec import digest_of
from repro_env.schema.errors import ArtifactError, RecordError, ReproEnvError, SpecError
from repro_env.schema.progress import Advance, Silent
from repro_env.schema.run import Output
from repro_env.store.store import Store
from tests.api.place import Fake, Place, writes

LARGE = "x" * part.SMALL


class Forgery:
    """A catalog with one run, whose part can be changed. All digests are made to fit."""

    def __init__(self, root: Path) -> None:
        self.place = Place(root)
        self.run = self.place.run(backend=Fake(writes(ck__w_pt=LARGE, log_txt="1")))
        self.catalog = root / "team"
        self.catalog.mkdir()
        push_runs(str(self.catalog), runs=self.place.project / "runs", store=self.place.store)
        self.runs = root / "ben" / "runs"
        self.store = Store.open(root / "ben-store")
        (path,) = (self.catalog / "runs").iterdir()
        self.path = path
        self.manifest: dict[str, Any] = msgspec.json.decode(path.read_bytes())
        self.config: dict[str, Any] = msgspec.json.decode(self.blob(self.manifest["config"]["digest"]).read_bytes())

    def blob(self, digest: str) -> Path:
        return self.catalog / "blobs" / "sha256" / digest.removeprefix("sha256:")

    def add_blob(self, data: bytes, media_type: str) -> dict[str, Any]:
        self.blob(digest_of(data)).write_bytes(data)
        return {"digest": digest_of(data), "mediaType": media_type, "size": len(data)}

    def add_file(self, path: str, data: bytes) -> None:
        """Add a file to the list, with its bytes as a blob."""
        self.manifest["layers"].append(self.add_blob(data, part.FILE))
        self.config["files"].append({"path": path, "sha256": digest_of(data), "size": len(data)})

    def members(self) -> list[tuple[Entry, list[bytes]]]:
        (layer,) = (layer for layer in self.manifest["layers"] if layer["mediaType"] == part.TAR)
        chunks = [self.blob(layer["digest"]).read_bytes()]
        return [(entry, list(content)) for entry, content in tar.read(chunks, where="")]

    def pack(self, members: Iterable[tuple[Entry, list[bytes]]]) -> None:
        """Replace the tar."""
        data = b"".join(tar.write(sorted(members, key=lambda member: member[0].key)))
        others = [layer for layer in self.manifest["layers"] if layer["mediaType"] != part.TAR]
        self.manifest["layers"] = [self.add_blob(data, part.TAR), *others]

    def replace_file(self, path: str, data: bytes) -> None:
        """Replace a small file."""
        self.pack((entry, content) for entry, content in self.members() if entry.path != path)
        self.config["files"] = [file for file in self.config["files"] if file["path"] != path]
        self.add_file(path, data)

    def publish(self, *, keep: bool = False) -> None:
        self.manifest["config"] = self.add_blob(codec.canonical(self.config), part.TYPE)
        data = codec.canonical(self.manifest)
        if not keep:
            self.path.unlink()
        (self.catalog / "runs" / f"{part.tag_of(self.config['id'], data)}.json").write_bytes(data)

    def pull(self) -> list[ReproEnvError]:
        done = pull_runs(str(self.catalog), runs=self.runs, store=self.store)
        return [failed.why for failed in done.failed]

    def refused(self) -> str:
        """Pull, and return the reason of the refusal. Nothing of the run may be here."""
        (error,) = self.pull()
        assert isinstance(error, RecordError | ArtifactError | SpecError), error
        assert error.hint
        if self.runs.is_dir():
            assert {path.name for path in self.runs.iterdir()} <= {"specs"}
        return str(error)


def other_id(run_id: str) -> str:
    return run_id[:-1] + ("0" if run_id[-1] != "0" else "1")


@pytest.fixture
def forgery(tmp_path: Path) -> Forgery:
    return Forgery(tmp_path)


def test_a_forgery_without_a_change_is_accepted(forgery: Forgery) -> None:
    forgery.pack(forgery.members())
    forgery.publish(keep=True)
    assert forgery.pull() == []


@pytest.mark.parametrize("path", ["../evil", "files/../../evil", "/etc/evil", "files//evil", "files/./evil", "files/a\nb", ""])
def test_a_path_that_is_not_below_the_run_is_refused(path: str, forgery: Forgery) -> None:
    forgery.add_file(path, b"evil")
    forgery.publish()
    assert "not a valid Part" in forgery.refused()


@pytest.mark.parametrize(
    "path",
    [
        "files/evil.py",
        "outside/home/ann/.bashrc",
        "evil",
        "lock",
        "pulled.json",
        ".unfinished.json",
        "trace/0.jsonl",
        "annotations/x.json",
        "verified/x.json",
        "verified/20260702T090000Z-5a6b7c8d.json/x",
        "stdout.log",
        "checkpoints-before.json",
    ],
)
def test_a_file_that_the_record_does_not_name_is_refused(path: str, forgery: Forgery) -> None:
    forgery.add_file(path, b"evil")
    forgery.publish()
    assert f"it comes with {path}, which its record does not name" in forgery.refused()


@pytest.mark.parametrize(
    "path", ["spec/evil", "spec/blobs/evil", f"spec/blobs/{'0' * 64}", f"spec/blobs/{'0' * 64}.gz", "spec/Dockerfile"]
)
def test_a_file_that_the_spec_does_not_bundle_is_refused(path: str, forgery: Forgery) -> None:
    forgery.add_file(path, b"evil")
    forgery.publish()
    assert f"it comes with {path}, which its spec does not bundle" in forgery.refused()


@pytest.mark.parametrize("path", [".unfinished.json", "pulled.json", "lock", "annotations/x.json", "specs/x"])
def test_a_record_cannot_name_other_files_as_its_logs(path: str, forgery: Forgery) -> None:
    log = Output(path=path, sha256=digest_of(b"evil"), size=4)
    forgery.replace_file("end.json", codec.pretty(msgspec.structs.replace(forgery.run.end, console=(log,))))
    forgery.add_file(path, b"evil")
    forgery.publish()
    assert f"it comes with {path}, which its record does not name" in forgery.refused()


def test_an_output_with_other_bytes_than_recorded_is_refused(forgery: Forgery) -> None:
    forgery.replace_file("files/log.txt", b"2")
    forgery.publish()
    assert "files/log.txt, with another sha256 than its record" in forgery.refused()


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        (Entry("files/evil", "link", target="/etc/passwd"), "which is not in its list"),
        (Entry("files/log.txt", "link", target="/etc/passwd"), "which is not in its list"),
        (Entry("files/more", "file"), "which is not in its list"),
        (Entry("files/log.txt", "file"), "does not have the listed sha256"),
    ],
)
def test_a_tar_with_something_else_than_the_listed_files_is_refused(entry: Entry, reason: str, forgery: Forgery) -> None:
    forgery.pack([*((other, content) for other, content in forgery.members() if other.path != entry.path), (entry, [])])
    forgery.publish()
    assert reason in forgery.refused()


def test_a_tar_without_a_listed_file_is_refused(forgery: Forgery) -> None:
    forgery.pack((entry, content) for entry, content in forgery.members() if entry.path != "files/log.txt")
    forgery.publish()
    assert "lacks files/log.txt" in forgery.refused()


def test_a_path_that_is_a_file_and_a_directory_is_refused(forgery: Forgery) -> None:
    forgery.add_file("files/log.txt/evil", b"evil")
    forgery.publish()
    assert "is a file and a directory" in forgery.refused()


def test_a_summary_that_differs_from_the_record_is_refused(forgery: Forgery) -> None:
    forgery.config["summary"]["command"] = ["harmless.py"]
    forgery.publish()
    assert "the list of runs describes it differently from its record" in forgery.refused()


def test_a_part_of_another_run_is_refused(forgery: Forgery) -> None:
    data = forgery.path.read_bytes()
    other = other_id(forgery.config["id"])
    forgery.path.rename(forgery.path.with_name(f"{part.tag_of(other, data)}.json"))
    assert f"this part is of run {forgery.config['id']}, but its tag names run {other}" in forgery.refused()


def test_a_record_of_another_run_is_refused(forgery: Forgery) -> None:
    start = msgspec.structs.replace(forgery.run.start, id=other_id(forgery.run.start.id))
    forgery.replace_file("start.json", codec.pretty(start))
    forgery.publish()
    assert "its record is of run" in forgery.refused()


def test_a_start_that_is_not_the_one_in_the_end_is_refused(forgery: Forgery) -> None:
    start = msgspec.structs.replace(forgery.run.start, seed=1)
    forgery.replace_file("start.json", codec.pretty(start))
    forgery.publish()
    assert "its start.json does not have the sha256 in its end.json" in forgery.refused()


def test_a_spec_that_is_not_the_one_of_the_record_is_refused(forgery: Forgery) -> None:
    spec = codec.pretty(
        msgspec.structs.replace(forgery.place.spec, defaults=msgspec.structs.replace(forgery.place.spec.defaults, seed=9))
    )
    forgery.config["files"] = [file for file in forgery.config["files"] if file["path"] != "spec/spec.json"]
    forgery.add_file("spec/spec.json", spec)
    forgery.publish()
    assert "spec/spec.json, with another sha256 than its record" in forgery.refused()


def test_two_pushes_that_disagree_are_refused_by_name(forgery: Forgery) -> None:
    forgery.config["files"] = []
    forgery.config["summary"] = None
    forgery.manifest["layers"] = []
    forgery.add_file("files/log.txt", b"2")
    forgery.publish(keep=True)
    assert "two pushes have a different files/log.txt: run-" in forgery.refused()


def test_a_part_without_the_record_is_refused(forgery: Forgery) -> None:
    forgery.config["files"] = [file for file in forgery.config["files"] if file["path"] == "files/log.txt"]
    forgery.publish()
    assert "the catalog does not have the record of this run" in forgery.refused()


@pytest.mark.parametrize(
    "change",
    [
        lambda found: found.manifest.pop("artifactType"),
        lambda found: found.manifest["config"].update(mediaType="application/vnd.oci.image.config.v1+json"),
        lambda found: found.config.update(more=1),
        lambda found: found.config["files"].append(found.config["files"][0]),
        lambda found: found.config["files"][0].update(size=-1),
        lambda found: found.config["files"][0].update(sha256="0" * 64),
        lambda found: found.config.update(schema="repro-env/shared-run/2"),
    ],
)
def test_other_manifests_and_lists_are_refused(change: Callable[[Forgery], object], forgery: Forgery) -> None:
    change(forgery)
    config = forgery.manifest["config"].get("mediaType")
    forgery.publish()
    if config != part.TYPE:  # `publish` set it again
        forgery.path = next((forgery.catalog / "runs").iterdir())
        forgery.manifest["config"]["mediaType"] = config
        data = codec.canonical(forgery.manifest)
        forgery.path.unlink()
        (forgery.catalog / "runs" / f"{part.tag_of(forgery.config['id'], data)}.json").write_bytes(data)
    if "artifactType" not in forgery.manifest:  # the type of the config is what counts
        assert forgery.pull() == []
    else:
        forgery.refused()


@pytest.mark.parametrize("name", ["../../evil", "/evil", "0", "../files/evil"])
def test_a_note_cannot_be_written_elsewhere(name: str, forgery: Forgery) -> None:
    written = "2026-07-01T10:15:30.000Z"
    note = annotation.Annotation(schema="repro-env/annotation/1", id=name, written=written, kind="note", text=("x",))
    forgery.config["annotations"].append(msgspec.to_builtins(note))
    forgery.publish()
    assert "the ID of a note is not a UUID" in forgery.refused()


@pytest.mark.parametrize("started", ["0001-01-01T00:00:00.000Z", "yesterday", "2026-07-01T10:15:30.000+25:00"])
def test_a_start_time_that_cannot_be_a_name_is_refused(started: str, forgery: Forgery) -> None:
    start = codec.pretty(msgspec.structs.replace(forgery.run.start, started=started))
    forgery.replace_file("start.json", start)
    forgery.replace_file("end.json", codec.pretty(msgspec.structs.replace(forgery.run.end, start=digest_of(start))))
    forgery.config["summary"]["started"] = started
    forgery.publish()
    assert "the start time of this run is invalid" in forgery.refused()


def test_a_record_that_would_fill_the_disk_is_refused(forgery: Forgery) -> None:
    forgery.config["files"].append({"path": "trace/0", "sha256": "sha256:" + "0" * 64, "size": 5 << 30})
    forgery.publish()
    assert "bytes without its outputs, but at most 4,294,967,296 are allowed" in forgery.refused()


def test_a_huge_list_is_not_read(forgery: Forgery) -> None:
    forgery.publish()
    path = next((forgery.catalog / "runs").iterdir())
    forgery.manifest["config"]["size"] = part.LARGEST_CONFIG + 1
    data = codec.canonical(forgery.manifest)
    path.unlink()
    (forgery.catalog / "runs" / f"{part.tag_of(forgery.config['id'], data)}.json").write_bytes(data)
    assert "at most 67,108,864 are allowed" in forgery.refused()


def test_nothing_is_written_through_a_link_in_a_run_that_is_here(forgery: Forgery, tmp_path: Path) -> None:
    home = forgery.run.directory
    (home / "files" / "ck" / "w.pt").unlink()
    (home / "files" / "ck").rmdir()
    (tmp_path / "elsewhere").mkdir()
    (home / "files" / "ck").symlink_to(tmp_path / "elsewhere")
    done = pull_runs(str(forgery.catalog), runs=home.parent, store=forgery.place.store)
    (failed,) = done.failed
    assert "it is a symbolic link, not a directory" in str(failed.why)
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_lost_output_of_a_run_comes_back(forgery: Forgery) -> None:
    lost = forgery.run.directory / "files" / "ck" / "w.pt"
    lost.unlink()
    (received,) = pull_runs(str(forgery.catalog), runs=forgery.run.directory.parent, store=forgery.place.store).runs
    assert (received.state, received.files, lost.read_text()) == ("completed", 1, LARGE)
    assert not (forgery.run.directory / "pulled.json").exists()


class Interrupted(Silent):
    """Ctrl-C while the spec is pulled."""

    def progress(self, total: int, label: str, /) -> AbstractContextManager[Advance]:
        if label == "pulling its spec":
            raise KeyboardInterrupt
        return super().progress(total, label)


def test_an_interrupted_pull_leaves_no_run_and_can_be_repeated(forgery: Forgery) -> None:
    with pytest.raises(KeyboardInterrupt):
        pull_runs(str(forgery.catalog), runs=forgery.runs, store=forgery.store, tell=Interrupted())
    assert [path.name for path in forgery.runs.iterdir()] == ["specs"]
    assert forgery.pull() == []
    (home,) = records.directories(forgery.runs)
    assert records.read(home).start == forgery.run.start


def test_parts_are_deterministic(forgery: Forgery) -> None:
    """So a second push from a copy of the run adds nothing."""
    before = os.listdir(forgery.catalog / "runs")  # noqa: PTH208
    second = forgery.catalog.with_name("second")
    second.mkdir()
    push_runs(str(second), runs=forgery.place.project / "runs", store=forgery.place.store)
    assert os.listdir(second / "runs") == before  # noqa: PTH208
    assert blob_of(forgery.path.read_bytes(), "").digest.removeprefix("sha256:") in before[0]
