from __future__ import annotations

import pytest

from repro_env.registry.server import parse_challenges


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
def test_challenges_are_parsed(header: str, found: list[tuple[str, dict[str, str]]]) -> None:
    assert list(parse_challenges(header).items()) == found


def test_a_very_long_header_is_parsed_quickly() -> None:
    assert parse_challenges('Bearer realm="' + "\\" * 100_000) == {"bearer": {}}
    assert parse_challenges("a=" * 100_000) == {}
