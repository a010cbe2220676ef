"""The installer that is shipped beside a Dockerfile: the same files as canonical rule 1, and nothing odd gets through."""

from __future__ import annotations

import ast
import base64
import csv
import gzip
import hashlib
import http.server
import io
import json
import os
import shutil
import stat
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from repro_env.build import expected
from repro_env.flows import dockerfile
from repro_env.image import wheel as rule
from repro_env.image.entry import Entry
from repro_env.inside import install
from repro_env.model.environment import Layout
from repro_env.model.errors import ArtifactError
from repro_env.model.spec import Spec
from repro_env.store.carried import Carried
from repro_env.store.store import Store
from repro_env.store.wheelfile import WheelContents, open_facts
from tests.fakes import specs, wheels

SITE = "lib/python3.11/site-packages"
VENV = wheels.layout()
LAYOUTS = {
    "venv": VENV,
    "system": Layout(
        prefix="/usr/local",
        in_place=True,
        purelib=SITE,
        platlib="lib64/py",
        scripts="bin",
        headers="inc",
        python="/usr/bin/python3",
    ),
    "linked": Layout(prefix="/opt/x", in_place=True, real="/srv/x", purelib=SITE, platlib=SITE, scripts="sbin", headers="h"),
    "spaced": Layout(
        prefix="/opt/my env", in_place=True, purelib=SITE, platlib=SITE, scripts="bin", headers="h", python="/a b/py"
    ),
    "quoted": Layout(prefix="/o", in_place=True, purelib=SITE, platlib=SITE, scripts="bin", headers="h", python="/a 'b\"$/py"),
    "long": Layout(prefix="/o", in_place=True, purelib=SITE, platlib=SITE, scripts="bin", headers="h", python="/" + "p" * 200),
}
MANY: dict[str, dict[str, Any]] = {
    "plain": {},
    "package": {"files": {"one/__init__.py": b"", "one/data.bin": bytes(range(256)) * 40, "one/deep/er/x.txt": b"x"}},
    "programs": {"files": {"one.py": b"x", "one.so": b"\x7fELF"}, "executable": frozenset({"one.so"})},
    "scripts": {
        "files": {
            "one-1.0.data/scripts/run": b"#!python\nprint(1)\n",
            "one-1.0.data/scripts/runw": b"#!pythonw -u\r\nprint(1)\n",
            "one-1.0.data/scripts/shell": b"#!/bin/sh\necho\n",
            "one-1.0.data/scripts/bare": b"#!python",
            "one-1.0.data/scripts/empty": b"",
        }
    },
    "schemes": {
        "files": {
            "one-1.0.data/purelib/p.py": b"p",
            "one-1.0.data/platlib/q.py": b"q",
            "one-1.0.data/headers/one.h": b"h",
            "one-1.0.data/data/share/man/man1/one.1": b"m",
        }
    },
    "entry points": {
        "entry_points": "[console_scripts]\nrun = one:main\nother=one.two:Three.four [extra]\n[gui_scripts]\nwin = one:gui\n"
    },
    "both scripts": {"files": {"one-1.0.data/scripts/run": b"#!python\n"}, "entry_points": "[console_scripts]\nrun = one:main\n"},
    "odd entry points": {
        "entry_points": "# comment\n[other]\nx = y\n[console_scripts]\nA-b.c = one : main\nein ding = one:main\n"
    },
    "names": {
        "files": {"näme/ü.py": b"1", "with space/a,b.py": b"2", 'quo"te.py': b"3", "日本/x.py": b"4", "a" * 150 + ".py": b"5"}
    },
    "caches": {"files": {"one.py": b"x", "__pycache__/one.cpython-311.pyc": b"c", "a/__pycache__/b.pyc": b"c"}},
    "left behind": {
        "files": {f"one-1.0.dist-info/{name}": b"{}" for name in ("REQUESTED", "direct_url.json", "INSTALLER", "uv_cache.json")}
    },
    "vendored": {"files": {"one/_vendor/two-2.0.dist-info/METADATA": b"m", "one/_vendor/two-2.0.dist-info/RECORD": b""}},
    "big": {"files": {"one.bin": os.urandom(1 << 10) * 3000}},
}


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("given", MANY.values(), ids=MANY)
def test_it_makes_the_bytes_of_the_canonical_rule(tmp_path: Path, given: dict[str, Any], layout: Layout) -> None:
    same(wheels.make(tmp_path, "one", **given), "one", layout, tmp_path)


@pytest.mark.parametrize(
    "path", sorted(Path(sys.base_prefix).glob("lib/python3*/ensurepip/_bundled/*.whl")), ids=lambda path: path.name
)
def test_real_wheels(tmp_path: Path, path: Path) -> None:
    same(path, path.name.split("-")[0].lower(), VENV, tmp_path)


def test_platform_wheels_go_to_platlib(tmp_path: Path) -> None:
    path = altered(
        wheels.make(tmp_path, "one"), lambda files: change(files, "WHEEL", b"Root-Is-Purelib: true", b"Root-Is-Purelib: false")
    )
    same(path, "one", LAYOUTS["system"], tmp_path)


def same(path: Path, name: str, layout: Layout, folder: Path) -> None:
    """Both rules on one wheel: the same paths, executable bits and bytes."""
    ours = rule.canonical(open_facts(path, path.name), layout, name=name)
    contents = WheelContents(path, ours)
    wanted = {entry.path: (entry.executable, b"".join(contents.chunks(entry))) for entry in ours.entries}
    contents.close()
    into = folder / "tree"
    artifact = wheels.artifact(path, name)
    one = {"filename": artifact.filename, "name": name}
    count = install.install_wheel(str(path), one, plainly(layout), str(into))
    root = into / ours.root
    found = {
        str(file.relative_to(root)): (bool(file.stat().st_mode & 0o111), file.read_bytes())
        for file in root.rglob("*")
        if file.is_file()
    }
    assert found == wanted
    assert count == len(wanted)
    assert {stat.S_IMODE(one.stat().st_mode) for one in root.rglob("*")} <= {0o644, 0o755}
    assert {int(one.stat().st_mtime) for one in root.rglob("*") if one.is_file()} == {install.MTIME}


def plainly(layout: Layout) -> dict[str, Any]:
    import msgspec

    found = msgspec.to_builtins(layout)
    assert isinstance(found, dict)
    return found


def altered(path: Path, change: Callable[[dict[str, bytes]], None], *, record: bool = True) -> Path:
    """A wheel with other members; RECORD follows them when `record`."""
    with zipfile.ZipFile(path) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    change(files)
    own = next(name for name in files if name.endswith(".dist-info/RECORD"))
    if record:
        text = io.StringIO()
        rows = csv.writer(text, lineterminator="\n")
        for name, data in files.items():
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            rows.writerow((name, "" if name == own else f"sha256={digest}", "" if name == own else len(data)))
        files[own] = text.getvalue().encode()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(zipfile.ZipInfo(name), data)
    return path


def change(files: dict[str, bytes], name: str, old: bytes, new: bytes) -> None:
    key = next(one for one in files if one.endswith(name))
    assert old in files[key]
    files[key] = files[key].replace(old, new)


def put(name: str, data: bytes = b"x") -> Callable[[dict[str, bytes]], None]:
    return lambda files: files.update({name: data})


ODD: dict[str, tuple[Callable[[dict[str, bytes]], Any], bool]] = {
    "leaves its folder": (put("../out.py"), True),
    "leaves it deeper": (put("a/../../out.py"), True),
    "an absolute path": (put("/etc/out.py"), True),
    "a backslash": (put("a\\b.py"), True),
    "an empty part": (put("a//b.py"), True),
    "a control character": (put("a\nb.py"), True),
    "a line separator": (put("a\u2028b.py"), True),
    "not in RECORD": (put("extra.py"), False),
    "other bytes than RECORD": (lambda files: files.update({"one.py": b"NAME = 'two'\n"}), False),
    "in RECORD and not there": (lambda files: files.pop("one.py") and None, False),
    "no RECORD hash": (lambda files: change(files, "RECORD", b"sha256=", b"md5="), False),
    "a RECORD that is none": (lambda files: files.update({"one-1.0.dist-info/RECORD": b'"x\n'}), False),
    "a RECORD of two fields": (lambda files: files.update({"one-1.0.dist-info/RECORD": b"a,b\n"}), False),
    "a RECORD hash of no length": (lambda files: files.update({"one-1.0.dist-info/RECORD": b"one.py,sha256=abc,\n"}), False),
    "no WHEEL": (lambda files: files.pop("one-1.0.dist-info/WHEEL") and None, True),
    "two dist-infos": (put("two-1.0.dist-info/METADATA"), True),
    "an unknown scheme": (put("one-1.0.data/etc/x"), True),
    "a scheme alone": (put("one-1.0.data/purelib"), True),
    "two files on one path": (put("one-1.0.data/purelib/one.py"), True),
    "its own RECORD by a scheme": (put(f"one-1.0.data/data/{SITE}/one-1.0.dist-info/RECORD"), True),
    "an entry point that leaves": (put("one-1.0.dist-info/entry_points.txt", b"[console_scripts]\n../x = a:b\n"), True),
    "an entry point with code": (put("one-1.0.dist-info/entry_points.txt", b"[console_scripts]\nx = a:b;import os\n"), True),
    "entry points of no form": (put("one-1.0.dist-info/entry_points.txt", b"console\n"), True),
    "entry points that are no text": (put("one-1.0.dist-info/entry_points.txt", b"\xff\xfe"), True),
    "another name": (
        lambda files: files.update({name.replace("one-1.0", "two-1.0"): files.pop(name) for name in list(files)}),
        True,
    ),
}


@pytest.mark.parametrize("case", ODD.values(), ids=ODD)
def test_what_the_rule_refuses_it_refuses_too(tmp_path: Path, case: tuple[Callable[[dict[str, bytes]], None], bool]) -> None:
    path = altered(wheels.make(tmp_path / "w", "one"), case[0], record=case[1])
    into = tmp_path / "deep" / "er" / "tree"
    with pytest.raises(install.Refused) as caught:
        install.install_wheel(str(path), {"filename": path.name, "name": "one"}, plainly(VENV), str(into))
    assert "\n" not in str(caught.value)
    outside = [one for one in tmp_path.rglob("*") if one.is_file() and not one.is_relative_to(into) and one != path]
    assert not outside
    with pytest.raises(ArtifactError):
        by_the_rule(path)


def by_the_rule(path: Path) -> None:
    ours = rule.canonical(open_facts(path, path.name), VENV, name="one")
    contents = WheelContents(path, ours)
    for entry in ours.entries:  # what only the bytes give away is found where they are written
        if hashlib.sha256(b"".join(contents.chunks(entry))).hexdigest() != entry.sha256:
            raise ArtifactError("other bytes")
    contents.close()


def test_a_damaged_wheel(tmp_path: Path) -> None:
    path = wheels.make(tmp_path, "one")
    for data in (b"", b"PK\x05\x06" + bytes(18), path.read_bytes()[:-30], bytes(200)):
        path.write_bytes(data)
        with pytest.raises(install.Refused):
            install.install_wheel(str(path), {"filename": path.name, "name": "one"}, plainly(VENV), str(tmp_path / "tree"))


@pytest.mark.parametrize("kind", [stat.S_IFLNK, stat.S_IFCHR, stat.S_IFIFO])
def test_links_and_devices_are_refused(tmp_path: Path, kind: int) -> None:
    path = wheels.make(tmp_path, "one")
    with zipfile.ZipFile(path, "a") as archive:
        odd = zipfile.ZipInfo("odd")
        odd.external_attr = (kind | 0o777) << 16
        archive.writestr(odd, "/etc/passwd")
    with pytest.raises(install.Refused, match="symlink"):
        install.install_wheel(str(path), {"filename": path.name, "name": "one"}, plainly(VENV), str(tmp_path / "tree"))


def test_it_is_python_3_8() -> None:
    source = Path(install.__file__).read_text()
    tree = ast.parse(source, feature_version=(3, 8))
    for node in ast.walk(tree):
        assert not (isinstance(node, ast.Attribute) and node.attr in ("removeprefix", "removesuffix"))
        assert not isinstance(node, ast.Match)
    assert "from __future__ import annotations" in source


# The two commands, as the Dockerfile runs them.


class Context:
    """A spec's folder with everything that a Dockerfile needs, and the root of an image that is made of it by hand."""

    def __init__(self, folder: Path, *, carry: bool = True, overlay: Mapping[str, bytes] | None = None, **more: Any) -> None:
        self.folder = folder / "repro"
        self.tree = folder / "tree"
        self.root = folder / "root"
        self.marker = folder / "marker"
        made = {
            "one": wheels.make(folder / "wheels", "one", entry_points="[console_scripts]\nrun = one:main\n"),
            "two": wheels.make(folder / "wheels", "two", files={"two/__init__.py": b"2"}),
        }
        self.wheels = made
        over = {"opt/env/pyvenv.cfg": b"home = /opt/python\n", "opt/env/two-more.txt": b""} if overlay is None else overlay
        self.spec: Spec = specs.make(
            self.folder, made, carry=tuple(made) if carry else (), compress=("two",), overlay=over, **more
        )
        store = Store.open(folder / "store")
        for path in made.values():  # as a capture leaves it
            one = wheels.artifact(path, path.name.split("-")[0])
            store.blobs.put([path.read_bytes()], one.sha256, where="test")
        self.entries: list[Entry] = expected.entries(self.spec, self.folder, store)
        for name, data in dockerfile.files(self.spec, self.entries).items():
            (self.folder / name).write_bytes(data)

    def run(self, *words: str | Path, env: Mapping[str, str] | None = None) -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-B", self.folder / "install.py", *map(str, words)],
            capture_output=True,
            text=True,
            check=False,
            env=dict(env or {}),
            timeout=300,
        )
        assert done.stderr == ""
        return done.returncode, done.stdout

    def install(self, **more: Any) -> tuple[int, str]:
        return self.run("install", self.folder, self.spec.digest, self.tree, **more)

    def check(self) -> tuple[int, str]:
        shutil.rmtree(self.marker, ignore_errors=True)
        return self.run("check", self.folder, self.spec.digest, self.root, self.marker)

    def image(self) -> None:
        """What ADD and COPY make."""
        identity = self.spec.identity
        for blob in (identity.base, identity.interpreter.tree):
            assert blob is not None
            for entry, chunks in Carried(self.folder / "blobs").tree(blob):
                path = self.root / entry.path
                if entry.kind == "dir":
                    path.mkdir(parents=True, exist_ok=True)
                else:
                    path.write_bytes(b"".join(chunks))
                    path.chmod(0o755 if entry.executable else 0o644)
        shutil.copytree(self.tree, self.root, dirs_exist_ok=True, symlinks=True)


@pytest.fixture
def context(tmp_path: Path) -> Context:
    return Context(tmp_path)


def test_what_it_installs_passes_its_own_check(context: Context) -> None:
    assert context.install() == (0, context_lines(context))
    context.image()
    code, out = context.check()
    assert (code, "paths are as captured" in out) == (0, True)
    marker = context.marker / ".repro-env" / "image.json"
    assert json.loads(marker.read_text()) == {"schema": "repro-env/image/1", "spec": context.spec.digest}
    assert (context.marker / "home/ann/project/.venv").readlink() == Path("/opt/env")
    wanted = {entry.path: entry for entry in context.entries}
    for path in ("opt/env/bin/run", f"opt/env/{SITE}/one.py", "opt/env/pyvenv.cfg", ".repro-env/image.json"):
        root = context.marker if path.startswith(".repro-env") else context.root
        assert hashlib.sha256((root / path).read_bytes()).hexdigest() == wanted[path].sha256


def context_lines(context: Context) -> str:
    order = [name for one in context.spec.expected.layers if one.kind == "distributions" for name in one.holds]
    files = sum(entry.kind == "file" and entry.path.startswith("opt/env/") for entry in context.entries)
    folders = 2  # of the overlay, which says them
    return (
        "".join(f"repro-env: {name}\n" for name in order)
        + f"repro-env: {files + folders} files of 2 distributions are in place\n"
    )


def edit(path: str, data: bytes) -> Callable[[Path], Any]:
    return lambda root: (root / path).write_bytes(data)


def linked(root: Path) -> Path:
    found = root / "etc" / "link"
    found.symlink_to("/x")
    return found


TAMPERED: dict[str, tuple[Callable[[Path], Any], str]] = {
    "edited": (edit(f"opt/env/{SITE}/one.py", b"NAME = 'bad'\n"), f"differs: /opt/env/{SITE}/one.py is "),
    "edited in the base": (edit("etc/os-release", b"NAME=other\n"), "differs: /etc/os-release is "),
    "removed": (lambda root: (root / f"opt/env/{SITE}/two/__init__.py").unlink(), f"missing: /opt/env/{SITE}/two/__init__.py"),
    "added": (edit("opt/env/more.pth", b"import os"), "not in the capture: /opt/env/more.pth"),
    "a folder added": (lambda root: (root / "srv").mkdir(), "not in the capture: /srv"),
    "a mode": (lambda root: (root / "opt/env/bin/run").chmod(0o644), "differs: /opt/env/bin/run is a file, and was a program"),
    "a symlink instead": (
        lambda root: linked(root).replace(root / "etc/os-release"),
        "differs: /etc/os-release is a link, and was a file",
    ),
    "a pipe": (lambda root: os.mkfifo(root / "etc/pipe"), "not in the capture: /etc/pipe"),
}


@pytest.mark.parametrize("case", TAMPERED.values(), ids=TAMPERED)
def test_the_check_names_what_differs(context: Context, case: tuple[Callable[[Path], Any], str]) -> None:
    context.install()
    context.image()
    case[0](context.root)
    code, out = context.check()
    assert code == 1
    assert f"repro-env: {case[1]}" in out
    assert "the image is not the captured one: 1 path differs" in out


def test_many_differences_are_counted(context: Context) -> None:
    context.install()
    context.image()
    for number in range(60):
        (context.root / f"opt/env/{number}").write_bytes(b"")
    code, out = context.check()
    assert code == 1
    assert "60 paths differ (20 more are not shown)" in out


def test_overlays_replace_link_and_remove(tmp_path: Path) -> None:
    context = Context(tmp_path, overlay={f"opt/env/{SITE}/one.py": b"EDITED\n"})
    assert context.install()[0] == 0
    assert (context.tree / f"opt/env/{SITE}/one.py").read_bytes() == b"EDITED\n"
    tree = tmp_path / "over.tar"
    from repro_env.image import tar

    entries = [
        Entry(f"opt/env/{SITE}/one.py", "gone"),
        Entry("opt/env/bin/python", "link", target="/opt/python/bin/python3.11"),
        Entry(f"opt/env/{SITE}/two", "link", target="../three"),
    ]
    from repro_env.image.entry import members, ordered

    tree.write_bytes(b"".join(tar.write(members(ordered(entries), specs._Held({})))))
    install.install_overlay(str(tree), "blobs/x", str(context.tree))
    assert not (context.tree / f"opt/env/{SITE}/one.py").exists()
    assert (context.tree / "opt/env/bin/python").readlink() == Path("/opt/python/bin/python3.11")
    assert (context.tree / f"opt/env/{SITE}/two").readlink() == Path("../three")  # in the place of a folder
    with pytest.raises(install.Refused, match="no wheel brings"):
        install.install_overlay(str(tree), "blobs/x", str(context.tree))


def test_a_tree_that_leaves(tmp_path: Path) -> None:
    import tarfile

    def entry(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
        one = tarfile.TarInfo(name)
        one.type, one.linkname = kind, link
        return one

    for number, members in enumerate(
        (
            [entry("../out")],
            [entry("/etc/out")],
            [entry("a", tarfile.SYMTYPE, "/etc"), entry("a/out")],
            [entry("dev", tarfile.CHRTYPE)],
            [entry("a/hard", tarfile.LNKTYPE, "/etc/passwd")],
        )
    ):
        path = tmp_path / f"{number}.tar"
        with tarfile.open(path, "w") as archive:
            for one in members:
                archive.addfile(one)
        with pytest.raises(install.Refused):
            install.install_overlay(str(path), "blobs/x", str(tmp_path / "deep" / "tree"))
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "deep" / "out").exists()


def test_another_spec_than_the_dockerfiles(context: Context) -> None:
    path = context.folder / "spec.json"
    path.write_text(path.read_text().replace('"seed": 0', '"seed": 1'))
    code, out = context.install()
    assert code == 1
    assert "is not the one that this Dockerfile was made for" in out
    path.write_text("{}")
    assert context.install()[0] == 1
    path.write_text(path.read_text() + "[")
    assert context.install()[0] == 1


def test_a_damaged_blob(context: Context) -> None:
    one = context.spec.identity.distributions[0]
    path = context.folder / "blobs" / one.sha256.removeprefix("sha256:")
    damaged = path.read_bytes()[:-1] + b"x"
    path.unlink()  # it cannot be written to
    path.write_bytes(damaged)
    code, out = context.install()
    assert code == 1
    assert f"is not {one.filename} as captured" in out


def test_a_damaged_compressed_blob(context: Context) -> None:
    two = context.spec.identity.distributions[1]
    path = context.folder / "blobs" / (two.sha256.removeprefix("sha256:") + ".gz")
    kept = path.read_bytes()
    path.unlink()
    for data in (kept[:-9], gzip.compress(b"other"), gzip.compress(bytes(10**6))):
        path.write_bytes(data)
        code, out = context.install()
        assert code == 1
        assert "blobs/" in out


def test_a_damaged_overlay_and_list(context: Context) -> None:
    assert context.install()[0] == 0
    overlay = context.spec.identity.overlay
    assert overlay is not None
    path = specs.blob(context.folder, overlay)
    kept = path.read_bytes()
    for data in (b"", kept[:-5], gzip.compress(b"other"), gzip.compress(bytes(10**6))):
        path.write_bytes(data)
        assert context.install()[0] == 1
    context.image()
    (context.folder / "image-files.txt.gz").write_bytes(b"no")
    assert context.check()[0] == 1


class Serving(http.server.BaseHTTPRequestHandler):
    answers: dict[str, list[tuple[int, bytes]]]

    def do_GET(self) -> None:
        waiting = self.answers.get(self.path, [(404, b"")])
        status, data = waiting.pop(0) if len(waiting) > 1 else waiting[0]
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def served() -> Iterator[tuple[str, dict[str, list[tuple[int, bytes]]]]]:
    handler = type("Handler", (Serving,), {"answers": {}})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}", handler.answers  # type: ignore[attr-defined]
    server.shutdown()
    server.server_close()
    thread.join()


def test_wheels_come_by_url_and_are_checked(tmp_path: Path, served: tuple[str, dict[str, list[tuple[int, bytes]]]]) -> None:
    address, answers = served
    urls = {"one": [f"{address}/gone", f"{address}/bad", f"{address}/one"], "two": [f"{address}/two"]}
    context = Context(tmp_path, carry=False, urls=urls)
    one, two = (context.wheels[name].read_bytes() for name in ("one", "two"))
    answers.update({"/one": [(200, one)], "/two": [(200, two)], "/bad": [(200, bytes(len(one)))]})
    assert context.install()[0] == 0
    for bad, said in (([(200, bytes(len(two)))], "other bytes"), ([(200, two + b"x")], "gives more than")):
        answers["/two"] = bad
        code, out = context.install()
        assert code == 1
        assert said in out
        assert "blobs/" in out


def test_a_server_that_fails_once(
    tmp_path: Path, served: tuple[str, dict[str, list[tuple[int, bytes]]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    address, answers = served
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    data = wheels.make(tmp_path, "one").read_bytes()
    digest = "sha256:" + hashlib.sha256(data).hexdigest()
    one = {"filename": "one-1.0-py3-none-any.whl", "sha256": digest, "size": len(data)}
    answers["/one"] = [(503, b""), (200, data[:-9]), (200, data)]
    found = install.bring(one, {digest: [f"{address}/one"]}, str(tmp_path), str(tmp_path))
    assert Path(found).read_bytes() == data
    with pytest.raises(install.Refused, match="no http"):
        install.bring(one, {digest: ["file:///etc/passwd"]}, str(tmp_path), str(tmp_path))
    with pytest.raises(install.Refused, match="no URL is known"):
        install.bring(one, {}, str(tmp_path), str(tmp_path))
