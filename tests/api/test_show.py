"""`show` prints a spec, also a hostile one, without opening the paths that it names."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path

import msgspec
import pytest

from repro_env.api.rebuild import rebuild
from repro_env.api.show import show
from repro_env.cli import app
from repro_env.cli.ui import specpage
from repro_env.cli.ui.page import Page
from repro_env.schema import codec
from repro_env.schema.artifact import CondaPackage
from repro_env.schema.environment import Bundled, Excluded, Git, SharedLibrary, SystemPackage, Variable, Variables
from repro_env.schema.frameworks import Device, Frameworks, Library, Threads
from repro_env.schema.progress import Silent
from repro_env.schema.spec import Data, InstalledFrom, Spec
from repro_env.specs.argument import Opened
from repro_env.store.specs.lookup import locate
from repro_env.store.store import Store
from tests.fakes import specs, wheels

DIGEST = "sha256:" + "7" * 64


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "repro"


@pytest.fixture
def made(directory: Path, tmp_path: Path) -> Spec:
    paths = {name: wheels.make(tmp_path / "wheels", name) for name in ("alpha", "beta")}
    return specs.make(directory, paths, carry=["alpha"], overlay={"opt/env/pyvenv.cfg": b"x"})


def call(capsys: pytest.CaptureFixture[str], *words: str | Path) -> tuple[int, str, str]:
    code = app.run(["show", *map(str, words)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def full(made: Spec) -> Spec:
    """Fill every section of a spec."""
    source = made.observed.source
    assert source is not None
    git = Git(
        commit="0123456789abcdef", branch="main", remote="https://git.example.org/p", dirty=True,
        untracked=("new.py",),
    )  # fmt: skip
    observed = msgspec.structs.replace(
        made.observed,
        host=msgspec.structs.replace(made.observed.host, gpus=("NVIDIA H100",), nvidia="550.54"),
        frameworks=Frameworks(
            devices=(Device(name="H100", architecture="9.0", units=132, memory=80 * 10**9),),
            torch="2.3.0", cpu_capability="AVX2",
            libraries=(Library(name="cublas", path="/x/libcublas.so.12", owner="wheel nvidia-cublas-cu12 12.1"),),
            threads=(Threads(library="openmp", count=8),),
        ),
        libraries=(
            SharedLibrary(path="/usr/lib/libssl.so.3", owner="deb libssl3 3.0.11", sha256=DIGEST),
            SharedLibrary(path="/opt/hpcx/libx.so", owner="", sha256=DIGEST),
        ),
        variables=Variables(replayed=(), recorded=(Variable(name="RANK", value="0"),), named=("AWS_PROFILE",)),
        system_packages=(SystemPackage(name="libc6", version="2.36"),),
        distributions=(
            InstalledFrom(name="alpha", version="1.0", editable=False, direct_url=""),
            InstalledFrom(name="gamma", version="1", editable=True, direct_url="file:///src/gamma"),
        ),
        bundled=(Bundled(name="alpha", version="1.0", why="from a local file", size=1234),),
        edited=("lib/x.py (alpha: changed)",),
        excluded=(Excluded(path="data", size=10**9, why="git-ignored"),),
        remarks=("a note",),
        unknown=("something",),
        startup=msgspec.structs.replace(made.observed.startup, sys_path=("/home/ann/lib", "/opt/python/lib/python3.11")),
        source=msgspec.structs.replace(
            source,
            git=git,
        ),
        data=(Data(path="/data/x", digest=DIGEST, files=3, size=10),),
        programs=("git",),
    )  # fmt: skip
    return msgspec.structs.replace(made, observed=observed)


def test_the_page_has_the_important_facts(made: Spec, directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (directory / "spec.json").write_bytes(codec.pretty(full(made)))
    code, out, err = call(capsys, directory)
    assert code == 0
    for text in (
        "venv at /home/ann/project/.venv", made.digest, "not in the store", "2: 1 downloadable, 1 bundled", "gamma 1 from file:///src/gamma",
        "alpha 1.0  1.2 kB  from a local file", "lib/x.py (alpha: changed)", "/home/ann/lib", "deb libssl3 3.0.11", "/opt/hpcx/libx.so",
        "NVIDIA H100", "NVIDIA 550.54", "H100 (9.0, 132 multiprocessors, 80.0 GB)", "2.3.0 (AVX2)", "cublas  wheel nvidia", "openmp 8",
        "commit 0123456789ab, on main, with uncommitted changes", "new.py",
        "data  1.0 GB  git-ignored", "/data/x", "RANK=0", "1: AWS_PROFILE", "blobs  5 of 5 next to the spec", "a note", "something",
    ):  # fmt: skip
        assert text in out, text
    assert err.splitlines() == [f"next: repro-env rebuild {directory}"]


def test_the_json_has_the_spec_and_the_state_of_its_files(
    made: Spec, directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (directory / "spec.json").write_bytes(codec.pretty(full(made)))
    _, out, _ = call(capsys, directory, "--json")
    everything = json.loads(out)
    assert everything["spec_digest"] == full(made).digest
    assert everything["spec"]["observed"]["edited"] == ["lib/x.py (alpha: changed)"]
    assert everything["layers"][0] == {
        "kind": "base", "diff_id": made.identity.base.sha256, "size": made.identity.base.size, "holds": [], "stored": False,
    }  # fmt: skip


def test_a_conda_package_does_not_change_the_layer_size_of_a_wheel_with_the_same_name(made: Spec, directory: Path) -> None:
    version = made.identity.distributions[0].version
    package = CondaPackage(
        name="alpha", version=version, build="0", subdir="noarch", filename="alpha-1.0-0.conda", sha256=DIGEST, size=10**6
    )
    both = msgspec.structs.replace(made, identity=msgspec.structs.replace(made.identity, packages=(package,)))
    assert show(Opened(both, directory)).layers == show(Opened(made, directory)).layers


def test_missing_blobs_are_named(made: Spec, directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    specs.blob(directory, made.identity.base).unlink()
    code, out, err = call(capsys, directory)
    assert code == 0
    assert "blobs  4 of 5 next to the spec" in out
    assert "1 MISSING" in out
    assert "blobs/" in err
    shutil.rmtree(directory / "blobs")
    _, out, _ = call(capsys, directory, "--json")
    assert not any(row["here"] for row in json.loads(out)["blobs"])


def test_a_rebuilt_image_is_in_the_store(made: Spec, tmp_path: Path, directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bundled = specs.make(tmp_path / "other", {"alpha": wheels.make(tmp_path / "wheels", "alpha")}, carry=["alpha"])
    rebuild(Opened(*locate(str(tmp_path / "other"), tmp_path)), store=Store.open(), dry_run=False, tell=Silent())
    _, out, err = call(capsys, tmp_path / "other", "--json")
    shown = json.loads(out)
    assert shown["image"] == "in the store"
    assert {layer["stored"] for layer in shown["layers"]} == {True}
    assert bundled.digest == shown["spec_digest"]
    _, _, err = call(capsys, tmp_path / "other")
    assert "repro-env exec --spec" in err


def test_a_spec_is_shown_without_a_store(
    made: Spec, directory: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("REPRO_ENV_STORE", str(tmp_path / "file"))
    code, out, _ = call(capsys, directory)
    assert code == 0
    assert "cannot be used" in out


def test_no_path_that_an_untrusted_spec_names_is_opened(
    made: Spec, directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its source, data and Python are a named pipe, which would block if it were opened."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    text = codec.pretty(full(made)).decode()
    for path in ("/home/ann/project/.venv/bin/python", "/home/ann/project", "/data/x", "/opt/hpcx/libx.so"):
        text = text.replace(f'"{path}"', f'"{pipe}"')
    (directory / "spec.json").write_text(text)
    before = pipe.stat().st_atime_ns
    code, out, _ = call(capsys, directory, "--all")
    assert (code, pipe.stat().st_atime_ns) == (0, before)
    assert str(pipe) in out


def test_a_spec_cannot_write_to_the_terminal(made: Spec, directory: Path) -> None:
    """C1 control characters and bidirectional marks are valid in a spec, and must not reach the terminal."""
    evil = "x\x9b2J\x85\u202ey"
    changed = full(made)
    observed = msgspec.structs.replace(
        changed.observed,
        remarks=(evil,),
        unknown=(evil,),
        edited=(evil,),
        bundled=(Bundled(name=evil, version=evil, why=evil),),
        system_packages=(SystemPackage(name=evil, version=evil),),
        host=msgspec.structs.replace(changed.observed.host, os=evil, cpu=evil, kernel=evil, gpus=(evil,)),
        frameworks=Frameworks(problem=evil, torch=evil, unknown=(evil,)),
    )
    (directory / "spec.json").write_bytes(codec.pretty(msgspec.structs.replace(changed, observed=observed)))
    found = show(str(directory))
    page = Page()
    specpage.add(found, page)
    for text in ("".join(page.lines), re.sub(r"\x1b\[[01]m|\n", "", page.drawn(60))):
        assert "\\x9b2J" in text
        assert not {char for char in text if char in "\x9b\x85\u202e" or ord(char) < 32}


def test_long_lists_are_cut_unless_all_is_given(made: Spec, directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    many = tuple(f"lib/{number}.py (alpha: changed)" for number in range(100))
    changed = msgspec.structs.replace(made, observed=msgspec.structs.replace(made.observed, edited=many))
    (directory / "spec.json").write_bytes(codec.pretty(changed))
    _, out, _ = call(capsys, directory)
    assert "and 90 more (--all shows them)" in out
    assert many[10] not in out
    _, out, _ = call(capsys, directory, "--all")
    assert many[-1] in out
