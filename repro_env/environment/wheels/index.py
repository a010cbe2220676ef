"""Find the wheel files that the configured indexes, find-links and lock files offer for a distribution.

Reads both forms of the simple API: JSON (PEP 691) and HTML (PEP 503, hashes in the fragment). Yanked files (PEP 592) are
treated like others, because they may be what is installed.
"""

from __future__ import annotations

import html
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

from repro_env.environment import archives
from repro_env.io.indexhttp import ABSENT, Page, Session, local_path
from repro_env.schema import codec, redact
from repro_env.schema.errors import LockError, NetworkError

JSON = "application/vnd.pypi.simple.v1+json"


class Candidate(msgspec.Struct, frozen=True):
    """A wheel file that an index offers."""

    filename: str
    url: str
    """http(s) or file, without a fragment. It may contain credentials or a signature: use it for requests only."""
    sha256: str
    """64 hexadecimal digits; empty if the index does not list it."""
    index: str
    """The redacted index or find-links location; empty for direct URLs."""

    @property
    def downloadable(self) -> bool:
        """Whether other machines can download it."""
        return archives.downloadable(self.url)


class Offers(msgspec.Struct, frozen=True):
    candidates: tuple[Candidate, ...]
    """Downloadable candidates first, then in the configured order, without duplicates."""
    refusals: tuple[str, ...]
    """Indexes that refused access (status 403): one redacted sentence each."""
    failures: tuple[NetworkError, ...]
    """Indexes that could not be reached."""


class Indexes:
    """The configured indexes, find-links and lock files. Safe to use from several threads."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._find_links: tuple[list[Candidate], list[NetworkError]] | None = None
        self._lock = threading.Lock()
        self._unreachable: dict[str, NetworkError] = {}

    def offers(self, name: str, version: str) -> Offers:
        """The wheels of a distribution (normalized name) in one version (PEP 440 equality)."""
        wanted_version = _parse_version(version)
        candidates_found: list[Candidate] = []
        refusals: list[str] = []
        failures: list[NetworkError] = []
        for index in (index.url for index in self._session.configuration.indexes if index.names is None or name in index.names):
            if index in self._unreachable:  # pip's retries take long, so they are made for one distribution only
                failures.append(self._unreachable[index])
                continue
            try:
                page = self._session.get_page(f"{index.rstrip('/')}/{name}/")
            except NetworkError as error:
                self._unreachable[index] = error
                failures.append(error)
                continue
            if page.status == 200:
                candidates_found += candidates(page, redact.url(index), lambda filename: _matches(filename, name, wanted_version))
            elif page.status == ABSENT[0]:
                refusals.append(f"{redact.url(index)} answered with status {page.status}")
        candidates_found += [
            candidate_from_url(file.url, file.index, file.sha256) for file in self._session.sources.files.get(name, ())
        ]
        links, find_links_failures = self._find_links_candidates()
        candidates_found += links
        failures += find_links_failures
        matching = [candidate for candidate in candidates_found if _matches(candidate.filename, name, wanted_version)]
        matching.sort(
            key=lambda candidate: (not candidate.downloadable, not candidate.sha256)
        )  # without a sha256 the whole file has to be downloaded
        unique: dict[tuple[str, str], Candidate] = {}
        for candidate in matching:
            unique.setdefault((candidate.filename, candidate.sha256 or candidate.url), candidate)
        return Offers(tuple(unique.values()), tuple(refusals), tuple(failures))

    def _find_links_candidates(self) -> tuple[list[Candidate], list[NetworkError]]:
        """The candidates in find-links, which are the same for all distributions and read once; and the errors."""
        with self._lock:
            if self._find_links is None:
                self._find_links = [], []
                for location in self._session.configuration.find_links:
                    try:
                        self._find_links[0].extend(self._candidates_at(location))
                    except NetworkError as error:  # noqa: PERF203 - each location has its own errors
                        self._find_links[1].append(error)
            return self._find_links

    def _candidates_at(self, location: str) -> Iterator[Candidate]:
        path = Path(location) if Path(location).exists() else local_path(location)
        shown = redact.url(path.as_uri() if path is not None and path.is_absolute() else location)
        if path is not None and path.is_dir():
            for entry in sorted(path.iterdir()):
                if entry.suffix in (".html", ".htm"):
                    yield from candidates(self._session.get_page(entry.absolute().as_uri()), shown)
                elif entry.suffix == ".whl":
                    yield Candidate(entry.name, entry.absolute().as_uri(), "", shown)
        elif (path.name if path is not None else location).endswith(".whl"):
            yield candidate_from_url(location if path is None else path.absolute().as_uri(), shown)
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


def candidates(page: Page, index: str, is_wanted: Callable[[str], bool] = _any) -> list[Candidate]:
    """The wheels on a page; none for a page that does not exist. Raises `LockError` if it is not an index page.

    `is_wanted` selects files by name, because a page may list thousands of files.
    """
    if page.status != 200:
        return []
    if page.content_type == JSON:
        try:
            project = codec.decoder(_Project).decode(page.body)
        except msgspec.DecodeError as error:
            raise LockError(
                f"this is not an index page: {error}",
                where=redact.url(page.url),
                hint="check the index URL in pip's configuration",
            ) from None
        if not project.meta.version.startswith("1."):  # PEP 629: another first number may mean anything
            raise LockError(
                f"this index uses version {redact.line(project.meta.version)} of the simple API, but repro-env supports version 1",
                where=redact.url(page.url),
                hint="pip install --upgrade repro-env",
            )
        found = [
            _candidate(page, file.url, index, file.filename, file.hashes.get("sha256", ""))
            for file in project.files
            if is_wanted(file.filename)
        ]
    elif page.content_type in ("text/html", "application/vnd.pypi.simple.v1+html", "application/xhtml+xml"):
        found = [_candidate(page, link, index) for link in _links(page) if is_wanted(_file_name(link))]
    else:
        raise LockError(
            f"this is not an index page; its content type is {redact.line(page.content_type) or 'missing'}",
            where=redact.url(page.url),
            hint="check the index URL in pip's configuration",
        )
    return [candidate for candidate in found if candidate is not None]


def _file_name(link: str) -> str:
    """The file name at the end of a link."""
    link = link.partition("#")[0].partition("?")[0].rpartition("/")[2].strip()
    return urllib.parse.unquote(link) if "%" in link else link


def candidate_from_url(url: str, index: str, sha256: str = "") -> Candidate:
    """A candidate from a URL, which may have a hash in its fragment."""
    url, _, fragment = url.partition("#")
    filename = urllib.parse.unquote(urllib.parse.urlsplit(url).path.rpartition("/")[2])
    return Candidate(filename, url, _sha256(sha256) or _in_fragment(fragment), index)


def tags_of(filename: str) -> tuple[frozenset[Tag], str]:
    """The tag set and the build number of a wheel's file name."""
    _, _, build, tags = parse_wheel_filename(filename)
    return tags, "".join(str(part) for part in build)


@lru_cache(maxsize=65536)
def _parse_version(text: str) -> Version | None:
    try:
        return Version(text)
    except InvalidVersion:
        return None


def _matches(filename: str, name: str, version: Version | None) -> bool:
    # Cheap checks first: a page may list thousands of files.
    parts = filename.removesuffix(".whl").split("-")
    if version is None or len(parts) not in (5, 6) or not _NAME.fullmatch(filename):
        return False
    if _parse_version(parts[1].replace("_", "-")) != version or canonicalize_name(parts[0]) != name:
        return False
    try:
        parse_wheel_filename(filename)
    except (InvalidWheelFilename, InvalidVersion):
        return False
    return True


def _candidate(page: Page, link: str, index: str, filename: str = "", sha256: str = "") -> Candidate | None:
    """The candidate of a link; None if it is not a wheel, or if the page may not link to such a URL."""
    try:
        url = urllib.parse.urljoin(page.url, _quote(link.strip()))
        scheme = urllib.parse.urlsplit(url).scheme
    except ValueError:
        return None
    allowed = ("http", "https", "file") if page.url.startswith("file:") else ("http", "https")
    if scheme not in allowed:
        return None
    wheel = candidate_from_url(url, index, sha256)
    if filename:
        wheel = msgspec.structs.replace(wheel, filename=filename)
    return wheel if wheel.filename.endswith(".whl") and "/" not in wheel.filename else None


def _quote(link: str) -> str:
    """Quote spaces and other characters that indexes put into links although URLs cannot contain them."""
    return urllib.parse.quote(link, safe="%/:?#[]@!$&'()*+,;=~")


_NAME = re.compile(r"[A-Za-z0-9_.!+-]{1,251}\.whl")  # model.text.WheelName
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_ELEMENT = re.compile(r"""<(a|base)\s((?:[^>"']|"[^"]*"|'[^']*')*)>""", re.IGNORECASE)
_HREF = re.compile(r"""(?:\A|\s)href\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s"'>]+))""", re.IGNORECASE)


def _links(page: Page) -> Iterator[str]:
    """The link targets of an HTML page, joined with its `<base>`.

    Links are found by pattern and not by `html.parser`, which takes most of the time of a capture for pages of several MB.
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
