"""Who may: basic credentials, bearer tokens, certificates of a site, proxies; and that no secret is in what is said."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from repro_env.model.errors import NetworkError
from repro_env.registry.client import Registry
from repro_env.registry.manifest import digest_of
from tests.fakes.authority import Authority
from tests.fakes.front import Front
from tests.fakes.proxy import Proxy
from tests.registries import registry as started

SECRET = "right horse"
HASHED = "$2y$05$abcdefghijklmnopqrstuuB05BVy0V7KomGh8K56xgiHLq3Wkqh46"
"""bcrypt, the only kind that `docker-registry` takes."""
NAME = "registry.example.com"


def login(folder: Path, host: str, user: str = "me", password: str = SECRET, **more: str) -> None:
    auth = base64.b64encode(f"{user}:{password}".encode()).decode()
    (folder / "config.json").write_text(json.dumps({"auths": {host: {"auth": auth} | more}}))


def said(error: NetworkError, *hidden: str) -> str:
    text = f"{error} {error.hint}"
    for one in (SECRET, base64.b64encode(f"me:{SECRET}".encode()).decode(), *hidden):
        assert one not in text
    return text


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A real registry that wants basic credentials."""
    folder = tmp_path_factory.mktemp("guarded")
    (folder / "htpasswd").write_text(f"me:{HASHED}\n")
    with started(folder, more=[f"auth: {{htpasswd: {{realm: tests, path: {folder / 'htpasswd'}}}}}"]) as host:
        yield host


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[str]:
    """A real registry whose certificate is of the site's own authority."""
    certificate, key = authority.issue("IP:127.0.0.1", f"DNS:{NAME}")
    with started(tmp_path_factory.mktemp("secure"), more=[f"  tls: {{certificate: {certificate}, key: {key}}}"]) as host:
        yield host


@pytest.fixture
def trusting(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.file))


def works(registry: Registry) -> None:
    sent = registry.upload("team/access", [b"some bytes"])
    assert b"".join(registry.blob("team/access", sent.digest, sent.size)) == b"some bytes"


def test_basic_credentials(guarded: str, nothing_known: Path) -> None:
    with pytest.raises(NetworkError, match="there are none for it in") as caught:
        works(Registry(guarded))
    assert f"docker login {guarded}" in said(caught.value)
    login(nothing_known, guarded, password="wrong horse")
    with pytest.raises(NetworkError, match=r"does not accept the credentials of .*config\.json") as caught:
        works(Registry(guarded, pause=0.001))
    said(caught.value, "wrong horse")
    login(nothing_known, guarded)
    works(Registry(guarded))


def test_tokens_are_asked_for_once(front: Front, registry: Registry) -> None:
    front.token = True
    works(registry)
    works(registry)
    assert front.count("GET", "^/token") == 2  # to push, and to pull
    assert front.count("POST", "/blobs/uploads/$") == 3


@pytest.mark.parametrize("expires", [0, -5, 0.5, None, 10**12])
def test_a_token_that_hardly_lives(expires: object, front: Front, registry: Registry) -> None:
    """Docker takes less than a minute for a minute; who ends it before is asked again."""
    front.token, front.expires = True, expires
    works(registry)
    front.tokens.clear()
    works(registry)


def test_tokens_for_credentials(front: Front, nothing_known: Path) -> None:
    front.token, front.user = True, ("me", SECRET)
    with pytest.raises(NetworkError, match="gives no token without credentials") as caught:
        works(Registry(front.host))
    said(caught.value)
    login(nothing_known, front.host, password="wrong horse")
    with pytest.raises(NetworkError, match="does not accept the credentials of") as caught:
        works(Registry(front.host))
    assert f"docker login {front.host}" in said(caught.value, "wrong horse")
    login(nothing_known, front.host)
    works(Registry(front.host))


def test_who_may_pull_and_not_push(front: Front) -> None:
    front.token, front.user, front.readers = True, ("me", SECRET), True
    Registry(front.behind).upload("team/access", [b"public"])
    registry = Registry(front.host)
    assert b"".join(registry.blob("team/access", digest_of(b"public"), 6)) == b"public"
    with pytest.raises(NetworkError, match="there are none for it") as caught:
        registry.upload("team/access", [b"other"])
    said(caught.value)


def test_an_identity_token_is_exchanged(front: Front, nothing_known: Path) -> None:
    front.token, front.user = True, ("<token>", SECRET)
    login(nothing_known, front.host, "<token>", "", identitytoken=SECRET)
    works(Registry(front.host))
    assert front.count("POST", "^/token") == 2
    assert not any(SECRET in one.path for one in front.asked)


def test_what_a_registry_repeats_is_hidden(front: Front, nothing_known: Path) -> None:
    login(nothing_known, front.host)
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
    assert "\x1b" not in said(caught.value)


@pytest.mark.parametrize("realm", ["http://auth.example.com/token", "file:///etc/passwd", "/token", ""])
def test_tokens_are_asked_of_nobody_by_plain_http(realm: str, front: Front, registry: Registry) -> None:
    wanted = {"WWW-Authenticate": f'Bearer realm="{realm}",service="x"'}
    front.fail("POST", "/blobs/", "status", 401, headers=wanted)
    with pytest.raises(NetworkError, match=r"sends on to|does not say whose") as caught:
        works(registry)
    assert front.host in said(caught.value)


@pytest.mark.parametrize(
    "answer", [b"", b"{}", b"[", b'{"token": 1}', b'{"token": "a\\nb"}', b'{"token":"' + b"x" * (2 << 20) + b'"}']
)
def test_what_is_no_token(answer: bytes, front: Front, registry: Registry) -> None:
    front.token = True
    front.fail("GET", "^/token", "refuse", answer, headers={"status": "200"})
    with pytest.raises(NetworkError, match=r"no token|bytes") as caught:
        works(registry)
    said(caught.value, "x" * 100)


def test_a_way_that_is_not_known(front: Front, registry: Registry) -> None:
    for header in ({"WWW-Authenticate": "Negotiate"}, {}):
        front.fail("POST", "/blobs/", "status", 401, headers=header)
        with pytest.raises(NetworkError, match=r"in a way that is not known here: (negotiate|nothing)"):
            works(registry)


def test_the_certificate_of_a_site(secure: str, trusting: None) -> None:
    works(Registry(secure))


def test_all_variables_count(secure: str, authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A site may have set one for all programs, the user another."""
    other = Authority(tmp_path / "another")
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(other.file))
    monkeypatch.setenv("SSL_CERT_DIR", f"{tmp_path / 'not-there'}:{tmp_path}")
    with pytest.raises(NetworkError, match="its certificate cannot be verified"):
        works(Registry(secure))
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.file))
    works(Registry(secure))


def test_a_certificate_in_dockers_folder(secure: str, authority: Authority, tmp_path: Path) -> None:
    """$HOME is the test's own."""
    with pytest.raises(NetworkError, match="its certificate cannot be verified") as caught:
        works(Registry(secure))
    assert f"/etc/docker/certs.d/{secure}/ca.crt" in caught.value.hint
    folder = tmp_path / ".config/docker/certs.d" / secure
    folder.mkdir(parents=True)
    (folder / "ca.crt").write_bytes(authority.file.read_bytes())
    works(Registry(secure))


def test_a_certificate_for_another_name(secure: str, trusting: None) -> None:
    port = secure.rpartition(":")[2]
    with pytest.raises(NetworkError, match="that of another host"):
        works(Registry(f"localhost:{port}"))


@pytest.mark.parametrize("content", [None, b"no certificates"])
def test_a_variable_that_names_no_certificates(
    content: bytes | None, secure: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "bundle.pem"
    if content is not None:
        path.write_bytes(content)
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(path))
    with pytest.raises(NetworkError, match="holds no certificates") as caught:
        works(Registry(secure))
    assert (caught.value.where, "REQUESTS_CA_BUNDLE" in caught.value.hint) == (str(path), True)


def test_a_certificate_to_be_shown(
    real: str, authority: Authority, trusting: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`NAME.cert` and `NAME.key` beside the authority's, as Docker has it."""
    import ssl

    certificate, key = authority.issue("IP:127.0.0.1")
    with Front(real, tls=(certificate, key), client_authority=str(authority.file)) as front:
        with pytest.raises(NetworkError, match=r"no TLS connection|breaks the connection off"):
            works(Registry(front.host, pause=0.001))
        folder = tmp_path / ".config/docker/certs.d" / front.host
        folder.mkdir(parents=True)
        (folder / "client.cert").write_bytes(Path(certificate).read_bytes())
        with pytest.raises(NetworkError, match=r"shown to the registry with client\.key"):
            works(Registry(front.host, pause=0.001))
        (folder / "client.key").write_bytes(Path(key).read_bytes())
        works(Registry(front.host, pause=0.001))
    assert ssl.HAS_TLSv1_2


def test_plain_http_is_for_this_machine_alone(real: str, front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    with Proxy({f"{NAME}:443": front.port}) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", proxy.url)
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        with pytest.raises(NetworkError, match="no TLS connection"):
            works(Registry(NAME, pause=0.001))
    assert not [one for one in front.asked if "/v2/" in one.path]


def test_behind_a_proxy(
    real: str, authority: Authority, trusting: None, monkeypatch: pytest.MonkeyPatch, nothing_known: Path
) -> None:
    """With a name that only the proxy knows, certificates of the site, and tokens."""
    with (
        Front(real, tls=authority.issue(f"DNS:{NAME}"), token=True, user=("me", SECRET)) as front,
        Proxy({f"{NAME}:5443": front.port}) as proxy,
    ):
        front.realm = f"https://{NAME}:5443/token"
        login(nothing_known, f"{NAME}:5443")
        monkeypatch.setenv("HTTPS_PROXY", proxy.url)
        with monkeypatch.context() as own:
            own.delenv("SSL_CERT_FILE")
            with pytest.raises(NetworkError, match="its certificate cannot be verified"):
                works(Registry(f"{NAME}:5443"))
        works(Registry(f"{NAME}:5443"))
        assert set(proxy.asked) == {f"{NAME}:5443"}
        with pytest.raises(NetworkError, match="the proxy does not let this through"):
            works(Registry("other.example.com", pause=0.001))
        # Neither this machine nor what NO_PROXY names is asked through it.
        works(Registry(real))
        monkeypatch.setenv("NO_PROXY", ".invalid")
        with pytest.raises(NetworkError, match="host name is not known"):
            works(Registry("no-such-host.invalid", pause=0.001))
        assert set(proxy.asked) == {f"{NAME}:5443", "other.example.com:443"}


def test_a_proxy_that_wants_a_password(real: str, authority: Authority, trusting: None, monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        Front(real, tls=authority.issue(f"DNS:{NAME}")) as front,
        Proxy({f"{NAME}:443": front.port}, user="me:proxyword1") as proxy,
    ):
        monkeypatch.setenv("HTTPS_PROXY", proxy.url.replace("proxyword1", "wrongword1"))
        with pytest.raises(NetworkError, match="the proxy does not let this through") as caught:
            works(Registry(NAME, pause=0.001))
        said(caught.value, "wrongword1", "me:")
        monkeypatch.setenv("HTTPS_PROXY", proxy.url)
        works(Registry(NAME))


def test_a_remote_registry_sends_nobody_to_this_machine(
    real: str, authority: Authority, trusting: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    Registry(real).upload("team/access", [b"public"])
    with Front(real, tls=authority.issue(f"DNS:{NAME}")) as front, Proxy({f"{NAME}:443": front.port}) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", proxy.url)
        registry = Registry(NAME, pause=0.001)
        front.fail("GET", "/blobs/", "redirect", f"http://{real}/v2/team/access/blobs/{digest_of(b'public')}")
        front.fail("POST", "/uploads/", "location", f"http://{real}/v2/team/access/blobs/uploads/x")
        front.fail("HEAD", "/blobs/", "status", 401, headers={"WWW-Authenticate": f'Bearer realm="http://{real}/token"'})
        for ask in (
            lambda: list(registry.blob("team/access", digest_of(b"public"), 6)),
            lambda: registry.upload("team/access", [b"x"]),
            lambda: registry.has("team/access", digest_of(b"public")),
        ):
            with pytest.raises(NetworkError, match="plain HTTP is for registries of this machine alone"):
                ask()


@pytest.mark.parametrize(
    ("host", "what"), [("127.0.0.1:1", "nothing listens there"), ("no-such-host.invalid", "host name is not known")]
)
def test_nobody_there(host: str, what: str) -> None:
    with pytest.raises(NetworkError, match=what) as caught:
        Registry(host, pause=0.001).has("a", digest_of(b""))
    assert host in caught.value.where


def test_docker_hub_by_its_names(
    real: str, authority: Authority, trusting: None, monkeypatch: pytest.MonkeyPatch, nothing_known: Path
) -> None:
    """docker.io is asked at another host, its credentials have a third name, and its names are short."""
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
        login(nothing_known, "https://index.docker.io/v1/")
        with Proxy({f"{api}:443": front.port}) as proxy:
            monkeypatch.setenv("HTTPS_PROXY", proxy.url)
            hub = Registry(ref.host)
            found, _, digest = hub.image(ref.repository, ref.named, architecture="amd64")
            assert hub.small(ref.repository, found.config) == config
            assert hub.where(ref.repository, digest) == f"docker.io/library/hello@{digest}"
            with pytest.raises(NetworkError, match="is not there") as caught:
                hub.manifest(ref.repository, "v2")
    assert caught.value.where == "docker.io/library/hello:v2"
