"""Merging layers: whiteouts, opaque directories, hard links, changes of kind."""

from __future__ import annotations

import random

from repro_env.oci.imagetree import flatten
from repro_env.oci.layerreader import Kind, Node


def node(path: str, kind: Kind = "file", **more: object) -> Node:
    return Node(path=path, kind=kind, **({"sha256": path[:1] * 64} if kind == "file" else {}) | more)  # type: ignore[arg-type]


def shown(*layers: list[Node]) -> dict[str, str]:
    return {entry.path: entry.kind for entry in flatten(layers).entries()}


def test_later_layers_win_and_parents_are_added() -> None:
    found = flatten([[node("a/b/f", size=1)], [node("a/b/f", size=2), node("a/g")]])
    assert [(entry.path, entry.kind, entry.size) for entry in found.entries()] == [
        ("a", "dir", 0),
        ("a/b", "dir", 0),
        ("a/b/f", "file", 2),
        ("a/g", "file", 0),
    ]
    assert found.placed["a/b/f"].layer == 1
    assert found.problems == ()


def test_whiteouts_hide_lower_paths_anywhere_in_the_tar() -> None:
    below = [node("a", "dir"), node("a/f"), node("a/d/x"), node("b")]
    upper = [node("a/f"), node("a/d", "gone"), node("a/f", "gone"), node("b", "gone"), node("never", "gone")]
    for _ in range(5):
        random.shuffle(upper)
        assert shown(below, upper) == {"a": "dir", "a/f": "file"}


def test_a_directory_that_is_hidden_and_created_again_is_empty() -> None:
    assert shown([node("d/old")], [node("d", "gone"), node("d", "dir"), node("d/new")]) == {"d": "dir", "d/new": "file"}


def test_opaque_directories_hide_lower_content_and_stay() -> None:
    assert shown([node("d/old"), node("d/e/f"), node("x")], [node("d", "dir"), node("d/new"), node("d", "opaque")]) == {
        "d": "dir",
        "d/new": "file",
        "x": "file",
    }
    assert shown([node("d/old")], [node("", "opaque"), node("new")]) == {"new": "file"}


def test_a_later_layer_changes_the_kind_of_a_path() -> None:
    assert shown([node("d/old")], [node("d", "link", target="x")]) == {"d": "link"}
    assert shown([node("d")], [node("d", "dir"), node("d/f")]) == {"d": "dir", "d/f": "file"}


def test_hard_links_become_the_file_that_they_point_to() -> None:
    found = flatten(
        [[node("f", size=5, sha256="c" * 64, offset=512)], [node("g", "hard", target="f"), node("h", "hard", target="g")]]
    )
    assert found.placed["h"].node == node("h", size=5, sha256="c" * 64, offset=512)
    assert found.placed["h"].layer == 0
    assert found.problems == ()


def test_a_hard_link_stays_if_its_target_is_removed() -> None:
    assert shown([node("f"), node("g", "hard", target="f")], [node("f", "gone")]) == {"g": "file"}


def test_hard_links_without_a_target_are_reported() -> None:
    found = flatten([[node("g", "hard", target="nothing"), node("d", "dir"), node("h", "hard", target="d")]])
    assert len(found.problems) == 2
    assert list(found.placed) == ["d"]


def test_paths_that_tools_handle_differently_are_reported() -> None:
    found = flatten([[node("lib", "link", target="usr/lib"), node("usr/lib/x")], [node("lib/y")]])
    assert "lib is not a directory" in found.problems[0]
    same = flatten([[node("l", "link", target="/etc"), node("l/passwd")]])
    assert list(same.placed) == ["l"]


def test_devices_are_listed_but_have_no_entries() -> None:
    found = flatten([[node("dev/null", "device"), node("run/p", "pipe"), node("f")]])
    assert found.others() == ["dev/null", "run/p"]
    assert [entry.path for entry in found.entries()] == ["f"]
