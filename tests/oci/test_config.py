"""The image config: the settings of a container, and the labels about the code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from repro_env.oci import config
from repro_env.schema.environment import Git, Variable
from repro_env.schema.image import LABEL
from repro_env.schema.spec import Source, Spec
from tests.fakes import specs

OCI = "org.opencontainers.image"
GIT = Git(
    commit="0123456789abcdef0123456789abcdef01234567",
    date="2026-11-23T04:26:07Z",
    branch="main",
    remote="https://git.example.com/team/train.git",
    dirty=False,
    untracked=(),
)


@pytest.fixture
def spec(tmp_path: Path) -> Spec:
    return specs.make(tmp_path / "repro", {})


def read(data: bytes) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(data)
    return found


def with_git(spec: Spec, **changes: Any) -> Source:
    assert spec.observed.source is not None
    return msgspec.structs.replace(spec.observed.source, git=msgspec.structs.replace(GIT, **changes))


def environment(spec: Spec) -> dict[str, str]:
    return dict(text.split("=", 1) for text in config.settings(spec.identity).env)


def changed(spec: Spec, **values: Any) -> Spec:
    return msgspec.structs.replace(spec, identity=msgspec.structs.replace(spec.identity, **values))


def test_variables_name_a_moved_environment_by_its_path_in_the_image(spec: Spec) -> None:
    """The captured prefix is in no variable: a project mounted over it would bring in the host's environment."""
    assert environment(spec) == {
        "HOME": "/tmp",
        "PATH": "/opt/env/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "USER": "user",
        "VIRTUAL_ENV": "/opt/env",
    }
    assert config.settings(spec.identity).cmd == ["/opt/env/bin/python"]


def test_an_environment_in_place_keeps_its_path_and_python(spec: Spec) -> None:
    layout = msgspec.structs.replace(spec.identity.layout, in_place=True, prefix="/usr")
    system = changed(
        spec,
        layout=layout,
        command="/usr/bin/python3",
        config=msgspec.structs.replace(spec.identity.config, env=(Variable(name="PATH", value="/usr/bin:/bin"),)),
    )
    assert environment(system) == {"HOME": "/tmp", "PATH": "/usr/bin:/bin", "USER": "user"}
    assert config.settings(system.identity).cmd == ["/usr/bin/python3"]


def test_a_captured_home_is_kept(spec: Spec) -> None:
    env = (Variable(name="HOME", value="/data/home"), *spec.identity.config.env)
    assert environment(changed(spec, config=msgspec.structs.replace(spec.identity.config, env=env)))["HOME"] == "/data/home"


def test_an_image_without_the_code_has_no_labels_about_it(spec: Spec) -> None:
    """Else each commit would change the image ID of an unchanged environment."""
    made = read(config.config(spec.identity, ["sha256:" + "0" * 64]))
    assert made["config"]["Labels"] == {LABEL: spec.digest, f"{OCI}.title": "Python 3.11.7 environment"}
    assert (made["created"], made["config"]["WorkingDir"]) == (config.CREATED, "/")
    assert "User" not in made["config"]


def test_an_image_with_the_code_has_labels_about_it(spec: Spec) -> None:
    made = read(config.config(spec.identity, [], source=with_git(spec), user="1000:1000"))
    assert made["config"]["Labels"] == {
        LABEL: spec.digest,
        f"{OCI}.title": "project",
        f"{OCI}.revision": GIT.commit,
        f"{OCI}.source": GIT.remote,
        f"{OCI}.created": GIT.date,
    }
    assert made["created"] == GIT.date
    assert (made["config"]["User"], made["config"]["WorkingDir"]) == ("1000:1000", "/home/ann/project")


def test_a_revision_is_marked_dirty_with_uncommitted_changes(spec: Spec) -> None:
    labels = config.settings(spec.identity, with_git(spec, dirty=True)).labels
    assert labels[f"{OCI}.revision"] == f"{GIT.commit}-dirty"


def test_code_without_a_commit_has_no_revision_and_the_fixed_date(spec: Spec) -> None:
    made = read(config.config(spec.identity, [], source=with_git(spec, commit="", date=None, remote="")))
    assert made["config"]["Labels"].keys() == {LABEL, f"{OCI}.title"}
    assert made["created"] == config.CREATED


@pytest.mark.parametrize(
    ("remote", "url"),
    [
        ("git@git.example.com:team/train.git", "ssh://git@git.example.com/team/train.git"),
        ("ssh://git@git.example.com:2222/team/train.git", "ssh://git@git.example.com:2222/team/train.git"),
        ("/home/ann/origin.git", None),
        ("../origin.git", None),
        ("file:///home/ann/origin.git", None),
        ("ann@host:/srv/git/train.git", None),
    ],
)
def test_the_source_is_a_url_and_never_a_path_of_the_machine(spec: Spec, remote: str, url: str | None) -> None:
    assert config.settings(spec.identity, with_git(spec, remote=remote)).labels.get(f"{OCI}.source") == url


def test_every_image_has_directories_for_temporary_files(spec: Spec) -> None:
    found = {entry.path: entry.kind for entry, _ in config.marker(spec.identity)}
    assert (found["tmp"], found["var/tmp"]) == ("dir", "dir")
