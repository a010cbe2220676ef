from __future__ import annotations

import pytest

from repro_env.io.urls import check, is_loopback, origin, resolve
from repro_env.schema.errors import NetworkError

LOCAL = "http://127.0.0.1:5000/v2/"
REMOTE = "https://registry.example.com/v2/"


@pytest.mark.parametrize(
    "host", ["localhost", "localhost:5000", "127.0.0.1", "127.9.9.9:1", "[::1]", "[::1]:5000", "LOCALHOST:5000"]
)
def test_loopback_addresses_are_recognized(host: str) -> None:
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
def test_other_addresses_are_not_loopback(host: str) -> None:
    assert not is_loopback(host)


def test_origin_ignores_case_and_path_but_not_scheme_and_port() -> None:
    assert origin("https://Registry.example.com/a") == origin("HTTPS://registry.example.com:443/b")
    assert origin("https://registry.example.com") != origin("http://registry.example.com")
    assert origin("https://registry.example.com:1") != origin("https://registry.example.com:2")


def test_a_location_is_resolved_against_the_url() -> None:
    assert resolve(REMOTE, "/x") == "https://registry.example.com/x"
    assert resolve(REMOTE, "http://[") == "http://["


@pytest.mark.parametrize(
    ("url", "given_by"), [(REMOTE, ""), (LOCAL, ""), (REMOTE, LOCAL), (LOCAL, LOCAL), ("http://[::1]:1/", "http://localhost:2/")]
)
def test_https_and_http_on_loopback_are_allowed(url: str, given_by: str) -> None:
    check(url, given_by=given_by)


@pytest.mark.parametrize(
    ("url", "given_by"),
    [
        (LOCAL, REMOTE),
        ("http://registry.example.com/", ""),
        ("http://registry.example.com/", REMOTE),
        ("http://registry.example.com/", LOCAL),
        ("http://0.0.0.0/", LOCAL),
        ("ftp://127.0.0.1/", LOCAL),
        ("file:///etc/passwd", LOCAL),
        ("https:///x", LOCAL),
        ("http://[", LOCAL),
        ("https://registry.example.com:port/", LOCAL),
        ("", LOCAL),
    ],
)
def test_other_urls_are_refused(url: str, given_by: str) -> None:
    with pytest.raises(NetworkError) as caught:
        check(url, given_by=given_by)
    assert caught.value.hint


def test_the_error_does_not_show_a_signature() -> None:
    with pytest.raises(NetworkError) as caught:
        check("http://storage.example.com/x?X-Amz-Signature=0123456789abcdef", given_by=REMOTE)
    assert "0123456789abcdef" not in str(caught.value)
