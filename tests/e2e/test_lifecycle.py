"""The commands of docs/life-cycle.md in their order, with a real registry."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from repro_env.registry.client import Registry
from tests.e2e.parts import ROOT, Project
from tests.registries import registry

PAGE = (ROOT / "docs" / "life-cycle.md").read_text()
EVALUATE = """\
import json, os
right = len(open("splits/test.txt").read()) + len(open("/data/test/labels.txt").read())
json.dump({"accuracy": right / 8}, open("metrics.json", "w"))
"""


@pytest.fixture
def place(tmp_path: Path) -> Iterator[str]:
    with registry(tmp_path / "registry") as place:
        yield place


def lines(kind: str) -> list[str]:
    """The lines of the page in fenced blocks of a kind."""
    blocks: list[str] = re.findall(rf"```{kind}\n(.*?)```", PAGE, re.DOTALL)
    return [line for block in blocks for line in block.splitlines()]


def test_runs_under_different_protocols_are_not_compared_silently(small: Project) -> None:
    (small.directory / "pyproject.toml").write_text('[tool.repro-env.protocol.short]\ncommand = ["score.py", "--short"]\n')
    (small.directory / "score.py").write_text("import sys\nopen('made.txt', 'w').write(str(sys.argv))\n")
    for words in (["--short"], []):
        small.run("exec", "score.py", *words)
    first, second = (run["start"]["id"] for run in reversed(json.loads(small.run("runs", "list", "--json").out)["runs"][:2]))
    done = small.run("runs", "compare", first, second, code=None)
    assert "is not under the protocol short: the command is score.py, and must begin with score.py --short" in done.out


@pytest.mark.index
def test_every_command_of_the_page(small: Project, tmp_path: Path, place: str) -> None:
    data = tmp_path / "test"
    data.mkdir()
    (data / "labels.txt").write_text("abcd")
    (small.directory / "splits").mkdir()
    (small.directory / "splits" / "test.txt").write_text("1234")
    (small.directory / "evaluate.py").write_text(EVALUATE)
    small.capture("--data", f"{data}:/data/test")
    (recorded,) = json.loads((small.directory / "repro" / "spec.json").read_text())["observed"]["data"]
    split = f"sha256:{hashlib.sha256(b'1234').hexdigest()}"
    digests = iter([recorded["digest"], split])
    settings = re.sub("sha256:<digest>", lambda _: next(digests), "\n".join(lines("toml")))
    (small.directory / "pyproject.toml").write_text(settings)
    for line in lines("console"):
        words = shlex.split(line.replace("/my/test", str(data)).replace("registry.example.com", place))
        assert words.pop(0) == "repro-env"
        if words[0] == "due":
            done = small.run(*words, code=1)  # it was not verified, and the index of this machine may have no advisories
            assert "classifier@production, classifier@staging" in done.out
            assert re.search("verify +it was not verified", done.out)
        else:
            done = small.run(*words)
        if words[:2] == ["runs", "versions"]:
            assert re.search(r"classifier@v1  [0-9a-f]{8}  \S+ \S+  staging, production", done.out)
            assert re.search(r"v1 +staging +Ann +best of 20", done.out)
    with Registry(place) as client:
        assert {"classifier-production", "classifier-v1"} < {*client.tags("team/classifier")}  # and that of the referrers
    assert json.loads(small.run("due", "--json").out)["runs"][0]["reasons"] == []
