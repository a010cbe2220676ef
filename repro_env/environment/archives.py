"""What the identification of wheels and of conda packages shares: find the file of an archive, and decide whether to bundle it."""

from __future__ import annotations

import ipaddress
import re
import urllib.parse
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from repro_env.environment.secrets.bundles import SecretSearch
from repro_env.io.indexhttp import Session
from repro_env.oci.entry import Contents
from repro_env.oci.wheel import Installed
from repro_env.schema import codec, redact
from repro_env.schema.artifact import CondaPackage, Wheel
from repro_env.schema.errors import ArtifactError
from repro_env.schema.spec import WheelHint
from repro_env.schema.text import Url
from repro_env.store.store import Store

_THREADS = 8
LOCAL = "from a local file, which no other machine can reach"
LOOPBACK = "from a server of this machine, which no other machine can reach"
_SIGNED = "its URL holds a token or signature, which is not written down"

Item = TypeVar("Item")
Answer = TypeVar("Answer")


def identify_all(identify: Callable[[Item], Answer], items: Sequence[Item]) -> list[Answer]:
    """Call `identify` for each item, with several threads. The answers are in the order of the items; an error stops the search."""
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="identify") as pool:
        try:
            return list(pool.map(identify, items))
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


def artifact_file(artifact: Wheel | CondaPackage, hint: WheelHint, file: str, store: Store) -> Path:
    """The file of an archive, as in `existing_file`; it is downloaded into the store if necessary."""
    path = existing_file(artifact.sha256, file, store)
    if path is not None:
        return path
    url = next(iter(hint.urls), "")
    if not url:
        what = "this file is not in the store and has no URL"
        raise ArtifactError(what, where=artifact.filename, hint="capture again on the machine that has it")
    with Session() as session:
        return store.blobs.put(session.download(url), artifact.sha256, where=url, size=artifact.size)


def search(secrets: SecretSearch, artifact: Wheel | CondaPackage, installed: Installed, contents: Contents) -> None:
    """Search the files that an archive installs for secrets, unless they were searched before."""
    if not secrets.is_clean(artifact.sha256):
        members = [entry for entry in installed.entries if entry.path in installed.members]
        secrets.search_archive(artifact.sha256, members, contents, f"{artifact.filename}/".__add__)
