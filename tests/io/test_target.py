from __future__ import annotations

import pytest

from repro_env.io.target import check, is_loopback, joined, origin
from repro_env.model.errors import NetworkError

NEAR = "http://127.0.0.1:5000/v2/"
FAR = "https://registry.example.com/v2/"


@pytest.mark.parametrize(
    "host", ["localhost", "localhost:5000", "127.0.0.1", "127.9.9.9:1", "[::1]", "[::1]:5000", "LOCALHOST:5000"]
)
def test_this_machine(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize(
    "host",
    [
        "",
        "registry.example.com",
        "localhost.example.com",
        "127.0.0.1.example.com",
        "10.0.0.1",
        "0.0.0.0",
        "[::2]",
        "[",
        "me@localhost.example.com",
    ],
)
def test_another_machine(host: str) -> None:
    assert not is_loopback(host)


def test_who_answers() -> None:
    assert origin("https://Registry.example.com/a") == origin("HTTPS://registry.example.com:443/b")
    assert origin("https://registry.example.com") != origin("http://registry.example.com")
    assert origin("https://registry.example.com:1") != origin("https://registry.example.com:2")
    assert joined(FAR, "/x") == "https://registry.example.com/x"
    assert joined(FAR, "http://[") == "http://["


@pytest.mark.parametrize(
    ("url", "given_by"), [(FAR, ""), (NEAR, ""), (FAR, NEAR), (NEAR, NEAR), ("http://[::1]:1/", "http://localhost:2/")]
)
def test_who_may_be_asked(url: str, given_by: str) -> None:
    check(url, given_by=given_by)


@pytest.mark.parametrize(
    ("url", "given_by"),
    [
        (NEAR, FAR),
        ("http://registry.example.com/", ""),
        ("http://registry.example.com/", FAR),
        ("http://registry.example.com/", NEAR),
        ("http://0.0.0.0/", NEAR),
        ("ftp://127.0.0.1/", NEAR),
        ("file:///etc/passwd", NEAR),
        ("https:///x", NEAR),
        ("http://[", NEAR),
        ("https://registry.example.com:port/", NEAR),
        ("", NEAR),
    ],
)
def test_who_may_not(url: str, given_by: str) -> None:
    with pytest.raises(NetworkError) as caught:
        check(url, given_by=given_by)
    assert caught.value.hint


def test_a_signature_is_not_shown() -> None:
    with pytest.raises(NetworkError) as caught:
        check("http://storage.example.com/x?X-Amz-Signature=0123456789abcdef", given_by=FAR)
    assert "0123456789abcdef" not in str(caught.value)
