"""The list of a tree's files in a spec."""

from __future__ import annotations

import msgspec

from repro_env.oci.entry import Entry, entries_from_notes, file_notes
from repro_env.schema.text import FileNote, RelPath


def test_files_and_links_with_any_name_are_listed_and_read_back() -> None:
    entries = [
        Entry("a", "dir"),
        Entry("a/100%\n.py", "file", size=3, sha256="1" * 64),
        Entry("run.sh", "file", executable=True, size=0, sha256="2" * 64),
        Entry("link", "link", target="a/%41\x1b"),
    ]
    listed = file_notes(entries)
    assert msgspec.convert(listed, dict[RelPath, FileNote]) == listed
    assert entries_from_notes(listed) == {entry.path: entry for entry in entries if entry.kind != "dir"}
