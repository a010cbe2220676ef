"""What secrets look like that are near a mark, such as `password` or `://`: one table of marks, patterns and judges."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from repro_env.environment.secrets import runs
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
LEAD = 28
"""Bytes before a run in which a token with dots or slashes may begin (`hooks.slack.com/...`)."""
_NEAR = 80
"""Bytes on each side of a run in which the mark of a long value may be."""
_AROUND = 300
"""Bytes on each side of a value that show whether it is public, or to which key it belongs."""
Match = re.Match[bytes]
Judge = Callable[[bytes, Match], bool]


class Form(NamedTuple):
    """What kind of bytes are searched."""

    text: bool
    """Named values count too."""
    program: bool = False
    """A binary with symbol names."""
    code: bool = False
    """Program text, in which an unquoted value is an expression."""


class Rule(NamedTuple):
    kind: str
    marks: tuple[bytes, ...]
    """Every match has one of them."""
    pattern: re.Pattern[bytes]
    """Its first group that matches is the value."""
    judge: Judge
    """Whether a match (in all bytes) is a secret."""
    before: int = 0
    """How many bytes before the mark a match may begin; 0 if it begins with the mark."""
    near: int = 0
    """How far from a long run of letters and digits the mark may be; 0: anywhere."""
    first: str = ""
    """A pattern that every match has from its mark on, if not the marks alone: what an engine looks for."""

    def secret(self, data: bytes, position: int, form: Form) -> Match | None:
        """Return the secret at a mark."""
        if self.before:
            matches = self.pattern.finditer(data, max(0, position - self.before), position + _AROUND)
            match = next((match for match in matches if match.start() <= position < match.end()), None)
        else:
            match = self.pattern.match(data, position)
        if match is None or not self.judge(data, match):
            return None
        if self.kind == SETTING and (_is_public(data, match) or _is_expression(data, match, code=form.code)):
            return None
        if self.near == LEAD and not _is_word(data, match, form):
            return None
        ends_after = position + 3 if self.near == LEAD else position - self.near + 2
        if self.near and not runs.is_near(data, ends_after, position + self.near, program=form.program):
            return None
        return match


def _is_word(data: bytes, match: Match, form: Form) -> bool:
    """Whether a token begins with a word, as it must in text and programs, and is not the name of a symbol."""
    if form.program and len(_SYMBOL.findall(match[0])) > 1:
        return False
    return _WORD.match(data, match.start()) is not None if form.text or form.program else True


def _is_discord(data: bytes, match: Match) -> bool:
    return is_random(match[0].decode("latin-1")) and not runs.continues(data, match.start())


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


_SYMBOL = lazy(rb"[A-Z][a-z]{4,}|[a-z]{6,}")
"""Words in a symbol name of a program. A name with two of them is not a token."""
_WORD = lazy(rb"(?<![A-Za-z0-9])|(?<=\\[nrt])|(?<=%[0-9A-F]{2})")


def _encoded(marks: Iterable[str]) -> tuple[bytes, ...]:
    return tuple(map(str.encode, marks))


def _of_token(kind: credentials.Kind, judge: Judge, before: int, near: int) -> Rule:
    pattern = _bytes(kind.pattern if before else kind.end)
    return Rule(kind.name, _encoded(kind.needles), pattern, judge, before, near, kind.end)


_KINDS = [*filter(lambda kind: kind.is_word, credentials.TOKENS), credentials.ENCODED_KEY]
WORDS = [_of_token(kind, _is_token, 0, LEAD) for kind in _KINDS]
"""Tokens that begin with their mark."""
DISCORD, *_WITHIN = (_of_token(kind, _is_token, 100, _NEAR) for kind in credentials.TOKENS if not kind.is_word)
DISCORD = DISCORD._replace(judge=_is_discord, before=28)
"""Its mark is a dot, of which there are many: only those after a run count."""
_PARTS = {
    "<names>": credentials.NAMES,
    "<short>": credentials.SHORT,
    "<quote>": _QUOTE,
    "<private_key>": credentials.PRIVATE_KEY.pattern,
    "<aws_id>": credentials.AWS_ID.pattern,
}
_JUDGES = {
    judge.__name__.removeprefix("_is_"): judge
    for judge in (
        *(_is_any, _is_random, _is_short, _is_url, _is_password, _is_positional, _is_login, _is_keyed, _is_named_key),
        *(_is_part_of_jwk, _is_aws_id, _is_netrc, _is_option, _is_kubernetes),
    )
}
_ROWS = list(credentials.rows(Path(__file__).with_name("rules.txt"), _PARTS))


def _in(where: str) -> Iterator[Rule]:
    for kind, judge, files, near, before, marks, first, pattern in _ROWS:
        if files == where:
            yield Rule(kind, _encoded(marks.split("|")), _bytes(pattern), _JUDGES[judge], int(before), int(near), first)


IN_ALL = (*WORDS, DISCORD, *_WITHIN, *_in("all"))
IN_TEXT = tuple(_in("text"))
"""In text; their marks are in lower case."""


def _by_mark(rules: Iterable[Rule], length: int = 100) -> Mapping[bytes, Sequence[Rule]]:
    """`length`: how much of each mark counts."""
    by_mark: dict[bytes, list[Rule]] = {}
    for rule in rules:
        for mark in rule.marks:
            by_mark.setdefault(mark[:length], []).append(rule)
    return by_mark


HEADS = _by_mark(WORDS, 3)
MARKS = {
    (text, near_runs): _by_mark(
        rule for rule in rules if bool(rule.near) is near_runs and rule.near != LEAD and rule is not DISCORD
    )
    for text, rules in ((False, IN_ALL), (True, IN_TEXT))
    for near_runs in (False, True)
}
"""(whether they count in text only and are in lower case, whether they count near runs only) -> mark -> rules."""
