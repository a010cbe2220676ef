"""The rules of path patterns."""

from __future__ import annotations

import pytest

from repro_env.schema.globs import globs

MATCHES = [
    ("*.csv", "deep/a.csv", True),
    ("data", "deep/data/x", True),
    ("/data", "deep/data/x", False),
    ("/data", "data/x", True),
    ("a/*", "a/b/c", True),
    ("a/*.c", "a/b/d.c", False),
    ("a/**", "a", False),
    ("a/**", "a/b", True),
    ("**", "a", True),
    ("**/c", "c", True),
    ("**/c", "a/b/c/d", True),
    ("a/**/c", "a/c", True),
    ("a/**/c", "a/b/b/c", True),
    ("a/**/c", "a/b/b", False),
    ("a/**/c/**/e", "a/c/b/c/d/e", True),
    ("a?c", "a/c", False),
    ("[!a].csv", "b.csv", True),
    ("[!a].csv", "a.csv", False),
    ("[[]x]", "[x]", True),
    ("a\nb*", "a\nb\nc", True),
]


@pytest.mark.parametrize(("pattern", "path", "expected"), MATCHES)
def test_a_pattern_matches_a_path_or_a_directory_above_it(pattern: str, path: str, expected: bool) -> None:
    assert globs([pattern])[0].matches(path) is expected


def test_a_pattern_that_could_match_in_many_ways_is_matched_quickly() -> None:
    assert not globs(["*a" * 50 + "b"])[0].matches("a" * 5_000)
    assert not globs(["**/a/" * 50 + "b"])[0].matches("a/" * 2_000)
