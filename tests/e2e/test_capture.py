"""The same environment gives the same bytes, whatever may not matter."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.e2e import parts

PACKAGES = ("packaging==26.3", "mdurl==0.1.2", "pygments==2.21.0")


def spec(directory: Path) -> dict[str, Any]:
    content = json.loads((directory / "spec.json").read_text())
    assert isinstance(content, dict)
    return content


def test_a_second_capture_writes_the_same_bytes_with_everything_inside_the_source(small: parts.Project) -> None:
    """repro/, runs/ and the environment lie in the source directory, and have changed in between."""
    small.run("exec", "hello.py")
    assert (small.directory / "repro").is_dir()
    assert (small.directory / "runs").is_dir()
    assert (small.directory / ".venv").is_dir()
    small.capture()
    first = parts.digests(small.directory / "repro")
    small.run("exec", "hello.py")
    small.capture()
    assert parts.digests(small.directory / "repro") == first
    assert "spec.json" in first
    assert any(path.startswith("blobs/") for path in first)


def test_no_cache_is_needed_for_the_same_bytes_and_where_they_were_captured_nothing_is_downloaded(
    small: parts.Project, tmp_path: Path
) -> None:
    """A store that never saw the environment, and another umask. Then every way out is a dead end: the live files are enough."""
    small.capture()
    first, before = parts.digests(small.directory / "repro"), spec(small.directory / "repro")
    (small.directory / "repro").rename(tmp_path / "repro")
    there = small.elsewhere(tmp_path / "store")
    try:
        there.capture(is_first=True, umask=0o077)
        again, after = parts.digests(small.directory / "repro"), spec(small.directory / "repro")
        assert after == before
        assert again == first
        dead = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"), "http://127.0.0.1:9")
        assert there.rebuild(env=dead) == before["expected"]["image_id"]
    finally:
        shutil.rmtree(small.directory / "repro", ignore_errors=True)
        (tmp_path / "repro").rename(small.directory / "repro")


def test_what_was_captured_is_named(small: parts.Project) -> None:
    answer = small.capture()
    assert set(answer) == {
        "spec", "spec_digest", "image_id", "python", "packages", "distributions", "proven", "bundled", "edited", "excluded", "unknown",
        "unheld_variables",
    }  # fmt: skip
    assert Path(answer["spec"]) == small.directory / "repro" / "spec.json"
    assert answer["distributions"] == answer["proven"] == 3
    assert [line for line in answer["edited"] if "mdurl/__init__.py" in line]
    assert ".venv" in {entry["path"] for entry in answer["excluded"]}
    source = spec(small.directory / "repro")["observed"]["source"]
    assert source["path"] == str(small.directory)
    assert source["size"] < 1000, "only hello.py and its like"


def test_the_spec_digest_is_taken_of_the_identity_alone(small: parts.Project, tmp_path: Path) -> None:
    """Facts of the moment (a variable, a file in the source) change the spec and not its digest."""
    first = small.capture()
    (small.directory / "new.py").write_text("pass\n")
    try:
        again = small.capture("--output", tmp_path / "repro", env={"CUDA_VISIBLE_DEVICES": "7"})
    finally:
        (small.directory / "new.py").unlink()
    assert again["spec_digest"] == first["spec_digest"]
    assert again["image_id"] == first["image_id"]
    assert (tmp_path / "repro" / "spec.json").read_bytes() != (small.directory / "repro" / "spec.json").read_bytes()


def test_another_seed_changes_the_default_of_runs_but_not_the_image(small: parts.Project, tmp_path: Path) -> None:
    first = small.capture()
    again = small.capture("--output", tmp_path / "repro", "--seed", "7")
    assert again["spec_digest"] == first["spec_digest"]
    assert again["image_id"] == first["image_id"]
    changed = {path for path, _ in parts.digests(small.directory / "repro").items() ^ parts.digests(tmp_path / "repro").items()}
    assert changed == {"spec.json"}
    code = ("python", "-c", "import os; print(os.environ['REPRO_ENV_SEED'])")
    for directory, seed in ((small.directory / "repro", "0"), (tmp_path / "repro", "7")):
        assert small.run("exec", "--frozen", "--spec", directory, *code).out == f"{seed}\n"


@pytest.mark.soak
def test_umask_at_installation_does_not_matter(small: parts.Project, ground: Path, tmp_path: Path) -> None:
    """Group-writable files of an environment installed under umask 002 give the image of one installed under 022."""
    directory = tmp_path / "project"
    answers = []
    for umask in (0o022, 0o002):
        shutil.rmtree(directory, ignore_errors=True)
        python = parts.venv(directory / ".venv", *PACKAGES, umask=umask, own_pip=False)
        made = parts.project(directory, python, ground / "shared-store")
        answers.append(made.capture())
    (module,) = (directory / ".venv").glob("lib/python*/site-packages/mdurl/__init__.py")
    assert module.stat().st_mode & 0o020, "the second one really is group-writable"
    assert answers[0]["spec_digest"] == answers[1]["spec_digest"]
    assert answers[0]["image_id"] == answers[1]["image_id"]


def test_the_state_of_git_is_captured(small: parts.Project, tmp_path: Path) -> None:
    directory = tmp_path / "project"
    made = parts.project(directory, small.python, small.store)
    git = ["git", "-C", str(directory), "-c", "user.name=Ann", "-c", "user.email=ann@example.org"]
    subprocess.run([*git, "init", "-q"], check=True)
    (directory / ".gitignore").write_text("*.log\n")
    (directory / "train.py").write_text("print(1)\n")
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "-qm", "first"], check=True)
    (directory / "train.py").write_text("print(2)\n")
    (directory / "notes.txt").write_text("untracked\n")
    (directory / "big.log").write_text("ignored\n")
    answer = made.capture()
    result = spec(directory / "repro")["observed"]["source"]["git"]
    head = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    assert (result["commit"], result["dirty"], result["untracked"]) == (head, True, ["notes.txt"])
    assert "big.log" in {entry["path"] for entry in answer["excluded"]}
    listed = made.python_says("import os; print(*sorted(os.listdir()))").split()
    assert listed == [".gitignore", "notes.txt", "train.py"]
