"""Generate secrets in the formats of real ones, from a fixed seed at run time, so that no file of the repository has them.

Each secret is different, but contains one of two marks, so a search needs to look only for these.
"""

from __future__ import annotations

import base64
import json
import random
import string

ALNUM = string.ascii_letters + string.digits
HEX = "0123456789abcdef"
ALPHABETS = {
    "a": ALNUM,
    "A": string.ascii_uppercase + "234567",
    "C": string.ascii_uppercase + string.digits,
    "l": string.ascii_lowercase + string.digits,
    "h": HEX,
    "d": string.digits,
    "s": string.ascii_lowercase,
    "u": ALNUM + "-_",
    "b": ALNUM + "+/",
    "p": ALNUM + "!#%^*~",
}
MARK, HEXMARK = "Qz7Xk", "7e1f0b5d"
"""The marks of all secrets, and of secrets that consist of hexadecimal digits."""


class Mint:
    """Generates secrets and remembers them by name."""

    def __init__(self, seed: int = 3) -> None:
        self._random = random.Random(seed)
        self.all: dict[str, str] = {}

    def draw(self, name: str, text: str) -> str:
        """Return the text with its fields replaced by random characters.

        `{a:36}`: 36 letters and digits. `{A:16}`: capitals and 2 to 7. `{h:40}`: hexadecimal digits. `{d:9}`: digits. `{s:9}`:
        small letters. `{C:9}`: capitals and digits. `{l:9}`: small letters and digits. `{u:9}` and `{b:9}`: base64 (for URLs,
        and plain). `{p:9}`: a password. `{w:9}`: a word with two digits.
        """
        secret = ""
        while text:
            literal, brace, text = text.partition("{")
            secret += literal
            if not brace:
                break
            field, _, text = text.partition("}")
            kind, _, count = field.partition(":")
            secret += self._chars(kind, int(count), marked=MARK not in secret and HEXMARK not in secret)
        if name in self.all or secret in self.all.values():
            raise ValueError(f"{name} is drawn twice")
        self.all[name] = secret
        return secret

    def _chars(self, kind: str, count: int, *, marked: bool) -> str:
        if kind == "w":
            return "".join(self._random.choice(("bdfklmnprst", "aeiou")[place % 2]) for place in range(count - 2)) + "".join(
                self._random.choices(string.digits, k=2)
            )
        chars = "".join(self._random.choices(ALPHABETS[kind], k=count))
        mark = {"h": HEXMARK, "l": HEXMARK}.get(kind, MARK if kind in "aubp" else "")
        at = (count - len(mark)) // 2
        return chars[:at] + mark + chars[at + len(mark) :] if marked and mark and count >= len(mark) + 4 else chars

    def key(self, name: str, kind: str, lines: int = 20) -> str:
        """Return a PEM block."""
        body = [self.draw(f"{name} line {number}", "{a:64}") for number in range(lines)]
        label = f"{kind} PRIVATE KEY".strip()
        return "\n".join([f"-----BEGIN {label}-----", *body, f"-----END {label}-----", ""])


def search(data: bytes) -> str:
    """Return an excerpt with the first mark of a secret in these bytes; empty if there is none."""
    for mark in (MARK, HEXMARK):
        at = data.find(mark.encode())
        if at >= 0:
            return repr(data[max(0, at - 60) : at + 60])
    return ""


def forms(secret: str) -> list[bytes]:
    """Return encodings of a secret that contain no mark: base64 at its three offsets, reversed, in UTF-16."""
    raw = secret.encode()
    encoded = [secret[::-1].encode(), secret.encode("utf-16-le")]
    for offset in range(3):
        text = base64.b64encode(b"\0" * offset + raw).decode()
        encoded.append(text[4 if offset else 0 : len(text) // 4 * 4 - 4].encode())
    return [form for form in encoded if len(form) >= 12]


def service_account(mint: Mint, name: str) -> str:
    """Return the key file of a GCP service account."""
    facts = {
        "type": "service_account",
        "project_id": "north-lab",
        "private_key_id": mint.draw(f"{name} id", "{h:40}"),
        "private_key": mint.key(name, ""),
        "client_email": "train@north-lab.iam.gserviceaccount.com",
    }
    return json.dumps(facts, indent=2)


def jwt(mint: Mint, name: str) -> str:
    """Return a JSON web token with a subject and an issuer."""

    def part(value: object) -> str:
        return base64.urlsafe_b64encode(json.dumps(value, separators=(",", ":")).encode()).decode().rstrip("=")

    head, body = part({"alg": "HS256", "typ": "JWT"}), part({"sub": "u-7731", "iss": "north", "exp": 1_900_000_000})
    return mint.draw(name, f"{head}.{body}." + "{a:43}")
