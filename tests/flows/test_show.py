"""`show`: the page and the object of a spec, also of a hostile one, without touching what it names."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import msgspec
import pytest

from repro_env.cli import app
from repro_env.cli.page import Page
from repro_env.cli.sections import SECTIONS
from repro_env.flows.locate import locate
from repro_env.flows.rebuild import rebuild
from repro_env.flows.show import show
from repro_env.model import codec
from repro_env.model.accelerator import Accelerators, Device, Frameworks, Library, Threads
from repro_env.model.environment import Carried, Excluded, Git, SharedLibrary, SystemPackage, Variable, Variables
from repro_env.model.spec import Data, FileDigest, InstalledFrom, Notebook, Spec
from repro_env.model.talk import Silent
from repro_env.store.store import Store
from tests.fakes import specs, wheels

DIGEST = "sha256:" + "7" * 64


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "repro"


@pytest.fixture
def made(folder: Path, tmp_path: Path) -> Spec:
    paths = {name: wheels.make(tmp_path / "wheels", name) for name in ("alpha", "beta")}
    return specs.make(folder, paths, carry=["alpha"], overlay={"opt/env/pyvenv.cfg": b"x"})


def call(capsys: pytest.CaptureFixture[str], *words: str | Path) -> tuple[int, str, str]:
    code = app.run(["show", *map(str, words)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def full(made: Spec) -> Spec:
    """Every section has something to show."""
    source = made.observed.source
    assert source is not None
    git = Git(
        commit="0123456789abcdef", branch="main", remote="https://git.example.org/p", pushed="no", dirty=True, diff=DIGEST,
        untracked=("new.py",), submodules=("abc lib",),
    )  # fmt: skip
    observed = msgspec.structs.replace(
        made.observed,
        accelerators=Accelerators(
            devices=(
                Device(index=0, vendor="nvidia", name="H100", architecture="9.0", units=132, memory=80 * 10**9, partition="off",
                       ecc=True, uuid=None, unknown=("ecc: no permission",)),
            ),
            driver="550.54",
            newest="12.4",
        ),
        frameworks=Frameworks(
            torch="2.3.0", cuda="12.1", arch=("sm_90",), cpu_capability="AVX2", triton="2.3.0", needs_compiler=True,
            libraries=(Library(name="cublas", version="12.1.3", path="/x/libcublas.so.12", owner="wheel nvidia-cublas-cu12 12.1"),),
            threads=(Threads(library="openmp", count=8),),
        ),
        libraries=(
            SharedLibrary(path="/usr/lib/libssl.so.3", owner="deb libssl3 3.0.11", sha256=DIGEST),
            SharedLibrary(path="/opt/hpcx/libx.so", owner="", sha256=DIGEST),
        ),
        variables=Variables(replayed=(), recorded=(Variable(name="RANK", value="0"),), named=("AWS_PROFILE",)),
        system_packages=(SystemPackage(name="libc6", version="2.36"),),
        distributions=(
            InstalledFrom(name="alpha", version="1.0", installer="pip", requested=True, editable=False, direct_url=""),
            InstalledFrom(name="gamma", version="1", installer="uv", requested=False, editable=True, direct_url="file:///src/gamma"),
        ),
        carried=(Carried(name="alpha", version="1.0", why="from a local file", size=1234),),
        edited=("lib/x.py (alpha: changed)",),
        excluded=(Excluded(path="data", size=10**9, why="git-ignored"),),
        notes=("a note",),
        unknown=("something",),
        startup=msgspec.structs.replace(made.observed.startup, sys_path=("/home/ann/lib", "/opt/python/lib/python3.11")),
        source=msgspec.structs.replace(
            source,
            git=git,
            notebooks=(Notebook(path="a.ipynb", code=DIGEST, text=DIGEST, outputs=DIGEST, counts=DIGEST),),
            requirements=(FileDigest(path="requirements.txt", sha256=DIGEST),),
        ),
        data=(Data(path="/data/x", digest=DIGEST, files=3, size=10),),
        programs=("git",),
    )  # fmt: skip
    return msgspec.structs.replace(made, observed=observed)


def test_a_section_that_was_asked_for_is_never_silent(made: Spec, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert made.observed.edited == ()
    code, out, _ = call(capsys, folder, "--only", "edited", "--only", "code")
    assert code == 0
    assert "edited  nothing" in out.splitlines()
    assert "edited  nothing" not in call(capsys, folder)[1]


def test_the_page_says_what_matters(made: Spec, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "spec.json").write_bytes(codec.pretty(full(made)))
    code, out, err = call(capsys, folder)
    assert code == 0
    for text in (
        "venv at /home/ann/project/.venv", made.digest, "not in the store", "2: 1 downloadable, 1 bundled", "gamma 1 from file:///src/gamma",
        "alpha 1.0  1.2 kB  from a local file", "lib/x.py (alpha: changed)", "/home/ann/lib", "deb libssl3 3.0.11", "/opt/hpcx/libx.so",
        "H100 (9.0, 132 units, 80.0 GB, off)", "NVIDIA 550.54, CUDA up to 12.4", "2.3.0 (CUDA 12.1, AVX2)", "cublas  12.1.3", "openmp 8",
        "needed at run time", "commit 0123456789ab, on main, with uncommitted changes, not pushed", "new.py", "a.ipynb", "requirements.txt",
        "data  1.0 GB  git-ignored", "/data/x", "RANK=0", "1: AWS_PROFILE", "blobs  5 of 5 beside the spec", "a note", "something",
        "GPU 0 (H100): ecc: no permission",
    ):  # fmt: skip
        assert text in out, text
    assert err.splitlines() == ["next: repro-env rebuild"]


def test_every_section_by_its_name_and_in_json(made: Spec, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "spec.json").write_bytes(codec.pretty(full(made)))
    _, out, _ = call(capsys, folder, "--json")
    whole = json.loads(out)
    assert list(SECTIONS) == list(show(made, folder, None).__struct_fields__)
    assert set(whole) == set(SECTIONS)
    for name in SECTIONS:
        _, out, _ = call(capsys, folder, "--only", name)
        assert out.splitlines()[0].split()[0] == name
        assert "more (" not in out
        _, out, _ = call(capsys, folder, "--only", name, "--json")
        assert json.loads(out) == {name: whole[name]}
    assert whole["environment"]["spec_digest"] == full(made).digest
    assert whole["distributions"]["downloadable"] == 1
    assert [one["name"] for one in whole["distributions"]["all"]] == ["alpha", "beta"]
    assert whole["layers"][0] == {
        "kind": "base", "diff_id": made.identity.base.sha256, "size": made.identity.base.size, "holds": [], "stored": False,
    }  # fmt: skip


def test_an_unknown_section_is_refused(made: Spec, folder: Path) -> None:
    from repro_env.model.errors import UsageError

    with pytest.raises(UsageError, match="is no section"):
        app.run(["show", str(folder), "--only", "everything"])


def test_missing_blobs_are_named(made: Spec, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    specs.blob(folder, made.identity.base).unlink()
    code, out, err = call(capsys, folder)
    assert code == 0
    assert "blobs  4 of 5 beside the spec" in out
    assert "1 MISSING" in out
    assert "blobs/" in err
    shutil.rmtree(folder / "blobs")
    _, out, _ = call(capsys, folder, "--json", "--only", "blobs")
    assert not any(one["here"] for one in json.loads(out)["blobs"])


def test_an_image_that_was_rebuilt_is_known(made: Spec, tmp_path: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    carried = specs.make(tmp_path / "other", {"alpha": wheels.make(tmp_path / "wheels", "alpha")}, carry=["alpha"])
    rebuild(*locate(str(tmp_path / "other"), tmp_path), store=Store.open(), dry_run=False, tell=Silent())
    _, out, err = call(capsys, tmp_path / "other", "--json")
    shown = json.loads(out)
    assert shown["environment"]["image"] == "in the store"
    assert all(one["stored"] for one in shown["layers"])
    assert carried.digest == shown["environment"]["spec_digest"]
    _, _, err = call(capsys, tmp_path / "other")
    assert "repro-env check" in err


def test_without_a_store_the_spec_is_shown_all_the_same(
    made: Spec, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("REPRO_ENV_STORE", str(tmp_path / "file"))
    code, out, _ = call(capsys, folder)
    assert code == 0
    assert "cannot be used" in out


def test_nothing_that_a_strangers_spec_names_is_touched(
    made: Spec, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its source, data and python are a pipe: whoever opened it would hang."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    text = codec.pretty(full(made)).decode()
    for path in ("/home/ann/project/.venv/bin/python", "/home/ann/project", "/data/x", "/opt/hpcx/libx.so"):
        text = text.replace(f'"{path}"', f'"{pipe}"')
    (folder / "spec.json").write_text(text)
    before = pipe.stat().st_atime_ns
    code, out, _ = call(capsys, folder, "--all")
    assert (code, pipe.stat().st_atime_ns) == (0, before)
    assert str(pipe) in out


def test_a_spec_cannot_write_to_the_terminal(made: Spec, folder: Path) -> None:
    """C1 controls and marks that turn text around pass the model's patterns, and must not reach the screen."""
    evil = "x\x9b2J\x85\u202ey"
    changed = full(made)
    observed = msgspec.structs.replace(
        changed.observed,
        notes=(evil,),
        unknown=(evil,),
        edited=(evil,),
        carried=(Carried(name=evil, version=evil, why=evil),),
        system_packages=(SystemPackage(name=evil, version=evil),),
        host=msgspec.structs.replace(changed.observed.host, os=evil, cpu=evil, kernel=evil, compilers=(evil,)),
        accelerators=Accelerators(why=evil),
        frameworks=Frameworks(problem=evil, torch=evil, versions=(evil,)),
    )
    (folder / "spec.json").write_bytes(codec.pretty(msgspec.structs.replace(changed, observed=observed)))
    found, where = locate(str(folder), folder)
    for width in (None, 60):
        page = Page(width=width)
        for section in SECTIONS.values():
            section(show(found, where, None), page)
        text = "".join(page.lines)
        assert "\\x9b2J" in text
        assert not {char for char in text if char in "\x9b\x85\u202e" or ord(char) < 32}


def test_long_lists_are_cut_and_whole_with_all(made: Spec, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    many = tuple(f"lib/{number}.py (alpha: changed)" for number in range(100))
    changed = msgspec.structs.replace(made, observed=msgspec.structs.replace(made.observed, edited=many))
    (folder / "spec.json").write_bytes(codec.pretty(changed))
    _, out, _ = call(capsys, folder)
    assert "and 90 more (--only edited)" in out
    assert many[10] not in out
    _, out, _ = call(capsys, folder, "--all")
    assert many[-1] in out
