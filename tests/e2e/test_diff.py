"""`repro-env diff` and `show` on real environments: two alike on two paths, one of them changed, and live."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e import parts
from tests.e2e.answers import diff, own

PACKAGES = ("packaging==26.3", "mdurl==0.1.2", "pygments==2.21.0")


@pytest.fixture(scope="module")
def two(ground: Path) -> tuple[parts.Project, parts.Project]:
    """The same packages installed in the same way at two prefixes, both captured and rebuilt, with the same code."""
    entries: list[parts.Project] = []
    for name in ("here", "there"):
        directory = ground / "diff" / name
        python = parts.venv(directory / f"env-{name}", *PACKAGES, own_pip=False)
        made = parts.project(directory, python, ground / "shared-store")
        (directory / "train.py").write_text("print('trained')\n")
        made.capture()
        made.rebuild()
        entries.append(made)
    return entries[0], entries[1]


def test_two_paths_differ_only_where_they_must(two: tuple[parts.Project, parts.Project]) -> None:
    here, there = two
    result = diff(here, here.directory, there.directory)
    assert set(result) == {"same", "left", "right", "differences", "not_compared", "same_layers", "same_distributions"}
    named = {difference["what"]: difference for difference in own(result)}
    assert set(named) >= {"prefix", "command", "PATH", "VIRTUAL_ENV", "pyvenv.cfg", "bin/activate"}
    assert "bin/Activate.ps1" not in named
    assert all(row["moved"] for row in named.values()), named
    assert {row["what"].partition("/")[0] for row in named.values() if row["level"] == "files"} == {"bin", "pyvenv.cfg"}
    assert result["same_distributions"] == result["left"]["distributions"] == 3
    assert result["same_layers"] == result["left"]["layers"] - 2
    follows = {difference["what"] for difference in result["differences"] if difference["level"] == "digests"}
    assert follows == {"spec digest", "image ID"}
    text = here.run("diff", here.directory, there.directory, code=1).out
    assert "all because the environment has another prefix" in text


def test_specs_and_live_environments_agree(two: tuple[parts.Project, parts.Project]) -> None:
    """The code of a spec has no counterpart in a live environment, so it is listed, and the sides are not called the same."""
    here, there = two
    env = {"VIRTUAL_ENV": str(here.python.parents[1])}
    for word in (here.directory, here.directory / "repro", here.python, here.python.parents[1], "live"):
        result = diff(here, here.directory, word, env=env)
        is_spec = word in (here.directory, here.directory / "repro")
        assert (result["same"], own(result)) == (is_spec, []), word
        assert [entry["what"] for entry in result["not_compared"]] == ([] if is_spec else ["source"])
    text = here.run("diff", here.directory, here.python, code=1).out
    assert "not compared" in text
    assert "repro-env check" in text
    assert diff(here, here.python, here.python)["same"]
    expected = {difference["what"] for difference in own(diff(here, here.directory, there.directory))}
    assert {difference["what"] for difference in own(diff(here, here.python, there.python))} == expected


def test_differences_of_packages_come_before_differences_of_paths(two: tuple[parts.Project, parts.Project]) -> None:
    here, there = two
    command = [sys.executable, "-m", "pip", "--python", str(there.python), "--disable-pip-version-check", "install", "-qq"]
    subprocess.run([*command, "packaging==26.2"], check=True)
    (there.python.parents[1] / "notes.txt").write_text("stray\n")
    try:
        result = diff(here, here.directory, there.python, env={"OMP_NUM_THREADS": "2"})
    finally:
        subprocess.run([*command, *PACKAGES], check=True)
        (there.python.parents[1] / "notes.txt").unlink()
    first = [(difference["level"], difference["what"], difference["left"], difference["right"]) for difference in own(result)[:2]]
    assert first == [("numerics", "OMP_NUM_THREADS", "", "2"), ("distributions", "packaging", "26.3", "26.2")]
    assert [difference["what"] for difference in own(result) if difference["level"] == "files" and not difference["moved"]] == [
        "notes.txt"
    ]
    assert own(diff(here, there.directory, there.python)) == [], "all is as it was again"


def test_diff_writes_only_its_caches(two: tuple[parts.Project, parts.Project]) -> None:
    here, there = two
    before = [parts.digests(project.directory) for project in two]
    diff(here, here.python, there.python)
    assert [parts.digests(project.directory) for project in two] == before


def test_diff_refuses_words_that_name_neither_a_spec_nor_an_environment(two: tuple[parts.Project, parts.Project]) -> None:
    here, _ = two
    assert "neither a spec nor an environment" in parts.one_sentence(here.run("diff", here.directory, "nonsense", code=3))
    here.run("diff", here.directory, code=2)
    assert here.run("diff", here.directory, here.directory / "train.py", code=3).out == ""


def test_show_describes_what_was_captured(two: tuple[parts.Project, parts.Project]) -> None:
    here, _ = two
    page = here.run("show").out
    for text in (f"venv at {here.python.parents[1]}", "(in the store)", "packaging 26.3", "MISSING"):
        assert (text in page) == (text != "MISSING"), text
    answer = json.loads(here.run("show", "--json").out)
    assert {wheel["name"] for wheel in answer["spec"]["identity"]["distributions"]} == {"packaging", "mdurl", "pygments"}
    assert answer["spec"]["observed"]["system_packages"]
    assert {layer["stored"] for layer in answer["layers"]} == {True}


def test_help_lists_the_commands_in_the_order_of_use(two: tuple[parts.Project, parts.Project]) -> None:
    here, _ = two
    listed = here.run("--help").out.partition("Commands:")[2].split("\n\n")[0]
    names = [line.split()[0] for line in listed.splitlines() if line[2:3].strip()]
    assert names == [
        *[
            "capture",
            "check",
            "show",
            "diff",
            "rebuild",
            "image",
            "push",
            "pack",
            "exec",
            "shell",
            "kernel",
            "verify",
            "sensitivity",
        ],
        *["lineage", "due", "runs", "report", "init", "ci", "store", "doctor"],
    ]
