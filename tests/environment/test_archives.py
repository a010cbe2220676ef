"""Archives are found on this machine or downloaded; those that no other machine can download are bundled."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from repro_env.environment.archives import IdentifiedWheel, downloadable, existing_file, identify_all, why_bundled
from repro_env.io import http
from repro_env.oci.wheel import Facts
from repro_env.schema.artifact import Wheel
from repro_env.schema.errors import ArtifactError, NetworkError
from repro_env.schema.spec import WheelHint
from repro_env.store.store import Store


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
def test_urls_that_other_machines_can_reach_are_downloadable(url: str, can: bool) -> None:
    assert downloadable(url) is can


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("https://a.test/x.whl", ""),
        ("file:///x.whl", "from a local file"),
        ("", "from a local file"),
        ("http://127.0.0.1:3141/x.whl", "from a server of this machine"),
        (f"https://a.test/x.whl?X-Amz-Signature={'ab' * 32}", "its URL holds a token or signature"),
        ("https://ann:secret@a.test/x.whl", "its URL holds a token or signature"),
    ],
)
def test_an_archive_is_bundled_if_its_url_cannot_be_recorded(url: str, why: str) -> None:
    assert why_bundled(url).startswith(why)
    assert bool(why_bundled(url)) is bool(why)


def test_answers_are_in_the_order_of_the_items_and_an_error_is_raised() -> None:
    assert identify_all(lambda: str, range(30)) == [str(number) for number in range(30)]
    with pytest.raises(ValueError, match="x"):
        identify_all(lambda: int, ["1", "x", "2"])


class Flaky:
    """Answers with the item, after `failures[item]` errors."""

    def __init__(self, failures: dict[int, int], error: Exception | None = None) -> None:
        self.failures, self.rounds, self.asked = failures, 0, 0
        self.error = error or ConnectionResetError()
        self.errors: dict[int, Exception] = {}

    def __call__(self) -> Callable[[int], int]:
        self.rounds += 1
        return self.ask

    def ask(self, item: int) -> int:
        self.asked += 1
        if self.failures.get(item, 0):
            self.failures[item] -= 1
            raise NetworkError("broken off", where=f"item {item}", hint="try again") from self.errors.get(item, self.error)
        return item


@pytest.fixture
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("repro_env.environment.archives.pause", lambda _: None)


@pytest.mark.usefixtures("_at_once")
def test_what_an_index_did_not_answer_is_asked_again_after_the_others() -> None:
    flaky = Flaky({3: 2, 7: 1})
    assert identify_all(flaky, range(30)) == list(range(30))
    assert (flaky.rounds, flaky.asked) == (3, 33)
    assert identify_all(Flaky({0: 1}), range(1)) == [0]


@pytest.mark.usefixtures("_at_once")
def test_the_search_ends_when_nothing_more_is_identified() -> None:
    flaky = Flaky({5: 99})
    with pytest.raises(NetworkError, match="item 5: broken off") as caught:
        identify_all(flaky, range(30))
    assert caught.value.hint == "try again; 29 of 30 packages are identified, and the next capture starts from there"
    assert flaky.rounds == 3
    for error in (ConnectionRefusedError(), socket.gaierror()):
        flaky = Flaky(dict.fromkeys(range(1000), 99), error)
        with pytest.raises(NetworkError) as caught:
            identify_all(flaky, range(1000))
        assert caught.value.hint == "try again"
        assert flaky.rounds == 1
        assert flaky.asked < 30, "an index that does not answer is not asked for each of a thousand packages"


@pytest.mark.usefixtures("_at_once")
def test_an_answer_that_will_be_the_same_again_is_not_asked_for_again() -> None:
    flaky = Flaky({3: 1, 5: 99}, http.FinalError())
    with pytest.raises(NetworkError, match="broken off") as caught:
        identify_all(flaky, range(30))
    assert caught.value.hint == "try again; 28 of 30 packages are identified, and the next capture starts from there"
    assert (flaky.rounds, flaky.asked) == (1, 30)
    flaky = Flaky({3: 2, 5: 99})
    flaky.errors[5] = http.FinalError()
    with pytest.raises(NetworkError, match="item 5: broken off") as caught:
        identify_all(flaky, range(30))
    assert "29 of 30 packages are identified" in caught.value.hint
    assert (flaky.rounds, flaky.asked) == (3, 32), "the others are"


def test_a_file_counts_only_while_it_has_the_same_bytes(tmp_path: Path) -> None:
    store, path = Store.open(tmp_path / "store"), tmp_path / "demo.whl"
    path.write_bytes(b"demo")
    _, digest = Store.open(tmp_path / "other").blobs.add([b"demo"])
    assert existing_file(digest, str(path), store) == path
    assert existing_file(digest, "", store) is None
    path.write_bytes(b"changed")
    assert existing_file(digest, str(path), store) is None
    wheel = Wheel(name="demo", version="1", filename="demo-1-py3-none-any.whl", sha256=digest, size=4)
    hint = WheelHint(sha256=digest, origin="bundled", urls=(), index="")
    with pytest.raises(ArtifactError, match="not in the store"):
        IdentifiedWheel(wheel, hint, Facts(wheel.filename, (), b"", b"", b"", {}), str(path), "why").path(store)
    stored = store.blobs.put([b"demo"], digest, where="demo")
    assert existing_file(digest, str(path), store) == stored
