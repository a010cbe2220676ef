"""Install the distributions of a captured environment, and check every file of the image. Written by repro-env.

This file is next to spec.json and its Dockerfile, and runs in the image's own Python while the image is built:

    install.py install SPEC DIGEST OUT     install the wheels and the overlay of SPEC/spec.json into the directory OUT
    install.py check SPEC DIGEST ROOT OUT  compare every path below ROOT with SPEC/image-files.txt.gz, write the marker into OUT

Wheels are read from SPEC/blobs, or downloaded from the URLs in the spec. Their sha256 must be the one in the spec.
They are installed by canonical rule 1, which is also the rule of `repro-env rebuild`: the text of `wheelrule.py` replaces
its import below when this file is written. Standard library only, Python 3.8 and later. This file is not part of the final image.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import itertools
import json
import os
import re
import shutil
import struct
import sys
import tarfile
import time
import types
import urllib.request
import zipfile
import zlib
from typing import Any, Iterable, Iterator

from repro_env.guest.wheelrule import RuleError, installed_files, read_facts

ENVIRONMENT = "/opt/env"
MARKER = ".repro-env/image.json"
SHARED = ("tmp", "var/tmp")
RULES = {"base": 1, "conda": 1, "canonical": 1, "grouping": 1, "layer": 2}
BUILD = ".repro-env/build"
LISTING = "image-files.txt.gz"
MTIME = 315532800
WHITEOUT = ".wh."
CHUNK = 1 << 20
MAX_JSON = 1 << 30
ATTEMPTS = 3
TIMEOUT = 60
MAX_PROBLEMS = 40
STUBS = (".dockerenv", "etc/hostname", "etc/hosts", "etc/mtab", "etc/resolv.conf", "dev", "proc", "sys", "run/.containerenv")
"""Paths that engines add to every container, including the one in which this check runs."""


BROKEN_ZIP = (zipfile.BadZipFile, zlib.error, struct.error, ValueError, IndexError)
"""What `zipfile` raises for invalid archives. It raises IndexError for an empty name."""


class InstallError(Exception):
    """The installation or the check failed. The text is a sentence that names the file."""


# The tree of installed files.


def install_wheel(path: str, distribution: dict[str, Any], layout: dict[str, Any], out: str) -> int:
    """Install the wheel at `path` below `out`. Return the number of files."""
    filename = distribution["filename"]
    root = join(out, root_of(layout).lstrip("/"))
    try:
        with zipfile.ZipFile(path) as archive:
            files = installed_files(read_facts(archive, filename), types.SimpleNamespace(**layout), distribution["name"])
            for file in files:
                target = join(root, file.path)
                make_directory(os.path.dirname(target))
                if os.path.isdir(target):
                    raise RuleError("%s is a file, but is already a directory" % file.path, filename)
                with archive.open(file.member) if file.member else io.BytesIO(file.data) as source:
                    if copy(source, target, file.size) != (file.size, file.sha256):
                        raise RuleError("the size or sha256 of %s differs from RECORD" % file.path, filename)
                set_metadata(target, file.executable)
    except RuleError as error:
        raise InstallError("%s: %s" % (printable(error.where), printable(error.what))) from None
    except (*BROKEN_ZIP, NotImplementedError, EOFError, RuntimeError, OverflowError) as error:
        raise InstallError("%s is not a readable wheel: %s" % (filename, printable(str(error)))) from None
    return len(files)


def copy(source: Any, target: str, limit: int) -> tuple[int, str]:
    """Copy a file that is open for reading, at most a chunk more than `limit` bytes. Return the size and the sha256."""
    if os.path.lexists(target):  # of another wheel, or of an earlier attempt
        os.unlink(target)
    hasher, size = hashlib.sha256(), 0
    with open(target, "xb") as file:
        while size <= limit:
            chunk = source.read(CHUNK)
            if not chunk:
                break
            size += len(chunk)
            hasher.update(chunk)
            file.write(chunk)
    return size, hasher.hexdigest()


def set_metadata(path: str, executable: bool) -> None:
    os.chmod(path, 0o755 if executable else 0o644)
    os.utime(path, (MTIME, MTIME))


def make_directory(path: str) -> None:
    try:
        os.makedirs(path, mode=0o755, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise InstallError("%s must be a directory, but is a file" % printable(path)) from None


def install_overlay(path: str, label: str, out: str) -> int:
    """Unpack the overlay, a tar of the files that differ from those of the wheels. Return the number of its members.

    A whiteout removes a path. `label`: the name of the overlay in messages.
    """
    links: set[str] = set()
    count = 0
    try:
        with tarfile.open(path, "r:") as archive:
            for member in archive:
                name = member.name.rstrip("/")
                directory, _, last = name.rpartition("/")
                target = join(out, name)
                if any(parent in links for parent in parents(name)):
                    raise InstallError("%s contains %s, which is below a symlink" % (label, printable(name)))
                count += 1
                if last.startswith(WHITEOUT):
                    remove(join(out, (directory + "/" if directory else "") + last[len(WHITEOUT) :]), label)
                elif member.isdir():
                    if os.path.lexists(target) and (os.path.islink(target) or not os.path.isdir(target)):
                        os.unlink(target)
                    make_directory(target)
                elif member.issym():
                    clear(target)
                    os.symlink(member.linkname, target)
                    os.utime(target, (MTIME, MTIME), follow_symlinks=False)
                    links.add(name)
                elif member.isreg() and not member.issparse():
                    clear(target)
                    copy(archive.extractfile(member), target, member.size)
                    set_metadata(target, bool(member.mode & 0o100))
                else:
                    raise InstallError("%s contains %s, which is not a file, directory or symlink" % (label, printable(name)))
    except tarfile.TarError as error:
        raise InstallError("%s is not a readable tar: %s" % (label, printable(str(error)))) from None
    return count


def clear(path: str) -> None:
    """Remove the file or directory at a path, if any, and create its parents."""
    make_directory(os.path.dirname(path))
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    elif os.path.lexists(path):
        os.unlink(path)


def remove(path: str, label: str) -> None:
    if not os.path.lexists(path):
        raise InstallError(
            "%s removes %s, which no wheel installs; build this image with `repro-env rebuild`" % (label, printable(path))
        )
    clear(path)


def join(root: str, path: str) -> str:
    """Join a root and a relative path. Raises `InstallError` if the path is absolute or contains `.` or `..`."""
    parts = path.split("/")
    if not path or not all(parts) or "." in parts or ".." in parts or "\0" in path:
        raise InstallError("%s is not a valid path in an image" % printable(path))
    return os.path.join(root, *parts)


def root_of(layout: dict[str, Any]) -> str:
    """The prefix of an environment in the image."""
    root: str = (layout["real"] or layout["prefix"]) if layout["in_place"] else ENVIRONMENT
    return root


# Wheels and blobs.


def find_wheel(wheel: dict[str, Any], hints: dict[str, list[str]], spec_directory: str, temp: str) -> str:
    """The path of a wheel, from the spec's directory or downloaded from the first URL that has it. Its sha256 is checked."""
    name = hex_of(wheel["sha256"])
    bundled = os.path.join(spec_directory, "blobs", name)
    if os.path.isfile(bundled):
        if sha256_of(bundled) != name:
            raise InstallError(
                "blobs/%s differs from the captured %s: the file was damaged or changed" % (name, wheel["filename"])
            )
        return bundled
    if os.path.isfile(bundled + ".gz"):
        return inflate(wheel, spec_directory, temp)[0]
    target = os.path.join(temp, "wheel")
    problems: list[str] = []
    urls = hints.get(wheel["sha256"], ())
    for attempt, url in itertools.product(range(ATTEMPTS), urls):
        time.sleep(attempt)
        try:
            download(url, target, wheel)
            return target
        except (InstallError, OSError, ValueError) as error:
            problems.append("%s: %s" % (printable(url), printable(str(error))))
    raise InstallError(
        "%s could not be downloaded (%s). Put the wheel into blobs/ under the name %s, or build from a bundle file written by "
        "`repro-env pack --all`, which contains every wheel"
        % (wheel["filename"], "; ".join(problems[: len(urls)]) or "no known URL", name)
    )


def download(url: str, target: str, wheel: dict[str, Any]) -> None:
    """Download a wheel. Raises `InstallError` if its size or sha256 is wrong, or `OSError`."""
    if not url.startswith(("http://", "https://")):
        raise InstallError("this is not an http(s) URL")
    request = urllib.request.Request(url, headers={"User-Agent": "repro-env", "Accept-Encoding": "identity"})
    with urllib.request.urlopen(request, timeout=TIMEOUT) as response:
        size, sha256 = copy(response, target, wheel["size"])
    if (size, sha256) != (wheel["size"], hex_of(wheel["sha256"])):
        raise InstallError("the file differs from the captured %s (%d bytes)" % (wheel["filename"], wheel["size"]))


def inflate(blob: dict[str, Any], spec_directory: str, temp: str) -> tuple[str, str]:
    """The path of a decompressed, checked copy of a blob, and the name of the blob in messages."""
    name = hex_of(blob["sha256"])
    label = "blobs/%s" % name
    target = os.path.join(temp, "blob")
    path = os.path.join(spec_directory, "blobs", name)
    try:
        with open(path, "rb") if os.path.isfile(path) else gzip.open(path + ".gz", "rb") as source:
            copied = copy(source, target, blob["size"])
    except (OSError, EOFError, zlib.error) as error:
        raise InstallError("%s cannot be read: %s" % (label, printable(str(error)))) from None
    if copied != (blob["size"], name):
        raise InstallError("%s differs from the blob in spec.json: the file was damaged or changed" % label)
    return target, label


def sha256_of(path: str) -> str:
    hasher = hashlib.sha256()
    with open(path, "rb") as file:
        for chunk in iter(lambda: file.read(CHUNK), b""):
            hasher.update(chunk)
    return hasher.hexdigest()


def hex_of(digest: str) -> str:
    if not re.fullmatch("sha256:[0-9a-f]{64}", digest):
        raise InstallError("%s is not a sha256 digest" % printable(digest))
    return digest[len("sha256:") :]


# The two commands.


def load(spec_directory: str, digest: str) -> dict[str, Any]:
    """Load the spec. Raises `InstallError` unless `digest` is the digest of its identity."""
    with open(os.path.join(spec_directory, "spec.json"), "rb") as file:
        spec: dict[str, Any] = json.loads(file.read(MAX_JSON).decode())
    if spec["schema"] != "repro-env/spec/2" or spec["identity"]["rules"] != RULES:
        raise InstallError("this install.py does not support the version of spec.json; capture again, or use a newer repro-env")
    text = json.dumps(spec["identity"], sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    actual = "sha256:" + hashlib.sha256(text.encode()).hexdigest()
    if actual != digest:
        raise InstallError("spec.json does not belong to this Dockerfile: its digest is %s instead of %s" % (actual, digest))
    return spec


def install(spec_directory: str, digest: str, out: str) -> None:
    """Install all wheels and the overlay of a spec below `out`."""
    spec = load(spec_directory, digest)
    identity = spec["identity"]
    if identity["packages"]:
        raise InstallError(
            "spec.json has %d conda packages; build this image with `repro-env rebuild`" % len(identity["packages"])
        )
    layouts = [identity["layout"]] + identity["other_layouts"]
    hints = {hint["sha256"]: hint["urls"] for hint in spec["hints"]["wheels"]}
    distributions = {label_of(distribution): distribution for distribution in identity["distributions"]}
    layers = [layer["holds"] for layer in spec["expected"]["layers"] if layer["kind"] == "distributions"]
    order = [label for labels in layers for label in labels]
    if sorted(order) != sorted(distributions):
        raise InstallError("spec.json is inconsistent: its layers do not contain exactly its distributions")
    temp = out + ".temp"
    os.makedirs(out, mode=0o755, exist_ok=True)
    os.makedirs(temp, exist_ok=True)
    files = 0
    for label in order:
        wheel = distributions[label]
        log(label)
        files += install_wheel(find_wheel(wheel, hints, spec_directory, temp), wheel, layouts[wheel["site"]], out)
    if identity["overlay"] is not None:
        files += install_overlay(*inflate(identity["overlay"], spec_directory, temp), out)
    shutil.rmtree(temp)
    log("installed %d files of %d distributions" % (files, len(order)))


def label_of(distribution: dict[str, Any]) -> str:
    key = "%s@%d" % (distribution["name"], distribution["site"]) if distribution["site"] else distribution["name"]
    return "%s==%s" % (key, distribution["version"])


def write_marker(identity: dict[str, Any], digest: str, out: str) -> None:
    """Write the marker with the digest of the spec, the temporary directories, and a symlink at the captured prefix."""
    layout = identity["layout"]
    for name in SHARED:
        make_directory(join(out, name))
        os.chmod(join(out, name), 0o1777)
    path = join(out, MARKER)
    make_directory(os.path.dirname(path))
    text = json.dumps({"schema": "repro-env/image/1", "spec": digest}, sort_keys=True, separators=(",", ":")) + "\n"
    with open(path, "w") as file:
        file.write(text)
    set_metadata(path, False)
    if not layout["in_place"]:
        link = join(out, layout["prefix"].lstrip("/"))
        make_directory(os.path.dirname(link))
        os.symlink(ENVIRONMENT, link)
        os.utime(link, (MTIME, MTIME), follow_symlinks=False)


def check(spec_directory: str, digest: str, root: str, out: str) -> None:
    """Write the marker below `out`, and compare every path of the image with the capture."""
    spec = load(spec_directory, digest)
    os.makedirs(out, mode=0o755)
    write_marker(spec["identity"], digest, out)
    expected = read_listing(os.path.join(spec_directory, LISTING))
    mounts = mount_points(root)
    actual = dict(scan(root, mounts, skip=(BUILD,)))
    actual.update(scan(out, (), skip=()))
    problems = compare(expected, actual, mounts)
    for problem in problems[:MAX_PROBLEMS]:
        log(problem)
    if problems:
        more = " (%d more are not shown)" % (len(problems) - MAX_PROBLEMS) if len(problems) > MAX_PROBLEMS else ""
        differ = "1 path differs" if len(problems) == 1 else "%d paths differ" % len(problems)
        raise InstallError("the image differs from the capture: %s%s" % (differ, more))
    hidden = sum(is_below(path, mounts) for path in expected)
    skipped = "; skipped %d paths below mounts of the engine" % hidden if hidden else ""
    log("%d paths are as captured%s" % (len(expected) - hidden, skipped))


def read_listing(path: str) -> dict[str, tuple[str, str]]:
    """Path -> (kind, sha256 or target) of everything that the image must contain."""
    try:
        with gzip.open(path, "rb") as file:
            rows = [json.loads(line.decode()) for line in file.read(MAX_JSON).splitlines()]
        return {row[0]: (row[1], row[2]) for row in rows}
    except (OSError, EOFError, zlib.error, ValueError, IndexError, TypeError) as error:
        raise InstallError("%s cannot be read: %s" % (LISTING, printable(str(error)))) from None


def scan(root: str, mounts: Iterable[str], skip: Iterable[str]) -> Iterator[tuple[str, tuple[str, str]]]:
    """(path, (kind, sha256 or target)) of everything below a root, except mount points and skipped paths."""
    queue = [""]
    while queue:
        directory = queue.pop()
        for entry in os.scandir(os.path.join(root, directory) if directory else root):
            path = directory + "/" + entry.name if directory else entry.name
            if path in mounts or path in skip:
                continue
            if entry.is_symlink():
                yield path, ("link", os.readlink(entry.path))
            elif entry.is_dir(follow_symlinks=False):
                yield path, ("dir", "")
                queue.append(path)
            elif entry.is_file(follow_symlinks=False):
                mode = entry.stat(follow_symlinks=False).st_mode
                yield path, ("program" if mode & 0o100 else "file", sha256_of(entry.path))
            else:
                yield path, ("device, pipe or socket", "")


def mount_points(root: str) -> set[str]:
    """The mount points below the root: those of the engine, which exist only while the container runs."""
    points: set[str] = set()
    with open("/proc/self/mountinfo", "rb") as file:
        for line in file:
            point = re.sub(rb"\\([0-7]{3})", lambda match: bytes([int(match.group(1), 8)]), line.split()[4])
            text = os.fsdecode(point)
            if text.startswith(root.rstrip("/") + "/") and text != root:
                points.add(text[len(root.rstrip("/")) + 1 :])
    return {point for point in points if point}


def is_below(path: str, directories: Iterable[str]) -> bool:
    """Whether a path is one of the directories, or below one."""
    return path in directories or any(parent in directories for parent in parents(path))


def compare(expected: dict[str, tuple[str, str]], actual: dict[str, tuple[str, str]], mounts: Iterable[str]) -> list[str]:
    """A message for each path that differs. Mounts and stubs of the engine, and parents of known paths, are ignored."""
    problems = []
    implied = {parent for path in [*expected, BUILD, *mounts] for parent in parents(path)}
    for path in sorted(set(expected) | set(actual)):
        old, new = expected.get(path), actual.get(path)
        if old == new or (old and is_below(path, mounts)):
            continue
        name = "/" + printable(path)
        if new is None:
            problems.append("missing: %s" % name)
        elif old is None:
            if is_below(path, STUBS) or (path in implied and new[0] == "dir"):
                continue
            problems.append("not in the capture: %s" % name)
        elif old[0] != new[0]:
            problems.append("differs: %s is a %s, but was a %s" % (name, new[0], old[0]))
        else:
            problems.append("differs: %s is %s, but was %s" % (name, printable(new[1]), printable(old[1])))
    return problems


def parents(path: str) -> Iterator[str]:
    """The directories above a path, the nearest first."""
    while "/" in path:
        path = path.rpartition("/")[0]
        yield path


def printable(text: str) -> str:
    """A text for a message: printable, and at most 300 characters."""
    text = text if text.isprintable() else ascii(text)
    return text if len(text) <= 300 else text[:300] + "..."


def log(text: str) -> None:
    print("repro-env: %s" % text, flush=True)


def main(arguments: list[str]) -> int:
    os.umask(0o022)
    try:
        if len(arguments) == 4 and arguments[0] == "install":
            install(*arguments[1:])
        elif len(arguments) == 5 and arguments[0] == "check":
            check(*arguments[1:])
        else:
            raise InstallError("usage: install.py install SPEC DIGEST OUT | check SPEC DIGEST ROOT OUT")
    except InstallError as error:
        log("error: %s" % error)
        return 1
    except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        log("error: %s: %s" % (type(error).__name__, printable(str(error))))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
