"""Installed distributions are proven against real indexes on this machine, and bundled if nothing proves them."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from repro_env.environment.archives import IdentifiedWheel
from repro_env.environment.python import distributions, interpreter
from repro_env.environment.wheels.identification import identify
from repro_env.oci import wheel
from repro_env.schema.environment import Interpretation
from repro_env.schema.errors import ArtifactError, NetworkError
from repro_env.schema.progress import Silent
from repro_env.schema.sources import NONE, LockedFile, PackageSources
from repro_env.store.store import Store
from tests.fakes import specs, wheels
from tests.fakes.index import Index, configured
from tests.fakes.messages import Messages
from tests.parts import need

MIRROR = "http://mirror-a.test/simple"
POINTS = "[console_scripts]\ndemo = demo:main\n"


class Installation:
    """A prefix with distributions, and the index that offers them."""

    def __init__(self, directory: Path, index: Index, patch: pytest.MonkeyPatch) -> None:
        self.prefix = directory / "venv"
        (self.prefix / "lib/python3.11/site-packages").mkdir(parents=True)
        self.index = index
        self.store = Store.open(directory / "store")
        self.said = Messages()
        self._patch = patch

    @property
    def site(self) -> Path:
        return self.prefix / "lib/python3.11/site-packages"

    @property
    def facts(self) -> Interpretation:
        return specs._facts(self.prefix)

    def install(self, name: str = "demo", files: Mapping[str, bytes] | None = None, *, tag: str = "py3-none-any") -> Path:
        """Add a wheel to the index and install it."""
        path = wheels.make(self.index.directory, name, files=files, entry_points=POINTS, tag=tag)
        wheels.install(path, self.prefix, name)
        return path

    def direct(self, url: str, more: Mapping[str, object] | None = None) -> None:
        (self.site / "demo-1.0.dist-info/direct_url.json").write_text(json.dumps({"url": url, **(more or {"archive_info": {}})}))

    def identify(self, named: PackageSources = NONE, **options: str) -> tuple[IdentifiedWheel, ...]:
        self.index.asked.clear()
        options = {"index_url": MIRROR, "proxy": self.index.proxy, "retries": "0"} | options
        with configured(self._patch, **options):
            return identify(
                distributions.scan(self.facts.layout).distributions,
                self.facts.layout,
                store=self.store,
                tell=self.said,
                sources=named,
            )

    def identified(self, named: PackageSources = NONE, **options: str) -> IdentifiedWheel:
        (found,) = self.identify(named, **options)
        return found


@pytest.fixture
def installation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Installation]:
    with Index(tmp_path / "wheels") as index:
        yield Installation(tmp_path, index, monkeypatch)


def test_an_index_without_the_wheel_is_queried_again(installation: Installation) -> None:
    path = installation.install()
    hidden = path.rename(path.with_suffix(".hidden"))
    assert installation.identified().hint.origin == "repacked"
    hidden.rename(path)
    assert installation.identified().hint.origin == "index"


def digest(path: Path) -> str:
    return "sha256:" + hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize("as_json", [True, False])
def test_a_wheel_is_proven_by_ranges_and_then_cached(installation: Installation, as_json: bool) -> None:
    installation.index.json = as_json
    path = installation.install(
        files={"demo/__init__.py": b"def main(): pass\n", "demo-1.0.data/scripts/tool": b"#!python\nprint(1)\n"}
    )
    found = installation.identified()
    assert (found.artifact.sha256, found.artifact.size, found.artifact.filename) == (digest(path), path.stat().st_size, path.name)
    assert (found.hint.origin, found.hint.index, found.why, found.file) == ("index", MIRROR, "", "")
    assert found.hint.urls == (f"http://mirror-a.test/files/{path.name}",)
    assert [request.status for request in installation.index.asked] == [200, 206]
    assert installation.identified() == found
    assert installation.index.asked == []


@pytest.mark.parametrize("missing", ["hashes", "ranges", "tails"])
def test_a_wheel_is_proven_whatever_the_index_supports(installation: Installation, missing: str) -> None:
    path = installation.install()
    setattr(installation.index, missing, False)
    found = installation.identified()
    assert (found.artifact.sha256, found.hint.origin, found.why) == (digest(path), "index", "")
    assert installation.identified() == IdentifiedWheel(found.artifact, found.hint, found.facts, "", "")


def test_a_damaged_store_only_costs_time(installation: Installation) -> None:
    installation.install()
    found = installation.identified()
    for path in (installation.store.root / "facts").rglob("*"):
        if path.is_file():
            path.write_bytes(b"damaged")
    assert installation.identified() == found


def test_the_whole_wheel_is_downloaded_on_demand(installation: Installation) -> None:
    path = installation.install()
    found = installation.identified()
    with configured(installation._patch, proxy=installation.index.proxy):
        assert found.path(installation.store).read_bytes() == path.read_bytes()
        installation.index.asked.clear()
        assert found.path(installation.store).read_bytes() == path.read_bytes()
    assert installation.index.asked == []


def test_the_digest_of_the_whole_wheel_is_verified(installation: Installation) -> None:
    installation.install()
    found = installation.identified()
    installation.index.fail(".whl", "wrong")
    with (
        configured(installation._patch, proxy=installation.index.proxy),
        pytest.raises(ArtifactError, match="does not have the expected content"),
    ):
        found.path(installation.store)


def test_a_wheel_with_the_same_name_but_other_files_is_not_used(installation: Installation) -> None:
    installation.install()
    imposter = wheels.make(installation.index.directory, "demo", files={"demo.py": b"steal()\n"}, entry_points=POINTS)
    found = installation.identified()
    assert (found.hint.origin, found.hint.urls) == ("repacked", ())
    assert "the installed files differ from " in found.why
    assert "lib/python3.11/site-packages/demo.py differs" in found.why
    assert found.artifact.sha256 != digest(imposter)
    assert str(found.path(installation.store)) == found.file


@pytest.mark.parametrize("files", [{}, {"demo.py": b"NAME = 'demo'\n", "more.py": b""}])
def test_a_wheel_with_fewer_or_more_files_is_not_used(installation: Installation, files: dict[str, bytes]) -> None:
    installation.install()
    wheels.make(installation.index.directory, "demo", files=files, entry_points=POINTS)
    assert installation.identified().hint.origin == "repacked"


def test_a_wheel_with_another_script_is_not_used(installation: Installation) -> None:
    installation.install()
    wheels.make(installation.index.directory, "demo", entry_points=POINTS + "other = demo:main\n")
    assert installation.identified().hint.origin == "repacked"


def test_files_that_installers_add_are_ignored(installation: Installation) -> None:
    path = installation.install()
    record = installation.site / "demo-1.0.dist-info/RECORD"
    added = "__pycache__/demo.cpython-311.pyc,,\ndemo-1.0.dist-info/REQUESTED,,\ndemo-1.0.dist-info/uv_cache.json,,\n"
    absolute = f"{installation.prefix}/bin/demo3,,\n"
    record.write_text(record.read_text() + added + absolute)
    assert installation.identified().artifact.sha256 == digest(path)


def test_a_wheel_that_lacks_a_listed_file_is_not_used(installation: Installation) -> None:
    installation.install()
    record = installation.site / "demo-1.0.dist-info/RECORD"
    record.write_text(record.read_text() + "extra.py,,\n")
    found = installation.identified()
    assert found.hint.origin == "repacked"
    assert "lib/python3.11/site-packages/extra.py is not in the wheel" in found.why
    assert "extra.py: missing" in found.why


def test_a_renamed_wheel_is_proven(installation: Installation) -> None:
    path = installation.install(tag="cp311-cp311-linux_x86_64")
    renamed = path.rename(path.with_name("demo-1.0-cp311-cp311-manylinux_2_17_x86_64.whl"))
    assert installation.identified().artifact.filename == renamed.name


def test_the_index_of_a_wheel_is_recorded(installation: Installation) -> None:
    installation.install()
    installation.index.fail("/demo/", 404)
    assert installation.identified(extra_index_url="http://mirror-b.test/simple").hint.index == "http://mirror-b.test/simple"


def test_a_file_in_a_lock_file_is_a_candidate(installation: Installation, tmp_path: Path) -> None:
    path = installation.install()
    empty = (tmp_path / "empty").as_uri()
    url = f"http://files.test/files/{path.name}"
    sha256 = digest(path).removeprefix("sha256:")
    assert installation.identified(index_url=empty).hint.origin == "repacked"
    other = LockedFile(url.replace("files.test", "gone.test"), "0" * 64, "")
    installation.index.down.add("gone.test")
    named = PackageSources(files={"demo": (other, LockedFile(url, sha256, "http://torch.test/whl")), "x": (other,)})
    found = installation.identified(named, index_url=empty)
    assert (found.hint.origin, found.hint.urls, found.hint.index) == ("index", (url,), "http://torch.test/whl")
    assert (found.artifact.sha256, found.why) == (digest(path), "")


def test_a_file_in_a_lock_file_must_match_the_installed_files(installation: Installation, tmp_path: Path) -> None:
    installation.install()
    imposter = wheels.make(installation.index.directory, "demo", files={"demo.py": b"steal()\n"}, entry_points=POINTS)
    locked = LockedFile(f"http://files.test/files/{imposter.name}", digest(imposter).removeprefix("sha256:"), "")
    found = installation.identified(PackageSources(files={"demo": (locked,)}), index_url=(tmp_path / "empty").as_uri())
    assert found.hint.origin == "repacked"
    assert "lib/python3.11/site-packages/demo.py differs" in found.why


def test_an_unreachable_index_is_an_error(installation: Installation) -> None:
    installation.install()
    installation.index.down.add("mirror-a.test")
    with pytest.raises(NetworkError):
        installation.identified()
    assert installation.identified(extra_index_url="http://mirror-b.test/simple").hint.index == "http://mirror-b.test/simple"


def test_a_refusing_index_is_named(installation: Installation) -> None:
    installation.install()
    installation.index.fail("/demo/", 403)
    assert f"{MIRROR} answered with status 403" in installation.identified().why


def test_a_distribution_on_no_index_is_repacked(installation: Installation) -> None:
    path = installation.install()
    path.unlink()
    found = installation.identified()
    assert (found.hint.origin, found.why) == ("repacked", "no configured index has a wheel of this version")


def test_a_wheel_from_an_index_of_this_machine_is_bundled(installation: Installation) -> None:
    path = installation.install()
    found = installation.identified(index_url=installation.index.url)
    assert (found.hint.origin, found.hint.urls, found.artifact.sha256) == ("bundled", (), digest(path))
    assert "of this machine" in found.why
    assert Path(found.file).read_bytes() == path.read_bytes()
    again = installation.identified(index_url=installation.index.url)
    assert again == found
    assert installation.index.asked == []


def test_a_wheel_from_find_links_is_bundled_as_the_original_file(installation: Installation, tmp_path: Path) -> None:
    path = installation.install()
    local = path.rename(tmp_path / path.name)
    found = installation.identified(find_links=str(tmp_path))
    assert (found.hint.origin, found.file, found.artifact.sha256) == ("bundled", str(local), digest(local))
    assert installation.identified(find_links=str(tmp_path)) == found
    assert installation.index.asked == []
    local.write_bytes(local.read_bytes() + b"\0")
    changed = installation.identified(find_links=str(tmp_path))
    assert changed.artifact.sha256 == digest(local)
    local.unlink()
    assert installation.identified(find_links=str(tmp_path)).hint.origin == "repacked"


def test_a_wheel_that_was_installed_by_its_path_does_not_depend_on_when_and_with_which_umask_it_was_built(
    installation: Installation, tmp_path: Path
) -> None:
    path = file = installation.install()
    found = set()
    for number, mode in enumerate((0o100644, 0o100600, 0o100664)):
        built = tmp_path / str(number) / path.name
        built.parent.mkdir()
        with (
            zipfile.ZipFile(path) as original,
            zipfile.ZipFile(built, "w", zipfile.ZIP_DEFLATED, compresslevel=1 + number) as copy,
        ):
            for member in original.infolist()[:: -1 if number == 1 else 1]:
                header = zipfile.ZipInfo(member.filename, (2000 + number, 1, 1, 0, 0, 0))
                header.external_attr = (mode | member.external_attr >> 16 & 0o111) << 16
                header.compress_type = zipfile.ZIP_DEFLATED
                copy.writestr(header, original.read(member))
        installation.direct(built.as_uri())
        identified = installation.identified(index_url=(tmp_path / "none").as_uri())
        assert identified.hint.origin == "bundled"
        assert digest(Path(identified.file)) == identified.artifact.sha256
        file = Path(identified.file)
        found.add((identified.artifact, tuple(sorted(identified.facts.files))))
    assert len(found) == 1
    with zipfile.ZipFile(file) as wheel_file:
        assert wheel_file.testzip() is None


def test_a_downloadable_wheel_is_preferred_to_a_local_copy(installation: Installation, tmp_path: Path) -> None:
    path = installation.install()
    (tmp_path / path.name).write_bytes(path.read_bytes())
    assert installation.identified(find_links=str(tmp_path)).hint.origin == "index"


def test_a_direct_url_comes_first(installation: Installation) -> None:
    path = installation.install()
    installation.direct(f"http://ann:secret@files.test/files/{path.name}")
    found = installation.identified()
    assert (found.hint.origin, found.hint.index) == ("direct", "")
    assert found.hint.urls == (f"http://files.test/files/{path.name}",)
    assert found.artifact.sha256 == digest(path)


def test_a_wheel_whose_direct_url_is_unreachable_is_repacked(installation: Installation) -> None:
    path = installation.install()
    installation.direct("http://files.test/files/other/demo-1.0-py3-none-any.whl")
    away = path.rename(installation.prefix / path.name)
    found = installation.identified()
    assert found.hint.origin == "repacked"
    assert "the file does not exist on the server (status 404)" in found.why
    away.rename(path)
    assert installation.identified().hint.origin == "index"


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
def test_editable_and_vcs_installs_are_not_searched(
    installation: Installation, url: str, more: dict[str, object], says: str
) -> None:
    installation.install()
    installation.direct(url, more)
    found = installation.identified()
    assert (found.hint.origin, found.why) == ("repacked", says)
    assert installation.index.asked == []


def test_a_distribution_without_record_stays_plain_files(installation: Installation) -> None:
    installation.install()
    (installation.site / "demo-1.0.dist-info/RECORD").unlink()
    assert installation.identify() == ()
    assert installation.said.lines == ["demo 1.0 has no RECORD: its files are bundled as plain files"]


def test_wrong_bytes_do_not_prove_a_wheel(installation: Installation) -> None:
    installation.install()
    installation.index.ranges = False
    installation.index.fail(".whl", "wrong", times=9)
    found = installation.identified()
    assert found.hint.origin == "repacked"
    assert "does not have the expected content" in found.why


def test_a_hostile_wheel_is_not_used(installation: Installation) -> None:
    path = installation.install()
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("../../etc/passwd", "x")
    found = installation.identified()
    assert found.hint.origin == "repacked"
    assert "passwd" in found.why
    path.write_bytes(b"PK" + bytes(100))
    assert installation.identified().hint.origin == "repacked"


def test_examined_candidates_are_not_downloaded_again(installation: Installation) -> None:
    """Without a proof, the pages are requested again; the contents of the candidates are cached."""
    installation.install()
    wheels.make(installation.index.directory, "demo", files={"demo.py": b"another"}, entry_points=POINTS)
    first = installation.identified()
    assert [request.status for request in installation.index.asked] == [200, 206]
    assert installation.identified() == first
    assert [request.status for request in installation.index.asked] == [200]


def test_a_wrong_hash_on_one_index_does_not_affect_another(installation: Installation, tmp_path: Path) -> None:
    """Facts from ranges of a URL are used only for that URL."""
    path = installation.install()
    other = wheels.make(tmp_path / "other", "demo", files={"demo.py": b"another"}, entry_points=POINTS)
    lie = f"<a href='http://liar.test/files/{path.name}#sha256={digest(other)[7:]}'>x</a>"
    (tmp_path / "page.html").write_text(lie)
    none = (tmp_path / "none").as_uri()
    wrong = installation.identified(index_url=none, find_links=str(tmp_path / "page.html"))
    assert wrong.artifact.sha256 == digest(other), "accepted until the rebuild, which fails because of other bytes"
    found = installation.identified(index_url=none, find_links=str(tmp_path / "other"))
    assert found.hint.origin == "repacked"


def test_a_signed_url_is_not_written_down(installation: Installation, tmp_path: Path) -> None:
    path = installation.install()
    link = f"http://files.test/files/{path.name}?X-Amz-Signature={'ab' * 32}#sha256={digest(path)[7:]}"
    (tmp_path / "page.html").write_text(f"<a href='{link}'>x</a>")
    found = installation.identified(index_url=(tmp_path / "none").as_uri(), find_links=str(tmp_path / "page.html"))
    assert (found.hint.origin, found.hint.urls) == ("bundled", ())
    assert "signature" in found.why
    assert Path(found.file).is_file()
    assert "Signature" not in repr(found)


def test_a_local_wheel_with_a_wrong_hash_is_rejected(installation: Installation, tmp_path: Path) -> None:
    path = installation.install()
    (tmp_path / "page.html").write_text(f"<a href='{path.as_uri()}#sha256={'00' * 32}'>x</a>")
    found = installation.identified(index_url=(tmp_path / "none").as_uri(), find_links=str(tmp_path / "page.html"))
    assert found.hint.origin == "repacked"
    assert "differs from the sha256 in its index" in found.why


def test_many_distributions_are_sorted_by_name(installation: Installation) -> None:
    names = [f"demo-{number}" for number in range(30)]
    for name in names:
        path = wheels.make(installation.index.directory, name)
        wheels.install(path, installation.prefix, name)
    found = installation.identify()
    assert [identified.artifact.name for identified in found] == sorted(names)
    assert {identified.hint.origin for identified in found} == {"index"}


@pytest.mark.index
def test_a_package_that_pip_installed_is_identified(tmp_path: Path) -> None:
    """pip installs from the configured index, and the same wheel is identified."""
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
    facts = interpreter.interpret(str(venv), {})
    store = Store.open(tmp_path / "store")
    (found,) = identify(distributions.scan(facts.layout).distributions, facts.layout, store=store, tell=Silent())
    assert found.hint.origin in ("index", "bundled")
    assert len(wheel.canonical(found.facts, facts.layout, name="iniconfig").entries) > 3
