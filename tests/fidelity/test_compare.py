"""The judge finds what differs, and leaves out what installers write for themselves and nothing else."""

from __future__ import annotations

import copy
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.e2e import parts
from tests.fidelity import compare, play

STUB = "#!/a/.venv/bin/python\nimport re\nimport sys\nfrom alpha import main\nif __name__ == '__main__':\n    sys.argv[0] = re.sub(r'x', '', sys.argv[0])\n    sys.exit(main())\n"
OTHER = "#!/bin/sh\n'''exec' '/b c/python' \"$0\" \"$@\"\n' '''\nimport sys\nfrom alpha import main\nif __name__ == '__main__':\n    sys.exit(main())\n"


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the probe says of a small environment and a directory."""
    directory = tmp_path_factory.mktemp("looked at")
    python = parts.venv(directory / "env")
    (site,) = directory.glob("env/lib/python*/site-packages")
    (site / "stray.py").write_text("VALUE = 1\n")
    (directory / "extra").mkdir()
    (directory / "extra" / "one.txt").write_text("one")
    (directory / "extra" / "link").symlink_to("one.txt")
    (directory / "extra" / "empty").mkdir()
    done = subprocess.run(
        [python, "-c", play.INSIDE.read_text(), str(directory / "extra")], cwd=directory, capture_output=True, check=True
    )
    return play.read(done.stdout, done.stderr)


def test_equal_environments_have_no_differences(facts: dict[str, Any]) -> None:
    assert compare.differences(facts, json.loads(json.dumps(facts))) == []
    assert compare.compared(facts)["files"] > 500
    assert compare.compared(facts)["modules"] >= 2


def test_the_probe_reports_files_links_and_empty_directories(facts: dict[str, Any]) -> None:
    entries = {path.rpartition("/")[2]: fact for path, fact in facts["files"].items() if "/extra/" in path}
    assert entries["link"] == ["link", "one.txt"]
    assert entries["empty"] == ["directory"]
    assert entries["one.txt"][0] == "file"
    assert entries["one.txt"][2] is False


@pytest.mark.parametrize("part", ["path", "distributions", "facts", "modules", "scripts", "files"])
def test_whatever_is_missing_is_found(facts: dict[str, Any], part: str) -> None:
    other = copy.deepcopy(facts)
    if part in ("path", "distributions"):
        other[part].pop()
    else:
        other[part].popitem()
    assert compare.differences(facts, other)
    assert compare.differences(other, facts)


def test_the_order_of_the_path_counts(facts: dict[str, Any]) -> None:
    other = copy.deepcopy(facts)
    other["path"].reverse()
    assert compare.differences(facts, other)


@pytest.mark.parametrize("change", [["file", "0" * 64, False], ["file", "", True], ["link", "elsewhere"], ["directory"]])
def test_every_change_of_a_file_is_found(facts: dict[str, Any], change: list[Any]) -> None:
    other = copy.deepcopy(facts)
    (path,) = (path for path in facts["files"] if path.endswith("one.txt"))
    fact = list(change)
    if fact[1:2] == [""]:
        fact[1] = facts["files"][path][1]
    other["files"][path] = fact
    assert len(compare.differences(facts, other)) == 1


def test_a_comparison_of_no_files_is_an_error(facts: dict[str, Any]) -> None:
    with pytest.raises(compare.EmptyError):
        compare.differences({**facts, "files": {}}, {**facts, "files": {}})


def test_scripts_are_compared_by_what_they_do() -> None:
    assert compare.meaning(STUB) == compare.meaning(OTHER)
    for changed in (
        STUB.replace("import sys\n", "import sys\nprint(1)\n"),
        STUB.replace("import main", "import other"),
        STUB.replace("sys.exit(main())", "print(1); sys.exit(main())"),
        STUB.replace("sys.exit(main())", "sys.exit(main(1))"),
        STUB.replace("import re", "import os"),
    ):
        assert compare.meaning(changed) != compare.meaning(STUB)


@pytest.mark.parametrize(
    ("path", "out"),
    [
        ("/s/a-1.dist-info/RECORD", True),
        ("/s/a-1.dist-info/METADATA", False),
        ("/s/a/RECORD", False),
        ("/s/a-1.dist-info/licenses/RECORD", False),
        ("/s/__pycache__/a.pyc", False),
        ("/s/a.pyc", False),
    ],
)
def test_only_the_record_of_a_distribution_is_left_out(path: str, out: bool) -> None:
    assert compare.left_out(path) is out


def test_the_mark_is_the_same_on_both_sides() -> None:
    assert f"MARK = {play.MARK!r}".replace("'", '"') in Path(play.INSIDE).read_text()
