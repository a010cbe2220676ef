"""Take secrets out of strings: every string that is written down or printed passes through `url`, `line` or `value`.

Values in use (a path that is opened, a URL that is fetched) are not changed; they are redacted where they are written. The
patterns of secrets are in `model.credentials`, shared with the search of files, which has stricter rules. A secret becomes
`<redacted>`, never a hash: the hash of a short secret can be reversed by trying. Plain words are kept, unless they
follow an option for a secret, so that text stays readable.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache

from repro_env.model import credentials
from repro_env.model.credentials import is_made_up, is_random, is_reference

REDACTED = "<redacted>"
LONGEST = 20_000
"""Of `model.text.Line`."""


_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,30}://[^\s\"'<>`\\]+")
_LONG_VALUE = re.compile(r"(?=[^&]*[0-9])(?=[^&]*[A-Za-z])(?!/)[A-Za-z0-9_.~%+/=-]{20,}")
_SIGNING = re.compile(
    r"(?i)x-(?:amz|goog|oss|cos|ms)-.*|.*(?:token|secret|signature|credential|password|passwd|api[_-]?key).*"
    r"|sig|sign|auth|authorization|key|pass|pwd|policy|expires|awsaccesskeyid|googleaccessid|key-pair-id|hdnts|jwt|se|sp|sv|st|skoid"
)
"""Names of query values that give access."""
_IN_PATH = re.compile(r"/t/[^/]+(?=/|\Z)")
_CONDA_TOKEN = re.compile(r"(?<!file)(://[^\s\"'<>/]{1,300}(?:/[^\s\"'<>]{0,300}?)?/t/)[A-Za-z0-9_-]{8,}(?=/)")
_TOKEN_PATH = re.compile(r"(?:basic/)?(?=[^/]*[0-9])(?=[^/]*[A-Za-z])[A-Za-z0-9_-]{16,}(?=/|\Z)")
"""A part of an index's path that is a token: of Cloudsmith, Gemfury, Packagecloud."""
_TOKEN_HOSTS = re.compile(r"(?:.+\.)?(?:cloudsmith\.io|fury\.io|packagecloud\.io|fury\.site|repoflow\.io)(?::\d+)?")
_KINDS = (credentials.PRIVATE_KEY, credentials.ENCODED_KEY, *credentials.TOKENS, credentials.AWS_ID)
_BEARER = re.compile(
    r"(?i)\b(authorization[\"']?\s*[:=,]\s*[\"']?(?:bearer|basic|token|apikey)|bearer)(\s+)([A-Za-z0-9._~+/=-]{8,})"
)
_NAME = rf"(?:{credentials.NAMES}|pass|pw|token|auth)"
_NAMED = re.compile(
    # A name, its sign and a value; the value of an option may follow a space.
    rf"(?i)((?<![A-Za-z])(--?[\w-]{{0,40}}?(?<!not-))?({_NAME})s?\d?\\?[\"'\]]{{0,2}}(\s?=>?\s?|\s?:\s?|\s+(?=[^\s=:])|[\"'],\s?(?=[\"']))(?:[rbu]?\\?[\"'])?)"
    r"(?!<redacted>)([^\s\"'<>&,;`]{6,})"
)
_KEYED = re.compile(
    rf"(?i)((?<![A-Za-z])[\w-]{{0,40}}{credentials.VALUE_OF_NAME}[\"']?\s?[=:]\s?[\"']?|--?[\w-]{{0,40}}{credentials.VALUE_OF_NAME}\s+)(?!<redacted>)([A-Za-z0-9._~+/=-]{{16,}})"
)
_HINTS = ("pass", "pw", "secret", "token", "auth", "key", "credential")
"""Every name of a secret contains one of these, in lower case."""
_PAIR = re.compile(
    # Everything that _NAMED and _KEYED find holds a match of this, which is found much faster.
    r"(?i)(?:pass[a-z]*|pwd?|secret|token|auth[a-z]*|key|credential)s?\d?\\?[\"'\]]{0,2}"
    r"(?:\s?=>?\s?|\s?:\s?|\s+|[\"'],\s?)(?:[rbu]?\\?[\"'])?[^\s\"'<>&,;`]{6}"
)
_LONG = re.compile(r"[A-Za-z0-9_=+/-]{15}|PRIVATE KEY")
"""Every token contains a match of this."""
_WORD = re.compile(r"[A-Za-z]?[a-z]*(?:[-_'][a-z]+)*[.:!?)]*")
"""A plain word, which cannot be distinguished from text."""
_NO_SCHEME = re.compile(
    # `user:password@proxy:3128`; an image's `name:tag@sha256:...` and a URL with its scheme are not meant.
    r"(?<![\w/.%+@:-])(?!mailto:)([\w.%+-]{1,100}):(?!//)[^\s:@/\"'<>]{3,200}@(?!sha\d+:)(?=[A-Za-z0-9][\w-]*(?:\.[\w-]+|:[0-9]))"
)
_USER = re.compile(r"((?:\A|\s)(?:-u|--user|--proxy-user)[\s=][\"']?[^\s:]{1,100}:)(?!//|\.\.\.|\$)[^\s<\"'`]+")
_NOT_TEXT = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff]")
_SURROGATE = re.compile("[\ud800-\udfff]")


def url(text: str) -> str:
    """A URL without credentials: no userinfo (ssh keeps the user's name), no signed query, no token in the path.

    The path of a `file:` URL is kept, whatever its directories are called.
    """
    scheme, separator, rest = text.partition("://")
    if not separator:
        return _without_tokens(text)
    local = scheme.lower().endswith("file") and rest.startswith("/")
    if not local and "@" in rest and not _is_host(re.split("[/?#]", rest, maxsplit=1)[0]):
        # A slash, question mark or hash in the password: what looks like the host is the user's name.
        rest = "@" + rest.rpartition("@")[2]
    rest, fragment_mark, fragment = rest.partition("#")
    rest, query_mark, query = rest.partition("?")
    authority, slash, path = rest.partition("/")
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
    made = scheme + "://" + host + _without_tokens(path + query_mark + query + fragment_mark + fragment)
    return made if made == text else url(made)  # what is left may be read otherwise


def line(text: str, hidden: Iterable[str] = ()) -> str:
    """One line without secrets: fits `model.text.Line` whatever comes in. `hidden` are values that are secret for sure.

    Control characters, line ends and characters that reorder text become spaces, undecodable bytes U+FFFD;
    over 20 000 characters the rest is cut.
    """
    # A bound on the work, well behind what is kept: a program can print anything.
    text = secretless(text[: 4 * LONGEST], hidden)
    text = _SURROGATE.sub("\ufffd", _NOT_TEXT.sub(" ", text))
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def printable(text: str) -> bool:
    """Whether text can be written in one line as it is: no control characters, no undecodable bytes."""
    return len(text) <= LONGEST and not _NOT_TEXT.search(text) and not _SURROGATE.search(text)


def secretless(text: str, hidden: Iterable[str] = ()) -> str:
    """Text without secrets, otherwise as it is: its lines and control characters stay."""
    for value in sorted(hidden, key=len, reverse=True):
        text = text.replace(value, REDACTED)
    text = _without_tokens(text)
    if "://" in text:
        text = _URL.sub(lambda match: url(match[0]), text)
        text = _CONDA_TOKEN.sub(rf"\1{REDACTED}", text)
    small = text.lower()
    if "bearer" in small or "authorization" in small:
        text = _BEARER.sub(_of_header, text)
    if any(hint in small for hint in _HINTS) and _PAIR.search(text):
        text = _KEYED.sub(_of_key, _NAMED.sub(_of_name, text))
    if ":" in text:
        text = _USER.sub(rf"\1{REDACTED}", text)
        if "@" in text:
            text = _NO_SCHEME.sub(rf"{REDACTED}@", text)
    return text


def lines(text: str, hidden: Iterable[str] = ()) -> str:
    """As `secretless`, of much text. The slow patterns see only the lines in which something may be named as a secret."""
    if _PAIR.search(text) is None:
        return secretless(text, hidden)
    hidden = tuple(hidden)
    text = _without_tokens(text)  # a private key has many lines
    return "".join(secretless(line, hidden) for line in text.splitlines(keepends=True))


def value(name: str, text: str) -> str:
    """A value of a setting or option without secrets; the name alone can mark it as a secret.

    `name` may be dotted (`logger.wandb.key`).
    """
    shown = line(text)
    if REDACTED in shown or not text or is_reference(text) or _is_plain(text):
        return shown
    last = name.rpartition(".")[2].lstrip("-")
    if _IS_SECRET.search(last) and not _IS_NONE.search(last):
        return REDACTED
    return REDACTED if _MAY_BE.search(name) and _is_drawn(text) else shown


_IS_SECRET = re.compile(
    rf"(?i)(?:\A|[_-]|(?<=[a-z])(?=[A-Z])){credentials.NAMES}s?\d?\Z|(?:\A|[_-])(?:pass|pw|auth|auth[_-]?token|token)\Z|(?:passw|passphrase)\w{{0,8}}\Z"
)
_IS_NONE = re.compile(
    r"(?i)(?:max|min|num|n|eos|bos|pad|unk|sep|cls|mask|special|stop|image|end|start|sort|cache|group|primary|partition)[_-]?(?:new[_-]?)?(?:tokens?|key)\Z|tokens\Z"
)
_MAY_BE = re.compile(r"(?i)key\Z|tokens?\Z|auth|credential|secret|wandb|\Ap\Z|\A-p\Z|\A-P\Z|\A-a\Z|\A-k\Z|\A-w\Z")
_PLAIN = re.compile(
    r"[\d.,:eE+-]*|true|false|none|null|yes|no|\[.*\]|\{.*\}|[./~][^\s=:@]*|<.*>|\|.*\||.{0,5}|[\w-]+\.(?:json|ya?ml|txt|pem|key|toml|py|env|csv)",
    re.IGNORECASE | re.DOTALL,
)

_FILE = re.compile(r"(?:[\w=.-]+/)+[\w=.-]+\.[A-Za-z]\w{0,11}", re.ASCII)
"""A relative path of a file. Its first part must not look like a secret: a setting `password=...` that goes on like a path is one."""


def _is_plain(text: str) -> bool:
    """A number, a switch, a path, a model's special token: never a secret, whatever its name."""
    return _PLAIN.fullmatch(text) is not None or (_FILE.fullmatch(text) is not None and not _is_drawn(text.partition("/")[0]))


def _is_drawn(text: str) -> bool:
    """Whether a value may be a secret: letters and digits mixed, long enough, and not a path or version."""
    return (
        len(text) >= 8
        and any(map(str.isdigit, text))
        and any(map(str.isalpha, text))
        and "/" not in text.strip("/=")[:8]
        and not re.search(r"[a-z]{5}|\.\w{1,5}\Z|[=:]", text)
    ) or is_random(text)


def _of_header(match: re.Match[str]) -> str:
    return match[0] if _WORD.fullmatch(match[3]) or is_reference(match[3]) else f"{match[1]}{match[2]}{REDACTED}"


def _of_name(match: re.Match[str]) -> str:
    before, option, name, sign, found = match.groups()
    token = name.lower() in ("token", "auth", "secret") or (option and len(name) < 5)
    spaced = not sign.strip(" \t")
    if (
        is_reference(found)
        or _is_plain(found)
        or (spaced and (not option or found.startswith("-")))
        or (_WORD.fullmatch(found) and not (option and spaced and not token) and not (sign == "=" and name.isupper()))
        or (token and not (len(found) >= 16 and any(map(str.isdigit, found))))
        or _CODE.match(found)
    ):
        return match[0]
    return before + REDACTED


_CODE = re.compile(r"[A-Za-z_][\w.]*(?:\(|\[)|[a-z_]+\.[a-z_.]+\b|\(|\[|\{|\\|\*+\Z|\.+\Z")


def _of_key(match: re.Match[str]) -> str:
    found = match[2]
    return match[1] + REDACTED if is_random(found) and not is_made_up(found) and not _is_plain(found) else match[0]


def _without_tokens(text: str) -> str:
    if _LONG.search(text):
        for kind in _KINDS:
            if any(needle in text for needle in kind.needles):
                text = _compiled(kind.pattern).sub(REDACTED, text)
    return text


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    """Compile a pattern on first use: all of them take 40 ms, and most commands need none."""
    return re.compile(pattern)


def gives_access(name: str) -> bool:
    """Whether a value of this name in a URL's query gives access to something."""
    return _SIGNING.fullmatch(name) is not None


def _is_host(text: str) -> bool:
    """Whether this can stand before a path: with userinfo in it, or without anything like a user's password."""
    host, colon, port = text.rpartition(":")
    return "@" in text or not colon or text.endswith("]") or port == "" or (port.isdigit() and bool(host))


def _gives_access(query: str) -> bool:
    pairs = (part.partition("=") for part in query.split("&"))
    return any((mark and _SIGNING.fullmatch(name)) or _LONG_VALUE.fullmatch(value) for name, mark, value in pairs)
