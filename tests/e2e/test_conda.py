"""Conda environments through the installed command: captured, taken away with their channel and caches, rebuilt, compared.

Made by rattler from a channel built here (`tests.fakes.conda`). conda and mamba themselves were not run.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.e2e import parts
from tests.fakes import conda, wheels
from tests.fakes.index import Index

PACKAGES = ["answer", "greet", "twin-a", "twin-b", "scripted", "older", "cuda-cudart", "pip"]
LOOK = """
import hashlib, json, os, sys
entries = {}
for directory, directories, files in os.walk(sys.prefix):
    hooks = "python%d%d.zip" % sys.version_info[:2]  # a run's own, where no environment has anything
    directories[:] = sorted(name for name in directories if name not in ("__pycache__", hooks))
    for name in directories + files:
        path = os.path.join(directory, name)
        inside = os.path.relpath(path, sys.prefix)
        if os.path.islink(path):
            entries[inside] = "-> " + os.readlink(path)
        elif os.path.isfile(path):
            with open(path, "rb") as file:
                entries[inside] = "%s %s" % (hashlib.sha256(file.read()).hexdigest(), os.access(path, os.X_OK))
        elif not os.listdir(path):
            entries[inside] = "directory"
print(json.dumps([entries, sys.path[1:], sys.prefix, sys.executable]))
"""
MADE = {"bin/pip", "bin/pip3", "bin/greet", "conda-meta/history"}
"""By our own rule, beside records."""


class Ground:
    """A project, its environment beside it, and a channel that can go."""

    def __init__(self, root: Path, channel: Path) -> None:
        self.root = root
        self.prefix = root / "env"
        self.channel = root / "channel"
        self.cache = root / "cache"
        shutil.copytree(channel, self.channel)
        self.project = parts.project(root / "project", self.prefix / "bin" / "python", root / "store")
        (self.project.directory / "look.py").write_text(LOOK)

    def look(self) -> list[Any]:
        """What the environment is on the host."""
        done = subprocess.run(
            [self.project.python, "look.py"],
            cwd=self.project.directory,
            capture_output=True,
            check=True,
            env={"PATH": os.environ["PATH"]},
        )
        entries: list[Any] = json.loads(done.stdout)
        return entries

    def pip(self, *words: str | Path, index: Index) -> None:
        own = {"PIP_INDEX_URL": "http://index.test/simple", "PIP_PROXY": index.proxy, "PIP_CONFIG_FILE": os.devnull}
        run = [self.project.python, "-m", "pip", "install", "-qq", "--disable-pip-version-check", "--no-cache-dir", *words]
        subprocess.run(
            run, check=True, env={**own, "PATH": os.environ["PATH"], "PIP_TRUSTED_HOST": "index.test", "HOME": str(self.root)}
        )

    def take_away(self, *more: Path) -> None:
        """Everything that the other machine would not have."""
        for path in (self.prefix, self.channel, self.cache, *more):
            path.rename(path.with_name(f"{path.name}.away"))

    def rebuilt(self, env: Mapping[str, str]) -> list[Any]:
        """What it is in an image that an empty store was filled with."""
        there = self.project.elsewhere(self.root / f"store-{len(list(self.root.glob('store*')))}")
        spec = json.loads((self.project.directory / "repro" / "spec.json").read_text())
        assert there.rebuild(env=env) == spec["expected"]["image_id"]
        entries: list[Any] = json.loads(there.run("exec", "python", "look.py", env=env).out)
        return entries


def compare(before: list[Any], after: list[Any], *, made: set[str] = MADE) -> None:
    """Every file and symlink and the whole `sys.path`; of what is made by our rule, that it is there."""
    there, here = before[0], after[0]
    own = made | {path for path in there if path.startswith("conda-meta/") and path.endswith(".json")}
    assert len(there) > 600
    assert set(here) - set(there) <= own
    assert set(there) - set(here) <= own
    assert {path: there[path] for path in there if path not in own} == {path: here[path] for path in here if path not in own}
    assert after[1:] == before[1:]


@pytest.fixture(scope="module")
def ground(conda_channel: Path, tmp_path_factory: pytest.TempPathFactory) -> Ground:
    """Everything in one environment: a `file:` channel, pip's packages in it, and what people do to environments."""
    made = Ground(tmp_path_factory.mktemp("conda"), conda_channel)
    conda.install(made.prefix, made.channel.as_uri(), PACKAGES, cache=made.cache, scripts=True)
    return made


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    directory = tmp_path / "wheels"
    wheels.make(directory, "extra", "1.5", entry_points="[console_scripts]\nextra = extra:NAME\n")
    wheels.make(
        directory, "greet", "3.0", {"greet/__init__.py": b"def main(): print('greetings by pip')\n", "greet/more.py": b"X = 1\n"}
    )
    with Index(directory, yanked=False) as index:
        yield index


def surroundings(index: Index) -> dict[str, str]:
    return {
        "PIP_INDEX_URL": "http://index.test/simple",
        "PIP_PROXY": index.proxy,
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_TRUSTED_HOST": "index.test",
        "PIP_RETRIES": "1",
    }


def test_a_changed_conda_environment_is_rebuilt_completely(ground: Ground, index: Index) -> None:
    """In one environment, since making one takes long: each line below is a case of its own."""
    site = ground.prefix / "lib" / f"python{conda.SHORT}" / "site-packages"
    ground.pip("extra", index=index)
    ground.pip("greet==3.0", index=index)  # over the conda package, whose record stays
    (ground.prefix / "share" / "answer.txt").unlink()
    (ground.prefix / "share" / "answer.txt").write_text("edited: ")
    (ground.prefix / "share" / "private.txt").unlink()
    (ground.prefix / "share" / "empty").mkdir()
    (ground.prefix / "lib" / "liblower.so").unlink()
    (ground.prefix / "lib" / "liblower.so").symlink_to("liblower.so.1")
    (site / "stray.py").write_text("STRAY = True\n")
    (ground.prefix / "conda-meta" / "pinned").write_text("python 3.*\n")
    (ground.prefix / "conda-meta" / "history").write_text(
        "==> 2026-01-01 <==\n# cmd: conda install https://conda.test/t/tk-123-secret/main\n"
    )
    (ground.prefix / "conda-meta" / "state").write_text('{"env_vars": {"MY_API": "planted-secret-value"}, "version": 1}')
    before = ground.look()
    ground.project.capture(env=surroundings(index))
    spec = json.loads((ground.project.directory / "repro" / "spec.json").read_text())
    identity, observed = spec["identity"], spec["observed"]
    assert [package["name"] for package in identity["packages"]] == sorted(["python", *PACKAGES])
    assert [distribution["name"] for distribution in identity["distributions"]] == ["extra", "greet"]
    assert identity["interpreter"]["tree"] is None
    assert observed["kind"] == "conda"
    shown = (ground.prefix / "share" / "twin.txt").read_text()
    edited = [line for line in observed["edited"] if "(greet: " not in line]
    assert edited == [
        "share/answer.txt (answer: changed)",
        "share/private.txt (answer: missing)",
        *(["share/twin.txt (twin-b: changed)"] if shown == "a" else []),
    ]
    for path in (ground.project.directory / "repro").rglob("*"):
        assert not path.is_file() or b"planted-secret-value" not in path.read_bytes(), path
    assert "tk-123-secret" not in json.dumps(spec)
    ground.take_away()
    after = ground.rebuilt(surroundings(index))
    for path in (ground.project.directory / "repro" / "blobs").iterdir():
        if path.name == identity["packages"][0]["sha256"].removeprefix("sha256:"):
            kept = path.read_bytes()
            path.write_bytes(kept[:-9] + b"x" * 9)
            bad = ground.project.elsewhere(ground.root / "bad-blob").run("rebuild", env=surroundings(index), code=11)
            assert "answer-1.0-0.tar.bz2" in parts.one_sentence(bad)
            path.write_bytes(kept)
            break
    else:
        pytest.fail("no blob of the package")
    compare(before, after, made={*MADE, "bin/extra", "conda-meta/state", *_by_installers(before[0])})
    for store in ("store-1", "store-2"):
        there = ("--output", f"oci:{ground.root / 'layout'}:{store}", "--json")
        sent = json.loads(ground.project.elsewhere(ground.root / store).run("rebuild", *there, env=surroundings(index)).out)
        assert sent["image_id"] == spec["expected"]["image_id"]
    index_of = json.loads((ground.root / "layout" / "index.json").read_bytes())
    assert len({manifest["digest"] for manifest in index_of["manifests"]}) == 1
    image = ground.project.elsewhere(ground.root / "store-1")
    run = "import answer, greet, stray; print(answer.text(), answer.NAMED); greet.main()"
    assert image.python_says(run, env=surroundings(index)) == f"edited: 42 {ground.prefix}\ngreetings by pip\n"
    for words, out in ((["where.sh"], f"{ground.prefix}\n"), (["older"], "older\n"), (["answer"], "edited: 42\n")):
        assert image.run("exec", *words, env=surroundings(index)).out == out


def _by_installers(paths: Mapping[str, str]) -> set[str]:
    own = ("extra-1.5.dist-info/", "greet-3.0.dist-info/")
    return {path for path in paths if any(entry in path for entry in own) and path.endswith(("RECORD", "INSTALLER", "REQUESTED"))}


class TestServer:
    @pytest.fixture
    def served(self, conda_channel: Path, tmp_path: Path) -> Iterator[tuple[Ground, Index]]:
        ground = Ground(tmp_path, conda_channel)
        with Index(ground.channel) as index:
            conda.install(
                ground.prefix,
                "http://conda.test/files",
                ["answer", "greet", "cuda-cudart"],
                cache=ground.cache,
                proxy=index.proxy,
            )
            yield ground, index

    def test_packages_of_a_server_are_downloadable(self, served: tuple[Ground, Index], tmp_path: Path) -> None:
        ground, index = served
        env = {
            **surroundings(index),
            "CONDA_PREFIX": str(ground.prefix),
            "CONDA_DEFAULT_ENV": "ml",
            "CUDA_HOME": str(ground.prefix),
        }
        before = ground.look()
        json.loads(ground.project.run("capture", "--json", env=env).out)
        spec = json.loads((ground.project.directory / "repro" / "spec.json").read_text())
        assert spec["identity"]["layout"]["prefix"] == str(ground.prefix)
        assert {package["origin"] for package in spec["hints"]["packages"]} == {"direct"}
        held = {variable["name"]: variable["value"] for variable in spec["identity"]["config"]["env"]}
        assert (held["CONDA_PREFIX"], held["CONDA_DEFAULT_ENV"], held["CUDA_HOME"]) == (
            str(ground.prefix),
            "ml",
            str(ground.prefix),
        )
        explicit = (ground.project.directory / "repro" / "conda-explicit.txt").read_text().splitlines()
        assert "@EXPLICIT" in explicit
        assert sum(line.startswith("http://conda.test/files/") for line in explicit) == 4
        assert not {line for line in spec["observed"]["bundled"] if line["name"] in ("answer", "greet", "python")}
        ground.prefix.rename(tmp_path / "away")
        ground.cache.rename(tmp_path / "cache-away")
        index.asked.clear()
        after = ground.rebuilt(surroundings(index))
        compare(before, after)
        assert {request.path.rpartition("/")[2] for request in index.asked if request.status == 200} >= {
            "answer-1.0-0.tar.bz2",
            "greet-2.0-pyhd8ed1ab_0.conda",
        }
        where = ground.project.elsewhere(ground.root / "store-1").python_says(
            "import os; print(os.environ['CUDA_HOME'])", env=env
        )
        assert where == f"{ground.prefix}\n"
        index.fail("greet-2.0-pyhd8ed1ab_0.conda", "wrong", times=9)
        other = ground.project.elsewhere(tmp_path / "store-other").run("rebuild", env=env, code=11)
        assert "greet-2.0-pyhd8ed1ab_0.conda" in parts.one_sentence(other)

    def test_packages_of_a_channel_that_is_gone_are_bundled(self, served: tuple[Ground, Index], tmp_path: Path) -> None:
        """No archive is to be had anywhere: every file is a plain file, and the reason is told."""
        ground, index = served
        index.down.add("conda.test")
        before = ground.look()
        env = surroundings(index)
        ground.project.capture(env=env)
        spec = json.loads((ground.project.directory / "repro" / "spec.json").read_text())
        assert spec["identity"]["packages"] == []
        reasons = {bundled["name"]: bundled["why"] for bundled in spec["observed"]["bundled"]}
        assert "the archive is not in the package cache; http://conda.test/files/" in reasons["answer"]
        assert reasons["answer"].endswith(": its files are bundled as plain files")
        assert not (ground.project.directory / "repro" / "conda-explicit.txt").exists()
        ground.take_away()
        after = ground.rebuilt(env)
        compare(before, after, made={"conda-meta/history"})
