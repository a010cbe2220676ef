from __future__ import annotations

from repro_env.image.entry import Entry
from repro_env.verify.tree import changes, described, masked


def listing(*entries: Entry) -> dict[str, Entry]:
    return {entry.path: entry for entry in entries}


def test_each_kind_of_change_is_told_apart() -> None:
    left = listing(
        Entry("a", "dir"),
        Entry("a/content", "file", False, 1, "1"),
        Entry("a/gone", "file", False, 1, "1"),
        Entry("a/kind", "file", False, 1, "1"),
        Entry("a/link", "link", target="x"),
        Entry("a/mode", "file", False, 1, "1"),
        Entry("a/same", "file", False, 1, "1"),
    )
    right = listing(
        Entry("a", "dir"),
        Entry("a/content", "file", False, 1, "2"),
        Entry("a/kind", "link", target="same"),
        Entry("a/link", "link", target="y"),
        Entry("a/mode", "file", True, 1, "1"),
        Entry("a/new", "file", False, 1, "1"),
        Entry("a/same", "file", False, 1, "1"),
    )
    assert [(one.path, one.how) for one in changes(left, right)] == [
        ("a/content", "content"),
        ("a/gone", "gone"),
        ("a/kind", "kind"),
        ("a/link", "target"),
        ("a/mode", "mode"),
        ("a/new", "new"),
    ]


def test_a_folder_counts_only_when_nothing_lies_in_it() -> None:
    empty = listing(Entry("a", "dir"), Entry("a/b", "dir"))
    full = listing(Entry("a", "dir"), Entry("a/b", "dir"), Entry("a/b/file", "file", False, 1, "1"))
    assert [(one.path, one.how) for one in changes(empty, full)] == [("a/b/file", "new")]
    assert [(one.path, one.how) for one in changes({}, empty)] == [("a/b", "new")]
    file = listing(Entry("a", "dir"), Entry("a/b", "file", False, 1, "1"))
    assert [(one.path, one.how) for one in changes(file, full)] == [("a/b", "kind"), ("a/b/file", "new")]
    assert changes(listing(Entry("a", "dir")), {}) != ()
    assert changes(full, full) == ()


def test_what_is_said_of_a_path() -> None:
    assert described(None) == ""
    assert described(Entry("a", "link", target="b c")) == "link to b c"
    assert described(Entry("a", "gone")) == "removed"
    assert described(Entry("a", "file", True, 1234, "0123456789abcdef")) == "program, 1,234 bytes, sha256 0123456789ab"


def test_a_prefix_and_its_name_in_a_prompt_are_masked() -> None:
    one = b'VIRTUAL_ENV="/home/ann/one"\nPS1="(one) $PS1"\n'
    two = b'VIRTUAL_ENV="/srv/two"\nPS1="(two) $PS1"\n'
    assert masked(one, "/home/ann/one") == masked(two, "/srv/two")
    assert masked(one, "/home/ann/one") != masked(two + b"more\n", "/srv/two")
