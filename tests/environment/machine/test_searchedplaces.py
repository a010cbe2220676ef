"""A capture names the places in which installed libraries search for files that runs do not have."""

from __future__ import annotations

from pathlib import Path

import pytest

from repro_env.environment.machine import lists
from repro_env.environment.machine.searchedplaces import look


def put(home: Path, *names: str) -> None:
    for name in names:
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text("x")


def places(home: Path, *installed: str, held: tuple[str, ...] = (), image: tuple[str, ...] = (), **environ: str) -> set[str]:
    """The places in the note, without those of the machine that runs the tests."""
    note = "".join(look(set(installed), {"HOME": str(home), **environ}, held=held, image=image))
    return {
        word.rstrip(",")
        for word in note.partition("there: ")[2].partition(" (to add one")[0].split()
        if word.startswith(str(home))
    }


def test_only_places_of_installed_libraries_that_have_something_are_named(tmp_path: Path) -> None:
    put(tmp_path, ".fonts/a.ttf", "nltk_data/corpora/x", ".cache/torch/hub/m", ".cache/huggingface/token")
    (tmp_path / ".cache/huggingface/hub").mkdir()
    everything = {name for row in lists.sections("searchedplaces") for name in row["distributions"].split()}
    assert places(tmp_path, *everything) == {f"{tmp_path}/{name}" for name in (".fonts", "nltk_data", ".cache/torch/hub")}
    assert places(tmp_path, "nltk") == {f"{tmp_path}/nltk_data"}
    assert places(tmp_path) == set()


def test_variables_add_places(tmp_path: Path) -> None:
    put(tmp_path, "a/x", "b/x", "share/fonts/f.ttf")
    assert places(tmp_path, "nltk", NLTK_DATA=f"{tmp_path}/a:{tmp_path}/b:relative") == {f"{tmp_path}/a", f"{tmp_path}/b"}
    assert places(tmp_path, "matplotlib", XDG_DATA_HOME=f"{tmp_path}/share") == {f"{tmp_path}/share/fonts"}


@pytest.mark.parametrize(
    ("path", "is_named"),
    [
        (".config/dask/dask.yaml", True),
        (".config/dask.toml", True),
        (".local/share/dask/x", True),
        (".daskrc", True),
        (".dask/config", True),
        ("dask/notes.txt", False),
        (".config/other/x", False),
        (".config/pip/pip.conf", False),
    ],
)
def test_what_has_the_name_of_an_installed_distribution_is_named(path: str, is_named: bool, tmp_path: Path) -> None:
    put(tmp_path, path)
    assert bool(places(tmp_path, "dask", "pip")) == is_named


def test_what_runs_have_is_not_named(tmp_path: Path) -> None:
    put(tmp_path, ".fonts/a.ttf", ".fonts/b.ttf", ".config/dask/dask.yaml")
    fonts, dask = f"{tmp_path}/.fonts", f"{tmp_path}/.config/dask"
    assert places(tmp_path, "matplotlib", "dask", held=(fonts, f"{dask}/dask.yaml")) == set()
    image = (fonts[1:], f"{fonts}/a.ttf"[1:])
    assert places(tmp_path, "matplotlib", image=image) == {fonts}, "the image has one of two fonts"
    assert places(tmp_path, "matplotlib", image=(*image, f"{fonts}/b.ttf"[1:])) == set()
