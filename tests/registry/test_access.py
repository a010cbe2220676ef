"""Authentication: basic credentials, bearer tokens, certificates, proxies. Messages contain no secrets."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from repro_env.registry.client import Registry
from repro_env.schema.codec import digest_of
from repro_env.schema.errors import NetworkError
from tests.fakes.authority import Authority
from tests.fakes.front import Front
from tests.fakes.proxy import Proxy
from tests.registries import registry as started
from tests.registry.logins import HASHED, SECRET, login

NAME = "registry.example.com"


def checked_message(error: NetworkError, *hidden: str) -> str:
    text = f"{error} {error.hint}"
    for secret in (SECRET, base64.b64encode(f"me:{SECRET}".encode()).decode(), *hidden):
        assert secret not in text
    return text


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A real registry that requires basic credentials."""
    directory = tmp_path_factory.mktemp("guarded")
    (directory / "htpasswd").write_text(f"me:{HASHED}\n")
    with started(directory, more=[f"auth: {{htpasswd: {{realm: tests, path: {directory / 'htpasswd'}}}}}"]) as host:
        yield host


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[str]:
    """A real registry with a certificate from the site's own authority."""
    certificate, key = authority.issue("IP:127.0.0.1", f"DNS:{NAME}")
    with started(tmp_path_factory.mktemp("secure"), more=[f"  tls: {{certificate: {certificate}, key: {key}}}"]) as host:
        yield host


@pytest.fixture
def trusting(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.file))


def works(registry: Registry) -> None:
    sent = registry.upload("team/access", lambda: iter([b"some bytes"]))
    assert b"".join(registry.blob("team/access", sent.digest, sent.size)) == b"some bytes"


def test_basic_credentials_are_used_when_required(guarded: str, docker_directory: Path) -> None:
    with pytest.raises(NetworkError, match="there are none for it in") as caught:
        works(Registry(guarded))
    assert f"docker login {guarded}" in checked_message(caught.value)
    login(docker_directory, guarded, password="wrong horse")
    with pytest.raises(NetworkError, match=r"does not accept the credentials from .*config\.json") as caught:
        works(Registry(guarded, pause=0.001))
    checked_message(caught.value, "wrong horse")
    login(docker_directory, guarded)
    works(Registry(guarded))


def test_a_token_is_requested_once(front: Front, registry: Registry) -> None:
    front.token = True
    works(registry)
    works(registry)
    assert front.count("GET", "^/token") == 2  # to push, and to pull
    assert front.count("POST", "/blobs/uploads/$") == 3


@pytest.mark.parametrize("expires", [0, -5, 0.5, None, 10**12])
def test_a_short_lived_token_is_used_for_at_least_a_minute(expires: object, front: Front, registry: Registry) -> None:
    """Docker treats lifetimes under a minute as a minute; if the server ends the token earlier, it is requested again."""
    front.token, front.expires = True, expires
    works(registry)
    front.tokens.clear()
    works(registry)


def test_tokens_are_requested_with_credentials(front: Front, docker_directory: Path) -> None:
    front.token, front.user = True, ("me", SECRET)
    with pytest.raises(NetworkError, match="the token server requires credentials") as caught:
        works(Registry(front.host))
    checked_message(caught.value)
    login(docker_directory, front.host, password="wrong horse")
    with pytest.raises(NetworkError, match="does not accept the credentials from") as caught:
        works(Registry(front.host))
    assert f"docker login {front.host}" in checked_message(caught.value, "wrong horse")
    login(docker_directory, front.host)
    works(Registry(front.host))


def test_a_user_who_may_only_pull_cannot_push(front: Front) -> None:
    front.token, front.user, front.readers = True, ("me", SECRET), True
    Registry(front.behind).upload("team/access", lambda: iter([b"public"]))
    registry = Registry(front.host)
    assert b"".join(registry.blob("team/access", digest_of(b"public"), 6)) == b"public"
    with pytest.raises(NetworkError, match="there are none for it") as caught:
        registry.upload("team/access", lambda: iter([b"other"]))
    checked_message(caught.value)


def test_an_identity_token_is_exchanged(front: Front, docker_directory: Path) -> None:
    front.token, front.user = True, ("<token>", SECRET)
    login(docker_directory, front.host, "<token>", "", identitytoken=SECRET)
    works(Registry(front.host))
    assert front.count("POST", "^/token") == 2
    assert not any(SECRET in request.path for request in front.asked)


def test_secrets_that_a_registry_repeats_are_redacted(front: Front, docker_directory: Path) -> None:
    login(docker_directory, front.host)
    wants = {"WWW-Authenticate": "Basic realm=x"}
    front.fail("HEAD", "/blobs/", "status", 401, headers=wants)
    registry = Registry(front.host, pause=0.001)
    assert not registry.has("team/access", digest_of(b"nowhere"))
    front.fail(
        "GET",
        "/manifests/",
        "refuse",
        json.dumps({"errors": [{"code": "DENIED", "message": f"not {SECRET}\n\x1b[31m"}]}).encode(),
    )
    with pytest.raises(NetworkError, match="DENIED: not <redacted>") as caught:
        registry.manifest("team/access", "v1")
    assert "\x1b" not in checked_message(caught.value)


@pytest.mark.parametrize("realm", ["http://auth.example.com/token", "file:///etc/passwd", "/token", ""])
def test_tokens_are_not_requested_over_plain_http(realm: str, front: Front, registry: Registry) -> None:
    wanted = {"WWW-Authenticate": f'Bearer realm="{realm}",service="x"'}
    front.fail("POST", "/blobs/", "status", 401, headers=wanted)
    with pytest.raises(NetworkError, match=r"the server refers to|does not say where") as caught:
        works(registry)
    assert front.host in checked_message(caught.value)


@pytest.mark.parametrize(
    "answer", [b"", b"{}", b"[", b'{"token": 1}', b'{"token": "a\\nb"}', b'{"token":"' + b"x" * (2 << 20) + b'"}']
)
def test_an_invalid_token_is_rejected(answer: bytes, front: Front, registry: Registry) -> None:
    front.token = True
    front.fail("GET", "^/token", "refuse", answer, headers={"status": "200"})
    with pytest.raises(NetworkError, match=r"no valid token|bytes") as caught:
        works(registry)
    checked_message(caught.value, "x" * 100)


def test_an_unknown_authentication_scheme_is_rejected(front: Front, registry: Registry) -> None:
    for header in ({"WWW-Authenticate": "Negotiate"}, {}):
        front.fail("POST", "/blobs/", "status", 401, headers=header)
        with pytest.raises(NetworkError, match=r"unsupported kind of authentication: (negotiate|nothing)"):
            works(registry)


def test_a_sites_certificate_authority_is_trusted(secure: str, trusting: None) -> None:
    works(Registry(secure))


def test_all_certificate_variables_are_used(
    secure: str, authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A site may have set one variable for all programs, and the user another one."""
    other = Authority(tmp_path / "another")
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(other.file))
    monkeypatch.setenv("SSL_CERT_DIR", f"{tmp_path / 'not-there'}:{tmp_path}")
    with pytest.raises(NetworkError, match="the server's certificate cannot be verified"):
        works(Registry(secure))
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.file))
    works(Registry(secure))


def test_certificates_in_dockers_directory_are_trusted(secure: str, authority: Authority, tmp_path: Path) -> None:
    """$HOME is the test's own directory."""
    with pytest.raises(NetworkError, match="the server's certificate cannot be verified") as caught:
        works(Registry(secure))
    assert f"/etc/docker/certs.d/{secure}/ca.crt" in caught.value.hint
    directory = tmp_path / ".config/docker/certs.d" / secure
    directory.mkdir(parents=True)
    (directory / "ca.crt").write_bytes(authority.file.read_bytes())
    works(Registry(secure))


def test_a_certificate_for_another_name_is_rejected(secure: str, trusting: None) -> None:
    port = secure.rpartition(":")[2]
    with pytest.raises(NetworkError, match="certificate cannot be verified"):
        works(Registry(f"localhost:{port}"))


@pytest.mark.parametrize("content", [None, b"no certificates"])
def test_a_variable_without_certificates_is_an_error(
    content: bytes | None, secure: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "bundle.pem"
    if content is not None:
        path.write_bytes(content)
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(path))
    with pytest.raises(NetworkError, match="no certificates can be read") as caught:
        works(Registry(secure))
    assert (caught.value.where, "REQUESTS_CA_BUNDLE" in caught.value.hint) == (str(path), True)


def test_a_client_certificate_is_sent(
    real: str, authority: Authority, trusting: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`NAME.cert` and `NAME.key` are next to the authority's certificate, as in Docker."""
    import ssl

    certificate, key = authority.issue("IP:127.0.0.1")
    with Front(real, tls=(certificate, key), client_authority=str(authority.file)) as front:
        with pytest.raises(NetworkError, match=r"TLS connection failed|broke off the connection"):
            works(Registry(front.host, pause=0.001))
        directory = tmp_path / ".config/docker/certs.d" / front.host
        directory.mkdir(parents=True)
        (directory / "client.cert").write_bytes(Path(certificate).read_bytes())
        with pytest.raises(NetworkError, match=r"cannot be used with the key client\.key"):
            works(Registry(front.host, pause=0.001))
        (directory / "client.key").write_bytes(Path(key).read_bytes())
        works(Registry(front.host, pause=0.001))
    assert ssl.HAS_TLSv1_2


def test_plain_http_is_for_this_machine_alone(real: str, front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    with Proxy({f"{NAME}:443": front.port}) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", proxy.url)
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        with pytest.raises(NetworkError, match="the TLS connection failed"):
            works(Registry(NAME, pause=0.001))
    assert not [request for request in front.asked if "/v2/" in request.path]


def test_a_registry_is_reached_through_a_proxy(
    real: str, authority: Authority, trusting: None, monkeypatch: pytest.MonkeyPatch, docker_directory: Path
) -> None:
    """The name is known only to the proxy; the registry uses the site's certificates and tokens."""
    with (
        Front(real, tls=authority.issue(f"DNS:{NAME}"), token=True, user=("me", SECRET)) as front,
        Proxy({f"{NAME}:5443": front.port}) as proxy,
    ):
        front.realm = f"https://{NAME}:5443/token"
        login(docker_directory, f"{NAME}:5443")
        monkeypatch.setenv("HTTPS_PROXY", proxy.url)
        with monkeypatch.context() as own:
            own.delenv("SSL_CERT_FILE")
            with pytest.raises(NetworkError, match="the server's certificate cannot be verified"):
                works(Registry(f"{NAME}:5443"))
        works(Registry(f"{NAME}:5443"))
        assert set(proxy.asked) == {f"{NAME}:5443"}
        with pytest.raises(NetworkError, match="the proxy rejected the connection"):
            works(Registry("other.example.com", pause=0.001))
        # Requests to this machine and to hosts in NO_PROXY do not use the proxy.
        works(Registry(real))
        monkeypatch.setenv("NO_PROXY", ".invalid")
        with pytest.raises(NetworkError, match="host name cannot be resolved"):
            works(Registry("no-such-host.invalid", pause=0.001))
        assert set(proxy.asked) == {f"{NAME}:5443", "other.example.com:443"}


def test_a_proxy_that_requires_a_password_is_reported(
    real: str, authority: Authority, trusting: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        Front(real, tls=authority.issue(f"DNS:{NAME}")) as front,
        Proxy({f"{NAME}:443": front.port}, user="me:proxyword1") as proxy,
    ):
        monkeypatch.setenv("HTTPS_PROXY", proxy.url.replace("proxyword1", "wrongword1"))
        with pytest.raises(NetworkError, match="the proxy rejected the connection") as caught:
            works(Registry(NAME, pause=0.001))
        checked_message(caught.value, "wrongword1", "me:")
        monkeypatch.setenv("HTTPS_PROXY", proxy.url)
        works(Registry(NAME))


def test_a_remote_registry_cannot_redirect_to_this_machine(
    real: str, authority: Authority, trusting: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    Registry(real).upload("team/access", lambda: iter([b"public"]))
    with Front(real, tls=authority.issue(f"DNS:{NAME}")) as front, Proxy({f"{NAME}:443": front.port}) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", proxy.url)
        registry = Registry(NAME, pause=0.001)
        front.fail("GET", "/blobs/", "redirect", f"http://{real}/v2/team/access/blobs/{digest_of(b'public')}")
        front.fail("POST", "/uploads/", "location", f"http://{real}/v2/team/access/blobs/uploads/x")
        front.fail("HEAD", "/blobs/", "status", 401, headers={"WWW-Authenticate": f'Bearer realm="http://{real}/token"'})
        for ask in (
            lambda: list(registry.blob("team/access", digest_of(b"public"), 6)),
            lambda: registry.upload("team/access", lambda: iter([b"x"])),
            lambda: registry.has("team/access", digest_of(b"public")),
        ):
            with pytest.raises(NetworkError, match="plain http is allowed only for servers on this machine"):
                ask()


@pytest.mark.parametrize(
    ("host", "what"),
    [("127.0.0.1:1", "the server cannot be reached"), ("no-such-host.invalid", "host name cannot be resolved")],
)
def test_an_unreachable_registry_is_reported(host: str, what: str) -> None:
    with pytest.raises(NetworkError, match=what) as caught:
        Registry(host, pause=0.001).has("a", digest_of(b""))
    assert host in caught.value.where


def test_docker_hub_is_reached_by_all_its_names(
    real: str, authority: Authority, trusting: None, monkeypatch: pytest.MonkeyPatch, docker_directory: Path
) -> None:
    """The API of docker.io is on another host, its credentials have a third name, and its image names are short."""
    from repro_env.registry.reference import parse

    ref = parse("hello:v1")
    config = b"{}"
    there = Registry(real)
    made = there.ensure(ref.repository, config, "application/vnd.oci.image.config.v1+json")
    entry = {"mediaType": made.media_type, "digest": made.digest, "size": made.size}
    document = {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json", "config": entry, "layers": []}
    there.put_manifest(ref.repository, ref.tag, json.dumps(document).encode(), str(document["mediaType"]))
    api = "registry-1.docker.io"
    with Front(real, tls=authority.issue(f"DNS:{api}"), token=True, user=("me", SECRET)) as front:
        front.realm = f"https://{api}/token"
        login(docker_directory, "https://index.docker.io/v1/")
        with Proxy({f"{api}:443": front.port}) as proxy:
            monkeypatch.setenv("HTTPS_PROXY", proxy.url)
            hub = Registry(ref.host)
            found, _, digest = hub.image(ref.repository, ref.tag_or_digest, architecture="amd64")
            assert hub.small(ref.repository, found.config) == config
            assert hub.where(ref.repository, digest) == f"docker.io/library/hello@{digest}"
            with pytest.raises(NetworkError, match="does not have this image") as caught:
                hub.manifest(ref.repository, "v2")
    assert caught.value.where == "docker.io/library/hello:v2"
