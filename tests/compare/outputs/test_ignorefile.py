"""The list of accepted differences in repro-env.ignore is read, and extended without another change to the file."""

from __future__ import annotations

from pathlib import Path

import pytest

from repro_env.compare.outputs import ignorefile
from repro_env.schema.errors import UsageError

BOTH = "a.json:time\ntrain.log:took {}s\n"


def test_a_project_without_the_file_accepts_nothing(tmp_path: Path) -> None:
    assert ignorefile.ignores(tmp_path) == ()
    (tmp_path / "repro-env.ignore").write_text("# only a comment\n\n")
    assert ignorefile.ignores(tmp_path) == ()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("", BOTH),
        ("*.log", "*.log\n" + BOTH),
        ("# ours\n\na.json:time\r\n", "# ours\n\na.json:time\r\ntrain.log:took {}s\n"),
    ],
)
def test_texts_are_added_without_another_change_to_the_file(tmp_path: Path, old: str, new: str) -> None:
    path = tmp_path / "repro-env.ignore"
    if old:
        path.write_bytes(old.encode())
        path.chmod(0o600)
    texts = ["train.log:took {}s", "a.json:time", "a.json:time"]
    added = ignorefile.add(tmp_path, texts)
    assert path.read_bytes().decode() == new
    assert {*added} | {"a.json:time"} == {*texts}
    assert {ignore.reason for ignore in ignorefile.ignores(tmp_path)} == {"as repro-env.ignore says"}
    assert not old or path.stat().st_mode & 0o777 == 0o600
    assert ignorefile.add(tmp_path, texts) == (), "once each"
    assert path.read_bytes().decode() == new


def test_an_invalid_line_is_refused(tmp_path: Path) -> None:
    (tmp_path / "repro-env.ignore").write_text("*.log\nm.json:\n")
    with pytest.raises(UsageError, match="the key, column or text after the colon is missing"):
        ignorefile.ignores(tmp_path)


def test_a_symlink_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "repro-env.ignore").symlink_to("/etc/hostname")
    for use in (ignorefile.ignores, lambda project: ignorefile.add(project, ["*.log"])):
        with pytest.raises(UsageError, match="symbolic link"):
            use(tmp_path)
