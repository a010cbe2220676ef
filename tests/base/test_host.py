from __future__ import annotations

import hashlib
import re
import shutil
from pathlib import Path

import msgspec
import pytest

from repro_env.base import checks, host, interpreter, ldcache
from repro_env.base.checks import Check
from repro_env.base.closure import Loader, close
from repro_env.base.tree import LiveTree, Tree, within
from repro_env.image import layer
from repro_env.image.entry import members
from repro_env.io import process
from repro_env.io.hashes import FileHashes
from repro_env.model.errors import LockError, UsageError
from repro_env.store.facts import FactCache
from tests.base import elves, roots
from tests.base.conftest import Cut
from tests.base.test_dpkg import Machine
from tests.parts import need

FACTS = """
import json, platform, ssl, sys, sysconfig, zoneinfo, mimetypes, socket, curses, locale, ctypes.util
curses.setupterm("xterm")
print(json.dumps([
    sys.version, sys.prefix, sys.base_prefix, sys.executable, sys._base_executable, sys.path, platform.libc_ver(),
    ssl.OPENSSL_VERSION, len(ssl.create_default_context().get_ca_certs()), sorted(ssl.get_default_verify_paths()),
    sorted(sysconfig.get_config_vars().items(), key=str), open(sysconfig.get_config_h_filename()).read(),
    zoneinfo.ZoneInfo("Europe/Berlin").utcoffset(__import__("datetime").datetime(2024, 7, 1)).seconds,
    mimetypes.guess_type("x.webp"), sorted(mimetypes.types_map), socket.getservbyname("https"), curses.tigetnum("colors"),
    locale.setlocale(locale.LC_ALL, ""), locale.localeconv(),
    [ctypes.util._findSoname_ldconfig(name) for name in ("c", "m", "ssl", "z", "nothing")],
], default=str))
"""
EXTENSIONS = """
import importlib, json, os, sys
found = {}
for folder in sys.path:
    if folder.endswith("lib-dynload"):
        for name in sorted({file.partition(".")[0] for file in os.listdir(folder) if ".so" in file}):
            try:
                importlib.import_module(name)
                found[name] = "imports"
            except ImportError as error:
                found[name] = type(error).__name__
print(json.dumps(found))
"""


def outside(cut: Cut, code: str) -> str:
    env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"}
    done = process.run([cut.facts.command, "-W", "ignore", "-c", code], env=env)
    assert done.code == 0, done.stderr
    return done.stdout.decode()


@pytest.mark.root
def test_python_says_the_same_inside_as_outside(cut: Cut, root: Path) -> None:
    need(
        "pyconfig.h" in " ".join(one.path for one in cut.interpreter.entries), f"C headers of {cut.facts.interpreter.executable}"
    )
    inside = roots.run(root, cut.facts.command, "-W", "ignore", "-c", FACTS, LANG="C.UTF-8")
    assert inside == outside(cut, FACTS)


@pytest.mark.root
def test_every_extension_module_that_imports_outside_imports_inside(cut: Cut, root: Path) -> None:
    inside = roots.run(root, cut.facts.command, "-W", "ignore", "-c", EXTENSIONS)
    assert inside == outside(cut, EXTENSIONS)
    assert '"_ssl": "imports"' in inside


@pytest.mark.root
def test_the_shell_and_its_programs_work(cut: Cut, root: Path) -> None:
    assert roots.run(root, "bash", "-c", "ls / | grep '^us' | sed s/u/U/ | awk '{print $1 1}'") == "Usr1\n"
    assert roots.run(root, "sh", "-c", "TZ=Asia/Tokyo date -d @0 +%H; env -S 'echo hi'") == "09\nhi\n"
    assert roots.run(root, "date", "+%Z") == process.run(["date", "+%Z"], env={"PATH": "/usr/bin:/bin"}).stdout.decode()
    assert roots.run(root, "sh", "-c", "printf x | gzip | gunzip; tar -c /etc/passwd 2>/dev/null | tar -t") == "xetc/passwd\n"
    assert roots.run(root, "sh", "-c", r"printf '\303\251' | iconv -f UTF-8 -t ISO-8859-1 | od -An -c").strip() == "351"
    assert roots.run(root, "getent", "passwd") == host.PASSWD.decode()


@pytest.mark.root
def test_every_program_and_library_inside_finds_what_it_needs(cut: Cut, root: Path) -> None:
    code = """
import os, subprocess, sys
for folder in ("/usr/bin", "/usr/sbin", "/usr/lib", "/usr/libexec"):
    for where, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(where, name)
            if os.path.isfile(path) and open(path, "rb").read(4) == b"\\x7fELF":
                text = subprocess.run([sys.argv[1], "--list", path], capture_output=True, text=True).stdout
                print(*(f"{path}: {line.strip()}\\n" for line in text.splitlines() if "not found" in line), end="", sep="")
"""
    (loader,) = {
        one.path for one in cut.base.entries if re.search(r"/ld-linux-[a-z0-9-]+\.so\.\d$", one.path) and one.kind == "file"
    }
    assert roots.run(root, cut.facts.command, "-c", code, f"/{loader}") == ""


@pytest.mark.root
def test_our_loader_cache_lists_what_ldconfig_lists(cut: Cut, root: Path) -> None:
    ours = roots.run(root, "ldconfig", "-p").splitlines()
    roots.run(root, "ldconfig", "-X", "-C", "/var/tmp/made.cache")
    made = roots.run(root, "ldconfig", "-p", "-C", "/var/tmp/made.cache").splitlines()
    # A libpython that the interpreter itself does not load lies in a built-in folder, where the loader looks anyway.
    assert sorted(line for line in ours if "=>" in line) == sorted(
        line for line in made if "=>" in line and (line in ours or "libpython" not in line)
    )


def test_a_second_cut_is_equal_and_its_bytes_are_its_entries(cut: Cut, hashes: FileHashes) -> None:
    again = host.cut(cut.facts, cut.startup, locale=cut.startup.locale, hashes=hashes).base
    assert (again.entries, again.packages, again.notes) == (cut.base.entries, cut.base.packages, cut.base.notes)
    layer.diff_id(layer.checked(members(again.entries, again.contents)))  # raises where a content is not its sha256


def test_the_order_of_what_was_mapped_and_listed_does_not_matter(cut: Cut, hashes: FileHashes) -> None:
    startup = msgspec.structs.replace(cut.startup, mapped=tuple(reversed(cut.startup.mapped)))
    libraries = [Path(one) for one in cut.startup.mapped]
    one = host.cut(cut.facts, startup, libraries=libraries, programs=["tar", "sed"], hashes=hashes)
    other = host.cut(cut.facts, cut.startup, libraries=libraries[::-1], programs=["sed", "tar"], hashes=hashes)
    assert [one.base.entries, one.unowned, one.carried, one.libraries] == [other.base.entries, None, (), other.libraries]


def test_nothing_of_the_host_is_in_it(cut: Cut) -> None:
    paths = {one.path for one in cut.base.entries}
    assert not paths & {"etc/shadow", "etc/hostname", "etc/hosts", "etc/resolv.conf", "etc/machine-id", "etc/fstab"}
    assert {one.partition("/")[0] for one in paths} <= {
        "bin", "boot", "dev", "etc", "home", "lib", "lib32", "lib64", "libx32", "media", "mnt", "opt", "proc", "root", "run",
        "sbin", "srv", "sys", "tmp", "usr", "var",
    }  # fmt: skip
    assert not [one for one in paths if re.match(r"usr/share/(man|info|locale/..)/", one)]
    assert [one for one in paths if one.startswith("usr/share/doc/libc6/")] == ["usr/share/doc/libc6/copyright"]
    names = {one.name for one in cut.base.packages}
    assert {"bash", "libc6", "coreutils"} <= names
    assert not names & {"dpkg", "perl-base", "debconf", "apt"}


def test_no_path_goes_through_a_link(cut: Cut) -> None:
    for tree in (cut.base, cut.interpreter):
        links = {one.path for one in tree.entries if one.kind == "link"}
        for entry in tree.entries:
            parts = entry.path.split("/")
            assert not links.intersection("/".join(parts[:depth]) for depth in range(1, len(parts)))


def test_interpreter_and_base_agree_where_they_overlap(cut: Cut) -> None:
    lower = {one.path: one for one in cut.base.entries}
    assert [one for one in cut.interpreter.entries if lower.get(one.path, one) != one] == []


def test_the_package_database_inside_names_the_packages(cut: Cut) -> None:
    (entry,) = (one for one in cut.base.entries if one.path == "var/lib/dpkg/status")
    text = b"".join(cut.base.contents.chunks(entry)).decode()
    assert sorted(re.findall(r"^Package: (.*)$", text, re.MULTILINE)) == [one.name for one in cut.base.packages]


def test_a_program_comes_with_its_package_and_what_it_depends_on(cut: Cut, hashes: FileHashes) -> None:
    need(shutil.which("git", path="/usr/bin:/bin"), "git: apt-get install git")
    found = host.cut(cut.facts, cut.startup, programs=["git"], hashes=hashes).base
    assert "git" in {one.name for one in found.packages} - {one.name for one in cut.base.packages}
    by_path = {one.path: one for one in found.entries}
    assert by_path["usr/bin/git"].executable
    libraries = close(["/usr/bin/git"], Loader(ldcache.read(Path("/etc/ld.so.cache").read_bytes()))).libraries
    assert libraries
    assert {str(Path(one).resolve())[1:] for one in libraries} <= set(by_path)


def held(tree: Tree | None) -> dict[str, str]:
    """Absolute path -> link target or kind."""
    assert tree is not None
    return {f"/{one.path}": one.target or one.kind for one in tree.entries}


def cache(tree: Tree | None) -> tuple[ldcache.Library, ...]:
    assert tree is not None
    (entry,) = (one for one in tree.entries if one.path == "etc/ld.so.cache")
    return ldcache.read(b"".join(tree.contents.chunks(entry)))


def test_a_program_of_nobody_is_carried_and_named(cut: Cut, hashes: FileHashes, tmp_path: Path) -> None:
    library = elves.place(tmp_path / "lib/libmine.so.1", elves.elf(soname="libmine.so.1"))
    program = tmp_path / "bin/tool-1"
    elves.place(program, elves.elf(("libmine.so.1", "libabsent.so.3"), runpath="$ORIGIN/../lib", interpreter="/lib64/ld-x.so.2"))
    program.chmod(0o755)
    (tmp_path / "bin/tool").symlink_to("tool-1")
    found = host.cut(cut.facts, cut.startup, programs=[f"{tmp_path}/bin/tool"], locale=cut.startup.locale, hashes=hashes)
    assert [(one.name, one.size) for one in found.carried] == [
        (path, Path(path).stat().st_size) for path in (str(program), library)
    ]
    kinds = held(found.unowned)
    assert [kinds[f"{tmp_path}/{name}"] for name in ("bin/tool", "bin/tool-1", "lib/libmine.so.1")] == ["tool-1", "file", "file"]
    assert f"libabsent.so.3, needed by {program}, is not on this machine" in found.base.unknown
    assert found.base.entries == cut.base.entries  # whatever lies beside the packages changes no byte of them
    (owner,) = (one.owner for one in found.libraries if one.path == library)
    assert owner == ""


def test_a_library_found_by_no_rule_but_mapped_is_in_the_loaders_cache(cut: Cut, hashes: FileHashes, tmp_path: Path) -> None:
    stray = elves.place(tmp_path / "site/libstray.so.1", elves.elf(soname="libstray.so.1"))
    startup = msgspec.structs.replace(cut.startup, mapped=(*cut.startup.mapped, stray))
    found = host.cut(cut.facts, startup, locale=cut.startup.locale, hashes=hashes)
    assert [one.name for one in found.carried] == [stray]
    assert [one.path for one in cache(found.unowned) if one.name == "libstray.so.1"] == [stray]
    assert [one for one in cache(found.unowned) if one.path != stray] == list(cache(found.base))
    assert found.base.entries == cut.base.entries


def test_what_a_framework_was_seen_to_load_is_held_as_what_python_maps(cut: Cut, hashes: FileHashes, tmp_path: Path) -> None:
    near = elves.place(tmp_path / "lib/libnear.so.1", elves.elf(soname="libnear.so.1"))
    lazy = elves.place(tmp_path / "lib/liblazy.so.1", elves.elf(("libnear.so.1",), soname="liblazy.so.1", runpath="$ORIGIN"))
    found = host.cut(cut.facts, cut.startup, mapped=[Path(lazy)], hashes=hashes)
    assert [one.name for one in found.carried] == [lazy, near]
    assert [one.path for one in cache(found.unowned) if one.name == "liblazy.so.1"] == [lazy]


def test_a_folder_of_nobody_is_carried_whole(cut: Cut, hashes: FileHashes, tmp_path: Path) -> None:
    elves.place(tmp_path / "tool/bin/run", elves.elf(("libz.so.1", "libnear.so"), runpath="$ORIGIN/../lib"))
    (tmp_path / "tool/bin/run").chmod(0o755)
    elves.place(tmp_path / "tool/lib/libnear.so", elves.elf(("libfar.so",), runpath=str(tmp_path / "far")))
    far = elves.place(tmp_path / "far/libfar.so", elves.elf())
    (tmp_path / "tool/share").mkdir()
    (tmp_path / "tool/share/data").write_text("x" * 100)
    (tmp_path / "tool/share/empty").mkdir()
    (tmp_path / "alias").symlink_to("tool")
    found = host.cut(cut.facts, cut.startup, programs=[f"{tmp_path}/alias"], locale=cut.startup.locale, hashes=hashes)
    kinds = held(found.unowned)
    assert {path.removeprefix(f"{tmp_path}/") for path in kinds if path.startswith(f"{tmp_path}/")} == {
        "alias", "far", "far/libfar.so", "tool", "tool/bin", "tool/bin/run", "tool/lib", "tool/lib/libnear.so", "tool/share",
        "tool/share/data", "tool/share/empty",
    }  # fmt: skip
    size = sum(path.stat().st_size for path in (tmp_path / "tool").rglob("*") if path.is_file())
    assert [(one.name, one.size) for one in found.carried] == [(far, Path(far).stat().st_size), (f"{tmp_path}/tool", size)]
    assert "zlib1g" in {one.name for one in found.base.packages}


def test_the_interpreter_of_a_script_comes_with_it(cut: Cut, hashes: FileHashes, tmp_path: Path) -> None:
    need(shutil.which("perl", path="/usr/bin:/bin"), "perl")
    for name, line in (
        ("direct", "#!/usr/bin/perl -w"),
        ("env", "#!/usr/bin/env -S perl -w"),
        ("script", f"#!{tmp_path}/direct"),
    ):
        (tmp_path / name).write_text(f"{line}\nprint 1;\n")
        (tmp_path / name).chmod(0o755)
        found = host.cut(cut.facts, cut.startup, programs=[f"{tmp_path}/{name}"], hashes=hashes)
        assert "perl-base" in {one.name for one in found.base.packages}
        names = {"script": ["direct", "script"]}.get(name, [name])
        assert [one.name for one in found.carried] == [f"{tmp_path}/{one}" for one in names]


def test_a_module_on_sys_path_and_libraries_of_the_environment_are_no_part_of_it(
    cut: Cut, hashes: FileHashes, tmp_path: Path
) -> None:
    module = elves.place(tmp_path / "project/fast.so", elves.elf())
    mine = elves.place(Path(cut.facts.layout.prefix) / "lib/libmine.so", elves.elf(("libpeer.so",), soname="libmine.so"))
    peer = elves.place(Path(cut.facts.layout.prefix) / "lib/deep/libpeer.so", elves.elf())
    startup = msgspec.structs.replace(
        cut.startup, mapped=(*cut.startup.mapped, module, mine), sys_path=(*cut.startup.sys_path, f"{tmp_path}/project")
    )
    found = host.cut(cut.facts, startup, libraries=[Path(mine), Path(peer)], locale=cut.startup.locale, hashes=hashes)
    assert (found.unowned, found.base.unknown) == (None, cut.base.unknown)
    assert found.base.entries == cut.base.entries


def test_a_gpu_driver_is_named_and_left_on_its_machine(cut: Cut, hashes: FileHashes, tmp_path: Path) -> None:
    driver = elves.place(tmp_path / "libcuda.so.550.1", elves.elf(soname="libcuda.so.1"))
    runtime = elves.place(tmp_path / "libcudart.so.12", elves.elf(soname="libcudart.so.12"))
    startup = msgspec.structs.replace(cut.startup, mapped=(*cut.startup.mapped, driver, runtime))
    found = host.cut(cut.facts, startup, hashes=hashes)
    assert [one.name for one in found.carried] == [runtime]
    assert [note for note in found.base.notes if driver in note]
    assert {one.path: (one.owner, one.sha256) for one in found.libraries}[driver] == ("driver", None)


def test_every_library_that_is_used_is_told_with_its_owner(cut: Cut) -> None:
    by_path = {one.path: one for one in cut.whole.libraries}
    (libc,) = (one for path, one in by_path.items() if re.search(r"/libc\.so\.6\Z", path))
    assert re.fullmatch(r"deb libc6 \S+", libc.owner)
    assert libc.sha256 == f"sha256:{hashlib.sha256(Path(libc.path).read_bytes()).hexdigest()}"
    assert list(by_path) == sorted(by_path)
    mapped = {one for one in cut.startup.mapped if not within(one, [cut.facts.interpreter.stdlib, cut.facts.layout.prefix])}
    inner = interpreter.own_prefix(cut.facts)
    assert {one for one in mapped if not (inner and within(one, [inner]))} <= {*by_path, cut.facts.interpreter.libpython}


def test_packages_with_something_in_a_folder_are_in_the_base(cut: Cut, hashes: FileHashes, tmp_path: Path) -> None:
    machine = Machine(tmp_path / "db")
    site = tmp_path / "dist-packages"
    (site / "numpy").mkdir(parents=True)
    (site / "numpy/core.py").write_text("x")
    (site / "mine.py").write_text("x")
    (tmp_path / "data").write_text("x")
    machine.install("dpkg")
    machine.install("python3-numpy", str(site), str(site / "numpy"), str(site / "numpy/core.py"), Depends="libdata")
    machine.install("python3-other", str(site))
    machine.install("libdata", str(tmp_path / "data"))
    startup = msgspec.structs.replace(cut.startup, mapped=())
    found = host.cut(cut.facts, startup, system=machine.database(), folders=[site, tmp_path / "none"], hashes=hashes)
    assert [one.name for one in found.base.packages] == ["libdata", "python3-numpy"]
    kinds = held(found.base)
    assert kinds[f"{site}/numpy/core.py"] == "file"
    assert f"{site}/mine.py" not in kinds


def test_the_trust_store_of_fedora_and_what_the_site_added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = "-----BEGIN CERTIFICATE-----\nsite\n-----END CERTIFICATE-----\n"
    for name, text in (
        ("extracted/pem/bundle.pem", f"first\n{site}"),
        ("anchors/mine.crt", site),
        ("anchors/other.pem", "other\n"),
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(host, "EXTRACTED", (f"{tmp_path}/extracted", f"{tmp_path}/none"))
    monkeypatch.setattr(host, "BUNDLES", (f"{tmp_path}/extracted/pem/bundle.pem", f"{tmp_path}/none"))
    monkeypatch.setattr(host, "ANCHORS", (f"{tmp_path}/anchors", f"{tmp_path}/none"))
    tree = LiveTree()
    assert list(host._certificates(tree)) == [
        f"{tmp_path}/anchors/mine.crt is a certificate of this site's own and travels with the base"
    ]
    assert f"{tmp_path}/extracted/pem/bundle.pem" in tree
    assert f"{tmp_path}/anchors/mine.crt" not in tree


def test_an_unknown_program_is_refused(cut: Cut, hashes: FileHashes) -> None:
    for name in ("no-such-program-anywhere", "/no/such/file", "/etc", "/"):
        with pytest.raises(UsageError, match="neither a program nor a package") as caught:
            host.cut(cut.facts, cut.startup, programs=[name], hashes=hashes)
        assert caught.value.where == f"--with {name}"


def test_a_locale_that_is_not_there_is_refused_by_name(cut: Cut, hashes: FileHashes) -> None:
    with pytest.raises(LockError, match="xx_YY") as caught:
        host.cut(cut.facts, cut.startup, locale="xx_YY.UTF-8 UTF-8", hashes=hashes)
    assert "locale-gen xx_YY.UTF-8" in caught.value.hint


@pytest.mark.parametrize(
    ("place", "word"),
    [
        ("lib/apk/db/installed", "apk"),
        ("var/lib/dpkg/status.d", "distroless"),
        ("tmp", "no package database"),
    ],
)
def test_other_machines_are_refused_by_name(tmp_path: Path, place: str, word: str) -> None:
    (tmp_path / place).mkdir(parents=True)
    with pytest.raises(LockError, match=word):
        host.database(tmp_path)


def test_what_is_secret_or_this_machines_own_is_left_out_whoever_captures(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "db")
    for name, mode in (("open", 0o644), ("secret", 0o640), ("tool", 0o4711)):
        (tmp_path / name).write_text("x")
        (tmp_path / name).chmod(mode)
    own = ["/etc/passwd", "/etc/passwd-", "/etc/shadow", "/etc/gshadow", "/etc/hosts", "/etc/hostname", "/etc/fstab"]
    machine.install("setup", *(f"{tmp_path}/{name}" for name in ("open", "secret", "tool")), *own)
    database, tree = machine.database(), LiveTree()
    gone = host._collect(tree, database, database.packages["setup:amd64"], frozenset(), [])
    assert gone == [f"{tmp_path}/{name} (setup) cannot be read by everybody, and is left out" for name in ("secret", "tool")]
    assert [path for path in tree.paths() if not within(path, [str(tmp_path)])] == []
    assert f"{tmp_path}/open" in tree


def test_an_edited_system_file_is_carried_and_named(tmp_path: Path, hashes: FileHashes) -> None:
    machine = Machine(tmp_path / "db")
    for name in ("same", "edited", "made-a-link"):
        (tmp_path / name).write_text("as it came\n")
    md5 = hashlib.md5(b"as it came\n").hexdigest()
    (tmp_path / "edited").write_text("changed\n")
    (tmp_path / "made-a-link").unlink()
    (tmp_path / "made-a-link").symlink_to("elsewhere")
    (tmp_path / "elsewhere").write_text("as it came\n")
    files = [f"{tmp_path}/{name}" for name in ("same", "edited", "made-a-link", "gone")]
    machine.install("tool", *files, sums="".join(f"{md5}  {file[1:]}\n" for file in files))
    database, tree = machine.database(), LiveTree()
    compared: list[Check] = []
    gone = host._collect(tree, database, database.packages["tool:amd64"], frozenset(), compared)
    assert gone == [f"{tmp_path}/gone (tool) is not there or cannot be reached"]
    edited = (f"{tmp_path}/edited (tool)", f"{tmp_path}/made-a-link (tool)")
    assert checks.edited(compared, {}, None) == edited
    known = FactCache(tmp_path)
    told = {f"{tmp_path}/same"[1:]: "0" * 64, f"{tmp_path}/edited"[1:]: "1" * 64}
    assert checks.edited(compared, told, known) == edited
    (tmp_path / "same").write_text("changed too\n")
    assert checks.edited(compared, told, known) == edited  # the same sha256 is the same file: not looked at again
    told[f"{tmp_path}/same"[1:]] = "2" * 64
    assert checks.edited(compared, told, known) == (edited[0], edited[1], f"{tmp_path}/same (tool)")
    assert all(f"{tmp_path}/{name}" in tree for name in ("same", "edited", "made-a-link", "elsewhere"))
