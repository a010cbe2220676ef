"""Canonical rule 1: the files that a wheel installs, from its central directory and a few of its small members.

The canonical form leaves out `__pycache__`, signatures, and the files that installers write for themselves (`REWRITTEN`).
RECORD, INSTALLER and scripts are written by this rule. Everything else has to be equal. The rule decides digests, so its
result never changes. `oci.wheel` uses this module, and `install.py` next to a Dockerfile contains its text.

Standard library only, Python 3.8 and later. Without `from __future__`, which cannot be in the middle of `install.py`.
"""

import base64
import csv
import hashlib
import io
import re
import shlex
import stat
import zipfile
from typing import Any, Dict, Iterable, NamedTuple, Optional, Tuple

REWRITTEN = ("RECORD", "RECORD.jws", "RECORD.p7s", "INSTALLER", "REQUESTED", "direct_url.json", "uv_cache.json", "uv_build.json")
"""Files of `.dist-info` that installers write for themselves. They are not part of the canonical form."""
INSTALLER = b"repro-env\n"
SHEBANG = b"""#!/usr/bin/env -S sh -c 'exec "${0%/*}/python" "$0" "$@"'\n"""
LONGEST_SHEBANG = 124
"""Longest interpreter path that every kernel accepts, in characters (BINPRM_BUF_SIZE was 128 before Linux 5.1)."""
MAX_MEMBERS = 1000000
MAX_TEXT = 64 << 20
"""Largest member that is read into memory, in bytes: RECORD, WHEEL, entry_points.txt or a script."""
SPECIAL = (stat.S_IFLNK, stat.S_IFCHR, stat.S_IFBLK, stat.S_IFIFO, stat.S_IFSOCK)
MEMBER_HEADER = 30
"""Bytes of the header before each member, without its name."""
SCRIPT_NAME = re.compile(r"[^/\\\s\x00-\x1f\x7f][^/\\\x00-\x1f\x7f]*")
REFERENCE = re.compile(r"(?P<module>\w+(?:\.\w+)*)\s*:\s*(?P<attr>\w+(?:\.\w+)*)\s*(?:\[.*\])?")


class RuleError(Exception):
    """A wheel is invalid: `what` is wrong with the file `where`."""

    def __init__(self, what: str, where: str) -> None:
        Exception.__init__(self, what, where)
        self.what = what
        self.where = where


class File(NamedTuple):
    """One file member of a wheel, from its central directory."""

    name: str
    size: int
    """Uncompressed bytes."""
    executable: bool
    """Whether it is a regular file with an executable bit, as pip decides it."""


class Facts(NamedTuple):
    """Everything of a wheel that determines what it installs."""

    filename: str
    files: Tuple[File, ...]
    record: bytes
    """The content of its top-level RECORD."""
    metadata: bytes
    """The content of WHEEL."""
    entry_points: bytes
    """The content of entry_points.txt, or empty."""
    scripts: Dict[str, bytes]
    """The content of each member in `.data/scripts/`, by member name. Its first line may be replaced."""


class EntryPoint(NamedTuple):
    """A console or GUI script: `name = module:attr`."""

    name: str
    module: str
    attr: str

    def text(self, shebang: bytes = SHEBANG) -> bytes:
        """The script in canonical form."""
        body = 'import sys\n\nfrom %s import %s\n\nif __name__ == "__main__":\n    sys.exit(%s())\n'
        return shebang + (body % (self.module, self.attr.partition(".")[0], self.attr)).encode()


class Row(NamedTuple):
    """A row of RECORD."""

    path: str
    """Unchanged: relative to site-packages, or to the wheel's root."""
    sha256: str
    """Hexadecimal, or empty if the row has no sha256."""
    size: int
    """-1 if the row has no size."""


class InstalledFile(NamedTuple):
    """A file that a wheel installs: an unchanged member, or bytes that the rule writes."""

    path: str
    """Relative to the prefix."""
    executable: bool
    size: int
    sha256: str
    member: str = ""
    """The name of the member; empty for a file that the rule writes."""
    data: bytes = b""
    point: Optional[EntryPoint] = None
    """The entry point of a generated script."""
    body: Optional[bytes] = None
    """The content of a `.data/scripts` file in the wheel."""


def read_facts(archive: zipfile.ZipFile, filename: str) -> Facts:
    """Read the facts of a wheel. Raises `RuleError`, or what `zipfile` raises for an invalid archive."""
    _check_overlaps(archive, filename)
    members = [member for member in archive.infolist() if not member.is_dir()]
    for member in members:
        if member.flag_bits & 1 or stat.S_IFMT(member.external_attr >> 16) in SPECIAL:
            raise RuleError("the member %r is encrypted, or is a symlink, device, pipe or socket" % member.filename, filename)
    by_name = {member.filename: member for member in members}
    info = dist_info(by_name, filename)
    for name in (info + "/RECORD", info + "/WHEEL"):
        if name not in by_name:
            raise RuleError("the wheel has no %s" % name, filename)

    def read(name: str) -> bytes:
        member = by_name.get(name)
        if member is None:
            return b""
        if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise NotImplementedError("%r is compressed by method %d" % (name, member.compress_type))
        if member.file_size > MAX_TEXT:
            raise RuleError("the member %r is larger than %d bytes" % (name, MAX_TEXT), filename)
        return archive.read(member)

    scripts = info[: -len(".dist-info")] + ".data/scripts/"
    return Facts(
        filename,
        tuple(File(member.filename, member.file_size, _is_executable(member)) for member in members),
        read(info + "/RECORD"),
        read(info + "/WHEEL"),
        read(info + "/entry_points.txt"),
        {name: read(name) for name in by_name if name.startswith(scripts)},
    )


def _check_overlaps(archive: zipfile.ZipFile, filename: str) -> None:
    """Check that members do not share bytes, as in zip bombs."""
    end = 0
    for member in sorted(archive.infolist(), key=lambda member: member.header_offset):
        if member.header_offset < end:
            raise RuleError("the member %r overlaps with another member" % member.filename, filename)
        end = member.header_offset + MEMBER_HEADER + len(member.orig_filename) + member.compress_size
    if end > archive.start_dir:
        raise RuleError("a member of the wheel overlaps with its directory", filename)


def _is_executable(member: zipfile.ZipInfo) -> bool:
    mode = member.external_attr >> 16
    return stat.S_ISREG(mode) and bool(mode & 0o111)


def name_and_version(filename: str) -> "tuple[str, str]":
    """The name and the version in the file name of a wheel: `torch-2.1.0+cpu-...` -> ("torch", "2.1.0+cpu")."""
    parts = filename[: -len(".whl")].split("-")
    if len(parts) not in (5, 6) or not filename.endswith(".whl") or not all(parts):
        raise RuleError("the file name is not the name of a wheel", filename)
    return parts[0], parts[1]


def dist_info(names: "Iterable[str]", filename: str) -> str:
    """The top-level `.dist-info` directory. Deeper ones belong to vendored packages."""
    directories = {name.partition("/")[0] for name in names if name.partition("/")[0].endswith(".dist-info") and "/" in name}
    if len(directories) != 1:
        raise RuleError("the wheel has %d top-level .dist-info directories instead of one" % len(directories), filename)
    (directory,) = directories
    expected = "-".join(_normalize(part) for part in name_and_version(filename))
    if "-".join(_normalize(part) for part in directory[: -len(".dist-info")].split("-", 1)) != expected:
        raise RuleError("the wheel contains %r, which does not match its file name" % directory, filename)
    return directory


def _normalize(text: str) -> str:
    """A name or version in the form for comparison (PEP 503)."""
    return re.sub(r"[-_.]+", "-", text).lower()


def installed_files(facts: Facts, layout: Any, name: str) -> "list[InstalledFile]":
    """The files that a wheel installs at a layout (`schema.environment.Layout`), sorted by path.

    `name` is the normalized name of the distribution. Raises `RuleError` if the wheel contradicts itself: files that RECORD
    does not list, rows without a file or without a sha256, different sizes, names that leave the environment, or two files at
    one path.
    """
    where = facts.filename
    names = {file.name for file in facts.files}
    if len(facts.files) > MAX_MEMBERS or len(names) != len(facts.files):
        raise RuleError("the wheel has a member twice, or more than %d members" % MAX_MEMBERS, where)
    for member in names:
        _check_name(member, where)
    info = dist_info(names, where)
    data = info[: -len(".dist-info")] + ".data"
    site = layout.purelib if _is_purelib(facts.metadata) else layout.platlib
    shebang = shebang_of(layout.python)
    rows = {row.path: row for row in read_record(facts.record, where)}
    unlisted = (info + "/RECORD", info + "/RECORD.jws", info + "/RECORD.p7s")
    installed: Dict[str, InstalledFile] = {}

    def add(file: InstalledFile) -> None:
        if file.path in installed:
            raise RuleError("the wheel installs %s twice" % file.path, where)
        installed[file.path] = file

    for file in facts.files:
        if file.name in unlisted:
            continue
        row = rows.get(file.name)
        if row is None or not row.sha256 or row.size not in (-1, file.size):
            raise RuleError("the RECORD of the wheel does not list %s with a sha256 and this size" % file.name, where)
        directory, _, last = file.name.rpartition("/")
        if (directory == info and last in REWRITTEN) or "__pycache__" in directory.split("/"):
            continue
        if file.name.startswith(data + "/scripts/"):
            body = facts.scripts[file.name]
            if hashlib.sha256(body).hexdigest() != row.sha256:
                raise RuleError("the content of %s does not have the sha256 in RECORD" % file.name, where)
            path = "%s/%s" % (layout.scripts, file.name[len(data + "/scripts/") :])
            add(_generate(path, replace_shebang(body, shebang), True)._replace(body=body))
        else:
            path = _install_path(file.name, data, site, layout, name, where)
            add(InstalledFile(path, file.executable, file.size, row.sha256, file.name))
    missing = set(rows) - names - set(unlisted[1:])
    if missing:
        raise RuleError("the RECORD of the wheel lists %r, which is missing" % min(missing), where)
    for point in read_entry_points(facts.entry_points, where):
        path = "%s/%s" % (layout.scripts, point.name)
        installed.pop(path, None)  # installers overwrite a .data/scripts file of the same name with the entry point
        add(_generate(path, point.text(shebang), True)._replace(point=point))
    add(_generate("%s/%s/INSTALLER" % (site, info), INSTALLER, False))
    record = "%s/%s/RECORD" % (site, info)
    add(_generate(record, write_record(installed.values(), record, site), False))
    return sorted(installed.values(), key=lambda file: file.path.encode())


def _generate(path: str, data: bytes, executable: bool) -> InstalledFile:
    return InstalledFile(path, executable, len(data), hashlib.sha256(data).hexdigest(), data=data)


def _check_name(member: str, where: str) -> None:
    parts = member.split("/")
    if not all(parts) or "." in parts or ".." in parts or "\\" in member or not member.isprintable():
        raise RuleError("the wheel has a member with the invalid name %r" % member, where)


def _is_purelib(metadata: bytes) -> bool:
    match = re.search(rb"^Root-Is-Purelib:\s*(\S+)\s*$", metadata, re.MULTILINE | re.IGNORECASE)
    return match is not None and match.group(1).lower() == b"true"


def _install_path(member: str, data: str, site: str, layout: Any, name: str, where: str) -> str:
    """The path where a member is installed (PEP 427, "The .data directory")."""
    if not member.startswith(data + "/"):
        return "%s/%s" % (site, member)
    _, key, *below = member.split("/")
    directories = {"purelib": layout.purelib, "platlib": layout.platlib, "headers": "%s/%s" % (layout.headers, name)}
    path = "/".join(below)
    if path and key in directories:
        return "%s/%s" % (directories[key], path)
    if path and key == "data":
        return path
    raise RuleError("the wheel has %s, which does not belong to an install scheme" % member, where)


def read_record(data: bytes, where: str) -> "list[Row]":
    """The rows of a RECORD, in order (PyPA "Recording installed projects"). Raises `RuleError` if it is invalid."""
    try:
        rows = [row for row in csv.reader(io.StringIO(data.decode()), strict=True) if row]
    except (UnicodeDecodeError, csv.Error) as error:
        raise RuleError("the RECORD of the wheel cannot be read: %s" % error, where) from None
    parsed = []
    for row in rows:
        if len(row) != 3 or not row[0]:
            raise RuleError("RECORD has a row with %d fields instead of 3: %r" % (len(row), row[0][:100]), where)
        path, digest, size = row
        if size and not (size.isascii() and size.isdigit() and len(size) < 19):
            raise RuleError("RECORD has the invalid size %r" % size[:19], where)
        parsed.append(Row(path, _parse_sha256(digest, where), int(size) if size else -1))
    return parsed


def _parse_sha256(field: str, where: str) -> str:
    """The sha256 in hexadecimal; empty for another algorithm."""
    kind, _, value = field.partition("=")
    if kind != "sha256":
        return ""
    try:
        raw = base64.urlsafe_b64decode(value + "=" * (-len(value) % 4))
    except ValueError:
        raw = b""
    if len(raw) != 32:
        raise RuleError("RECORD has the invalid hash %r" % field[:100], where)
    return raw.hex()


def write_record(files: "Iterable[Any]", record: str, site: str) -> bytes:
    """RECORD in canonical form: a row for each file, sorted by the bytes of the path, its own row without a hash.

    The files have the attributes `path`, `sha256` and `size`. Their paths, and `record`, the path of RECORD, are relative to the
    prefix; the rows are relative to `site`.
    """
    up = "../" * len(site.split("/"))
    rows = []
    for file in files:
        path = file.path[len(site) + 1 :] if file.path.startswith(site + "/") else up + file.path
        digest = base64.urlsafe_b64encode(bytes.fromhex(file.sha256)).rstrip(b"=").decode()
        rows.append((path, "sha256=" + digest, str(file.size)))
    rows.append((record[len(site) + 1 :], "", ""))
    rows.sort(key=lambda row: row[0].encode())
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()


def shebang_of(python: "Optional[str]") -> bytes:
    """The beginning of a script. `python`: the absolute path of its interpreter, None for the one next to the script."""
    if python is None:
        return SHEBANG
    if len(python) <= LONGEST_SHEBANG and " " not in python:
        return ("#!%s\n" % python).encode()
    # As in pip and distlib: sh runs the second line, and Python reads it as a string.
    return ("#!/bin/sh\n'''exec' %s \"$0\" \"$@\"\n' '''\n" % shlex.quote(python)).encode()


def replace_shebang(body: bytes, shebang: bytes = SHEBANG) -> bytes:
    """A `.data/scripts` file of a wheel in canonical form: `shebang` replaces `#!python` (PEP 427)."""
    line, newline, remainder = body.partition(b"\n")
    if re.fullmatch(rb"#!pythonw?(?:[ \t].*)?\r?", line) and newline:
        return shebang + remainder
    return body


def read_entry_points(data: bytes, where: str) -> "list[EntryPoint]":
    """The scripts that `entry_points.txt` declares, sorted by name (PyPA entry points specification)."""
    import configparser  # slow to import

    parser = configparser.ConfigParser(delimiters=("=",), interpolation=None, strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    try:
        parser.read_string(data.decode())
    except (UnicodeDecodeError, configparser.Error) as error:
        raise RuleError("entry_points.txt of the wheel cannot be read: %s" % error, where) from None
    points = {}
    for section in ("console_scripts", "gui_scripts"):
        for name, value in parser.items(section) if parser.has_section(section) else ():
            match = REFERENCE.fullmatch(value.strip())
            if not match or not SCRIPT_NAME.fullmatch(name) or name in (".", ".."):
                raise RuleError("entry_points.txt declares an invalid script: %s = %s" % (name, value), where)
            points[name] = EntryPoint(name, match.group("module"), match.group("attr"))
    return [points[name] for name in sorted(points)]
