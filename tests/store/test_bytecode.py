"""Bytecode in the store: whole trees, numbered, never changed while a run may read them."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from repro_env.store.store import Store

IMAGE = "sha256:" + "a" * 64
OTHER = "sha256:" + "b" * 64


def data(text: str, flags: int = 1) -> bytes:
    return b"\xa7\r\r\n" + flags.to_bytes(4, "little") + bytes(8) + text.encode()


def made(folder: Path, **files: bytes) -> Path:
    for name, content in files.items():
        (folder / "usr/lib").mkdir(parents=True, exist_ok=True)
        (folder / "usr/lib" / name).write_bytes(content)
    return folder


def add(store: Store, folder: Path, *names: str, image: str = IMAGE) -> int:
    with store.bytecode.adding(image) as may:
        assert may
        return store.bytecode.add(image, folder, [f"usr/lib/{name}" for name in names])


def held(store: Store, image: str = IMAGE) -> dict[str, bytes] | None:
    with store.bytecode.shown(image) as tree:
        return None if tree is None else {path.name: path.read_bytes() for path in tree.rglob("*") if path.is_file()}


def trees(store: Store) -> list[str]:
    return sorted(path.name for path in (store.root / "bytecode" / IMAGE[7:]).iterdir())


def one(store: Store) -> Path:
    with store.bytecode.shown(IMAGE) as tree:
        assert tree
        return tree / "usr/lib/a"


def test_what_is_added_is_shown_for_its_image_alone(store: Store, tmp_path: Path) -> None:
    assert held(store) is None
    assert add(store, made(tmp_path / "made", a=data("a"), b=data("b")), "a", "b") == 2
    assert held(store) == {"a": data("a"), "b": data("b")}
    assert held(store, OTHER) is None


def test_more_is_added_to_what_was_there_and_what_is_not_named_stays(store: Store, tmp_path: Path) -> None:
    add(store, made(tmp_path / "one", a=data("a"), o=data("old")), "a", "o")
    assert add(store, made(tmp_path / "two", a=data("a"), o=data("new"), b=data("b")), "a", "b") == 1
    assert held(store) == {"a": data("a"), "o": data("old"), "b": data("b")}
    assert trees(store) == ["2"]
    assert store.bytecode.missing(IMAGE, ["usr/lib/a", "usr/lib/c"]) == {"usr/lib/c"}
    assert add(store, tmp_path / "two", "a", "b") == 0
    assert trees(store) == ["2"]


def test_a_hook_of_another_version_is_replaced(store: Store, tmp_path: Path) -> None:
    add(store, made(tmp_path / "one", a=data("a"), b=data("b")), "a", "b")
    assert add(store, made(tmp_path / "two", a=data("other")), "a", "b") == 1
    assert held(store) == {"a": data("other"), "b": data("b")}
    assert trees(store) == ["2"]


def test_files_can_be_hidden_and_are_there_all_the_same(store: Store, tmp_path: Path) -> None:
    add(store, made(tmp_path / "made", a=data("a"), b=data("b")), "a", "b")
    kept = one(store)
    with store.bytecode.shown(IMAGE, hidden=("usr/lib/a", "usr/lib/gone")) as tree:
        assert tree is not None
        assert [path.name for path in tree.rglob("*") if path.is_file()] == ["b"]
        hiding = tree
    assert not hiding.exists()
    with store.bytecode.shown(IMAGE, hidden=("usr/lib/gone",)) as tree:
        assert tree == kept.parents[2]
    with store.bytecode.shown(IMAGE, hidden="all") as tree:
        assert tree is None
    assert held(store) == {"a": data("a"), "b": data("b")}
    (store.root / "bytecode" / IMAGE[7:] / "1/list").write_bytes(b"torn")
    with store.bytecode.shown(IMAGE, hidden=("usr/lib/a",)) as tree:
        assert tree is None


def test_only_bytecode_that_was_asked_for_and_does_not_go_by_time_is_kept(store: Store, tmp_path: Path) -> None:
    folder = made(tmp_path / "made", timed=data("x", 0), torn=data(""), unasked=data("x"), good=data("x"))
    (folder / "usr/lib/link").symlink_to("good")
    os.mkfifo(folder / "usr/lib/pipe")
    assert add(store, folder, "timed", "torn", "link", "pipe", "gone", "good") == 1
    assert held(store) == {"good": data("x")}


def test_a_tree_in_use_is_neither_changed_nor_removed(store: Store, tmp_path: Path) -> None:
    add(store, made(tmp_path / "one", a=data("a")), "a")
    with store.bytecode.shown(IMAGE) as tree:
        assert tree
        add(store, made(tmp_path / "two", b=data("b")), "b")
        assert [path.name for path in tree.rglob("*") if path.is_file()] == ["a"]
        assert trees(store) == ["1", "2"]
    add(store, made(tmp_path / "three", c=data("c")), "c")
    assert trees(store) == ["3"]


def test_one_process_adds_at_a_time_and_the_other_does_not_wait(store: Store) -> None:
    with store.bytecode.adding(IMAGE) as first, store.bytecode.adding(IMAGE) as second, store.bytecode.adding(OTHER) as other:
        assert (first, second, other) == (True, False, True)


@pytest.mark.parametrize("harm", ["cut", "gone", "list"])
def test_a_damaged_tree_counts_as_absent_and_is_made_anew(store: Store, tmp_path: Path, harm: str) -> None:
    folder = made(tmp_path / "made", a=data("aaaa"), b=data("b"))
    add(store, folder, "a", "b")
    path = one(store)
    if harm == "cut":
        path.write_bytes(data("aaaa")[:18])
    elif harm == "gone":
        path.unlink()
    else:
        (path.parents[3] / "list").write_bytes(b'[["usr/lib/a",20,')
    assert held(store) is None
    assert store.bytecode.missing(IMAGE, ["usr/lib/b"]) == {"usr/lib/b"}
    assert add(store, folder, "a", "b") == 2
    assert held(store) == {"a": data("aaaa"), "b": data("b")}
    assert trees(store) == ["2"]


def test_after_a_restart_every_byte_is_looked_at_once(store: Store, tmp_path: Path) -> None:
    """A power cut can leave a file of the right size with nothing in it."""
    add(store, made(tmp_path / "made", a=data("aaaa")), "a")
    shutil.rmtree(store.root / "boot")
    (store.root / "boot").mkdir()
    assert held(store) == {"a": data("aaaa")}
    one(store).write_bytes(bytes(20))
    assert held(store) == {"a": bytes(20)}  # looked at in this boot, and of the right size
    shutil.rmtree(store.root / "boot")
    (store.root / "boot").mkdir()
    assert held(store) is None


_ADD = """
import os, sys
from pathlib import Path
from repro_env.store.store import Store
store = Store.open(Path(sys.argv[1]))
rename = Path.rename
def stop(self, target):
    if sys.argv[3] == "before" and "temp" in self.parts: os.kill(os.getpid(), 9)
    done = rename(self, target)
    os.kill(os.getpid(), 9)
    return done
Path.rename = stop
with store.bytecode.adding(sys.argv[4]) as may:
    store.bytecode.add(sys.argv[4], Path(sys.argv[2]), ["usr/lib/a", "usr/lib/b"])
"""


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_killed_process_leaves_all_or_nothing(store: Store, tmp_path: Path, when: str) -> None:
    add(store, made(tmp_path / "one", a=data("a")), "a")
    folder = made(tmp_path / "made", a=data("a"), b=data("b"))
    killed = subprocess.run([sys.executable, "-c", _ADD, str(store.root), str(folder), when, IMAGE], check=False, timeout=300)
    assert killed.returncode == -signal.SIGKILL
    again = Store.open(store.root)
    assert held(again) == ({"a": data("a")} if when == "before" else {"a": data("a"), "b": data("b")})
    assert not (store.root / "temp").exists()
    add(again, made(folder, c=data("c")), "a", "b", "c")
    assert held(again) == {"a": data("a"), "b": data("b"), "c": data("c")}
    assert len(trees(again)) == 1
