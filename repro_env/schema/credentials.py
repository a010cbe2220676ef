"""What secrets look like: one table for the redaction of what is written (`schema.redact`) and for the search of files.

TOKENS are recognized by their form, anywhere. Other values are recognized by the name before them (`password: ...`), if the
value looks random (`is_random`, `is_password`). All patterns are ASCII, so that they can be compiled for bytes too. Any change here, in
`tokens.txt` or in `environment/secrets` must raise RULE, so that files are searched again.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from repro_env.schema.patterns import lazy

RULE = 6
"""Version of the rules; part of the cache keys of files that hold no secret."""


class Kind(NamedTuple):
    """One kind of secret."""

    name: str
    needles: tuple[str, ...]
    """Every match has one of these strings."""
    end: str
    """A pattern that begins with a needle."""
    before: str = ""
    """A pattern of what is before the needle."""

    @property
    def pattern(self) -> str:
        return self.before + self.end

    @property
    def is_word(self) -> bool:
        """Whether it begins with its needle, at the start of a word."""
        return self.before == _PARTS["<start>"]


def rows(table: Path, parts: dict[str, str]) -> Iterator[list[str]]:
    """Yield the fields of the lines of a table. A line `<name> = pattern` adds to `parts`, which are replaced in later lines."""
    for line in table.read_text("ascii").splitlines():
        for part, pattern in parts.items():
            line = line.replace(part, pattern)
        name, is_part, pattern = line.partition("> = ")
        if is_part:
            parts[f"{name}>"] = pattern
        elif line and not line.startswith("#"):
            yield line.split(" | ", 7)


_PARTS: dict[str, str] = {}
PRIVATE_KEY = Kind(
    "private key",
    ("PRIVATE KEY",),
    # Up to the end mark if there is one; a header alone, as in code that searches for keys, does not count.
    r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----(?:\s|\\r|\\n|[\"',]){1,30}[A-Za-z0-9+/=:., -]{16}"
    r"(?:(?s:.){0,20000}?-----END [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----|[A-Za-z0-9+/=\s\\\"',]*)",
)
ENCODED_KEY = Kind(
    "private key",
    ("LS0tLS1CRUdJTi",),
    # base64 of the first line of a key, as a kubeconfig has it: plain, RSA, EC, OpenSSH
    r"LS0tLS1CRUdJTi(?:BQUklWQVRFIEtFWS|BSU0EgUFJJVkFURSBLRVkt|BFQyBQUklWQVRFIEtFWS|BPUEVOU1NIIFBSSVZBVEUgS0VZ)[A-Za-z0-9+/=]{16,}",
)


TOKENS = tuple(
    Kind(name, tuple(needles.split()), f"(?:{'|'.join(map(re.escape, needles.split()))}){after}", before.strip())
    for name, before, needles, after in rows(Path(__file__).with_name("tokens.txt"), _PARTS)
)
AWS_ID = Kind("AWS key id", ("AKIA", "ASIA"), r"(?:AKIA|ASIA)[A-Z2-7]{16}(?![A-Za-z0-9])", _PARTS["<start>"])
"""Not a secret by itself; the secret key is near it."""

NAMES = (
    r"(?:pass(?:word|wd|wort|phrase|code)|pwd|secret(?:[_-]?(?:key|token|access[_-]?key))?|credentials?"
    r"|(?:api|app|access|account|auth|client|consumer|encryption|fernet|license|master|private|refresh|secret|service|shared"
    r"|signing|storage|subscription|wandb|hf|openai|azure|aws)[_-]?(?:key|token|secret|pass(?:word|wd)?))"
)
"""Names whose values are secrets."""
SHORT = r"(?<![A-Za-z])(?:pass|pw)"
"""Words with other meanings too: they name a value only directly before the sign."""
VALUE_OF_NAME = r"(?:token|key|auth|authorization)"
"""Names of secrets, and of many other things: a value counts only if it is clearly random."""

MAGIC = (
    ("password safe (KeePass)", bytes.fromhex("03d9a29a")),
    ("key store (Java)", bytes.fromhex("feedfeed00000002")),
    ("key store (Java)", bytes.fromhex("cececece00000002")),
)
"""The first bytes of files that consist of a secret. A PKCS #12 file is found by its name and its form."""

_DISTINCT = 10
"""Different characters in a real token; `hf_xxxxxxxx` has fewer."""
_HASHED = lazy(r"pbkdf2|\$argon2|argon2|bcrypt|scrypt|sha1\$|md5\$|sha256:|sha512:")
"""Marks of password hashes."""
_MADE_UP = lazy(
    r"example|sample|dummy|fake|your|xxxx|placeholder|redacted|changeme|change_me|replace|insert|\bmy[_-]|\.\.\.|\*\*\*",
    re.IGNORECASE,
)
_SAMPLES = ("2YotnFZFEjr1zCsicMWpAA", "tGzv3JOkF0XG5Qx2TlKWIA", "czZCaGRSa3F0MzpnWDFmQmF0M2JW")
"""Examples of RFC 6749, which many documents copy."""
_CLAIMS = frozenset({"iss", "exp", "iat", "nbf", "aud", "jti", "sub", "scope"})
_REFERENCE = lazy(
    r"\$|\{|%\(|%[A-Z_]+%|<|\[|@|os\.|env|!(?:secret|vault|ref|sub)|vault:|\w+\(|[\w.]+\[|None\b|null\b|true\b|false\b|self\.|secrets\.",
    re.IGNORECASE,
)
"""The beginning of a placeholder for a value: a variable, a template field, an expression."""
_WORDS = lazy(
    r"pass|pwd|s[e3]cret|token|key|admin|root|test|guest|user|login|demo|default|hunter2|foo|bar|baz|qux|abc|hello|world|letmein|qwerty|monkey"
    r"|some|wrong|invalid|correct|valid|new|old|raw|value|string|text|name|type|auth|cred|django|postgres|mysql|redis|rabbit|minio|mock|temp"
    r"|field|hash|salt|crypt|sha\d|md5|pbkdf|scram|utf|base64|random|unused|dev|prod|1234|0123|http|mail|null|none|true|false|bytes|char|attr|model",
    re.IGNORECASE,
)
"""Words in placeholders for passwords."""
_CODE = lazy(r"[A-Za-z_][\w.]*(?:\(|\[|\.[A-Za-z_]\w*\b)|.*(?:\(\)|->|::|=>|==|\\[a-z]|\\u)|#?/\w+/|\.{0,2}/")


def is_made_up(value: str) -> bool:
    """Whether a value is obviously a placeholder: few different characters, `example`, `your`, `xxxx`."""
    part = _random_part(value)
    return (
        len(set(value)) < _DISTINCT
        or len(set(part)) < min(_DISTINCT, len(part) // 3)
        or is_placeholder(value)
        or value in _SAMPLES
        or _is_sample_token(value)
    )


def is_placeholder(value: str) -> bool:
    """Whether a value holds a word of placeholders, or 1234567890 in its random part."""
    return _MADE_UP.search(value) is not None or "1234567890" in _random_part(value)


def _random_part(value: str) -> str:
    """The longest part with a letter in it: the other parts of `xoxb-123456789012-...` are numbers that are no secret."""
    parts = [part for part in re.split(r"[^A-Za-z0-9]", value) if not part.isdigit()]
    longest = max(parts, key=len, default="")
    return longest if len(longest) >= 8 else value


def is_reference(value: str) -> bool:
    """Whether this refers to a value that is elsewhere: `$TOKEN`, `${{ secrets.X }}`, `os.environ["X"]`, `<your key>`."""
    return _REFERENCE.match(value) is not None


def is_random(value: str) -> bool:
    """Whether a value looks randomly generated: mixed letters and digits, few repetitions, no words."""
    plain = re.sub(r"[^A-Za-z0-9]", "", value)
    digits = sum(character.isdigit() for character in plain)
    hexadecimal = re.fullmatch(r"[0-9a-f]+|[0-9A-F]+", plain) is not None
    return (
        len(plain) >= 12
        and digits >= 2
        and len(plain) - digits >= 2
        and len(set(plain)) >= (_DISTINCT if hexadecimal else min(14, len(plain) - 2))
        and max(map(len, re.split(r"[^A-Za-z0-9]", value))) >= 16  # UUIDs and words with underscores are names
        and not is_placeholder(value)
        and value not in _SAMPLES
        and not _HASHED.match(value)
        and not re.search(r"0123456789|abcdef|(.)\1{4}", value)
        and (hexadecimal or not re.search(r"[a-z]{7}|[A-Z]{8}", value) or _has_no_words(value))
    )


def is_key(value: str) -> bool:
    """Whether a value after a name such as `api_key` is letters and digits in random order, of 16 or more."""
    changes = len(re.findall(r"(?<=[a-z])[A-Z0-9]|(?<=[A-Z])[a-z0-9]|(?<=[0-9])[A-Za-z]", value))
    return (
        re.fullmatch(r"(?=[^A-Z]*[A-Z])(?=[^a-z]*[a-z])[A-Za-z0-9]{16,64}", value) is not None
        and len(set(value)) >= _DISTINCT
        and changes * 5 >= (len(value) - 1) * 2
        # Capitals or digits in a row, or a digit before a letter: names in camel case have few of them.
        and len(re.findall(r"[A-Z]{2,}|[0-9](?=[A-Za-z])", value)) >= 2
        and not is_placeholder(value)
        and not _HASHED.match(value)
        and value not in _SAMPLES
    )


def _has_no_words(value: str) -> bool:
    """Whether digits are spread over a value, so that it has no words."""
    return len(re.findall(r"[0-9]+", value)) >= 4 and not re.search(r"[A-Za-z]{14}|[a-z]{10}|[.]", value)


def is_uuid(value: str) -> bool:
    """Whether this is a UUID of random bits."""
    return (
        re.fullmatch(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", value) is not None
        and len(set(value)) > _DISTINCT
    )


def is_password(value: str) -> bool:
    """Whether a value after `password:` looks like a password: three of four classes of characters, and no common word.

    This does not recognize passwords that consist of plain words.
    """
    kinds = sum(re.search(kind, value) is not None for kind in ("[a-z]", "[A-Z]", "[0-9]", r"[^A-Za-z0-9\s]"))
    return (
        8 <= len(value) <= 200
        and kinds >= 3
        and re.search(r"[0-9]", value) is not None
        and len(set(value)) >= 6
        and not is_reference(value)
        and not _HASHED.match(value)
        and not is_placeholder(value)
        and not _WORDS.search(value)
        and not _CODE.match(value)
        and not any(character.isspace() for character in value)
        and re.fullmatch(r"[A-Z][A-Za-z]*[0-9]{1,2}|[\d.:TZ+-]+|v?\d+(?:\.\w+)+|[\w-]+(?:[._/:-][\w-]+){3,}|[A-Z0-9_]+", value)
        is None
    )


def is_app_password(value: str) -> bool:
    """Whether this is a password of Google for one program: 16 small letters in four groups."""
    return (
        re.fullmatch(r"[a-z]{4}(?: [a-z]{4}){3}", value) is not None
        and len(set(value)) >= 8
        and not _MADE_UP.search(value)
        and not re.search(r"pass|word|pswd", value)
    )


def _is_sample_token(token: str) -> bool:
    """Whether a JSON web token is a sample, as in documentation: it has no claims about a user or service."""
    if not token.startswith("eyJ") or token.count(".") != 2:
        return False
    payload = token.split(".")[1]
    try:
        claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    except ValueError:
        return False
    standard_claims = claims.keys() & _CLAIMS if isinstance(claims, dict) else set()
    return len(standard_claims) < 2 or claims.get("sub") == "1234567890" or claims.get("role") == "anon"
