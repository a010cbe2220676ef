"""Index pages in both formats, find-links, and which URLs are downloadable."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from repro_env.environment.wheels.index import Candidate, Indexes, candidate_from_url, candidates, tags_of
from repro_env.io.indexhttp import Page, Session
from repro_env.schema.errors import LockError, NetworkError
from tests.fakes import wheels
from tests.fakes.index import Index, configured

HEX = "ab" * 32
JSON = "application/vnd.pypi.simple.v1+json"


def page(text: str, url: str = "http://a.test/simple/demo/", kind: str = "text/html") -> Page:
    return Page(200, url, kind, text.encode())


def urls(text: str, url: str = "http://a.test/simple/demo/") -> list[str]:
    return [candidate.url for candidate in candidates(page(text, url), "i")]


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    with Index(tmp_path / "wheels") as one:
        yield one


def test_links_of_an_html_page_are_candidates() -> None:
    text = f"""
    <!-- <a href="commented-1.0-py3-none-any.whl">no</a> -->
    <a href='../../f/demo-1.0-py3-none-any.whl#sha256={HEX}' data-requires-python='>=3.8'>x</a>
    <A data-dist-info-metadata="sha256=00" HREF="https://b.test/demo-1.1%2Bcpu-py3-none-any.whl?x=1&amp;y=2#md5=00">y</A>
    <a href=demo-1.2-py3-none-any.whl data-yanked="">z</a>
    <a href="demo-1.3.tar.gz">sdist</a> <a name="demo-1.4-py3-none-any.whl">no link</a>
    """
    assert candidates(page(text), "i") == [
        Candidate("demo-1.0-py3-none-any.whl", "http://a.test/f/demo-1.0-py3-none-any.whl", HEX, "i"),
        Candidate("demo-1.1+cpu-py3-none-any.whl", "https://b.test/demo-1.1%2Bcpu-py3-none-any.whl?x=1&y=2", "", "i"),
        Candidate("demo-1.2-py3-none-any.whl", "http://a.test/simple/demo/demo-1.2-py3-none-any.whl", "", "i"),
    ]


def test_the_base_url_of_an_html_page_is_used() -> None:
    assert urls('<base href="http://cdn.test/w/"><a href="d-1-py3-none-any.whl">x</a>') == [
        "http://cdn.test/w/d-1-py3-none-any.whl"
    ]


def test_links_to_other_files_and_schemes_are_ignored() -> None:
    link = '<a href="{}d-1-py3-none-any.whl">x</a>'
    assert urls(link.format("file:///etc/")) == []
    assert urls(link.format("javascript:")) == []
    assert urls(link.format("file:///w/"), "file:///simple/d/index.html") == ["file:///w/d-1-py3-none-any.whl"]
    assert urls('<a href="a b/d-1-py3-none-any.whl">x</a>') == ["http://a.test/simple/demo/a%20b/d-1-py3-none-any.whl"]


def test_files_of_a_json_page_are_candidates() -> None:
    files = [
        {
            "filename": "demo-1.0-py3-none-any.whl",
            "url": "../../f/demo-1.0-py3-none-any.whl",
            "hashes": {"sha256": HEX.upper(), "md5": "0"},
            "yanked": "bad",
        },
        {"filename": "demo-1.0.tar.gz", "url": "x", "hashes": {}},
    ]
    found = candidates(page(json.dumps({"name": "demo", "files": files}), kind=JSON), "i")
    assert found == [Candidate("demo-1.0-py3-none-any.whl", "http://a.test/f/demo-1.0-py3-none-any.whl", HEX, "i")]


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("{}", JSON),
        ("[", JSON),
        ('{"files": 1}', JSON),
        ('{"files": [[]]}', JSON),
        ("x", "text/plain"),
        ("x", ""),
        ('<a href="http://[bad/">x</a>', "text/html"),
    ],
)
def test_a_page_that_is_not_an_index_is_rejected(text: str, kind: str) -> None:
    with pytest.raises(LockError, match="not an index page"):
        candidates(page(text, kind=kind), "i")


def test_a_missing_page_has_no_candidates() -> None:
    assert candidates(Page(404, "http://a.test/", "", b""), "i") == []


def test_a_candidate_is_made_from_its_url() -> None:
    found = candidate_from_url(f"https://a.test/w/demo-1.0%2Bcpu-py3-none-any.whl#egg=demo&sha256={HEX}", "")
    assert (found.filename, found.url, found.sha256) == (
        "demo-1.0+cpu-py3-none-any.whl",
        "https://a.test/w/demo-1.0%2Bcpu-py3-none-any.whl",
        HEX,
    )


def test_tags_and_build_are_read_from_a_file_name() -> None:
    tags, build = tags_of("demo-1.0-2b-py2.py3-none-any.whl")
    assert {str(tag) for tag in tags} == {"py2-none-any", "py3-none-any"}
    assert build == "2b"


@pytest.mark.parametrize("as_json", [True, False])
def test_only_wheels_of_the_distribution_and_version_are_offered(
    index: Index, monkeypatch: pytest.MonkeyPatch, as_json: bool
) -> None:
    index.json = as_json
    for name, version in (
        ("demo-pkg", "1.0"),
        ("demo-pkg", "1.0.0"),
        ("demo-pkg", "1.0.post1"),
        ("demo-pkg", "1.0+cpu"),
        ("demo", "1.0"),
    ):
        wheels.make(index.directory, name, version)
    (index.directory / "demo_pkg-1.0-bad.whl").write_bytes(b"")
    with configured(monkeypatch, index_url=index.url), Session() as session:
        found = Indexes(session).offers("demo-pkg", "1")
        local = Indexes(session).offers("demo-pkg", "1.0+cpu")
        none = Indexes(session).offers("demo-pkg", "not a version")
    assert [candidate_from_url.filename for candidate_from_url in found.candidates] == [
        "demo_pkg-1.0-py3-none-any.whl",
        "demo_pkg-1.0.0-py3-none-any.whl",
    ]
    assert all(
        len(candidate_from_url.sha256) == 64 and not candidate_from_url.downloadable for candidate_from_url in found.candidates
    )
    assert [candidate_from_url.filename for candidate_from_url in local.candidates] == ["demo_pkg-1.0+cpu-py3-none-any.whl"]
    assert none.candidates == ()


def test_downloadable_candidates_come_first(index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = wheels.make(index.directory, "demo")
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / path.name).write_bytes(path.read_bytes())
    options = {"proxy": index.proxy, "find_links": str(tmp_path / "links"), "extra_index_url": "http://b.test/simple"}
    with configured(monkeypatch, index_url=(tmp_path / "none").as_uri(), **options), Session() as session:
        found = Indexes(session).offers("demo", "1.0")
    assert [(candidate_from_url.downloadable, candidate_from_url.index) for candidate_from_url in found.candidates] == [
        (True, "http://b.test/simple"),
        (False, (tmp_path / "links").as_uri()),
    ]


def test_refusals_and_failures_of_indexes_are_reported(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    wheels.make(index.directory, "demo")
    index.down.add("down.test")
    index.fail("/demo/", 403)
    extra = "http://down.test/simple http://b.test/simple"
    options = {"proxy": index.proxy, "extra_index_url": extra, "retries": "0"}
    with configured(monkeypatch, index_url="http://a.test/simple", **options), Session() as session:
        indexes = Indexes(session)
        found = indexes.offers("demo", "1.0")
        assert indexes.offers("demo", "1.0").failures == found.failures
    assert [request.host for request in index.asked].count("down.test") == 1, "one that is down is not asked again"
    assert found.refusals == ("http://a.test/simple answered with status 403",)
    assert [type(failure) for failure in found.failures] == [NetworkError]
    assert [candidate_from_url.index for candidate_from_url in found.candidates] == ["http://b.test/simple"]


def test_find_links_may_be_a_directory_a_file_or_a_page(index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory, page_at = tmp_path / "my links", tmp_path / "page.html"
    wheels.make(directory, "demo")
    single = wheels.make(tmp_path / "one", "demo", tag="py3-none-linux_x86_64")
    (directory / "more.html").write_text('<a href="http://a.test/demo-1.0-cp311-none-any.whl">x</a>')
    page_at.write_text('<a href="http://a.test/demo-1.0-cp310-none-any.whl">x</a>')
    monkeypatch.setenv("HOME", str(tmp_path))
    links = [directory.as_uri(), str(single), str(page_at), "http://a.test/x/demo-1.0-cp39-none-any.whl", str(tmp_path / "gone")]
    with configured(monkeypatch, no_index="1", find_links=" ".join(links)), Session() as session:
        found = Indexes(session).offers("demo", "1.0")
    assert {candidate_from_url.filename for candidate_from_url in found.candidates} == {
        f"demo-1.0-{tag}.whl"
        for tag in ("py3-none-any", "py3-none-linux_x86_64", "cp311-none-any", "cp310-none-any", "cp39-none-any")
    }


def test_an_index_may_be_a_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = wheels.make(tmp_path / "files", "demo")
    (tmp_path / "simple" / "demo").mkdir(parents=True)
    (tmp_path / "simple" / "demo" / "index.html").write_text(f'<a href="../../files/{path.name}">x</a>')
    with configured(monkeypatch, index_url=str(tmp_path / "simple")), Session() as session:
        found = Indexes(session).offers("demo", "1.0")
    assert [(candidate_from_url.url, candidate_from_url.downloadable) for candidate_from_url in found.candidates] == [
        (path.as_uri(), False)
    ]
