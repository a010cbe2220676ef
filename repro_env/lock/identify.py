"""Which wheel is this? Find candidates, prove one, else carry.

A candidate is the wheel when what it becomes by the canonical rule is what the installed RECORD lists:
every file by path, sha256 and size, and nothing else but what installers write. That takes a wheel's central
directory and a few small members, so mostly a range of its last bytes. File names and tags only say which
candidate to try first. Whether the files are still as RECORD lists them is not asked here: what was edited
goes to the overlay.
"""

from __future__ import annotations

import hashlib
import re
import time
import urllib.parse
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal

import msgspec
from packaging.tags import Tag, parse_tag

from repro_env.capture.distributions import InstalledDistribution
from repro_env.image import wheel
from repro_env.image.wheel import Facts
from repro_env.io.http import Session, local_path
from repro_env.lock import repack as repacking
from repro_env.lock.evidence import Witness
from repro_env.lock.index import Candidate, Indexes, candidate, linkable, tags_of
from repro_env.lock.search import Search
from repro_env.model import codec, redact
from repro_env.model.artifact import Wheel
from repro_env.model.environment import Layout
from repro_env.model.errors import ArtifactError, NetworkError
from repro_env.model.sources import NONE, PackageSources
from repro_env.model.spec import WheelHint
from repro_env.model.talk import Tell
from repro_env.model.text import Url
from repro_env.store.store import Store
from repro_env.store.wheelfile import open_facts

THREADS = 8
MOST_EXACT = 32
"""Candidates tried whose tags are those of WHEEL: more than that is no index but somebody's joke."""
MOST_OTHERS = 8
"""Candidates tried whose tags are not those of WHEEL."""
ASK_AGAIN = 600
"""Seconds for which "no index has such a wheel" is believed, of an installation that has not changed since."""
_RULE = 1
"""Part of the cache's key; a change of what a proof means needs the next number."""
_LOCAL = "from a local file, which no other machine can reach"
_LOOPBACK = "from an index of this machine, which no other machine can reach"
_SIGNED = "its URL holds a token or signature, which is not written down"


class Identified(msgspec.Struct, frozen=True):
    """One distribution as a wheel."""

    wheel: Wheel
    hint: WheelHint
    facts: Facts | None
    """None where the store has them: `facts_of`."""
    file: Path | None
    """The whole wheel, when it is on disk; always for one that is carried."""
    why: str
    """Why it is carried; empty when it is linked."""


class _Proof(msgspec.Struct, frozen=True):
    """A proven wheel, as the store remembers it."""

    wheel: Wheel
    origin: Literal["index", "direct", "carried"]
    url: str
    """Redacted; of a `file:` wheel not."""
    index: str


class _Absence(msgspec.Struct, frozen=True):
    """No wheel was found, as the store remembers it."""

    asked: int
    """Seconds since 1970."""
    why: str


def identify(
    distributions: Sequence[InstalledDistribution],
    layout: Layout,
    *,
    place: int = 0,
    store: Store,
    talk: Tell,
    search: Search | None = None,
    sources: PackageSources = NONE,
) -> tuple[tuple[Identified, ...], tuple[str, ...]]:
    """Every distribution of a place as a wheel, sorted by name; and the configured indexes and find-links, redacted.

    Left out are those that no wheel can hold: without RECORD, installed outside the install scheme, or
    contradicting themselves. Their files are then plain files of the environment; `talk` says so.
    `sources` adds to the indexes that pip is configured with. `search` looks through what has to be repacked; what holds a secret is not.
    Raises `NetworkError` when an index that may have the wheel cannot be asked, `LockError` when it answers with
    something else than an index page.
    """
    label = f"identifying {len(distributions):,} distributions"
    with talk.progress(0, label), Session(prefix=layout.prefix, cache=store.facts, sources=sources) as session:
        finder = _Search(session, layout, store)
        with ThreadPoolExecutor(THREADS, thread_name_prefix="identify") as pool:
            try:
                found = list(pool.map(finder.proven, distributions))
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
    done = []
    for dist, (one, why) in zip(distributions, found, strict=True):
        if one is None:
            one = _repacked(dist, layout, store, why, talk, search)
        if one is not None:
            done.append(msgspec.structs.replace(one, wheel=msgspec.structs.replace(one.wheel, place=place)))
    return tuple(sorted(done, key=lambda one: one.wheel.name)), session.shown


def whole(one: Identified, store: Store) -> Path:
    """The whole wheel of an identified distribution, fetched into the store when it is not there yet."""
    path = one.file or store.blobs.path(one.wheel.sha256)
    if path is not None:
        return path
    url = next(iter(one.hint.urls), "")
    if not url:
        raise ArtifactError("is nowhere to be had", where=one.wheel.filename, hint="capture again where it is")
    with Session(cache=store.facts) as session:
        return store.blobs.put(session.download(url), one.wheel.sha256, where=url, size=one.wheel.size)


def facts_of(one: Identified, store: Store) -> Facts:
    """What is in the wheel. Raises as `whole` when the store has lost it."""
    if one.facts is not None:
        return one.facts
    with Session(cache=store.facts) as session:
        known = Witness(session, store).recall(one.wheel.sha256, one.wheel.filename, next(iter(one.hint.urls), ""))
    return known.facts if known is not None else open_facts(whole(one, store), one.wheel.filename)


def differs(facts: Facts, dist: InstalledDistribution, layout: Layout) -> str:
    """Why a wheel is not what is installed, in a few words; empty when it is. Raises `ArtifactError` for no wheel."""
    installed = wheel.canonical(facts, layout, name=dist.facts.name)
    rows = {row.path: row for row in repacking.rows(dist, layout)}
    for entry in installed.entries:
        row = rows.get(entry.path)
        if entry.path in installed.literals:
            # Scripts of entry points need not be there: ensurepip leaves some out. What names them was compared.
            if entry.path in installed.bodies and row is None:
                return f"the wheel has the script {entry.path} too"
        elif row is None:
            return f"the wheel has {entry.path} too"
        elif row.sha256 != entry.sha256 or row.size not in (-1, entry.size):
            return f"{entry.path} differs"
    own = {entry.path for entry in installed.entries}
    for path in rows:
        if path not in own and not repacking.written_by_installers(path, dist) and not path.startswith(layout.scripts + "/"):
            return f"{path} is not in the wheel"
    return ""


class _Search:
    """The search for all distributions of one environment; called from several threads."""

    def __init__(self, session: Session, layout: Layout, store: Store) -> None:
        self._session = session
        self._indexes = Indexes(session)
        self._witness = Witness(session, store)
        self._layout = layout
        self._store = store

    def proven(self, dist: InstalledDistribution) -> tuple[Identified | None, str]:
        """The proven wheel; or None and why there is none."""
        facts = dist.facts
        if not facts.has_record:
            return None, "it has no RECORD"
        direct = facts.direct_url if _is_wheel_url(facts.direct_url) and not facts.editable else ""
        if facts.direct_url and not direct:
            return None, f"{'an editable install of' if facts.editable else 'installed from'} {redact.url(facts.direct_url)}"
        key = self._key(dist)
        known = self._known(key)
        if known is not None:
            return known, known.why
        absent = self._store.facts.recall("no-wheel", key, _Absence)
        if absent is not None and 0 <= time.time() - absent.asked < ASK_AGAIN:
            return None, absent.why
        offers = self._indexes.offers(facts.name, facts.version)
        first = candidate(direct, "") if direct else None
        reasons: list[str] = []
        failures = list(offers.failures)
        for one in _ranked(offers.candidates, dist, first):
            try:
                proof, found, path = self._prove(one, dist, "direct" if one is first else "index")
            except (_NotThisError, ArtifactError, NetworkError) as error:
                # A direct URL may be gone for good, and what it gave is then carried; an index should answer.
                if isinstance(error, NetworkError) and one is not first:
                    failures.append(error)
                reasons.append(str(error))
                continue
            self._store.facts.put("proof", key, codec.canonical(proof))
            # The facts of all wheels together take much memory: they are read again one by one.
            identified = _identified(proof, None if self._witness.knows(proof.wheel.sha256, proof.url) else found, path)
            return identified, identified.why
        if failures:
            raise failures[0]
        why = "; ".join([*_told(reasons), *offers.refusals]) or "no configured index has a wheel of this version"
        if not direct and not offers.refusals:
            self._store.facts.put("no-wheel", key, codec.canonical(_Absence(int(time.time()), why)))
        return None, why

    def _key(self, dist: InstalledDistribution) -> str:
        digests = [hashlib.sha256(data).hexdigest() for data in (dist.record, dist.wheel, dist.entry_points)]
        # By its redacted URL: a password could be recovered from the hash of a URL that holds it.
        facts = msgspec.structs.replace(dist.facts, direct_url=redact.url(dist.facts.direct_url))
        locked = [file.sha256 for file in self._session.sources.files.get(facts.name, ())]
        return codec.digest((_RULE, facts, digests, self._layout, self._session.shown, locked))

    def _known(self, key: str) -> Identified | None:
        proof = self._store.facts.recall("proof", key, _Proof)
        if proof is None:
            return None
        if not self._witness.knows(proof.wheel.sha256, proof.url):
            return None
        path = None
        if proof.origin == "carried":
            path = self._store.blobs.path(proof.wheel.sha256) or self._same_file(proof)
            if path is None:
                return None
        return _identified(proof, None, path)

    def _same_file(self, proof: _Proof) -> Path | None:
        path = local_path(proof.url)
        if path is None or not path.is_file() or self._witness.digest_of(path) != proof.wheel.sha256:
            return None
        return path.resolve()

    def _prove(
        self, one: Candidate, dist: InstalledDistribution, origin: Literal["index", "direct"]
    ) -> tuple[_Proof, Facts, Path | None]:
        """Raises `_NotThisError` or `ArtifactError` when it is another, `NetworkError` when it cannot be had."""
        seen = self._witness.look(one)
        if reason := differs(seen.facts, dist, self._layout):
            raise _NotThisError(f"the installed files differ from {one.filename}: {reason}")
        url = one.url if local_path(one.url) is not None else redact.url(one.url)
        linked = one.linkable and _is_url(url) and url == _without_user(one.url)
        path = seen.path
        if not linked and path is None:
            path, _ = self._witness.fetch(one)
        made = Wheel(name=dist.facts.name, version=dist.facts.version, filename=one.filename, sha256=seen.digest, size=seen.size)
        return _Proof(made, origin if linked else "carried", url, one.index), seen.facts, path


class _NotThisError(Exception):
    """Why a candidate is not the wheel."""


def _identified(proof: _Proof, found: Facts | None, path: Path | None) -> Identified:
    linked = proof.origin != "carried"
    hint = WheelHint(sha256=proof.wheel.sha256, origin=proof.origin, urls=(proof.url,) if linked else (), index=proof.index)
    why = "" if linked else _LOCAL if proof.url.startswith("file:") else _SIGNED if linkable(proof.url) else _LOOPBACK
    return Identified(proof.wheel, hint, found, path, why)


def _repacked(
    dist: InstalledDistribution, layout: Layout, store: Store, why: str, talk: Tell, search: Search | None
) -> Identified | None:
    name = f"{dist.facts.name} {dist.facts.version}"
    if not dist.facts.has_record:
        talk.detail(f"{name} has no RECORD: its files are held as plain files")
        return None
    try:
        made = repacking.repack(dist, layout, store=store, search=search)
    except ArtifactError as error:
        talk.detail(f"{name} cannot be made a wheel ({error}): its files are held as plain files")
        return None
    if made.problems:
        more = f" and {len(made.problems) - 1} more" if len(made.problems) > 1 else ""
        why += f"; its RECORD lists what is not in it: {made.problems[0]}{more}"
    hint = WheelHint(sha256=made.wheel.sha256, origin="repacked", urls=(), index="")
    return Identified(made.wheel, hint, made.facts, made.path, redact.line(why))


def _told(reasons: Sequence[str]) -> list[str]:
    """Why no candidate is the wheel: how many there were, and what is wrong with the first, which fits best."""
    count = f"none of {len(reasons)} wheels of this version matches: " if len(reasons) > 1 else ""
    return [count + reasons[0]] if reasons else []


def _ranked(candidates: Sequence[Candidate], dist: InstalledDistribution, direct: Candidate | None) -> list[Candidate]:
    """Where it says it is from, and those with WHEEL's own tags and build, linkable ones first; then a few others.

    The others could run on the same interpreter: some wheels were renamed after they were built.
    """
    try:
        wanted: frozenset[Tag] = frozenset().union(*(parse_tag(tag) for tag in dist.facts.tags))
    except ValueError:
        wanted = frozenset()
    kinds = {_kind(tag) for tag in wanted}
    exact = [direct] if direct is not None else []
    others = []
    for one in candidates:
        tags, build = tags_of(one.filename)
        if tags == wanted and build == dist.facts.build:
            exact.append(one)
        elif not wanted or kinds & {_kind(tag) for tag in tags}:
            others.append(one)
    return sorted(exact, key=lambda one: not one.linkable)[:MOST_EXACT] + others[:MOST_OTHERS]


def _kind(tag: Tag) -> tuple[str, str, str]:
    """`manylinux_2_17_x86_64` and `linux_x86_64` are of one kind; `any` and other machines are of others."""
    match = re.fullmatch(r"(?:many|musl)?linux(?:\d+|_\d+_\d+)?_(\w+)", tag.platform)
    return tag.interpreter, tag.abi, match[1] if match else tag.platform


def _is_wheel_url(url: str) -> bool:
    return url.startswith(("http://", "https://", "file://")) and candidate(url, "").filename.endswith(".whl")


def _without_user(url: str) -> str:
    parts = urllib.parse.urlsplit(url)
    return urllib.parse.urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def _is_url(text: str) -> bool:
    try:
        msgspec.convert(text, type=Url)
    except msgspec.ValidationError:
        return False
    return True
