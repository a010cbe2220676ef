"""Indexes: which wheel files of a distribution do the configured indexes, find-links and lock files offer?

Speaks the simple API in both forms: JSON (PEP 691) and HTML (PEP 503, hashes in the fragment). Yanked files
(PEP 592) are offered like others: they may well be what is installed.
"""

from __future__ import annotations

import html
import ipaddress
import re
import threading
import urllib.parse
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path

import msgspec
from packaging.tags import Tag
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from repro_env.io.http import PASSED, Page, Session, local_path
from repro_env.model import codec, redact
from repro_env.model.errors import LockError, NetworkError

JSON = "application/vnd.pypi.simple.v1+json"


class Candidate(msgspec.Struct, frozen=True):
    """One wheel file that somebody offers."""

    filename: str
    url: str
    """http(s) or file, without fragment; it may hold credentials or a signature, so it is for requests only."""
    sha256: str
    """64 hexadecimal digits as the index says, or empty when it does not say."""
    index: str
    """The index or find-links location that names it, redacted; `direct` URLs have none."""
    linkable: bool
    """Other machines can have it too: http(s), and not from this machine itself."""


class Offers(msgspec.Struct, frozen=True):
    candidates: tuple[Candidate, ...]
    """Linkable ones first, then in the configured order; each file once."""
    refusals: tuple[str, ...]
    """Indexes that would not say (status 403): one sentence each, redacted."""
    failures: tuple[NetworkError, ...]
    """Indexes that could not be asked."""


class Indexes:
    """The configured indexes, find-links and lock files. Safe to use from several threads."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._flat: tuple[list[Candidate], list[NetworkError]] | None = None
        self._lock = threading.Lock()
        self._down: dict[str, NetworkError] = {}

    def offers(self, name: str, version: str) -> Offers:
        """The wheels of one distribution (normalised name) in one version (PEP 440 equality)."""
        wanted = version_of(version)
        found: list[Candidate] = []
        refusals: list[str] = []
        failures: list[NetworkError] = []
        for index in (one.url for one in self._session.configuration.indexes if one.names is None or name in one.names):
            if index in self._down:  # pip's retries take long; one distribution's are enough
                failures.append(self._down[index])
                continue
            try:
                page = self._session.get_page(f"{index.rstrip('/')}/{name}/")
            except NetworkError as error:
                self._down[index] = error
                failures.append(error)
                continue
            if page.status == 200:
                found += candidates(page, redact.url(index), lambda filename: _is(filename, name, wanted))
            elif page.status == PASSED[0]:
                refusals.append(f"{redact.url(index)} answered with status {page.status}")
        found += [candidate(file.url, file.index, file.sha256) for file in self._session.sources.files.get(name, ())]
        links, unread = self._links()
        found += links
        failures += unread
        fitting = [one for one in found if _is(one.filename, name, wanted)]
        fitting.sort(key=lambda one: (not one.linkable, not one.sha256))  # without a sha256 the whole file has to be fetched
        known: dict[tuple[str, str], Candidate] = {}
        for one in fitting:
            known.setdefault((one.filename, one.sha256 or one.url), one)
        return Offers(tuple(known.values()), tuple(refusals), tuple(failures))

    def _links(self) -> tuple[list[Candidate], list[NetworkError]]:
        """What find-links names, the same for all distributions, so read once; and what could not be asked."""
        with self._lock:
            if self._flat is None:
                self._flat = [], []
                for location in self._session.configuration.find_links:
                    try:
                        self._flat[0].extend(self._at(location))
                    except NetworkError as error:  # noqa: PERF203 - each location for itself
                        self._flat[1].append(error)
            return self._flat

    def _at(self, location: str) -> Iterator[Candidate]:
        path = Path(location) if Path(location).exists() else local_path(location)
        shown = redact.url(path.as_uri() if path is not None and path.is_absolute() else location)
        if path is not None and path.is_dir():
            for entry in sorted(path.iterdir()):
                if entry.suffix in (".html", ".htm"):
                    yield from candidates(self._session.get_page(entry.absolute().as_uri()), shown)
                elif entry.suffix == ".whl":
                    yield Candidate(entry.name, entry.absolute().as_uri(), "", shown, linkable=False)
        elif (path.name if path is not None else location).endswith(".whl"):
            yield candidate(location if path is None else path.absolute().as_uri(), shown)
        elif path.is_file() if path is not None else "://" in location:
            yield from candidates(self._session.get_page(location if path is None else path.absolute().as_uri()), shown)


class _File(msgspec.Struct, frozen=True):
    filename: str
    url: str
    hashes: dict[str, str] = {}


class _Meta(msgspec.Struct, frozen=True):
    version: str = msgspec.field(name="api-version", default="1.0")


class _Project(msgspec.Struct, frozen=True):
    files: tuple[_File, ...]
    meta: _Meta = _Meta()


def _any(filename: str) -> bool:  # noqa: ARG001
    return True


def candidates(page: Page, index: str, wanted: Callable[[str], bool] = _any) -> list[Candidate]:
    """The wheels that a page names; none for a page that is not there. Raises `LockError` for what is no index page.

    `wanted` says by the file name which ones to look at: a page may name thousands of files.
    """
    if page.status != 200:
        return []
    if page.content_type == JSON:
        try:
            project = codec.decoder(_Project).decode(page.body)
        except msgspec.DecodeError as error:
            raise LockError(
                f"is not an index page: {error}", where=redact.url(page.url), hint="name an index that works"
            ) from None
        if not project.meta.version.startswith("1."):  # PEP 629: another first number may mean anything
            raise LockError(
                f"speaks version {redact.line(project.meta.version)} of the simple API, and this program knows version 1",
                where=redact.url(page.url),
                hint="pip install --upgrade repro-env",
            )
        named = [
            _linked(page, file.url, index, file.filename, file.hashes.get("sha256", ""))
            for file in project.files
            if wanted(file.filename)
        ]
    elif page.content_type in ("text/html", "application/vnd.pypi.simple.v1+html", "application/xhtml+xml"):
        named = [_linked(page, link, index) for link in _links(page) if wanted(_last(link))]
    else:
        raise LockError(
            f"is not an index page but {redact.line(page.content_type) or 'of no content type'}",
            where=redact.url(page.url),
            hint="look at the index's URL in pip's configuration",
        )
    return [one for one in named if one is not None]


def _last(link: str) -> str:
    """The file name in a link."""
    link = link.partition("#")[0].partition("?")[0].rpartition("/")[2].strip()
    return urllib.parse.unquote(link) if "%" in link else link


def candidate(url: str, index: str, sha256: str = "") -> Candidate:
    """A wheel by its URL, with or without a hash in its fragment."""
    url, _, fragment = url.partition("#")
    filename = urllib.parse.unquote(urllib.parse.urlsplit(url).path.rpartition("/")[2])
    return Candidate(filename, url, _sha256(sha256) or _in_fragment(fragment), index, linkable(url))


def linkable(url: str) -> bool:
    """Whether another machine could fetch it, judged by the URL alone: http(s), and a host that is not this machine."""
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
        return not re.fullmatch(r"[0-9.]+|0x[0-9a-f.x]*", host)  # 127.1 and 2130706433 are addresses to a resolver
    mapped = getattr(address, "ipv4_mapped", None) or address
    return not (mapped.is_loopback or mapped.is_unspecified)


def version_of(text: str) -> Version | None:
    return _version(text)


def tags_of(filename: str) -> tuple[frozenset[Tag], str]:
    """The tag set and the build number of a wheel's file name."""
    _, _, build, tags = parse_wheel_filename(filename)
    return tags, "".join(str(part) for part in build)


@lru_cache(maxsize=65536)
def _version(text: str) -> Version | None:
    try:
        return Version(text)
    except InvalidVersion:
        return None


def _is(filename: str, name: str, version: Version | None) -> bool:
    # The cheap questions first: a page may name thousands of files.
    parts = filename.removesuffix(".whl").split("-")
    if version is None or len(parts) not in (5, 6) or not _NAME.fullmatch(filename):
        return False
    if _version(parts[1].replace("_", "-")) != version or canonicalize_name(parts[0]) != name:
        return False
    try:
        parse_wheel_filename(filename)
    except (InvalidWheelFilename, InvalidVersion):
        return False
    return True


def _linked(page: Page, link: str, index: str, filename: str = "", sha256: str = "") -> Candidate | None:
    """None for what is not a wheel or not to be followed from there."""
    try:
        url = urllib.parse.urljoin(page.url, _quoted(link.strip()))
        scheme = urllib.parse.urlsplit(url).scheme
    except ValueError:
        return None
    allowed = ("http", "https", "file") if page.url.startswith("file:") else ("http", "https")
    if scheme not in allowed:
        return None
    one = candidate(url, index, sha256)
    if filename:
        one = msgspec.structs.replace(one, filename=filename)
    return one if one.filename.endswith(".whl") and "/" not in one.filename else None


def _quoted(link: str) -> str:
    """Indexes write spaces and other characters into links that no URL may have."""
    return urllib.parse.quote(link, safe="%/:?#[]@!$&'()*+,;=~")


_NAME = re.compile(r"[A-Za-z0-9_.!+-]{1,251}\.whl")  # model.text.WheelName
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_ELEMENT = re.compile(r"""<(a|base)\s((?:[^>"']|"[^"]*"|'[^']*')*)>""", re.IGNORECASE)
_HREF = re.compile(r"""(?:\A|\s)href\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s"'>]+))""", re.IGNORECASE)


def _links(page: Page) -> Iterator[str]:
    """The targets of the links of an HTML page, joined with its `<base>`.

    By pattern and not by `html.parser`: pages of several MB would take most of the time of a capture.
    """
    text = page.body.decode("utf-8", errors="replace")
    if "<!--" in text:
        text = _COMMENT.sub("", text)
    base = ""
    for element, attributes in _ELEMENT.findall(text):
        match = _HREF.search(attributes)
        if match is None:
            continue
        link = html.unescape(match[1] or match[2] or match[3] or "")
        if element in ("base", "BASE", "Base"):
            base = base or link
        elif ".whl" in link:
            yield urllib.parse.urljoin(base, link) if base else link


def _in_fragment(fragment: str) -> str:
    return _sha256(urllib.parse.parse_qs(fragment).get("sha256", [""])[0])


def _sha256(text: str) -> str:
    text = text.lower()
    return text if re.fullmatch(r"[0-9a-f]{64}", text) else ""
