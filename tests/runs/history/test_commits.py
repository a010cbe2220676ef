"""Find the source of a run in the git history by its digest, and the spec of a run in all places."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest

from repro_env.oci import layer
from repro_env.runs.history.commits import History
from repro_env.runs.history.specs import Specs
from repro_env.schema import codec
from repro_env.store.store import Store
from tests.environment.conftest import Git, git  # noqa: F401
from tests.fakes import specs

CODE = {"train.py": b"print(1)\n", "bin/run": b"#!/bin/sh\n", "pkg/a.py": b"a = 1\n"}


def write(root: Path, files: Mapping[str, bytes]) -> None:
    for name, data in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        path.chmod(0o755 if "bin/" in name else 0o644)


@pytest.fixture
def repo(tmp_path: Path, git: Git) -> Path:  # noqa: F811
    """Make three commits of a source in a subdirectory of a repository, with files that are not part of a source."""
    root = tmp_path / "repo"
    for number in range(3):
        write(root / "project", {**CODE, "pkg/a.py": f"a = {number}\n".encode()})
        if not number:
            git(root, "init")
            write(root, {"README": b"x", "project/repro/spec.json": b"{}", "project/.env": b"X=1", "project/__pycache__/a": b"1"})
            write(root, {"project/notes/big": b"x"})
        git(root, "add", "-f", ".")
        git(root, "commit", "-m", f"{number}")
    return root / "project"


def history(root: Path) -> History:
    return History(root, never=(root / "repro", root / "runs", Path("/elsewhere")), exclude=("notes",))


def test_the_commit_with_the_digest_is_found(repo: Path, git: Git, tmp_path: Path) -> None:  # noqa: F811
    digest = layer.diff_id(specs.tree(CODE))
    commit = history(repo).find(digest)
    assert commit is not None
    assert commit.name == git(repo, "rev-parse", "HEAD~1")
    store = Store.open(tmp_path / "store")
    tree = store.layers.unpack(digest, commit.members())
    assert (tree / "pkg" / "a.py").read_bytes() == b"a = 1\n"
    assert (tree / "bin" / "run").stat().st_mode & 0o100


def test_a_likely_commit_is_tried_whatever_its_time(repo: Path, git: Git) -> None:  # noqa: F811
    digest = layer.diff_id(specs.tree(CODE))
    name = git(repo, "rev-parse", "HEAD~1")
    assert history(repo).find(digest, before=0) is None
    commit = history(repo).find(digest, likely=["--output=x", "0" * 40, name], before=0)
    assert commit is not None
    assert commit.name == name


def test_commits_with_other_files_are_not_found(repo: Path) -> None:
    commits = history(repo)
    for files in ({**CODE, "pkg/a.py": b"a = 9\n"}, {**CODE, "more": b""}, {"train.py": CODE["train.py"]}):
        assert commits.find(layer.diff_id(specs.tree(files))) is None
    assert commits.find(layer.diff_id(specs.tree(CODE))) is not None


def test_without_a_repository_nothing_is_found(tmp_path: Path) -> None:
    assert History(tmp_path).find("sha256:" + "0" * 64) is None


def test_a_spec_is_found_next_to_the_runs_in_a_parent_directory_in_the_store_and_in_git(tmp_path: Path, git: Git) -> None:  # noqa: F811
    store = Store.open(tmp_path / "store")
    all_specs = [specs.make(tmp_path / str(number), {}, prefix=f"/home/ann/{number}/.venv") for number in range(4)]
    project, here = tmp_path / "project", tmp_path / "here"
    (here / "below").mkdir(parents=True)
    for number, target in ((0, project / "repro"), (1, here / "repro"), (2, store.root / "specs" / ("0" * 64))):
        shutil.copytree(tmp_path / str(number), target)
    git(project, "init")
    (project / "repro" / "spec.json").write_bytes(codec.pretty(all_specs[3]))
    git(project, "add", "repro/spec.json")
    git(project, "commit", "-m", "the first capture")
    (project / "repro" / "spec.json").write_bytes(codec.pretty(all_specs[0]))
    places = []
    for spec in all_specs:
        found = Specs(project / "runs", here / "below", store).find(spec.digest)
        assert found is not None
        assert found.spec == spec
        places.append((found.directory, bool(found.commit)))
    assert places == [
        (project / "repro", False),
        (here / "repro", False),
        (store.root / "specs" / ("0" * 64), False),
        (project / "repro", True),
    ]
    lookup = Specs(project / "runs", here / "below", store)
    assert lookup.find("sha256:" + "0" * 64) is None
    assert len(lookup.all()) == 3


def test_an_unreadable_spec_is_reported_and_other_specs_are_found(tmp_path: Path) -> None:
    spec = specs.make(tmp_path / "other", {})
    (tmp_path / "repro").mkdir()
    (tmp_path / "repro" / "spec.json").write_text("{")
    lookup = Specs(tmp_path / "runs", tmp_path, Store.open(tmp_path / "store"))
    found = lookup.find(spec.digest)
    assert found is not None
    assert found.directory == tmp_path / "other"
    assert len(lookup.problems) == 1


def test_a_spec_with_an_edited_identity_is_not_found(tmp_path: Path) -> None:
    spec = specs.make(tmp_path / "repro", {})
    changed = msgspec.structs.replace(spec, identity=msgspec.structs.replace(spec.identity, command="/other/python"))
    (tmp_path / "repro" / "spec.json").write_bytes(codec.pretty(changed))
    assert Specs(tmp_path / "runs", tmp_path, Store.open(tmp_path / "store")).find(spec.digest) is None
