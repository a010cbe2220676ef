"""Directories next to the project in a run, and in a run that is repeated from an untrusted record."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from repro_env.runs.start import siblings, sourcedirectory
from repro_env.runs.start.request import RunOptions
from repro_env.sandbox import plan
from repro_env.schema.run import Mount, SourceFact
from repro_env.schema.spec import Spec
from repro_env.store.store import Store
from tests.fakes import specs

NONE = "sha256:" + "0" * 64


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(tmp_path / "store")


@pytest.fixture
def made(tmp_path: Path) -> Spec:
    """A spec whose source is at `tmp_path / "project"`."""
    (tmp_path / "project").mkdir()
    spec = specs.make(tmp_path / "repro", {}, prefix=tmp_path / "venv")
    assert spec.observed.source is not None
    source = msgspec.structs.replace(spec.observed.source, path=str(tmp_path / "project"))
    return msgspec.structs.replace(spec, observed=msgspec.structs.replace(spec.observed, source=source))


def names(
    spec: Spec, directory: Path | None, store: Store, *words: str, mounts: tuple[Mount, ...] = (), **more: object
) -> tuple[str, ...]:
    here = Path(plan.workspace_of(spec))
    asked = RunOptions(command=("train.py", *words), here=here, environ={}, **more)  # type: ignore[arg-type]
    return siblings.names_for_run(asked, spec, directory, here, mounts=mounts, store=store)


def test_a_run_sees_siblings_only_of_code_captured_in_its_directory_with_its_store(
    made: Spec, store: Store, tmp_path: Path
) -> None:
    project = tmp_path / "project"
    assert names(made, project, store, "../typed") == ()
    sourcedirectory.remember(made, store, ("../data",))
    assert names(made, project, store) == ("../data",)
    assert names(made, project, store, "--out=../typed/x", "x/../../more", "../../etc", "..", "../.ssh") == (
        "../data",
        "../more",
        "../typed",
    )
    (tmp_path / "clone").mkdir()
    assert names(made, tmp_path / "clone", store, "../typed") == ()
    assert names(made, None, store) == ()
    assert names(made, project, Store.open(tmp_path / "foreign")) == ()
    (tmp_path / "link").symlink_to("project")
    assert names(made, tmp_path / "link", store) == ("../data",)


def test_a_sibling_does_not_hide_another_path_of_the_run(made: Spec, store: Store, tmp_path: Path) -> None:
    image = store.layers.add(specs.tree({f"{tmp_path}/lib/x.so"[1:]: b"x"}))
    layers = (msgspec.structs.replace(made.expected.layers[0], diff_id=image), *made.expected.layers[1:])
    spec = msgspec.structs.replace(made, expected=msgspec.structs.replace(made.expected, layers=layers))
    sourcedirectory.remember(spec, store, ("../data", "../lib", "../venv", "../project", "../out", "../raw"))
    mounts = tuple(Mount(kind="data", source="/x", target=f"{tmp_path}/{name}") for name in ("out", "raw/deep"))
    assert names(spec, tmp_path / "project", store, mounts=mounts) == ("../data",)


def test_a_record_cannot_mount_files_at_other_paths(made: Spec, store: Store, tmp_path: Path) -> None:
    def repeat(files: dict[str, bytes], *siblings_: str) -> tuple[str, ...]:
        digest = store.layers.add(specs.tree({f"{tmp_path}/{path}"[1:]: data for path, data in files.items()}))
        fact = SourceFact(
            path=str(tmp_path / "project"), digest=NONE, directory=None, differs=(), siblings=siblings_, siblings_tree=digest
        )
        checked = siblings.drop_missing(fact, made, store)
        assert (checked.siblings_tree == digest) == (checked.siblings == siblings_)
        return checked.siblings

    assert repeat({"data/x": b"x"}, "../data") == ("../data",)
    assert repeat({"data/x": b"x", "etc/passwd": b"x"}, "../data") == ()
    assert repeat({"data": b"x"}, "../data") == repeat({"data/x": b"x"}, "../data", "../more") == ()
    assert repeat({"venv/bin/python": b"x"}, "../venv") == ()
    assert repeat({"project/train.py": b"x"}, "../project") == ()
    missing = SourceFact(
        path="/p",
        digest=NONE,
        directory=None,
        differs=(),
        siblings=("../data",),
        siblings_tree=NONE,
        ignored=("a",),
        with_ignored=NONE,
    )
    assert siblings.drop_missing(missing, made, store).trees == (NONE,)


@pytest.mark.parametrize("name", ["../../etc", "..//x", "/etc", "../a\0", "../.ssh", "..", "data", "../a/b"])
def test_a_record_with_a_hostile_name_is_refused(name: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"path": "/p", "digest": NONE, "directory": None, "differs": (), "siblings": [name]}, SourceFact)
