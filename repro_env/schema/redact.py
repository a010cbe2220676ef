"""Take secrets out of strings: every string that is written down or printed passes through `url`, `line` or `value`.

Values in use (a path that is opened, a URL that is fetched) are not changed; they are redacted where they are written. The
patterns of secrets are in `schema.credentials`, shared with the search of files, which has stricter rules. A secret becomes
`<redacted>`, never a hash: the hash of a short secret can be reversed by trying. Plain words are kept, unless they
follow an option for a secret, so that text stays readable.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from repro_env.schema import credentials
from repro_env.schema.credentials import is_made_up, is_random, is_reference
from repro_env.schema.patterns import lazy

REDACTED = "<redacted>"
LONGEST = 20_000
"""Maximum length of `schema.text.Line`."""


_URL = lazy(r"[A-Za-z][A-Za-z0-9+.-]{0,30}://[^\s\"'<>`\\]+")
_LONG_VALUE = lazy(r"(?=[^&]*[0-9])(?=[^&]*[A-Za-z])(?!/)[A-Za-z0-9_.~%+/=-]{20,}")
_SIGNING = lazy(
    r"(?i)x-(?:amz|goog|oss|cos|ms)-.*|.*(?:token|secret|signature|credential|password|passwd|api[_-]?key).*"
    r"|sig|sign|auth|authorization|key|pass|pwd|policy|expires|awsaccesskeyid|googleaccessid|key-pair-id|hdnts|jwt|se|sp|sv|st|skoid"
)
"""Names of query values that give access."""
_IN_PATH = lazy(r"/t/[^/]+(?=/|\Z)")
_CONDA_TOKEN = lazy(r"(?<!file)(://[^\s\"'<>/]{1,300}(?:/[^\s\"'<>]{0,300}?)?/t/)[A-Za-z0-9_-]{8,}(?=/)")
_TOKEN_PATH = lazy(r"(?:basic/)?(?=[^/]*[0-9])(?=[^/]*[A-Za-z])[A-Za-z0-9_-]{16,}(?=/|\Z)")
"""A part of an index's path that is a token: of Cloudsmith, Gemfury, Packagecloud."""
_TOKEN_HOSTS = lazy(r"(?:.+\.)?(?:cloudsmith\.io|fury\.io|packagecloud\.io|fury\.site|repoflow\.io)(?::\d+)?")
_KINDS = [
    (kind.needles, lazy(kind.pattern))
    for kind in (credentials.PRIVATE_KEY, credentials.ENCODED_KEY, *credentials.TOKENS, credentials.AWS_ID)
]
_BEARER = lazy(r"(?i)\b(authorization[\"']?\s*[:=,]\s*[\"']?(?:bearer|basic|token|apikey)|bearer)(\s+)([A-Za-z0-9._~+/=-]{8,})")
_NAME = rf"(?:{credentials.NAMES}|pass|pw|token|auth)"
_NAMED = lazy(
    # A name, its sign and a value; the value of an option may follow a space.
    rf"(?i)((?<![A-Za-z])(--?[\w-]{{0,40}}?(?<!not-))?({_NAME})s?\d?\\?[\"'\]]{{0,2}}(\s?=>?\s?|\s?:\s?|\s+(?=[^\s=:])|[\"'],\s?(?=[\"']))(?:[rbu]?\\?[\"'])?)"
    r"(?!<redacted>)([^\s\"'<>&,;`]{6,})"
)
_KEYED = lazy(
    rf"(?i)((?<![A-Za-z])[\w-]{{0,40}}{credentials.VALUE_OF_NAME}[\"']?\s?[=:]\s?[\"']?|--?[\w-]{{0,40}}{credentials.VALUE_OF_NAME}\s+)(?!<redacted>)([A-Za-z0-9._~+/=-]{{16,}})"
)
_HINTS = ("pass", "pw", "secret", "token", "auth", "key", "credential")
"""Every name of a secret contains one of these, in lower case."""
_PAIR = lazy(
    # Every match of _NAMED and _KEYED contains a match of this pattern, which is much faster.
    r"(?i)(?:pass[a-z]*|pwd?|secret|token|auth[a-z]*|key|credential)s?\d?\\?[\"'\]]{0,2}"
    r"(?:\s?=>?\s?|\s?:\s?|\s+|[\"'],\s?)(?:[rbu]?\\?[\"'])?[^\s\"'<>&,;`]{6}"
)
_LONG = lazy(r"[A-Za-z0-9_=+/-]{15}|PRIVATE KEY")
"""Every token contains a match of this."""
_WORD = lazy(r"[A-Za-z]?[a-z]*(?:[-_'][a-z]+)*[.:!?)]*")
"""A plain word, which cannot be distinguished from text."""
_NO_SCHEME = lazy(
    # `user:password@proxy:3128`, but not an image's `name:tag@sha256:...` or a URL with a scheme.
    r"(?<![\w/.%+@:-])(?!mailto:)([\w.%+-]{1,100}):(?!//)[^\s:@/\"'<>]{3,200}@(?!sha\d+:)(?=[A-Za-z0-9][\w-]*(?:\.[\w-]+|:[0-9]))"
)
_USER = lazy(r"((?:\A|\s)(?:-u|--user|--proxy-user)[\s=][\"']?[^\s:]{1,100}:)(?!//|\.\.\.|\$)[^\s<\"'`]+")
_NOT_TEXT = lazy("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff]")
_SURROGATE = lazy("[\ud800-\udfff]")


def url(text: str) -> str:
    """Return a URL without credentials: no userinfo (ssh keeps the user's name), no signed query, no token in the path.

    The path of a `file:` URL is not changed, whatever its directories are called.
    """
    scheme, separator, location = text.partition("://")
    if not separator:
        return _without_tokens(text)
    local = scheme.lower().endswith("file") and location.startswith("/")
    if not local and "@" in location and not _is_host(re.split("[/?#]", location, maxsplit=1)[0]):
        # The password contains a slash, question mark or hash, so that the user's name looks like the host.
        location = "@" + location.rpartition("@")[2]
    location, fragment_mark, fragment = location.partition("#")
    location, query_mark, query = location.partition("?")
    authority, slash, path = location.partition("/")
    user, at, host = authority.rpartition("@")
    if at and scheme.lower().endswith("ssh"):
        host = f"{user.partition(':')[0]}@{host}"
    path = slash + path
    if not local:
        path = _IN_PATH.sub(f"/t/{REDACTED}", path)
        if _TOKEN_HOSTS.fullmatch(host.lower()):
            path = re.sub(rf"(?<=/){_TOKEN_PATH.pattern}", REDACTED, path)
    if _gives_access(query):
        query_mark = query = ""
    if fragment_mark and any(_SIGNING.fullmatch(part.partition("=")[0]) for part in fragment.split("&")):
        fragment_mark = fragment = ""
    redacted = scheme + "://" + host + _without_tokens(path + query_mark + query + fragment_mark + fragment)
    return redacted if redacted == text else url(redacted)  # without the removed parts, more may be recognized


def line(text: str, hidden: Iterable[str] = ()) -> str:
    """Return one line without secrets that is a valid `schema.text.Line`. `hidden`: values that are known to be secret.

    Control characters, newlines and characters that reorder text become spaces; undecodable bytes become U+FFFD. The line
    is truncated to 20,000 characters.
    """
    # Bounds the work for very long input.
    return one_line(secretless(text[: 4 * LONGEST], hidden))


def one_line(text: str) -> str:
    """Return text without secrets as a valid `schema.text.Line`."""
    text = _SURROGATE.sub("\ufffd", _NOT_TEXT.sub(" ", text))
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def all_texts(value: Any) -> Any:
    """Return a JSON value with `line` applied to every text in it, except to the keys of objects."""
    if isinstance(value, dict):
        return {key: all_texts(item) for key, item in value.items()}
    if isinstance(value, list):
        return [all_texts(item) for item in value]
    return line(value) if isinstance(value, str) else value


def printable(text: str) -> bool:
    """Whether text can be printed unchanged as one line: no control characters, no undecodable bytes."""
    return encodable(text) and not _NOT_TEXT.search(text)


def encodable(text: str) -> bool:
    """Whether a record can have the text unchanged: it is not too long and has no undecodable bytes."""
    return len(text) <= LONGEST and not _SURROGATE.search(text)


def secretless(text: str, hidden: Iterable[str] = ()) -> str:
    """Return text without secrets, but with its newlines and control characters. `hidden`: values that are known to be secret."""
    for secret in sorted(hidden, key=len, reverse=True):
        text = text.replace(secret, REDACTED)
    text = _without_tokens(text)
    if "://" in text:
        text = _URL.sub(lambda match: url(match[0]), text)
        text = _CONDA_TOKEN.sub(rf"\1{REDACTED}", text)
    lower = text.lower()
    if "bearer" in lower or "authorization" in lower:
        text = _BEARER.sub(_redact_header, text)
    if any(hint in lower for hint in _HINTS) and _PAIR.search(text):
        text = _KEYED.sub(_redact_keyed, _NAMED.sub(_redact_named, text))
    if ":" in text:
        text = _USER.sub(rf"\1{REDACTED}", text)
        if "@" in text:
            text = _NO_SCHEME.sub(rf"{REDACTED}@", text)
    return text


def lines(text: str, hidden: Iterable[str] = ()) -> str:
    """Do the same as `secretless`, faster for long text: the slow patterns are applied only if a name of a secret occurs."""
    if _PAIR.search(text) is None:
        return secretless(text, hidden)
    hidden = tuple(hidden)
    text = _without_tokens(text)  # first, because a private key has several lines
    return "".join(secretless(line, hidden) for line in text.splitlines(keepends=True))


def value(name: str, text: str) -> str:
    """Return the value of a setting or option without secrets. Its name alone can show that it is a secret.

    `name` may be dotted (`logger.wandb.key`).
    """
    shown = line(text)
    if REDACTED in shown or not text or is_reference(text) or _is_plain(text):
        return shown
    last = name.rpartition(".")[2].lstrip("-")
    if _SECRET_NAME.search(last) and not _PLAIN_NAME.search(last):
        return REDACTED
    return REDACTED if _POSSIBLE_NAME.search(name) and _may_be_random(text) else shown


_SECRET_NAME = lazy(
    rf"(?i)(?:\A|[_-]|(?<=[a-z])(?=[A-Z])){credentials.NAMES}s?\d?\Z|(?:\A|[_-])(?:pass|pw|auth|auth[_-]?token|token)\Z|(?:passw|passphrase)\w{{0,8}}\Z"
)
_PLAIN_NAME = lazy(
    r"(?i)(?:max|min|num|n|eos|bos|pad|unk|sep|cls|mask|special|stop|image|end|start|sort|cache|group|primary|partition)[_-]?(?:new[_-]?)?(?:tokens?|key)\Z|tokens\Z"
)
_POSSIBLE_NAME = lazy(r"(?i)key\Z|tokens?\Z|auth|credential|secret|wandb|\Ap\Z|\A-p\Z|\A-P\Z|\A-a\Z|\A-k\Z|\A-w\Z")
_PLAIN = lazy(
    r"[\d.,:eE+-]*|true|false|none|null|yes|no|\[.*\]|\{.*\}|[./~][^\s=:@]*|<.*>|\|.*\||.{0,5}|[\w-]+\.(?:json|ya?ml|txt|pem|key|toml|py|env|csv)",
    re.IGNORECASE | re.DOTALL,
)

_FILE = lazy(r"(?:[\w=.-]+/)+[\w=.-]+\.[A-Za-z]\w{0,11}", re.ASCII)
"""A relative path of a file. It counts as plain only if its first part does not look like a secret, as in `password=.../...`."""


def _is_plain(text: str) -> bool:
    """Whether a value is a number, a switch, a path or a special token of a model: these are not secret, whatever their name."""
    return _PLAIN.fullmatch(text) is not None or (
        _FILE.fullmatch(text) is not None and not _may_be_random(text.partition("/")[0])
    )


def _may_be_random(text: str) -> bool:
    """Whether a value may be a secret: letters and digits mixed, long enough, and not a path or version."""
    return (
        len(text) >= 8
        and any(map(str.isdigit, text))
        and any(map(str.isalpha, text))
        and "/" not in text.strip("/=")[:8]
        and not re.search(r"[a-z]{5}|\.\w{1,5}\Z|[=:]", text)
    ) or is_random(text)


def _redact_header(match: re.Match[str]) -> str:
    return match[0] if _WORD.fullmatch(match[3]) or is_reference(match[3]) else f"{match[1]}{match[2]}{REDACTED}"


def _redact_named(match: re.Match[str]) -> str:
    before, option, name, sign, text = match.groups()
    token = name.lower() in ("token", "auth", "secret") or (option and len(name) < 5)
    spaced = not sign.strip(" \t")
    if (
        is_reference(text)
        or _is_plain(text)
        or (spaced and (not option or text.startswith("-")))
        or (_WORD.fullmatch(text) and not (option and spaced and not token) and not (sign == "=" and name.isupper()))
        or (token and not (len(text) >= 16 and any(map(str.isdigit, text))))
        or _CODE.match(text)
    ):
        return match[0]
    return before + REDACTED


_CODE = lazy(r"[A-Za-z_][\w.]*(?:\(|\[)|[a-z_]+\.[a-z_.]+\b|\(|\[|\{|\\|\*+\Z|\.+\Z")


def _redact_keyed(match: re.Match[str]) -> str:
    text = match[2]
    return match[1] + REDACTED if is_random(text) and not is_made_up(text) and not _is_plain(text) else match[0]


def _without_tokens(text: str) -> str:
    if _LONG.search(text):
        for needles, pattern in _KINDS:
            if any(needle in text for needle in needles):
                text = pattern.sub(REDACTED, text)
    return text


def _is_host(text: str) -> bool:
    """Whether this can be the authority of a URL: it contains userinfo, or nothing that looks like a user's password."""
    host, colon, port = text.rpartition(":")
    return "@" in text or not colon or text.endswith("]") or port == "" or (port.isdigit() and bool(host))


def _gives_access(query: str) -> bool:
    pairs = (part.partition("=") for part in query.split("&"))
    return any((mark and _SIGNING.fullmatch(name)) or _LONG_VALUE.fullmatch(value) for name, mark, value in pairs)
