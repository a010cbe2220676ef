"""What the environment uses beside its places: folders on `sys.path`, and what its symlinks lead to."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import msgspec
import pytest

from repro_env.capture.distributions import Scan
from repro_env.image.entry import Entry
from repro_env.io.files import walk
from repro_env.lock import outside
from repro_env.lock.places import Place
from repro_env.model.environment import Interpretation, Interpreter, Layout, Startup
from repro_env.model.errors import CaptureError


@pytest.fixture
def place(tmp_path: Path) -> Place:
    (tmp_path / "env/lib").mkdir(parents=True)
    (tmp_path / "env/lib/file").write_text("x")
    return placed(tmp_path / "env")


def placed(prefix: Path) -> Place:
    layout = Layout(prefix=str(prefix), purelib="lib", platlib="lib", scripts="bin", headers="include")
    return Place(0, layout, Scan((), ()), tuple(walk(prefix)), {}, state="", settled=False)


def linked(place: Place, target: str | Path, *, held: tuple[str, ...] = (), roots: tuple[Path, ...] = ()) -> set[str]:
    """Paths that are carried for a symlink of the environment, folders that only hold others left out."""
    (place.prefix / "lib/link").symlink_to(target)
    place = placed(place.prefix)
    tree = outside.linked([Entry("opt/env/lib/link", "link", target=str(target))], [place], held, roots)
    return {path.removeprefix(str(place.prefix.parent) + "/") for path in tree.paths()}


@pytest.mark.parametrize("target", ["file", "../lib", "nowhere"])
def test_a_link_within_needs_nothing(place: Place, target: str) -> None:
    assert linked(place, target) == set()


def test_nor_does_one_of_an_environment_below_a_symlink(place: Place, tmp_path: Path) -> None:
    (tmp_path / "home").symlink_to(".")
    assert linked(placed(tmp_path / "home/env"), "file") == set()


def test_what_a_link_leads_to_is_carried(place: Place, tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache/data.bin").write_text("weights")
    assert linked(place, tmp_path / "cache/data.bin") == {"cache/data.bin"}


def test_a_folder_is_carried_whole_but_its_bytecode(place: Place, tmp_path: Path) -> None:
    (tmp_path / "model/__pycache__").mkdir(parents=True)
    for name in ("weights", ".hidden", "x.py", "__pycache__/x.cpython-311.pyc"):
        (tmp_path / "model" / name).write_text(name)
    assert linked(place, "../../model") == {"model/weights", "model/.hidden", "model/x.py"}


def test_every_link_on_the_way_is_carried(place: Place, tmp_path: Path) -> None:
    (tmp_path / "v1").mkdir()
    (tmp_path / "v1/data").write_text("x")
    (tmp_path / "current").symlink_to("v1")
    assert linked(place, tmp_path / "current/data") == {"current", "v1/data"}


def test_what_another_layer_or_the_run_shows_is_not_carried(place: Place, tmp_path: Path) -> None:
    (tmp_path / "python").write_text("x")
    assert linked(place, tmp_path / "python", held=(str(tmp_path / "python")[1:],)) == set()
    (place.prefix / "lib/link").unlink()
    assert linked(place, tmp_path / "python", roots=(tmp_path,)) == set()


def test_a_pipe_is_refused(place: Place, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(CaptureError, match="not a file or directory that can be held") as caught:
        linked(place, tmp_path / "pipe")
    assert caught.value.where.endswith("env/lib/link")


def test_more_than_the_cap_is_refused(place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outside, "CAP", 10)
    (tmp_path / "data").write_text("eleven bytes")
    with pytest.raises(CaptureError, match="more than"):
        linked(place, tmp_path / "data")


def test_more_than_the_cap_is_named_where_a_project_links_to_it(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outside, "CAP", 10)
    (tmp_path / "data").write_text("eleven bytes")
    (tmp_path / "small").write_text("x")
    project = tmp_path / "project"
    project.mkdir()
    for name in ("data", "small"):
        (project / name).symlink_to(tmp_path / name)
    links = [Entry(f"{project}/{name}"[1:], "link", target=str(tmp_path / name)) for name in ("data", "small")]
    left: list[str] = []
    tree = outside.linked(links, [place], (), (project,), left)
    assert [path for path in tree.paths() if path.startswith(f"{tmp_path}/")] == [f"{tmp_path}/small"]
    (line,) = left
    assert line.startswith(f"{project}/data is a symlink to {tmp_path}/data")
    assert line.endswith(f"--data {tmp_path}/data")


def test_the_root_of_the_machine_is_refused(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outside, "MOST", 1000)
    with pytest.raises(CaptureError, match="more than"):
        linked(place, "/")


def test_a_directory_in_a_zip_file_holds_the_zip_file(tmp_path: Path) -> None:
    (tmp_path / "libs.zip").write_text("x")
    assert outside._archive(tmp_path / "libs.zip/lib/deep") == tmp_path / "libs.zip"
    assert outside._archive(tmp_path / "not-there/lib") == tmp_path / "not-there/lib"


def test_relative_entries_of_python_path_are_left_out() -> None:
    assert outside.python_path({"PYTHONPATH": "/a:lib::/b"}) == "/a:/b"


def test_a_project_beside_the_environment_comes_with_its_built_parts_and_says_what_does_not(place: Place, tmp_path: Path) -> None:
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
    startup = Startup(problem="", printed="", sys_path=(str(project),), flags="", mapped=(), locale="")
    interpreter = msgspec.convert(
        {
            **dict.fromkeys(("implementation", "banner", "cache_tag", "soabi", "libc", "openssl", "platform"), "x"),
            **dict.fromkeys(("executable", "prefix", "stdlib", "platstdlib"), "/opt/python"),
            "version": "3.11.7", "libpython": None,
        },
        Interpreter,
    )  # fmt: skip
    facts = Interpretation(
        interpreter=interpreter, layout=place.layout, kind="venv", command=f"{place.prefix}/bin/python", system_site=False
    )
    (found,) = outside.outside(facts, startup, [place], tmp_path / "elsewhere")
    files = [one.path for one in found.found if one.kind == "file"]
    assert sorted(files) == [".gitignore", "build/x.so", "gen/m.py", "new.txt", "src/pkg/__init__.py", "src/pkg/_version.py"]
    assert found.left == f"{project} is carried without what git ignores in it: .env, build, data"
    assert outside.outside(facts, startup, [place], project) == ()
