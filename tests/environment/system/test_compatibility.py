"""A base image must have the captured interpreter or none, and every library in a new enough version."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from repro_env.environment.system import compatibility, host
from repro_env.environment.system.baseimage import BaseImage
from repro_env.environment.system.tree import Tree
from repro_env.io import machine
from repro_env.oci.entry import Entry, sort_with_parents
from repro_env.schema.artifact import TreeBlob
from repro_env.schema.errors import CaptureError
from repro_env.schema.spec import BaseHint
from tests.environment.system.conftest import Captured

ZERO = "sha256:" + "0" * 64


def based(tree: Tree, more: list[Entry] | None = None, *, without: tuple[str, ...] = (), root: Path = Path("/")) -> BaseImage:
    """A base with the entries of a tree, whose files are below `root`."""
    kept = [entry for entry in tree.entries if not entry.path.startswith(without)] if without else list(tree.entries)
    hint = BaseHint(reference="registry.example.com/base:1", digest=ZERO, platform=machine.platform(), layers=())
    made = msgspec.structs.replace(tree, entries=tuple(sort_with_parents([*kept, *(more or [])])))
    return BaseImage(hint=hint, blob=TreeBlob(sha256=ZERO, size=0, files=0), root=root, tree=made)


def join(*trees: Tree) -> Tree:
    return msgspec.structs.replace(trees[0], entries=tuple(sort_with_parents(entry for tree in trees for entry in tree.entries)))


def changed(entry: Entry) -> Entry:
    return msgspec.structs.replace(entry, sha256="f" * 64)


def test_a_base_without_python_fits_any_interpreter(captured: Captured) -> None:
    empty = msgspec.structs.replace(captured.base, entries=(Entry("etc", "dir"),))
    compatibility.check_interpreter(based(empty), captured.interpreter, captured.facts)


def test_a_base_with_the_captured_python_fits(captured: Captured) -> None:
    compatibility.check_interpreter(based(join(captured.base, captured.interpreter)), captured.interpreter, captured.facts)


def test_a_base_with_another_python_at_the_path_is_rejected(captured: Captured) -> None:
    binary = next(entry for entry in captured.interpreter.entries if f"/{entry.path}" == captured.facts.interpreter.executable)
    with pytest.raises(CaptureError, match=rf"1 files differ \(first: /{binary.path}\)"):
        compatibility.check_interpreter(based(captured.base, [changed(binary)]), captured.interpreter, captured.facts)


def test_a_base_with_a_changed_module_is_rejected(captured: Captured) -> None:
    module = next(entry for entry in captured.interpreter.entries if entry.path.endswith("/json/__init__.py"))
    with pytest.raises(CaptureError, match=r"json/__init__\.py"):
        compatibility.check_interpreter(
            based(join(captured.base, captured.interpreter), [changed(module)]), captured.interpreter, captured.facts
        )


def test_an_additional_module_is_rejected_but_excluded_files_are_not(captured: Captured) -> None:
    stdlib = captured.facts.interpreter.stdlib[1:]
    all_entries = join(captured.base, captured.interpreter)
    fine = [Entry(f"{stdlib}/test/test_more.py", "file"), Entry(f"{stdlib}/site-packages/pip/x.py", "file")]
    compatibility.check_interpreter(based(all_entries, fine), captured.interpreter, captured.facts)
    with pytest.raises(CaptureError, match=rf"only in its standard library \(first: /{stdlib}/more.py\)"):
        compatibility.check_interpreter(
            based(all_entries, [Entry(f"{stdlib}/more.py", "file")]), captured.interpreter, captured.facts
        )


def test_a_base_with_a_symlink_above_the_interpreter_is_rejected(captured: Captured) -> None:
    directory = captured.facts.interpreter.executable[1:].rpartition("/")[0]
    lower = based(msgspec.structs.replace(captured.base, entries=()), [Entry(directory, "link", target="/elsewhere")])
    with pytest.raises(CaptureError, match="another interpreter"):
        compatibility.check_interpreter(lower, captured.interpreter, captured.facts)


def made(captured: Captured, base: BaseImage) -> host.SystemFiles:
    return compatibility.system_files(
        captured.facts, captured.startup, base, libraries=(), mapped=(), other_layers=(), environ={}
    )


def linked(captured: Captured, root: Path) -> None:
    """Link the libraries of the base to where their symbol versions are read."""
    for entry in captured.base.entries:
        if entry.kind == "file" and ".so" in entry.path:
            (root / entry.path).parent.mkdir(parents=True, exist_ok=True)
            (root / entry.path).symlink_to(f"/{entry.path}")


def test_libraries_of_a_base_are_found_in_all_directories_of_its_loader(captured: Captured, tmp_path: Path) -> None:
    found = made(captured, based(captured.base))
    assert {library.path for library in found.libraries} >= {
        library.path for library in captured.system_files.libraries if "libc.so" in library.path
    }
    assert all(library.owner == "registry.example.com/base:1" for library in found.libraries if library.owner != "driver")
    assert found.unpackaged is None
    math = tuple(entry.path for entry in captured.base.entries if "/libm.so.6" in entry.path)
    moved = [
        msgspec.structs.replace(entry, path="opt/odd/" + entry.path.rpartition("/")[2])
        for entry in captured.base.entries
        if entry.path in math
    ]
    assert moved
    with pytest.raises(CaptureError, match=r"libm\.so\.6"):
        made(captured, based(captured.base, moved, without=math))
    linked(captured, tmp_path)
    elsewhere = [msgspec.structs.replace(entry, path="usr/local/lib/" + entry.path.rpartition("/")[2]) for entry in moved]
    (tmp_path / "usr/local/lib").mkdir(parents=True)
    (tmp_path / "usr/local/lib/libm.so.6").symlink_to(f"/{math[0]}")
    made(captured, based(captured.base, elsewhere, without=math, root=tmp_path))


def test_a_base_without_a_needed_library_is_rejected_and_the_library_named(captured: Captured) -> None:
    gone = tuple(entry.path for entry in captured.base.entries if "/libz.so.1" in entry.path)
    assert gone
    with pytest.raises(CaptureError, match=r"lacks libraries that the environment loads: .*libz\.so\.1.*, needed by"):
        made(captured, based(captured.base, without=gone))


def test_a_base_with_a_library_that_is_too_old_is_rejected(captured: Captured, tmp_path: Path) -> None:
    linked(captured, tmp_path)
    made(captured, based(captured.base, root=tmp_path))
    libc = next(entry.path for entry in captured.base.entries if entry.path.endswith("/libc.so.6") and entry.kind == "file")
    (tmp_path / libc).unlink()
    data = Path(f"/{libc}").read_bytes()
    (tmp_path / libc).write_bytes(data.replace(b"\0GLIBC_2.3", b"\0GLIBX_2.3"))
    compatibility._versions.cache_clear()
    with pytest.raises(CaptureError, match=r"is too old: .* needs GLIBC_2\.3"):
        made(captured, based(captured.base, root=tmp_path))


def test_a_locale_that_the_base_lacks_is_reported_as_unknown(captured: Captured) -> None:
    odd = msgspec.structs.replace(captured.startup, locale="de_DE.UTF-8")
    without = tuple(entry.path for entry in captured.base.entries if entry.path.startswith("usr/lib/locale/"))
    lower = based(captured.base, without=without or ("nothing",))
    found = compatibility.system_files(captured.facts, odd, lower, libraries=(), mapped=(), other_layers=(), environ={})
    assert any("de_DE.UTF-8" in line for line in found.base.unknown)


def test_site_files_that_only_the_base_has_are_removed() -> None:
    site = "usr/local/lib/python3.11/site-packages"
    tree = Tree(
        entries=tuple(
            sort_with_parents(
                Entry(path, "file")
                for path in (
                    f"{site}/pip/a.py",
                    f"{site}/pip/old.py",
                    f"{site}/pip-1.dist-info/RECORD",
                    "usr/local/bin/pip",
                    "etc/x",
                )
            )
        ),
        contents=_Nothing(),
    )
    place = ("usr/local", ("lib/python3.11/site-packages",), ["lib/python3.11/site-packages/pip/a.py", "bin/python"])
    assert compatibility.removals(based(tree), [place]) == [
        Entry(f"{site}/pip-1.dist-info", "gone"),
        Entry(f"{site}/pip/old.py", "gone"),
    ]


class _Nothing:
    def chunks(self, entry: Entry) -> Iterator[bytes]:
        raise AssertionError(entry)
