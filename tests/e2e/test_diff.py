"""`repro-env diff` and `show` on real environments: two alike on two paths, one of them changed, and live."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.e2e import parts

PACKAGES = ("packaging==26.3", "mdurl==0.1.2")


@pytest.fixture(scope="module")
def two(ground: Path) -> tuple[parts.Project, parts.Project]:
    """The same packages installed in the same way at two prefixes, both captured and rebuilt, with the same code."""
    found: list[parts.Project] = []
    for name in ("here", "there"):
        folder = ground / "diff" / name
        python = parts.venv(folder / f"env-{name}", *PACKAGES)
        made = parts.project(folder, python, ground / "shared-store")
        (folder / "train.py").write_text("print('trained')\n")
        if found:
            parts.lay(parts.large_blobs(found[0].folder), folder)
        made.capture()
        made.rebuild()
        found.append(made)
    return found[0], found[1]


def diff(made: parts.Project, *words: str | Path, **options: Any) -> dict[str, Any]:
    done = made.run("diff", "--json", *words, code=None, **options)
    found = json.loads(done.out)
    assert isinstance(found, dict)
    assert done.code == (0 if found["same"] else 1)
    return found


def own(found: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Differences that count and follow from no other."""
    return [one for one in found["differences"] if one["counts"] and one["level"] != "digests"]


def test_two_paths_differ_only_where_they_must(two: tuple[parts.Project, parts.Project]) -> None:
    here, there = two
    found = diff(here, here.folder, there.folder)
    assert set(found) == {"same", "left", "right", "differences", "same_layers", "same_distributions"}
    named = {one["what"]: one for one in own(found)}
    assert set(named) >= {"prefix", "command", "PATH", "VIRTUAL_ENV", "pyvenv.cfg", "bin/activate"}
    assert "bin/Activate.ps1" not in named
    assert all(one["moved"] for one in named.values()), named
    assert {one["what"].partition("/")[0] for one in named.values() if one["level"] == "files"} == {"bin", "pyvenv.cfg"}
    assert found["same_distributions"] == found["left"]["distributions"] >= 3
    assert found["same_layers"] == found["left"]["layers"] - 2
    follows = {one["what"] for one in found["differences"] if one["level"] == "digests"}
    assert follows == {"spec digest", "image ID"}
    text = here.run("diff", here.folder, there.folder, code=1).out
    assert "all because the environment has another prefix" in text


def test_specs_and_live_environments_agree(two: tuple[parts.Project, parts.Project]) -> None:
    here, there = two
    for word in (here.folder, here.folder / "repro", here.python, here.python.parents[1]):
        found = diff(here, here.folder, word)
        assert (found["same"], own(found)) == (True, []), word
    active = diff(here, here.folder, "live", env={"VIRTUAL_ENV": str(here.python.parents[1])})
    assert active["same"]
    expected = {one["what"] for one in own(diff(here, here.folder, there.folder))}
    assert {one["what"] for one in own(diff(here, here.python, there.python))} == expected


def test_what_was_installed_is_said_before_where_it_lies(two: tuple[parts.Project, parts.Project]) -> None:
    here, there = two
    command = [str(there.python), "-m", "pip", "--disable-pip-version-check", "install", "-qq"]
    subprocess.run([*command, "packaging==26.2"], check=True)
    (there.python.parents[1] / "notes.txt").write_text("stray\n")
    try:
        found = diff(here, here.folder, there.python, env={"OMP_NUM_THREADS": "2"})
    finally:
        subprocess.run([*command, *PACKAGES], check=True)
        (there.python.parents[1] / "notes.txt").unlink()
    first = [(one["level"], one["what"], one["left"], one["right"]) for one in own(found)[:2]]
    assert first == [("numerics", "OMP_NUM_THREADS", "", "2"), ("distributions", "packaging", "26.3", "26.2")]
    assert [one["what"] for one in own(found) if one["level"] == "files" and not one["moved"]] == ["notes.txt"]
    assert diff(here, there.folder, there.python)["same"], "all is as it was again"


def test_diff_writes_nothing_beside_its_caches(two: tuple[parts.Project, parts.Project]) -> None:
    here, there = two
    before = [parts.digests(one.folder) for one in two]
    diff(here, here.python, there.python)
    assert [parts.digests(one.folder) for one in two] == before


def test_words_that_mean_nothing(two: tuple[parts.Project, parts.Project]) -> None:
    here, _ = two
    assert "neither a spec nor an environment" in parts.one_sentence(here.run("diff", here.folder, "nonsense", code=3))
    here.run("diff", here.folder, code=2)
    assert here.run("diff", here.folder, here.folder / "train.py", code=3).out == ""


def test_show_is_about_what_was_captured(two: tuple[parts.Project, parts.Project]) -> None:
    here, _ = two
    page = here.run("show").out
    for text in (f"venv at {here.python.parents[1]}", "(in the store)", "packaging 26.3", "MISSING"):
        assert (text in page) == (text != "MISSING"), text
    found = json.loads(here.run("show", "--json").out)
    assert {wheel["name"] for wheel in found["spec"]["identity"]["distributions"]} >= {"packaging", "mdurl", "pip"}
    assert found["spec"]["observed"]["system_packages"]
    assert {layer["stored"] for layer in found["layers"]} == {True}


def test_help_lists_the_commands_in_the_order_of_use(two: tuple[parts.Project, parts.Project]) -> None:
    here, _ = two
    listed = here.run("--help").out.partition("Commands:")[2].split("\n\n")[0]
    names = [line.split()[0] for line in listed.splitlines() if line[2:3].strip()]
    assert names == [
        *["capture", "check", "show", "diff", "rebuild", "image", "push", "pack", "exec", "shell", "verify", "sensitivity"],
        *["lineage", "runs", "ci", "store", "doctor"],
    ]
