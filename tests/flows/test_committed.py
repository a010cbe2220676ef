"""The source of a run, found in git's history by its digest; and the spec of a run, wherever it lies."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest

from repro_env.flows.committed import History
from repro_env.flows.specof import Specs
from repro_env.image import layer
from repro_env.model import codec
from repro_env.store.store import Store
from tests.capture.conftest import Git, git  # noqa: F401
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
    """Three commits of a source that is a folder of the repository, with what is no part of a source."""
    folder = tmp_path / "repo"
    for number in range(3):
        write(folder / "project", {**CODE, "pkg/a.py": f"a = {number}\n".encode()})
        if not number:
            git(folder, "init")
            write(
                folder, {"README": b"x", "project/repro/spec.json": b"{}", "project/.env": b"X=1", "project/__pycache__/a": b"1"}
            )
            write(folder, {"project/notes/big": b"x"})
        git(folder, "add", "-f", ".")
        git(folder, "commit", "-m", f"{number}")
    return folder / "project"


def history(root: Path) -> History:
    return History(root, never=(root / "repro", root / "runs", Path("/elsewhere")), exclude=("notes",))


def test_the_commit_that_gives_the_digest_is_found(repo: Path, git: Git, tmp_path: Path) -> None:  # noqa: F811
    digest = layer.diff_id(specs.tree(CODE))
    found = history(repo).find(digest)
    assert found is not None
    assert found.name == git(repo, "rev-parse", "HEAD~1")
    store = Store.open(tmp_path / "store")
    tree = store.layers.unpack(digest, found.members())
    assert (tree / "pkg" / "a.py").read_bytes() == b"a = 1\n"
    assert (tree / "bin" / "run").stat().st_mode & 0o100


def test_the_likely_one_is_tried_whatever_its_time(repo: Path, git: Git) -> None:  # noqa: F811
    digest = layer.diff_id(specs.tree(CODE))
    commit = git(repo, "rev-parse", "HEAD~1")
    assert history(repo).find(digest, before=0) is None
    found = history(repo).find(digest, likely=["--output=x", "0" * 40, commit], before=0)
    assert found is not None
    assert found.name == commit


def test_other_bytes_are_never_taken_for_it(repo: Path) -> None:
    looked = history(repo)
    for files in ({**CODE, "pkg/a.py": b"a = 9\n"}, {**CODE, "more": b""}, {"train.py": CODE["train.py"]}):
        assert looked.find(layer.diff_id(specs.tree(files))) is None
    assert looked.find(layer.diff_id(specs.tree(CODE))) is not None


def test_without_a_repository_nothing_is_found(tmp_path: Path) -> None:
    assert History(tmp_path).find("sha256:" + "0" * 64) is None


def test_a_spec_is_found_beside_from_here_in_the_store_and_in_history(tmp_path: Path, git: Git) -> None:  # noqa: F811
    store = Store.open(tmp_path / "store")
    made = [specs.make(tmp_path / str(number), {}, prefix=f"/home/ann/{number}/.venv") for number in range(4)]
    project, here = tmp_path / "project", tmp_path / "here"
    (here / "below").mkdir(parents=True)
    for number, target in ((0, project / "repro"), (1, here / "repro"), (2, store.root / "specs" / ("0" * 64))):
        shutil.copytree(tmp_path / str(number), target)
    git(project, "init")
    (project / "repro" / "spec.json").write_bytes(codec.pretty(made[3]))
    git(project, "add", "repro/spec.json")
    git(project, "commit", "-m", "the first capture")
    (project / "repro" / "spec.json").write_bytes(codec.pretty(made[0]))
    where = []
    for spec in made:
        found = Specs(project / "runs", here / "below", store).find(spec.digest)
        assert found is not None
        assert found.spec == spec
        where.append((found.folder, bool(found.commit)))
    assert where == [
        (project / "repro", False),
        (here / "repro", False),
        (store.root / "specs" / ("0" * 64), False),
        (project / "repro", True),
    ]
    every = Specs(project / "runs", here / "below", store)
    assert every.find("sha256:" + "0" * 64) is None
    assert len(every.all()) == 3


def test_a_spec_that_cannot_be_read_is_told_and_the_others_are_found(tmp_path: Path) -> None:
    spec = specs.make(tmp_path / "other", {})
    (tmp_path / "repro").mkdir()
    (tmp_path / "repro" / "spec.json").write_text("{")
    looked = Specs(tmp_path / "runs", tmp_path, Store.open(tmp_path / "store"))
    found = looked.find(spec.digest)
    assert found is not None
    assert found.folder == tmp_path / "other"
    assert len(looked.problems) == 1


def test_an_edited_identity_is_another_spec(tmp_path: Path) -> None:
    spec = specs.make(tmp_path / "repro", {})
    changed = msgspec.structs.replace(spec, identity=msgspec.structs.replace(spec.identity, command="/other/python"))
    (tmp_path / "repro" / "spec.json").write_bytes(codec.pretty(changed))
    assert Specs(tmp_path / "runs", tmp_path, Store.open(tmp_path / "store")).find(spec.digest) is None
