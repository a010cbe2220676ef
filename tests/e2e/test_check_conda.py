"""`check` and `diff` of conda environments: packages by version, edited files by package, two prefixes."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.e2e import parts
from tests.e2e.answers import check, diff, own, rows
from tests.fakes import conda

PACKAGES = ["answer", "twin-a", "scripted"]


@pytest.fixture(scope="module")
def two(conda_channel: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[parts.Project, parts.Project]:
    ground = tmp_path_factory.mktemp("check-conda")
    shutil.copytree(conda_channel, ground / "channel")
    result = []
    for name in ("one", "other"):
        prefix = ground / name / "env"
        conda.install(prefix, (ground / "channel").as_uri(), PACKAGES, cache=ground / "cache")
        made = parts.project(ground / name / "project", prefix / "bin" / "python", ground / "store")
        (made.directory / "train.py").write_text("pass\n")
        made.capture()
        result.append(made)
    return result[0], result[1]


def test_an_edited_file_belongs_to_its_package(two: tuple[parts.Project, parts.Project]) -> None:
    first, _ = two
    assert check(first)["same"] is True
    prefix = first.python.parents[1]
    (prefix / "share" / "answer.txt").unlink()
    (prefix / "share" / "answer.txt").write_text("edited")
    (prefix / "share" / "stray.txt").write_text("stray")
    result = check(first)
    assert rows(result) == {"share/answer.txt": ("distributions", "~", "answer"), "share/stray.txt": ("files", "+", "")}
    assert {entry["left"] for entry in result["differences"] if entry["of"] == "answer"} == {"as in answer"}


def test_two_prefixes_of_the_same_packages_differ_only_where_they_must(two: tuple[parts.Project, parts.Project]) -> None:
    """Packages embed their prefix, so layers differ; packages do not."""
    first, other = two
    first.capture()
    result = diff(first, first.directory, other.directory)
    named = {row["what"]: row for row in own(result)}
    assert result["same_distributions"] == result["left"]["distributions"] == len(PACKAGES) + 1
    assert {"prefix", "command"} <= set(named)
    assert not [row for row in named.values() if row["level"] in ("numerics", "interpreter", "system")]
    assert {name for name, row in named.items() if row["level"] in ("distributions", "files") and not row["moved"]} == {
        "share/answer.txt",
        "share/stray.txt",
    }
