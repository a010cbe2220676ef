"""Identify installed distributions as wheels: find candidates, prove one of them, or bundle the distribution.

A candidate is the installed wheel if its canonical form is what the installed RECORD lists: the same paths, sha256 and sizes,
and no other files except those that installers write. The wheel's central directory and a few small members are enough for
this, so usually only the end of the file is downloaded. File names and tags only decide which candidate is tried first. Files
that were edited since they were installed are not compared here: they go to the overlay.
"""

from __future__ import annotations

import functools
import hashlib
import re
import urllib.parse
from collections.abc import Sequence
from typing import Literal

from msgspec.structs import replace
from packaging.tags import Tag, parse_tag

from repro_env.environment import archives
from repro_env.environment.archives import IdentifiedWheel
from repro_env.environment.python.distributions import InstalledDistribution
from repro_env.environment.secrets.bundles import SecretSearch
from repro_env.environment.wheels import configuration
from repro_env.environment.wheels import repack as repacking
from repro_env.environment.wheels.index import Candidate, CandidateReader, Indexes, candidate_from_url, tags_of
from repro_env.io.indexhttp import Session
from repro_env.oci import wheel
from repro_env.oci.wheel import Facts
from repro_env.schema import codec, redact
from repro_env.schema.artifact import Wheel
from repro_env.schema.environment import Layout
from repro_env.schema.errors import ArtifactError, NetworkError
from repro_env.schema.messages import shorten
from repro_env.schema.progress import Tell
from repro_env.schema.sources import NONE, PackageSources
from repro_env.schema.spec import WheelHint
from repro_env.store.packages.wheelfile import FACTS
from repro_env.store.store import Store

MAX_EXACT = 32
"""The number of candidates to try that have the tags in WHEEL; no serious index has more."""
MAX_OTHERS = 8
"""The number of candidates to try that have other tags."""
_RULE = 3
"""Part of the cache's key; increment it when proofs change."""


def identify(
    distributions: Sequence[InstalledDistribution],
    layout: Layout,
    *,
    site_number: int = 0,
    store: Store,
    tell: Tell,
    search: SecretSearch | None = None,
    sources: PackageSources = NONE,
    asks: bool = False,
) -> tuple[IdentifiedWheel, ...]:
    """Identify all distributions of a site. Returns their wheels, sorted by name.

    Distributions that no wheel can contain are left out, with a message to `tell`: those without RECORD, outside the install
    scheme, or with contradictory metadata. Their files are then plain files of the environment. `sources` adds indexes to those
    of pip's configuration. `asks`: do not use kept answers, since wheels may be gone. `search` searches distributions before they are repacked; those with secrets are not repacked. Raises
    `NetworkError` if an index that may have the wheel does not answer, `LockError` if its answer is not an index page.
    """
    label = f"identifying {len(distributions):,} distributions"
    with tell.progress(0, label), Session(prefix=layout.prefix, sources=sources) as session:
        answers = archives.identify_all(lambda: _Identifier(session, layout, store, asks=asks).identify, distributions)
    wheels = []
    for dist, (identified, why) in zip(distributions, answers, strict=True):
        if identified is None:
            identified = _repack(dist, layout, store, why, tell, search)
        if identified is not None:
            wheels.append(replace(identified, artifact=replace(identified.artifact, site=site_number)))
    return tuple(sorted(wheels, key=lambda identified: identified.artifact.name))


def difference(facts: Facts, dist: InstalledDistribution, layout: Layout) -> str:
    """Why a wheel is not the installed distribution; empty if it is. Raises `ArtifactError` for an invalid wheel."""
    installed = wheel.canonical(facts, layout, name=dist.facts.name)
    rows = {row.path: row for row in repacking.rows(dist, layout)}
    for entry in installed.entries:
        row = rows.get(entry.path)
        if entry.path in installed.literals:
            # Scripts of entry points may be missing: ensurepip omits some. Their definitions in entry_points.txt were compared.
            if entry.path in installed.bodies and row is None:
                return f"only the wheel has the script {entry.path}"
        elif row is None:
            return f"only the wheel has {entry.path}"
        elif row.sha256 != entry.sha256 or row.size not in (-1, entry.size):
            return f"{entry.path} differs"
    own = {entry.path for entry in installed.entries}
    for path in rows:
        if path not in own and not repacking.written_by_installers(path, dist) and not path.startswith(layout.scripts + "/"):
            return f"{path} is not in the wheel"
    return ""


class _Identifier:
    """Identifies the distributions of an environment; its methods are called from several threads."""

    def __init__(self, session: Session, layout: Layout, store: Store, *, asks: bool) -> None:
        self._session = session
        self._indexes = Indexes(session)
        self._reader = CandidateReader(session, store)
        self._layout = layout
        self._store = store
        self._asks = asks

    @functools.cached_property
    def _shown(self) -> tuple[str, ...]:
        return configuration.shown(self._session, self._layout.prefix, self._store.facts)

    def identify(self, dist: InstalledDistribution) -> tuple[IdentifiedWheel | None, str]:
        """The proven wheel, or None and the reason."""
        facts = dist.facts
        if not facts.has_record:
            return None, "it has no RECORD"
        direct = facts.direct_url if _is_wheel_url(facts.direct_url) and not facts.editable else ""
        if facts.direct_url and not direct:
            return None, f"{'an editable install of' if facts.editable else 'installed from'} {redact.url(facts.direct_url)}"
        key = self._key(dist)
        cached = None if self._asks else self._store.facts.recall("proof", key, IdentifiedWheel)
        if cached is not None and cached.is_available(self._store):
            return cached, cached.why
        offers = self._indexes.offers(facts.name, facts.version)
        direct_candidate = candidate_from_url(direct, "") if direct else None
        reasons: list[str] = []
        failures = list(offers.failures)
        for candidate in _rank(offers.candidates, dist, direct_candidate):
            try:
                identified = self._prove(candidate, dist, "direct" if candidate is direct_candidate else "index")
            except (_NotThisError, ArtifactError, NetworkError) as error:
                # A direct URL may no longer exist, and then the wheel is bundled; an index should answer.
                if isinstance(error, NetworkError) and candidate is not direct_candidate:
                    failures.append(error)
                reasons.append(str(error))
                continue
            self._store.facts.put("proof", key, codec.canonical(identified))
            return identified, identified.why
        if failures:
            raise failures[0]
        return None, "; ".join([*_summary(reasons), *offers.refusals]) or "no configured index has a wheel of this version"

    def _key(self, dist: InstalledDistribution) -> str:
        digests = [hashlib.sha256(data).hexdigest() for data in (dist.record, dist.wheel, dist.entry_points)]
        # The redacted URL: a password could be recovered from the hash of the full URL.
        facts = replace(dist.facts, direct_url=redact.url(dist.facts.direct_url))
        locked = [file.sha256 for file in self._session.sources.files.get(facts.name, ())]
        return codec.digest((_RULE, facts, digests, self._layout, self._shown, locked))

    def _prove(self, candidate: Candidate, dist: InstalledDistribution, origin: Literal["index", "direct"]) -> IdentifiedWheel:
        """Prove a candidate.

        Raises `_NotThisError` or `ArtifactError` if it is a different wheel, `NetworkError` if it is not available.
        """
        candidate_facts = self._reader.read(candidate)
        if reason := difference(candidate_facts.facts, dist, self._layout):
            raise _NotThisError(f"the installed files differ from {candidate.filename}: {reason}")
        url = _without_user(candidate.url)
        why = archives.why_bundled(url)
        path, digest, size = self._reader.fetch(candidate)[0] if why else None, candidate_facts.digest, candidate_facts.size
        if path is not None and why == archives.LOCAL and origin == "direct":
            # Probably built here. A wheel in a directory of find-links usually is a copy of an index's, which others can find.
            path, digest = repacking.normalize(path, candidate.filename, self._store)
            size = path.stat().st_size
        self._store.facts.put(FACTS, digest, codec.canonical(candidate_facts.facts))
        proven = Wheel(name=dist.facts.name, version=dist.facts.version, filename=candidate.filename, sha256=digest, size=size)
        hint = WheelHint(
            sha256=proven.sha256, origin="bundled" if why else origin, urls=() if why else (url,), index=candidate.index
        )
        return IdentifiedWheel(proven, hint, candidate_facts.facts, str(path or ""), why)


class _NotThisError(Exception):
    """The reason why a candidate is not the installed wheel."""


def _repack(
    dist: InstalledDistribution, layout: Layout, store: Store, why: str, tell: Tell, search: SecretSearch | None
) -> IdentifiedWheel | None:
    name = f"{dist.facts.name} {dist.facts.version}"
    if not dist.facts.has_record:
        tell.detail(f"{name} has no RECORD: its files are bundled as plain files")
        return None
    try:
        repacked = repacking.repack(dist, layout, store=store, search=search)
    except ArtifactError as error:
        tell.detail(f"{name} cannot be repacked as a wheel ({error}): its files are bundled as plain files")
        return None
    if repacked.problems:
        why += f"; its RECORD lists missing files: {shorten(repacked.problems, 1)}"
    hint = WheelHint(sha256=repacked.wheel.sha256, origin="repacked", urls=(), index="")
    return IdentifiedWheel(repacked.wheel, hint, repacked.facts, str(repacked.path), redact.line(why))


def _summary(reasons: Sequence[str]) -> list[str]:
    """Why no candidate is the installed wheel: their number, and the difference of the first one, which fits best."""
    count = f"none of {len(reasons)} wheels of this version matches: " if len(reasons) > 1 else ""
    return [count + reasons[0]] if reasons else []


def _rank(candidates: Sequence[Candidate], dist: InstalledDistribution, direct: Candidate | None) -> list[Candidate]:
    """The direct URL and the candidates with the tags and build in WHEEL, downloadable ones first; then a few others.

    The others could run on the same interpreter: some wheels are renamed after they are built.
    """
    try:
        expected_tags: frozenset[Tag] = frozenset().union(*(parse_tag(tag) for tag in dist.facts.tags))
    except ValueError:
        expected_tags = frozenset()
    kinds = {_kind(tag) for tag in expected_tags}
    exact = [direct] if direct is not None else []
    others = []
    for candidate in candidates:
        tags, build = tags_of(candidate.filename)
        if tags == expected_tags and build == dist.facts.build:
            exact.append(candidate)
        elif not expected_tags or kinds & {_kind(tag) for tag in tags}:
            others.append(candidate)
    return sorted(exact, key=lambda candidate: not candidate.downloadable)[:MAX_EXACT] + others[:MAX_OTHERS]


def _kind(tag: Tag) -> tuple[str, str, str]:
    """The kind of a tag: `manylinux_2_17_x86_64` and `linux_x86_64` are of one kind; `any` and other machines are of others."""
    match = re.fullmatch(r"(?:many|musl)?linux(?:\d+|_\d+_\d+)?_(\w+)", tag.platform)
    return tag.interpreter, tag.abi, match[1] if match else tag.platform


def _is_wheel_url(url: str) -> bool:
    return url.startswith(("http://", "https://", "file://")) and candidate_from_url(url, "").filename.endswith(".whl")


def _without_user(url: str) -> str:
    parts = urllib.parse.urlsplit(url)
    return urllib.parse.urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
