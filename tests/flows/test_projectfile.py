"""The user's word in pyproject.toml: read, and added to without a change of anything else."""

from __future__ import annotations

from pathlib import Path

import pytest

from repro_env.flows import projectfile
from repro_env.model.errors import UsageError

OURS = '[tool.repro-env.verify]\nignore = [\n    "a.json:time",\n    "train.log:took {}s",\n]\n'
ADDED = [
    ("", OURS),
    ("[project]\nname = 'x'", "[project]\nname = 'x'\n\n" + OURS),
    ("[project]\nname = 'x'\n", "[project]\nname = 'x'\n\n" + OURS),
    (
        "[tool.repro-env.verify]  # ours\n\n[tool.other]\nignore = [\n    'x',\n]\n",
        OURS.replace("verify]", "verify]  # ours") + "\n[tool.other]\nignore = [\n    'x',\n]\n",
    ),
    (
        "[tool.repro-env.verify]\nignore = [\n  '*.log',  # console\n  \"a.json:time\",\n]\n[x]\ny = 1\n",
        """[tool.repro-env.verify]
ignore = [
  '*.log',  # console
  "a.json:time",
    "train.log:took {}s",
]
[x]
y = 1
""",
    ),
    ("[x]\r\ny = 1\r\n", "[x]\r\ny = 1\r\n\r\n" + OURS.replace("\n", "\r\n")),
]
BY_HAND = [
    "[tool.repro-env.verify]\nignore = ['*.log']\n",
    "[tool.repro-env.verify]\nignore = [\n  '*.log'\n]\n",
    "tool.repro-env.verify.ignore = ['*.log']\n",
    "[tool]\nrepro-env = { verify = {} }\n",
]
BAD = [
    ("[tool.repro-env.verify]\nignore = '*.log'\n", "not a list of texts"),
    ("[tool.repro-env.verify]\nignore = ['*.log', 1]\n", "not a list of texts"),
    ("[tool.repro-env.verify]\nignored = ['*.log']\n", "has an unknown key: ignored"),
    ("[tool.repro-env]\nverify = 1\n", "is not a table"),
    ("[tool.repro-env.verify]\nignore = ['m.json:']\n", "no key, column or text after the colon"),
    ("[tool", "not valid TOML"),
]


def test_a_project_without_the_table_says_nothing(tmp_path: Path) -> None:
    assert projectfile.ignores(tmp_path) == ()
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    assert projectfile.ignores(tmp_path) == ()


@pytest.mark.parametrize(("old", "new"), ADDED)
def test_texts_are_added_and_what_was_there_stays(tmp_path: Path, old: str, new: str) -> None:
    path = tmp_path / "pyproject.toml"
    if old:
        path.write_bytes(old.encode())
        path.chmod(0o600)
    texts = ["train.log:took {}s", "a.json:time", "a.json:time"]
    added = projectfile.add(tmp_path, texts)
    assert path.read_bytes().decode() == new
    assert {*added} | {"a.json:time"} == {*texts}
    assert {ignore.reason for ignore in projectfile.ignores(tmp_path)} == {"as pyproject.toml says"}
    assert not old or path.stat().st_mode & 0o777 == 0o600
    assert projectfile.add(tmp_path, texts) == (), "once each"
    assert path.read_bytes().decode() == new


@pytest.mark.parametrize("old", BY_HAND)
def test_a_list_written_in_another_way_is_not_touched_and_the_lines_are_printed(tmp_path: Path, old: str) -> None:
    path = tmp_path / "pyproject.toml"
    path.write_text(old)
    with pytest.raises(UsageError) as caught:
        projectfile.add(tmp_path, ['a.log:say "{}"'])
    assert r'"a.log:say \"{}\"",' in caught.value.hint
    assert path.read_text() == old


@pytest.mark.parametrize(("text", "why"), BAD)
def test_anything_but_a_list_of_texts_is_refused(tmp_path: Path, text: str, why: str) -> None:
    (tmp_path / "pyproject.toml").write_text(text)
    with pytest.raises(UsageError, match=why):
        projectfile.ignores(tmp_path)


def test_a_file_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").symlink_to("/etc/hostname")
    with pytest.raises(UsageError, match="symbolic link"):
        projectfile.ignores(tmp_path)
