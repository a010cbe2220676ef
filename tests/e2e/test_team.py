"""Every command of docs/team.md, by two users of this machine, with a directory and with a real registry."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from repro_env.io.files import remove_tree
from repro_env.runs.records import records
from tests.e2e.parts import COMMAND, ROOT, Done, Project, environ, one_sentence
from tests.e2e.users import as_user
from tests.parts import need
from tests.registries import registry

UID = 20_777
PAGE = (ROOT / "docs" / "team.md").read_text()


class Ben(NamedTuple):
    """Another user, with a home, a store and a directory of work. Under a UID of his own, if that can start the command."""

    home: Path
    words: list[str]

    @property
    def work(self) -> Path:
        return self.home / "work"

    def run(self, *words: str, code: int | None = 0) -> Done:
        env = {**environ(self.home / "store"), "HOME": str(self.home)}
        ended = subprocess.run(
            [*self.words, COMMAND, *words], cwd=self.work, env=env, capture_output=True, text=True, check=False, timeout=500
        )
        done = Done(ended.returncode, ended.stdout, ended.stderr)
        assert code is None or done.code == code, f"{words} -> {done.code}\n{done.out}\n{done.err}"
        return done


class Team(NamedTuple):
    ann: Project
    ben: Ben
    shared: Path
    reference: str


@pytest.fixture(scope="module")
def team(small: Project, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Team]:
    need(os.geteuid() == 0, "only root can become another user")
    remove_tree(small.directory / "runs")  # of other modules
    can_start = not subprocess.run([*as_user(UID), COMMAND, "--help"], capture_output=True, check=False).returncode
    with (
        registry(tmp_path_factory.mktemp("registry")) as host,
        tempfile.TemporaryDirectory(prefix="repro-env-team-", dir="/var/tmp") as made,
    ):
        directory = Path(made)
        directory.chmod(0o755)
        ben = Ben(directory / "ben", as_user(UID) if can_start else [])
        ben.work.mkdir(parents=True)
        subprocess.run(["chown", "-R", f"{UID}:{UID}", str(ben.home)], check=bool(ben.words))
        yield Team(small, ben, directory / "runs", f"{host}/team/runs")
        remove_tree(ben.home)


def commands(heading: str) -> list[str]:
    """The command lines of a part of the page, without its example of output."""
    section = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    blocks = re.findall(r"^```console\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    return [line for block in blocks if not block.startswith("$ ") for line in block.splitlines()]


def words(line: str, team: Team, run: str) -> list[str]:
    """A command of the page on this machine."""
    line = line.replace("/shared/runs", str(team.shared)).replace("registry.example.com/team/runs", team.reference)
    parts = shlex.split(line.replace("1f2e3d4c", run).replace("train.py", "hello.py"), comments=True)
    assert parts.pop(0) == "repro-env"
    return parts


def test_every_command_of_the_page_does_what_it_says(team: Team) -> None:
    make, _, group = commands("Choose a place")[0].partition(" && ")
    subprocess.run(shlex.split(make.replace("/shared/runs", str(team.shared))), check=True, umask=0)
    assert group == "chgrp research /shared/runs"
    os.chown(team.shared, 0, UID)
    for line in commands("Push your runs"):
        team.ann.run(*words(line, team, "latest"))
    done = records.read(records.find(team.ann.directory / "runs", "latest"))
    outputs = {}
    for line in commands("Pull the runs of others"):
        outputs[line.partition(" #")[0].strip()] = team.ben.run(*words(line, team, done.short))
    assert "paper/table-2" in outputs["repro-env runs list --from /shared/runs --tag paper/table-2"].out
    assert (team.ben.work.parent / "theirs" / "made.txt").read_text() == "made"
    assert f"run {done.short}: made.txt" in outputs["repro-env lineage ../theirs/made.txt"].out
    assert "everything is there" in outputs["repro-env runs audit 1f2e3d4c"].out
    assert outputs["repro-env verify 1f2e3d4c"].out.startswith("bitwise: 1 result identical")
    assert "unchanged" in outputs["repro-env runs pull /shared/runs 1f2e3d4c --outputs all"].out
    home = records.read(records.find(team.ben.work / "runs", done.short))
    assert (home.start, home.end, home.tags) == (done.start, done.end, ("paper/table-2",))
    # The group may push too.
    team.ben.run("runs", "note", done.short, "good", "--by", "ben")
    assert "pushed" in team.ben.run("runs", "push", str(team.shared)).out
    assert "completed" in team.ann.run("runs", "pull", str(team.shared), done.short).out
    (line,) = commands("From a job on a cluster")
    team.ann.run(*words(line, team, ""))
    assert len(json.loads(team.ben.run("runs", "list", "--from", str(team.shared), "--json").out)["runs"]) == 2


def test_the_registry_has_the_same_run_and_nothing_is_sent_twice(team: Team) -> None:
    for catalog in (str(team.shared), team.reference):
        team.ann.run("runs", "push", catalog)
        again = json.loads(team.ann.run("runs", "push", catalog, "--json").out)
        assert {run["size"] for run in again["runs"]} == {0}
        assert "nothing was sent" in team.ann.run("runs", "push", catalog).err
    listed = [
        json.loads(team.ben.run("runs", "list", "--from", name, "--json").out) for name in (str(team.shared), team.reference)
    ]
    assert listed[0] == listed[1]
    done = team.ben.run("runs", "pull", team.reference)
    assert "pulled" in done.out  # the run of the job; the other one is here
    assert "unchanged" in done.out


def test_the_exit_code_of_a_command_counts_more_than_a_failed_push(team: Team, tmp_path: Path) -> None:
    catalog = tmp_path / "catalog"
    catalog.mkdir()
    failing = "import shutil, sys; sys.exit(int(sys.argv[1]))"
    done = team.ann.run("exec", "--push", str(catalog), "-c", failing, "7", code=7)
    assert f"to {catalog} for 1 run" in done.err
    assert "exit 7" in team.ann.run("runs", "list", "--from", str(catalog)).out
    remove_tree(catalog)
    before = len(records.directories(team.ann.directory / "runs"))
    refused = team.ann.run("exec", "--push", str(catalog), "hello.py", code=2)
    assert "neither an existing directory nor a repository" in one_sentence(refused)
    assert len(records.directories(team.ann.directory / "runs")) == before


def test_a_push_that_fails_after_the_command_is_reported_loudly(team: Team, tmp_path: Path) -> None:
    """The script writes a secret, so its run may not be sent."""
    catalog = tmp_path / "catalog"
    catalog.mkdir()
    code = "import sys; open('conf.txt', 'w').write('token = ' + 'ghp_' + 'aB3dE5gH7jK9mN1pQ3sT5vW7yZ9bC1dE3fG5'); sys.exit(int(sys.argv[1]))"
    for exit_code, expected in (("0", 7), ("9", 9)):
        done = team.ann.run("exec", "--push", str(catalog), "-c", code, exit_code, code=expected)
        assert f"could not be pushed to {catalog}" in done.err
        assert "conf.txt: GitHub token" in one_sentence(done)
    assert "no runs in" in team.ann.run("runs", "list", "--from", str(catalog)).err
