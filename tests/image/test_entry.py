"""What a spec lists of a tree."""

from __future__ import annotations

import msgspec

from repro_env.image.entry import Entry, notes, of_notes
from repro_env.model.text import FileNote, RelPath


def test_files_and_links_are_listed_and_read_back_whatever_their_names() -> None:
    entries = [
        Entry("a", "dir"),
        Entry("a/100%\n.py", "file", size=3, sha256="1" * 64),
        Entry("run.sh", "file", executable=True, size=0, sha256="2" * 64),
        Entry("link", "link", target="a/%41\x1b"),
    ]
    listed = notes(entries)
    assert msgspec.convert(listed, dict[RelPath, FileNote]) == listed
    assert of_notes(listed) == {entry.path: entry for entry in entries if entry.kind != "dir"}
