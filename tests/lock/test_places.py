"""Which paths belong to which place."""

from __future__ import annotations

from pathlib import Path

import msgspec

from repro_env.capture import distributions
from repro_env.image.entry import Entry
from repro_env.io.files import sha256_of
from repro_env.lock import places
from repro_env.lock.compose import Composition, compose
from repro_env.model.environment import Interpretation, Kind, Layout, Startup
from tests.fakes import specs
from tests.lock.test_compose import installed

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


def startup(*sys_path: Path | str) -> Startup:
    return Startup(problem="", printed="", sys_path=tuple(map(str, sys_path)), flags="", mapped=(), locale="")


def listed(found: Interpretation, layout: Layout | None = None) -> set[str]:
    layout = layout or found.layout
    return {one.path for one in places.listed(found, layout, distributions.scan(layout)) if one.kind != "dir"}


def test_site_folders_on_the_path_are_places_of_their_own(tmp_path: Path) -> None:
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
    found = places.others(facts(venv, "venv"), startup("", *path, tmp_path / "gone/lib/python3.11/site-packages"))
    assert [(one.prefix, one.purelib, one.platlib, one.in_place) for one in found] == [
        (str(home), SITE, SITE, True),
        (str(base), SITE, SITE, True),
    ]
    assert {one.python for one in found} == {"/opt/python/bin/python3.11"}  # not the environment's: theirs starts no venv


def test_lib_and_lib64_are_one_place(tmp_path: Path) -> None:
    wide = SITE.replace("lib/", "lib64/")
    write(tmp_path / "usr", f"{SITE}/pure.py", f"{wide}/plat.py")
    (one,) = places.others(facts(tmp_path / "venv", "venv"), startup(tmp_path / "usr" / wide, tmp_path / "usr" / SITE))
    assert (one.purelib, one.platlib) == (SITE, wide)
    assert listed(facts(tmp_path / "venv", "venv"), one) == {f"{SITE}/pure.py", f"{wide}/plat.py"}


def test_what_lies_in_the_environment_is_no_other_place(tmp_path: Path) -> None:
    write(tmp_path / "venv", f"{SITE}/x.py", "extra/lib/python3.11/site-packages/y.py")
    (tmp_path / "alias").symlink_to("venv")
    path = [tmp_path / "alias" / SITE, tmp_path / "venv/extra" / SITE]
    assert places.others(facts(tmp_path / "venv", "venv"), startup(*path)) == ()


def test_of_a_shared_prefix_only_sites_and_what_record_lists(tmp_path: Path) -> None:
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


def test_of_a_python_with_its_own_prefix_all_but_the_interpreter(tmp_path: Path) -> None:
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
    paths = places.listed(found, layout, scanned)
    hashes = {one.path: sha256_of(Path(layout.prefix, one.path)) for one in paths if one.kind == "file"}
    place = places.Place(number, layout, scanned, paths, hashes, state="", settled=False)
    stacks = {key: msgspec.structs.replace(installed(texts), root=place.root) for key, texts in files.items()}
    read = (Path(layout.prefix) / "x").read_bytes
    return compose(
        [stacks], paths, hashes, root=place.root, mine=place.owns, held=held, read=lambda path: read(), starts=place.starts
    )


def test_two_places_with_one_prefix_do_not_miss_each_others_files(tmp_path: Path) -> None:
    other = "lib/python3/dist-packages"
    write(tmp_path, f"{SITE}/demo.py", f"{other}/second.py")
    found = facts(tmp_path, "system")
    second = msgspec.structs.replace(found.layout, purelib=other, platlib=other)
    files = {"demo": {f"{SITE}/demo.py": f"{SITE}/demo.py"}, "second@1": {f"{other}/second.py": f"{other}/second.py"}}
    for number, layout in enumerate((found.layout, second)):
        done = composed(found, layout, number, files, {})
        assert (done.overlay, done.edited) == ((), ())


def test_what_a_lower_layer_holds_is_not_held_twice(tmp_path: Path) -> None:
    write(tmp_path, f"{SITE}/packaged.py", f"{SITE}/stray.py", f"{SITE}/edited.py")
    found = facts(tmp_path, "system")
    root = str(tmp_path)[1:]

    def entry(name: str, text: str) -> Entry:
        made = installed({f"{SITE}/{name}": text}).entries[0]
        return Entry(f"{root}/{made.path}", "file", False, made.size, made.sha256)

    held = {one.path: one for one in (entry("packaged.py", f"{SITE}/packaged.py"), entry("edited.py", "as packaged"))}
    done = composed(found, found.layout, 0, {}, held)
    assert {one.path.rpartition("/")[2] for one in done.overlay if one.kind == "file"} == {"stray.py", "edited.py"}


def test_only_the_missing_path_goes_from_a_folder_that_others_share(tmp_path: Path) -> None:
    write(tmp_path, f"{SITE}/demo.py")
    found = facts(tmp_path, "system")
    root = str(tmp_path)[1:]
    files = {"demo": {f"{SITE}/demo.py": f"{SITE}/demo.py", "bin/demo": "gone"}}
    done = composed(found, found.layout, 0, files, {f"{root}/bin": Entry(f"{root}/bin", "dir")})
    assert [one.path.removeprefix(root + "/") for one in done.overlay if one.kind == "gone"] == ["bin/demo"]
