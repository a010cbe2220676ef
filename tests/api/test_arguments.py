from __future__ import annotations

from pathlib import Path

from repro_env.api.arguments import absolute_pairs_of, pairs_of


def test_paths_to_mount_are_a_mapping_pairs_or_paths() -> None:
    assert pairs_of({"a": "/b"}) == pairs_of([("a", "/b")]) == (("a", "/b"),)
    assert pairs_of(["a", ("b", "")]) == (("a", ""), ("b", ""))


def test_absolute_pairs_have_no_dots_and_no_slash_at_the_end(tmp_path: Path) -> None:
    pairs = absolute_pairs_of([f"{tmp_path}/c/../a:b", (f"{tmp_path}/c", "/x/")])
    assert pairs == ((tmp_path / "a:b", f"{tmp_path}/a:b"), (tmp_path / "c", "/x"))
