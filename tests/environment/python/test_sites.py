"""Which paths belong to which site."""

from __future__ import annotations

from pathlib import Path

import msgspec

from repro_env.environment.python import distributions, sites
from repro_env.environment.python.interpreter import StartupReport
from repro_env.environment.wheels.composition import Composition, compose
from repro_env.io.files import sha256_of, walk
from repro_env.oci.entry import Entry
from repro_env.schema.environment import Interpretation, Kind, Layout
from tests.environment.wheels.installations import installed
from tests.fakes import specs

SITE = "lib/python3.11/site-packages"


def write(root: Path, *paths: str) -> None:
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(path)


def dist(root: Path, *rows: str, site: str = SITE) -> None:
    write(root, f"{site}/demo-1.dist-info/METADATA")
    (root / f"{site}/demo-1.dist-info/METADATA").write_text("Name: demo\nVersion: 1\n")
    (root / f"{site}/demo-1.dist-info/RECORD").write_text("".join(f"{row},,\n" for row in rows))


def facts(prefix: Path, kind: Kind) -> Interpretation:
    found = specs._facts(prefix)
    python = msgspec.structs.replace(
        found.interpreter,
        prefix=str(prefix),
        executable=f"{prefix}/bin/python3.11",
        stdlib=f"{prefix}/lib/python3.11",
        platstdlib=f"{prefix}/lib/python3.11",
    )
    layout = Layout(
        prefix=str(prefix), in_place=kind != "venv", purelib=SITE, platlib=SITE, scripts="bin", headers="include/python3.11"
    )
    return msgspec.structs.replace(
        found,
        kind=kind,
        layout=layout,
        interpreter=python if kind != "venv" else found.interpreter,
        command=f"{prefix}/bin/python3",
    )


def startup(*sys_path: Path | str) -> StartupReport:
    return StartupReport(sys_path=tuple(map(str, sys_path)))


def listed(found: Interpretation, layout: Layout | None = None) -> set[str]:
    layout = layout or found.layout
    return {file.path for file in sites.list_files(found, layout, distributions.scan(layout)) if file.kind != "dir"}


def test_site_directories_on_sys_path_are_separate_sites(tmp_path: Path) -> None:
    venv, base, home = tmp_path / "venv", tmp_path / "base", tmp_path / "home/.local"
    for root in (venv, base, home):
        write(root, f"{SITE}/x.py")
    write(tmp_path, "elsewhere/x.py", "odd/site-packages/x.py")
    path = [
        base / "lib/python3.11",
        venv / SITE,
        home / SITE,
        base / SITE,
        tmp_path / "elsewhere",
        tmp_path / "odd/site-packages",
    ]
    found = sites.other_sites(facts(venv, "venv"), startup("", *path, tmp_path / "gone/lib/python3.11/site-packages"))
    assert [(layout.prefix, layout.purelib, layout.platlib, layout.in_place) for layout in found] == [
        (str(home), SITE, SITE, True),
        (str(base), SITE, SITE, True),
    ]
    assert {layout.python for layout in found} == {
        "/opt/python/bin/python3.11"
    }  # not the environment's: these scripts do not start a venv


def test_lib_and_lib64_are_one_site(tmp_path: Path) -> None:
    wide = SITE.replace("lib/", "lib64/")
    write(tmp_path / "usr", f"{SITE}/pure.py", f"{wide}/plat.py")
    (layout,) = sites.other_sites(facts(tmp_path / "venv", "venv"), startup(tmp_path / "usr" / wide, tmp_path / "usr" / SITE))
    assert (layout.purelib, layout.platlib) == (SITE, wide)
    assert listed(facts(tmp_path / "venv", "venv"), layout) == {f"{SITE}/pure.py", f"{wide}/plat.py"}


def test_directories_in_the_environment_are_not_separate_sites(tmp_path: Path) -> None:
    write(tmp_path / "venv", f"{SITE}/x.py", "extra/lib/python3.11/site-packages/y.py")
    (tmp_path / "alias").symlink_to("venv")
    path = [tmp_path / "alias" / SITE, tmp_path / "venv/extra" / SITE]
    assert sites.other_sites(facts(tmp_path / "venv", "venv"), startup(*path)) == ()


def test_a_shared_prefix_provides_only_sites_and_files_in_record(tmp_path: Path) -> None:
    write(tmp_path, f"{SITE}/demo.py", f"{SITE}/stray.py", "bin/demo", "bin/other", "share/demo/data", "cuda/lib/huge.so")
    write(tmp_path, f"{SITE}/__pycache__/demo.pyc", "lib/python3.11/os.py")
    dist(tmp_path, "demo.py", "../../../bin/demo", '"../../../share/demo/data"', "../../../share/gone", "../../../../etc/passwd")
    assert listed(facts(tmp_path, "system")) == {
        f"{SITE}/demo.py",
        f"{SITE}/stray.py",
        f"{SITE}/demo-1.dist-info/METADATA",
        f"{SITE}/demo-1.dist-info/RECORD",
        "bin/demo",
        "share/demo/data",
    }


def test_an_own_prefix_provides_everything_except_the_interpreter(tmp_path: Path) -> None:
    write(tmp_path, f"{SITE}/demo.py", f"{SITE}/tests/kept.py", "lib/python3.11/os.py", "lib/python3.11/lib-dynload/_ssl.so")
    write(tmp_path, "include/python3.11/Python.h", "lib/libpython3.11.a", "share/jupyter/kernels/mine/kernel.json", "bin/tool")
    assert listed(facts(tmp_path, "interpreter")) == {
        f"{SITE}/demo.py",
        f"{SITE}/tests/kept.py",
        "share/jupyter/kernels/mine/kernel.json",
        "bin/tool",
    }


def composed(
    found: Interpretation, layout: Layout, number: int, files: dict[str, dict[str, str]], held: dict[str, Entry]
) -> Composition:
    scanned = distributions.scan(layout)
    paths = sites.list_files(found, layout, scanned)
    hashes = {path.path: sha256_of(Path(layout.prefix, path.path)) for path in paths if path.kind == "file"}
    site_directory = sites.Site(number, layout, scanned, paths, hashes)
    stacks = {key: msgspec.structs.replace(installed(texts), root=site_directory.root) for key, texts in files.items()}
    return compose([stacks], site_directory, held)


def test_two_sites_with_one_prefix_do_not_lack_each_others_files(tmp_path: Path) -> None:
    directory = "lib/python3/dist-packages"
    write(tmp_path, f"{SITE}/demo.py", f"{directory}/second.py")
    found = facts(tmp_path, "system")
    second = msgspec.structs.replace(found.layout, purelib=directory, platlib=directory)
    files = {"demo": {f"{SITE}/demo.py": f"{SITE}/demo.py"}, "second@1": {f"{directory}/second.py": f"{directory}/second.py"}}
    for number, layout in enumerate((found.layout, second)):
        done = composed(found, layout, number, files, {})
        assert (done.overlay, done.edited) == ((), ())


def test_files_of_a_lower_layer_are_not_in_the_overlay(tmp_path: Path) -> None:
    write(tmp_path, f"{SITE}/packaged.py", f"{SITE}/stray.py", f"{SITE}/edited.py")
    found = facts(tmp_path, "system")
    root = str(tmp_path)[1:]

    def entry(name: str, text: str) -> Entry:
        made = installed({f"{SITE}/{name}": text}).entries[0]
        return Entry(f"{root}/{made.path}", "file", False, made.size, made.sha256)

    lower = {
        lower_entry.path: lower_entry
        for lower_entry in (entry("packaged.py", f"{SITE}/packaged.py"), entry("edited.py", "as packaged"))
    }
    done = composed(found, found.layout, 0, {}, lower)
    assert {entry.path.rpartition("/")[2] for entry in done.overlay if entry.kind == "file"} == {"stray.py", "edited.py"}


def test_only_the_missing_path_is_removed_from_a_shared_directory(tmp_path: Path) -> None:
    write(tmp_path, f"{SITE}/demo.py")
    found = facts(tmp_path, "system")
    root = str(tmp_path)[1:]
    files = {"demo": {f"{SITE}/demo.py": f"{SITE}/demo.py", "bin/demo": "gone"}}
    done = composed(found, found.layout, 0, files, {f"{root}/bin": Entry(f"{root}/bin", "dir")})
    assert [entry.path.removeprefix(root + "/") for entry in done.overlay if entry.kind == "gone"] == ["bin/demo"]


def test_only_bytecode_with_an_existing_source_is_excluded(tmp_path: Path) -> None:
    for name in (
        "a.py",
        "a.b.py",
        "__pycache__/a.cpython-311.pyc",
        "__pycache__/a.cpython-311.opt-1.pyc",
        "__pycache__/a.pypy39.pyc",
        "__pycache__/a.cpython-311-pytest-8.3.4.pyc",
        "__pycache__/a.cpython-311.pyc.140234",
        "__pycache__/a.b.cpython-311.pyc",
        "__pycache__/a.f-12.py311.nbi",
        "pkg/__pycache__/gone.cpython-311.pyc",
        "pkg/__pycache__/tuned.json",
        "pkg/__pycache__/kernels/k.bin",
        "empty/__pycache__/keep",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    (tmp_path / "empty/__pycache__/keep").unlink()
    assert [file.path for file in walk(tmp_path, skip=sites.Bytecode(tmp_path)) if file.kind == "file"] == [
        "a.b.py",
        "a.py",
        "pkg/__pycache__/gone.cpython-311.pyc",
        "pkg/__pycache__/kernels/k.bin",
        "pkg/__pycache__/tuned.json",
    ]
    assert "empty/__pycache__" not in [file.path for file in walk(tmp_path, skip=sites.Bytecode(tmp_path))]
