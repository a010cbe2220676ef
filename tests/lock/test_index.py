"""Pages of indexes in both forms, find-links, and what counts as linkable."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from repro_env.io.http import Page, Session
from repro_env.lock.index import JSON, Candidate, Indexes, candidate, candidates, linkable, tags_of
from repro_env.model.errors import LockError, NetworkError
from tests.fakes import wheels
from tests.fakes.index import Index, configured

HEX = "ab" * 32


def page(text: str, url: str = "http://a.test/simple/demo/", kind: str = "text/html") -> Page:
    return Page(200, url, kind, text.encode())


def urls(text: str, url: str = "http://a.test/simple/demo/") -> list[str]:
    return [one.url for one in candidates(page(text, url), "i")]


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    with Index(tmp_path / "wheels") as one:
        yield one


def test_links_of_an_html_page() -> None:
    text = f"""
    <!-- <a href="commented-1.0-py3-none-any.whl">no</a> -->
    <a href='../../f/demo-1.0-py3-none-any.whl#sha256={HEX}' data-requires-python='>=3.8'>x</a>
    <A data-dist-info-metadata="sha256=00" HREF="https://b.test/demo-1.1%2Bcpu-py3-none-any.whl?x=1&amp;y=2#md5=00">y</A>
    <a href=demo-1.2-py3-none-any.whl data-yanked="">z</a>
    <a href="demo-1.3.tar.gz">sdist</a> <a name="demo-1.4-py3-none-any.whl">no link</a>
    """
    assert candidates(page(text), "i") == [
        Candidate("demo-1.0-py3-none-any.whl", "http://a.test/f/demo-1.0-py3-none-any.whl", HEX, "i", True),
        Candidate("demo-1.1+cpu-py3-none-any.whl", "https://b.test/demo-1.1%2Bcpu-py3-none-any.whl?x=1&y=2", "", "i", True),
        Candidate("demo-1.2-py3-none-any.whl", "http://a.test/simple/demo/demo-1.2-py3-none-any.whl", "", "i", True),
    ]


def test_the_base_of_an_html_page() -> None:
    assert urls('<base href="http://cdn.test/w/"><a href="d-1-py3-none-any.whl">x</a>') == [
        "http://cdn.test/w/d-1-py3-none-any.whl"
    ]


def test_links_that_are_not_followed() -> None:
    link = '<a href="{}d-1-py3-none-any.whl">x</a>'
    assert urls(link.format("file:///etc/")) == []
    assert urls(link.format("javascript:")) == []
    assert urls(link.format("http://[bad/")) == []
    assert urls(link.format("file:///w/"), "file:///simple/d/index.html") == ["file:///w/d-1-py3-none-any.whl"]
    assert urls('<a href="a b/d-1-py3-none-any.whl">x</a>') == ["http://a.test/simple/demo/a%20b/d-1-py3-none-any.whl"]


def test_a_json_page() -> None:
    files = [
        {
            "filename": "demo-1.0-py3-none-any.whl",
            "url": "../../f/1",
            "hashes": {"sha256": HEX.upper(), "md5": "0"},
            "yanked": "bad",
        },
        {"filename": "demo-1.0.tar.gz", "url": "x", "hashes": {}},
    ]
    found = candidates(page(json.dumps({"name": "demo", "files": files}), kind=JSON), "i")
    assert found == [Candidate("demo-1.0-py3-none-any.whl", "http://a.test/f/1", HEX, "i", True)]


@pytest.mark.parametrize(("text", "kind"), [("{}", JSON), ("[", JSON), ("x", "text/plain"), ("x", "")])
def test_what_is_no_index_page(text: str, kind: str) -> None:
    with pytest.raises(LockError, match="not an index page"):
        candidates(page(text, kind=kind), "i")


def test_an_index_of_another_api_version() -> None:
    assert candidates(page('{"meta": {"api-version": "1.9"}, "files": []}', kind=JSON), "i") == []
    with pytest.raises(LockError, match="speaks version 2"):
        candidates(page('{"meta": {"api-version": "2.0"}, "files": []}', kind=JSON), "i")


def test_a_page_that_is_not_there_names_nothing() -> None:
    assert candidates(Page(404, "http://a.test/", "", b""), "i") == []


@pytest.mark.parametrize(
    ("url", "can"),
    [
        ("https://a.test/x.whl", True),
        ("http://10.0.0.8/x.whl", True),  # a company's own mirror serves its other machines
        ("http://192.0.2.1:8080/x.whl", True),
        ("http://[2001:db8::1]/x.whl", True),
        ("http://localhost/x.whl", False),
        ("http://LOCALHOST:80/x.whl", False),
        ("http://x.localhost./x.whl", False),
        ("http://127.0.0.1:3141/x.whl", False),
        ("http://127.1/x.whl", False),
        ("http://2130706433/x.whl", False),
        ("http://0.0.0.0/x.whl", False),
        ("http://[::1]/x.whl", False),
        ("http://[::ffff:127.0.0.1]/x.whl", False),
        ("file:///x.whl", False),
        ("ftp://a.test/x.whl", False),
        ("http:///x.whl", False),
        ("http://[bad/x.whl", False),
    ],
)
def test_what_another_machine_can_reach(url: str, can: bool) -> None:
    assert linkable(url) is can


def test_a_candidate_by_its_url() -> None:
    found = candidate(f"https://a.test/w/demo-1.0%2Bcpu-py3-none-any.whl#egg=demo&sha256={HEX}", "")
    assert (found.filename, found.url, found.sha256) == (
        "demo-1.0+cpu-py3-none-any.whl",
        "https://a.test/w/demo-1.0%2Bcpu-py3-none-any.whl",
        HEX,
    )


def test_tags_and_build_of_a_file_name() -> None:
    tags, build = tags_of("demo-1.0-2b-py2.py3-none-any.whl")
    assert {str(tag) for tag in tags} == {"py2-none-any", "py3-none-any"}
    assert build == "2b"


@pytest.mark.parametrize("as_json", [True, False])
def test_only_this_distribution_and_version(index: Index, monkeypatch: pytest.MonkeyPatch, as_json: bool) -> None:
    index.json = as_json
    for name, version in (
        ("demo-pkg", "1.0"),
        ("demo-pkg", "1.0.0"),
        ("demo-pkg", "1.0.post1"),
        ("demo-pkg", "1.0+cpu"),
        ("demo", "1.0"),
    ):
        wheels.make(index.folder, name, version)
    (index.folder / "demo_pkg-1.0-bad.whl").write_bytes(b"")
    with configured(monkeypatch, index_url=index.url), Session() as session:
        found = Indexes(session).offers("demo-pkg", "1")
        local = Indexes(session).offers("demo-pkg", "1.0+cpu")
        none = Indexes(session).offers("demo-pkg", "not a version")
    assert [one.filename for one in found.candidates] == ["demo_pkg-1.0-py3-none-any.whl", "demo_pkg-1.0.0-py3-none-any.whl"]
    assert all(len(one.sha256) == 64 and not one.linkable for one in found.candidates)
    assert [one.filename for one in local.candidates] == ["demo_pkg-1.0+cpu-py3-none-any.whl"]
    assert none.candidates == ()


def test_several_indexes_linkable_first(index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = wheels.make(index.folder, "demo")
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / path.name).write_bytes(path.read_bytes())
    options = {"proxy": index.proxy, "find_links": str(tmp_path / "links"), "extra_index_url": "http://b.test/simple"}
    with configured(monkeypatch, index_url=(tmp_path / "none").as_uri(), **options), Session() as session:
        found = Indexes(session).offers("demo", "1.0")
    assert [(one.linkable, one.index) for one in found.candidates] == [
        (True, "http://b.test/simple"),
        (False, (tmp_path / "links").as_uri()),
    ]


def test_an_index_that_will_not_or_cannot_answer(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    wheels.make(index.folder, "demo")
    index.down.add("down.test")
    index.fail("/demo/", 403)
    extra = "http://down.test/simple http://b.test/simple"
    options = {"proxy": index.proxy, "extra_index_url": extra, "retries": "0"}
    with configured(monkeypatch, index_url="http://a.test/simple", **options), Session() as session:
        indexes = Indexes(session)
        found = indexes.offers("demo", "1.0")
        assert indexes.offers("demo", "1.0").failures == found.failures
    assert [one.host for one in index.asked].count("down.test") == 1, "one that is down is not asked again"
    assert found.refusals == ("http://a.test/simple answered with status 403",)
    assert [type(one) for one in found.failures] == [NetworkError]
    assert [one.index for one in found.candidates] == ["http://b.test/simple"]


def test_find_links_as_folder_file_and_page(index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, page_at = tmp_path / "my links", tmp_path / "page.html"
    wheels.make(folder, "demo")
    single = wheels.make(tmp_path / "one", "demo", tag="py3-none-linux_x86_64")
    (folder / "more.html").write_text('<a href="http://a.test/demo-1.0-cp311-none-any.whl">x</a>')
    page_at.write_text('<a href="http://a.test/demo-1.0-cp310-none-any.whl">x</a>')
    monkeypatch.setenv("HOME", str(tmp_path))
    links = [folder.as_uri(), str(single), str(page_at), "http://a.test/x/demo-1.0-cp39-none-any.whl", str(tmp_path / "gone")]
    with configured(monkeypatch, no_index="1", find_links=" ".join(links)), Session() as session:
        found = Indexes(session).offers("demo", "1.0")
    assert {one.filename for one in found.candidates} == {
        f"demo-1.0-{tag}.whl"
        for tag in ("py3-none-any", "py3-none-linux_x86_64", "cp311-none-any", "cp310-none-any", "cp39-none-any")
    }


def test_an_index_in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = wheels.make(tmp_path / "files", "demo")
    (tmp_path / "simple" / "demo").mkdir(parents=True)
    (tmp_path / "simple" / "demo" / "index.html").write_text(f'<a href="../../files/{path.name}">x</a>')
    with configured(monkeypatch, index_url=str(tmp_path / "simple")), Session() as session:
        found = Indexes(session).offers("demo", "1.0")
    assert [(one.url, one.linkable) for one in found.candidates] == [(path.as_uri(), False)]
