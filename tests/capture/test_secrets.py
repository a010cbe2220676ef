"""Real secrets are found, with their line; what only looks like one is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from repro_env.capture.secrets import LARGEST, Secret, in_file, in_text

BODY = "MIIEowIBAAKCAQEAx7d0qqfPfnVQ9"
AWS_ID = "AKIA" + "QX7ZKL2MNB4VCD6R"
HOST = "corp" + ".org"
"""No example's name: those are no secret's place."""
AWS_SECRET = "wJalrXUtnFEMI" + "K7MDENGbPxRfiCYzK3qLm9TsV0u"


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("-----BEGIN " + f"OPENSSH PRIVATE KEY-----\n{BODY}\n", "private key"),
        ('{"key": "-----BEGIN ' + f'PRIVATE KEY-----\\n{BODY}"}}', "private key"),
        ("hf_" + "AbCdEfGhIjKlMnOpQrStUvWxYz01234567", "Hugging Face token"),
        ("ghp_" + "0a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R", "GitHub token"),
        ("github_pat_" + "11ABCDEFG0aBcDeFgHiJkL_z9Y8x7W6v5U4t3S2r1Q0p9O8n7M6", "GitHub token"),
        ("glpat-" + "AbC123dEf456GhI789jK", "GitLab token"),
        ("xoxb-" + "210987654321-AbCdEfGhIjKlMnOp", "Slack token"),
        ("OPENAI = 'sk-proj-" + "AbCd1234EfGh5678IjKl9012MnOp'", "API key"),
        ("sk-" + "ant-api03-AbCd1234EfGh5678IjKl9012MnOpQrSt", "API key"),
        (f"id = {AWS_ID}\nsecret = {AWS_SECRET}\n", "AWS secret key"),
        ("postgresql://ann:" + f"tr0ub4dor%263@db.{HOST}/x", "password in a URL"),
        ("pip install --index-url https://ci:" + f"Zk29slqpe@packages.{HOST}/simple", "password in a URL"),
    ],
)
def test_found(text: str, kind: str) -> None:
    found = in_text(f"first\nsecond\n{text}")
    assert found is not None
    assert found[1] == kind
    assert found[0] in (3, 4)


@pytest.mark.parametrize(
    "text",
    [
        "if '-----BEGIN " + "PRIVATE KEY-----' in text: raise",
        "hf_" + "x" * 34,
        "hf_hub_download",
        "ghp_" + "your" * 9,
        "AKIA" + "IOSFODNN7EXAMPLE\n" + AWS_SECRET,
        AWS_ID + " alone",
        "0123456789abcdef0123456789abcdef01234567",
        f"https://user:password@{HOST}/x",
        f"postgres://postgres:postgres@db.{HOST}/x",
        "postgresql://ann:" + "Zk29slqpe@localhost:5432/x",
        "redis://:" + "Zk29slqpe@redis",
        "f'https://{user}:{password}@{host}/x'",
        f"https://$USER:$PASS@{HOST}",
        f"https://<user>:<password>@{HOST}",
        "https://example.org/a:b@c",
        "git clone https://example.org/@scope/pkg",
        "sk-learn-baseline-of-last-week-with-2-parts",
        "class task_sk-2: pass",
    ],
)
def test_not_found(text: str) -> None:
    assert in_text(text) is None


def test_files(tmp_path: Path) -> None:
    secret = "hf_" + "AbCdEfGhIjKlMnOpQrStUvWxYz01234567"
    (tmp_path / "nb.ipynb").write_text('{"cells": [{"source": ["login(\\"' + secret + '\\")"]}]}')
    assert in_file(tmp_path, "nb.ipynb") == Secret("nb.ipynb", 1, "Hugging Face token")
    (tmp_path / "binary").write_bytes(b"\0" + secret.encode())
    assert in_file(tmp_path, "binary") is None
    (tmp_path / "weights.pt").write_text(secret)
    assert in_file(tmp_path, "weights.pt") is None
    (tmp_path / "empty").write_text("")
    assert in_file(tmp_path, "empty") is None
    (tmp_path / "latin").write_bytes(b"caf\xe9\n" + secret.encode())
    assert in_file(tmp_path, "latin") == Secret("latin", 2, "Hugging Face token")
    (tmp_path / "long").write_text("x" * (LARGEST - 100) + " " + secret + "x" * LARGEST)
    assert in_file(tmp_path, "long") is None
    (tmp_path / "link").symlink_to("nb.ipynb")
    with pytest.raises(OSError, match="symbolic links"):
        in_file(tmp_path, "link")
