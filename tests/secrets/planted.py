"""Made-up secrets of the shapes that real ones have: drawn from a fixed seed at run time, so that none stands in a file.

Each holds one of two marks, so that a search of every byte needs two needles; each is another one.
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
"""In every secret: the one, or (where only hexadecimal digits may stand) the other."""


class Mint:
    """Draws secrets and remembers them by name."""

    def __init__(self, seed: int = 3) -> None:
        self._random = random.Random(seed)
        self.all: dict[str, str] = {}

    def draw(self, name: str, text: str) -> str:
        """`{a:36}` stands for 36 letters and digits, `{A:16}` for capitals and 2 to 7, `{h:40}` for hexadecimal digits,
        `{d:9}` for digits, `{s:9}` for small letters, `{C:9}` for capitals and digits, `{l:9}` for small letters and digits, `{u:9}` and `{b:9}` for
        base64 (of URLs, and plain), `{p:9}` for a password, `{w:9}` for a word with two digits."""
        made = ""
        while text:
            before, brace, rest = text.partition("{")
            made += before
            if not brace:
                break
            field, _, text = rest.partition("}")
            kind, _, count = field.partition(":")
            made += self._chars(kind, int(count), marked=MARK not in made and HEXMARK not in made)
        if name in self.all or made in self.all.values():
            raise ValueError(f"{name} is drawn twice")
        self.all[name] = made
        return made

    def _chars(self, kind: str, count: int, *, marked: bool) -> str:
        if kind == "w":
            return "".join(self._random.choice(("bdfklmnprst", "aeiou")[place % 2]) for place in range(count - 2)) + "".join(
                self._random.choices(string.digits, k=2)
            )
        drawn = "".join(self._random.choices(ALPHABETS[kind], k=count))
        mark = {"h": HEXMARK, "l": HEXMARK}.get(kind, MARK if kind in "aubp" else "")
        at = (count - len(mark)) // 2
        return drawn[:at] + mark + drawn[at + len(mark) :] if marked and mark and count >= len(mark) + 4 else drawn

    def key(self, name: str, kind: str, lines: int = 20) -> str:
        """A PEM block."""
        body = [self.draw(f"{name} line {number}", "{a:64}") for number in range(lines)]
        words = f"{kind} PRIVATE KEY".strip()
        return "\n".join([f"-----BEGIN {words}-----", *body, f"-----END {words}-----", ""])


def search(data: bytes) -> str:
    """What of a secret stands in these bytes, in a few words; empty when nothing does."""
    for mark in (MARK, HEXMARK):
        at = data.find(mark.encode())
        if at >= 0:
            return repr(data[max(0, at - 60) : at + 60])
    return ""


def forms(secret: str) -> list[bytes]:
    """Other spellings that still are the secret, and hold no mark: base64 at its three offsets, backwards, in UTF-16."""
    raw = secret.encode()
    found = [secret[::-1].encode(), secret.encode("utf-16-le")]
    for offset in range(3):
        text = base64.b64encode(b"\0" * offset + raw).decode()
        found.append(text[4 if offset else 0 : len(text) // 4 * 4 - 4].encode())
    return [form for form in found if len(form) >= 12]


def service_account(mint: Mint, name: str) -> str:
    """A GCP service account's key file."""
    facts = {
        "type": "service_account",
        "project_id": "north-lab",
        "private_key_id": mint.draw(f"{name} id", "{h:40}"),
        "private_key": mint.key(name, ""),
        "client_email": "train@north-lab.iam.gserviceaccount.com",
    }
    return json.dumps(facts, indent=2)


def jwt(mint: Mint, name: str) -> str:
    """A JSON web token that says whose it is."""

    def part(value: object) -> str:
        return base64.urlsafe_b64encode(json.dumps(value, separators=(",", ":")).encode()).decode().rstrip("=")

    head, body = part({"alg": "HS256", "typ": "JWT"}), part({"sub": "u-7731", "iss": "north", "exp": 1_900_000_000})
    return mint.draw(name, f"{head}.{body}." + "{a:43}")
