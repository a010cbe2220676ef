"""Data that a run sees without an option, and what a failed command is told, through the installed command."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.e2e import parts

TRAIN = """\
import os
print(open("data/small.bin").read(), open("../data/x").read(), os.path.exists("data/large.bin"), os.path.exists(".env"))
open("data/small.bin", "a").write(" and more")
open("data/cache", "w").write("cache")
"""
EXPECTED = "small outside False False\n"
READ = "print(open('../input/x').read())\n"


@pytest.fixture(scope="module")
def made(small: parts.Project, ground: Path) -> parts.Project:
    """A project with data that git ignores, and data next to it that was named at capture."""
    directory = ground / "data" / "project"
    outside = directory.parent / "data"
    for path in (directory / "data", outside):
        path.mkdir(parents=True)
    (outside / "x").write_text("outside")
    (directory / "data" / "small.bin").write_text("small")
    (directory / ".env").write_text("TOKEN=x\n")
    os.truncate(_new(directory / "large.bin"), 300_000_000)
    (directory / "train.py").write_text(TRAIN)
    (directory / ".gitignore").write_text("data/\n*.bin\n.env\n.venv\nrepro\nruns\n")
    for name, text in (("input/x", "input"), ("other/y", "")):
        (directory.parent / name).parent.mkdir()
        (directory.parent / name).write_text(text)
    (directory / "read.py").write_text(READ)
    subprocess.run(["git", "init", "-q", str(directory)], check=True)
    python = parts.venv(directory / ".venv", own_pip=False)
    return parts.project(directory, python, small.store)


def _new(path: Path) -> Path:
    path.touch()
    return path


def hint(made: parts.Project, *words: str, code: int = 1, env: Mapping[str, str] | None = None) -> list[str]:
    """The hints after a command that fails."""
    done = made.run("exec", *words, code=code, env=env)
    return [line.partition("hint: ")[2] for line in done.err.splitlines() if "hint: " in line]


@pytest.fixture(scope="module")
def captured(made: parts.Project) -> None:
    made.run("capture", "--python", made.python, "--data", "../data")


@pytest.mark.usefixtures("captured")
def test_ignored_data_and_data_of_the_capture_need_no_option(made: parts.Project) -> None:
    assert made.run("exec", "train.py").out == EXPECTED
    shown = json.loads(made.run("runs", "show", "latest", "--json").out)
    record = json.loads((made.directory / "runs" / "latest" / "start.json").read_text())
    assert record["source"]["ignored"] == ["data"]
    assert [data_entry["target"] for data_entry in record["data"]] == [str(made.directory.parent / "data")]
    assert {output["path"] for output in shown["end"]["outputs"]} == {"data/small.bin", "data/cache"}
    assert (made.directory / "data" / "small.bin").read_text() == "small"
    (made.directory / "data" / "small.bin").write_text("changed")
    assert "2 of 2 the same" in made.run("verify", "latest").out, "the run's own data is used"
    (made.directory / "data" / "small.bin").write_text("small")
    made.run("exec", "--frozen", "train.py", code=1)


@pytest.mark.usefixtures("captured")
def test_a_directory_next_to_the_project_needs_an_option(made: parts.Project) -> None:
    assert f"input is not in the run; to mount it: --data {made.directory.parent}/input" in "".join(hint(made, "read.py"))
    assert made.run("exec", "--data", "../input", "read.py").out == "input\n"


@pytest.mark.usefixtures("captured")
def test_a_clone_has_the_data_next_to_it(made: parts.Project, tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    ignore = shutil.ignore_patterns(".venv", "runs", "large.bin")
    shutil.copytree(made.directory, clone, ignore=ignore, symlinks=True)
    shutil.copytree(made.directory.parent / "data", tmp_path / "data")
    (made.directory.parent / "data").rename(made.directory.parent / "away")
    try:
        assert made.run("exec", "train.py", cwd=clone).out == EXPECTED
        assert "were not found" in parts.one_sentence(made.run("exec", "train.py", code=17))
        (tmp_path / "data" / "x").write_text("OUTSIDE")
        message = parts.one_sentence(made.run("exec", "train.py", cwd=clone, code=17))
        assert f"{tmp_path}/data: these data differ from the capture" in message
        assert "--data-changed" in message
        elsewhere = f"{made.directory.parent}/away:{made.directory.parent}/data"
        assert made.run("exec", "--data", elsewhere, "train.py", cwd=clone).out == EXPECTED
        done = made.run("exec", "--data", "../data", "--data-changed", "train.py", cwd=clone)
        assert done.out == EXPECTED.replace("outside", "OUTSIDE")
    finally:
        (made.directory.parent / "away").rename(made.directory.parent / "data")


@pytest.mark.usefixtures("captured")
def test_a_failed_command_gets_a_hint_for_the_files_that_it_missed(made: parts.Project) -> None:
    (site,) = (made.directory / ".venv" / "lib").glob("python*/site-packages")
    (site / "later.py").touch()
    root = made.directory.parent
    other = f"{root}/other is not in the run; to mount it: --data {root}/other; to write to it: --checkpoints {root}/other"
    chain = "try: open('../other/y')\nexcept OSError: open('large.bin')"
    assert hint(made, "-c", chain) == [
        f"{made.directory}/large.bin is not in the run; to mount it: --data {made.directory}/large.bin",
        other,
    ]
    caught = "for name in ('../other/y', 'large.bin', '/etc/none'):\n try: open(name)\n except OSError: data = None\n"
    for end in ("raise SystemExit('no data')", "import os, sys; sys.exit(1)"):
        assert hint(made, "-c", caught + end) == [
            other,
            f"{made.directory}/large.bin is not in the run; to mount it: --data {made.directory}/large.bin",
        ]
    made.run("exec", "-c", caught + "print('no data is no failure')")
    chain = "try: import later\nexcept ImportError: import subprocess; subprocess.run(['git', 'status'])"
    assert hint(made, "-c", chain) == [
        "git is not in the image; to add it, capture again with --with git",
        f"later is installed in {made.directory}/.venv now, but is not in the image; to add it: repro-env capture",
    ]
    (site / "later.py").unlink()
    assert hint(made, "-c", "import socket; socket.getaddrinfo('example.org', 80)") == [
        "the run has no network; to allow it: --network"
    ]
    assert hint(made, "cat", "../other/y") == [other]
    write = "open('../other/new', 'w').write('kept')"
    assert hint(made, "-c", write) == [f"{root}/other is not in the run; to write to it: --checkpoints {root}/other"]
    write_and_fail = "import os, sys; os.mkdir('made'); open('made/x', 'w'); raise ValueError"
    assert hint(made, "-c", write_and_fail, "made/x") == [], "no earlier run wrote it"
    made.run("exec", "--checkpoints", "../other", "-c", write)
    assert (root / "other" / "new").read_text() == "kept"
    assert hint(made, "-c", "import no_such_module", "../other/y") == [], "the command's words are not the reason"
    assert made.run("exec", "--data", "../other", "-c", "print(open('../other/y').read())").out == "\n"


@pytest.mark.usefixtures("captured")
def test_entries_of_pythonpath_in_the_source_reach_the_run_and_its_repetition(made: parts.Project) -> None:
    (made.directory / "lib").mkdir()
    (made.directory / "lib" / "local_module.py").write_text("open('from-lib', 'w').close()")
    stray = made.directory.parent / "stray"
    made.run("exec", "-c", "import local_module, sys; print(sys.path)", env={"PYTHONPATH": f"lib:{stray}:/usr/../../lib"})
    start = json.loads((made.directory / "runs" / "latest" / "start.json").read_text())
    assert start["python_path"] == [f"{made.directory}/lib"]
    assert "1 of 1 the same" in made.run("verify", "latest").out


@pytest.mark.usefixtures("captured")
def test_docker_shows_the_same_data_and_gives_the_same_hint(made: parts.Project) -> None:
    with parts.in_docker(made):
        done = made.run("exec", "--runner", "docker", "-c", TRAIN + "open('../other/y')", code=1)
        assert done.out == EXPECTED
        assert "hint: " in done.err
