"""A spec from a stranger, whose wheels, trees and facts may be anything; and what becomes of it by every way to make its image."""

from __future__ import annotations

import base64
import gzip
import hashlib
import os
import shutil
import stat
import warnings
import zipfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from repro_env.api.rebuild import rebuild
from repro_env.delivery.builder.sinks import send
from repro_env.delivery.targets.ocilayout import Oci
from repro_env.environment import assembly
from repro_env.schema import codec
from repro_env.schema.artifact import TreeBlob, Wheel
from repro_env.schema.errors import ReproEnvError
from repro_env.schema.image import Layer
from repro_env.schema.progress import Silent
from repro_env.schema.spec import Identity, Spec, WheelHint
from repro_env.specs.argument import Opened
from repro_env.store.store import Store
from tests.fakes import specs, wheels

NAME = "plain"
INFO = "plain-1.0.dist-info"
FILE = "plain-1.0-py3-none-any.whl"
WAYS = ("store", "oci")
"""Unpacked into the store; stitched into an image layout."""


@dataclass
class Stranger:
    """A directory with an honest spec of one bundled wheel, to be made dishonest."""

    top: Path
    spec: Spec

    @classmethod
    def honest(cls, top: Path) -> Stranger:
        (top / "canary").mkdir(parents=True)
        (top / "canary" / "private.txt").write_text("not for anybody\n")
        wheel = wheels.make(top / "wheels", NAME)
        return cls(top, specs.make(top / "repro", {NAME: wheel}, carry=[NAME], overlay={"opt/env/pyvenv.cfg": b"home = /x\n"}))

    def copied(self, top: Path) -> Stranger:
        shutil.copytree(self.top, top, symlinks=True)
        return Stranger(top, self.spec)

    @property
    def directory(self) -> Path:
        return self.top / "repro"

    @property
    def out(self) -> Path:
        return self.top / "out"

    @property
    def blobs(self) -> Path:
        return self.directory / "blobs"

    @property
    def wheel(self) -> Path:
        """The honest one."""
        return self.top / "wheels" / FILE

    @property
    def groups(self) -> list[Layer]:
        return [layer for layer in self.spec.expected.layers if layer.kind == "distributions"]

    def claim(self, identity: Identity, groups: Iterable[Layer] | None = None, hints: Iterable[WheelHint] = ()) -> None:
        """Another identity, with everything that follows from it as it should be."""
        self.spec = msgspec.structs.replace(
            self.spec,
            identity=identity,
            hints=msgspec.structs.replace(self.spec.hints, wheels=tuple(hints) or self.spec.hints.wheels),
            expected=assembly.expected(identity, self.groups if groups is None else list(groups)),
        )
        self.write(self.spec)

    def write(self, spec: Spec) -> None:
        self.spec = spec
        (self.directory / "spec.json").write_bytes(codec.pretty(spec))

    def carry_wheel(self, data: bytes, *, diff_id: str = "") -> None:
        """Let the spec mean this wheel, bundled beside it; `diff_id`: of the layer that it is said to make."""
        digest = hashlib.sha256(data).hexdigest()
        (self.blobs / digest).write_bytes(data)
        wheel = Wheel(name=NAME, version="1.0", filename=FILE, sha256=f"sha256:{digest}", size=len(data))
        (group,) = self.groups
        self.claim(
            msgspec.structs.replace(self.spec.identity, distributions=(wheel,)),
            [msgspec.structs.replace(group, diff_id=diff_id or group.diff_id)],
            [WheelHint(sha256=wheel.sha256, origin="bundled", urls=(), index="")],
        )

    def carry_overlay(self, data: bytes, *, packed: bytes | None = None, size: int | None = None) -> None:
        """Let the overlay be this tar; `packed`: what lies in its place."""
        digest = hashlib.sha256(data).hexdigest()
        (self.blobs / f"{digest}.gz").write_bytes(gzip.compress(data, 1, mtime=0) if packed is None else packed)
        tree = TreeBlob(sha256=f"sha256:{digest}", size=len(data) if size is None else size, files=1)
        self.claim(msgspec.structs.replace(self.spec.identity, overlay=tree))

    def make(self, way: str) -> None:
        """Make the image. Raises what it raises."""
        store = Store.open()
        if way == "store":
            rebuild(Opened(self.spec, self.directory), store=store)
        else:
            send(self.spec, self.directory, store, Oci(self.out, ""), tell=Silent())

    def refused(self, way: str, words: str) -> ReproEnvError:
        """The image is not made: one sentence says why, and nothing is written outside."""
        before = self.state()
        with pytest.raises(ReproEnvError, match=words) as raised:
            self.make(way)
        output = str(raised.value)
        assert "Traceback" not in output
        assert not any(ord(character) < 32 or character in "\x7f\u202e" for character in output), repr(output)
        assert len(output) < 6000
        assert self.state() == before
        assert not (self.out / "index.json").exists()
        store = Store.open()
        assert store.images.get(self.spec.expected.image_id) is None
        assert not list((store.root / "temp").glob("*/*")), "half of something is left"
        return raised.value

    def state(self) -> dict[str, str]:
        """Every path but those of the image layout, with what it is."""
        entries = {}
        for root, directories, files in os.walk(self.top):
            if root == str(self.top):
                directories[:] = [name for name in directories if name != "out"]
            for name in (*directories, *files):
                facts = os.lstat(f"{root}/{name}")
                size = 0 if stat.S_ISDIR(facts.st_mode) else facts.st_size
                entries[f"{root}/{name}"] = f"{facts.st_mode:o} {size} {0 if stat.S_ISDIR(facts.st_mode) else facts.st_mtime_ns}"
        return entries


Member = tuple[zipfile.ZipInfo | str, bytes]


def zipped(
    path: Path,
    members: Iterable[Member],
    *,
    rows: Mapping[str, str] | None = None,
    more: str = "",
    info: str = INFO,
    method: int = zipfile.ZIP_DEFLATED,
) -> bytes:
    """A wheel of these members with a RECORD that lists them. `rows`: what RECORD says of some instead; `more`: at its end."""
    content = [*members, (f"{info}/WHEEL", wheels.WHEEL)]
    lines = []
    with warnings.catch_warnings(), zipfile.ZipFile(path, "w", method) as archive:
        warnings.simplefilter("ignore")  # of names that come twice
        for member, data in content:
            name = member if isinstance(member, str) else member.filename
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            lines.append((rows or {}).get(name, f'"{name}",sha256={digest},{len(data)}') + "\n")
            archive.writestr(member, data)
        archive.writestr(f"{info}/RECORD", "".join(lines) + more + f"{info}/RECORD,,\n")
    return path.read_bytes()


def entry(name: str, mode: int) -> zipfile.ZipInfo:
    """A member that says of itself to be of this mode, type included."""
    answer = zipfile.ZipInfo(name)
    answer.external_attr = mode << 16
    return answer


def patched(data: bytes, name: str, change: Callable[[bytearray, int], None]) -> bytes:
    """The same archive, its directory's row of a member changed: `change` gets all bytes and where the row begins."""
    result = bytearray(data)
    at = result.index(b"PK\x01\x02")
    while result[at + 46 : at + 46 + len(name)] != name.encode():
        at = result.index(b"PK\x01\x02", at + 4)
    change(result, at)
    return bytes(result)


def number(offset: int, value: int, width: int = 4) -> Callable[[bytearray, int], None]:
    """A change of one field of a directory's row (APPNOTE.TXT, 4.3.12)."""

    def change(data: bytearray, at: int) -> None:
        data[at + offset : at + offset + width] = value.to_bytes(width, "little")

    return change
