"""Directory listings in real interpreters with the hooks: sorted under `warn` and `strict`, unchanged under `off`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.guest.scripts import PYTHONS, Script

NAMES = ["b", "a", "Z", "é", "10", "9", "\udcff", "\uff5a", "\U0001f600", "sub", "c", "d"]
"""As bytes these have another order than as text: the name that is not UTF-8 comes last."""
CODE = """
import glob, json, os, pathlib, pickle, posix, shutil, sys
root = sys.argv[1]
def plain(names):
    return [os.fsdecode(name).encode("utf-8", "surrogateescape").hex() for name in names]
def scan(path):
    with os.scandir(path) as entries:
        assert iter(entries) is entries
        return [entry.name for entry in entries]
fd = os.open(root, os.O_RDONLY)
walk = next(os.walk(root))
top = next(os.fwalk(root))
closed = os.scandir(root)
first = next(closed)
assert isinstance(first, os.DirEntry) and first.path == os.path.join(root, first.name)
closed.close()
assert list(closed) == []
class Own:
    listdir = os.listdir
copies = []
shutil.copytree(root, root + ".copy", copy_function=lambda source, target: copies.append(os.path.basename(source)))
results = {
    "listdir": os.listdir(root), "bytes": os.listdir(os.fsencode(root)), "fd": os.listdir(fd), "keyword": os.listdir(path=root),
    "path": os.listdir(pathlib.Path(root)), "scandir": scan(root), "scandir bytes": scan(os.fsencode(root)), "scandir fd": scan(fd),
    "glob": [os.path.basename(path) for path in glob.glob(root + "/*")], "iterdir": [path.name for path in pathlib.Path(root).iterdir()],
    "Path.glob": [path.name for path in pathlib.Path(root).glob("*")], "class": Own().listdir(root),
    "walk": sorted(walk[1] + walk[2], key=os.fsencode), "pickle": pickle.loads(pickle.dumps(os.listdir))(root),
}
files = {"walk": walk[2], "fwalk": top[2], "copytree": copies, "rglob": [path.name for path in pathlib.Path(root).rglob("*") if path.is_file()]}
os.chdir(root)
results["here"] = os.listdir()
try:
    os.scandir(root + "/missing")
except FileNotFoundError as error:
    assert error.filename == root + "/missing"
print(json.dumps([{name: plain(results[name]) for name in results}, {name: plain(files[name]) for name in files},
    plain(posix.listdir(root)), shutil.rmtree.avoids_symlink_attacks]))
"""


def list_with(tmp_path: Path, python: str, mode: str, root: Path) -> list[object]:
    import json

    script = Script(tmp_path, python)
    code = CODE.replace("sys.argv[1]", repr(str(root)))
    result: list[object] = json.loads(script.run(code, extra={"REPRO_ENV_DETERMINISM": mode, "LC_ALL": "C.UTF-8"}))
    return result


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    root = tmp_path / "listed"
    root.mkdir()
    for name in NAMES:
        if name == "sub":
            (root / name).mkdir()
        else:
            (root / name).write_text("")
    return root


@pytest.mark.parametrize("python", PYTHONS)
def test_every_way_to_list_a_directory_is_sorted_by_bytes(tmp_path: Path, directory: Path, python: str) -> None:
    expected = sorted(os.fsencode(name).hex() for name in NAMES)
    found, files, _, avoids = list_with(tmp_path, python, "warn", directory)
    assert isinstance(found, dict)
    assert isinstance(files, dict)
    assert {name: names for name, names in found.items() if names != expected} == {}
    expected.remove(b"sub".hex())
    assert {name: names for name, names in files.items() if names != expected} == {}
    assert avoids  # as without the hooks


def test_off_leaves_the_order_of_the_file_system(tmp_path: Path, directory: Path) -> None:
    found, _, plain, _ = list_with(tmp_path, sys.executable, "off", directory)
    assert isinstance(found, dict)
    assert found["listdir"] == found["scandir"] == plain


def test_pathlib_that_was_imported_before_the_hooks_is_sorted(tmp_path: Path, directory: Path) -> None:
    """A .pth file of an editable install imports it."""
    code = f"""
    import os, pathlib, glob, runpy, sys
    sys.path.insert(0, {str(Path("repro_env/guest/seeds").resolve())!r})
    import sitecustomize
    for found in (pathlib.Path({str(directory)!r}).iterdir(), pathlib.Path({str(directory)!r}).glob("*")):
        names = [os.fsencode(path.name) for path in found]
        assert names == sorted(names), names
    """
    for python in PYTHONS:
        script = Script(tmp_path, python)
        script.run(code, args=("-S",), extra={"REPRO_ENV_DETERMINISM": "warn", "LC_ALL": "C.UTF-8"})


def test_the_hook_imports_no_module_that_lists(tmp_path: Path) -> None:
    script = Script(tmp_path)
    code = "import sys; print([n for n in ('glob', 'pathlib', 'fnmatch', 're', '_repro_env_listings') if n in sys.modules])"
    assert script.run(code, args=("-s",), extra={"REPRO_ENV_DETERMINISM": "warn"}) == "[]\n"
