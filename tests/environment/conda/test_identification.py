"""Compare real environments, made by rattler from a real channel, with the computed content of their packages, byte for byte.

rattler stands for pixi and for what mamba and conda do alike; conda and mamba themselves were not run. What conda writes
and rattler does not (md5 alone, `package_tarball_full_path`, other record names) is written by hand and says so.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from repro_env.environment import archives
from repro_env.environment.conda import identification as lock
from repro_env.environment.conda import metadata as capture
from repro_env.environment.python.distributions import Scan
from repro_env.environment.python.sites import Bytecode, Site
from repro_env.environment.secrets.bundles import SecretSearch
from repro_env.environment.wheels import composition
from repro_env.io.files import walk
from repro_env.oci import conda as rule
from repro_env.oci import wheellayers
from repro_env.oci.wheel import Installed
from repro_env.schema.environment import Bundled, Layout
from repro_env.schema.errors import CaptureError
from repro_env.schema.progress import Silent
from repro_env.store.packages import condafile
from repro_env.store.store import Store
from tests.fakes import conda
from tests.fakes.index import Index, configured

EVERYTHING = ["answer", "greet", "twin-a", "twin-b", "scripted", "older", "cuda-cudart", "pip"]

OWN = {"share/made-by-link", "__clobbers__/twin-b/share/twin.txt", "CACHEDIR.TAG", "conda-meta/history"}
"""Files in an environment of `EVERYTHING` that no package has: those of a link script, and those that rattler writes."""


@pytest.fixture(scope="module")
def made(conda_channel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with every package, from a `file:` channel. Tests must not change it."""
    directory = tmp_path_factory.mktemp("made")
    conda.install(directory / "env", conda_channel.as_uri(), EVERYTHING, cache=directory / "cache", scripts=True)
    return directory / "env"


@pytest.fixture
def env(made: Path, tmp_path: Path) -> Iterator[Path]:
    """The same environment at the same path, which the packages contain; tests may change it."""
    shutil.copytree(made, tmp_path / "kept", symlinks=True)
    yield made
    shutil.rmtree(made)
    shutil.move(tmp_path / "kept", made)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """The store for all tests of `made`: the content of a package at a prefix is computed once."""
    return Store.open(tmp_path_factory.mktemp("store"))


@pytest.fixture
def fresh() -> Store:
    return Store.open()


def layout(prefix: Path) -> Layout:
    directory = f"lib/python{conda.SHORT}/site-packages"
    return Layout(
        prefix=str(prefix),
        in_place=True,
        purelib=directory,
        platlib=directory,
        scripts="bin",
        headers=f"include/python{conda.SHORT}",
        python=str(prefix / "bin" / "python"),
    )


Answer = tuple[dict[str, archives.IdentifiedPackage], tuple[Bundled, ...]]


def site(prefix: Path, store: Store) -> Site:
    found = tuple(walk(prefix, skip=Bytecode(prefix)))
    return Site(0, layout(prefix), Scan((), ()), found, store.hashes.of(prefix, found))


def identify(prefix: Path, store: Store, environ: Mapping[str, str] | None = None) -> Answer:
    identified_packages, plain = lock.identify(
        capture.read(prefix), site(prefix, store), store=store, environ=environ or {}, tell=Silent()
    )
    return {identified.artifact.name: identified for identified in identified_packages}, plain


def installed(identified_packages: Mapping[str, archives.IdentifiedPackage], prefix: Path, store: Store) -> dict[str, Installed]:
    return {identified.artifact.key: identified.installed(layout(prefix), store) for identified in identified_packages.values()}


def compose(prefix: Path, identified_packages: Mapping[str, archives.IdentifiedPackage], store: Store) -> composition.Composition:
    return composition.compose([installed(identified_packages, prefix, store)], site(prefix, store), {})


def edit(prefix: Path, name: str, **more: Any) -> None:
    """Change a record; None removes a key."""
    (path,) = (prefix / "conda-meta").glob(f"{name}-[0-9]*.json")
    said = {key: value for key, value in (json.loads(path.read_text()) | more).items() if value is not None}
    path.write_text(json.dumps(said))


def test_every_linked_file_equals_rattlers(made: Path, store: Store) -> None:
    identified_packages, plain = identify(made, store)
    assert (sorted(identified_packages), plain) == (sorted(["python", *EVERYTHING]), ())
    live = {file.path: file for file in walk(made, skip=Bytecode(made))}
    hashes = store.hashes.of(made, tuple(live.values()))
    compared = 0
    claimed: set[str] = set()
    for name, identified in identified_packages.items():
        becomes = rule.canonical(identified.facts, layout(made))
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


def test_the_overlay_contains_shared_files_and_files_of_link_scripts(made: Path, store: Store) -> None:
    identified_packages, _ = identify(made, store)
    found = compose(made, identified_packages, store)
    below = {entry.path.removeprefix(f"{str(made).lstrip('/')}/"): entry for entry in found.overlay if entry.kind != "dir"}
    shown = (made / "share" / "twin.txt").read_text()
    assert set(below) == OWN | (
        {"share/twin.txt"} if shown != "b" else set()
    )  # the stack shows the package that is later by name


def test_archives_and_installed_files_give_the_same_layers(made: Path, store: Store) -> None:
    identified_packages, _ = identify(made, store)
    count = 0
    for identified in identified_packages.values():
        becomes = rule.canonical(identified.facts, layout(made))
        where = identified.path(store)
        with condafile.UnpackedPackage(where, identified.artifact.filename, str(made), store.temp) as package:
            contents = condafile.CondaContents(package, becomes)
            for entry in becomes.entries:
                if entry.kind == "file":
                    data = b"".join(contents.chunks(entry))
                    assert (hashlib.sha256(data).hexdigest(), len(data)) == (entry.sha256, entry.size)
                    count += 1
    assert count > 900
    assert not list(store.root.glob("temp/*"))


def test_a_second_identification_reads_no_archive(
    made: Path, store: Store, conda_channel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = identify(made, store)
    monkeypatch.setattr(condafile, "link", None)
    second, _ = identify(made, store)
    assert first == second


def test_packages_from_a_local_channel_are_bundled(made: Path, store: Store) -> None:
    identified_packages, _ = identify(made, store)
    assert {identified.why for identified in identified_packages.values()} == {
        "from a local file, which no other machine can reach"
    }
    assert {identified.hint.origin for identified in identified_packages.values()} == {"bundled"}
    assert all(Path(identified.file).is_file() for identified in identified_packages.values())


def test_packages_are_grouped_into_layers_like_wheels(made: Path, store: Store) -> None:
    identified_packages, _ = identify(made, store)
    groups = wheellayers.layers(installed(identified_packages, made, store))
    assert sorted(name for group in groups for name in group.names) == sorted(
        identified.artifact.key for identified in identified_packages.values()
    )
    assert len(groups) < len(identified_packages)


def test_edited_and_missing_files_are_listed(env: Path, store: Store) -> None:
    (env / "share" / "answer.txt").unlink()
    (env / "share" / "answer.txt").write_text("other")
    (env / "share" / "private.txt").unlink()
    (env / "lib" / "liblower.so").unlink()
    (env / "lib" / "liblower.so").symlink_to("libupper.so")
    identified_packages, plain = identify(env, store)
    assert not plain
    found = compose(env, identified_packages, store)
    assert [line for line in found.edited if "twin" not in line] == [
        "lib/liblower.so (answer: changed)",
        "share/answer.txt (answer: changed)",
        "share/private.txt (answer: missing)",
    ]
    root = str(env).lstrip("/")
    kinds = {entry.path.removeprefix(f"{root}/"): entry.kind for entry in found.overlay}
    assert (kinds["lib/liblower.so"], kinds["share/answer.txt"], kinds["share/private.txt"]) == ("link", "file", "gone")


def test_a_package_without_an_archive_becomes_plain_files_with_a_reason(env: Path, store: Store, tmp_path: Path) -> None:
    edit(env, "answer", url="file:///nowhere/linux-64/answer-1.0-0.tar.bz2")
    identified_packages, plain = identify(env, store)
    assert "answer" not in identified_packages
    (package,) = plain
    assert (package.name, package.version) == ("answer", "1.0")
    assert package.why == (
        "the archive is not in the package cache; it cannot be downloaded from its URL "
        "(file:///nowhere/linux-64/answer-1.0-0.tar.bz2): its files are bundled as plain files"
    )
    assert package.size > 10_000
    paths = {entry.path.removeprefix(f"{str(env).lstrip('/')}/") for entry in compose(env, identified_packages, store).overlay}
    assert {"bin/answer", "lib/liblower.so", "lib/liblower.so.1", "share/Müller 漢字.txt"} <= paths


def test_all_package_caches_are_searched(env: Path, store: Store, conda_channel: Path, tmp_path: Path) -> None:
    """The cache is constructed: rattler keeps no archives, but conda and mamba do."""
    cache = tmp_path / "pkgs"
    cache.mkdir()
    for path in conda_channel.glob("*/*-*-*.*"):
        shutil.copy(path, cache)
    for path in (env / "conda-meta").glob("*.json"):
        said = json.loads(path.read_text())
        name = said["fn"]
        said["url"] = f"file:///nowhere/{said['subdir']}/{name}"
        if name.startswith(("answer", "greet")):
            said["package_tarball_full_path"] = str(cache / name)
        if name.startswith("older"):
            del said["sha256"]
        path.write_text(json.dumps(said))
    identified_packages, plain = identify(env, store)
    assert {"answer", "greet"} <= set(identified_packages)
    identified_packages, plain = identify(env, store, {"CONDA_PKGS_DIRS": f"relative:{cache}"})
    assert not plain
    assert (
        identified_packages["older"].artifact.sha256
        == "sha256:" + hashlib.sha256((cache / identified_packages["older"].artifact.filename).read_bytes()).hexdigest()
    )


def test_an_unproven_archive_is_not_a_package(env: Path, store: Store) -> None:
    (path,) = (env / "conda-meta").glob("twin-a-*.json")
    before = path.read_text()
    changes: tuple[tuple[dict[str, Any], str], ...] = (
        ({"sha256": None, "md5": None}, "its record has no hash"),
        ({"sha256": "0" * 64}, "is a different file"),
        ({"sha256": None, "md5": "0" * 32}, "is a different file"),
        ({"size": 3}, "is a different file"),
        ({"url": None, "channel": None}, "none is recorded"),
        ({"url": "s3://bucket/linux-64/twin-a-1.0-0.conda"}, "it cannot be downloaded from its URL"),
        ({"build": "9"}, "contains twin-a 1.0 0"),
    )
    for more, why in changes:
        path.write_text(before)
        edit(env, "twin-a", **more)
        identified_packages, plain = identify(env, store)
        assert "twin-a" not in identified_packages
        assert why in plain[0].why


def test_a_secret_in_a_locally_built_package_is_found(tmp_path: Path, fresh: Store) -> None:
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
    identified_packages, plain = identify(prefix, fresh)
    assert not plain
    becomes = installed(identified_packages, prefix, fresh)
    search = SecretSearch((), fresh.facts)
    archives.search(search, list(identified_packages.values()), becomes, defaultdict(frozenset), [site(prefix, fresh)], fresh)
    with pytest.raises(CaptureError, match="contains a secret") as caught:
        search.raise_if_found()
    assert "leaky-1.0-0.conda/etc/leaky.conf: GitHub token (line 1)" in caught.value.hint
    declared = SecretSearch(("*leaky.conf",), fresh.facts)
    archives.search(declared, list(identified_packages.values()), becomes, defaultdict(frozenset), [site(prefix, fresh)], fresh)
    declared.raise_if_found()
    assert declared.notes


def test_a_damaged_archive_is_not_a_package(env: Path, store: Store, tmp_path: Path) -> None:
    bad = tmp_path / "twin-a-1.0-0.conda"
    bad.write_bytes(b"PK\x03\x04 and no more")
    edit(env, "twin-a", url=bad.as_uri(), sha256=hashlib.sha256(bad.read_bytes()).hexdigest(), size=None)
    identified_packages, plain = identify(env, store)
    assert "twin-a" not in identified_packages
    assert "the conda package cannot be read" in plain[0].why


@pytest.fixture(scope="module")
def served(conda_channel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment from a server under a name that another machine could reach (the proxy answers for it)."""
    directory = tmp_path_factory.mktemp("served")
    with Index(conda_channel) as index:
        conda.install(
            directory / "env", "http://conda.test/files", EVERYTHING, cache=directory / "cache", scripts=True, proxy=index.proxy
        )
    return directory / "env"


@pytest.fixture(scope="module")
def small(served: Path) -> Path:
    """The records of packages in it that do not need Python."""
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


def test_ranges_of_an_archive_are_enough(served: Path, fresh: Store, index: Index) -> None:
    identified_packages, plain = identify(served, fresh)
    assert not plain
    assert {identified.why for identified in identified_packages.values()} == {""}
    assert identified_packages["greet"].hint.urls == ("http://conda.test/files/noarch/greet-2.0-pyhd8ed1ab_0.conda",)
    assert identified_packages["greet"].hint.index == "http://conda.test/files"
    fetched = {request.path.rpartition("/")[2] for request in index.asked if request.status == 200}
    # Archives of the older format are read completely, and so is the package with a file that another package overwrote.
    shown = (served / "share" / "twin.txt").read_text()
    assert fetched == {"answer-1.0-0.tar.bz2", "older-1.0-0.tar.bz2", f"twin-{'a' if shown == 'b' else 'b'}-1.0-0.conda"}
    caches = os.pathsep.join(str(index.directory / name) for name in (conda.SUBDIR, "noarch"))
    whole, _ = identify(served, Store.open(fresh.root / "another"), {"CONDA_PKGS_DIRS": caches})
    for name, identified in identified_packages.items():
        assert rule.canonical(identified.facts, layout(served)) == rule.canonical(whole[name].facts, layout(served)), name


def test_a_server_without_ranges_is_supported(small: Path, fresh: Store, index: Index) -> None:
    index.ranges = False
    identified_packages, plain = identify(small, fresh)
    assert (len(identified_packages), plain) == (5, ())
    assert fresh.blobs.path(identified_packages["greet"].artifact.sha256)


def test_a_changed_mode_requires_the_archive(small: Path, fresh: Store, index: Index) -> None:
    changed = small / "share" / "scripted.txt"
    changed.chmod(0o755)
    identified_packages, _ = identify(small, fresh)
    changed.chmod(0o644)
    becomes = rule.canonical(identified_packages["scripted"].facts, layout(small))
    assert [entry.executable for entry in becomes.entries if entry.path == "share/scripted.txt"] == [False]
    assert any(request.path.endswith("scripted-1.0-0.conda") and request.status == 200 for request in index.asked)


def test_changed_modes_require_every_archive(small: Path, fresh: Store, index: Index) -> None:
    record = next((small / "conda-meta").glob("*.json"))
    record.chmod(0o755)
    identify(small, fresh)
    record.chmod(0o644)
    assert sum(request.path.endswith(".conda") and request.status == 200 for request in index.asked) == 5


def test_other_bytes_on_the_server_are_rejected(small: Path, fresh: Store, index: Index) -> None:
    index.ranges = False
    index.fail("twin-a-1.0-0.conda", "wrong", times=9)
    identified_packages, plain = identify(small, fresh)
    assert "twin-a" not in identified_packages
    assert "does not have the expected content" in plain[0].why


def test_packages_of_an_unreachable_channel_are_bundled(
    small: Path, fresh: Store, index: Index, conda_channel: Path, tmp_path: Path
) -> None:
    index.down.add("conda.test")
    _, plain = identify(small, fresh)
    assert len(plain) == 5
    assert "not in the package cache; http://conda.test/files/" in plain[0].why
    for path in conda_channel.glob("*/*-*-*.conda"):
        shutil.copy(path, tmp_path)
    identified_packages, plain = identify(small, fresh, {"CONDA_PKGS_DIRS": str(tmp_path)})
    assert not plain
    assert {identified.hint.origin for identified in identified_packages.values()} == {
        "bundled"
    }  # otherwise a rebuild would be impossible
    assert all(
        identified.why.startswith("the archive is available only from its URL, and ")
        for identified in identified_packages.values()
    )


def test_a_token_is_not_written_down(small: Path, fresh: Store, index: Index, conda_channel: Path) -> None:
    (path,) = (small / "conda-meta").glob("greet-*.json")
    before = path.read_text()
    token = "tk-0123456789-abcdef"
    edit(small, "greet", url=f"http://conda.test/t/{token}/files/noarch/greet-2.0-pyhd8ed1ab_0.conda")
    _, plain = identify(small, fresh)
    identified_packages, _ = identify(small, fresh, {"CONDA_PKGS_DIRS": str(conda_channel / "noarch")})
    path.write_text(before)
    assert (identified_packages["greet"].hint.urls, identified_packages["greet"].hint.origin) == ((), "bundled")
    assert identified_packages["greet"].why == "its URL holds a token or signature, which is not written down"
    assert token not in repr(identified_packages) + repr(plain)
