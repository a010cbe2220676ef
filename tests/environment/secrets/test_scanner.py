"""Real secrets are found with their line numbers, but text that only looks like a secret is not reported."""

from __future__ import annotations

import base64
import json
import random
from pathlib import Path

import pytest

import repro_env
from repro_env.environment.secrets import candidates, engine
from repro_env.environment.secrets.scanner import PIECE, Secret, in_chunks, in_files
from repro_env.io.files import chunks_of, walk
from tests.parts import need

BODY = "MIIEowIBAAKCAQEAx7d0qqfPfnVQ9"
AWS_ID = "AKIA" + "QX7ZKL2MNB4VCD6R"
HOST = "corp" + ".org"
"""A host that does not look like an example, since example hosts are ignored."""
AWS_SECRET = "wJalrXUtnFEMI" + "K7MDENGbPxRfiCYzK3qLm9TsV0u"


@pytest.fixture(autouse=True, params=[0, 1 << 60], ids=["engine", "without"])
def _each_search(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run every test with the engine and without it."""
    need(engine.hyperscan() is not None or request.param, "hyperscan is missing: make dev")
    monkeypatch.setattr(candidates, "ENGINE", engine.Engine(request.param))


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
        (f"{AWS_ID}\n{AWS_SECRET}\n", "AWS secret key"),
        ("postgresql://ann:" + f"tr0ub4dor%263@db.{HOST}/x", "password in a URL"),
        ("pip install --index-url https://ci:" + f"Zk29slqpe@packages.{HOST}/simple", "password in a URL"),
    ],
)
def test_secrets_in_text_are_found(text: str, kind: str) -> None:
    ((line, found),) = in_chunks([f"first\nsecond\n{text}".encode()])
    assert found == kind
    assert line in (3, 4)


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
def test_text_without_secrets_is_not_reported(text: str) -> None:
    assert not in_chunks([text.encode()])


def in_file(path: Path) -> list[Secret]:
    return [Secret(path.name, *match) for match in in_chunks(chunks_of(path), path.name)]


def test_secrets_in_files_are_found(tmp_path: Path) -> None:
    secret = "hf_" + "AbCdEfGhIjKlMnOpQrStUvWxYz01234567"
    (tmp_path / "nb.ipynb").write_text('{"cells": [{"source": ["login(\\"' + secret + '\\")"]}]}')
    assert list(in_file(tmp_path / "nb.ipynb")) == [Secret("nb.ipynb", 1, "Hugging Face token")]
    (tmp_path / "binary").write_bytes(b"\0" + secret.encode())
    assert list(in_file(tmp_path / "binary")) == [Secret("binary", 0, "Hugging Face token")]
    (tmp_path / "weights.pt").write_text(secret)
    assert list(in_file(tmp_path / "weights.pt")) == [Secret("weights.pt", 1, "Hugging Face token")]
    (tmp_path / "empty").write_text("")
    assert not list(in_file(tmp_path / "empty"))
    (tmp_path / "latin").write_bytes(b"caf\xe9\n" + secret.encode())
    assert list(in_file(tmp_path / "latin")) == [Secret("latin", 2, "Hugging Face token")]
    (tmp_path / "link").symlink_to("nb.ipynb")
    with pytest.raises(OSError, match="symbolic link"):
        list(in_file(tmp_path / "link"))


@pytest.mark.parametrize("before", [0, 100, PIECE - 200, PIECE - 20, PIECE, 2 * PIECE + 7])
def test_a_long_file_is_searched_completely(tmp_path: Path, before: int) -> None:
    """The secret may be at any position, even across the boundary of two pieces."""
    lines = ("plain words, a few of them\n" * (before // 27 + 1))[:before]
    (tmp_path / "long").write_text(f"{lines}\nhf_AbCdEfGhIjKlMnOp" + "QrStUvWxYz01234567\n" + "more\n" * 10_000)
    assert list(in_file(tmp_path / "long")) == [Secret("long", lines.count("\n") + 2, "Hugging Face token")]


def test_a_notebook_with_many_pictures(tmp_path: Path) -> None:
    """Long runs and columns of base64 are skipped, but a secret after them is found."""
    noise = random.Random(3).randbytes(300_000)
    pictures = [base64.b64encode(noise).decode(), base64.encodebytes(noise).decode()]
    secret = "ghp_" + "0a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R"
    (tmp_path / "clean.ipynb").write_text(json.dumps({"outputs": pictures}))
    assert not list(in_file(tmp_path / "clean.ipynb"))
    (tmp_path / "nb.ipynb").write_text(json.dumps({"outputs": [*pictures, f"first line\n{secret}\n"]}))
    assert [secret.kind for secret in in_file(tmp_path / "nb.ipynb")] == ["GitHub token"]


def test_numbers_as_bytes_are_not_searched_for_named_values(tmp_path: Path) -> None:
    """Random ones look like settings here and there, also if no byte of them is 0."""
    setting = b'\npassword = "' + b'Zx9qLm2Vt7Rk4Wp8"\n'
    numbers = random.Random(5).randbytes(9000).replace(b"\0", b"\1")
    (tmp_path / "batches.bin").write_bytes(numbers + setting)
    assert not list(in_file(tmp_path / "batches.bin"))
    (tmp_path / "console.log").write_bytes(b"\x1b[32m 10%\b\b\b 20%\r\n" * 500 + setting)
    assert [secret.line for secret in in_file(tmp_path / "console.log")] == [502]


def test_secrets_in_utf_16_are_found(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text("a\nhf_AbCdEfGhIjKlMnOp" + "QrStUvWxYz01234567\n", encoding="utf-16")
    assert list(in_file(tmp_path / "x.txt")) == [Secret("x.txt", 2, "Hugging Face token")]


def test_symbol_names_in_a_library_are_not_tokens(tmp_path: Path) -> None:
    symbols = b"_RNvNtCskHulEq4gyu8_6hf_xet14PyXetTaskStateEE10initializeNCINvNtNtBU_4sync\0_Z34highs_getBasisTransposeSolveSparseP5HighsN8pybind\0"
    token = b"ghp_" + b"0a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R"
    (tmp_path / "x.so").write_bytes(b"\x7fELF\2\1\1" + bytes(500) + symbols)
    assert not list(in_file(tmp_path / "x.so"))
    for before in (b"", b"_ZN6module5valueE=", b"_Z1-"):
        (tmp_path / "x.so").write_bytes(b"\x7fELF\2\1\1" + bytes(500) + symbols + before + token + b"\0")
        assert list(in_file(tmp_path / "x.so")) == [Secret("x.so", 0, "GitHub token")]


def test_the_code_of_this_package_has_no_secrets() -> None:
    """Otherwise a project with repro-env in its environment could not be captured."""
    root = Path(repro_env.__file__).parent
    found = [
        f"{secret.path}:{secret.line}"
        for secret in in_files(walk(root), lambda file: chunks_of(root / file.path))
        if "__pycache__" not in secret.path
    ]
    assert found == []
