"""Small real wheels with a correct RECORD, and a venv-like prefix with one of them installed as pip leaves it."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from repro_env.oci import wheel
from repro_env.oci.entry import Entry
from repro_env.oci.wheel import Installed
from repro_env.schema.artifact import Wheel
from repro_env.schema.environment import Layout
from repro_env.schema.spec import Spec
from repro_env.store.packages.wheelfile import WheelContents, open_facts

WHEEL = b"Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def layout(prefix: str | Path = "/home/ann/project/.venv") -> Layout:
    """The install scheme of a venv of Python 3.11 at `prefix`."""
    site = "lib/python3.11/site-packages"
    return Layout(prefix=str(prefix), purelib=site, platlib=site, scripts="bin", headers="include/site/python3.11")


def make(
    directory: Path,
    name: str,
    version: str = "1.0",
    files: Mapping[str, bytes] | None = None,
    *,
    entry_points: str = "",
    executable: frozenset[str] = frozenset(),
    tag: str = "py3-none-any",
    requires: Sequence[str] = (),
    build: str = "",
) -> Path:
    """Write `<name>-<version>[-<build>]-<tag>.whl`, the same bytes each time. `files` are members by name; default: one module."""
    content = dict(files if files is not None else {f"{name.replace('-', '_')}.py": f"NAME = {name!r}\n".encode()})
    stem = f"{name.replace('-', '_')}-{version}"
    info = f"{stem}.dist-info"
    needs = "".join(f"Requires-Dist: {one}\n" for one in requires)
    content[f"{info}/METADATA"] = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}".encode()
    content[f"{info}/WHEEL"] = WHEEL.replace(b"py3-none-any", tag.encode()) + (f"Build: {build}\n".encode() if build else b"")
    if entry_points:
        content[f"{info}/entry_points.txt"] = entry_points.encode()
    content[f"{info}/RECORD"] = _record(content, f"{info}/RECORD")
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{stem}{'-' * bool(build)}{build}-{tag}.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, data in content.items():
            header = zipfile.ZipInfo(member, (1980, 1, 1, 0, 0, 0))
            header.external_attr = (0o100755 if member in executable else 0o100644) << 16
            header.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(header, data)
    return path


def artifact(path: Path, name: str, version: str = "1.0") -> Wheel:
    """The wheel as a spec names it."""
    data = path.read_bytes()
    return Wheel(
        name=name, version=version, filename=path.name, sha256="sha256:" + hashlib.sha256(data).hexdigest(), size=len(data)
    )


def install(path: Path, prefix: Path, name: str) -> None:
    """Install as pip does, into `prefix`: its own RECORD and INSTALLER, scripts with the prefix in their first line."""
    installed = wheel.canonical(open_facts(path, path.name), layout(prefix), name=name)
    contents = WheelContents(path, installed)
    for entry in installed.entries:
        data = _as_pip(entry, installed, b"".join(contents.chunks(entry)), prefix)
        target = prefix / entry.path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
        target.chmod(0o755 if entry.executable else 0o644)
    contents.close()


def _as_pip(entry: Entry, installed: wheel.Installed, data: bytes, prefix: Path) -> bytes:
    if entry.path.endswith(".dist-info/INSTALLER"):
        return b"pip\n"
    if entry.path.endswith(".dist-info/RECORD"):
        return data + b"__pycache__/added.cpython-311.pyc,,\n"
    if point := installed.points.get(entry.path):
        return (
            f"#!{prefix}/bin/python3\nimport sys\nfrom {point.module} import {point.attr}\n"
            f"if __name__ == '__main__':\n    sys.exit({point.attr}())\n"
        ).encode()
    return data


def _record(content: Mapping[str, bytes], own: str) -> bytes:
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    for member, data in content.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        rows.writerow((member, f"sha256={digest}", str(len(data))))
    rows.writerow((own, "", ""))
    return text.getvalue().encode()


def forms_in(directory: Path, spec: Spec) -> Callable[[Wheel], Installed]:
    """What returns the installed form of each wheel in a directory."""

    def form_of(artifact: Wheel) -> Installed:
        facts = open_facts(directory / artifact.filename, artifact.filename)
        return wheel.canonical(facts, spec.identity.layout_of(artifact), name=artifact.name)

    return form_of
