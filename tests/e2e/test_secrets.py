"""Secrets and redaction through the installed command: what is used stays as it is, what leaves is looked at once more."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from repro_env.io.files import remove_tree
from tests.e2e.parts import Project, one_sentence
from tests.parts import BASE_PYTHON
from tests.secrets.planted import Mint


def test_an_editable_project_below_a_directory_called_t_runs(tmp_path: Path) -> None:
    """`/t/<word>` is a path in a file's URL, and no token of a channel: the project is held, found and named."""
    below = tmp_path / "t" / "lab2024project" / "lib"
    below.mkdir(parents=True)
    (below / "helper").mkdir()
    (below / "helper" / "__init__.py").write_text("ANSWER = 42\n")
    directory = tmp_path / "t" / "lab2024project" / "train"
    directory.mkdir()
    (directory / "train.py").write_text("import helper\nprint('the answer is', helper.ANSWER)\n")
    venv = directory / ".venv"
    base = BASE_PYTHON
    subprocess.run([base, "-m", "venv", "--without-pip", venv], check=True)
    (site,) = (venv / "lib").glob("python3*/site-packages")
    (site / "helper.pth").write_text(f"{below}\n")  # as pip leaves an editable install
    info = {
        "METADATA": "Metadata-Version: 2.1\nName: helper\nVersion: 1.0\n",
        "WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "direct_url.json": json.dumps({"dir_info": {"editable": True}, "url": below.as_uri()}),
        "RECORD": "helper.pth,,\nhelper-1.0.dist-info/METADATA,,\nhelper-1.0.dist-info/WHEEL,,\n"
        "helper-1.0.dist-info/direct_url.json,,\nhelper-1.0.dist-info/RECORD,,\n",
    }
    (site / "helper-1.0.dist-info").mkdir()
    for name, text in info.items():
        (site / "helper-1.0.dist-info" / name).write_text(text)
    project = Project(directory, venv / "bin" / "python", tmp_path / "store")
    try:
        assert project.run("capture", "--python", project.python).code == 0
        spec = json.loads((directory / "repro" / "spec.json").read_text())
        (origin,) = [
            distribution["direct_url"] for distribution in spec["observed"]["distributions"] if distribution["name"] == "helper"
        ]
        assert origin == below.as_uri()
        assert str(below) in [bundled["name"] for bundled in spec["observed"]["bundled"]]
        project.run("rebuild", "repro")
        below.rename(below.with_name("gone"))
        ran = project.run("exec", "--", "python", "train.py")
        assert "the answer is 42" in ran.out
    finally:
        remove_tree(tmp_path / "store")


def test_pack_refuses_a_secret_that_came_into_the_spec_after_capture(small: Project, tmp_path: Path) -> None:
    file = small.directory / "repro" / "requirements.txt"
    before = file.read_text() if file.exists() else None
    secret = Mint().draw("in a spec", "ghp_{a:36}")
    file.write_text((before or "") + f"# {secret}\n")
    try:
        done = small.run("pack", "repro", tmp_path / "x.tar", code=7)
    finally:
        file.write_text(before) if before is not None else file.unlink()
    assert "1 file contains a secret, so nothing was written or sent" in one_sentence(done)
    assert "requirements.txt: GitHub token" in done.err
    assert secret not in done.err
    assert not (tmp_path / "x.tar").exists()
