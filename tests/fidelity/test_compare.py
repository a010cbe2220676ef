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
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the probe says of a small environment and a folder."""
    folder = tmp_path_factory.mktemp("looked at")
    python = parts.venv(folder / "env")
    (site,) = folder.glob("env/lib/python*/site-packages")
    (site / "stray.py").write_text("VALUE = 1\n")
    (folder / "extra").mkdir()
    (folder / "extra" / "one.txt").write_text("one")
    (folder / "extra" / "link").symlink_to("one.txt")
    (folder / "extra" / "empty").mkdir()
    done = subprocess.run(
        [python, "-c", play.INSIDE.read_text(), str(folder / "extra")], cwd=folder, capture_output=True, check=True
    )
    return play.read(done.stdout, done.stderr)


def test_the_same_is_the_same(told: dict[str, Any]) -> None:
    assert compare.differences(told, json.loads(json.dumps(told))) == []
    assert compare.compared(told)["files"] > 500
    assert compare.compared(told)["modules"] >= 2


def test_the_probe_sees_files_links_and_empty_folders(told: dict[str, Any]) -> None:
    found = {path.rpartition("/")[2]: fact for path, fact in told["files"].items() if "/extra/" in path}
    assert found["link"] == ["link", "one.txt"]
    assert found["empty"] == ["folder"]
    assert found["one.txt"][0] == "file"
    assert found["one.txt"][2] is False


@pytest.mark.parametrize("part", ["path", "distributions", "facts", "modules", "scripts", "files"])
def test_whatever_is_missing_is_found(told: dict[str, Any], part: str) -> None:
    other = copy.deepcopy(told)
    if part in ("path", "distributions"):
        other[part].pop()
    else:
        other[part].popitem()
    assert compare.differences(told, other)
    assert compare.differences(other, told)


def test_the_order_of_the_path_counts(told: dict[str, Any]) -> None:
    other = copy.deepcopy(told)
    other["path"].reverse()
    assert compare.differences(told, other)


@pytest.mark.parametrize("change", [["file", "0" * 64, False], ["file", "", True], ["link", "elsewhere"], ["folder"]])
def test_every_change_of_a_file_is_found(told: dict[str, Any], change: list[Any]) -> None:
    other = copy.deepcopy(told)
    (path,) = (path for path in told["files"] if path.endswith("one.txt"))
    fact = list(change)
    if fact[1:2] == [""]:
        fact[1] = told["files"][path][1]
    other["files"][path] = fact
    assert len(compare.differences(told, other)) == 1


def test_nothing_is_no_verdict(told: dict[str, Any]) -> None:
    with pytest.raises(compare.EmptyError):
        compare.differences({**told, "files": {}}, {**told, "files": {}})


def test_scripts_are_what_they_do() -> None:
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
def test_what_is_left_out(path: str, out: bool) -> None:
    assert compare.left_out(path) is out


def test_the_marks_are_one() -> None:
    assert f"MARK = {play.MARK!r}".replace("'", '"') in Path(play.INSIDE).read_text()
