"""Secrets in files: found before the files are copied anywhere. Few recognisers, each precise.

Whole files are searched, in pieces. What makes that fast: nearly every secret is an unbroken run of letters and
digits, and text has few long ones. A table maps each byte to "may stand in a run" or not, so that `bytes.find` jumps
from run to run; only those that look random, and the lines with a mark of another kind, meet a pattern.
Binary files, and what is packed within others, are not looked at.
"""

from __future__ import annotations

import base64
import json
import os
import re
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Protocol

import msgspec

from repro_env.capture.globs import Glob
from repro_env.io.files import Found
from repro_env.model import codec, redact

PIECE = 4 << 20
"""Bytes searched at once."""
_OVERLAP = 1 << 16
"""Bytes that a piece shares with the next: a secret may lie across the cut."""
RULE = 1
"""Part of the cache's key; a change of what counts as a secret needs the next number."""
_BINARY = re.compile(
    r"\.(?:so|so\.[0-9.]+|a|o|pyc|png|jpe?g|gif|webp|bmp|tiff?|ico|mp[34]|wav|flac|ogg|avi|mov|webm|npy|npz|pt|ckpt|safetensors|onnx"
    r"|pb|h5|hdf5|parquet|arrow|feather|tfrecords?|zip|gz|bz2|xz|zst|tar|tgz|whl|7z|pdf|woff2?|ttf|otf|sqlite3?|db)",
    re.IGNORECASE,
)
_RUN = 20
"""Characters of the shortest run that is looked at."""
_DATA = 16384
"""A run longer than this is base64 of data: no token, and nothing stands in it that begins one."""
_COLUMN = 57
"""From this length on, runs of one length are lines of base64 …"""
_COLUMNS = 8
"""… when there are so many after each other."""
_AROUND = 300
"""Bytes shown to the patterns on each side of a run."""
_NEAR = 60
"""Bytes before a run in which its name stands."""
_IN_RUN = bytes(97 if (chr(byte).isalnum() and byte < 128) or byte in b"_-+/=" else 32 for byte in range(256))
_DIGITS = b"0123456789"
_HEADS = frozenset(
    head.encode()
    for head in [
        "hf_",
        "api",
        "ghp",
        "gho",
        "ghu",
        "ghs",
        "ghr",
        "git",
        "glp",
        "gld",
        "glr",
        "glc",
        "glf",
        "gls",
        "gla",
        "xox",
        "xap",
        "nva",
        "pyp",
        "npm",
        "dck",
        "AIz",
        "GOC",
        "sk_",
        "rk_",
        "sk-",
        "wan",
        "eyJ",
        "dap",
        "gsk",
        "r8_",
        "xai",
        "ppl",
        "lsv",
        "pcs",
        "dop",
        "doo",
        "dor",
        "ATA",
        "AKC",
        "AGE",
        "IQo",
        "Fwo",
        "FQo",
        "AKI",
        "ASI",
        "LS0",
    ]
)
"""How the tokens of `model.redact` begin, those apart that a name or a dot gives away."""
_MARKS = (b"PRIVATE KEY", b"@", b"machine ", b"password ")
"""What stands in a secret that is no long run."""
_CLAIMS = frozenset({"iss", "exp", "iat", "nbf", "aud", "jti", "sub", "scope"})
_SAMPLES = ("2YotnFZFEjr1zCsicMWpAA", "czZCaGRSa3F0MzpnWDFmQmF0M2JW")
"""Of RFC 6749: printed in the documentation of half the web."""
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
_NETRC = re.compile(r"(?:machine\s+([A-Za-z0-9.-]+)|^default)\s+(?:login\s+\S+\s+)?password\s+(\S{6,})", re.MULTILINE)
_SIGNED = re.compile(
    r"[?&](?:X-Amz-Signature|X-Goog-Signature)=([0-9A-Fa-f]{32,})|[?&;]sig=((?:[A-Za-z0-9+/]|%[0-9A-F]{2}){40,})"
    r"|[?&]Signature=([A-Za-z0-9_~%+/-]{20,}).{0,40}?Key-Pair-Id="
)
_CHANNEL = re.compile(r"://[^\s\"'<>]{1,200}/t/([A-Za-z]{2}-[0-9a-f-]{20,})/")
_BASIC = re.compile(r"(?i)authorization[\"']?\s*[:=]\s*[\"']?basic\s+([A-Za-z0-9+/]{16,}={0,2})")
_VALUE = re.compile(r"(?:[=:]|[\"'],)[ \t]{0,20}(?:[rbu]?[\"'])?([A-Za-z0-9+/_.-]{20,200}={0,2})(?![A-Za-z0-9_(\[.*])")
_NAME = re.compile(
    # A name that says what it is. Names of what is public (`token_id`, `keyword`) do not end so.
    r"(?i)(?:api|access|secret|auth|account|private|service|_|client)[_-]?(?:key|token|secret|password|passwd)[\"']?\]?[ \t]{0,20}\Z"
)
_LOGIN = re.compile(r"login\([^)\n]{0,80}?[\"']([0-9a-f]{40})[\"']")
_KAGGLE = re.compile(r"\"username\"\s*:\s*\"[^\"\n]{1,100}\"\s*,\s*\"key\"\s*:\s*\"([0-9a-f]{32})\"")
_DOCKER = re.compile(r"\"auth\"\s*:\s*\"([A-Za-z0-9+/]{16,}={0,2})\"|\b_(?:auth|password)\s*=\s*\"?([A-Za-z0-9+/]{16,}={0,2})")
_TOKENS = tuple((kind.name, kind.needles, re.compile(kind.pattern)) for kind in (redact.ENCODED_KEY, *redact.TOKENS))
_NEEDLES = re.compile("|".join(re.escape(needle) for _, needles, _ in _TOKENS for needle in needles if needle != "."))
_KEY = re.compile(redact.PRIVATE_KEY.pattern)
_AWS = re.compile(redact.AWS_ID.pattern)


class Secret(msgspec.Struct, frozen=True):
    """Where a secret is; never what it is."""

    path: str
    line: int
    """From 1."""
    kind: str


class Cache(Protocol):
    """Where it is remembered which files hold none (`store.facts.FactCache`)."""

    def get(self, kind: str, key: str) -> bytes | None: ...
    def put(self, kind: str, key: str, value: bytes) -> None: ...


def among(root: Path, found: Iterable[Found], *, cache: Cache | None = None) -> Iterator[Secret]:
    """The first secret of each file that holds one, in the order of `found`; paths relative to `root`.

    Files seen before, and as they were then, are not read again when none of them held any.
    Raises `OSError`, with the file's name, for one that cannot be read.
    """
    files = [one for one in found if one.kind == "file" and one.size and may_be_text(one.path)]
    if not files:
        return
    key = codec.digest([RULE, str(root), [(one.path, one.key) for one in files]])
    if cache is not None and cache.get("secrets", key) is not None:
        return
    clean = True
    for one in files:
        secret = in_file(root, one.path)
        if secret is not None:
            clean = False
            yield secret
    if clean and cache is not None:
        cache.put("secrets", key, b"none")


def is_declared(secret: Secret, declared: Iterable[Glob], root: str = "") -> bool:
    """Whether the user says that this is none (`--not-secret GLOB`, of a path as it is shown)."""
    hits = [one for one in declared if one.matches(f"{root}/{secret.path}".lstrip("/"))]
    for one in hits:
        one.hit = True
    return bool(hits)


def declaration(secret: Secret, root: str = "") -> str:
    """What is written down when it is so."""
    path = f"{root}/{secret.path}" if root else secret.path
    return f"{path}, line {secret.line} looks like a secret ({secret.kind}), carried since --not-secret says that it is none"


def in_file(root: Path, path: str) -> Secret | None:
    """The first secret of a file under `root`. A binary file has none. Raises `OSError` when it cannot be read."""
    if not may_be_text(path):
        return None
    fd = os.open(root / path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        facts = os.fstat(fd)
        if not stat.S_ISREG(facts.st_mode):
            return None
        found = in_chunks(iter(lambda: os.read(fd, min(PIECE, facts.st_size + 1)), b""))
    finally:
        os.close(fd)
    return None if found is None else Secret(path, *found)


def may_be_text(path: str) -> bool:
    """Judged by the name alone."""
    return not _BINARY.fullmatch(os.path.splitext(path)[1])  # noqa: PTH122


def in_chunks(chunks: Iterable[bytes]) -> tuple[int, str] | None:
    """(line, kind) of the first secret in a file's bytes; None for a binary file."""
    before, lines, first = b"", 0, True
    for chunk in chunks:
        if first and chunk[:2] in (b"\xff\xfe", b"\xfe\xff"):
            # UTF-16, in one byte a character: what is searched for is ASCII.
            return in_bytes(b"".join((chunk, *chunks)).decode("utf-16", "replace").encode("latin-1", "replace"))
        if b"\0" in chunk[:8192]:
            return None
        first = False
        piece = before + chunk
        if (found := in_bytes(piece)) is not None:
            return found[0] + lines, found[1]
        before = piece[-_OVERLAP:]
        lines += piece.count(b"\n") - before.count(b"\n")
    return None


def in_text(text: str) -> tuple[int, str] | None:
    """(line, kind) of the first secret found."""
    return in_bytes(text.encode("utf-8", "replace"))


def in_bytes(data: bytes) -> tuple[int, str] | None:
    """(line, kind) of a secret: the line from 1."""
    for start, end in _windows(data):
        shown = data[start:end].decode("latin-1")
        found = _in_window(shown)
        if found is not None:
            return data.count(b"\n", 0, start + found[0]) + 1, found[1]
    return None


def _windows(data: bytes) -> list[tuple[int, int]]:
    """Parts of the data that a pattern should see, in order, not overlapping."""
    spots = [(start - _AROUND, end + _AROUND) for start, end in _runs(data)]
    for mark in _MARKS:
        here = data.find(mark)
        while here >= 0:
            if mark != b"@" or data.find(b"://", max(0, here - _AROUND), here) >= 0:
                spots.append((here - _AROUND, here + (20_000 if mark == _MARKS[0] else _AROUND)))
            here = data.find(mark, here + len(mark))
    merged: list[tuple[int, int]] = []
    for start, end in sorted(spots):
        start, end = max(0, start), min(len(data), end)
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def _runs(data: bytes) -> Iterator[tuple[int, int]]:
    """Where the long runs are that have a digit, or are of letters as a Hugging Face token is, and that look like a secret's."""
    table = data.translate(_IN_RUN)
    long = b"a" * _RUN
    last = repeated = end = 0
    while (start := table.find(long, end)) >= 0:
        end = table.find(b" ", start + _RUN)
        if end < 0:
            end = len(table)
        length = end - start
        repeated = repeated + 1 if length == last and length >= _COLUMN else 0
        last = length
        if length > _DATA or repeated >= _COLUMNS:
            continue
        run = data[start:end]
        if len(run.translate(None, _DIGITS)) == length and b"hf_" not in run:
            continue
        if _is_hinted(data, run, start, end):
            yield start, end


def _is_hinted(data: bytes, run: bytes, start: int, end: int) -> bool:
    """Whether a run begins as a token does, or has a name that says what it is; a line of plain hashes has neither."""
    before = data[max(0, start - _NEAR) : start]
    if data[end : end + 1] == b"." or before.endswith((b".", b":")):
        return True  # tokens in parts: `eyJ….eyJ….…`, `123456789:AA…`
    if before.endswith(b"\\") and run[:1] in b"nrt":
        run = run[1:]  # `\n` within a string
    if run[:3] in _HEADS or (b"=" in run and any(part[:3] in _HEADS for part in run.split(b"="))):
        return True
    near = (before + run).lower()
    return (
        b"key" in near
        or b"token" in near
        or b"secret" in near
        or b"pass" in near
        or b"auth" in near
        or b"sig" in near
        or b"login" in near
        or b"hooks" in near
        or b"basic" in near
        or b"/t/" in near
    )


def _in_window(text: str) -> tuple[int, str] | None:
    """(offset, kind) of the first secret of each kind's order: keys, tokens, AWS, URLs, named values."""
    if "PRIVATE KEY" in text and (match := _KEY.search(text)):
        return match.start(), redact.PRIVATE_KEY.name
    there = {*_NEEDLES.findall(text), "."}
    for kind, needles, pattern in _TOKENS:
        if not there.isdisjoint(needles):
            for match in pattern.finditer(text):
                if len(set(match[0])) >= _DISTINCT and not _MADE_UP.search(match[0]) and not _is_sample(match[0]):
                    return match.start(), kind
    if ("AKIA" in text or "ASIA" in text) and (match := _AWS.search(text)) and not _MADE_UP.search(match[0]):
        secret = next((one for one in _AWS_SECRET.finditer(text) if not _MADE_UP.search(one[0])), None)
        if secret is not None:
            return secret.start(), "AWS secret key"
    if "://" in text and "@" in text:
        for match in _PASSWORD_URL.finditer(text):
            if _is_password(*match.groups()):
                return match.start(), "password in a URL"
    if "password" in text:
        for match in _NETRC.finditer(text):
            if not _NO_PASSWORD.fullmatch(match[2]) and not _MADE_UP.search(match[0]) and not _LOCAL.fullmatch(match[1] or "x.y"):
                return match.start(), "password of a .netrc"
    for kind, needles, pattern in _SETTINGS:
        if any(needle in text for needle in needles):
            for match in pattern.finditer(text):
                if _is_random(next(filter(None, match.groups()))):
                    return match.start(), kind
    for match in _VALUE.finditer(text):
        if _NAME.search(text, max(0, match.start() - _NEAR), match.start()) and _is_random(match[1]):
            return match.start(), "key or password in a setting"
    return None


_SETTINGS = (
    ("signed URL", ("ignature=", "sig="), _SIGNED),
    ("conda channel token", ("/t/",), _CHANNEL),
    ("HTTP credentials", ("asic ",), _BASIC),
    ("key given to a login", ("login(",), _LOGIN),
    ("Kaggle key", ('"username"',), _KAGGLE),
    ("registry credentials", ('"auth"', "_auth", "_password"), _DOCKER),
)


def _is_random(value: str) -> bool:
    """Whether this was drawn and not written: letters and digits mixed, hardly one twice, no words."""
    plain = re.sub(r"[^A-Za-z0-9]", "", value)
    digits = sum(one.isdigit() for one in plain)
    hexadecimal = re.fullmatch(r"[0-9a-f]+|[0-9A-F]+", plain) is not None
    return (
        len(plain) >= 12
        and digits >= 2
        and len(plain) - digits >= 2
        and len(set(plain)) >= (_DISTINCT if hexadecimal else min(14, len(plain) - 2))
        and max(map(len, re.split(r"[^A-Za-z0-9]", value))) >= 16  # a UUID is a name, and so are words with underscores
        and not _MADE_UP.search(value)
        and value not in _SAMPLES
        and not re.search(r"0123456789|abcdef|(.)\1{4}", value)
        and (hexadecimal or not re.search(r"[A-Z]?[a-z]{7}|[A-Z]{8}", value))
    )


def _is_sample(token: str) -> bool:
    """A JSON web token that says nothing of anybody, as those in documentation."""
    if not token.startswith("eyJ") or token.count(".") != 2:
        return False
    payload = token.split(".")[1]
    try:
        claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    except ValueError:
        return False
    return not isinstance(claims, dict) or not claims.keys() & _CLAIMS or claims.get("sub") == "1234567890"


def _is_password(user: str, password: str, host: str) -> bool:
    return (
        user.lower() != password.lower()
        and len(set(password)) > 3
        and not _NO_PASSWORD.fullmatch(password)
        and not _MADE_UP.search(password)
        and not _LOCAL.fullmatch(host)
    )
