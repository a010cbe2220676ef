"""Puts the distributions of a captured environment in place, and checks the image file by file. Made by repro-env.

It stands beside spec.json and its Dockerfile, and runs in the image's own Python while the image is built:

    install.py install FOLDER DIGEST INTO     the wheels and the overlay of FOLDER/spec.json, as a tree below INTO
    install.py check FOLDER DIGEST ROOT INTO  each path below ROOT against FOLDER/image-files.txt.gz; the marker, below INTO

A wheel comes from FOLDER/blobs, else from the URLs that the spec names; either way its sha256 has to be the spec's.
What a wheel becomes is canonical rule 1: its files as RECORD lists them, console scripts by one fixed rule, RECORD
sorted, nothing of the installer's own. Standard library only, Python 3.8 and newer.

One file, for all of it travels: it is part of each spec's folder, under one name that stores, pushes and Dockerfiles
know, and whoever builds can read in one place what will run. None of it gets into the image's last stage.
"""

from __future__ import annotations

import base64
import configparser
import csv
import gzip
import hashlib
import io
import json
import os
import re
import shlex
import shutil
import stat
import sys
import tarfile
import time
import urllib.error
import urllib.request
import zipfile
import zlib
from typing import Any, Iterable, Iterator

ENVIRONMENT = "/opt/env"
MARKER = ".repro-env/image.json"
SHARED = ("tmp", "var/tmp")
RULES = {"base": 1, "conda": 1, "canonical": 1, "grouping": 1, "layer": 2}
BUILD = ".repro-env/build"
LISTING = "image-files.txt.gz"
MTIME = 315532800
WHITEOUT = ".wh."
CHUNK = 1 << 20
MAX_TEXT = 64 << 20
MAX_MEMBERS = 1000000
MAX_JSON = 1 << 30
TRIES = 3
TIMEOUT = 60
SHOWN = 40
SPECIAL = (stat.S_IFLNK, stat.S_IFCHR, stat.S_IFBLK, stat.S_IFIFO, stat.S_IFSOCK)
REWRITTEN = ("RECORD", "RECORD.jws", "RECORD.p7s", "INSTALLER", "REQUESTED", "direct_url.json", "uv_cache.json", "uv_build.json")
INSTALLER = b"repro-env\n"
SHEBANG = b"""#!/usr/bin/env -S sh -c 'exec "${0%/*}/python" "$0" "$@"'\n"""
LONGEST_SHEBANG = 124
STUBS = (".dockerenv", "etc/hostname", "etc/hosts", "etc/mtab", "etc/resolv.conf", "dev", "proc", "sys", "run/.containerenv")
"""Paths that engines put into each container that they start, for the run of this check too."""

_SCRIPT_NAME = re.compile(r"[^/\\\s\x00-\x1f\x7f][^/\\\x00-\x1f\x7f]*")
_REFERENCE = re.compile(r"(?P<module>\w+(?:\.\w+)*)\s*:\s*(?P<attr>\w+(?:\.\w+)*)\s*(?:\[.*\])?")


class Refused(Exception):  # noqa: N818
    """Something is not as it has to be: one sentence."""


class Source:
    """A file that a wheel becomes: a member as it is, or bytes that were made."""

    def __init__(
        self, path: str, executable: bool, size: int, sha256: str, member: zipfile.ZipInfo | None = None, data: bytes = b""
    ) -> None:
        self.path = path
        self.executable = executable
        self.size = size
        self.sha256 = sha256
        self.member = member
        self.data = data


# What a wheel becomes (canonical rule 1).


def stem(filename: str) -> tuple[str, str]:
    parts = filename[: -len(".whl")].split("-")
    if len(parts) not in (5, 6) or not filename.endswith(".whl") or not all(parts):
        raise Refused("%s is not a wheel's file name" % shown(filename))
    return parts[0], parts[1]


def dist_info(names: list[str], filename: str) -> str:
    folders = {name.partition("/")[0] for name in names if name.partition("/")[0].endswith(".dist-info") and "/" in name}
    if len(folders) != 1:
        raise Refused("%s has %d top-level .dist-info folders where a wheel has one" % (filename, len(folders)))
    found = folders.pop()
    want = "-".join(plain(part) for part in stem(filename))
    if "-".join(plain(part) for part in found[: -len(".dist-info")].split("-", 1)) != want:
        raise Refused("%s holds %s, which its file name does not say" % (filename, shown(found)))
    return found


def plain(text: str) -> str:
    return re.sub(r"[-_.]+", "-", text).lower()


def canonical(archive: zipfile.ZipFile, filename: str, layout: dict[str, Any], name: str) -> list[Source]:
    """All files of a wheel as `Source`s, sorted by path, relative to the prefix. Raises `Refused`."""
    members = [one for one in archive.infolist() if not one.is_dir()]
    names = [one.filename for one in members]
    if len(names) > MAX_MEMBERS or len(set(names)) != len(names):
        raise Refused("%s has a member twice, or too many" % filename)
    for one in members:
        check_name(one.filename, filename)
        if one.flag_bits & 1 or stat.S_IFMT(one.external_attr >> 16) in SPECIAL:
            raise Refused("%s has %s, which is encrypted, or a symlink, device, pipe or socket" % (filename, one.filename))
    by_name = {one.filename: one for one in members}
    info = dist_info(names, filename)
    data = info[: -len(".dist-info")] + ".data"
    for needed in ("RECORD", "WHEEL"):
        if "%s/%s" % (info, needed) not in by_name:
            raise Refused("%s has no %s/%s" % (filename, info, needed))

    def text(member: str) -> bytes:
        if member not in by_name:
            return b""
        if by_name[member].file_size > MAX_TEXT:
            raise Refused("%s has %s of %d bytes" % (filename, member, by_name[member].file_size))
        return archive.read(member)

    site = layout["purelib"] if is_purelib(text(info + "/WHEEL")) else layout["platlib"]
    first = first_line(layout["python"])
    rows = read_record(text(info + "/RECORD"), filename)
    found: dict[str, Source] = {}

    def add(one: Source) -> None:
        if one.path in found:
            raise Refused("%s installs %s twice" % (filename, one.path))
        found[one.path] = one

    def made(path: str, content: bytes, executable: bool) -> Source:
        return Source(path, executable, len(content), hashlib.sha256(content).hexdigest(), data=content)

    for one in members:
        member = one.filename
        if member in (info + "/RECORD", info + "/RECORD.jws", info + "/RECORD.p7s"):
            continue
        sha256, size = rows.get(member, ("", -1))
        if not sha256 or size not in (-1, one.file_size):
            raise Refused("%s has %s, which its RECORD does not list with a sha256 and this size" % (filename, member))
        folder, _, last = member.rpartition("/")
        if (folder == info and last in REWRITTEN) or "__pycache__" in folder.split("/"):
            continue
        if member.startswith(data + "/scripts/"):
            body = text(member)
            if hashlib.sha256(body).hexdigest() != sha256:
                raise Refused("%s has %s with other bytes than its RECORD says" % (filename, member))
            path = "%s/%s" % (layout["scripts"], member[len(data + "/scripts/") :])
            add(made(path, rewritten(body, first), True))
            continue
        mode = one.external_attr >> 16
        executable = stat.S_ISREG(mode) and bool(mode & 0o111)
        add(Source(placed(member, data, site, layout, name, filename), executable, one.file_size, sha256, member=one))
    missing = set(rows) - set(names) - {info + "/RECORD.jws", info + "/RECORD.p7s"}
    if missing:
        raise Refused("%s lists %s in its RECORD and does not have it" % (filename, shown(min(missing))))
    for script, content in scripts(text(info + "/entry_points.txt"), first, filename):
        path = "%s/%s" % (layout["scripts"], script)
        found.pop(path, None)  # a .data/scripts file of the same name: installers write the entry point over it
        add(made(path, content, True))
    add(made("%s/%s/INSTALLER" % (site, info), INSTALLER, False))
    own = "%s/%s/RECORD" % (site, info)
    if own in found:
        raise Refused("%s installs %s twice" % (filename, own))
    add(made(own, write_record(found.values(), own, site), False))
    return sorted(found.values(), key=lambda one: one.path.encode())


def check_name(member: str, filename: str) -> None:
    parts = member.split("/")
    if not all(parts) or "." in parts or ".." in parts or "\\" in member or not member.isprintable():
        raise Refused("%s has a member named %r" % (filename, member))


def is_purelib(metadata: bytes) -> bool:
    match = re.search(rb"^Root-Is-Purelib:\s*(\S+)\s*$", metadata, re.MULTILINE | re.IGNORECASE)
    return match is not None and match.group(1).lower() == b"true"


def placed(member: str, data: str, site: str, layout: dict[str, Any], name: str, filename: str) -> str:
    if not member.startswith(data + "/"):
        return "%s/%s" % (site, member)
    parts = member.split("/")
    key, path = parts[1], "/".join(parts[2:])
    if path and key in ("purelib", "platlib"):
        return "%s/%s" % (layout[key], path)
    if path and key == "headers":
        return "%s/%s/%s" % (layout["headers"], name, path)
    if path and key == "data":
        return path
    raise Refused("%s has %s, which belongs to no install scheme" % (filename, member))


def read_record(data: bytes, filename: str) -> dict[str, tuple[str, int]]:
    """Path -> (sha256 in hex or nothing, size or -1)."""
    try:
        rows = [row for row in csv.reader(io.StringIO(data.decode()), strict=True) if row]
    except (UnicodeDecodeError, csv.Error) as error:
        raise Refused("RECORD of %s cannot be read: %s" % (filename, error)) from None
    found = {}
    for row in rows:
        if len(row) != 3 or not row[0]:
            raise Refused("RECORD of %s has a row of %d fields" % (filename, len(row)))
        if row[2] and not (row[2].isascii() and row[2].isdigit() and len(row[2]) < 19):
            raise Refused("RECORD of %s has the size %r" % (filename, row[2][:19]))
        found[row[0]] = (unpadded(row[1], filename), int(row[2]) if row[2] else -1)
    return found


def unpadded(field: str, filename: str) -> str:
    kind, _, value = field.partition("=")
    if kind != "sha256":
        return ""
    try:
        raw = base64.urlsafe_b64decode(value + "=" * (-len(value) % 4))
    except ValueError:
        raw = b""
    if len(raw) != 32:
        raise Refused("RECORD of %s has the hash %r" % (filename, field[:100]))
    return raw.hex()


def write_record(sources: Iterable[Source], own: str, site: str) -> bytes:
    up = "../" * len(site.split("/"))
    rows = []
    for one in sources:
        path = one.path[len(site) + 1 :] if one.path.startswith(site + "/") else up + one.path
        digest = base64.urlsafe_b64encode(bytes.fromhex(one.sha256)).rstrip(b"=").decode()
        rows.append((path, "sha256=" + digest, str(one.size)))
    rows.append((own[len(site) + 1 :], "", ""))
    rows.sort(key=lambda row: row[0].encode())
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()


def first_line(python: str | None) -> bytes:
    if python is None:
        return SHEBANG
    if len(python) <= LONGEST_SHEBANG and " " not in python:
        return ("#!%s\n" % python).encode()
    return ("#!/bin/sh\n'''exec' %s \"$0\" \"$@\"\n' '''\n" % shlex.quote(python)).encode()


def rewritten(body: bytes, first: bytes) -> bytes:
    line, newline, rest = body.partition(b"\n")
    if re.fullmatch(rb"#!pythonw?(?:[ \t].*)?\r?", line) and newline:
        return first + rest
    return body


def scripts(data: bytes, first: bytes, filename: str) -> list[tuple[str, bytes]]:
    """(name, content) of each console and GUI script, sorted by name."""
    parser = configparser.ConfigParser(delimiters=("=",), interpolation=None, strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    try:
        parser.read_string(data.decode())
    except (UnicodeDecodeError, configparser.Error) as error:
        raise Refused("entry_points.txt of %s cannot be read: %s" % (filename, shown(str(error)))) from None
    found = {}
    for section in ("console_scripts", "gui_scripts"):
        for name, value in parser.items(section) if parser.has_section(section) else ():
            match = _REFERENCE.fullmatch(value.strip())
            if not match or not _SCRIPT_NAME.fullmatch(name) or name in (".", ".."):
                raise Refused("entry_points.txt of %s has a script that cannot be made: %s" % (filename, shown(name)))
            module, attr = match.group("module"), match.group("attr")
            body = 'import sys\n\nfrom %s import %s\n\nif __name__ == "__main__":\n    sys.exit(%s())\n'
            found[name] = first + (body % (module, attr.partition(".")[0], attr)).encode()
    return sorted(found.items())


# The tree that is made.


def install_wheel(path: str, one: dict[str, Any], layout: dict[str, Any], into: str) -> int:
    """Write what the wheel at `path` becomes below `into`; returns how many files."""
    filename = one["filename"]
    root = joined(into, root_of(layout).lstrip("/"))
    try:
        with zipfile.ZipFile(path) as archive:
            sources = canonical(archive, filename, layout, one["name"])
            for source in sources:
                write(joined(root, source.path), chunks(archive, source), source, filename)
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, EOFError, RuntimeError, OverflowError) as error:
        raise Refused("%s is not a wheel that can be read: %s" % (filename, shown(str(error)))) from None
    return len(sources)


def chunks(archive: zipfile.ZipFile, source: Source) -> Iterator[bytes]:
    if source.member is None:
        yield source.data
        return
    with archive.open(source.member) as content:
        while True:
            chunk = content.read(CHUNK)
            if not chunk:
                return
            yield chunk


def write(path: str, content: Iterable[bytes], source: Source, filename: str) -> None:
    """A new file, in the place of one that another wheel put there; its bytes have to be those that `source` says."""
    make_folder(os.path.dirname(path))
    if os.path.isdir(path):
        raise Refused("%s has the file %s where a folder is" % (filename, source.path))
    if os.path.lexists(path):
        os.unlink(path)
    hasher, size = hashlib.sha256(), 0
    with open(path, "xb") as file:
        for chunk in content:
            size += len(chunk)
            if size > source.size:
                break
            hasher.update(chunk)
            file.write(chunk)
    if size != source.size or hasher.hexdigest() != source.sha256:
        raise Refused("%s has %s with other bytes than its RECORD says" % (filename, source.path))
    finish(path, source.executable)


def finish(path: str, executable: bool) -> None:
    os.chmod(path, 0o755 if executable else 0o644)
    os.utime(path, (MTIME, MTIME))


def make_folder(path: str) -> None:
    try:
        os.makedirs(path, mode=0o755, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise Refused("%s has to be a folder, and is a file" % shown(path)) from None


def install_overlay(path: str, where: str, into: str) -> int:
    """Unpack the tree of what lies beside or instead of the wheels' files; whiteouts remove. Returns how many paths."""
    links: set[str] = set()
    count = 0
    try:
        with tarfile.open(path, "r:") as archive:
            for one in archive:
                name = one.name.rstrip("/")
                folder, _, last = name.rpartition("/")
                target = joined(into, name)
                if any(name[:at] in links for at in range(len(name)) if name[at] == "/"):
                    raise Refused("%s has %s below a symlink" % (where, shown(name)))
                count += 1
                if last.startswith(WHITEOUT):
                    hide(joined(into, (folder + "/" if folder else "") + last[len(WHITEOUT) :]), where)
                elif one.isdir():
                    if os.path.lexists(target) and (os.path.islink(target) or not os.path.isdir(target)):
                        os.unlink(target)
                    make_folder(target)
                elif one.issym():
                    replace(target)
                    os.symlink(one.linkname, target)
                    os.utime(target, (MTIME, MTIME), follow_symlinks=False)
                    links.add(name)
                elif one.isreg() and not one.issparse():
                    replace(target)
                    content = archive.extractfile(one)
                    with open(target, "xb") as file:
                        while content is not None:
                            chunk = content.read(CHUNK)
                            if not chunk:
                                break
                            file.write(chunk)
                    finish(target, bool(one.mode & 0o100))
                else:
                    raise Refused("%s has %s, which is no file, folder or symlink" % (where, shown(name)))
    except tarfile.TarError as error:
        raise Refused("%s is not a tree that can be read: %s" % (where, shown(str(error)))) from None
    return count


def replace(path: str) -> None:
    make_folder(os.path.dirname(path))
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    elif os.path.lexists(path):
        os.unlink(path)


def hide(path: str, where: str) -> None:
    if not os.path.lexists(path):
        raise Refused("%s removes %s, which no wheel brings: build with repro-env rebuild" % (where, shown(path)))
    replace(path)


def joined(root: str, path: str) -> str:
    """A path below a root. Raises `Refused` for one that is not a plain one below it."""
    parts = path.split("/")
    if not path or not all(parts) or "." in parts or ".." in parts or "\0" in path:
        raise Refused("%s is no path inside the image" % shown(path))
    return os.path.join(root, *parts)


def root_of(layout: dict[str, Any]) -> str:
    found: str = (layout["real"] or layout["prefix"]) if layout["in_place"] else ENVIRONMENT
    return found


# Where the bytes come from.


def bring(one: dict[str, Any], hints: dict[str, list[str]], folder: str, temp: str) -> str:
    """A whole wheel on this disk, its sha256 checked: from the folder, else from the first URL that gives it."""
    name = hex_of(one["sha256"])
    held = os.path.join(folder, "blobs", name)
    if os.path.isfile(held):
        if sha256_of(held) != name:
            raise Refused("blobs/%s is not %s as captured: it was damaged or changed" % (name, one["filename"]))
        return held
    if os.path.isfile(held + ".gz"):
        return inflate(one, folder, temp)[0]
    to = os.path.join(temp, "wheel")
    problems: list[str] = []
    for url in hints.get(one["sha256"], ()):
        for left in range(TRIES - 1, -1, -1):
            try:
                fetch(url, to, one)
                return to
            except Refused as error:  # noqa: PERF203 - each try is a download
                problems.append(str(error))
                break
            except (OSError, ValueError) as error:
                gone = isinstance(error, urllib.error.HTTPError) and error.code < 500
                if gone or not left:
                    problems.append("%s: %s" % (url, shown(str(error))))
                    break
                time.sleep(TRIES - left)
    raise Refused(
        "%s could not be had (%s). Put the file into blobs/ under the name %s, or build with repro-env rebuild --builder docker, "
        "which fetches outside of the image" % (one["filename"], "; ".join(problems) or "no URL is known", name)
    )


def fetch(url: str, to: str, one: dict[str, Any]) -> None:
    if not url.startswith(("http://", "https://")):
        raise Refused("%s is no http(s) URL" % shown(url))
    hasher, size = hashlib.sha256(), 0
    request = urllib.request.Request(url, headers={"User-Agent": "repro-env", "Accept-Encoding": "identity"})
    with urllib.request.urlopen(request, timeout=TIMEOUT) as answer, open(to, "wb") as file:
        while True:
            chunk = answer.read(CHUNK)
            if not chunk:
                break
            size += len(chunk)
            if size > one["size"]:
                raise Refused("%s gives more than the %d bytes of %s" % (url, one["size"], one["filename"]))
            hasher.update(chunk)
            file.write(chunk)
    if size < one["size"]:
        raise OSError("%d bytes came of %d" % (size, one["size"]))
    if hasher.hexdigest() != hex_of(one["sha256"]):
        raise Refused("%s gives other bytes than the captured %s" % (url, one["filename"]))


def inflate(blob: dict[str, Any], folder: str, temp: str) -> tuple[str, str]:
    """The bytes of a blob as a file of its own, checked; and how messages name it."""
    name = hex_of(blob["sha256"])
    where = "blobs/%s" % name
    to = os.path.join(temp, "blob")
    hasher, size = hashlib.sha256(), 0
    path = os.path.join(folder, "blobs", name)
    try:
        plainly = os.path.isfile(path)
        with open(path, "rb") if plainly else gzip.open(path + ".gz", "rb") as source, open(to, "wb") as file:
            while size <= blob["size"]:
                chunk = source.read(CHUNK)
                if not chunk:
                    break
                size += len(chunk)
                hasher.update(chunk)
                file.write(chunk)
    except (OSError, EOFError, zlib.error) as error:
        raise Refused("%s cannot be read: %s" % (where, shown(str(error)))) from None
    if size != blob["size"] or hasher.hexdigest() != name:
        raise Refused("%s is not the blob that spec.json names: it was damaged or changed" % where)
    return to, where


def sha256_of(path: str) -> str:
    hasher = hashlib.sha256()
    with open(path, "rb") as file:
        while True:
            chunk = file.read(CHUNK)
            if not chunk:
                return hasher.hexdigest()
            hasher.update(chunk)


def hex_of(digest: str) -> str:
    if not re.fullmatch("sha256:[0-9a-f]{64}", digest):
        raise Refused("%s is no sha256 digest" % shown(digest))
    return digest[len("sha256:") :]


# The two commands.


def load(folder: str, digest: str) -> dict[str, Any]:
    """The spec. Raises `Refused` unless its identity is the one that this Dockerfile was made for."""
    with open(os.path.join(folder, "spec.json"), "rb") as file:
        spec: dict[str, Any] = json.loads(file.read(MAX_JSON).decode())
    if spec["schema"] != "repro-env/spec/1" or spec["identity"]["rules"] != RULES:
        raise Refused("spec.json is of a version that this install.py does not know: capture again, or use a newer repro-env")
    text = json.dumps(spec["identity"], sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    found = "sha256:" + hashlib.sha256(text.encode()).hexdigest()
    if found != digest:
        raise Refused("spec.json is not the one that this Dockerfile was made for: its digest is %s, not %s" % (found, digest))
    return spec


def install(folder: str, digest: str, into: str) -> None:
    spec = load(folder, digest)
    identity = spec["identity"]
    if identity["packages"]:
        raise Refused("conda packages need repro-env rebuild: they are %d" % len(identity["packages"]))
    layouts = [identity["layout"]] + identity["others"]
    hints = {hint["sha256"]: hint["urls"] for hint in spec["hints"]["wheels"]}
    by_label = {label(one): one for one in identity["distributions"]}
    held = [layer["holds"] for layer in spec["expected"]["layers"] if layer["kind"] == "distributions"]
    order = [name for names in held for name in names]
    if sorted(order) != sorted(by_label):
        raise Refused("spec.json contradicts itself: its layers do not hold its distributions")
    temp = into + ".temp"
    os.makedirs(into, mode=0o755, exist_ok=True)
    os.makedirs(temp, exist_ok=True)
    files = 0
    for name in order:
        one = by_label[name]
        say(name)
        files += install_wheel(bring(one, hints, folder, temp), one, layouts[one["place"]], into)
    if identity["overlay"] is not None:
        path, where = inflate(identity["overlay"], folder, temp)
        files += install_overlay(path, where, into)
    shutil.rmtree(temp)
    say("%d files of %d distributions are in place" % (files, len(order)))


def label(one: dict[str, Any]) -> str:
    key = "%s@%d" % (one["name"], one["place"]) if one["place"] else one["name"]
    return "%s==%s" % (key, one["version"])


def mark(identity: dict[str, Any], digest: str, into: str) -> None:
    """The marker that says what the image is, directories for temporary files, a symlink where the captured prefix was."""
    layout = identity["layout"]
    for name in SHARED:
        make_folder(joined(into, name))
        os.chmod(joined(into, name), 0o1777)
    path = joined(into, MARKER)
    make_folder(os.path.dirname(path))
    text = json.dumps({"schema": "repro-env/image/1", "spec": digest}, sort_keys=True, separators=(",", ":")) + "\n"
    with open(path, "w") as file:
        file.write(text)
    finish(path, False)
    if not layout["in_place"]:
        link = joined(into, layout["prefix"].lstrip("/"))
        make_folder(os.path.dirname(link))
        os.symlink(ENVIRONMENT, link)
        os.utime(link, (MTIME, MTIME), follow_symlinks=False)


def check(folder: str, digest: str, root: str, into: str) -> None:
    spec = load(folder, digest)
    os.makedirs(into, mode=0o755)
    mark(spec["identity"], digest, into)
    wanted = listed(os.path.join(folder, LISTING))
    covered = mounts(root)
    there = dict(found(root, covered, skip=(BUILD,)))
    there.update(found(into, (), skip=()))
    problems = compare(wanted, there, covered)
    for line in problems[:SHOWN]:
        say(line)
    if problems:
        more = " (%d more are not shown)" % (len(problems) - SHOWN) if len(problems) > SHOWN else ""
        differ = "1 path differs" if len(problems) == 1 else "%d paths differ" % len(problems)
        raise Refused("the image is not the captured one: %s%s" % (differ, more))
    hidden = sum(is_below(path, covered) for path in wanted)
    say("%d paths are as captured%s" % (len(wanted) - hidden, "; %d lie below mounts of the engine" % hidden if hidden else ""))


def listed(path: str) -> dict[str, tuple[str, str]]:
    """Path -> (kind, sha256 or target) of everything that the image has to hold."""
    try:
        with gzip.open(path, "rb") as file:
            rows = [json.loads(line.decode()) for line in file.read(MAX_JSON).splitlines()]
        return {row[0]: (row[1], row[2]) for row in rows}
    except (OSError, EOFError, zlib.error, ValueError, IndexError, TypeError) as error:
        raise Refused("%s cannot be read: %s" % (LISTING, shown(str(error)))) from None


def found(root: str, covered: Iterable[str], skip: Iterable[str]) -> Iterator[tuple[str, tuple[str, str]]]:
    """(path, (kind, sha256 or target)) of everything below a root, without what is mounted over it."""
    waiting = [""]
    while waiting:
        folder = waiting.pop()
        for one in os.scandir(os.path.join(root, folder) if folder else root):
            path = folder + "/" + one.name if folder else one.name
            if path in covered or path in skip:
                continue
            if one.is_symlink():
                yield path, ("link", os.readlink(one.path))
            elif one.is_dir(follow_symlinks=False):
                yield path, ("dir", "")
                waiting.append(path)
            elif one.is_file(follow_symlinks=False):
                mode = one.stat(follow_symlinks=False).st_mode
                yield path, ("program" if mode & 0o100 else "file", sha256_of(one.path))
            else:
                yield path, ("device, pipe or socket", "")


def mounts(root: str) -> set[str]:
    """Paths below the root that something else is mounted on: the engine's, there while this runs."""
    places: set[str] = set()
    with open("/proc/self/mountinfo", "rb") as file:
        for line in file:
            place = re.sub(rb"\\([0-7]{3})", lambda match: bytes([int(match.group(1), 8)]), line.split()[4])
            text = os.fsdecode(place)
            if text.startswith(root.rstrip("/") + "/") and text != root:
                places.add(text[len(root.rstrip("/")) + 1 :])
    return {place for place in places if place}


def is_below(path: str, places: Iterable[str]) -> bool:
    while path:
        if path in places:
            return True
        path = path.rpartition("/")[0]
    return False


def compare(wanted: dict[str, tuple[str, str]], there: dict[str, tuple[str, str]], covered: Iterable[str]) -> list[str]:
    problems = []
    implied = {folder for path in [*wanted, BUILD, *covered] for folder in above(path)}
    for path in sorted(set(wanted) | set(there)):
        want, have = wanted.get(path), there.get(path)
        if want == have or (want and is_below(path, covered)):
            continue
        name = "/" + shown(path)
        if have is None:
            problems.append("missing: %s" % name)
        elif want is None:
            if is_below(path, STUBS) or (path in implied and have[0] == "dir"):
                continue
            problems.append("not in the capture: %s" % name)
        elif want[0] != have[0]:
            problems.append("differs: %s is a %s, and was a %s" % (name, have[0], want[0]))
        else:
            problems.append("differs: %s is %s, and was %s" % (name, shown(have[1]), shown(want[1])))
    return problems


def above(path: str) -> Iterator[str]:
    while "/" in path:
        path = path.rpartition("/")[0]
        yield path


def shown(text: str) -> str:
    text = text if text.isprintable() else ascii(text)
    return text if len(text) <= 300 else text[:300] + "..."


def say(text: str) -> None:
    print("repro-env: %s" % text, flush=True)


def main(words: list[str]) -> int:
    os.umask(0o022)
    try:
        if len(words) == 4 and words[0] == "install":
            install(*words[1:])
        elif len(words) == 5 and words[0] == "check":
            check(*words[1:])
        else:
            raise Refused("usage: install.py install FOLDER DIGEST INTO | check FOLDER DIGEST ROOT INTO")
    except Refused as error:
        say("error: %s" % error)
        return 1
    except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        say("error: %s: %s" % (type(error).__name__, shown(str(error))))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
