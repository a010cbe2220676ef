"""Which wheel is installed: proven against real indexes on this machine, carried when nothing proves it."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec
import pytest

from repro_env.capture import distributions, python
from repro_env.image import wheel
from repro_env.lock import identify as identifying
from repro_env.lock.identify import Identified, facts_of, identify, whole
from repro_env.model import sources
from repro_env.model.environment import Interpretation
from repro_env.model.errors import ArtifactError, NetworkError
from repro_env.model.sources import NONE, LockedFile, PackageSources
from repro_env.model.talk import Silent
from repro_env.store.store import Store
from tests.fakes import specs, wheels
from tests.fakes.index import Index, configured
from tests.parts import need

MIRROR = "http://mirror-a.test/simple"
POINTS = "[console_scripts]\ndemo = demo:main\n"


class Heard(Silent):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def __call__(self, text: str, /) -> None:
        self.lines.append(text)


class Place:
    """A prefix with distributions in it, and the index that they may be from."""

    def __init__(self, folder: Path, index: Index, patch: pytest.MonkeyPatch) -> None:
        self.prefix = folder / "venv"
        (self.prefix / "lib/python3.11/site-packages").mkdir(parents=True)
        self.index = index
        self.store = Store.open(folder / "store")
        self.said = Heard()
        self._patch = patch

    @property
    def site(self) -> Path:
        return self.prefix / "lib/python3.11/site-packages"

    @property
    def facts(self) -> Interpretation:
        return specs._facts(self.prefix)

    def install(self, name: str = "demo", files: Mapping[str, bytes] | None = None, *, tag: str = "py3-none-any") -> Path:
        """Make a wheel on the index and install it."""
        path = wheels.make(self.index.folder, name, files=files, entry_points=POINTS, tag=tag)
        wheels.install(path, self.prefix, name)
        return path

    def direct(self, url: str, more: Mapping[str, object] | None = None) -> None:
        (self.site / "demo-1.0.dist-info/direct_url.json").write_text(json.dumps({"url": url, **(more or {"archive_info": {}})}))

    def identify(self, named: PackageSources = NONE, **options: str) -> tuple[Identified, ...]:
        self.index.asked.clear()
        options = {"index_url": MIRROR, "proxy": self.index.proxy, "retries": "0"} | options
        with configured(self._patch, **options):
            found, _ = identify(
                distributions.scan(self.facts.layout).distributions,
                self.facts.layout,
                store=self.store,
                talk=self.said,
                sources=named,
            )
            return tuple(msgspec.structs.replace(one, facts=facts_of(one, self.store)) for one in found)

    def one(self, named: PackageSources = NONE, **options: str) -> Identified:
        (found,) = self.identify(named, **options)
        return found


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    with Index(tmp_path / "wheels") as index:
        yield Place(tmp_path, index, monkeypatch)


def test_an_index_that_had_no_wheel_is_asked_again_later_or_for_other_files(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = place.install()
    hidden = path.rename(path.with_suffix(".hidden"))
    assert place.one().hint.origin == "repacked"
    hidden.rename(path)
    assert place.one().hint.origin == "repacked"
    assert place.index.asked == []

    with (place.site / "demo-1.0.dist-info/RECORD").open("a") as record:
        record.write("\n")
    assert place.one().hint.origin == "index", "other files are another question"
    hidden = path.rename(path.with_suffix(".hidden"))
    (place.site / "demo-1.0.dist-info/WHEEL").write_text("Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n\n")
    assert place.one().hint.origin == "repacked"
    hidden.rename(path)
    monkeypatch.setattr(identifying, "ASK_AGAIN", 0)
    place.one()
    assert place.index.asked != []


def test_facts_that_the_store_has_lost_are_read_from_the_wheel(place: Place) -> None:
    place.install()
    first = place.one()
    for path in (place.store.root / "facts/evidence").iterdir():
        path.write_bytes(b"damaged")

    assert place.one().facts == first.facts


def digest(path: Path) -> str:
    return "sha256:" + hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize("as_json", [True, False])
def test_proven_by_ranges_then_known(place: Place, as_json: bool) -> None:
    place.index.json = as_json
    path = place.install(files={"demo/__init__.py": b"def main(): pass\n", "demo-1.0.data/scripts/tool": b"#!python\nprint(1)\n"})
    found = place.one()
    assert (found.wheel.sha256, found.wheel.size, found.wheel.filename) == (digest(path), path.stat().st_size, path.name)
    assert (found.hint.origin, found.hint.index, found.why, found.file) == ("index", MIRROR, "", None)
    assert found.hint.urls == (f"http://mirror-a.test/files/{path.name}",)
    assert [one.status for one in place.index.asked] == [200, 206]
    assert place.one() == found
    assert place.index.asked == []


@pytest.mark.parametrize("missing", ["hashes", "ranges", "tails"])
def test_whatever_the_index_lacks_it_is_proven(place: Place, missing: str) -> None:
    path = place.install()
    setattr(place.index, missing, False)
    found = place.one()
    assert (found.wheel.sha256, found.hint.origin, found.why) == (digest(path), "index", "")
    assert place.one() == Identified(found.wheel, found.hint, found.facts, None, "")


def test_a_damaged_store_is_only_slower(place: Place) -> None:
    place.install()
    found = place.one()
    for path in (place.store.root / "facts").rglob("*"):
        if path.is_file():
            path.write_bytes(b"damaged")
    assert place.one() == found


def test_the_whole_wheel_on_demand(place: Place) -> None:
    path = place.install()
    found = place.one()
    with configured(place._patch, proxy=place.index.proxy):
        assert whole(found, place.store).read_bytes() == path.read_bytes()
        place.index.asked.clear()
        assert whole(found, place.store).read_bytes() == path.read_bytes()
    assert place.index.asked == []


def test_the_whole_wheel_is_checked(place: Place) -> None:
    place.install()
    found = place.one()
    place.index.fail(".whl", "wrong")
    with configured(place._patch, proxy=place.index.proxy), pytest.raises(ArtifactError, match="other bytes"):
        whole(found, place.store)


def test_a_file_of_the_same_name_is_not_enough(place: Place) -> None:
    place.install()
    imposter = wheels.make(place.index.folder, "demo", files={"demo.py": b"steal()\n"}, entry_points=POINTS)
    found = place.one()
    assert (found.hint.origin, found.hint.urls) == ("repacked", ())
    assert "the installed files differ from " in found.why
    assert "lib/python3.11/site-packages/demo.py differs" in found.why
    assert found.wheel.sha256 != digest(imposter)
    assert whole(found, place.store) == found.file


@pytest.mark.parametrize("files", [{}, {"demo.py": b"NAME = 'demo'\n", "more.py": b""}])
def test_a_wheel_with_fewer_or_more_files_is_another(place: Place, files: dict[str, bytes]) -> None:
    place.install()
    wheels.make(place.index.folder, "demo", files=files, entry_points=POINTS)
    assert place.one().hint.origin == "repacked"


def test_a_wheel_with_another_script_is_another(place: Place) -> None:
    place.install()
    wheels.make(place.index.folder, "demo", entry_points=POINTS + "other = demo:main\n")
    assert place.one().hint.origin == "repacked"


def test_what_installers_add_is_no_difference(place: Place) -> None:
    path = place.install()
    record = place.site / "demo-1.0.dist-info/RECORD"
    added = "__pycache__/demo.cpython-311.pyc,,\ndemo-1.0.dist-info/REQUESTED,,\ndemo-1.0.dist-info/uv_cache.json,,\n"
    absolute = f"{place.prefix}/bin/demo3,,\n"
    record.write_text(record.read_text() + added + absolute)
    assert place.one().wheel.sha256 == digest(path)


def test_a_file_that_is_listed_but_not_in_the_wheel(place: Place) -> None:
    place.install()
    record = place.site / "demo-1.0.dist-info/RECORD"
    record.write_text(record.read_text() + "extra.py,,\n")
    found = place.one()
    assert found.hint.origin == "repacked"
    assert "lib/python3.11/site-packages/extra.py is not in the wheel" in found.why
    assert "extra.py: missing" in found.why


def test_a_wheel_that_was_renamed_after_it_was_built(place: Place) -> None:
    path = place.install(tag="cp311-cp311-linux_x86_64")
    renamed = path.rename(path.with_name("demo-1.0-cp311-cp311-manylinux_2_17_x86_64.whl"))
    assert place.one().wheel.filename == renamed.name


def test_the_index_that_has_it_is_recorded(place: Place) -> None:
    place.install()
    place.index.fail("/demo/", 404)
    assert place.one(extra_index_url="http://mirror-b.test/simple").hint.index == "http://mirror-b.test/simple"


def test_a_locked_file_is_a_candidate_like_those_of_an_index(place: Place, tmp_path: Path) -> None:
    path = place.install()
    empty = (tmp_path / "empty").as_uri()
    url = f"http://files.test/files/{path.name}"
    sha256 = digest(path).removeprefix("sha256:")
    assert place.one(index_url=empty).hint.origin == "repacked"
    other = LockedFile(url.replace("files.test", "gone.test"), "0" * 64, "")
    place.index.down.add("gone.test")
    named = PackageSources(files={"demo": (other, LockedFile(url, sha256, "http://torch.test/whl")), "x": (other,)})
    found = place.one(named, index_url=empty)
    assert (found.hint.origin, found.hint.urls, found.hint.index) == ("index", (url,), "http://torch.test/whl")
    assert (found.wheel.sha256, found.why) == (digest(path), "")


def test_a_locked_file_that_is_not_the_installed_one_is_another(place: Place, tmp_path: Path) -> None:
    place.install()
    imposter = wheels.make(place.index.folder, "demo", files={"demo.py": b"steal()\n"}, entry_points=POINTS)
    locked = LockedFile(f"http://files.test/files/{imposter.name}", digest(imposter).removeprefix("sha256:"), "")
    found = place.one(PackageSources(files={"demo": (locked,)}), index_url=(tmp_path / "empty").as_uri())
    assert found.hint.origin == "repacked"
    assert "lib/python3.11/site-packages/demo.py differs" in found.why


def test_an_index_is_asked_only_for_the_names_that_are_pinned_to_it(place: Place, tmp_path: Path) -> None:
    place.install()
    place.install("other")
    pinned = PackageSources(indexes=(sources.Index("http://torch.test/simple", frozenset({"demo"})),))
    origins = {found.wheel.name: found.hint.index for found in place.identify(pinned, index_url=(tmp_path / "empty").as_uri())}
    assert origins == {"demo": "http://torch.test/simple", "other": ""}
    assert [asked.path for asked in place.index.asked if asked.path.startswith("/simple/")] == ["/simple/demo/"]


def test_an_index_that_cannot_be_asked(place: Place) -> None:
    place.install()
    place.index.down.add("mirror-a.test")
    with pytest.raises(NetworkError):
        place.one()
    assert place.one(extra_index_url="http://mirror-b.test/simple").hint.index == "http://mirror-b.test/simple"


def test_an_index_that_refuses_is_named(place: Place) -> None:
    place.install()
    place.index.fail("/demo/", 403)
    assert f"{MIRROR} answered with status 403" in place.one().why


def test_nothing_on_any_index(place: Place) -> None:
    path = place.install()
    path.unlink()
    found = place.one()
    assert (found.hint.origin, found.why) == ("repacked", "no configured index has a wheel of this version")


def test_from_an_index_of_this_machine_it_is_carried(place: Place) -> None:
    path = place.install()
    found = place.one(index_url=place.index.url)
    assert (found.hint.origin, found.hint.urls, found.wheel.sha256) == ("carried", (), digest(path))
    assert "of this machine" in found.why
    assert found.file is not None
    assert found.file.read_bytes() == path.read_bytes()
    again = place.one(index_url=place.index.url)
    assert again == found
    assert place.index.asked == []


def test_from_find_links_the_original_file_is_carried(place: Place, tmp_path: Path) -> None:
    path = place.install()
    local = path.rename(tmp_path / path.name)
    found = place.one(find_links=str(tmp_path))
    assert (found.hint.origin, found.file, found.wheel.sha256) == ("carried", local, digest(local))
    assert place.one(find_links=str(tmp_path)) == found
    assert place.index.asked == []
    local.write_bytes(local.read_bytes() + b"\0")
    changed = place.one(find_links=str(tmp_path))
    assert changed.wheel.sha256 == digest(local)
    local.unlink()
    assert place.one(find_links=str(tmp_path)).hint.origin == "repacked"


def test_linked_wins_over_a_local_copy(place: Place, tmp_path: Path) -> None:
    path = place.install()
    (tmp_path / path.name).write_bytes(path.read_bytes())
    assert place.one(find_links=str(tmp_path)).hint.origin == "index"


def test_a_direct_url_comes_first(place: Place) -> None:
    path = place.install()
    place.direct(f"http://ann:secret@files.test/files/{path.name}")
    found = place.one()
    assert (found.hint.origin, found.hint.index) == ("direct", "")
    assert found.hint.urls == (f"http://files.test/files/{path.name}",)
    assert found.wheel.sha256 == digest(path)


def test_a_direct_url_that_is_gone(place: Place) -> None:
    path = place.install()
    place.direct("http://files.test/files/other/demo-1.0-py3-none-any.whl")
    away = path.rename(place.prefix / path.name)
    found = place.one()
    assert found.hint.origin == "repacked"
    assert "is not there (status 404)" in found.why
    away.rename(path)
    assert place.one().hint.origin == "index"


@pytest.mark.parametrize(
    ("url", "more", "says"),
    [
        (
            "https://git.test/demo.git",
            {"vcs_info": {"vcs": "git", "commit_id": "abc"}},
            "installed from git+https://git.test/demo.git@abc",
        ),
        ("file:///home/ann/demo", {"dir_info": {"editable": True}}, "an editable install of file:///home/ann/demo"),
        ("file:///home/ann/demo", {"dir_info": {}}, "installed from file:///home/ann/demo"),
        ("https://ann:secret@a.test/demo-1.0.tar.gz", {}, "installed from https://a.test/demo-1.0.tar.gz"),
    ],
)
def test_what_no_index_can_know_is_not_looked_up(place: Place, url: str, more: dict[str, object], says: str) -> None:
    place.install()
    place.direct(url, more)
    found = place.one()
    assert (found.hint.origin, found.why) == ("repacked", says)
    assert place.index.asked == []


def test_without_record_it_is_left_to_the_files(place: Place) -> None:
    place.install()
    (place.site / "demo-1.0.dist-info/RECORD").unlink()
    assert place.identify() == ()
    assert place.said.lines == ["demo 1.0 has no RECORD: its files are held as plain files"]


def test_wrong_bytes_are_no_proof(place: Place) -> None:
    place.install()
    place.index.ranges = False
    place.index.fail(".whl", "wrong", times=9)
    found = place.one()
    assert found.hint.origin == "repacked"
    assert "other bytes" in found.why


def test_a_hostile_wheel_is_only_another(place: Place) -> None:
    path = place.install()
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("../../etc/passwd", "x")
    found = place.one()
    assert found.hint.origin == "repacked"
    assert "passwd" in found.why
    path.write_bytes(b"PK" + bytes(100))
    assert place.one().hint.origin == "repacked"


def test_what_was_looked_at_is_not_fetched_again(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a proof the pages are asked anew, by ETag; the candidates' contents are known."""
    place.install()
    wheels.make(place.index.folder, "demo", files={"demo.py": b"another"}, entry_points=POINTS)
    first = place.one()
    assert [one.status for one in place.index.asked] == [200, 206]
    assert place.one() == first
    assert place.index.asked == [], "asked a moment ago"
    monkeypatch.setattr(identifying, "ASK_AGAIN", 0)
    assert place.one() == first
    assert [one.status for one in place.index.asked] == [304]


def test_an_index_that_lies_about_a_file_does_not_spoil_another(place: Place, tmp_path: Path) -> None:
    """What ranges of one URL say about a sha256 counts for that URL alone."""
    path = place.install()
    other = wheels.make(tmp_path / "other", "demo", files={"demo.py": b"another"}, entry_points=POINTS)
    lie = f"<a href='http://liar.test/files/{path.name}#sha256={digest(other)[7:]}'>x</a>"
    (tmp_path / "page.html").write_text(lie)
    none = (tmp_path / "none").as_uri()
    liar = place.one(index_url=none, find_links=str(tmp_path / "page.html"))
    assert liar.wheel.sha256 == digest(other), "believed until the rebuild: then the bytes are others and it fails"
    found = place.one(index_url=none, find_links=str(tmp_path / "other"))
    assert found.hint.origin == "repacked"


def test_a_signed_url_is_not_written_down(place: Place, tmp_path: Path) -> None:
    path = place.install()
    link = f"http://files.test/files/{path.name}?X-Amz-Signature={'ab' * 32}#sha256={digest(path)[7:]}"
    (tmp_path / "page.html").write_text(f"<a href='{link}'>x</a>")
    found = place.one(index_url=(tmp_path / "none").as_uri(), find_links=str(tmp_path / "page.html"))
    assert (found.hint.origin, found.hint.urls) == ("carried", ())
    assert "signature" in found.why
    assert found.file is not None
    assert "Signature" not in repr(found)


def test_a_local_index_with_a_wrong_hash(place: Place, tmp_path: Path) -> None:
    path = place.install()
    (tmp_path / "page.html").write_text(f"<a href='{path.as_uri()}#sha256={'00' * 32}'>x</a>")
    found = place.one(index_url=(tmp_path / "none").as_uri(), find_links=str(tmp_path / "page.html"))
    assert found.hint.origin == "repacked"
    assert "other bytes than its index says" in found.why


def test_many_at_once_are_sorted(place: Place) -> None:
    names = [f"demo-{number}" for number in range(30)]
    for name in names:
        path = wheels.make(place.index.folder, name)
        wheels.install(path, place.prefix, name)
    found = place.identify()
    assert [one.wheel.name for one in found] == sorted(names)
    assert {one.hint.origin for one in found} == {"index"}


@pytest.mark.index
def test_a_real_package_of_the_configured_index(tmp_path: Path) -> None:
    """pip installs from what this machine is configured with, and we find the very wheel."""
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    pip = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        str(venv),
        "install",
        "--quiet",
        "--no-deps",
        "--only-binary=:all:",
        "iniconfig",
    ]
    done = subprocess.run(pip, check=False, capture_output=True, text=True)
    need(done.returncode == 0, f"an index that has iniconfig: {done.stderr[-300:]}")
    facts = python.interpret(str(venv), {})
    store = Store.open(tmp_path / "store")
    (found,), indexes = identify(distributions.scan(facts.layout).distributions, facts.layout, store=store, talk=Silent())
    assert indexes
    assert found.hint.origin in ("index", "carried")
    assert len(wheel.canonical(facts_of(found, store), facts.layout, name="iniconfig").entries) > 3
