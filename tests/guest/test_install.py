"""The installer next to a Dockerfile installs the same files as a rebuild, and checks every path of the image."""

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

from repro_env.delivery.documents import dockerfile
from repro_env.guest import install
from repro_env.oci import wheel as rule
from repro_env.oci.entry import Entry
from repro_env.schema.environment import Layout
from repro_env.schema.spec import Spec
from repro_env.store.packages.wheelfile import WheelContents, open_facts
from repro_env.store.specs.blobs import SpecBlobs
from repro_env.store.store import Store
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
WHEELS: dict[str, dict[str, Any]] = {
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
    "files of installers": {
        "files": {f"one-1.0.dist-info/{name}": b"{}" for name in ("REQUESTED", "direct_url.json", "INSTALLER", "uv_cache.json")}
    },
    "vendored": {"files": {"one/_vendor/two-2.0.dist-info/METADATA": b"m", "one/_vendor/two-2.0.dist-info/RECORD": b""}},
    "big": {"files": {"one.bin": os.urandom(1 << 10) * 3000}},
}


@pytest.mark.parametrize("options", WHEELS.values(), ids=WHEELS)
def test_the_installer_writes_the_same_files_as_a_rebuild(tmp_path: Path, options: dict[str, Any]) -> None:
    assert_same(wheels.make(tmp_path, "one", **options), "one", VENV, tmp_path)


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_the_installer_uses_the_directories_of_each_layout(tmp_path: Path, layout: Layout) -> None:
    files = {**WHEELS["schemes"]["files"], **WHEELS["scripts"]["files"]}
    assert_same(wheels.make(tmp_path, "one", files=files, **WHEELS["entry points"]), "one", layout, tmp_path)


BUNDLED = (*Path(sys.base_prefix).glob("lib/python3*/ensurepip/_bundled/*.whl"), *Path("/usr/share/python-wheels").glob("*.whl"))
"""The wheels of ensurepip, in the directories of Python and of Debian."""


@pytest.mark.parametrize("path", sorted(BUNDLED), ids=lambda path: path.name)
def test_real_wheels_are_installed_by_the_canonical_rule(tmp_path: Path, path: Path) -> None:
    assert_same(path, path.name.split("-")[0].lower(), VENV, tmp_path)


def test_a_platform_wheel_is_installed_into_platlib(tmp_path: Path) -> None:
    path = rewrite(
        wheels.make(tmp_path, "one"), lambda files: change(files, "WHEEL", b"Root-Is-Purelib: true", b"Root-Is-Purelib: false")
    )
    assert_same(path, "one", LAYOUTS["system"], tmp_path)


def assert_same(path: Path, name: str, layout: Layout, directory: Path) -> None:
    """Assert that both implementations install the same paths, executable bits and bytes."""
    expected = rule.canonical(open_facts(path, path.name), layout, name=name)
    contents = WheelContents(path, expected)
    files = {entry.path: (entry.executable, b"".join(contents.chunks(entry))) for entry in expected.entries}
    contents.close()
    out = directory / "tree"
    distribution = {"filename": wheels.artifact(path, name).filename, "name": name}
    count = install.install_wheel(str(path), distribution, builtins(layout), str(out))
    root = out / expected.root
    installed = {
        str(file.relative_to(root)): (bool(file.stat().st_mode & 0o111), file.read_bytes())
        for file in root.rglob("*")
        if file.is_file()
    }
    assert installed == files
    assert count == len(files)
    assert {stat.S_IMODE(path.stat().st_mode) for path in root.rglob("*")} <= {0o644, 0o755}
    assert {int(file.stat().st_mtime) for file in root.rglob("*") if file.is_file()} == {install.MTIME}


def builtins(layout: Layout) -> dict[str, Any]:
    import msgspec

    result = msgspec.to_builtins(layout)
    assert isinstance(result, dict)
    return result


def rewrite(path: Path, change: Callable[[dict[str, bytes]], None], *, record: bool = True) -> Path:
    """Change the members of a wheel. With `record`, RECORD is updated."""
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
    key = next(path for path in files if path.endswith(name))
    assert old in files[key]
    files[key] = files[key].replace(old, new)


def put(name: str, data: bytes = b"x") -> Callable[[dict[str, bytes]], None]:
    return lambda files: files.update({name: data})


INVALID: dict[str, tuple[Callable[[dict[str, bytes]], Any], bool]] = {
    "a path outside of the prefix": (put("../out.py"), True),
    "a deeper path outside of the prefix": (put("a/../../out.py"), True),
    "an absolute path": (put("/etc/out.py"), True),
    "a backslash": (put("a\\b.py"), True),
    "an empty part": (put("a//b.py"), True),
    "a control character": (put("a\nb.py"), True),
    "a line separator": (put("a\u2028b.py"), True),
    "not in RECORD": (put("extra.py"), False),
    "bytes that differ from RECORD": (lambda files: files.update({"one.py": b"NAME = 'two'\n"}), False),
    "a missing file of RECORD": (lambda files: files.pop("one.py") and None, False),
    "an unsupported hash in RECORD": (lambda files: change(files, "RECORD", b"sha256=", b"md5="), False),
    "an invalid RECORD": (lambda files: files.update({"one-1.0.dist-info/RECORD": b'"x\n'}), False),
    "a RECORD with two fields": (lambda files: files.update({"one-1.0.dist-info/RECORD": b"a,b\n"}), False),
    "a short hash in RECORD": (lambda files: files.update({"one-1.0.dist-info/RECORD": b"one.py,sha256=abc,\n"}), False),
    "no WHEEL": (lambda files: files.pop("one-1.0.dist-info/WHEEL") and None, True),
    "two dist-infos": (put("two-1.0.dist-info/METADATA"), True),
    "an unknown scheme": (put("one-1.0.data/etc/x"), True),
    "a scheme without a file": (put("one-1.0.data/purelib"), True),
    "two files on one path": (put("one-1.0.data/purelib/one.py"), True),
    "its own RECORD in a scheme": (put(f"one-1.0.data/data/{SITE}/one-1.0.dist-info/RECORD"), True),
    "an entry point outside of its directory": (
        put("one-1.0.dist-info/entry_points.txt", b"[console_scripts]\n../x = a:b\n"),
        True,
    ),
    "an entry point with code": (put("one-1.0.dist-info/entry_points.txt", b"[console_scripts]\nx = a:b;import os\n"), True),
    "invalid entry points": (put("one-1.0.dist-info/entry_points.txt", b"console\n"), True),
    "entry points that are not UTF-8": (put("one-1.0.dist-info/entry_points.txt", b"\xff\xfe"), True),
    "the dist-info of another project": (
        lambda files: files.update({name.replace("one-1.0", "two-1.0"): files.pop(name) for name in list(files)}),
        True,
    ),
}


@pytest.mark.parametrize("case", INVALID.values(), ids=INVALID)
def test_the_installer_rejects_an_invalid_wheel(tmp_path: Path, case: tuple[Callable[[dict[str, bytes]], None], bool]) -> None:
    path = rewrite(wheels.make(tmp_path / "w", "one"), case[0], record=case[1])
    out = tmp_path / "deep" / "er" / "tree"
    with pytest.raises(install.InstallError) as caught:
        install.install_wheel(str(path), {"filename": path.name, "name": "one"}, builtins(VENV), str(out))
    assert "\n" not in str(caught.value)
    outside = [file for file in tmp_path.rglob("*") if file.is_file() and not file.is_relative_to(out) and file != path]
    assert not outside


def test_a_damaged_wheel_is_rejected(tmp_path: Path) -> None:
    path = wheels.make(tmp_path, "one")
    for data in (b"", b"PK\x05\x06" + bytes(18), path.read_bytes()[:-30], bytes(200)):
        path.write_bytes(data)
        with pytest.raises(install.InstallError):
            install.install_wheel(str(path), {"filename": path.name, "name": "one"}, builtins(VENV), str(tmp_path / "tree"))


@pytest.mark.parametrize("kind", [stat.S_IFLNK, stat.S_IFCHR, stat.S_IFIFO])
def test_symlinks_and_devices_are_rejected(tmp_path: Path, kind: int) -> None:
    path = wheels.make(tmp_path, "one")
    with zipfile.ZipFile(path, "a") as archive:
        special = zipfile.ZipInfo("special")
        special.external_attr = (kind | 0o777) << 16
        archive.writestr(special, "/etc/passwd")
    with pytest.raises(install.InstallError, match="symlink"):
        install.install_wheel(str(path), {"filename": path.name, "name": "one"}, builtins(VENV), str(tmp_path / "tree"))


def test_the_installer_is_valid_python_3_8() -> None:
    source = dockerfile.installer().decode()
    tree = ast.parse(source, feature_version=(3, 8))
    for node in ast.walk(tree):
        assert not (isinstance(node, ast.Attribute) and node.attr in ("removeprefix", "removesuffix"))
        assert not isinstance(node, ast.Match)
    assert "from __future__ import annotations" in source


# The two commands, as the Dockerfile runs them.


class Context:
    """A spec's directory with the files of its Dockerfile, and the root of an image that is built from it by hand."""

    def __init__(self, directory: Path, *, carry: bool = True, overlay: Mapping[str, bytes] | None = None, **more: Any) -> None:
        self.directory = directory / "repro"
        self.tree = directory / "tree"
        self.root = directory / "root"
        self.marker = directory / "marker"
        self.wheels = {
            "one": wheels.make(directory / "wheels", "one", entry_points="[console_scripts]\nrun = one:main\n"),
            "two": wheels.make(directory / "wheels", "two", files={"two/__init__.py": b"2"}),
        }
        files = {"opt/env/pyvenv.cfg": b"home = /opt/python\n", "opt/env/two-more.txt": b""} if overlay is None else overlay
        self.spec: Spec = specs.make(
            self.directory, self.wheels, carry=tuple(self.wheels) if carry else (), compress=("two",), overlay=files, **more
        )
        store = Store.open(directory / "store")
        form_of, blobs = wheels.forms_in(directory / "wheels", self.spec), SpecBlobs(self.directory / "blobs")
        self.entries: list[Entry] = dockerfile.image_entries(self.spec, blobs, store, form_of)
        assert dockerfile.write(self.directory, self.spec, store, form_of) == ""

    def run(self, *arguments: str | Path, env: Mapping[str, str] | None = None) -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-B", self.directory / "install.py", *map(str, arguments)],
            capture_output=True,
            text=True,
            check=False,
            env=dict(env or {}),
            timeout=300,
        )
        assert done.stderr == ""
        return done.returncode, done.stdout

    def install(self, **more: Any) -> tuple[int, str]:
        return self.run("install", self.directory, self.spec.digest, self.tree, **more)

    def check(self) -> tuple[int, str]:
        shutil.rmtree(self.marker, ignore_errors=True)
        return self.run("check", self.directory, self.spec.digest, self.root, self.marker)

    def build(self) -> None:
        """Build the root as ADD and COPY do."""
        identity = self.spec.identity
        for blob in (identity.base, identity.interpreter.tree):
            assert blob is not None
            for entry, chunks in SpecBlobs(self.directory / "blobs").tree(blob):
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


def test_an_installed_environment_passes_the_check(context: Context) -> None:
    assert context.install() == (0, install_output(context))
    context.build()
    code, out = context.check()
    assert (code, "paths are as captured" in out) == (0, True)
    marker = context.marker / ".repro-env" / "image.json"
    assert json.loads(marker.read_text()) == {"schema": "repro-env/image/1", "spec": context.spec.digest}
    assert (context.marker / "home/ann/project/.venv").readlink() == Path("/opt/env")
    expected = {entry.path: entry for entry in context.entries}
    for path in ("opt/env/bin/run", f"opt/env/{SITE}/one.py", "opt/env/pyvenv.cfg", ".repro-env/image.json"):
        root = context.marker if path.startswith(".repro-env") else context.root
        assert hashlib.sha256((root / path).read_bytes()).hexdigest() == expected[path].sha256


def install_output(context: Context) -> str:
    order = [name for layer in context.spec.expected.layers if layer.kind == "distributions" for name in layer.holds]
    files = sum(entry.kind == "file" and entry.path.startswith("opt/env/") for entry in context.entries)
    directories = 2  # members of the overlay
    return (
        "".join(f"repro-env: {name}\n" for name in order)
        + f"repro-env: installed {files + directories} files of 2 distributions\n"
    )


def edit(path: str, data: bytes) -> Callable[[Path], Any]:
    return lambda root: (root / path).write_bytes(data)


def make_link(root: Path) -> Path:
    link = root / "etc" / "link"
    link.symlink_to("/x")
    return link


TAMPERED: dict[str, tuple[Callable[[Path], Any], str]] = {
    "an edited file": (edit(f"opt/env/{SITE}/one.py", b"NAME = 'bad'\n"), f"differs: /opt/env/{SITE}/one.py is "),
    "an edited file in the base": (edit("etc/os-release", b"NAME=other\n"), "differs: /etc/os-release is "),
    "a removed file": (
        lambda root: (root / f"opt/env/{SITE}/two/__init__.py").unlink(),
        f"missing: /opt/env/{SITE}/two/__init__.py",
    ),
    "an added file": (edit("opt/env/more.pth", b"import os"), "not in the capture: /opt/env/more.pth"),
    "an added directory": (lambda root: (root / "srv").mkdir(), "not in the capture: /srv"),
    "a mode": (lambda root: (root / "opt/env/bin/run").chmod(0o644), "differs: /opt/env/bin/run is a file, but was a program"),
    "a symlink instead": (
        lambda root: make_link(root).replace(root / "etc/os-release"),
        "differs: /etc/os-release is a link, but was a file",
    ),
    "a pipe": (lambda root: os.mkfifo(root / "etc/pipe"), "not in the capture: /etc/pipe"),
}


@pytest.mark.parametrize("case", TAMPERED.values(), ids=TAMPERED)
def test_the_check_names_the_path_that_differs(context: Context, case: tuple[Callable[[Path], Any], str]) -> None:
    context.install()
    context.build()
    case[0](context.root)
    code, out = context.check()
    assert code == 1
    assert f"repro-env: {case[1]}" in out
    assert "the image differs from the capture: 1 path differs" in out


def test_many_differences_are_counted(context: Context) -> None:
    context.install()
    context.build()
    for number in range(60):
        (context.root / f"opt/env/{number}").write_bytes(b"")
    code, out = context.check()
    assert code == 1
    assert "60 paths differ (20 more are not shown)" in out


def test_an_overlay_replaces_files_adds_symlinks_and_removes_files(tmp_path: Path) -> None:
    context = Context(tmp_path, overlay={f"opt/env/{SITE}/one.py": b"EDITED\n"})
    assert context.install()[0] == 0
    assert (context.tree / f"opt/env/{SITE}/one.py").read_bytes() == b"EDITED\n"
    tree = tmp_path / "over.tar"
    from repro_env.oci import tar

    entries = [
        Entry(f"opt/env/{SITE}/one.py", "gone"),
        Entry("opt/env/bin/python", "link", target="/opt/python/bin/python3.11"),
        Entry(f"opt/env/{SITE}/two", "link", target="../three"),
    ]
    from repro_env.oci.entry import members, sort_with_parents

    tree.write_bytes(b"".join(tar.write(members(sort_with_parents(entries), specs._Held({})))))
    install.install_overlay(str(tree), "blobs/x", str(context.tree))
    assert not (context.tree / f"opt/env/{SITE}/one.py").exists()
    assert (context.tree / "opt/env/bin/python").readlink() == Path("/opt/python/bin/python3.11")
    assert (context.tree / f"opt/env/{SITE}/two").readlink() == Path("../three")  # replaces a directory
    with pytest.raises(install.InstallError, match="no wheel installs"):
        install.install_overlay(str(tree), "blobs/x", str(context.tree))


def test_an_overlay_with_paths_outside_of_the_image_is_rejected(tmp_path: Path) -> None:
    import tarfile

    def entry(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
        member = tarfile.TarInfo(name)
        member.type, member.linkname = kind, link
        return member

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
            for member in members:
                archive.addfile(member)
        with pytest.raises(install.InstallError):
            install.install_overlay(str(path), "blobs/x", str(tmp_path / "deep" / "tree"))
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "deep" / "out").exists()


def test_a_spec_of_another_dockerfile_is_rejected(context: Context) -> None:
    path = context.directory / "spec.json"
    path.write_text(path.read_text().replace(":/usr/bin:", ":/usr/games:"))
    code, out = context.install()
    assert code == 1
    assert "does not belong to this Dockerfile" in out
    path.write_text("{}")
    assert context.install()[0] == 1
    path.write_text(path.read_text() + "[")
    assert context.install()[0] == 1


def test_a_damaged_wheel_in_blobs_is_rejected(context: Context) -> None:
    wheel = context.spec.identity.distributions[0]
    path = context.directory / "blobs" / wheel.sha256.removeprefix("sha256:")
    damaged = path.read_bytes()[:-1] + b"x"
    path.unlink()  # the file is read-only
    path.write_bytes(damaged)
    code, out = context.install()
    assert code == 1
    assert f"differs from the captured {wheel.filename}" in out


def test_a_damaged_compressed_wheel_in_blobs_is_rejected(context: Context) -> None:
    wheel = context.spec.identity.distributions[1]
    path = context.directory / "blobs" / (wheel.sha256.removeprefix("sha256:") + ".gz")
    original = path.read_bytes()
    path.unlink()
    for data in (original[:-9], gzip.compress(b"other"), gzip.compress(bytes(10**6))):
        path.write_bytes(data)
        code, out = context.install()
        assert code == 1
        assert "blobs/" in out


def test_a_damaged_overlay_or_listing_is_rejected(context: Context) -> None:
    assert context.install()[0] == 0
    overlay = context.spec.identity.overlay
    assert overlay is not None
    path = specs.blob(context.directory, overlay)
    path.chmod(0o644)
    original = path.read_bytes()
    for data in (b"", original[:-5], gzip.compress(b"other"), gzip.compress(bytes(10**6))):
        path.write_bytes(data)
        assert context.install()[0] == 1
    context.build()
    (context.directory / "image-files.txt.gz").write_bytes(b"no")
    assert context.check()[0] == 1


class Handler(http.server.BaseHTTPRequestHandler):
    answers: dict[str, list[tuple[int, bytes]]]

    def do_GET(self) -> None:
        queue = self.answers.get(self.path, [(404, b"")])
        status, data = queue.pop(0) if len(queue) > 1 else queue[0]
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[tuple[str, dict[str, list[tuple[int, bytes]]]]]:
    handler = type("TestHandler", (Handler,), {"answers": {}})
    http_server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=http_server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{http_server.server_address[1]}", handler.answers  # type: ignore[attr-defined]
    http_server.shutdown()
    http_server.server_close()
    thread.join()


def test_downloaded_wheels_are_checked(tmp_path: Path, server: tuple[str, dict[str, list[tuple[int, bytes]]]]) -> None:
    address, answers = server
    urls = {"one": [f"{address}/gone", f"{address}/bad", f"{address}/one"], "two": [f"{address}/two"]}
    context = Context(tmp_path, carry=False, urls=urls)
    one, two = (context.wheels[name].read_bytes() for name in ("one", "two"))
    answers.update({"/one": [(200, one)], "/two": [(200, two)], "/bad": [(200, bytes(len(one)))]})
    assert context.install()[0] == 0
    for content in (bytes(len(two)), two + b"x"):
        answers["/two"] = [(200, content)]
        code, out = context.install()
        assert code == 1
        assert "differs from the captured" in out
        assert "blobs/" in out


def test_a_failed_download_is_tried_again(
    tmp_path: Path, server: tuple[str, dict[str, list[tuple[int, bytes]]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    address, answers = server
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    data = wheels.make(tmp_path, "one").read_bytes()
    digest = "sha256:" + hashlib.sha256(data).hexdigest()
    wheel = {"filename": "one-1.0-py3-none-any.whl", "sha256": digest, "size": len(data)}
    answers["/one"] = [(503, b""), (200, data[:-9]), (200, data)]
    path = install.find_wheel(wheel, {digest: [f"{address}/one"]}, str(tmp_path), str(tmp_path))
    assert Path(path).read_bytes() == data
    with pytest.raises(install.InstallError, match="is not an http"):
        install.find_wheel(wheel, {digest: ["file:///etc/passwd"]}, str(tmp_path), str(tmp_path))
    with pytest.raises(install.InstallError, match="no known URL"):
        install.find_wheel(wheel, {}, str(tmp_path), str(tmp_path))
