"""Search files for secrets before they are copied. `schema.credentials` defines what secrets look like.

Files of any name are searched completely, in pieces. The search is fast because nearly every secret is a long run of letters
and digits, and most text has few of these. A table maps each byte to whether it may be part of a run, so that `bytes.find`
jumps from run to run. A pattern is tried only on runs that begin like a token or follow a name such as `token`, and near
other marks (`password`, `://`, `curl `). In binary files, tokens, keys and URLs are found, but not named values.
The contents of gzip files are searched too; other archives are not unpacked.
"""

from __future__ import annotations

import base64
import os
import re
import stat
import zlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path

import msgspec

from repro_env.io.files import Found
from repro_env.schema import codec, credentials, redact
from repro_env.schema.credentials import (
    RULE,
    is_app_password,
    is_made_up,
    is_password,
    is_placeholder,
    is_random,
    is_reference,
    is_uuid,
)
from repro_env.schema.globs import Glob
from repro_env.store.facts import FactCache

PIECE = 4 << 20
"""Bytes searched at once."""
_OVERLAP = 1 << 16
"""Bytes that a piece shares with the next, because a secret may cross the boundary."""
_INFLATED = 1 << 30
"""Maximum bytes unpacked from a gzip file."""
_HEAD = 1 << 20
"""Bytes of a file of a known kind that are searched with the rules for that kind."""
_SHOWN = 100
"""Maximum number of files that are listed; further files are only counted."""
MOST = 20
"""Maximum number of findings in one file."""
_RUN = 20
"""Minimum number of characters of a run."""
_DATA = 16384
"""A longer run is base64-encoded data, which has no tokens."""
_COLUMN = 57
"""Runs of the same length are lines of base64 if they have at least this length …"""
_COLUMNS = 8
"""… and if there are at least this many in succession."""
_AROUND = 300
"""Bytes on each side of a mark in which a pattern is searched."""
_NEAR = 60
"""Bytes before a run in which its name may be."""
_LEAD = 28
"""Bytes before a run in which a token with dots or slashes may begin (`hooks.slack.com/...`)."""
_IN_RUN = bytes(97 if (chr(byte).isalnum() and byte < 128) or byte in b"_-+/=" else 32 for byte in range(256))
_WIDE = bytes(97 if 32 < byte < 127 else 48 if byte == 0 else 32 for byte in range(256))
_DIGITS = b"0123456789"
_IGNORE = re.IGNORECASE | re.DOTALL


def _bytes(pattern: str, flags: int = 0) -> re.Pattern[bytes]:
    return re.compile(pattern.encode(), flags)


_TOKENS: dict[bytes, list[tuple[bytes, str, re.Pattern[bytes]]]] = {}
for _kind in (*credentials.SHAPES, credentials.ENCODED_KEY):
    for _needle in _kind.needles:
        _TOKENS.setdefault(_needle.encode()[:3], []).append((_needle.encode(), _kind.name, _bytes(_kind.pattern)))
_HEADS = frozenset(_TOKENS)
_NAME = re.compile(rb"[A-Z][a-z]{4,}|[a-z]{6,}")
"""Words in a symbol name of a program. A name with two of them is not a token."""
_WORD = re.compile(rb"(?:(?<![A-Za-z0-9])|(?<=\\[nrt])|(?<=%[0-9A-F]{2}))(?=(...))", re.DOTALL)
_ANYWHERE = re.compile(rb"(?=(...))", re.DOTALL)
_WITHIN = [
    (needle.encode(), kind.name, _bytes(kind.pattern)) for kind in credentials.WITHIN for needle in kind.needles if needle != "."
]
_DISCORD = _bytes(credentials.WITHIN[0].pattern)
_KEY = _bytes(credentials.PRIVATE_KEY.pattern)
_AWS = _bytes(credentials.AWS_ID.pattern)
_AWS_SECRET = _bytes(
    r"(?<![A-Za-z0-9/+=_-])(?=[^\s]{0,39}[a-z])(?=[^\s]{0,39}[A-Z])(?=[^\s]{0,39}[0-9])[A-Za-z0-9/+]{40}(?![A-Za-z0-9/+=_-])"
)

_QUOTE = r"[rbfu]{0,2}\\?[\"'`]"
_BETWEEN = (
    # What is between a name and its value: `x`, `x"`, `x")`, then the sign, `: str =`, `default=`, `value=`, a new line,
    # `|` or `>` of YAML and a new line.
    r"[\"'`)\]\\]{0,4}(?:"
    r"[ \t]{0,20}(?:=>|:=|:\s{0,4}[\w.\[\], |]{1,40}=(?!=)|[=:](?!=)|,(?=\s{0,4}[\"']))\s{0,40}\(?\s{0,40}(?:SecretStr\()?"
    r"|[\"']?:[ \t]{1,8}[|>][-+1-9]{0,2}[ \t]{0,8}\r?\n[ \t]{1,40}"
    r"|[\"'][^\n]{0,80}?(?:default|value)\s{0,4}=\s{0,4}|\n\s{0,20}value:[ \t]|[\"']?>|[ \t]is[ \t]|[ \t]{1,8}(?=[^\s=:]))"
)
_VALUE = rf"(?:{_QUOTE}([^\"'`\\\n]{{8,200}})\\?[\"'`]|([^\s\"'`,;&<>(){{}}\[\]|\\]{{8,200}}))"
_NAMED = _bytes(
    rf"(?:{credentials.NAMES}s?\d{{0,2}}{_BETWEEN}|{credentials.SHORT}\\?[\"'\]]{{0,2}}[ \t]{{0,20}}(?:=>|:=|[=:](?!=))[ \t]{{0,20}}){_VALUE}",
    _IGNORE,
)
_KEYED = _bytes(
    rf"(?:({credentials.NAMES})|{credentials.VALUE_OF_NAME})"
    + _BETWEEN
    + r"(?:[rbu]?\\?[\"'`])?([A-Za-z0-9+/_.-]{16,200}={0,2})(?![A-Za-z0-9_(\[*])",
    _IGNORE,
)
_BEARER = _bytes(
    r"(?:\bbearer|authorization[\"']?\s{0,4}[:=,]\s{0,4}[\"']?(?:basic|token|apikey))\s{1,4}([A-Za-z0-9._~+/=-]{16,200})", _IGNORE
)
_OPTION = _bytes(r" -(?:[upPakw]|-user|-proxy-user|-pass\w*)[ =]{0,2}[\"']?(?:[\w.@-]{1,60}:)?([^\s\"'`$:]{8,200})")
_TOOL = _bytes(r"\b(?:curl|wget|sshpass|mysql\w*|redis-cli|mongo\w*|docker login|openssl|zip|psql|smbclient|twine)\b")
_PAIR = rf"\(\s{{0,20}}{_QUOTE}[^\"'\\\n]{{1,80}}\\?[\"'],\s{{0,20}}(?:password\s?=\s?)?{_QUOTE}([^\"'\\\n]{{8,100}})\\?[\"']"
"""`("ann", "...")`: a user name and a password."""
_LOGIN = _bytes(rf"login\([^)\n]{{0,80}}?[\"']([0-9a-f]{{40}})\\?[\"']|login{_PAIR}|login ([0-9a-f]{{40}})\b")
_AUTH = _bytes(rf"auth(?:\s{{0,4}}=\s{{0,4}}|[\"']\s{{0,4}}:\s{{0,4}})?{_PAIR}", _IGNORE)
_ORACLE = _bytes(r"jdbc:oracle:\w+:[\w.-]{1,60}/([^\s@\"'/]{6,100})@")
_LONG = tuple(
    (mark.encode(), kind, _bytes(pattern))
    for marks, kind, pattern in (
        ("cloudsmith.io/", "package index token", r"cloudsmith\.io/(?:basic/)?([A-Za-z0-9]{16})/"),
        ("wandb", "Weights & Biases key", r"(?i:wandb)[\"']?\s{0,4}[=:]\s{0,4}[\"']?([0-9a-f]{40})(?![0-9A-Za-z])"),
        ("experiment( comet", "Comet key", r"(?:Experiment|comet_ml\.\w{1,20}|API)\(\s{0,20}\\?[\"']([A-Za-z0-9]{25})\\?[\"']"),
        ("/t/", "conda channel token", r"://[^\s\"'<>]{1,200}/t/([A-Za-z]{2}-[0-9a-f-]{20,})/"),
        ("signature= sig=", "signed URL", r"[?&](?:X-Amz-Signature|X-Goog-Signature)=([0-9A-Fa-f]{32,})"),
        ("signature= sig=", "signed URL", r"[?&;]sig=((?:[A-Za-z0-9+/]|%[0-9A-F]{2}){40,})"),
        ("signature= sig=", "signed URL", r"[?&]Signature=([A-Za-z0-9_~%+/-]{20,}).{0,40}?Key-Pair-Id="),
        ('"key"', "Kaggle key", r"\"username\"\s*:\s*\"[^\"\n]{1,100}\"\s*,\s*\"key\"\s*:\s*\"([0-9a-f]{32})\""),
        ('"key"', "Kaggle key", r"\"key\"\s*:\s*\"([0-9a-f]{32})\"\s*,\s*\"username\""),
        ("auth _password", "registry credentials", r"\"auth\"\s*:\s*\"([A-Za-z0-9+/]{16,}={0,2})\""),
        ("auth _password", "registry credentials", r"\b_(?:auth|password)\s*=\s*\"?([A-Za-z0-9+/]{16,}={0,2})"),
        ("rivate-lines:", "private key (PuTTY)", r"Private-Lines: \d+\s+([A-Za-z0-9+/=]{20,})"),
    )
    for mark in marks.split()
)
"""(mark, kind, pattern) of long values near a mark."""
_PART_OF_JWK = re.compile(rb"\"[dk]\\?\"\s*:\s*\\?\"\Z")
_KUBERNETES = _bytes(r"Secret\b(?:(?!\n---).){0,1900}?\b(?:data|stringData):[ \t\r]*((?:\n(?:[ \t][^\n]*)?)+)", re.DOTALL)
"""A Secret of Kubernetes, up to the end of its data."""
_ENTRY = _bytes(r"^\s+[\w.-]+:[ \t]*(?:[|>][-+1-9]{0,2}[ \t\r]*\n[ \t]*)?[\"']?([^\s\"'{}$<>]{8,})", re.MULTILINE)
_PART = r"(?:[^\s/:@'\"`<>{}$%()\[\]*\\,;|&#?]|%[0-9A-Fa-f]{2})"
_PASSWORD_URL = _bytes(rf"\b[A-Za-z][A-Za-z0-9+.-]{{1,30}}://({_PART}{{0,100}}):({_PART}{{3,200}})@([A-Za-z0-9.-]+)")
_TOKEN_URL = _bytes(r"://([A-Za-z0-9_-]{16,100})@[A-Za-z0-9-]+\.")
_NETRC = _bytes(r"(?:machine\s+([A-Za-z0-9.-]+)|^default)\s+(?:login\s+\S+\s+)?password\s+(\S{6,})", re.MULTILINE)
_PKCS12 = re.compile(rb"\x30[\x80-\x84].{0,4}\x02\x01\x03\x30", re.DOTALL)
_NO_PASSWORD = re.compile(
    r"pass\w*|pwd|pw|psw|secret\w*|token|admin|root|test\w*|guest|changeme|user\w*|postgres|mysql|foo|bar|baz|hunter2|minioadmin|key"
    r"|api_?key|credentials?|x+|\.+|\*+|-+|_+|abc|123\d*|my\w*|the\w*|some\w*",
    re.IGNORECASE,
)
_PLAIN_SETTING = re.compile(
    r"https?://[^@]*|[\w.-]+@[\w.-]+|[\w.-]+\.(?:org|com|net|io|dev)(?::\d+)?|[A-Za-z_ -]+|[\d.:-]+|[./~].*|.*(?:your|xxxx|example|changeme|\.\.\.|\*\*\*).*",
    re.IGNORECASE,
)
"""Values in a file of secrets that are not secret: addresses, paths, plain words."""
_MADE_UP_NETRC = re.compile(rb"example|dummy|fake|your|xxxx|placeholder|redacted|[<$]", re.IGNORECASE)
_LOCAL = re.compile(
    r"localhost|127\.\d+\.\d+\.\d+|0\.0\.0\.0|(?:.*\.)?(?:example(?:\.\w+)?|test|invalid|localdomain|local)|\w+", re.IGNORECASE
)
_PUBLIC = re.compile(
    rb"algolia|docsearch|indexname|badge|shields\.io|codecov\.io|csrf|authenticity_token|search[_-]?(?:only[_-]?)?(?:api[_-]?)?key|publishable|public[_-]?key|write[_-]?key",
    re.IGNORECASE,
)
"""Marks near public keys, which web pages contain."""
_FILES = [(kind, re.compile(rf"(?:.*/)?(?:{name})", re.IGNORECASE), _bytes(pattern)) for kind, name, pattern in credentials.FILES]

_PROGRAM = re.compile(r".*\.(?:py[ixw]?|ipynb|[cm]?[jt]s|go|c|h|cc|cpp|hpp|cu|cuh|java|kt|scala|swift|jl|r)", re.IGNORECASE)
"""Files in languages whose strings and comments can be recognized, unlike markup and shell scripts."""
_IDENTIFIER = re.compile(rb"[A-Za-z_$][\w$]*(?:(?:\.|->|::)[A-Za-z_$][\w$]*)*")
_FIELD = re.compile(rb"\{[^{}\s\"']{1,80}\}")
_F_STRING = re.compile(rb"(?i:\b(?:f|rf|fr))\\?[\"']\Z")
_QUOTES = (b'"""', b"'''", b"`")
"""Quotes of multi-line strings."""

_NAMES = {b"pass": _NAMED, b"pw": _NAMED, b"secret": _NAMED, b"credential": _NAMED, b"login": _LOGIN, b"auth": _AUTH}
"""Lower-case marks before values of any characters. All other names are searched only before long runs."""
_NAME_WORDS = (b"key", b"token", b"secret", b"auth", b"pass", b"bearer")
"""Each name before a long run that `_KEYED` or `_BEARER` matches contains one of these."""
_SETTING = "key or password in a setting"


class Secret(msgspec.Struct, frozen=True):
    """The location of a secret, without its value."""

    path: str
    line: int
    """From 1; 0 if the secret is in the path itself or in a binary file."""
    kind: str


def among(root: Path, found: Iterable[Found], *, cache: FactCache | None = None) -> Iterator[Secret]:
    """Yield the secrets in all files and in their names, in the order of `found`. Paths are relative to `root`.

    If no file had a secret in an earlier search, and none changed since then, nothing is read again.
    Raises `OSError`, with the file's name, if a file cannot be read.
    """
    found = list(found)
    if not found:
        return
    state = [(entry.path, entry.key) for entry in found]
    if cache is not None and is_clean(cache, str(root), state):
        return
    has_secrets = False
    files = (entry.path for entry in found if entry.kind == "file" and entry.size)
    for secret in chain(in_names(entry.path for entry in found), *(in_file(root, path) for path in files)):
        has_secrets = True
        yield secret
    if not has_secrets and cache is not None:
        remember_clean(cache, str(root), state)


def is_clean(cache: FactCache, *subject: object) -> bool:
    """Whether an earlier search with the same rules found no secret in this (any values that can be encoded)."""
    return cache.get("secrets", codec.digest([RULE, *subject])) is not None


def remember_clean(cache: FactCache, *subject: object) -> None:
    """Record that this has no secret, for `is_clean`."""
    cache.put("secrets", codec.digest([RULE, *subject]), b"none")


def is_declared(secret: Secret, declared: Iterable[Glob]) -> bool:
    """Whether the user declared this a false alarm with `--not-secret GLOB`."""
    matching = [glob for glob in declared if glob.matches(secret.path.lstrip("/"))]
    for glob in matching:
        glob.hit = True
    return bool(matching)


def declaration(secret: Secret) -> str:
    """Return the note in the spec about a declared false alarm."""
    line = f", line {secret.line}" if secret.line else ""
    return f"{secret.path}{line} looks like a secret ({secret.kind}), included because --not-secret accepts it"


def report(found: Sequence[Secret], options: str) -> str:
    """Return a line for each file with secrets: their lines and kinds, and the options with which the user can continue.

    `options`: names of options that take the path, separated by spaces.
    """
    files: dict[str, list[Secret]] = {}
    for secret in found:
        files.setdefault(secret.path, []).append(secret)
    lines = []
    for path, secrets in files.items():
        kinds = dict.fromkeys(f"{secret.kind}{f' (line {secret.line})' if secret.line else ''}" for secret in secrets)
        shown = redact.secretless(path)
        choices = " or ".join(f"{option} '{shown}'" for option in options.split())
        lines.append(f"{shown}: {', '.join(kinds)}; {choices}")
    more = [f"and {len(lines) - _SHOWN} more files"] if len(lines) > _SHOWN else []
    return "\n     ".join((*lines[:_SHOWN], *more))


def in_names(paths: Iterable[str]) -> Iterator[Secret]:
    """Yield the tokens in names of files and directories. A token in a directory's name is reported only once."""
    reported = set()
    for path in paths:
        if len(path) >= _RUN:
            data = os.fsencode(path)
            for start, kind in _tokens(data, text=True):
                name = data[start : data.find(b"/", start) if b"/" in data[start:] else None]
                if name not in reported and kind != _SETTING:
                    reported.add(name)
                    yield Secret(path, 0, f"{kind} in its name")


def in_file(root: Path, path: str) -> Iterator[Secret]:
    """Yield the secrets in a file below `root`. Raises `OSError` if it cannot be read."""
    fd = os.open(root / path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        facts = os.fstat(fd)
        if not stat.S_ISREG(facts.st_mode):
            return
        matches = in_chunks(iter(lambda: os.read(fd, min(PIECE, facts.st_size + 1)), b""), path)
    finally:
        os.close(fd)
    yield from (Secret(path, *match) for match in matches)


def in_chunks(chunks: Iterable[bytes], path: str = "") -> list[tuple[int, str]]:
    """Return (line, kind) of the secrets in a file's bytes, at most `MOST`. The line is 0 in binary files."""
    chunks = iter(chunks)
    first = next(chunks, b"")
    if first[:2] in (b"\xff\xfe", b"\xfe\xff"):
        # UTF-16, reduced to one byte per character, because all patterns are ASCII.
        chunks, first = iter(()), b"".join((first, *chunks)).decode("utf-16", "replace").encode("latin-1", "replace")
    elif first[:3] == b"\x1f\x8b\x08":
        chunks = _inflated(chain([first], chunks))
        first = next(chunks, b"")
    text = first.count(b"\0", 0, 8192) * 100 <= min(len(first), 8192)
    program = first.startswith((b"\x7fELF", b"!<arch>"))
    matches = dict.fromkeys(_in_known_file(path, first[:_HEAD], text=text))
    code = _PROGRAM.fullmatch(path) is not None
    overlap, lines = b"", 0
    for chunk in chain([first], chunks):
        piece = overlap + chunk
        for offset, kind in _in_bytes(piece, text=text, program=program, code=code):
            matches[(piece.count(b"\n", 0, offset) + 1 + lines if text else 0), kind] = None
        if len(matches) >= MOST:
            break
        overlap = piece[-_OVERLAP:]
        lines += piece.count(b"\n") - overlap.count(b"\n")
    specific_lines = {line for line, kind in matches if kind != _SETTING}
    return sorted((line, kind) for line, kind in matches if kind != _SETTING or line not in specific_lines)[:MOST]


def _in_bytes(data: bytes, *, text: bool, program: bool = False, code: bool = False) -> Iterator[tuple[int, str]]:
    """Yield (offset, kind) of secrets, in no particular order.

    `text`: whether named values count too. `program`: whether it is a binary with symbol names. `code`: whether it is program
    text, in which an unquoted value is an expression.
    """
    yield from _tokens(data, text=text, program=program, code=code)
    yield from _keys(data)
    yield from _at_signs(data)
    if text:
        yield from _named(data, code=code)
        yield from _commands(data)
    else:
        yield from _wide(data)


def _inflated(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the content of a gzip file, up to a limit or the first error."""
    inflater, total = zlib.decompressobj(31), 0
    for chunk in chunks:
        data = chunk
        while data and total < _INFLATED:
            try:
                piece = inflater.decompress(data, PIECE)
            except zlib.error:
                return
            total += len(piece)
            yield piece
            data = inflater.unconsumed_tail
            if inflater.eof:
                data, inflater = inflater.unused_data, zlib.decompressobj(31)


def _in_known_file(path: str, head: bytes, *, text: bool) -> Iterator[tuple[int, str]]:
    """Yield the secrets in a file whose kind is known from its name or its first bytes."""
    for kind, magic in credentials.MAGIC:
        if head.startswith(magic):
            yield 0, kind
    if path.lower().endswith((".p12", ".pfx")) and _PKCS12.match(head):
        yield 0, "key store (PKCS #12)"
    for kind, name, pattern in _FILES if text else ():
        for match in pattern.finditer(head) if name.fullmatch(path) else ():
            value = match[1].decode("latin-1").rstrip(",;\"'")
            if not is_reference(value) and not _NO_PASSWORD.fullmatch(value) and not _PLAIN_SETTING.fullmatch(value):
                yield head.count(b"\n", 0, match.start(1)) + 1, kind


def _tokens(data: bytes, *, text: bool, program: bool = False, code: bool = False) -> Iterator[tuple[int, str]]:
    """Yield tokens by their form, and in text also random values after a name such as `token`.

    In binary data any byte may precede a token, so the middle of words is searched too. This does not apply to programs,
    which have many long names.
    """
    at_word_starts = text or program
    for start, end in _runs(data):
        lead = max(0, start - _LEAD)
        region = data[lead:end]
        if not _HEADS.isdisjoint(
            _WORD.findall(region) if at_word_starts else map(bytes, zip(region, region[1:], region[2:], strict=False))
        ):
            for start_match in (_WORD if at_word_starts else _ANYWHERE).finditer(region):
                for needle, kind, pattern in _TOKENS.get(start_match[1], ()):
                    at = lead + start_match.start(1)
                    match = pattern.match(data, at) if data.startswith(needle, at) else None
                    if match and not _made_up(match[0]) and not (program and len(_NAME.findall(match[0])) > 1):
                        yield at, kind
        sides = data[end : end + 1] + data[start - 1 : start]
        around = data[max(0, start - _NEAR) : end + _NEAR] if end - start > 31 or any(map(sides.__contains__, b".~:$")) else b""
        for needle, kind, pattern in _WITHIN if around else ():
            if needle in around:
                for match in pattern.finditer(data, max(0, start - 100), end + 100):
                    if not _made_up(match[0]):
                        yield match.start(), kind
        if data[end : end + 1] == b"." and data[start] in b"MNO":
            match = _DISCORD.match(data, start, end + 60)
            if match and is_random(match[0].decode("latin-1")):
                yield start, "Discord token"
        if b"AKIA" in region or b"ASIA" in region:
            yield from _aws(data, start, end)
        if text:
            yield from _keyed(data, start, end, code=code)


def _aws(data: bytes, start: int, end: int) -> Iterator[tuple[int, str]]:
    match = _AWS.search(data, start, end + 1)
    if match is None or _made_up(match[0]):
        return
    for secret in _AWS_SECRET.finditer(data, max(0, start - _AROUND), end + _AROUND):
        if not _made_up(secret[0]):
            yield secret.start(), "AWS secret key"


def _made_up(value: bytes) -> bool:
    return is_made_up(value.decode("latin-1"))


def _keyed(data: bytes, start: int, end: int, *, code: bool) -> Iterator[tuple[int, str]]:
    """Yield long values after a name such as `secret` or `token`."""
    begin = max(0, start - _NEAR)
    context = data[begin:end].lower()
    if any(map(context.__contains__, _NAME_WORDS)):
        for match in _KEYED.finditer(data, begin, end + 3):
            value = match[2].decode("latin-1")
            if not match[1] and b"," in data[match.start() : match.start(2)]:
                continue  # `assertEqual(key, "...")`
            has_name = match[1] or data[match.start() : match.start() + 3].isupper()
            if (
                (is_random(value) or (has_name and is_uuid(value)))
                and not _is_public(data, match.start(), value)
                and not _is_expression(data, *match.span(2), code=code)
            ):
                yield match.start(2), _SETTING
        for match in _BEARER.finditer(data, begin, end + 1):
            value = match[1].decode("latin-1")
            if is_random(value) and not value.startswith("eyJ"):  # JSON web tokens have their own rule
                yield match.start(1), "HTTP credentials"
    if (
        data[start - 1 : start] == b'"'
        and _PART_OF_JWK.search(data, begin, start)
        and b'"kty' in data[max(0, start - 4000) : end + 4000]
    ):
        yield start, "private key (JWK)"
    for mark, kind, pattern in _LONG:
        if mark in context:
            for match in pattern.finditer(data, max(0, start - _AROUND), end + _AROUND):
                value = match[1].decode("latin-1")
                if match.end() > start and (
                    is_random(value)
                    or mark in (b"rivate-lines:", b"/t/")
                    or (len(value) == 16 and not is_made_up(value) and any(map(str.isdigit, value)))
                ):
                    yield match.start(), kind


def _is_public(data: bytes, at: int, value: str) -> bool:
    """Whether words near a value show that it is public: a search key (Algolia), the token of a badge, a key to write events."""
    return (
        re.fullmatch("[0-9A-Za-z]{32,88}={0,2}", value) is not None
        and _PUBLIC.search(data, max(0, at - _AROUND), at + _AROUND) is not None
    )


def _runs(data: bytes) -> Iterator[tuple[int, int]]:
    """Yield (start, end) of the long runs with a digit (paths: two digits), and of runs with a Hugging Face token."""
    table = data.translate(_IN_RUN)
    long, find = b"a" * _RUN, table.find
    last = repeated = end = 0
    while (start := find(long, end)) >= 0:
        end = find(b" ", start + _RUN)
        if end < 0:
            end = len(table)
        length = end - start
        repeated = repeated + 1 if length == last and length >= _COLUMN else 0
        last = length
        if length > _DATA or repeated >= _COLUMNS:
            continue
        run = data[start:end]
        digits = length - len(run.translate(None, _DIGITS))
        if digits < 2 and (not digits or b"/" in run) and b"hf_" not in run:
            continue  # a name or a path
        yield start, end


def _keys(data: bytes) -> Iterator[tuple[int, str]]:
    """Yield private keys, by their first line."""
    position, done = data.find(b"PRIVATE KEY"), 0
    while position >= 0:
        match = _KEY.search(data, max(done, position - 40), position + 22_000)
        if match is not None and match.start() < position:
            yield match.start(), credentials.PRIVATE_KEY.name
            done = match.end()
        position = data.find(b"PRIVATE KEY", max(done, position + 1))


def _at_signs(data: bytes) -> Iterator[tuple[int, str]]:
    """Yield passwords and tokens before the host of a URL."""
    position, done = data.find(b"@"), 0
    while position >= 0:
        scheme = data.rfind(b"://", max(done, position - _AROUND), position)
        if scheme >= 0:
            for match in _PASSWORD_URL.finditer(data, max(0, scheme - 32), position + 100):
                user, password, host = (part.decode("latin-1") for part in match.groups())
                if match.end() > position and _is_password_of_url(user, password, host):
                    yield match.start(), "password in a URL"
            token = _TOKEN_URL.match(data, scheme, position + 100)
            # The user in an ssh URL is a name, not a token.
            if token and not data.endswith(b"ssh", 0, scheme) and is_random(token[1].decode("latin-1")):
                yield token.start(), "token in a URL"
            done = position
        elif data.startswith(b"@//", position) and (oracle := _ORACLE.search(data, max(0, position - _AROUND), position + 1)):
            yield oracle.start(), "password in a JDBC address"
        position = data.find(b"@", position + 1)


def _is_expression(data: bytes, start: int, end: int, *, code: bool) -> bool:
    """Whether a program computes the value from `start` to `end`: it is a call, a name or an f-string, not a literal.

    In strings and comments of a program, as in all other text, an unquoted word counts as a literal.
    """
    if data[start - 1 : start] in (b'"', b"'", b"`"):
        return _F_STRING.search(data, max(0, start - 5), start) is not None and _FIELD.search(data, start, end) is not None
    if _IDENTIFIER.fullmatch(data, start, end) is None:
        return False
    if data[end : end + 1] == b"(" and not is_random(data[start:end].decode("latin-1")):
        return True
    line = data[data.rfind(b"\n", 0, start) + 1 : start]
    return (
        code
        and not any(mark in line for mark in (b"#", b"//"))
        and not any(line.count(quote) % 2 for quote in (b'"', b"'"))
        and not any(data.count(mark, 0, start) % 2 for mark in _QUOTES)
        and data.rfind(b"/*", 0, start) <= data.rfind(b"*/", 0, start)
    )


def _named(data: bytes, *, code: bool) -> Iterator[tuple[int, str]]:
    """Yield passwords and other secrets, by the name before them. `code`: whether it is program text."""
    small = data.lower()
    for mark, pattern in _NAMES.items():
        position = small.find(mark)
        while position >= 0:
            match = pattern.match(data, position)
            if match is not None:
                start, end = next(match.span(group) for group in range(1, len(match.groups()) + 1) if match[group])
                value = data[start:end].decode("latin-1")
                if (
                    (is_password(value) or is_random(value) or (pattern is _LOGIN and is_app_password(value)))
                    and not _is_public(data, position, value)
                    and not _is_expression(data, start, end, code=code)
                ):
                    yield match.start(), _SETTING
            elif small.startswith(b"kind: ", position - 6) and (secret := _KUBERNETES.match(data, position, position + 2000)):
                if not all(_is_harmless(entry[1].decode("latin-1")) for entry in _ENTRY.finditer(secret[1])):
                    yield secret.start(), "secret of Kubernetes"
            elif small.startswith(b"password ", position) and (
                login := _NETRC.search(data, max(0, position - 200), position + 200)
            ):
                password, host = login[2].decode("latin-1"), (login[1] or b"x.y").decode("latin-1")
                if not _NO_PASSWORD.fullmatch(password) and not _MADE_UP_NETRC.search(login[0]) and not _LOCAL.fullmatch(host):
                    yield login.start(), "password of a .netrc"
            position = small.find(mark, position + len(mark))


def _is_harmless(value: str) -> bool:
    """Whether a value of a Kubernetes Secret, encoded or decoded, is a reference or a placeholder."""
    try:
        plain = base64.b64decode(value, validate=True).decode("ascii").strip()
    except ValueError:
        plain = value
    return any(is_reference(text) or is_placeholder(text) or _NO_PASSWORD.fullmatch(text) for text in (value, plain))


def _commands(data: bytes) -> Iterator[tuple[int, str]]:
    """Yield passwords in options of well-known commands: `curl -u ann:...`, `mysql -p...`."""
    for match in _OPTION.finditer(data):
        if is_password(match[1].decode("latin-1")) and _TOOL.search(
            data[data.rfind(b"\n", 0, match.start()) + 1 : match.start()][-200:]
        ):
            yield match.start(), "password in a command"


def _wide(data: bytes) -> Iterator[tuple[int, str]]:
    """Yield tokens in text with two or four bytes per character, as in programs for Windows and numpy arrays."""
    table = data.translate(_WIDE)
    for unit in (b"a0", b"a000"):
        position = table.find(unit * 16)
        while position >= 0:
            end = position
            while table.startswith(unit, end):
                end += len(unit)
            for start, kind in _tokens(data[position : end : len(unit)], text=True):
                yield position + start * len(unit), kind
            position = table.find(unit * 16, end)


def _is_password_of_url(user: str, password: str, host: str) -> bool:
    return (
        user.lower() != password.lower()
        and len(set(password)) > 3
        and not _NO_PASSWORD.fullmatch(password)
        and (len(password) > 7 if not user else not re.fullmatch(r"user\w*", user))
        and not re.search(r"example|dummy|fake|your|xxxx|1234567890|placeholder|redacted|\bpass|passw", password, re.IGNORECASE)
        and not _LOCAL.fullmatch(host)
    )
