"""Secrets out of strings: every string that is written down passes through `url` or `line`.

The recognisers are shared with the search of files that are carried (`capture.secrets`), which asks more of a
match. What is taken out leaves `<redacted>` behind, never a hash of it: a hash of a short secret can be searched.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
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


_BEFORE = r"(?:(?<![A-Za-z0-9])|(?<=\\[nrt]))"
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
ENCODED_KEY = Kind(
    "private key",
    ("LS0tLS1CRUdJTi",),
    # base64 of the first line of a key, as a kubeconfig has it: plain, RSA, EC, OpenSSH
    r"LS0tLS1CRUdJTi(?:BQUklWQVRFIEtFWS|BSU0EgUFJJVkFURSBLRVkt|BFQyBQUklWQVRFIEtFWS|BPUEVOU1NIIFBSSVZBVEUgS0VZ)[A-Za-z0-9+/=]{16,}",
)
TOKENS = (
    _token("Hugging Face token", ("hf_", "api_org_"), r"(?:hf_|api_org_)(?=[A-Za-z]*[0-9A-Z])[A-Za-z0-9]{30,}"),
    _token("GitHub token", ("ghp_", "gho_", "ghu_", "ghs_", "ghr_"), r"gh[pousr]_[A-Za-z0-9]{36,}"),
    _token("GitHub token", ("github_pat_",), r"github_pat_[A-Za-z0-9_]{40,}"),
    _token(
        "GitLab token",
        ("glpat-", "glptt-", "gldt-", "glrt-", "glcbt-", "glft-", "glsoat-", "glagent-"),
        r"gl(?:pat|ptt|dt|rt|cbt|ft|soat|agent)-[A-Za-z0-9_.-]{20,}",
    ),
    _token("Slack token", ("xox",), r"xox[abeoprs]-[0-9A-Za-z-]{20,}"),
    _token("Slack token", ("xapp-",), r"xapp-[0-9]-[0-9A-Za-z-]{30,}"),
    _token(
        "Slack webhook", ("hooks.slack.com/",), r"hooks\.slack\.com/(?:services|workflows|triggers)/[A-Za-z0-9/]*[A-Za-z0-9]{16,}"
    ),
    _token("Discord webhook", ("/webhooks/",), r"discord(?:app)?\.com/api/(?:v[0-9]+/)?webhooks/[0-9]{15,22}/[A-Za-z0-9_-]{40,}"),
    _token("Discord token", (".",), r"[MNO][A-Za-z0-9_-]{22,27}\.[A-Za-z0-9_-]{6,7}\.[A-Za-z0-9_-]{27,40}"),
    _token("Telegram token", (":AA",), r"[0-9]{8,10}:AA[A-Za-z0-9_-]{33}"),
    _token("NVIDIA API key", ("nvapi-",), r"nvapi-[A-Za-z0-9_-]{40,}"),
    _token("PyPI token", ("pypi-",), r"pypi-AgE[A-Za-z0-9_-]{40,}"),
    _token("npm token", ("npm_",), r"npm_[A-Za-z0-9]{36}"),
    _token("Docker token", ("dckr_",), r"dckr_(?:pat|oat)_[A-Za-z0-9_-]{24,}"),
    _token("Google API key", ("AIza",), r"AIza[A-Za-z0-9_-]{35}"),
    _token("Google client secret", ("GOCSPX-",), r"GOCSPX-[A-Za-z0-9_-]{24,}"),
    _token("Google access token", ("ya29.",), r"ya29\.[A-Za-z0-9_-]{30,}"),
    _token("Stripe key", ("_live_",), r"[sr]k_live_[A-Za-z0-9]{20,}"),
    _token("Azure key", ("AccountKey=", "SharedAccessKey="), r"(?:Account|SharedAccess)Key=[A-Za-z0-9+/]{40,}={0,2}"),
    _token("SendGrid key", ("SG.",), r"SG\.[A-Za-z0-9_-]{20,24}\.[A-Za-z0-9_-]{39,50}"),
    _token("Weights & Biases key", ("wandb_v1_",), r"wandb_v1_[A-Za-z0-9_]{30,}"),
    # The base64 of `{"api_address":`
    _token("Neptune token", ("eyJhcGlfYWRkcmVzcyI6",), r"eyJhcGlfYWRkcmVzcyI6[A-Za-z0-9+/=_-]{40,}"),
    _token("Databricks token", ("dapi",), r"dapi[0-9a-f]{32}(?:-[0-9])?"),
    _token("Groq key", ("gsk_",), r"gsk_[A-Za-z0-9]{40,}"),
    _token("Replicate token", ("r8_",), r"r8_[A-Za-z0-9]{37}"),
    _token("xAI key", ("xai-",), r"xai-[A-Za-z0-9]{60,}"),
    _token("Perplexity key", ("pplx-",), r"pplx-[A-Za-z0-9]{40,}"),
    _token("LangSmith key", ("lsv2_",), r"lsv2_(?:pt|sk)_[0-9a-f]{32}_[0-9a-f]{10}"),
    _token("Pinecone key", ("pcsk_",), r"pcsk_[A-Za-z0-9_]{40,}"),
    _token("Vault token", ("hvs.",), r"hvs\.[A-Za-z0-9_-]{24,}"),
    _token("DigitalOcean token", ("_v1_",), r"do[opr]_v1_[0-9a-f]{64}"),
    _token("Atlassian token", ("ATATT3",), r"ATATT3[A-Za-z0-9_=-]{100,}"),
    _token("Artifactory key", ("AKCp",), r"AKCp[A-Za-z0-9]{60,}"),
    _token("age key", ("AGE-SECRET-KEY-1",), r"AGE-SECRET-KEY-1[0-9A-Z]{50,}"),
    _token(
        "AWS session token",
        ("IQoJb3JpZ2lu", "FwoGZXIvYXdz", "FQoGZXIvYXdz"),
        r"(?:IQoJb3JpZ2lu|F[wQ]oGZXIvYXdz)[A-Za-z0-9+/=]{60,}",
    ),
    _token("JSON web token", ("eyJ",), r"eyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{16,}"),
    # A long unbroken part with a digit in it: `sk-learn-baseline-of-last-week` is a name.
    _token(
        "API key",
        ("sk-",),
        r"(?<![_-])sk-(?=[A-Za-z0-9_-]*[A-Za-z0-9]{16})(?=[A-Za-z_-]*[0-9])[A-Za-z0-9][A-Za-z0-9_-]{18,}[A-Za-z0-9]",
    ),
)
AWS_ID = _token("AWS key id", ("AKIA", "ASIA"), r"(?:AKIA|ASIA)[A-Z2-7]{16}")
"""No secret by itself; the secret key stands near it."""

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{0,30}://[^\s\"'<>`\\]+")
_LONG_VALUE = re.compile(r"(?=[^&]*[0-9])(?=[^&]*[A-Za-z])[A-Za-z0-9_.~%+/=-]{20,}")
_SIGNING = re.compile(
    r"(?i)x-(?:amz|goog|oss|cos|ms)-.*|.*(?:token|secret|signature|credential|password|passwd|api[_-]?key).*"
    r"|sig|sign|auth|authorization|key|pass|pwd|policy|expires|awsaccesskeyid|googleaccessid|key-pair-id|hdnts|jwt|se|sp|sv|st|skoid"
)
"""Names of query values that give access."""
_IN_PATH = re.compile(r"/t/[^/]+(?=/|\Z)")
_CONDA_TOKEN = re.compile(r"(://[^\s\"'<>]{1,300}?/t/)[A-Za-z0-9_-]{8,}(?=/)")
_BROAD = tuple((kind.needles, re.compile(kind.pattern)) for kind in (PRIVATE_KEY, ENCODED_KEY, *TOKENS, AWS_ID))
_BEARER = re.compile(r"(?i)\b(authorization\s*[:=]\s*[\"']?(?:bearer|basic|token)|bearer)(\s+)[A-Za-z0-9._~+/=-]{8,}")
_PASSWORD = re.compile(
    r"(?i)((?:\b|_|--?|(?<=pg)|(?<=db))(?:password|passwd|passphrase|client[_-]?secret|secret[_-]?(?:access[_-]?)?key|api[_-]?key"
    r"|access[_-]?key|(?<=--)pass)[\"']?(?:\s*[=:]\s*|\s+(?=\S))[\"']?)(?!<redacted>)[^\s\"'<>&,;]{6,}"
)
_TOKEN = re.compile(
    # Long ones only: `--eos_token <s>` and `--max-tokens 512` are a model's, not a door's; after `--not-secret` stands a path.
    r"(?i)((?:\b|_|--?)(?<!--not-)(?:token|secret)[\"']?(?:\s*[=:]\s*|\s+(?=\S))[\"']?)(?=[^\s\"']*[0-9])(?!<redacted>)[A-Za-z0-9._~+/=-]{16,}"
)
_NO_SCHEME = re.compile(
    # `user:password@proxy:3128`; an image's `name:tag@sha256:...` and a URL with its scheme are not meant.
    r"(?<![\w/.%+@:-])([\w.%+-]{1,100}):(?!//)[^\s:@/\"'<>]{3,200}@(?!sha\d+:)(?=[A-Za-z0-9][\w-]*(?:\.[\w-]+|:[0-9]))"
)
_USER = re.compile(r"((?:\A|\s)(?:-u|--user|--proxy-user)[\s=][^\s:]{1,100}:)[^\s<]\S*")
_NOT_TEXT = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff]")
_SURROGATE = re.compile("[\ud800-\udfff]")


def url(text: str) -> str:
    """A URL without credentials: no userinfo (ssh keeps the user's name), no signed query, no token in the path."""
    scheme, separator, rest = text.partition("://")
    if not separator:
        return _without_tokens(text)
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


def secretless(text: str, hidden: Iterable[str] = ()) -> str:
    """Text without secrets, otherwise as it is: its lines and control characters stay."""
    for value in sorted(hidden, key=len, reverse=True):
        text = text.replace(value, REDACTED)
    text = _without_tokens(text)
    if "://" in text:
        text = _URL.sub(lambda match: url(match[0]), text)
        text = _CONDA_TOKEN.sub(rf"\1{REDACTED}", text)
    text = _BEARER.sub(rf"\1\2{REDACTED}", text)
    text = _PASSWORD.sub(rf"\1{REDACTED}", text)
    text = _TOKEN.sub(rf"\1{REDACTED}", text)
    if ":" in text:
        text = _USER.sub(rf"\1{REDACTED}", text)
        if "@" in text:
            text = _NO_SCHEME.sub(rf"{REDACTED}@", text)
    return text


def _without_tokens(text: str) -> str:
    for needles, pattern in _BROAD:
        if any(needle in text for needle in needles):
            text = pattern.sub(REDACTED, text)
    return text


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
