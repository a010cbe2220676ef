"""Archives are found on this machine or downloaded; those that no other machine can download are bundled."""

from __future__ import annotations

from pathlib import Path

import pytest

from repro_env.environment.archives import IdentifiedWheel, downloadable, existing_file, identify_all, why_bundled
from repro_env.oci.wheel import Facts
from repro_env.schema.artifact import Wheel
from repro_env.schema.errors import ArtifactError
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
    assert identify_all(str, range(30)) == [str(number) for number in range(30)]
    with pytest.raises(ValueError, match="x"):
        identify_all(int, ["1", "x", "2"])


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
