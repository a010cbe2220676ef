"""Secrets out of strings: every string that is written down passes through `url` or `line`.

Recognisers are few and precise, since the same ones decide whether a source file holds a secret
(`capture.secrets`). What is taken out leaves `<redacted>` behind, never a hash of it: a hash of a short
secret can be searched.
"""

from __future__ import annotations

import re
from typing import NamedTuple

REDACTED = "<redacted>"
LONGEST = 20_000
"""Of `model.text.Line`."""


class Kind(NamedTuple):
    """One kind of secret."""

    name: str
    needles: tuple[str, ...]
    """Plain strings of which at least one stands in every match: found first, at the speed of `in`."""
    pattern: str


_BEFORE = r"(?<![A-Za-z0-9_-])"
_AFTER = r"(?![A-Za-z0-9])"


def _token(name: str, needles: tuple[str, ...], pattern: str) -> Kind:
    return Kind(name, needles, _BEFORE + pattern + _AFTER)


PRIVATE_KEY = Kind(
    "private key",
    ("PRIVATE KEY",),
    # Up to the end mark where there is one; a header alone, as code that looks for keys has it, is no key.
    r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----(?:\s|\\r|\\n|[\"',]){1,8}[A-Za-z0-9+/=:., -]{16}"
    r"(?:(?s:.){0,20000}?-----END [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----|[A-Za-z0-9+/=\s\\\"',]*)",
)
TOKENS = (
    _token("Hugging Face token", ("hf_", "api_org_"), r"(?:hf_|api_org_)(?=[A-Za-z]*[0-9A-Z])[A-Za-z0-9]{30,}"),
    _token("GitHub token", ("ghp_", "gho_", "ghu_", "ghs_", "ghr_"), r"gh[pousr]_[A-Za-z0-9]{36,}"),
    _token("GitHub token", ("github_pat_",), r"github_pat_[A-Za-z0-9_]{40,}"),
    _token("GitLab token", ("glpat-",), r"glpat-[A-Za-z0-9_.-]{20,}"),
    _token("Slack token", ("xox",), r"xox[abeoprs]-[0-9A-Za-z-]{20,}"),
    _token("NVIDIA API key", ("nvapi-",), r"nvapi-[A-Za-z0-9_-]{40,}"),
    _token("PyPI token", ("pypi-",), r"pypi-AgE[A-Za-z0-9_-]{40,}"),
    _token("npm token", ("npm_",), r"npm_[A-Za-z0-9]{36}"),
    _token("Google API key", ("AIza",), r"AIza[A-Za-z0-9_-]{35}"),
    _token("Stripe key", ("_live_",), r"[sr]k_live_[A-Za-z0-9]{20,}"),
    # A long unbroken part with a digit in it: `sk-learn-baseline-of-last-week` is a name.
    _token(
        "API key",
        ("sk-",),
        r"sk-(?=[A-Za-z0-9_-]*[A-Za-z0-9]{16})(?=[A-Za-z_-]*[0-9])[A-Za-z0-9][A-Za-z0-9_-]{18,}[A-Za-z0-9]",
    ),
)
AWS_ID = _token("AWS key id", ("AKIA", "ASIA"), r"(?:AKIA|ASIA)[A-Z2-7]{16}")

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,30}://[^\s\"'<>`\\]+")
_LONG_VALUE = re.compile(r"(?=[^&]*[0-9])(?=[^&]*[A-Za-z])[A-Za-z0-9_.~%+/=-]{20,}")
_SIGNING = re.compile(
    r"(?i)x-(?:amz|goog|oss|cos|ms)-.*|.*(?:token|secret|signature|credential|password|passwd|api[_-]?key).*"
    r"|sig|sign|auth|authorization|key|pass|pwd|policy|expires|awsaccesskeyid|googleaccessid|key-pair-id|hdnts|jwt|se|sp|sv|st|skoid"
)
"""Names of query values that give access."""
_IN_PATH = re.compile(r"/t/[^/]+(?=/|\Z)")
_BROAD = re.compile("|".join(kind.pattern for kind in (PRIVATE_KEY, *TOKENS, AWS_ID)))
_BEARER = re.compile(r"(?i)\b(authorization\s*[:=]\s*[\"']?(?:bearer|basic|token)|bearer)(\s+)[A-Za-z0-9._~+/=-]{8,}")
_PASSWORD = re.compile(
    r"(?i)((?:\b|_|--?)(?:password|passwd|passphrase|client[_-]?secret|secret[_-]?(?:access[_-]?)?key|api[_-]?key|access[_-]?key)"
    r"[\"']?(?:\s*[=:]\s*|\s+(?=\S))[\"']?)(?!<redacted>)[^\s\"'<>&,;]{6,}"
)
_TOKEN = re.compile(
    # Long ones only: `--eos_token <s>` and `--max-tokens 512` are a model's, not a door's.
    r"(?i)((?:\b|_|--?)(?:token|secret)[\"']?(?:\s*[=:]\s*|\s+(?=\S))[\"']?)(?=[^\s\"']*[0-9])(?!<redacted>)[A-Za-z0-9._~+/=-]{16,}"
)
_NOT_TEXT = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff]")
_SURROGATE = re.compile("[\ud800-\udfff]")


def url(text: str) -> str:
    """A URL without credentials: no userinfo (ssh keeps the user's name), no signed query, no token in the path."""
    scheme, separator, rest = text.partition("://")
    if not separator:
        return _BROAD.sub(REDACTED, text)
    if "@" in rest and not _is_host(re.split("[/?#]", rest, maxsplit=1)[0]):
        # A slash, question mark or hash in the password: what looks like the host is the user's name.
        rest = "@" + rest.rpartition("@")[2]
    rest, fragment_mark, fragment = rest.partition("#")
    rest, query_mark, query = rest.partition("?")
    authority, slash, path = rest.partition("/")
    user, at, host = authority.rpartition("@")
    if at and scheme.lower().endswith("ssh"):
        host = f"{user.partition(':')[0]}@{host}"
    path = _IN_PATH.sub(f"/t/{REDACTED}", slash + path)
    if _gives_access(query):
        query_mark = query = ""
    if fragment_mark and any(_SIGNING.fullmatch(part.partition("=")[0]) for part in fragment.split("&")):
        fragment_mark = fragment = ""
    return scheme + "://" + host + _BROAD.sub(REDACTED, path + query_mark + query + fragment_mark + fragment)


def line(text: str) -> str:
    """One line without secrets: fits `model.text.Line` whatever comes in.

    Control characters, line ends and characters that reorder text become spaces, undecodable bytes U+FFFD;
    over 20 000 characters the rest is cut.
    """
    # A bound on the work, well behind what is kept: a program can print anything.
    text = _BROAD.sub(REDACTED, text[: 4 * LONGEST])
    text = _URL.sub(lambda match: url(match[0]), text)
    text = _BEARER.sub(rf"\1\2{REDACTED}", text)
    text = _PASSWORD.sub(rf"\1{REDACTED}", text)
    text = _TOKEN.sub(rf"\1{REDACTED}", text)
    text = _SURROGATE.sub("\ufffd", _NOT_TEXT.sub(" ", text))
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def _is_host(text: str) -> bool:
    """Whether this can stand before a path: with userinfo in it, or without anything like a user's password."""
    host, colon, port = text.rpartition(":")
    return "@" in text or not colon or text.endswith("]") or port == "" or (port.isdigit() and bool(host))


def _gives_access(query: str) -> bool:
    pairs = (part.partition("=") for part in query.split("&"))
    return any((mark and _SIGNING.fullmatch(name)) or _LONG_VALUE.fullmatch(value) for name, mark, value in pairs)
