"""Secrets in source files: found before the files are copied anywhere. Few recognisers, each precise."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

import msgspec

from repro_env.model import redact

LARGEST = 1 << 20
"""Bytes looked at of each file: people paste a secret into code and settings, not into the end of a large file."""
_BINARY = re.compile(
    r"\.(?:so|so\.[0-9.]+|a|o|pyc|png|jpe?g|gif|webp|bmp|tiff?|ico|mp[34]|wav|flac|ogg|avi|mov|webm|npy|npz|pt|pth|ckpt|safetensors|onnx"
    r"|pb|h5|hdf5|parquet|arrow|feather|tfrecords?|zip|gz|bz2|xz|zst|tar|tgz|whl|7z|pdf|woff2?|ttf|otf|sqlite3?|db)",
    re.IGNORECASE,
)
_DISTINCT = 10
"""Different characters in a real token; `hf_xxxxxxxx` has fewer."""
_MADE_UP = re.compile(r"example|dummy|fake|your|xxxx|1234567890|placeholder|redacted", re.IGNORECASE)
_AWS_SECRET = re.compile(
    r"(?<![A-Za-z0-9/+=_-])(?=[^\s]{0,39}[a-z])(?=[^\s]{0,39}[A-Z])(?=[^\s]{0,39}[0-9])[A-Za-z0-9/+]{40}(?![A-Za-z0-9/+=_-])"
)
_PART = r"(?:[^\s/:@'\"`<>{}$%()\[\]*\\,;|&#?]|%[0-9A-Fa-f]{2})"
_PASSWORD_URL = re.compile(rf"\b[A-Za-z][A-Za-z0-9+.-]{{1,30}}://({_PART}{{1,100}}):({_PART}{{3,200}})@([A-Za-z0-9.-]+)")
_NO_PASSWORD = re.compile(
    r"pass\w*|pwd|pw|psw|secret\w*|token|admin|root|test\w*|guest|changeme|user\w*|postgres|mysql|foo|bar|baz|hunter2|minioadmin|key"
    r"|api_?key|credentials?|x+|\.+|\*+|-+|_+|abc|123\d*|my\w*|the\w*|some\w*",
    re.IGNORECASE,
)
_LOCAL = re.compile(
    r"localhost|127\.\d+\.\d+\.\d+|0\.0\.0\.0|(?:.*\.)?(?:example(?:\.\w+)?|test|invalid|localdomain|local)|\w+", re.IGNORECASE
)
_TOKENS = tuple((kind.name, kind.needles, re.compile(kind.pattern)) for kind in redact.TOKENS)
_KEY = re.compile(redact.PRIVATE_KEY.pattern)
_AWS = re.compile(redact.AWS_ID.pattern)


class Secret(msgspec.Struct, frozen=True):
    """Where a secret is; never what it is."""

    path: str
    line: int
    """From 1."""
    kind: str


def in_file(root: Path, path: str) -> Secret | None:
    """The first secret of a file under `root`. A binary file has none. Raises `OSError` when it cannot be read."""
    fd = os.open(root / path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode) or _BINARY.fullmatch(Path(path).suffix):
            return None
        data = os.read(fd, LARGEST)
    finally:
        os.close(fd)
    if b"\0" in data:
        return None
    found = in_text(data.decode("latin-1"))
    return None if found is None else Secret(path, found[0], found[1])


def in_text(text: str) -> tuple[int, str] | None:
    """(line, kind) of the first secret of each kind's order: keys, tokens, AWS, URLs."""
    if "PRIVATE KEY" in text and (match := _KEY.search(text)):
        return _line(text, match), redact.PRIVATE_KEY.name
    for kind, needles, pattern in _TOKENS:
        if any(needle in text for needle in needles):
            for match in pattern.finditer(text):
                if len(set(match[0])) >= _DISTINCT and not _MADE_UP.search(match[0]):
                    return _line(text, match), kind
    if ("AKIA" in text or "ASIA" in text) and (match := _AWS.search(text)) and not _MADE_UP.search(match[0]):
        secret = next((one for one in _AWS_SECRET.finditer(text) if not _MADE_UP.search(one[0])), None)
        if secret is not None:
            return _line(text, secret), "AWS secret key"
    if "://" in text and "@" in text:
        for match in _PASSWORD_URL.finditer(text):
            if _is_password(*match.groups()):
                return _line(text, match), "password in a URL"
    return None


def _is_password(user: str, password: str, host: str) -> bool:
    return (
        user.lower() != password.lower()
        and len(set(password)) > 3
        and not _NO_PASSWORD.fullmatch(password)
        and not _MADE_UP.search(password)
        and not _LOCAL.fullmatch(host)
    )


def _line(text: str, match: re.Match[str]) -> int:
    return text.count("\n", 0, match.start()) + 1
