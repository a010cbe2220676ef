from __future__ import annotations

from pathlib import Path

import pytest

from repro_env.environment.system.tree import LiveTree, Resolver, real, within
from repro_env.io.files import sha256_of
from repro_env.oci.entry import Entry
from repro_env.store.facts import FactCache
from repro_env.store.hashes import FileHashes


@pytest.fixture
def hashes(tmp_path_factory: pytest.TempPathFactory) -> FileHashes:
    return FileHashes(FactCache(tmp_path_factory.mktemp("hashes")))


def below(tree: LiveTree, root: Path, hashes: FileHashes) -> dict[str, str]:
    """Path below the root -> kind or link target."""
    entries = tree.finish(hashes).entries
    start = f"{str(root)[1:]}/"
    return {entry.path.removeprefix(start): entry.target or entry.kind for entry in entries if entry.path.startswith(start)}


def test_a_path_through_links_is_stored_at_its_real_path_with_every_link(tmp_path: Path, hashes: FileHashes) -> None:
    (tmp_path / "usr/lib").mkdir(parents=True)
    (tmp_path / "lib").symlink_to("usr/lib")
    (tmp_path / "usr/lib/libz.so.1.2").write_text("z")
    (tmp_path / "usr/lib/libz.so.1").symlink_to(f"{tmp_path}/lib/libz.so.1.2")
    tree = LiveTree()
    assert tree.follow(f"{tmp_path}/lib/libz.so.1") == f"{tmp_path}/usr/lib/libz.so.1.2"
    assert below(tree, tmp_path, hashes) == {
        "lib": "usr/lib",
        "usr": "dir",
        "usr/lib": "dir",
        "usr/lib/libz.so.1": f"{tmp_path}/lib/libz.so.1.2",
        "usr/lib/libz.so.1.2": "file",
    }


def test_dots_after_a_link_are_resolved_from_its_target(tmp_path: Path) -> None:
    (tmp_path / "a/deep/er").mkdir(parents=True)
    (tmp_path / "a/deep/file").write_text("right")
    (tmp_path / "file").write_text("wrong")
    (tmp_path / "link").symlink_to("a/deep/er")
    assert LiveTree().follow(f"{tmp_path}/link/../file") == f"{tmp_path}/a/deep/file"


def test_broken_and_cyclic_links_terminate(tmp_path: Path) -> None:
    (tmp_path / "round").symlink_to("round")
    (tmp_path / "ping").symlink_to("pong")
    (tmp_path / "pong").symlink_to("ping/x")
    (tmp_path / "gone").symlink_to("missing")
    tree = LiveTree()
    assert [tree.follow(f"{tmp_path}/{name}") for name in ("round", "ping", "gone", "never", "gone/x")] == [None] * 5


def test_add_does_not_follow_a_link(tmp_path: Path, hashes: FileHashes) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "link").symlink_to("file")
    tree = LiveTree()
    found = tree.add(f"{tmp_path}/link")
    assert found is not None
    assert below(tree, tmp_path, hashes) == {"link": "file"}


def test_a_directory_includes_the_targets_of_its_links(tmp_path: Path, hashes: FileHashes) -> None:
    (tmp_path / "lib/skipped").mkdir(parents=True)
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/site.py").write_text("x")
    (tmp_path / "lib/site.py").symlink_to("../etc/site.py")
    (tmp_path / "lib/skipped/no").write_text("x")
    tree = LiveTree()
    tree.add_directory(f"{tmp_path}/lib", lambda path, is_dir: is_dir and path == "skipped")
    assert below(tree, tmp_path, hashes) == {"etc": "dir", "etc/site.py": "file", "lib": "dir", "lib/site.py": "../etc/site.py"}


def test_entries_are_canonical_and_generated_files_replace_others(tmp_path: Path, hashes: FileHashes) -> None:
    (tmp_path / "live").write_text("host")
    (tmp_path / "live").chmod(0o4711)
    (tmp_path / "passwd").write_text("a host's users")
    tree = LiveTree()
    tree.follow(f"{tmp_path}/live")
    tree.follow(f"{tmp_path}/passwd")
    tree.generate(f"{tmp_path}/passwd", b"root")
    finished = tree.finish(hashes, ["proc", "var/tmp"])
    entries, contents = finished.entries, finished.contents
    assert list(entries) == sorted(entries, key=lambda entry: entry.key)
    by_path = {entry.path: entry for entry in entries}
    assert by_path["proc"] == Entry("proc", "dir")
    assert by_path["var"] == Entry("var", "dir")
    live = by_path[f"{tmp_path}/live"[1:]]
    assert live == Entry(live.path, "file", True, 4, sha256_of(tmp_path / "live"))
    assert b"".join(contents.chunks(live)) == b"host"
    assert b"".join(contents.chunks(by_path[f"{tmp_path}/passwd"[1:]])) == b"root"


def test_within_compares_whole_path_components() -> None:
    assert within("/usr/lib", ["/usr"])
    assert within("/usr", ["/usr"])
    assert not within("/usrlocal", ["/usr"])
    assert within("/anything", ["/"])


def test_a_resolver_gives_the_real_path_of_every_link(tmp_path: Path) -> None:
    (tmp_path / "usr/lib/deep").mkdir(parents=True)
    (tmp_path / "usr/lib/deep/file").write_text("x")
    targets = {
        "lib": "usr/lib",
        "usr/lib/same": "deep",
        "usr/lib/deep/up": "../deep/file",
        "usr/lib/deep/far": "../../../usr/lib/deep/up",
        "usr/lib/absolute": f"{tmp_path}/lib/deep/file",
        "usr/lib/through": "same/../deep/file",
        "usr/lib/dots": "./deep/file",
        "usr/lib/chain": "absolute",
        "usr/lib/out": "../" * 40 + "etc",
        "usr/lib/here": ".",
        "usr/lib/above": "..",
        "usr/lib/gone": "missing/file",
        "usr/lib/loop": "loop",
        "usr/lib/first": "second",
        "usr/lib/second": "first",
    }
    for name, target in targets.items():
        (tmp_path / name).symlink_to(target)
    resolve = Resolver()
    paths = [f"{tmp_path}/{name}" for name in (*targets, "missing", "usr/lib/deep/file")]
    paths += [path.replace("/usr/lib/", "/lib/") for path in paths] + ["/", "/usr", f"{tmp_path}/lib/", f"{tmp_path}/lib/.."]
    paths += [f"{tmp_path}/lib/same/{name}" for name in ("up", "far", "file", "missing")]
    assert [resolve(path) for path in paths] == [real(path) for path in paths]
