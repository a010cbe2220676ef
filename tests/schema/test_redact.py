"""Redaction of secrets. The secrets are concatenated here so that secret scanners do not report this file."""

from __future__ import annotations

import re
import sysconfig
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from repro_env.schema import redact
from repro_env.schema.text import Line, Url

HF = "hf_" + "AbCdEfGhIjKlMnOpQrStUvWxYz01234567"
GITHUB = "ghp_" + "0123456789abcdefghijABCDEFGHIJ456789"
PAT = "github_pat_" + "11ABCDEFG0aBcDeFgHiJkL_" + "z9Y8x7W6v5U4t3S2r1Q0p9O8n7M6l5K4j3I2"
GITLAB = "glpat-" + "AbC123dEf456GhI789jK"
AWS = "AKIA" + "QX7ZKL2MNB4VCD6R"
SLACK = "xoxb-" + "123456789012-abcdefghijklmnop"
OPENAI = "sk-proj-" + "AbCd1234EfGh5678IjKl9012MnOp"
NVIDIA = "nvapi-" + "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8s9T0u1V2"
PEM = "-----BEGIN " + "RSA PRIVATE KEY-----\nMIIEowIBAAKCAQEAx7d0fakefakefake\nabc\n-----END " + "RSA PRIVATE KEY-----"


@pytest.mark.parametrize("secret", [HF, GITHUB, PAT, GITLAB, AWS, SLACK, OPENAI, NVIDIA])
def test_tokens_are_redacted_everywhere_in_a_text(secret: str) -> None:
    for text in (secret, f"x={secret}", f"--token {secret} --epochs 3", f"https://example.org/{secret}/x", f"({secret})"):
        assert secret not in redact.line(text)
        assert redact.REDACTED in redact.line(text)
    assert secret not in redact.url(f"https://example.org/a?b={secret}")
    assert secret not in redact.url(f"https://example.org/{secret}/a")


def test_a_private_key_is_redacted_completely() -> None:
    cleaned = redact.line(f"before {PEM} after")
    assert cleaned == f"before {redact.REDACTED} after"
    assert "MIIE" not in redact.line(PEM.replace("\n", "\\n"))
    assert "MIIE" not in redact.line(PEM.partition("-----END")[0])


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("https://user:pass@example.org/simple/", "https://example.org/simple/"),
        ("https://token@example.org/simple", "https://example.org/simple"),
        ("https://user:p@ss@example.org:8080/x", "https://example.org:8080/x"),
        ("https://user:pa/ss@example.org/x", "https://example.org/x"),
        ("https://user:pa#ss@example.org/x", "https://example.org/x"),
        ("https://user:pa?ss@example.org/x", "https://example.org/x"),
        ("https://example.org/x#user@host", "https://example.org/x#user@host"),
        ("https://:pw@example.org", "https://example.org"),
        ("git+https://u:p@example.org/r.git@main", "git+https://example.org/r.git@main"),
        ("ssh://git:pw@example.org/r.git", "ssh://git@example.org/r.git"),
        ("git@example.org:team/r.git", "git@example.org:team/r.git"),
        ("https://example.org/@scope/pkg", "https://example.org/@scope/pkg"),
        ("https://example.org:8080/@scope/pkg", "https://example.org:8080/@scope/pkg"),
        ("https://[::1]:80/@s", "https://[::1]:80/@s"),
        ("https://example.org/f.whl?X-Amz-Signature=abc&X-Amz-Date=1", "https://example.org/f.whl"),
        ("https://example.org/f.whl?sv=2020&sig=abc", "https://example.org/f.whl"),
        ("https://example.org/f.whl?a=1&access_token=b#sha256=00f", "https://example.org/f.whl#sha256=00f"),
        ("https://example.org/f.whl?t=abcdefghij0123456789", "https://example.org/f.whl"),
        ("https://example.org/f.whl?download=1", "https://example.org/f.whl?download=1"),
        ("https://example.org/f.whl#access_token=abc", "https://example.org/f.whl"),
        ("https://example.org/t/ab-1234/channel/f", f"https://example.org/t/{redact.REDACTED}/channel/f"),
        ("file:///home/ann/a%20b", "file:///home/ann/a%20b"),
        ("", ""),
        ("not a url", "not a url"),
    ],
)
def test_credentials_in_urls_are_removed(given: str, expected: str) -> None:
    assert redact.url(given) == expected
    assert redact.url(expected) == expected


@pytest.mark.parametrize(
    "text",
    [
        "--max-tokens 512 --eos_token <s> --pad-token [PAD]",
        "3.11.7 (main, May  9 2026, 07:35:25) [GCC 12.2.0]",
        "/home/ann/sk-learn-baseline-of-last-week/train.py",
        "OpenSSL 3.0.19 27 Jan 2026",
        "sha256:" + "0123456789abcdef" * 4,
        "hf_hub_download(repo_id)",
        "token bucket algorithm",
        "risk-assessment-of-2024-with-long-names",
        "python -m torch.distributed.run --nproc_per_node=2 train.py key=value",
        "/data/pass=2/part-0001.parquet",
        "tokens: data/tokens_v2_1024.bin",
        "password: data/passwords-list/rockyou2009.txt",
        "--key runs/a1b2c3d4e5f6a7b8c9d0/model.pt",
        "--storage-key bucket7/part-0001.bin",
        "/scratch/auth/01a1fd02-1a59-73ca-8e91-4a5fbfd6a4b6/model.pt",
    ],
)
def test_text_without_secrets_is_unchanged(text: str) -> None:
    assert redact.line(text) == text


@pytest.mark.parametrize(
    "text",
    [
        "outputs/password=x1y2z3w4/m.pt",
        "password: Tr0ub4dor/x.y",
        "--api-key a1b2c3d4/e5f6a7b8.c9d0",
        "secret=a9/b8c7+d6.e5f4g7h8",
    ],
)
def test_a_secret_in_a_path_is_redacted(text: str) -> None:
    assert redact.REDACTED in redact.line(text)


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("--password hunter22", "hunter22"),
        ("WANDB_API_KEY=0123456789abcdef0123456789abcdef01234567", "0123456789abcdef"),
        ("aws_secret_access_key = wJalrXUtnFEMIK7MDENGbPxRfiCYzzzzzKEYzzzz", "wJalr"),
        ('{"client_secret": "s3cretvalue"}', "s3cretvalue"),
        ("Authorization: Bearer abcdefgh.ijklm", "abcdefgh"),
        ("--hf-token=abcdefgh12345678", "abcdefgh12345678"),
        ("pip --index-url https://ann:pw12@example.org/simple", "pw12"),
    ],
)
def test_values_that_are_named_as_secrets_are_redacted(text: str, secret: str) -> None:
    assert secret not in redact.line(text)


RANDOM = "k9Q2" + "vT7xLm4Zp8Rw"
CLOUDSMITH, FURY = "dl.cloudsmith" + ".io", "index.fury" + ".io"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("--wandb_key", "7e1f0b5d" * 2 + "9c3a8d2b4e6f1a0c7b5d9e8f"),
        ("--auth", RANDOM),
        ("-p", RANDOM),
        ("credentials", RANDOM),
        ("logger.wandb.key", "7e1f0b5d" + "9c3a8d2b4e6f1a0c7b5d9e8f12ab34cd"),
        ("--api-key", "sunflower"),
        ("db.password", "correct"),
        ("hf_token", RANDOM),
        ("--neptune_token", RANDOM),
        ("aws_secret_access_key", RANDOM * 2),
    ],
)
def test_the_value_of_a_secret_option_is_redacted(name: str, text: str) -> None:
    assert redact.value(name, text) == redact.REDACTED


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("-p", "8080"),
        ("-p", "conf/model-2024b.yaml"),
        ("--max-tokens", "512"),
        ("--pad_token", "<|endoftext|>"),
        ("--sort_key", "created_at"),
        ("optimizer.key", "adamw"),
        ("--auth", "none"),
        ("password", "$DB_PASSWORD"),
        ("token", "${oc.env:HF_TOKEN}"),
        ("--key-file", "keys/server.pem"),
        ("num_tokens", "131072"),
        ("tokenizer", "bert-base-uncased"),
        ("key", "resnet50_imagenet_v2"),
    ],
)
def test_the_value_of_a_plain_option_is_kept(name: str, text: str) -> None:
    assert redact.value(name, text) == text


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("file:///home/ann/t/abcdefgh1234/proj", "file:///home/ann/t/abcdefgh1234/proj"),
        (
            f"https://{CLOUDSMITH}/{RANDOM}/lab/private/python/simple/",
            f"https://{CLOUDSMITH}/{redact.REDACTED}/lab/private/python/simple/",
        ),
        (
            f"https://{CLOUDSMITH}/basic/lab/private/python/simple/",
            f"https://{CLOUDSMITH}/basic/lab/private/python/simple/",
        ),
        (f"https://{RANDOM}@{FURY}/lab/", f"https://{FURY}/lab/"),
        (f"https://{FURY}/{RANDOM}/lab/", f"https://{FURY}/{redact.REDACTED}/lab/"),
    ],
)
def test_tokens_in_paths_of_indexes_are_redacted(given: str, expected: str) -> None:
    assert redact.url(given) == expected
    assert redact.line(f"at {given} it is") == f"at {expected} it is"


def test_plain_words_are_not_redacted() -> None:
    """Checked with our documents and source code, and with the lines of the standard library about passwords, tokens and keys."""
    root = Path(redact.__file__).parents[2]
    library = Path(sysconfig.get_paths()["stdlib"])
    files = [*root.glob("docs/**/*.md"), *root.glob("repro_env/**/*.py"), *library.glob("*.py"), *library.glob("[ehlu]*/*.py")]
    lines = {line for file in files for line in file.read_text("utf-8", "replace").splitlines() if WORDS.search(line)}
    assert len(lines) > 3000
    for line in lines:
        cleaned = redact.secretless(line)
        if redact.REDACTED in cleaned and redact.REDACTED not in line:
            before, after = cleaned.split(redact.REDACTED, 1)[0], cleaned.rsplit(redact.REDACTED, 1)[-1]
            removed = line[len(before) : len(line) - len(after)]
            assert not re.fullmatch(r"[A-Za-z]?[a-z]*[.,:]?", removed), line
    texts = [
        "the password cannot be empty",
        "no password: cannot log in",
        "KeyError: no such token here",
        "the secret is required",
    ]
    assert list(map(redact.line, texts)) == texts


WORDS = re.compile(r"pass|token|secret|key|auth|credential|bearer|://|@", re.IGNORECASE)


def test_line_replaces_control_characters_and_truncates() -> None:
    assert redact.line("a\nb\tc\x1b[31md\x00e\u2028f\x9bg\u202eh") == "a b c [31md e f g h"
    assert redact.line("caf\udce9") == "caf\ufffd"
    assert redact.line("y" * 30_000) == "y" * 19_999 + "…"


@pytest.mark.parametrize(
    "part",
    ["x", "sk-a", " sk-a", "https://a/?token", "http://", "-----BEGIN ", "password ", "a://b:", "/t/", "hf_", "AKIA", "a.b+c-"],
)
def test_long_text_is_processed_in_linear_time(part: str) -> None:
    """The time is not measured: a pattern with quadratic running time would not finish."""
    assert len(redact.line(part * 1_000_000)) <= redact.LONGEST
    redact.url("https://" + part * 5_000)


@given(st.text(alphabet=st.characters(), max_size=300))
def test_any_text_becomes_a_valid_line(text: str) -> None:
    cleaned = redact.line(text)
    msgspec.json.decode(msgspec.json.encode(cleaned), type=Line)
    assert redact.line(cleaned) == cleaned


@given(st.from_regex(r"https://[a-z0-9:@/._-]{1,40}(\?[a-z=&0-9]{0,30})?", fullmatch=True))
def test_userinfo_is_removed_from_any_url(text: str) -> None:
    cleaned = redact.url(text)
    assert redact.url(cleaned) == cleaned
    host = cleaned.partition("://")[2].partition("/")[0].partition("?")[0]
    if host:
        msgspec.convert(cleaned, type=Url)


def test_the_path_after_not_secret_is_unchanged() -> None:
    text = "if it is none: --not-secret 'lib/python3.11/site-packages/upload_mine.py'"
    assert redact.line(text) == text
    assert redact.REDACTED in redact.line("--client-secret 0123456789abcdef01")
