"""What secrets look like: one table for the redaction of what is written (`schema.redact`) and for the search of files.

There are three kinds of rule. TOKENS are recognized by their form, anywhere. NAMED values are recognized by the name before
them (`password: ...`), if the value looks random (`is_random`, `is_password`). FILES are recognized by their
names. All patterns are ASCII, so that they can be compiled for bytes too. Any change here or in `environment.secrets.rules`
must raise RULE, so that files are searched again.
"""

from __future__ import annotations

import base64
import json
import re
from typing import NamedTuple

from repro_env.schema.patterns import lazy

RULE = 5
"""Version of the rules; part of the cache keys of files that hold no secret."""


class Kind(NamedTuple):
    """One kind of secret."""

    name: str
    needles: tuple[str, ...]
    """How it begins: every match starts with one of these strings."""
    pattern: str


_BEFORE = r"(?:(?<![A-Za-z0-9])|(?<=\\[nrt])|(?<=%[0-9A-F]{2}))"
_AFTER = r"(?![A-Za-z0-9])"
_DIGIT = r"(?=[A-Za-z_+/.-]{0,200}[0-9])"
_MIXED = r"(?=[A-Za-z_-]{0,30}[0-9])(?=[a-z0-9_-]{0,60}[A-Z])"
_HEXADECIMAL = "[0-9a-f]"


def _token(name: str, heads: str, tail: str) -> Kind:
    """`heads`: alternatives, separated by spaces. `tail`: a pattern of what follows each of them."""
    needles = tuple(heads.split())
    return Kind(name, needles, "(?:" + "|".join(map(re.escape, needles)) + ")" + tail + _AFTER)


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
SHAPES = (
    _token("Hugging Face token", "hf_ api_org_", r"(?=[A-Za-z]*[0-9A-Z])[A-Za-z0-9]{30,}"),
    _token("GitHub token", "ghp_ gho_ ghu_ ghs_ ghr_", r"[A-Za-z0-9]{36,}"),
    _token("GitHub token", "github_pat_", r"[A-Za-z0-9_]{40,}"),
    _token("GitLab token", "glpat- glptt- gldt- glrt- glcbt- glft- glsoat- glagent- gloas-", r"[A-Za-z0-9_.-]{20,}"),
    _token("GitLab token", "GR1348941", r"[A-Za-z0-9_-]{20}"),
    _token("Slack token", "xoxa- xoxb- xoxe- xoxo- xoxp- xoxr- xoxs-", r"[0-9A-Za-z-]{20,}"),
    _token("Slack token", "xapp-", r"[0-9]-[0-9A-Za-z-]{30,}"),
    _token("Slack webhook", "hooks.slack.com/", r"(?:services|workflows|triggers)/[A-Za-z0-9/]*[A-Za-z0-9]{16,}"),
    _token("Discord webhook", "discord.com/api/ discordapp.com/api/", r"(?:v[0-9]+/)?webhooks/[0-9]{15,22}/[A-Za-z0-9_-]{40,}"),
    _token("Teams webhook", "webhook.office.com/", r"webhookb2/[0-9a-f@-]{60,80}/IncomingWebhook/[0-9a-f]{32}/[0-9a-f-]{36}"),
    _token("NVIDIA API key", "nvapi-", r"[A-Za-z0-9_-]{40,}"),
    _token("PyPI token", "pypi-AgE", r"[A-Za-z0-9_-]{40,}"),
    _token("npm token", "npm_", r"[A-Za-z0-9]{36}"),
    _token("Docker token", "dckr_pat_ dckr_oat_", r"[A-Za-z0-9_-]{24,}"),
    _token("Google API key", "AIza", r"[A-Za-z0-9_-]{35}"),
    _token("Google client secret", "GOCSPX-", r"[A-Za-z0-9_-]{24,}"),
    _token("Google access token", "ya29.", r"[A-Za-z0-9_-]{30,}"),
    _token("Google refresh token", "1//0", _MIXED + r"[A-Za-z0-9_-]{40,}"),
    _token("Stripe key", "sk_live_ rk_live_ rzp_live_", r"[A-Za-z0-9]{14,}"),
    _token("Stripe webhook secret", "whsec_", _DIGIT + r"[A-Za-z0-9+/]{32,}"),
    _token("Azure key", "AccountKey= SharedAccessKey=", r"[A-Za-z0-9+/]{40,}={0,2}"),
    _token("SendGrid key", "SG.", r"[A-Za-z0-9_-]{20,24}\.[A-Za-z0-9_-]{39,50}"),
    _token("Weights & Biases key", "wandb_v1_", r"[A-Za-z0-9_]{30,}"),
    _token("Neptune token", "eyJhcGlfYWRkcmVzcyI6", r"[A-Za-z0-9+/=_-]{40,}"),  # the base64 of `{"api_address":`
    _token("Databricks token", "dapi", _HEXADECIMAL + r"{32}(?:-[0-9])?"),
    _token("Groq key", "gsk_", r"[A-Za-z0-9]{40,}"),
    _token("Replicate token", "r8_", r"[A-Za-z0-9]{37}"),
    _token("xAI key", "xai-", r"[A-Za-z0-9]{60,}"),
    _token("Perplexity key", "pplx-", r"[A-Za-z0-9]{40,}"),
    _token("LangSmith key", "lsv2_pt_ lsv2_sk_", r"[0-9a-f]{32}_[0-9a-f]{10}"),
    _token("LangSmith key", "ls__", r"[0-9a-f]{32}"),
    _token("Together key", "tgp_v1_", _DIGIT + r"[A-Za-z0-9_-]{40,}"),
    _token("Tailscale key", "tskey-", r"(?:auth|api|client|scim|webhook)-(?:[A-Za-z0-9]{6,}-)?" + _DIGIT + r"[A-Za-z0-9]{20,}"),
    _token("Pinecone key", "pcsk_", r"[A-Za-z0-9_]{40,}"),
    _token("Vault token", "hvs. hvb. hvr.", r"[A-Za-z0-9_-]{24,}"),
    _token("DigitalOcean token", "dop_v1_ doo_v1_ dor_v1_", r"[0-9a-f]{64}"),
    _token("Atlassian token", "ATATT3 ATCTT3", r"[A-Za-z0-9_=-]{100,}"),
    _token("Bitbucket token", "ATBB", _DIGIT + r"[A-Za-z0-9]{32}"),
    _token("Artifactory key", "AKCp cmVmdGtu", _DIGIT + r"[A-Za-z0-9]{54,}"),
    _token("age key", "AGE-SECRET-KEY-1", r"[0-9A-Z]{50,}"),
    _token("AWS session token", "IQoJb3JpZ2lu FwoGZXIvYXdz FQoGZXIvYXdz", r"[A-Za-z0-9+/=]{60,}"),
    _token("AWS Bedrock key", "ABSK", _DIGIT + r"[A-Za-z0-9+/]{100,}={0,2}"),
    _token("JSON web token", "eyJ", r"[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{16,}"),
    _token("Elevenlabs key", "sk_", _DIGIT + r"[0-9a-f]{48}"),
    _token("Fireworks key", "fw_", _MIXED + r"[A-Za-z0-9]{22,24}"),
    _token("Jina key", "jina_", _DIGIT + r"[A-Za-z0-9_-]{50,}"),
    _token("Voyage key", "pa-", _MIXED + r"[A-Za-z0-9_-]{43}"),
    _token("Tavily key", "tvly-", r"(?:dev-|prod-)?" + _DIGIT + r"[A-Za-z0-9]{24,}"),
    _token("RunPod key", "rpa_", _DIGIT + r"[A-Za-z0-9]{36,}"),
    _token("Cerebras key", "csk-", _DIGIT + r"[A-Za-z0-9]{40,}"),
    _token("Anyscale token", "esecret_ aph0_", _DIGIT + r"[A-Za-z0-9]{20,}"),
    _token("Kaggle key", "KGAT_", r"[0-9a-f]{32}"),
    _token("Heroku key", "HRKU-", _DIGIT + r"[A-Za-z0-9_-]{36,}"),
    _token("Fly.io token", "fm1r_ fm1a_ fm2_", _DIGIT + r"[A-Za-z0-9+/]{60,}={0,3}"),
    _token("Render key", "rnd_", _MIXED + r"[A-Za-z0-9]{26,}"),
    _token("Netlify token", "nfp_", _DIGIT + r"[A-Za-z0-9]{36,}"),
    _token("CircleCI token", "CCIPAT_ CCIPRJ_", r"[A-Za-z0-9]{22}_[0-9a-f]{40}"),
    _token("Buildkite token", "bkua_", r"[0-9a-f]{40}"),
    _token("Sonar token", "squ_ sqp_ sqa_", r"[0-9a-f]{40}"),
    _token("Pulumi token", "pul-", r"[0-9a-f]{40}"),
    _token("Doppler token", "dp.pt. dp.st. dp.ct.", r"(?:[a-z0-9_-]{2,35}\.)?" + _DIGIT + r"[A-Za-z0-9]{40,}"),
    _token("1Password token", "ops_eyJ", r"[A-Za-z0-9+/=_-]{200,}"),
    _token("New Relic key", "NRAK-", _DIGIT + r"[A-Z0-9]{27}"),
    _token("Grafana token", "glsa_", r"[A-Za-z0-9]{32}_[0-9a-f]{8}"),
    _token("Grafana token", "glc_eyJ eyJrIjoi", r"[A-Za-z0-9+/=]{30,}"),
    _token("Sentry token", "sntrys_eyJ sntryu_", r"[A-Za-z0-9+/=_-]{60,}"),
    _token("Honeycomb key", "hcaik_ hcamk_", _DIGIT + r"[a-z0-9]{50,}"),
    _token("PostHog key", "phx_", _MIXED + r"[A-Za-z0-9]{40,}"),
    _token("Supabase key", "sbp_ sb_secret_", _DIGIT + r"[A-Za-z0-9_-]{30,}"),
    _token("PlanetScale token", "pscale_tkn_ pscale_pw_ pscale_oauth_", r"[A-Za-z0-9_.-]{32,}"),
    _token("Neon key", "npg_ napi_", _MIXED + r"[A-Za-z0-9]{12,}"),
    _token("Airtable token", "pat", r"[A-Za-z0-9]{14}\.[0-9a-f]{64}"),
    _token("Notion token", "ntn_", r"[0-9]{11}[A-Za-z0-9]{35}"),
    _token("Linear key", "lin_api_", r"[A-Za-z0-9]{40}"),
    _token("Figma token", "figd_ figu_", r"[A-Za-z0-9_-]{40,}"),
    _token("Dropbox token", "sl.", r"(?:u\.)?" + _MIXED + r"[A-Za-z0-9_-]{130,}"),
    _token("Shopify token", "shpat_ shpca_ shppa_ shpss_", r"[0-9a-fA-F]{32}"),
    _token("Square token", "sq0csp- sq0atp- sq0idp-", _DIGIT + r"[A-Za-z0-9_-]{22,}"),
    _token("Mailgun key", "key-", _DIGIT + r"[0-9a-f]{32}"),
    _token("Brevo key", "xkeysib- xsmtpsib-", r"[0-9a-f]{64}-[A-Za-z0-9]{16}"),
    _token("Facebook token", "EAACEdEose0cBA EAAG EAAB", _MIXED + r"[A-Za-z0-9]{80,}"),
    _token("Twitter token", "AAAAAAAAAAAAAAAAAAAAA", _MIXED + r"[A-Za-z0-9%]{50,}"),
    _token("Mapbox token", "sk.eyJ1", r"[A-Za-z0-9_-]{20,}\.[A-Za-z0-9_-]{20,}"),
    _token("RubyGems key", "rubygems_", r"[0-9a-f]{48}"),
    _token("NuGet key", "oy2", _DIGIT + r"[a-z0-9]{43}"),
    _token("crates.io token", "cio", _MIXED + r"[A-Za-z0-9]{32}"),
    _token("Postman key", "PMAK-", r"[0-9a-f]{24}-[0-9a-f]{34}"),
    _token("Prefect key", "pnu_ pnb_", _DIGIT + r"[A-Za-z0-9]{36}"),
    _token("Alibaba key", "LTAI", r"[A-Za-z0-9]{12,24}(?=[\"'\s,;:]{1,60}.{0,60}?[A-Za-z0-9]{30})"),
    _token("Yandex key", "AQVN", _MIXED + r"[A-Za-z0-9_-]{35,38}"),
    _token("Contentful token", "CFPAT-", r"[A-Za-z0-9_-]{43}"),
    _token("Databento key", "db-", _MIXED + r"[A-Za-z0-9]{29}"),
    _token("Flutterwave key", "FLWSECK-", r"[0-9a-f]{32}-X"),
    _token("Adafruit key", "aio_", _MIXED + r"[A-Za-z0-9]{28}"),
    _token("Langfuse key", "sk-lf-", r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"),
    # A long unbroken part with a digit in it: `sk-learn-baseline-of-last-week` is a name.
    _token(
        "API key",
        "sk-",
        r"(?=[A-Za-z0-9_-]*[A-Za-z0-9]{16})(?=[A-Za-z_-]*[0-9])[A-Za-z0-9][A-Za-z0-9_-]{18,}[A-Za-z0-9_-]",
    ),
)
"""Begin with their needle, at the start of a word."""
WITHIN = (
    Kind("Discord token", (".",), _BEFORE + r"[MNO][A-Za-z0-9_-]{22,27}\.[A-Za-z0-9_-]{6,7}\.[A-Za-z0-9_-]{27,40}" + _AFTER),
    Kind("Telegram token", (":AA",), _BEFORE + r"[0-9]{8,10}:AA[A-Za-z0-9_-]{33}" + _AFTER),
    Kind("Azure client secret", ("Q~",), _BEFORE + r"[A-Za-z0-9_~.-]{3}[0-9]Q~[A-Za-z0-9_~.-]{31,34}" + _AFTER),
    Kind("Azure DevOps token", ("AZDO",), _BEFORE + r"[A-Za-z0-9]{75,76}AZDO[A-Za-z0-9]{4,5}" + _AFTER),
    Kind("OpenAI key", ("T3BlbkFJ",), _BEFORE + r"sk-[A-Za-z0-9_-]{20,80}T3BlbkFJ[A-Za-z0-9_-]{20,80}" + _AFTER),
    Kind("Terraform token", (".atlasv1.",), _BEFORE + r"[A-Za-z0-9]{14}\.atlasv1\.[A-Za-z0-9_=-]{60,70}" + _AFTER),
    Kind("PayPal token", ("$production$",), r"access_token\$production\$[a-z0-9]{16}\$[0-9a-f]{32}" + _AFTER),
    Kind("Mailchimp key", ("-us",), _BEFORE + r"[0-9a-f]{32}-us[0-9]{1,2}" + _AFTER),
    Kind(
        "hashed password",
        ("$y$", "$6$", "$5$", "$apr1$", "$2y$", "$2b$"),
        r"(?:\$y\$j\w{1,4}\$[./A-Za-z0-9]{10,}|\$[56]\$(?:rounds=\d+\$)?[./A-Za-z0-9]{4,16}|\$apr1\$[./A-Za-z0-9]{4,8}|\$2[aby]\$\d\d)\$[./A-Za-z0-9]{20,}",
    ),
)
"""Known by a needle in their middle."""
TOKENS = tuple(Kind(kind.name, kind.needles, _BEFORE + kind.pattern) for kind in SHAPES) + WITHIN
AWS_ID = Kind("AWS key id", ("AKIA", "ASIA"), _BEFORE + r"(?:AKIA|ASIA)[A-Z2-7]{16}" + _AFTER)
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

FILES: tuple[tuple[str, str, str], ...] = (
    # (kind, pattern of the name or path, pattern of the content of such a file; its first group is the secret)
    ("password of a .pgpass", r"(?:\.pgpass|pgpass\.conf)", r"(?m)^[^#:\n]+:[^:\n]*:[^:\n]*:[^:\n]+:(\S+)"),
    (
        "password of a .netrc",
        r"[._]?netrc|\.?authinfo",
        r"\bpassword\s+(\S+)",
    ),
    (
        "password in a configuration file",
        (
            r"\.?my\.cnf|\.mylogin\.cnf|\.pypirc|\.s3cfg|\.boto|rclone\.conf|\.databrickscfg|\.?esmtprc|\.?msmtprc|\.offlineimaprc|\.fetchmailrc"
            r"|\.snowsql/config|profiles\.yml|\.gem/credentials|\.cargo/credentials(?:\.toml)?|\.terraformrc|\.aws/credentials|wp-config\.php"
            r"|\.?local_settings\.py|\.smbcredentials|\.wgetrc|\.curlrc|\.ansible_vault_pass|\.bash_history|\.zsh_history"
        ),
        r"(?im)(?:\b|_)(?:pass(?:word|wd)?|secret\w*|\w*token|\w*[_-]?key)[\"']?\s*(?:[=:,]|=>)\s*[\"']?([^\s\"'#,]{8,})",
    ),
    (
        "secret in a file of secrets",
        r"\.?(?:secrets?|credentials?|passwords?)(?:\.(?:local|prod|dev))?\.(?:toml|ya?ml|json|ini|cfg|env|properties)",
        r"(?m)[\w.-][\"']?[ \t]*[=:][ \t]*[\"']?([^\s\"'`,{}\[\]<>$]{8,})[\"',}\s]*$",
    ),
    (
        "secret in a file of secrets",
        r"\.?(?:secrets?|credentials?|passwords?)\.txt",
        r"(?m)^[\w@][\w.@-]{0,60}[ \t:=,]+(?=\S*[0-9])([^\s`]{8,})[ \t]*$",
    ),
    (
        "token of a tool",
        r"\.vault-token|\.?huggingface/token|\.kaggle/access_token|\.wandb_api_key|\.?token(?:\.txt)?",
        r"\A\s*([^\s<>${}]{20,})\s*\Z",
    ),
    (
        "token of a registry",
        r"\.npmrc|\.yarnrc(?:\.yml)?|\.dockercfg",
        r"(?i)(?:authToken|_auth|_password|\"auth\")[\"']?\s*[=:]\s*[\"']?([^\s\"'${}]{12,})",
    ),
    (
        "secret in a Terraform state",
        r".*\.tfstate(?:\.backup)?",
        r"(?i)\"(?:[a-z_]*(?:password|secret|token|private_key\w*|access_key))\"\s*:\s*\"([^\"\s]{6,})\"",
    ),
    ("hashed password", r"\.?htpasswd|shadow", r"(?m)^[^:\s#]+:(\$?[./A-Za-z0-9${}+=]{13,})"),
    ("password in stored credentials", r"\.git-credentials", r"://[^\s:/@]+:([^\s@]+)@"),
)
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
