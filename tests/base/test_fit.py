"""What a pulled base has to have: the captured interpreter or none, and every library, new enough."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from repro_env.base import fit, host
from repro_env.base.pulled import Base
from repro_env.base.tree import Tree
from repro_env.image.entry import Entry, ordered
from repro_env.io import machine
from repro_env.model.artifact import TreeBlob
from repro_env.model.errors import CaptureError
from repro_env.model.spec import BaseHint
from tests.base.conftest import Cut

ZERO = "sha256:" + "0" * 64


def based(tree: Tree, more: list[Entry] | None = None, *, without: tuple[str, ...] = (), root: Path = Path("/")) -> Base:
    """A base with the entries of a tree, which lie below `root`."""
    kept = [one for one in tree.entries if not one.path.startswith(without)] if without else list(tree.entries)
    hint = BaseHint(reference="registry.example.com/base:1", digest=ZERO, platform=machine.platform(), layers=())
    made = msgspec.structs.replace(tree, entries=tuple(ordered([*kept, *(more or [])])))
    return Base(hint=hint, blob=TreeBlob(sha256=ZERO, size=0, files=0), root=root, tree=made)


def join(*trees: Tree) -> Tree:
    return msgspec.structs.replace(trees[0], entries=tuple(ordered(entry for tree in trees for entry in tree.entries)))


def changed(entry: Entry) -> Entry:
    return msgspec.structs.replace(entry, sha256="f" * 64)


def test_a_base_without_a_python_takes_any(cut: Cut) -> None:
    empty = msgspec.structs.replace(cut.base, entries=(Entry("etc", "dir"),))
    fit.check_interpreter(based(empty), cut.interpreter, cut.facts)


def test_the_captured_python_itself_fits(cut: Cut) -> None:
    fit.check_interpreter(based(join(cut.base, cut.interpreter)), cut.interpreter, cut.facts)


def test_another_python_at_its_path_is_refused(cut: Cut) -> None:
    binary = next(one for one in cut.interpreter.entries if f"/{one.path}" == cut.facts.interpreter.executable)
    with pytest.raises(CaptureError, match=rf"1 files differ, the first /{binary.path}"):
        fit.check_interpreter(based(cut.base, [changed(binary)]), cut.interpreter, cut.facts)


def test_one_changed_module_is_refused(cut: Cut) -> None:
    module = next(one for one in cut.interpreter.entries if one.path.endswith("/json/__init__.py"))
    with pytest.raises(CaptureError, match=r"json/__init__\.py"):
        fit.check_interpreter(based(join(cut.base, cut.interpreter), [changed(module)]), cut.interpreter, cut.facts)


def test_a_module_more_is_refused_and_what_no_capture_holds_is_not(cut: Cut) -> None:
    stdlib = cut.facts.interpreter.stdlib[1:]
    whole = join(cut.base, cut.interpreter)
    fine = [Entry(f"{stdlib}/test/test_more.py", "file"), Entry(f"{stdlib}/site-packages/pip/x.py", "file")]
    fit.check_interpreter(based(whole, fine), cut.interpreter, cut.facts)
    with pytest.raises(CaptureError, match=rf"in its standard library alone, the first /{stdlib}/more.py"):
        fit.check_interpreter(based(whole, [Entry(f"{stdlib}/more.py", "file")]), cut.interpreter, cut.facts)


def test_a_symlink_in_the_way_is_refused(cut: Cut) -> None:
    folder = cut.facts.interpreter.executable[1:].rpartition("/")[0]
    lower = based(msgspec.structs.replace(cut.base, entries=()), [Entry(folder, "link", target="/elsewhere")])
    with pytest.raises(CaptureError, match="another interpreter"):
        fit.check_interpreter(lower, cut.interpreter, cut.facts)


def made(cut: Cut, base: Base) -> host.Cut:
    return fit.cut(cut.facts, cut.startup, base, libraries=(), mapped=(), elsewhere=(), environ={})


def linked(cut: Cut, root: Path) -> None:
    """The libraries of the base, where their symbol versions are looked for."""
    for entry in cut.base.entries:
        if entry.kind == "file" and ".so" in entry.path:
            (root / entry.path).parent.mkdir(parents=True, exist_ok=True)
            (root / entry.path).symlink_to(f"/{entry.path}")


def test_the_libraries_of_a_base_are_found_wherever_its_loader_looks(cut: Cut, tmp_path: Path) -> None:
    found = made(cut, based(cut.base))
    assert {one.path for one in found.libraries} >= {one.path for one in cut.whole.libraries if "libc.so" in one.path}
    assert all(one.owner == "registry.example.com/base:1" for one in found.libraries if one.owner != "driver")
    assert found.unowned is None
    math = tuple(one.path for one in cut.base.entries if "/libm.so.6" in one.path)
    moved = [
        msgspec.structs.replace(one, path="opt/odd/" + one.path.rpartition("/")[2])
        for one in cut.base.entries
        if one.path in math
    ]
    assert moved
    with pytest.raises(CaptureError, match=r"libm\.so\.6"):
        made(cut, based(cut.base, moved, without=math))
    linked(cut, tmp_path)
    elsewhere = [msgspec.structs.replace(one, path="usr/local/lib/" + one.path.rpartition("/")[2]) for one in moved]
    (tmp_path / "usr/local/lib").mkdir(parents=True)
    (tmp_path / "usr/local/lib/libm.so.6").symlink_to(f"/{math[0]}")
    made(cut, based(cut.base, elsewhere, without=math, root=tmp_path))


def test_a_missing_library_is_refused_by_name(cut: Cut) -> None:
    gone = tuple(one.path for one in cut.base.entries if "/libz.so.1" in one.path)
    assert gone
    with pytest.raises(CaptureError, match=r"lacks what the environment loads: .*libz\.so\.1.*, needed by"):
        made(cut, based(cut.base, without=gone))


def test_a_library_that_is_too_old_is_refused(cut: Cut, tmp_path: Path) -> None:
    linked(cut, tmp_path)
    made(cut, based(cut.base, root=tmp_path))
    libc = next(one.path for one in cut.base.entries if one.path.endswith("/libc.so.6") and one.kind == "file")
    (tmp_path / libc).unlink()
    data = Path(f"/{libc}").read_bytes()
    (tmp_path / libc).write_bytes(data.replace(b"\0GLIBC_2.3", b"\0GLIBX_2.3"))
    fit._versions.cache_clear()
    with pytest.raises(CaptureError, match=r"is too old: .* needs GLIBC_2\.3"):
        made(cut, based(cut.base, root=tmp_path))


def test_a_locale_that_the_base_has_not_is_unknown(cut: Cut) -> None:
    odd = msgspec.structs.replace(cut.startup, locale="de_DE.UTF-8")
    without = tuple(one.path for one in cut.base.entries if one.path.startswith("usr/lib/locale/"))
    lower = based(cut.base, without=without or ("nothing",))
    found = fit.cut(cut.facts, odd, lower, libraries=(), mapped=(), elsewhere=(), environ={})
    assert any("de_DE.UTF-8" in line for line in found.base.unknown)


def test_what_the_environment_lacks_of_the_base_is_removed() -> None:
    site = "usr/local/lib/python3.11/site-packages"
    tree = Tree(
        entries=tuple(
            ordered(
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
    assert fit.hidden(based(tree), [place]) == [
        Entry(f"{site}/pip-1.dist-info", "gone"),
        Entry(f"{site}/pip/old.py", "gone"),
    ]


class _Nothing:
    def chunks(self, entry: Entry) -> Iterator[bytes]:
        raise AssertionError(entry)
