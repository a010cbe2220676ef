"""What secrets look like that are near a mark, such as `password` or `://`: one table of marks, patterns and judges."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from repro_env.schema import credentials
from repro_env.schema.credentials import (
    is_app_password,
    is_key,
    is_made_up,
    is_password,
    is_placeholder,
    is_random,
    is_reference,
    is_uuid,
)
from repro_env.schema.patterns import lazy

SETTING = "key or password in a setting"
_AROUND = 300
"""Bytes on each side of a value that show whether it is public, or to which key it belongs."""
Match = re.Match[bytes]


class Rule(NamedTuple):
    kind: str
    marks: tuple[bytes, ...]
    """In lower case. Every match has one of them."""
    pattern: re.Pattern[bytes]
    """Its first group that matches is the value."""
    judge: Callable[[bytes, Match], bool]
    """Whether a match (in all bytes) is a secret."""
    before: int
    """How many bytes before the mark a match may begin; 0 if it begins with the mark."""

    def secret(self, data: bytes, position: int, *, code: bool) -> Match | None:
        """Return the secret at a mark. `code`: whether the bytes are program text, in which an unquoted value is an expression."""
        if self.before:
            matches = self.pattern.finditer(data, max(0, position - self.before), position + _AROUND)
            match = next((match for match in matches if match.start() <= position < match.end()), None)
        else:
            match = self.pattern.match(data, position)
        if match is None or not self.judge(data, match):
            return None
        is_harmless = self.kind == SETTING and (_is_public(data, match) or _is_expression(data, match, code=code))
        return None if is_harmless else match


def _value(match: Match) -> str:
    return next((group for group in match.groups() if group), match[0]).decode("latin-1")


def _is_any(data: bytes, match: Match) -> bool:  # noqa: ARG001
    return True


def _is_token(data: bytes, match: Match) -> bool:  # noqa: ARG001
    return not is_made_up(_value(match))


def _is_random(data: bytes, match: Match) -> bool:
    # JSON web tokens have their own rule. The user in an ssh URL is a name, not a token.
    return is_random(_value(match)) and not _value(match).startswith("eyJ") and not data.endswith(b"ssh", 0, match.start())


def _is_short(data: bytes, match: Match) -> bool:  # noqa: ARG001
    value = _value(match)
    return is_random(value) or (not is_made_up(value) and any(map(str.isdigit, value)))


def _is_password(data: bytes, match: Match) -> bool:  # noqa: ARG001
    value = _value(match)  # `#/` begins a reference in a JSON schema
    return not value.startswith("#/") and (is_password(value) or is_random(value) or is_key(value))


def _is_positional(data: bytes, match: Match) -> bool:  # noqa: ARG001
    """Whether one of the arguments after the first is a password or a key."""
    values = (value.decode("latin-1") for value in _QUOTED.findall(match[1]))
    return any(is_key(value) or (is_password(value) and re.search(r"[^\w ./:-]", value) is not None) for value in values)


def _is_login(data: bytes, match: Match) -> bool:
    return _is_password(data, match) or is_app_password(_value(match))


def _is_keyed(data: bytes, match: Match) -> bool:
    """Whether a long value after `key` is a secret. UUIDs count only after a longer name, such as `api_key`."""
    between = data[match.start() : match.start(1)]
    has_name = _NAME.search(data, max(0, match.start() - 20), match.start(1)) is not None
    if not has_name and b"," in between:
        return False  # `assertEqual(key, "...")`
    is_named = has_name or between[:3].isupper()
    return is_random(_value(match)) or (is_named and (is_uuid(_value(match)) or is_key(_value(match))))


def _is_named_key(data: bytes, match: Match) -> bool:
    """Whether a value after a complete name, such as `api_key`, is a key. The mark is the end of the name."""
    return is_key(_value(match)) and _NAME.search(data, max(0, match.start() - 20), match.start(match.lastindex or 0)) is not None


def _is_part_of_jwk(data: bytes, match: Match) -> bool:
    return b'"kty' in data[max(0, match.start() - 4000) : match.end() + 4000]


def _is_aws_id(data: bytes, match: Match) -> bool:
    """Whether a secret key is near the id of a key, which is not a secret by itself."""
    found = _AWS_SECRET.finditer(data, max(0, match.start() - _AROUND), match.end() + _AROUND)
    return _is_token(data, match) and any(_is_token(data, secret) for secret in found)


def _is_url(data: bytes, match: Match) -> bool:
    user, password, host = (part.decode("latin-1") for part in match.groups())
    return (
        user.lower() != password.lower()
        and len(set(password)) > 3
        and not NO_PASSWORD.fullmatch(password)
        and (len(password) > 7 if not user else not re.fullmatch(r"user\w*", user))
        and not re.search("pass", password, re.IGNORECASE)
        and not is_placeholder(password)
        and (not _LOCAL.fullmatch(host) or (host.isalnum() and data.endswith(_ACCOUNTS, 0, match.start())))
    )


def _is_netrc(data: bytes, match: Match) -> bool:
    machine = _MACHINE.search(data, max(0, match.start() - 200), match.start())
    if machine is None or NO_PASSWORD.fullmatch(_value(match)) or is_reference(_value(match)):
        return False
    host = (machine[1] or b"x.y").decode("latin-1")
    return not is_placeholder((machine[0] + match[0]).decode("latin-1")) and not _LOCAL.fullmatch(host)


def _is_option(data: bytes, match: Match) -> bool:
    """Whether an option of a well-known command has a password: `curl -u ann:...`, `mysql -p...`."""
    line = data[data.rfind(b"\n", 0, match.start()) + 1 : match.start()][-200:]
    return is_password(_value(match)) and _TOOL.search(line) is not None


def _is_kubernetes(data: bytes, match: Match) -> bool:  # noqa: ARG001
    return not all(_is_harmless(entry[1].decode("latin-1")) for entry in _ENTRY.finditer(match[1]))


def _is_harmless(value: str) -> bool:
    """Whether a value of a Kubernetes Secret, encoded or decoded, is a reference or a placeholder."""
    try:
        plain = base64.b64decode(value, validate=True).decode("ascii").strip()
    except ValueError:
        plain = value
    return any(is_reference(text) or is_placeholder(text) or NO_PASSWORD.fullmatch(text) for text in (value, plain))


def _is_public(data: bytes, match: Match) -> bool:
    """Whether words near a value show that it is public: a search key (Algolia), the token of a badge, a key to write events."""
    return (
        re.fullmatch("[0-9A-Za-z]{32,88}={0,2}", _value(match)) is not None
        and _PUBLIC.search(data, max(0, match.start() - _AROUND), match.start() + _AROUND) is not None
    )


def _is_expression(data: bytes, match: Match, *, code: bool) -> bool:
    """Whether a program computes the value: it is a call, a name or an f-string, not a literal.

    In strings and comments of a program, as in all other text, an unquoted word counts as a literal.
    """
    start, end = next(match.span(group) for group in range(1, len(match.groups()) + 1) if match[group])
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


def _bytes(pattern: str, flags: int = re.DOTALL) -> re.Pattern[bytes]:
    return lazy(pattern.encode(), flags)


_QUOTE = r"[rbfu]{0,2}\\?[\"'`]"
_BETWEEN = (
    # What is between a name and its value: `x`, `x"`, `x")`, then the sign, `: str =`, `default=`, `value=`, a new line,
    # `|` or `>` of YAML and a new line.
    r"[\"'`)\]\\]{0,4}(?:"
    r"[ \t]{0,20}(?:=>|:=|<<?-|:\s{0,4}[\w.\[\], |]{1,40}=(?!=)|[=:](?!=)|,(?=\s{0,4}[\"']))\s{0,40}\(?\s{0,40}(?:SecretStr\()?"
    # `["x", "y"]`, `{"a": "x"}`, a list below the name in YAML
    r"(?:[\[({]\s{0,40}(?:[\"'][^\"'\n]{0,60}[\"']\s{0,4}:\s{0,40})?|-[ \t]{1,4})?"
    r"|[\"']?:[ \t]{1,8}[|>][-+1-9]{0,2}[ \t]{0,8}\r?\n[ \t]{1,40}"
    r"|[\"'][^\n]{0,80}?(?:default|value)\s{0,4}=\s{0,4}|\n\s{0,20}value:[ \t]|[\"']?>|[ \t]is[ \t]|[ \t]{1,8}(?=[^\s=:]))"
)
_OR = (
    # `getpass() or "x"`, `a if b else "x"`, `get("NAME") or "x"`
    r"(?:[\"'`)\]]{0,4}[ \t]{0,20}=[ \t]{0,20}(?![\s\"'=])(?:[^\n\"'#,;(]|\([^()\n]{0,60}\)){1,80}?[ \t](?:or|else|\|\||\?\?)"
    r"|[\"'`)\]]{0,4}[ \t]{1,4}(?:or|\|\||\?\?))[ \t]{1,4}(?=[rb]?[\"'])"
)
_VALUE = rf"(?:{_QUOTE}([^\"'`\\\n]{{8,200}})\\?[\"'`]|([^\s\"'`,;&<>(){{}}\[\]|\\]{{8,200}}))"
_NAMED = rf"(?i:{credentials.NAMES}s?\d{{0,2}}(?:{_OR}|{_BETWEEN})|{credentials.SHORT}\\?[\"'\]]{{0,2}}[ \t]{{0,20}}(?:=>|:=|[=:](?!=))[ \t]{{0,20}}){_VALUE}"
_KEYED = rf"(?i:(?:key|token|authorization|auth|wandb)s?{_BETWEEN})(?:[rbu]?\\?[\"'`])?([A-Za-z0-9+/_.-]{{16,200}}={{0,2}})(?![A-Za-z0-9_(\[*])"
_BEARER = r"(?i:bearer|authorization[\"']?\s{0,4}[:=,]\s{0,4}[\"']?(?:basic|token|apikey))\s{1,4}([A-Za-z0-9._~+/=-]{16,200})"
_PAIR = rf"\(\s{{0,20}}{_QUOTE}[^\"'\\\n]{{1,80}}\\?[\"'],\s{{0,20}}(?:password\s?=\s?)?{_QUOTE}([^\"'\\\n]{{8,100}})\\?[\"']"
"""`("ann", "...")`: a user name and a password."""
_LOGIN = rf"(?i:login|auth)(?:[\"']?\s{{0,4}}[:=]\s{{0,4}})?(?:{_PAIR}|\([^)\n]{{0,80}}?[\"']([0-9a-f]{{40}})\\?[\"']|(?: --?[\w-]{{1,30}})*[ =]([0-9a-f]{{40}})\b)"
_CONNECT = (
    rf"\(\s{{0,20}}{_QUOTE}[^\"'\n]{{0,80}}[\"'](?=\s{{0,20}},)((?:\s{{0,20}},\s{{0,20}}{_QUOTE}[^\"'\n]{{0,100}}[\"']){{1,4}})"
)
"""`("host", "ann", "...")`: positional arguments. The first is not a password."""
_COMET = r"(?:Experiment|comet_ml\.\w{1,20}|API)\(\s{0,20}\\?[\"']([A-Za-z0-9]{25})\\?[\"']"
_SIGNED = r"[?&;](?:X-(?:Amz|Goog)-)?(?:Signature|sig)=((?:[A-Za-z0-9_~+/-]|%[0-9A-F]{2}){32,})"
_AUTH = r"(?:\"auth\"\s*:|_(?:auth|password)\s*=)\s*\"?([A-Za-z0-9+/]{16,}={0,2})"
_OPTION = r" -(?:[upPakw]|-user|-proxy-user|-pass\w*)[ =]{0,2}[\"']?(?:[\w.@-]{1,60}:)?([^\s\"'`$:]{8,200})"
_NAMED_KEY = rf"(?i:(?<=[a-z_-])(?:key|token)s?\d{{0,2}}(?:{_OR}|{_BETWEEN}))(?:{_QUOTE}([A-Za-z0-9]{{16,64}})\\?[\"'`]|([A-Za-z0-9]{{16,64}})(?![^\s\"'`,;&<>\\]))"
_KUBERNETES = r"kind: Secret\b(?:(?!\n---).){0,1900}?\b(?:data|stringData):[ \t\r]*((?:\n(?:[ \t][^\n]*)?)+)"
_PART = r"(?:[^\s/:@'\"`<>{}$%()\[\]*\\,;|&#?]|%[0-9A-Fa-f]{2})"
_NAME = _bytes(rf"{credentials.NAMES}s?\d{{0,2}}(?=[^A-Za-z0-9_-])", re.IGNORECASE)
_AWS_SECRET = _bytes(
    r"(?<![A-Za-z0-9/+=_-])(?=[^\s]{0,39}[a-z])(?=[^\s]{0,39}[A-Z])(?=[^\s]{0,39}[0-9])[A-Za-z0-9/+]{40}(?![A-Za-z0-9/+=_-])"
)
_TOOL = _bytes(r"\b(?:curl|wget|sshpass|mysql\w*|redis-cli|mongo\w*|docker login|openssl|zip|psql|smbclient|twine)\b")
_QUOTED = _bytes(rf"{_QUOTE}([^\"'\n]{{8,100}})[\"']")
_ACCOUNTS = (b"snowflake", b"cloudinary", b"databricks")
"""Schemes of URLs whose host is an account, in one word."""
_ENTRY = _bytes(r"^\s+[\w.-]+:[ \t]*(?:[|>][-+1-9]{0,2}[ \t\r]*\n[ \t]*)?[\"']?([^\s\"'{}$<>]{8,})", re.MULTILINE)
NO_PASSWORD = lazy(
    r"pass\w*|pwd|pw|psw|secret\w*|token|admin|root|test\w*|guest|changeme|user\w*|postgres|mysql|foo|bar|baz|hunter2|minioadmin|key"
    r"|api_?key|credentials?|x+|\.+|\*+|-+|_+|abc|123\d*|my\w*|the\w*|some\w*",
    re.IGNORECASE,
)
_MACHINE = _bytes(r"(?:machine\s+([A-Za-z0-9.-]+)|^default)\s+(?:login\s+\S+\s+)?\Z", re.MULTILINE)
_LOCAL = lazy(
    r"localhost|127\.\d+\.\d+\.\d+|0\.0\.0\.0|(?:.*\.)?(?:example(?:\.\w+)?|test|invalid|localdomain|local)|\w+", re.IGNORECASE
)
_PUBLIC = lazy(
    rb"algolia|docsearch|indexname|badge|shields\.io|codecov\.io|csrf|authenticity_token|search[_-]?(?:only[_-]?)?(?:api[_-]?)?key|publishable|public[_-]?key|write[_-]?key",
    re.IGNORECASE,
)
"""Marks near public keys, which web pages contain."""
_IDENTIFIER = lazy(rb"[A-Za-z_$][\w$]*(?:(?:\.|->|::)[A-Za-z_$][\w$]*)*")
_FIELD = lazy(rb"\{[^{}\s\"']{1,80}\}")
_F_STRING = lazy(rb"(?i:\b(?:f|rf|fr))\\?[\"']\Z")
_QUOTES = (b'"""', b"'''", b"`")
"""Quotes of multi-line strings."""


def _rule(kind: str, marks: str, pattern: str, judge: Callable[[bytes, Match], bool], before: int = 0) -> Rule:
    """`marks`: separated by `|`."""
    return Rule(kind, tuple(marks.encode().split(b"|")), _bytes(pattern), judge, before)


# Values of any characters, in all files.
_IN_ALL = (
    _rule("private key", "-----begin ", credentials.PRIVATE_KEY.pattern, _is_any),
    _rule("password in a URL", "://", rf"://({_PART}{{0,100}}):({_PART}{{3,200}})@([A-Za-z0-9.-]+)", _is_url),
    _rule("token in a URL", "://", r"://([A-Za-z0-9_-]{16,100})@[A-Za-z0-9-]+\.", _is_random),
    _rule("password in a JDBC address", "jdbc:oracle:", r"jdbc:oracle:\w+:[\w.-]{1,60}/[^\s@\"'/]{6,100}@", _is_any),
)
# Values of any characters, in text.
_IN_TEXT = (
    _rule(SETTING, "pass|pw|secret|credential", _NAMED, _is_password),
    _rule(SETTING, "key|token", _NAMED_KEY, _is_named_key),
    _rule(SETTING, "login|auth", _LOGIN, _is_login),
    _rule("password in a call", "connect(", rf"(?i:connect){_CONNECT}", _is_positional),
    _rule("password in a command", " -", _OPTION, _is_option),
    _rule("secret of Kubernetes", "kind: secret", _KUBERNETES, _is_kubernetes),
    _rule("password of a .netrc", "pass", r"password\s+(\S{6,})", _is_netrc),
)
# Values that are long runs of letters and digits, in all files.
_LONG_IN_ALL = (
    _rule("AWS secret key", "akia|asia", credentials.AWS_ID.pattern, _is_aws_id),
    *(
        _rule(kind.name, "|".join(kind.needles).lower(), kind.pattern, _is_token, before=100)
        for kind in credentials.WITHIN
        if kind.name != "Discord token"
    ),
)
# Values that are long runs of letters and digits, in text.
_LONG_IN_TEXT = (
    _rule(SETTING, "key|token|auth|wandb", _KEYED, _is_keyed),
    _rule("HTTP credentials", "bearer|authorization", _BEARER, _is_random),
    _rule("package index token", "cloudsmith.io/", r"cloudsmith\.io/(?:basic/)?([A-Za-z0-9]{16})/", _is_short),
    _rule("Comet key", "experiment(|comet_ml.|api(", _COMET, _is_random),
    _rule("conda channel token", "/t/", r"/t/([A-Za-z]{2}-[0-9a-f-]{20,})/", _is_any),
    _rule("signed URL", "signature=|sig=", _SIGNED, _is_random, before=8),
    _rule("Kaggle key", '"key"', r"\"key\"\s*:\s*\"([0-9a-f]{32})\"", _is_random),
    _rule("registry credentials", '"auth"|_auth|_password', _AUTH, _is_short),
    _rule("private key (PuTTY)", "private-lines:", r"Private-Lines: \d+\s+[A-Za-z0-9+/=]{20,}", _is_any),
    _rule("private key (JWK)", '"d|"k', r"\"[dk]\\?\"\s*:\s*\\?\"[A-Za-z0-9_-]{20,}", _is_part_of_jwk),
)


def _by_mark(rules: Sequence[Rule]) -> dict[bytes, list[Rule]]:
    by_mark: dict[bytes, list[Rule]] = {}
    for rule in rules:
        for mark in rule.marks:
            by_mark.setdefault(mark, []).append(rule)
    return by_mark


RULES = {False: _by_mark(_IN_ALL), True: _by_mark((*_IN_ALL, *_IN_TEXT))}
"""Whether a file is text -> mark -> rules."""
RULES_OF_RUNS = {False: _by_mark(_LONG_IN_ALL), True: _by_mark((*_LONG_IN_ALL, *_LONG_IN_TEXT))}
"""The same for values that are long runs of letters and digits, so that only marks near such runs count."""
