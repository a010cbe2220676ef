"""The word after `--output`: which forms there are, and what is none of them."""

from __future__ import annotations

import pytest

from repro_env.flows.outputs import Target, parse
from repro_env.model.errors import UsageError


@pytest.mark.parametrize(
    ("word", "target"),
    [
        ("oci:out", Target("oci", "out")),
        ("oci:/abs/out:v1", Target("oci", "/abs/out", "v1")),
        ("docker-archive:i.tar", Target("docker-archive", "i.tar")),
        ("docker-archive:i.tar:team/x:1", Target("docker-archive", "i.tar", "team/x:1")),
        ("docker-archive:i.tar:host.example.com:5000/x:1", Target("docker-archive", "i.tar", "host.example.com:5000/x:1")),
        ("docker:", Target("docker", "")),
        ("docker:train:2", Target("docker", "train:2")),
        ("squashfs:i.sqfs", Target("squashfs", "i.sqfs")),
        ("registry.example.com/team/x:1", Target("registry", "registry.example.com/team/x:1")),
        ("localhost:5000/x", Target("registry", "localhost:5000/x")),
        ("team/x", Target("registry", "team/x")),
    ],
)
def test_forms(word: str, target: Target) -> None:
    assert parse(word) == target


@pytest.mark.parametrize(
    "word",
    [
        "",
        "oci",
        "oci:",
        "oci::v1",
        "oci:x:",
        "docker-archive:",
        "squashfs:",
        "./out",
        "/out",
        "out",
        "ocl:out",
        "a//b",
        "https://x/y",
    ],
)
def test_no_form(word: str) -> None:
    with pytest.raises(UsageError) as failed:
        parse(word)
    assert "oci:DIR" in failed.value.hint
