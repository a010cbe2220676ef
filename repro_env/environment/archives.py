"""What the identification of wheels and of conda packages shares.

An archive is found on this machine or downloaded, it is bundled if no other machine can download it, and its layer is computed
from the installed files.
"""

from __future__ import annotations

import contextlib
import functools
import ipaddress
import re
import urllib.parse
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from repro_env.environment.python.sites import Site
from repro_env.environment.secrets.bundles import SecretSearch
from repro_env.environment.wheels import layers
from repro_env.io.files import FileContents, keys_of
from repro_env.io.http import TRIES, is_silent, may_recover, pause
from repro_env.io.indexhttp import Session
from repro_env.oci import conda, wheel, wheellayers
from repro_env.oci.entry import Contents, Entry
from repro_env.oci.wheel import Installed
from repro_env.schema import codec, redact
from repro_env.schema.artifact import CondaPackage, Wheel
from repro_env.schema.environment import Layout
from repro_env.schema.errors import ArtifactError, NetworkError
from repro_env.schema.image import Layer, LayerKind
from repro_env.schema.spec import Rules, WheelHint
from repro_env.schema.text import Url
from repro_env.store.packages.condafile import CondaContents, UnpackedPackage
from repro_env.store.packages.wheelfile import WheelContents
from repro_env.store.store import Store

_THREADS = 8
_FORM = "installed-form"
"""Kind of these facts, by the versions of the rules, the facts of an archive and the prefix."""
LOCAL = "from a local file, which no other machine can reach"
LOOPBACK = "from a server of this machine, which no other machine can reach"
_SIGNED = "its URL holds a token or signature, which is not written down"

Item = TypeVar("Item")
Answer = TypeVar("Answer")
Artifact = TypeVar("Artifact", Wheel, CondaPackage)
Facts = TypeVar("Facts", wheel.Facts, conda.Facts)


class IdentifiedArchive(msgspec.Struct, Generic[Artifact, Facts], frozen=True):
    """A distribution or conda package, identified as an archive. The cache has it in this form."""

    artifact: Artifact
    hint: WheelHint
    facts: Facts
    file: str
    """The path of a bundled archive on this machine; empty for a downloadable one."""
    why: str
    """Why it is bundled; empty if it is downloadable."""

    def is_available(self, store: Store) -> bool:
        """Whether it can be downloaded, or is still on this machine."""
        return not self.why or existing_file(self.artifact.sha256, self.file, store) is not None

    def installed(self, layout: Layout, store: Store) -> Installed:
        """Its installed form at a prefix. The store keeps it, because RECORD takes long to read and to write."""
        key = codec.digest_of(msgspec.msgpack.encode((Rules(), self.facts, layout, self.artifact.name)))
        return store.facts.keep(_FORM, key, Installed, lambda: self._form(layout))

    def _form(self, layout: Layout) -> Installed:
        if isinstance(self.facts, conda.Facts):
            return conda.canonical(self.facts, layout)
        return wheel.canonical(self.facts, layout, name=self.artifact.name)

    def path(self, store: Store) -> Path:
        """The path of the archive. It is downloaded into the store if it is not on this machine."""
        path = existing_file(self.artifact.sha256, self.file, store)
        if path is not None:
            return path
        url = next(iter(self.hint.urls), "")
        if not url:
            what = "this file is not in the store and has no URL"
            raise ArtifactError(what, where=self.artifact.filename, hint="capture again on the machine that has it")
        with Session() as session:
            return store.blobs.put(session.download(url), self.artifact.sha256, where=url, size=self.artifact.size)


IdentifiedWheel = IdentifiedArchive[Wheel, wheel.Facts]
IdentifiedPackage = IdentifiedArchive[CondaPackage, conda.Facts]
Identified = Sequence[IdentifiedWheel] | Sequence[IdentifiedPackage]


def identify_all(identifier: Callable[[], Callable[[Item], Answer]], items: Sequence[Item]) -> list[Answer]:
    """Identify all items, with several threads. The answers are in the order of the items.

    What an index did not answer is asked again after all other items, with a new `identifier()`, as long as each round identifies
    more; an item with an answer that will be the same again is not. Raises the first `NetworkError` if items remain; the answers are in
    the cache of the next capture. Other errors stop at once.
    """
    answers: dict[int, Answer] = {}
    failed: dict[int, NetworkError] = {}
    for attempt in range(TRIES):
        count = len(answers)
        _ask(identifier(), items, answers, failed)
        if not failed:
            break
        errors = [error for error in failed.values() if may_recover(error)]
        error = next(iter(errors or failed.values()))
        is_last = attempt == TRIES - 1 or not errors
        if is_last or (len(answers) == count and (attempt > 1 or is_silent(error))):
            kept = f"; {len(answers):,} of {len(items):,} packages are identified, and the next capture starts from there"
            raise NetworkError(error.what, where=error.where, hint=error.hint + (kept if answers else "")) from error
        pause(attempt + 1)
    return [answers[number] for number in range(len(items))]


def _ask(
    identify: Callable[[Item], Answer], items: Sequence[Item], answers: dict[int, Answer], failed: dict[int, NetworkError]
) -> None:
    """Identify the items that have no answer yet. Notes the failures; stops when nothing but failures comes back."""
    in_a_row = 0

    def ask(number: int) -> None:
        nonlocal in_a_row
        if in_a_row < _THREADS:
            try:
                answers[number] = identify(items[number])
                failed.pop(number, None)
                in_a_row = 0
            except NetworkError as error:
                failed[number] = error
                in_a_row += 1

    done = {*answers, *(number for number, error in failed.items() if not may_recover(error))}
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="identify") as pool:
        try:
            list(pool.map(ask, [number for number in range(len(items)) if number not in done]))
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def why_bundled(url: str) -> str:
    """Why an archive from this URL has to be bundled; empty if other machines can download it from there."""
    if not url.startswith(("http://", "https://")):
        return LOCAL
    if not downloadable(url):
        return LOOPBACK
    return "" if codec.fits(url, Url) and redact.url(url) == url else _SIGNED


def downloadable(url: str) -> bool:
    """Whether another machine could download a URL: it is http(s), and its host is not this machine."""
    try:
        parts = urllib.parse.urlsplit(url)
        host = (parts.hostname or "").rstrip(".")
    except ValueError:
        return False
    if parts.scheme not in ("http", "https") or not host or host == "localhost" or host.endswith(".localhost"):
        return False
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return not re.fullmatch(r"[0-9.]+|0x[0-9a-f.x]*", host)  # resolvers accept 127.1 and 2130706433 as addresses
    mapped = getattr(address, "ipv4_mapped", None) or address
    return not (mapped.is_loopback or mapped.is_unspecified)


def existing_file(sha256: str, file: str, store: Store) -> Path | None:
    """The file with this digest on this machine: in the store, else `file` if it still has these bytes."""
    path = store.blobs.path(sha256)
    if path is None and Path(file).is_file() and "sha256:" + store.hashes.of_file(Path(file)) == sha256:
        path = Path(file)
    return path


@contextlib.contextmanager
def _open(archive: IdentifiedWheel | IdentifiedPackage, installed: Installed, layout: Layout, store: Store) -> Iterator[Contents]:
    """The content of the files that an archive installs at a prefix."""
    path = archive.path(store)
    if isinstance(archive.artifact, Wheel):
        with contextlib.closing(WheelContents(path, installed)) as contents:
            yield contents
    else:
        with UnpackedPackage(path, archive.artifact.filename, layout.prefix, store.temp) as package:
            yield CondaContents(package, installed)


def layers_of(
    identified: Identified,
    installed: Mapping[str, Installed],
    altered: Mapping[str, frozenset[str]],
    sites: Sequence[Site],
    store: Store,
    kind: LayerKind,
) -> tuple[Layer, ...]:
    """The layers with their diff IDs, from the installed files, and from the archives for files that differ.

    `installed`: by key (`Wheel.key`). `altered`: the paths that differ, by key.
    """
    sources: dict[str, layers.DistributionContents] = {}
    live = [FileContents(site.prefix, keys=keys_of(site.found)) for site in sites]
    with ExitStack() as stack:
        for archive in identified:
            key = archive.artifact.key
            (site,) = (site for site in sites if site.owns(key))
            changed = altered[key] & set(installed[key].members)
            original = stack.enter_context(_open(archive, installed[key], site.layout, store)) if changed else None
            sources[key] = layers.DistributionContents(installed[key], live[site.number], changed, original)
        versions = {archive.artifact.key: archive.artifact.version for archive in identified}
        return layers.diff_ids(wheellayers.layers(installed), sources, versions, facts=store.facts, kind=kind)


def search(
    secrets: SecretSearch,
    identified: Identified,
    installed: Mapping[str, Installed],
    altered: Mapping[str, frozenset[str]],
    sites: Sequence[Site],
    store: Store,
) -> None:
    """Search the bundled archives for secrets, unless they were searched before.

    Repacked wheels were searched when they were made. Conda packages from a server are public. What a wheel installed is read from
    there if it is not `altered` (by key): nothing is decompressed, and the CRCs of the wheel show that it is the same.
    """
    for archive in identified:
        key, sha256 = archive.artifact.key, archive.artifact.sha256
        is_public = isinstance(archive.artifact, CondaPackage) and archive.why not in (LOCAL, LOOPBACK)
        if archive.hint.origin != "bundled" or is_public or secrets.is_clean(sha256):
            continue
        form = installed[key]
        (site,) = (site for site in sites if site.owns(key))
        members = [entry for entry in form.entries if entry.path in form.members]
        live = FileContents(site.prefix, keys=keys_of(site.found))
        with _open(archive, form, site.layout, store) as contents:
            read = functools.partial(_read, contents, live, altered[key])
            secrets.search_archive(sha256, members, read, f"{archive.artifact.filename}/".__add__)


def _read(archive: Contents, live: Contents, altered: frozenset[str], entry: Entry) -> Iterable[bytes]:
    """The content of a file that an archive installs unchanged."""
    if not isinstance(archive, WheelContents) or entry.path in altered:
        return archive.chunks(entry)
    return archive.chunks(entry, live.chunks(entry))
