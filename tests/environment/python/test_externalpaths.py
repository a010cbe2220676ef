"""Paths outside the sites that the environment uses: directories on `sys.path` and targets of symlinks."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import msgspec
import pytest

from repro_env.environment.python import externalpaths
from repro_env.environment.python.distributions import Scan
from repro_env.environment.python.externalpaths import ExternalPath
from repro_env.environment.python.interpreter import StartupReport
from repro_env.environment.python.sites import Site
from repro_env.environment.system.tree import LiveTree
from repro_env.io.files import walk
from repro_env.oci.entry import Entry
from repro_env.schema.environment import Interpretation, Interpreter, Layout
from repro_env.schema.errors import CaptureError
from repro_env.store.store import Store


@pytest.fixture
def site(tmp_path: Path) -> Site:
    (tmp_path / "env/lib").mkdir(parents=True)
    (tmp_path / "env/lib/file").write_text("x")
    return make_site(tmp_path / "env")


def make_site(prefix: Path) -> Site:
    layout = Layout(prefix=str(prefix), purelib="lib", platlib="lib", scripts="bin", headers="include")
    return Site(0, layout, Scan((), ()), tuple(walk(prefix)), {})


def paths_of(tree: LiveTree) -> list[str]:
    """The files and links in a tree, absolute, sorted."""
    return [f"/{entry.path}" for entry in tree.finish(Store.open().hashes).entries if entry.kind != "dir"]


def linked(site: Site, target: str | Path, *, held: tuple[str, ...] = (), roots: tuple[Path, ...] = ()) -> set[str]:
    """Paths that are bundled because of a symlink of the environment, without directories that only contain other paths."""
    (site.prefix / "lib/link").symlink_to(target)
    site = make_site(site.prefix)
    tree = externalpaths.collect_link_targets([Entry("opt/env/lib/link", "link", target=str(target))], [site], held, roots, [])
    return {path.removeprefix(str(site.prefix.parent) + "/") for path in paths_of(tree)}


@pytest.mark.parametrize("target", ["file", "../lib", "nowhere"])
def test_a_link_within_the_environment_needs_nothing(site: Site, target: str) -> None:
    assert linked(site, target) == set()


def test_a_link_within_an_environment_behind_a_symlink_needs_nothing(site: Site, tmp_path: Path) -> None:
    (tmp_path / "home").symlink_to(".")
    assert linked(make_site(tmp_path / "home/env"), "file") == set()


def test_the_target_of_a_link_is_bundled(site: Site, tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache/data.bin").write_text("weights")
    assert linked(site, tmp_path / "cache/data.bin") == {"cache/data.bin"}


def test_a_linked_directory_is_bundled_without_its_bytecode(site: Site, tmp_path: Path) -> None:
    (tmp_path / "model/__pycache__").mkdir(parents=True)
    for name in ("weights", ".hidden", "x.py", "__pycache__/x.cpython-311.pyc"):
        (tmp_path / "model" / name).write_text(name)
    assert linked(site, "../../model") == {"model/weights", "model/.hidden", "model/x.py"}


def test_every_link_on_the_way_is_bundled(site: Site, tmp_path: Path) -> None:
    (tmp_path / "v1").mkdir()
    (tmp_path / "v1/data").write_text("x")
    (tmp_path / "current").symlink_to("v1")
    assert linked(site, tmp_path / "current/data") == {"current", "v1/data"}


def test_targets_in_other_layers_or_in_the_workspace_are_not_bundled(site: Site, tmp_path: Path) -> None:
    (tmp_path / "python").write_text("x")
    assert linked(site, tmp_path / "python", held=(str(tmp_path / "python")[1:],)) == set()
    (site.prefix / "lib/link").unlink()
    assert linked(site, tmp_path / "python", roots=(tmp_path,)) == set()


def test_a_link_to_a_pipe_is_rejected(site: Site, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(CaptureError, match="not a file or directory that can be captured") as caught:
        linked(site, tmp_path / "pipe")
    assert caught.value.where.endswith("env/lib/link")


def test_a_link_to_too_much_data_is_rejected(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(externalpaths, "MAX_SIZE", 10)
    (tmp_path / "data").write_text("eleven bytes")
    with pytest.raises(CaptureError, match="more than"):
        linked(site, tmp_path / "data")


def test_a_projects_link_to_too_much_data_is_reported(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(externalpaths, "MAX_SIZE", 10)
    (tmp_path / "data").write_text("eleven bytes")
    (tmp_path / "small").write_text("x")
    project = tmp_path / "project"
    project.mkdir()
    for name in ("data", "small"):
        (project / name).symlink_to(tmp_path / name)
    links = [Entry(f"{project}/{name}"[1:], "link", target=str(tmp_path / name)) for name in ("data", "small")]
    skipped: list[str] = []
    tree = externalpaths.collect_link_targets(links, [site], (), (project,), skipped)
    assert [path for path in paths_of(tree) if path.startswith(f"{tmp_path}/")] == [f"{tmp_path}/small"]
    (line,) = skipped
    assert line.startswith(f"{project}/data is a symlink to {tmp_path}/data")
    assert line.endswith(f"--data {tmp_path}/data")


def test_a_link_to_the_root_directory_is_rejected(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(externalpaths, "MAX_FILES", 1000)
    with pytest.raises(CaptureError, match="more than"):
        linked(site, "/")


def test_a_sys_path_entry_in_a_zip_file_is_the_zip_file(site: Site, tmp_path: Path) -> None:
    (tmp_path / "libs.zip").write_text("x")
    (found,) = find_external_paths(site, tmp_path / "libs.zip/lib/deep", tmp_path / "not-there/lib")
    assert (found.root, found.named, found.is_complete) == (tmp_path, tmp_path / "libs.zip", False)
    assert [file.path for file in found.found] == ["libs.zip"]


def test_relative_entries_of_python_path_are_left_out() -> None:
    assert externalpaths.python_path({"PYTHONPATH": "/a:lib::/b"}) == "/a:/b"


def test_an_external_project_includes_built_files_and_lists_excluded_ones(site: Site, tmp_path: Path) -> None:
    project = tmp_path / "project"
    for name in (
        "src/pkg/__init__.py",
        "src/pkg/_version.py",
        "build/x.so",
        "build/x.o",
        "gen/m.py",
        "data/a.csv",
        ".env",
        "new.txt",
    ):
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text("x")
    (project / ".gitignore").write_text("_version.py\nbuild/\ngen/\ndata/\n.env\n")
    subprocess.run(["git", "init", "--quiet", project], check=True)
    (found,) = find_external_paths(site, project)
    files = [file.path for file in found.found if file.kind == "file"]
    assert sorted(files) == [".gitignore", "build/x.so", "gen/m.py", "new.txt", "src/pkg/__init__.py", "src/pkg/_version.py"]
    assert found.excluded == f"{project} is bundled without the files that git ignores: .env, build, data"
    assert find_external_paths(site, project, workspace=project) == ()


def find_external_paths(site: Site, *paths: Path, workspace: Path = Path("/elsewhere")) -> tuple[ExternalPath, ...]:
    startup = StartupReport(sys_path=tuple(map(str, paths)))
    interpreter = msgspec.convert(
        {
            **dict.fromkeys(("cache_tag",), "x"),
            **dict.fromkeys(("executable", "prefix", "stdlib", "platstdlib"), "/opt/python"),
            "version": "3.11.7", "libpython": None,
        },
        Interpreter,
    )  # fmt: skip
    facts = Interpretation(interpreter=interpreter, layout=site.layout, kind="venv", command=f"{site.prefix}/bin/python")
    return externalpaths.find_external_paths(facts, startup, [site], workspace)
