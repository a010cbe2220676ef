from __future__ import annotations

import pytest

from repro_env.registry.reference import Reference, api_host, parse
from repro_env.schema.errors import UsageError

HEX = "0123456789abcdef" * 4


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("python", Reference("docker.io", "library/python", "latest")),
        ("python:3.11.7-slim-bookworm", Reference("docker.io", "library/python", "3.11.7-slim-bookworm")),
        ("team/name", Reference("docker.io", "team/name", "latest")),
        ("docker.io/python:3", Reference("docker.io", "library/python", "3")),
        ("index.docker.io/team/name", Reference("docker.io", "team/name", "latest")),
        ("registry.example.com/a/b/c:v1", Reference("registry.example.com", "a/b/c", "v1")),
        ("Registry.Example.Com:443/a", Reference("registry.example.com:443", "a", "latest")),
        ("localhost/a:b", Reference("localhost", "a", "b")),
        ("localhost:5000/a", Reference("localhost:5000", "a", "latest")),
        ("127.0.0.1:5000/a-b__c.d/e", Reference("127.0.0.1:5000", "a-b__c.d/e", "latest")),
        ("[::1]:5000/a:t", Reference("[::1]:5000", "a", "t")),
        (f"registry.example.com/a@sha256:{HEX}", Reference("registry.example.com", "a", "", f"sha256:{HEX}")),
        (f"registry.example.com/a:v1@sha256:{HEX}", Reference("registry.example.com", "a", "v1", f"sha256:{HEX}")),
    ],
)
def test_names_are_read_as_docker_reads_them(text: str, found: Reference) -> None:
    assert parse(text) == found
    assert parse(str(found)) == found


def test_a_digest_takes_precedence_over_a_tag() -> None:
    assert parse(f"a:v1@sha256:{HEX}").tag_or_digest == f"sha256:{HEX}"
    assert parse("a:v1").tag_or_digest == "v1"
    assert (api_host("docker.io"), api_host("registry.example.com")) == ("registry-1.docker.io", "registry.example.com")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "/",
        "a/",
        "a:",
        "a:b:c",
        "A",
        "a//b",
        "a/../b",
        "registry.example.com/",
        "registry.example.com/A",
        "registry.example.com:port/a",
        "registry.example.com:70000/a",
        "user@registry.example.com/a",
        "https://registry.example.com/a",
        "a@sha256:12",
        f"a@sha512:{HEX}{HEX}",
        f"a@sha256:{HEX.upper()}",
        "a b",
        "a:\n",
        "a\n",
        "a:t\n",
        "a:-t",
        "-a.example.com/b",
        "a:" + "t" * 129,
        "a/" * 130 + "a",
        "registry.example.com/a?b=c",
        "registry.example.com/a#b",
        "registry.example.com%2f/a",
    ],
)
def test_invalid_input_is_rejected(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(text)
    assert caught.value.hint
