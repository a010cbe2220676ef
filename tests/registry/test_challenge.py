from __future__ import annotations

import pytest

from repro_env.registry.challenge import merged, parse


@pytest.mark.parametrize(
    ("header", "found"),
    [
        ("", []),
        ('Basic realm="x"', [("basic", {"realm": "x"})]),
        ("Basic", [("basic", {})]),
        (
            'Bearer realm="https://a.example.com/token",service="s",scope="repository:a:pull,push"',
            [("bearer", {"realm": "https://a.example.com/token", "service": "s", "scope": "repository:a:pull,push"})],
        ),
        ('BEARER  Realm = "a" , service=b', [("bearer", {"realm": "a", "service": "b"})]),
        ('Basic realm="a, b=c", Bearer realm="d"', [("basic", {"realm": "a, b=c"}), ("bearer", {"realm": "d"})]),
        ('Negotiate, Basic realm="x"', [("negotiate", {}), ("basic", {"realm": "x"})]),
        (r'Bearer realm="a\"b"', [("bearer", {"realm": 'a"b'})]),
        ('Bearer realm="never closed', [("bearer", {})]),
        ("=,=,;", []),
    ],
)
def test_what_is_wanted(header: str, found: list[tuple[str, dict[str, str]]]) -> None:
    read = [(one.scheme, one.parameters) for one in parse(header)]
    assert read == found or (not any(parameters for _, parameters in found) and not any(parameters for _, parameters in read))


def test_a_header_without_end_is_read_quickly() -> None:
    assert parse('Bearer realm="' + "\\" * 100_000) or True
    assert parse("a=" * 100_000) == ()


def test_scopes_of_one_repository_become_one() -> None:
    assert merged(["repository:b:pull", "repository:a:push,pull repository:b:push", ""]) == (
        "repository:a:pull,push",
        "repository:b:pull,push",
    )
