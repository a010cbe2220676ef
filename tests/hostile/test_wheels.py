"""Wheels from a stranger: whatever is in them, no image is made, a sentence says why, and nothing is written outside.

Each case goes both ways: unpacked into the store, and stitched into an image layout without being unpacked.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import random
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from repro_env.environment.wheels.layers import known_layer
from repro_env.oci import wheel as rule
from repro_env.oci import wheellayers
from repro_env.oci.entry import sort_with_parents
from repro_env.oci.gzipencoder import stitch_layer
from repro_env.oci.layer import diff_id
from repro_env.oci.wheellayers import move_below
from repro_env.schema.errors import ReproEnvError
from repro_env.store.packages.wheelfile import WheelContents, open_facts
from repro_env.store.store import Store
from tests.fakes import wheels
from tests.hostile.stranger import FILE, INFO, NAME, WAYS, Stranger, entry, number, patched, zipped

Make = Callable[[Path], bytes]
CODE = b"NAME = 'plain'\n"
BOMB = zlib.compress(bytes(64 << 20), 9)[2:-4]
"""A raw deflate stream of 64 MiB of zeros."""
HUGE = 1 << 45
"""More than any disk here has."""


def named(name: str) -> Make:
    return lambda path: zipped(path, [("plain.py", CODE), (name, b"climbed\n")])


def typed(mode: int, data: bytes = b"/etc/passwd") -> Make:
    return lambda path: zipped(path, [("plain.py", CODE), (entry("plain.txt", mode), data)])


def listed(rows: dict[str, str], more: str = "") -> Make:
    return lambda path: zipped(path, [("plain.py", CODE)], rows=rows, more=more)


def lying(offset: int, value: int, width: int = 4) -> Make:
    """One field of the directory's row of plain.py."""
    return lambda path: patched(zipped(path, [("plain.py", CODE)]), "plain.py", number(offset, value, width))


def stored_lie(path: Path) -> bytes:
    """A stored member that says to be longer than its bytes."""
    data = zipped(path, [("plain.py", CODE)], rows={"plain.py": f"plain.py,{digest(CODE)},100000"}, method=zipfile.ZIP_STORED)
    return patched(data, "plain.py", number(24, 100000))


def digest(data: bytes) -> str:
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def bomb(size: int) -> Make:
    """A member whose stream inflates to 64 MiB, and which says to have `size` bytes, everywhere."""

    def make(path: Path) -> bytes:
        row = f"plain.py,{digest(CODE)},{size}"
        data = zipped(path, [("plain.py", BOMB)], rows={"plain.py": row}, method=zipfile.ZIP_STORED)

        def change(archive: bytearray, at: int) -> None:
            number(10, 8, 2)(archive, at)
            number(24, size)(archive, at)

        return patched(data, "plain.py", change)

    return make


def enormous(path: Path) -> bytes:
    """A member of 32 TiB, as the zip64 field of the directory says, with honest-looking rows."""
    extra = struct.pack("<HHQ", 1, 8, HUGE)
    answer = entry("plain.py", stat.S_IFREG | 0o644)
    data = zipped(path, [(answer, CODE)], rows={"plain.py": f"plain.py,{digest(CODE)},{HUGE}"})
    at = data.index(b"PK\x01\x02")
    row = bytearray(data[at : at + 46 + len("plain.py")])
    row[24:28] = b"\xff\xff\xff\xff"
    row[30:32] = len(extra).to_bytes(2, "little")
    rest = data[at + len(row) :]
    end = rest.index(b"PK\x05\x06")
    tail = bytearray(rest[end:])
    tail[12:16] = (int.from_bytes(tail[12:16], "little") + len(extra)).to_bytes(4, "little")
    return data[:at] + bytes(row) + extra + rest[:end] + bytes(tail)


def overlapping(path: Path) -> bytes:
    """Two members, one stream: what makes the bombs of millions of members."""
    data = zipped(path, [("plain.py", CODE), ("other.py", CODE)])
    first = data.index(b"PK\x01\x02")
    return patched(data, "other.py", number(42, int.from_bytes(data[first + 42 : first + 46], "little")))


def long_record(path: Path) -> bytes:
    """A RECORD of 80 MiB."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr("plain.py", CODE)
        archive.writestr(f"{INFO}/WHEEL", wheels.WHEEL)
        archive.writestr(f"{INFO}/RECORD", b"\n" * (80 << 20))
    return path.read_bytes()


def two_infos(path: Path) -> bytes:
    return zipped(path, [("plain.py", CODE), ("other-1.0.dist-info/METADATA", b"Name: other\n")])


def as_tar(_: Path) -> bytes:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w:gz") as archive:
        archive.addfile(tarfile.TarInfo("../../climbed.py"))
    return target.getvalue()


def cut(path: Path) -> bytes:
    return zipped(path, [("plain.py", CODE * 1000)])[:-30]


def garbled(path: Path) -> bytes:
    """A flipped byte in the stream of a file."""
    data = bytearray(zipped(path, [("plain.py", CODE * 100)]))
    data[30 + len("plain.py") + 5] ^= 0x40
    return bytes(data)


def junk_after_the_stream(path: Path) -> bytes:
    """The directory says that the stream is longer than it is: bytes of the next member's header would be in the layer."""
    data = zipped(path, [("plain.py", CODE), ("zlast.py", CODE)])
    at = data.index(b"PK\x01\x02")
    return patched(data, "plain.py", number(20, int.from_bytes(data[at + 20 : at + 24], "little") + 1))


def zip_in_zip(path: Path) -> bytes:
    """Its real directory is hidden in a comment, after one that says there is nothing."""
    return zipped(path, [("plain.py", CODE)]) + b"PK\x05\x06" + bytes(18)


def not_utf8(path: Path) -> bytes:
    data = zipped(path, [("plain.py", CODE), ("gr\N{LATIN SMALL LETTER U WITH DIAERESIS}n.py", CODE)])
    at = data.rindex("gr\N{LATIN SMALL LETTER U WITH DIAERESIS}n.py".encode())
    return data[: at + 2] + b"\xff\xfe" + data[at + 4 :]


def nameless(path: Path) -> bytes:
    """`zipfile` itself cannot write it: a name of one NUL, which it reads as none."""
    data = zipped(path, [("plain.py", CODE), ("x", CODE)])
    return patched(data, "x", lambda archive, at: archive.__setitem__(at + 46, 0))


CASES: dict[str, tuple[Make, str]] = {
    "a member named ../": (named("../climbed.py"), "has a member with the invalid name"),
    "a member that climbs from inside": (named("plain/../../climbed.py"), "has a member with the invalid name"),
    "an absolute member": (named("/etc/cron.d/climbed"), "has a member with the invalid name"),
    "a member with backslashes": (named("..\\climbed.py"), "has a member with the invalid name"),
    "a member with an empty part": (named("plain//climbed.py"), "has a member with the invalid name"),
    "a member named .": (named("./plain2.py"), "has a member with the invalid name"),
    "a member with a line break": (named("plain\nRUN id.py"), "has a member with the invalid name|RECORD"),
    "a member with an escape": (named("plain\x1b[2J.py"), "has a member with the invalid name"),
    "a member that reads backwards": (named("plain\u202eyp.exe"), "has a member with the invalid name"),
    "data that climbs": (named("plain-1.0.data/data/../../climbed"), "has a member with the invalid name"),
    "a script that climbs": (named("plain-1.0.data/scripts/../../climbed"), "has a member with the invalid name"),
    "an unknown scheme": (named("plain-1.0.data/etc/passwd"), "install scheme"),
    "a scheme without a path": (named("plain-1.0.data/data"), "install scheme"),
    "a symlink": (typed(stat.S_IFLNK | 0o777), "a symlink, device, pipe or socket"),
    "a character device": (typed(stat.S_IFCHR | 0o666), "device, pipe or socket"),
    "a block device": (typed(stat.S_IFBLK | 0o666), "device, pipe or socket"),
    "a named pipe": (typed(stat.S_IFIFO | 0o666), "device, pipe or socket"),
    "a socket": (typed(stat.S_IFSOCK | 0o666), "device, pipe or socket"),
    "an encrypted member": (lying(8, 1, 2), "encrypted"),
    "a member twice": (lambda path: zipped(path, [("plain.py", CODE), ("plain.py", CODE)]), "member twice"),
    "a member twice, other bytes": (lambda path: zipped(path, [("plain.py", CODE), ("plain.py", b"x")]), "member twice"),
    "two members for one path": (
        lambda path: zipped(path, [("plain.py", CODE), ("plain-1.0.data/purelib/plain.py", CODE)]),
        "installs .* twice",
    ),
    "a RECORD of its own, as data": (
        lambda path: zipped(path, [("plain.py", CODE), (f"plain-1.0.data/purelib/{INFO}/RECORD", b"")]),
        "installs .* twice|RECORD",
    ),
    "RECORD does not list a member": (listed({"plain.py": "other.txt,,"}), "RECORD"),
    "RECORD lists what is not there": (listed({}, more=f"gone.py,{digest(b'')},0\n"), "lists 'gone.py'"),
    "RECORD says another size": (listed({"plain.py": f"plain.py,{digest(CODE)},1"}), "RECORD"),
    "RECORD says no hash": (listed({"plain.py": "plain.py,,"}), "RECORD"),
    "RECORD says md5": (listed({"plain.py": "plain.py,md5=XrY7u-Ae7tCTyyK7j1rNww,15"}), "RECORD"),
    "RECORD says a hash of another length": (listed({"plain.py": "plain.py,sha256=AAAA,15"}), "RECORD"),
    "RECORD says a negative size": (listed({"plain.py": f"plain.py,{digest(CODE)},-7"}), "RECORD"),
    "RECORD says a size without end": (listed({"plain.py": f"plain.py,{digest(CODE)},{'9' * 5000}"}), "RECORD"),
    "RECORD says one path twice": (listed({}, more=f"plain.py,{digest(b'')},0\n"), "RECORD|twice"),
    "RECORD climbs": (listed({}, more=f"../../../etc/passwd,{digest(b'')},0\n"), "RECORD"),
    "RECORD is not text": (listed({"plain.py": 'plain.py,"'}), "RECORD of the wheel cannot be read"),
    "a RECORD of 80 MiB": (long_record, "RECORD' is larger than"),
    "scripts with other bytes than RECORD says": (
        lambda path: zipped(
            path,
            [("plain.py", CODE), ("plain-1.0.data/scripts/tool", b"#!python\nX")],
            rows={"plain-1.0.data/scripts/tool": f"plain-1.0.data/scripts/tool,{digest(b'#!python Y')},10"},
        ),
        "does not have the sha256 in RECORD",
    ),
    "entry points that climb": (
        lambda path: zipped(
            path, [("plain.py", CODE), (f"{INFO}/entry_points.txt", b"[console_scripts]\n../../climbed = plain:main\n")]
        ),
        "entry_points|names|climbed",
    ),
    "entry points with code in them": (
        lambda path: zipped(
            path, [("plain.py", CODE), (f"{INFO}/entry_points.txt", b"[console_scripts]\nx = plain:main();import os\n")]
        ),
        "entry_points|x",
    ),
    "entry points that are not UTF-8": (
        lambda path: zipped(path, [("plain.py", CODE), (f"{INFO}/entry_points.txt", b"\xff\xfe")]),
        "entry_points.txt of the wheel cannot be read",
    ),
    "a size of 0": (lying(24, 0), "RECORD"),
    "a size of 4 GiB": (lying(24, 0xFFFFFFFE), "RECORD"),
    "a size of 32 TiB, all agreeing": (enormous, r"the build needs|size and CRC"),
    "another CRC": (lying(16, 12345), "size and CRC|damaged"),
    "a stream longer than the archive": (lying(20, 0x7FFFFFFF), "overlaps with"),
    "a stream that begins behind the archive": (lying(42, 0x7FFFFFFF), "overlaps with|wheel cannot be read"),
    "a stored member that lies about its length": (stored_lie, "size and CRC|overlaps|expected"),
    "an unknown compression": (lying(10, 12, 2), "method 12|compress"),
    "a RECORD by bzip2": (lambda path: zipped(path, [("plain.py", CODE)], method=zipfile.ZIP_BZIP2), "method 12"),
    "a RECORD by LZMA": (lambda path: zipped(path, [("plain.py", CODE)], method=zipfile.ZIP_LZMA), "method 14"),
    "deflate64": (lying(10, 9, 2), "method 9|compress"),
    "a bomb that says 15 bytes": (bomb(15), "size and CRC|larger than"),
    "a bomb that says 1 GiB": (bomb(1 << 30), "size and CRC|expected"),
    "members that share a stream": (overlapping, "overlaps with another member"),
    "junk after a stream": (junk_after_the_stream, "overlaps with another member|after the end"),
    "two .dist-info directories": (two_infos, "2 top-level"),
    "no .dist-info": (lambda path: zipped(path, [("plain.py", CODE)], info="plain"), "0 top-level"),
    "another distribution's .dist-info": (
        lambda path: zipped(path, [("plain.py", CODE)], info="other-1.0.dist-info"),
        "does not match its file name",
    ),
    "a tar": (as_tar, "wheel cannot be read"),
    "a gzip": (lambda _: gzip.compress(CODE), "wheel cannot be read"),
    "nothing": (lambda _: b"", "wheel cannot be read|size"),
    "a wheel that is cut": (cut, "wheel cannot be read"),
    "a name that is not UTF-8": (not_utf8, "wheel cannot be read"),
    "a member without a name": (nameless, "wheel cannot be read"),
    "a directory behind the directory": (zip_in_zip, "0 top-level|wheel cannot be read"),
    "a flipped byte": (garbled, "cannot be|damaged|size and CRC"),
    "other bytes than the layer says": (lambda path: zipped(path, [("plain.py", b"NAME = 'other'\n")]), "not the expected"),
    "more files than the layer has": (lambda path: zipped(path, [("plain.py", CODE), ("more.py", b"")]), "not the expected"),
}


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Stranger:
    return Stranger.honest(tmp_path_factory.mktemp("stranger") / "honest")


@pytest.fixture
def stranger(template: Stranger, tmp_path: Path) -> Stranger:
    return template.copied(tmp_path / "stranger")


@pytest.mark.parametrize("way", WAYS)
def test_an_honest_wheel_is_accepted(stranger: Stranger, way: str) -> None:
    """What the cases below change."""
    stranger.make(way)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", CASES)
def test_a_hostile_wheel_is_refused(stranger: Stranger, name: str, way: str) -> None:
    make, words = CASES[name]
    data = make(stranger.top / "made.whl")
    stranger.carry_wheel(data)
    stranger.refused(way, words)


@pytest.mark.parametrize("count", [pytest.param(250), pytest.param(20_000, marks=pytest.mark.soak)])
def test_damaged_wheels_are_refused_or_read_equally_by_both_ways(tmp_path: Path, count: int) -> None:
    """Bytes flipped, cut out, put in, set to numbers that matter: a sentence, or the same tar by both ways."""
    choice, path = random.Random(count), tmp_path / FILE
    data = [
        zipped(path, [("plain.py", CODE * 50), ("empty.py", b""), (f"{INFO}/METADATA", b"Name: plain\n")], method=method)
        for method in (zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED)
    ]
    taken = 0
    for _ in range(count):
        path.write_bytes(damaged(choice.choice(data), choice))
        try:
            installed = rule.canonical(open_facts(path, FILE), wheels.layout(), name=NAME)
            contents, entries = WheelContents(path, installed), sort_with_parents(installed.entries)
            proven = hashlib.sha256()
            files = [entry for entry in entries if entry.kind == "file"]
            packed = b"".join(stitch_layer(((file, contents.chunks(file)) for file in files), proven.update))
            unpacked = diff_id((file, contents.chunks(file)) for file in files)
        except ReproEnvError as error:
            assert len(str(error)) < 2000  # noqa: PT017
            continue
        taken += 1
        assert unpacked == "sha256:" + proven.hexdigest() == "sha256:" + hashlib.sha256(gzip.decompress(packed)).hexdigest()
    assert 0 < taken < count / 2


def damaged(data: bytes, choice: random.Random) -> bytes:
    made = bytearray(data)
    for _ in range(choice.choice((1, 1, 2, 8))):
        at = choice.randrange(len(made))
        how = choice.randrange(5)
        if how == 0:
            made[at] ^= 1 << choice.randrange(8)
        elif how == 1:
            made[at] = choice.choice((0, 1, 8, 9, 127, 128, 255))
        elif how == 2:
            del made[at : at + choice.randrange(1, 30)]
        elif how == 3:
            made[at:at] = choice.randbytes(choice.randrange(1, 20))
        else:
            made[at : at + 4] = choice.choice((b"\xff\xff\xff\xff", bytes(4), b"\xff\xff\xff\x7f", b"PK\x05\x06", b"PK\x06\x06"))
    return bytes(made)


def wheel_diff_id(stranger: Stranger, data: bytes) -> str:
    """The diff ID of what a wheel becomes, as whoever made it would say it: true."""
    path = stranger.top / FILE
    path.write_bytes(data)
    installed = rule.canonical(open_facts(path, FILE), stranger.spec.identity.layout, name=NAME)
    contents = WheelContents(path, installed)
    own = {entry.path: entry for entry in installed.entries}
    placed = sort_with_parents(move_below(entry, installed.root) for entry in installed.entries)
    return diff_id(
        (entry, contents.chunks(own[entry.path.removeprefix(f"{installed.root}/")]) if entry.kind == "file" else ())
        for entry in placed
    )


@pytest.mark.parametrize("way", WAYS)
def test_a_record_that_lies_teaches_nothing_about_the_honest_wheel(stranger: Stranger, way: str) -> None:
    """The same RECORD, other bytes, and a spec that says what they truly make: that image is made, and no other is touched."""
    honest = stranger.spec
    with zipfile.ZipFile(stranger.wheel) as archive:
        held = {entry: archive.read(entry) for entry in archive.namelist()}
    held["plain.py"] = held["plain.py"].swapcase()
    lying = stranger.top / "lying.whl"
    with zipfile.ZipFile(lying, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in held.items():
            archive.writestr(name, data)
    stranger.carry_wheel(lying.read_bytes(), diff_id=wheel_diff_id(stranger, lying.read_bytes()))
    stranger.make(way)
    installed = rule.canonical(open_facts(stranger.wheel, FILE), honest.identity.layout, name=NAME)
    assert known_layer(wheellayers.layer((NAME,), {NAME: installed}), facts=Store.open().facts) is None
    stranger.write(honest)
    stranger.make(way)
    assert known_layer(wheellayers.layer((NAME,), {NAME: installed}), facts=Store.open().facts) in (
        None,
        stranger.groups[0].diff_id,
    )


@pytest.mark.parametrize("way", WAYS)
def test_a_file_may_not_be_a_directory_too(stranger: Stranger, way: str) -> None:
    """With a layer that says so truly: what unpacks it would have to follow or to replace."""
    data = zipped(stranger.top / "made.whl", [("plain.py", CODE), ("plain", b"file"), ("plain/inner.py", b"")])
    stranger.carry_wheel(data, diff_id=wheel_diff_id(stranger, data))
    stranger.refused(way, "directory of its own layer|below a file or symlink of its own layer")
