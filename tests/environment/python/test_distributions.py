"""Valid and invalid `.dist-info` directories."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from repro_env.environment.python.distributions import InstalledDistribution, project, scan
from repro_env.environment.python.interpreter import interpret
from repro_env.schema import codec, redact
from repro_env.schema.environment import Distribution, Interpretation
from tests.environment.python.environments import PLAIN, site_of
from tests.fakes import wheels


@pytest.fixture
def facts(venv: Path) -> Interpretation:
    return interpret(str(venv), PLAIN)


def install(venv: Path, name: str = "demo", version: str = "1.0", directory: str | None = None, **files: str | bytes) -> Path:
    """Write a `.dist-info` directory. `files`: its files by name, with `_` instead of a dot."""
    path = site_of(venv) / (directory or f"{name}-{version}.dist-info")
    path.mkdir()
    (path / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n\nName: readme\n")
    for file, content in files.items():
        data = content.encode() if isinstance(content, str) else content
        (path / file.replace("_json", ".json").replace("_txt", ".txt")).write_bytes(data)
    return path


def single(facts: Interpretation) -> InstalledDistribution:
    result = scan(facts.layout)
    assert result.problems == ()
    assert len(result.distributions) == 1
    return result.distributions[0]


def problem(facts: Interpretation) -> str:
    result = scan(facts.layout)
    assert result.distributions == ()
    assert len(result.problems) == 1
    return result.problems[0]


def test_reads_a_complete_distribution(facts: Interpretation, venv: Path) -> None:
    wheel = "Wheel-Version: 1.0\nBuild: 2\nTag: py3-none-any\nTag: py2-none-any\n"
    install(
        venv,
        "Demo.Pkg",
        "1.0+cpu",
        directory="demo_pkg-1.0+cpu.dist-info",
        WHEEL=wheel,
        RECORD="demo.py,,\n",
        INSTALLER="pip\n",
        REQUESTED="",
        entry_points_txt="[console_scripts]\nd = d:m\n",
    )
    site = site_of(venv).relative_to(venv).as_posix()
    found = single(facts)
    assert found == InstalledDistribution(
        facts=Distribution(
            name="demo-pkg",
            version="1.0+cpu",
            dist_info=f"{site}/demo_pkg-1.0+cpu.dist-info",
            site=site,
            tags=("py2-none-any", "py3-none-any"),
            build="2",
            direct_url="",
            editable=False,
            has_record=True,
        ),
        record=b"demo.py,,\n",
        wheel=wheel.encode(),
        entry_points=b"[console_scripts]\nd = d:m\n",
    )
    assert codec.decode(codec.canonical(found.facts), Distribution, where="") == found.facts
    assert scan(facts.layout) == scan(facts.layout)


def test_reads_a_distribution_with_only_metadata(facts: Interpretation, venv: Path) -> None:
    install(venv)
    found = single(facts)
    assert (found.facts.has_record, found.facts.tags, found.record) == (False, (), b"")


def test_a_missing_site_directory_has_no_distributions(facts: Interpretation, venv: Path) -> None:
    assert scan(facts.layout).distributions == ()
    site_of(venv).rmdir()
    assert scan(facts.layout).distributions == ()


def test_reads_what_pip_installs(facts: Interpretation, venv: Path, tmp_path: Path) -> None:
    """The expected values come from `importlib.metadata` of the environment itself."""
    built = [
        wheels.make(tmp_path / "wheels", "Demo-Pkg", "1.0+cpu"),
        wheels.make(tmp_path / "wheels", "other", entry_points="[console_scripts]\no = other:NAME\n"),
    ]
    pip = [sys.executable, "-m", "pip", "--python", str(venv / "bin" / "python"), "install", "--no-index", "--no-deps", "--quiet"]
    subprocess.run([*pip, *built], check=True, capture_output=True, env=PLAIN)
    ask = "import importlib.metadata as m; print(*sorted(f'{d.name.lower()}=={d.version}' for d in m.distributions()), sep='\\n')"
    listed = subprocess.run([venv / "bin" / "python", "-I", "-c", ask], check=True, capture_output=True, text=True).stdout.split()
    found = scan(facts.layout).distributions
    assert [f"{dist.facts.name}=={dist.facts.version}" for dist in found] == listed == ["demo-pkg==1.0+cpu", "other==1.0"]
    assert found[0].facts.direct_url == (tmp_path / "wheels" / built[0].name).as_uri()
    assert found[1].facts.tags == ("py3-none-any",)
    assert found[1].record == (venv / found[1].facts.dist_info / "RECORD").read_bytes()
    assert b"o = other:NAME" in found[1].entry_points


@pytest.mark.parametrize(
    ("document", "shown", "editable"),
    [
        ({"url": "https://u:p@example.org/d.whl", "archive_info": {}}, "https://example.org/d.whl", False),
        (
            {"url": "https://u:p@example.org/r.git", "vcs_info": {"vcs": "git", "commit_id": "abc"}, "subdirectory": "lib"},
            "git+https://example.org/r.git@abc#subdirectory=lib",
            False,
        ),
        ({"url": "file:///home/ann/my%20project", "dir_info": {"editable": True}}, "file:///home/ann/my%20project", True),
        ({"url": "file:///home/ann/p", "dir_info": {}}, "file:///home/ann/p", False),
    ],
)
def test_reads_direct_urls(facts: Interpretation, venv: Path, document: dict[str, object], shown: str, editable: bool) -> None:
    install(venv, direct_url_json=json.dumps(document))
    found = single(facts)
    assert (redact.line(redact.url(found.facts.direct_url)), found.facts.editable) == (shown, editable)
    assert project(found) == ("/home/ann/my project" if editable else "")


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"url": 1}', "[" * 100_000, "\udcff".encode("utf-8", "surrogateescape")])
def test_an_invalid_direct_url_is_a_problem(facts: Interpretation, venv: Path, text: str | bytes) -> None:
    install(venv, direct_url_json=text)
    assert "direct_url.json cannot be read" in problem(facts)


@pytest.mark.parametrize(
    ("name", "version", "reason"),
    [
        ("../../x", "1.0", "invalid name"),
        ("", "1.0", "invalid name"),
        ("demo\x1b[31m", "1.0", "invalid name"),
        ("café", "1.0", "invalid name"),
        ("a" * 300, "1.0", "invalid name"),
        ("demo", "", "invalid version"),
        ("demo", "1.0/../../x", "invalid version"),
        ("demo", "1.0 ; rm -rf", "invalid version"),
        ("other", "1.0", "differs from the directory's name"),
    ],
)
def test_invalid_metadata_is_a_problem(facts: Interpretation, venv: Path, name: str, version: str, reason: str) -> None:
    install(venv, name, version, directory="demo-1.0.dist-info")
    line = problem(facts)
    assert reason in line
    assert line.isprintable()


def test_only_the_head_of_the_metadata_is_read(facts: Interpretation, venv: Path) -> None:
    path = install(venv) / "METADATA"
    with path.open("ab") as file:
        file.truncate(50_000_000)
    assert single(facts).facts.version == "1.0"
    path.write_bytes(b"\xff\xfe\nname:  Demo \r\nVersion: 1.0\r\nVersion: 2.0\r\nSummary: caf\xe9\r\n\r\nName: no")
    assert (single(facts).facts.name, single(facts).facts.version) == ("demo", "1.0")
    path.write_bytes(b"x" * 2_000_000)
    assert "invalid name" in problem(facts)


@pytest.mark.parametrize("name", ["METADATA", "RECORD", "WHEEL", "direct_url.json", "entry_points.txt"])
def test_symlinks_pipes_and_directories_are_problems(facts: Interpretation, venv: Path, name: str) -> None:
    directory = install(venv)
    (directory / name).unlink(missing_ok=True)
    (directory / name).symlink_to("/etc/passwd")
    assert f"its {name} cannot be read: it is a symbolic link" in problem(facts)
    (directory / name).unlink()
    os.mkfifo(directory / name)
    assert f"its {name} cannot be read: it is a named pipe" in problem(facts)
    (directory / name).unlink()
    (directory / name).mkdir()
    assert f"its {name} cannot be read: it is a directory" in problem(facts)


def test_a_file_that_is_too_large_is_a_problem(facts: Interpretation, venv: Path) -> None:
    directory = install(venv, WHEEL="")
    os.truncate(directory / "WHEEL", 3_000_000)
    assert "its WHEEL cannot be read: it is larger than 1,048,576 bytes" in problem(facts)


def test_entries_that_are_not_distributions_are_problems(facts: Interpretation, venv: Path, tmp_path: Path) -> None:
    site = site_of(venv)
    (site / "file-1.0.dist-info").write_text("")
    (site / "empty-1.0.dist-info").mkdir()
    install(venv, "real").rename(tmp_path / "real")
    (site / "real-1.0.dist-info").symlink_to(tmp_path / "real")
    os.mkfifo(site / "pipe-1.0.dist-info")
    install(venv, "odd", directory="odd\n-1.0.dist-info")
    Path(os.fsdecode(os.fsencode(site) + b"/bad\xff-1.0.dist-info")).mkdir()
    install(venv, "~ip", "23.0", directory="~ip-23.0.dist-info")
    result = scan(facts.layout)
    assert result.distributions == ()
    assert [line.partition(": ")[2] for line in result.problems] == [
        "its name has characters that a spec cannot store",
        "it has no METADATA",
        "it is not a directory",
        "its name has characters that a spec cannot store",
        "it is not a directory",
        "it is not a directory",
        "its METADATA has an invalid name: '~ip'",
    ]


def test_two_distributions_with_the_same_name_are_not_used(facts: Interpretation, venv: Path) -> None:
    install(venv, "demo", "1.0")
    install(venv, "Demo", "2.0")
    install(venv, "other")
    result = scan(facts.layout)
    assert [dist.facts.name for dist in result.distributions] == ["other"]
    assert len(result.problems) == 2
    assert all("one of 2 directories that claim to be demo" in line for line in result.problems)


def test_purelib_and_platlib_may_be_different_directories(facts: Interpretation, venv: Path) -> None:
    install(venv)
    (venv / "lib64-own" / "site").mkdir(parents=True)
    install(venv, "plat").rename(venv / "lib64-own" / "site" / "plat-1.0.dist-info")
    split = msgspec.structs.replace(facts, layout=msgspec.structs.replace(facts.layout, platlib="lib64-own/site"))
    found = scan(split.layout).distributions
    assert [(dist.facts.name, dist.facts.site) for dist in found] == [("demo", facts.layout.purelib), ("plat", "lib64-own/site")]
    same = msgspec.structs.replace(
        facts, layout=msgspec.structs.replace(facts.layout, platlib="lib64/" + facts.layout.purelib[4:])
    )
    (venv / "lib64").unlink(missing_ok=True)
    (venv / "lib64").symlink_to("lib")
    assert [dist.facts.site for dist in scan(same.layout).distributions] == [facts.layout.purelib]
