"""Real environments, made by rattler from a real channel, against what we say their packages become: byte for byte.

rattler stands for pixi and for what mamba and conda do alike; conda and mamba themselves were not run. What conda writes
and rattler does not (md5 alone, `package_tarball_full_path`, other record names) is written by hand and says so.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from repro_env.capture import conda as capture
from repro_env.capture.distributions import Scan
from repro_env.image import conda as rule
from repro_env.image import stack
from repro_env.image.wheel import Installed
from repro_env.io.files import walk
from repro_env.lock import compose
from repro_env.lock import conda as lock
from repro_env.lock.places import Place
from repro_env.lock.search import Search
from repro_env.model.environment import Carried, Layout
from repro_env.model.errors import CaptureError
from repro_env.model.talk import Silent
from repro_env.store import condafile
from repro_env.store.store import Store
from tests.fakes import conda
from tests.fakes.index import Index, configured

EVERYTHING = ["answer", "greet", "twin-a", "twin-b", "scripted", "older", "cuda-cudart", "pip"]

OWN = {"share/made-by-link", "__clobbers__/twin-b/share/twin.txt", "CACHEDIR.TAG", "conda-meta/history"}
"""What is in an environment of `EVERYTHING` and in none of its packages: a link script's file, and what rattler writes."""


@pytest.fixture(scope="module")
def made(conda_channel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with every package, from a `file:` channel. Not to be changed."""
    folder = tmp_path_factory.mktemp("made")
    conda.install(folder / "env", conda_channel.as_uri(), EVERYTHING, cache=folder / "cache", scripts=True)
    return folder / "env"


@pytest.fixture
def env(made: Path, tmp_path: Path) -> Iterator[Path]:
    """The same, to be changed: at the same path, since the packages hold it."""
    shutil.copytree(made, tmp_path / "kept", symlinks=True)
    yield made
    shutil.rmtree(made)
    shutil.move(tmp_path / "kept", made)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """One for all tests of `made`: what a package becomes at a prefix is found out once."""
    return Store.open(tmp_path_factory.mktemp("store"))


@pytest.fixture
def fresh() -> Store:
    return Store.open()


def layout(prefix: Path) -> Layout:
    site = f"lib/python{conda.SHORT}/site-packages"
    return Layout(
        prefix=str(prefix),
        in_place=True,
        purelib=site,
        platlib=site,
        scripts="bin",
        headers=f"include/python{conda.SHORT}",
        python=str(prefix / "bin" / "python"),
    )


Answer = tuple[dict[str, lock.Identified], tuple[Carried, ...]]


def identify(prefix: Path, store: Store, environ: Mapping[str, str] | None = None) -> Answer:
    found = tuple(walk(prefix, skip=compose.Bytecode(prefix)))
    place = Place(0, layout(prefix), Scan((), ()), found, store.hashes.of(prefix, found), state="", settled=False)
    done, plain = lock.identify(capture.read(prefix), place, store=store, environ=environ or {}, tell=Silent())
    return {one.package.name: one for one in done}, plain


def installed(done: Mapping[str, lock.Identified], prefix: Path) -> dict[str, Installed]:
    return {one.package.key: rule.canonical(one.facts, layout(prefix)) for one in done.values()}


def composition(prefix: Path, done: Mapping[str, lock.Identified], store: Store) -> compose.Composition:
    found = tuple(walk(prefix, skip=compose.Bytecode(prefix)))
    return compose.compose(
        [installed(done, prefix)],
        found,
        store.hashes.of(prefix, found),
        root=str(prefix).lstrip("/"),
        held={},
        read=lambda path: (prefix / path).read_bytes(),
        starts=lambda python: True,
    )


def edit(prefix: Path, name: str, **more: Any) -> None:
    """Change a record; None takes a key away."""
    (path,) = (prefix / "conda-meta").glob(f"{name}-[0-9]*.json")
    said = {key: value for key, value in (json.loads(path.read_text()) | more).items() if value is not None}
    path.write_text(json.dumps(said))


def test_every_file_is_what_rattler_linked(made: Path, store: Store) -> None:
    done, plain = identify(made, store)
    assert (sorted(done), plain) == (sorted(["python", *EVERYTHING]), ())
    live = {one.path: one for one in walk(made, skip=compose.Bytecode(made))}
    hashes = store.hashes.of(made, tuple(live.values()))
    compared = 0
    claimed: set[str] = set()
    for name, one in done.items():
        becomes = rule.canonical(one.facts, layout(made))
        for entry in becomes.entries:
            claimed.add(entry.path)
            if entry.path in becomes.literals or entry.path == "share/twin.txt":
                continue
            there = live[entry.path]
            assert (there.kind, there.executable, there.target) == (entry.kind, entry.executable, entry.target), entry.path
            assert entry.kind != "file" or (there.size, hashes[entry.path]) == (entry.size, entry.sha256), f"{name}: {entry.path}"
            compared += 1
    assert compared > 900
    files = {path for path, there in live.items() if there.kind != "dir"}
    assert files - claimed == OWN


def test_the_overlay_holds_what_two_packages_own_and_what_a_script_made(made: Path, store: Store) -> None:
    done, _ = identify(made, store)
    found = composition(made, done, store)
    below = {entry.path.removeprefix(f"{str(made).lstrip('/')}/"): entry for entry in found.overlay if entry.kind != "dir"}
    shown = (made / "share" / "twin.txt").read_text()
    assert set(below) == OWN | ({"share/twin.txt"} if shown != "b" else set())  # our stack shows the later by name


def test_the_archive_gives_the_same_bytes(made: Path, store: Store) -> None:
    done, _ = identify(made, store)
    count = 0
    for one in done.values():
        becomes = rule.canonical(one.facts, layout(made))
        where = lock.whole(one, store)
        with condafile.Unpacked(where, one.package.filename, str(made), store.temp) as package:
            contents = condafile.CondaContents(package, becomes)
            for entry in becomes.entries:
                if entry.kind == "file":
                    data = b"".join(contents.chunks(entry))
                    assert (hashlib.sha256(data).hexdigest(), len(data)) == (entry.sha256, entry.size)
                    count += 1
    assert count > 900
    assert not list(store.root.glob("temp/*"))


def test_a_second_look_reads_no_archive(made: Path, store: Store, conda_channel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, _ = identify(made, store)
    monkeypatch.setattr(condafile, "link", None)
    second, _ = identify(made, store)
    assert first == second


def test_packages_of_a_folder_are_carried(made: Path, store: Store) -> None:
    done, _ = identify(made, store)
    assert {one.why for one in done.values()} == {"from a local file, which no other machine can reach"}
    assert {one.hint.origin for one in done.values()} == {"carried"}
    assert all(one.file and one.file.is_file() for one in done.values())


def test_packages_are_few_layers_by_the_rule_for_wheels(made: Path, store: Store) -> None:
    done, _ = identify(made, store)
    groups = stack.layers(installed(done, made))
    assert sorted(name for group in groups for name in group.names) == sorted(one.package.key for one in done.values())
    assert len(groups) < len(done)


def test_an_edited_and_a_missing_file_are_named(env: Path, store: Store) -> None:
    (env / "share" / "answer.txt").unlink()
    (env / "share" / "answer.txt").write_text("other")
    (env / "share" / "private.txt").unlink()
    (env / "lib" / "liblower.so").unlink()
    (env / "lib" / "liblower.so").symlink_to("libupper.so")
    done, plain = identify(env, store)
    assert not plain
    found = composition(env, done, store)
    assert [line for line in found.edited if "twin" not in line] == [
        "lib/liblower.so (answer: changed)",
        "share/answer.txt (answer: changed)",
        "share/private.txt (answer: missing)",
    ]
    root = str(env).lstrip("/")
    kinds = {entry.path.removeprefix(f"{root}/"): entry.kind for entry in found.overlay}
    assert (kinds["lib/liblower.so"], kinds["share/answer.txt"], kinds["share/private.txt"]) == ("link", "file", "gone")


def test_an_archive_that_is_gone_leaves_plain_files_and_a_reason(env: Path, store: Store, tmp_path: Path) -> None:
    edit(env, "answer", url="file:///nowhere/linux-64/answer-1.0-0.tar.bz2")
    done, plain = identify(env, store)
    assert "answer" not in done
    (one,) = plain
    assert (one.name, one.version) == ("answer", "1.0")
    assert (
        one.why
        == "/nowhere/linux-64/answer-1.0-0.tar.bz2 is gone, and it is not in the package cache: its files are carried as they are"
    )
    assert one.size > 10_000
    paths = {entry.path.removeprefix(f"{str(env).lstrip('/')}/") for entry in composition(env, done, store).overlay}
    assert {"bin/answer", "lib/liblower.so", "lib/liblower.so.1", "share/Müller 漢字.txt"} <= paths


def test_a_package_cache_is_found_wherever_it_is(env: Path, store: Store, conda_channel: Path, tmp_path: Path) -> None:
    """Constructed: rattler keeps no archives, conda and mamba do."""
    cache = tmp_path / "pkgs"
    cache.mkdir()
    for path in conda_channel.glob("*/*-*-*.*"):
        shutil.copy(path, cache)
    for path in (env / "conda-meta").glob("*.json"):
        said = json.loads(path.read_text())
        name = said["fn"]
        said["url"] = f"file:///nowhere/{said['subdir']}/{name}"
        if name.startswith("answer"):
            said["package_tarball_full_path"] = str(cache / name)
        if name.startswith("greet"):
            said["extracted_package_dir"] = str(cache / rule.stem(name))
        if name.startswith("older"):
            del said["sha256"]
        path.write_text(json.dumps(said))
    done, plain = identify(env, store)
    assert {"answer", "greet"} <= set(done)
    done, plain = identify(env, store, {"CONDA_PKGS_DIRS": f"relative:{cache}"})
    assert not plain
    assert (
        done["older"].package.sha256
        == "sha256:" + hashlib.sha256((cache / done["older"].package.filename).read_bytes()).hexdigest()
    )


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"sha256": None, "md5": None}, "its record names no hash"),
        ({"sha256": "0" * 64}, "is another file now"),
        ({"sha256": None, "md5": "0" * 32}, "is another file now"),
        ({"size": 3}, "is another file now"),
        ({"url": None, "channel": None}, "its record names no URL"),
        ({"url": "s3://bucket/linux-64/twin-a-1.0-0.conda"}, "cannot be fetched"),
        ({"build": "9"}, "which its file name does not say|holds twin-a 1.0 0"),
    ],
)
def test_what_is_not_proven_is_no_package(env: Path, store: Store, more: dict[str, Any], why: str) -> None:
    edit(env, "twin-a", **more)
    done, plain = identify(env, store)
    assert "twin-a" not in done
    assert re.search(why, plain[0].why), plain


def test_a_secret_in_a_package_that_was_built_here_is_found(tmp_path: Path, fresh: Store) -> None:
    token = "ghp_" + "a1B2c3D4e5" * 4
    path = conda.write(conda.Package("leaky", {"etc/leaky.conf": conda.text(f"token = {token}\n", placeholder=False)}), tmp_path)
    prefix = tmp_path / "env"
    (prefix / "conda-meta").mkdir(parents=True)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    said = {
        "name": "leaky",
        "version": "1.0",
        "build": "0",
        "subdir": conda.SUBDIR,
        "url": path.as_uri(),
        "fn": path.name,
        "sha256": digest,
    }
    (prefix / "conda-meta" / "leaky-1.0-0.json").write_text(json.dumps(said))
    done, plain = identify(prefix, fresh)
    assert not plain
    becomes = installed(done, prefix)
    search = Search((), fresh.facts)
    lock.search(search, list(done.values()), becomes, prefix, fresh)
    with pytest.raises(CaptureError, match="holds a secret") as caught:
        search.refuse()
    assert "leaky-1.0-0.conda/etc/leaky.conf: GitHub token (line 1)" in caught.value.hint
    declared = Search(("*leaky.conf",), fresh.facts)
    lock.search(declared, list(done.values()), becomes, prefix, fresh)
    declared.refuse()
    assert declared.notes


def test_a_damaged_archive_is_no_package(env: Path, store: Store, tmp_path: Path) -> None:
    bad = tmp_path / "twin-a-1.0-0.conda"
    bad.write_bytes(b"PK\x03\x04 and no more")
    edit(env, "twin-a", url=bad.as_uri(), sha256=hashlib.sha256(bad.read_bytes()).hexdigest(), size=None)
    done, plain = identify(env, store)
    assert "twin-a" not in done
    assert "is not a conda package that can be read" in plain[0].why


@pytest.fixture(scope="module")
def served(conda_channel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment from a server that goes by a name that another machine could reach (the proxy answers for it)."""
    folder = tmp_path_factory.mktemp("served")
    with Index(conda_channel) as index:
        conda.install(
            folder / "env", "http://conda.test/files", EVERYTHING, cache=folder / "cache", scripts=True, proxy=index.proxy
        )
    return folder / "env"


@pytest.fixture(scope="module")
def small(served: Path) -> Path:
    """Of the same, the records of packages that need no Python."""
    kept = served.parent / "kept"
    kept.mkdir()
    for path in (served / "conda-meta").glob("*.json"):
        if not path.name.startswith(("twin", "scripted", "cuda", "greet")):
            path.rename(kept / path.name)
    return served


@pytest.fixture
def index(conda_channel: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    with Index(conda_channel) as index, configured(monkeypatch, proxy=index.proxy, index_url="http://conda.test/simple"):
        yield index


def test_parts_of_an_archive_are_enough(served: Path, fresh: Store, index: Index) -> None:
    done, plain = identify(served, fresh)
    assert not plain
    assert {one.why for one in done.values()} == {""}
    assert done["greet"].hint.urls == ("http://conda.test/files/noarch/greet-2.0-pyhd8ed1ab_0.conda",)
    assert done["greet"].hint.index == "http://conda.test/files"
    fetched = {one.path.rpartition("/")[2] for one in index.asked if one.status == 200}
    # The older kind has to be read whole, and so has the one whose file another package's lies over.
    shown = (served / "share" / "twin.txt").read_text()
    assert fetched == {"answer-1.0-0.tar.bz2", "older-1.0-0.tar.bz2", f"twin-{'a' if shown == 'b' else 'b'}-1.0-0.conda"}
    caches = os.pathsep.join(str(index.folder / name) for name in (conda.SUBDIR, "noarch"))
    whole, _ = identify(served, Store.open(fresh.root / "another"), {"CONDA_PKGS_DIRS": caches})
    for name, one in done.items():
        assert rule.canonical(one.facts, layout(served)) == rule.canonical(whole[name].facts, layout(served)), name


def test_a_server_that_gives_no_parts(small: Path, fresh: Store, index: Index) -> None:
    index.ranges = False
    done, plain = identify(small, fresh)
    assert (len(done), plain) == (5, ())
    assert fresh.blobs.path(done["greet"].package.sha256)


def test_a_mode_that_was_changed_has_the_archive_asked(small: Path, fresh: Store, index: Index) -> None:
    changed = small / "share" / "scripted.txt"
    changed.chmod(0o755)
    done, _ = identify(small, fresh)
    changed.chmod(0o644)
    becomes = rule.canonical(done["scripted"].facts, layout(small))
    assert [entry.executable for entry in becomes.entries if entry.path == "share/scripted.txt"] == [False]
    assert any(one.path.endswith("scripted-1.0-0.conda") and one.status == 200 for one in index.asked)


def test_all_modes_changed_has_every_archive_asked(small: Path, fresh: Store, index: Index) -> None:
    record = next((small / "conda-meta").glob("*.json"))
    record.chmod(0o755)
    identify(small, fresh)
    record.chmod(0o644)
    assert sum(one.path.endswith(".conda") and one.status == 200 for one in index.asked) == 5


def test_other_bytes_on_the_server_are_refused(small: Path, fresh: Store, index: Index) -> None:
    index.ranges = False
    index.fail("twin-a-1.0-0.conda", "wrong", times=9)
    done, plain = identify(small, fresh)
    assert "twin-a" not in done
    assert "gave other bytes than expected" in plain[0].why


def test_a_channel_that_is_gone(small: Path, fresh: Store, index: Index, conda_channel: Path, tmp_path: Path) -> None:
    index.down.add("conda.test")
    _, plain = identify(small, fresh)
    assert len(plain) == 5
    assert "not in the package cache, and http://conda.test/files/" in plain[0].why
    for path in conda_channel.glob("*/*-*-*.conda"):
        shutil.copy(path, tmp_path)
    done, plain = identify(small, fresh, {"CONDA_PKGS_DIRS": str(tmp_path)})
    assert not plain
    assert {one.hint.origin for one in done.values()} == {"carried"}  # or nobody could rebuild it
    assert all(one.why.startswith("only its URL is known, and ") for one in done.values())


def test_a_token_is_not_written_down(small: Path, fresh: Store, index: Index, conda_channel: Path) -> None:
    (path,) = (small / "conda-meta").glob("greet-*.json")
    before = path.read_text()
    token = "tk-0123456789-abcdef"
    edit(small, "greet", url=f"http://conda.test/t/{token}/files/noarch/greet-2.0-pyhd8ed1ab_0.conda")
    _, plain = identify(small, fresh)
    done, _ = identify(small, fresh, {"CONDA_PKGS_DIRS": str(conda_channel / "noarch")})
    path.write_text(before)
    assert (done["greet"].hint.urls, done["greet"].hint.origin) == ((), "carried")
    assert done["greet"].why == "its URL holds a token or signature, which is not written down"
    assert token not in repr(done) + repr(plain)
