"""Sessions with pip's configuration: revalidated pages, range requests, resumed downloads, and error messages."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from repro_env.io import http
from repro_env.io.http import RangesRefusedError, may_recover
from repro_env.io.indexhttp import ABSENT, Session
from repro_env.schema import sources
from repro_env.schema.errors import LockError, NetworkError
from tests.fakes import wheels
from tests.fakes.index import Index, configured
from tests.io.servers import server


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("repro_env.io.http._FIRST_PAUSE", 0.01)


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    with Index(tmp_path / "wheels") as index:
        yield index


def make_large_wheel(index: Index) -> Path:
    """Create a wheel of about 300 kB that cannot be compressed."""
    return wheels.make(index.directory, "big", files={"big/data.bin": os.urandom(300_000), "big/__init__.py": b""})


def test_indexes_and_find_links_come_from_pips_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pip.conf").write_text("[global]\nextra-index-url =\n  http://ann:secret@b.test/simple\n  http://c.test/simple\n")
    (tmp_path / "links").mkdir()
    with configured(monkeypatch, config_file=str(tmp_path / "pip.conf"), index_url="http://a.test/simple") as patch:
        patch.setenv("PIP_FIND_LINKS", str(tmp_path / "links"))
        found = Session().configuration
    urls = list(found.indexes)
    assert urls == ["http://a.test/simple", "http://ann:secret@b.test/simple", "http://c.test/simple"]
    assert found.find_links == (str(tmp_path / "links"),)
    assert "secret" not in "".join(found.shown)
    assert found.shown[1] == "http://b.test/simple"


def test_the_pip_conf_of_the_captured_environment_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pip.conf").write_text("[install]\nindex-url = http://own.test/simple\n")
    with configured(monkeypatch) as patch:
        patch.delenv("PIP_CONFIG_FILE")
        patch.setenv("HOME", str(tmp_path / "home"))
        patch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
        assert list(Session(prefix=str(tmp_path)).configuration.indexes) == ["http://own.test/simple"]
        assert "http://own.test/simple" not in Session(prefix=str(tmp_path / "other")).configuration.shown


def test_a_default_index_of_the_project_replaces_only_pips_built_in_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = "http://own.test/simple"
    named = sources.PackageSources(indexes=(own,), find_links=(str(tmp_path),), replaces_default=True)
    with configured(monkeypatch):
        assert len(Session().configuration.shown) == 1
        assert Session(sources=named).configuration.shown == ("http://own.test/simple", tmp_path.as_uri())
        added = msgspec.structs.replace(named, replaces_default=False)
        assert len(Session(sources=added).configuration.indexes) == 2
    with configured(monkeypatch, index_url="http://a.test/simple"):
        assert list(Session(sources=named).configuration.indexes) == ["http://a.test/simple", own]
    with configured(monkeypatch, no_index="1"):
        assert Session(sources=named).configuration.indexes == ()


def test_no_index_disables_all_indexes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with configured(monkeypatch, no_index="1", find_links=str(tmp_path)):
        found = Session().configuration
    assert found.indexes == ()
    assert found.shown == (tmp_path.as_uri(),)


def test_an_invalid_pip_configuration_is_an_error(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with configured(monkeypatch, timeout="soon"), pytest.raises(LockError, match="configuration"):
        _ = Session().configuration
    capsys.readouterr()


def test_connections_are_reused(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    wheels.make(index.directory, "demo")
    with configured(monkeypatch), Session() as session:
        for name in ("demo", "missing", "demo", "missing", "demo"):
            session.get_page(f"{index.url}/{name}/")
    assert [request.status for request in index.asked] == [200, 404, 200, 404, 200]
    assert len(index.connections) == 1


def test_json_pages_are_preferred(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    wheels.make(index.directory, "demo")
    index.json = True
    with configured(monkeypatch), Session() as session:
        assert session.get_page(f"{index.url}/demo/").content_type == "application/vnd.pypi.simple.v1+json"


@pytest.mark.parametrize("status", ABSENT)
def test_the_status_of_a_missing_project_is_returned(index: Index, monkeypatch: pytest.MonkeyPatch, status: int) -> None:
    index.fail("/demo/", status)
    with configured(monkeypatch), Session() as session:
        page = session.get_page(f"{index.url}/demo/")
    assert (page.status, page.body) == (status, b"")


@pytest.mark.parametrize(
    ("status", "message"), [(401, "credentials"), (500, "with an error"), (429, "with an error"), (418, "418")]
)
def test_other_statuses_raise_an_error(index: Index, monkeypatch: pytest.MonkeyPatch, status: int, message: str) -> None:
    index.fail("/demo/", status, times=9)
    with configured(monkeypatch, retries="0"), Session() as session, pytest.raises(NetworkError, match=message) as caught:
        session.get_page(f"{index.url}/demo/")
    assert caught.value.where == f"{index.url}/demo/"
    assert caught.value.hint
    assert may_recover(caught.value) is (status in (500, 429))


def test_a_request_is_repeated_after_too_many_requests(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    wheels.make(index.directory, "demo")
    index.fail("/demo/", 429)
    with configured(monkeypatch), Session() as session:
        assert session.get_page(f"{index.url}/demo/").status == 200


@pytest.mark.parametrize("status", [502, 504])
def test_a_request_is_repeated_after_an_error_of_a_gateway(index: Index, monkeypatch: pytest.MonkeyPatch, status: int) -> None:
    wheels.make(index.directory, "demo")
    index.fail("/demo/", status)
    with configured(monkeypatch), Session() as session:
        assert session.get_page(f"{index.url}/demo/").status == 200


def test_a_server_may_ask_for_a_pause_but_not_for_an_hour(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    wheels.make(index.directory, "demo")
    monkeypatch.setattr("repro_env.io.pip._LONGEST_WAIT", 1.5)
    index.retry_after = 3600
    index.fail("/demo/", 503)
    began = time.monotonic()
    with configured(monkeypatch), Session() as session:
        assert session.get_page(f"{index.url}/demo/").status == 200
    assert 1.4 < time.monotonic() - began < 30


def test_a_page_that_was_cut_off_is_fetched_again(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    wheels.make(index.directory, "demo")
    index.fail("/demo/", "cut")
    with configured(monkeypatch), Session() as session:
        assert session.get_page(f"{index.url}/demo/").body.endswith(b"</html>")
    index.fail("/demo/", "cut", times=9)
    with configured(monkeypatch), Session() as session, pytest.raises(NetworkError, match="broke off every transfer"):
        session.get_page(f"{index.url}/demo/")


def test_an_unreachable_server_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with configured(monkeypatch, retries="0", timeout="5"), Session() as session:
        with pytest.raises(NetworkError, match="cannot be reached"):
            session.get_page("http://127.0.0.1:9/simple/demo/")
        with pytest.raises(NetworkError, match="host name cannot be resolved"):
            session.get_page("http://no-such-host.invalid/simple/demo/")


def test_credentials_of_an_index_are_used_and_never_printed(
    index: Index, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = make_large_wheel(index)
    index.auth = ("ann", "open-sesame-1")
    own = index.url.replace("//", "//ann:open-sesame-1@")
    with configured(monkeypatch, index_url=own), Session() as session, caplog.at_level(logging.DEBUG):
        page = session.get_page(f"{session.configuration.indexes[0]}/big/")
        assert "sesame" not in page.url
        with session.open_range(f"{index.proxy}/files/{path.name}") as file:
            assert file.read(2) == b"PK"
        assert b"".join(session.download(f"{index.proxy}/files/{path.name}")) == path.read_bytes()
        with pytest.raises(NetworkError) as caught:
            list(session.download(f"{own.removesuffix('/simple')}/nothing"))
    assert "sesame" not in str(caught.value) + caught.value.where + caught.value.hint
    assert "sesame" not in caplog.text


def test_pip_does_not_prompt_for_a_password(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    index.auth = ("ann", "open-sesame-1")
    with configured(monkeypatch, index_url=index.url), Session() as session, pytest.raises(NetworkError, match="credentials"):
        session.get_page(f"{index.url}/demo/")


def test_credentials_from_netrc_are_used(index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheels.make(index.directory, "demo")
    index.auth = ("ann", "open-sesame-1")
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login ann password open-sesame-1\n")
    (tmp_path / ".netrc").chmod(0o600)
    monkeypatch.setenv("NETRC", str(tmp_path / ".netrc"))
    with configured(monkeypatch, index_url=index.url), Session() as session:
        assert session.get_page(f"{index.url}/demo/").status == 200


def test_parts_of_a_wheel_are_read_with_range_requests(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make_large_wheel(index)
    with configured(monkeypatch), Session() as session:
        with session.open_range(f"{index.proxy}/files/{path.name}") as file:
            assert file.seek(0, 2) == path.stat().st_size
            with zipfile.ZipFile(file) as archive:
                record = archive.read("big-1.0.dist-info/RECORD")
                assert len(index.asked) == 1
                assert archive.read("big/data.bin") == zipfile.ZipFile(path).read("big/data.bin")
        assert b"big/data.bin" in record
        assert {request.status for request in index.asked} == {206}
        index.tails = False
        with pytest.raises(RangesRefusedError):
            session.open_range(f"{index.proxy}/files/{path.name}")
        index.ranges = False
        with pytest.raises(RangesRefusedError):
            session.open_range(f"{index.proxy}/files/{path.name}")


def test_a_range_that_was_cut_off_is_fetched_again(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make_large_wheel(index)
    with configured(monkeypatch), Session() as session, session.open_range(f"{index.proxy}/files/{path.name}") as file:
        index.fail(".whl", "cut")
        assert file.read() == path.read_bytes()
        file.seek(0)
        assert file.read(10) == path.read_bytes()[:10]


def test_a_download_resumes_where_it_was_cut_off(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make_large_wheel(index)
    url = f"{index.proxy}/files/{path.name}"
    with configured(monkeypatch), Session() as session:
        index.fail(".whl", "cut", times=2)
        assert b"".join(session.download(url)) == path.read_bytes()
        half = path.stat().st_size // 2
        assert [request.range for request in index.asked] == [
            "",
            f"bytes={half}-",
            f"bytes={half + (path.stat().st_size - half) // 2}-",
        ]
        index.ranges = False
        index.fail(".whl", "cut")
        assert b"".join(session.download(url)) == path.read_bytes()
        index.fail(".whl", "cut", times=9)
        with pytest.raises(NetworkError, match="broke off every transfer"):
            list(session.download(url))


def test_local_files_and_pages_are_read_directly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = wheels.make(tmp_path / "a b", "demo")
    (tmp_path / "simple" / "demo").mkdir(parents=True)
    (tmp_path / "simple" / "demo" / "index.html").write_text("<a href='x.whl'>x</a>")
    with configured(monkeypatch), Session() as session:
        assert b"".join(session.download(path.as_uri())) == path.read_bytes()
        with session.open_range(path.as_uri()) as file:
            assert file.seek(0, 2) == path.stat().st_size
        assert session.get_page((tmp_path / "simple").as_uri() + "/demo/").body.startswith(b"<a")
        assert session.get_page((tmp_path / "simple").as_uri() + "/other/").status == 404
        with pytest.raises(NetworkError, match="cannot be read"):
            list(session.download((tmp_path / "gone.whl").as_uri()))


def test_threads_can_share_a_session(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make_large_wheel(index)
    barrier = threading.Barrier(8)
    with configured(monkeypatch), Session() as session:

        def read(_: int) -> bytes:
            barrier.wait(10)
            with session.open_range(f"{index.proxy}/files/{path.name}") as file:
                return file.read()

        with ThreadPoolExecutor(8) as pool:
            assert set(pool.map(read, range(8))) == {path.read_bytes()}


@pytest.mark.parametrize(
    "fetch", [lambda url: Session().get_page(url), lambda url: list(Session().download(url))], ids=["page", "file"]
)
def test_a_transfer_that_is_too_slow_is_an_error(monkeypatch: pytest.MonkeyPatch, fetch: Callable[[str], object]) -> None:
    monkeypatch.setattr(http, "PATIENCE", 0.2)
    gone = threading.Event()

    def slow(connection: socket.socket) -> None:
        with contextlib.suppress(OSError):
            connection.sendall(b"HTTP/1.1 200 x\r\nContent-Length: 100000\r\n\r\n")
            while not gone.wait(0.02):
                connection.sendall(b"x")

    with server(slow) as url:
        with pytest.raises(NetworkError, match="too slow"):
            fetch(url)
        gone.set()
