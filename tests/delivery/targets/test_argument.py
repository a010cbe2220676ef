"""Values of `--output`: every valid form is parsed, and other values are refused."""

from __future__ import annotations

import pytest

from repro_env.delivery.targets.argument import Target, parse
from repro_env.schema.errors import UsageError


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
        ("registry.example.com/team/x:1", Target("registry", "registry.example.com/team/x:1")),
        ("localhost:5000/x", Target("registry", "localhost:5000/x")),
        ("team/x", Target("registry", "team/x")),
    ],
)
def test_every_form_is_parsed(word: str, target: Target) -> None:
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
        "./out",
        "/out",
        "out",
        "ocl:out",
        "a//b",
        "https://x/y",
    ],
)
def test_other_values_are_refused_with_the_list_of_forms(word: str) -> None:
    with pytest.raises(UsageError) as failed:
        parse(word)
    assert "oci:DIR" in failed.value.hint
