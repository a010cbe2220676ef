"""The Dockerfile as a product: `docker build` needs an engine and a copied directory, and nothing else."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import http.server
import json
import os
import re
import secrets
import shutil
import subprocess
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from repro_env.delivery.documents import dockerfile
from repro_env.io import engine
from repro_env.oci import config, tar
from repro_env.oci.entry import Entry, sort_with_parents
from repro_env.oci.wheel import Installed, canonical
from repro_env.oci.wheellayers import move_below
from repro_env.schema.artifact import Wheel
from repro_env.schema.spec import Spec, read
from repro_env.store.packages.wheelfile import open_facts
from repro_env.store.specs.blobs import SpecBlobs
from repro_env.store.store import Store
from tests.e2e import parts
from tests.parts import need
from tests.sandbox import engines

NAME = f"repro-env-test-dockerfile-{secrets.token_hex(4)}"
KEPT: list[str] = []
"""Images without a name that the classic builder made on the way."""


class SpecDirectory:
    """A spec's directory with every wheel in its `blobs/`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.spec: Spec = read((path / "spec.json").read_bytes(), where="spec.json")
        self.wheels = {
            wheel.filename: path / "blobs" / wheel.sha256.removeprefix("sha256:") for wheel in self.spec.identity.distributions
        }

    def form_of(self, artifact: Wheel) -> Installed:
        facts = open_facts(self.wheels[artifact.filename], artifact.filename)
        return canonical(facts, self.spec.identity.layout_of(artifact), name=artifact.name)

    def build(self, tag: str, *words: str, code: int = 0) -> str:
        """`docker build`, by the classic builder: the one that every engine has. What it printed."""
        done = subprocess.run(
            ["docker", "build", "--force-rm", "--tag", f"{NAME}:{tag}", *words, str(self.path)],
            env={**os.environ, "DOCKER_BUILDKIT": "0"},
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        output = done.stdout + done.stderr
        KEPT.extend(re.findall(r"^ ---> ([0-9a-f]{12})$", output, re.MULTILINE))
        assert (done.returncode == 0) == (code == 0), output
        return output


@pytest.fixture(scope="module")
def opened() -> Iterator[engine.Engine]:
    need(shutil.which("docker") and engines.answers(), "a Docker engine: apt-get install docker.io, and dockerd running")
    with engine.connect() as opened:
        yield opened
        for image in opened.client.api.images(name=NAME):
            for tag in image["RepoTags"] or ():
                with contextlib.suppress(Exception):
                    opened.client.api.remove_image(tag, force=True)
        for image in reversed(KEPT):
            with contextlib.suppress(Exception):
                opened.client.api.remove_image(image)


@pytest.fixture(scope="module")
def directory(small: parts.Project, opened: engine.Engine, tmp_path_factory: pytest.TempPathFactory) -> SpecDirectory:
    """The bundle file that `pack --all` writes, extracted."""
    place = tmp_path_factory.mktemp("dockerfile")
    small.run("pack", "repro", place / "all.tar", "--all")
    (place / "copied").mkdir()
    subprocess.run(["tar", "-xf", place / "all.tar", "-C", place / "copied"], check=True)
    return SpecDirectory(place / "copied")


def copied(directory: SpecDirectory, to: Path) -> SpecDirectory:
    shutil.copytree(directory.path, to)
    return SpecDirectory(to)


def read_files(image: str, archive: Path) -> dict[str, tuple[object, ...]]:
    """Return kind, mode, owner, digest and target of everything that the layers of an image in the engine show together."""
    subprocess.run(["docker", "save", "--output", archive, image], check=True)
    found: dict[str, tuple[object, ...]] = {}
    with tarfile.open(archive) as saved:
        manifest = saved.extractfile("manifest.json")
        assert manifest is not None
        for name in json.load(manifest)[0]["Layers"]:
            with tarfile.open(fileobj=saved.extractfile(name)) as layer:
                for info in layer:
                    assert not Path(info.name).name.startswith(".wh."), "no layer removes a path"
                    content = layer.extractfile(info) if info.isreg() else None
                    sha256 = hashlib.sha256(content.read()).hexdigest() if content is not None else ""
                    mode = 0 if info.issym() else info.mode & 0o7777
                    found[info.name.rstrip("/")] = (info.type, mode, info.uid, info.gid, sha256, info.linkname)
    return found


def describe(entry: Entry) -> tuple[object, ...]:
    """Return what has to be as captured: everything but times."""
    kind = {"file": tarfile.REGTYPE, "dir": tarfile.DIRTYPE, "link": tarfile.SYMTYPE}[entry.kind]
    return kind, 0 if entry.kind == "link" else tar.mode(entry), 0, 0, entry.sha256, entry.target


def test_the_directory_of_the_spec_is_enough_to_build_the_captured_image(
    directory: SpecDirectory, small: parts.Project, opened: engine.Engine, tmp_path: Path
) -> None:
    """From scratch, with an empty build cache and without network; then every path and setting is compared."""
    output = directory.build("directory", "--no-cache", "--network", "none")
    assert "paths are as captured" in output
    store = Store.open(small.store)
    source = directory.spec.observed.source
    assert source is not None
    root = source.path.lstrip("/")
    blobs = SpecBlobs(directory.path / "blobs")
    code_entries = blobs.entries(source.tree, store.facts)
    own_entries = dockerfile.image_entries(directory.spec, blobs, store, directory.form_of)
    entries = sort_with_parents([*(move_below(entry, root) for entry in code_entries), *own_entries])
    wanted = {entry.path: describe(entry) for entry in entries}
    result = read_files(f"{NAME}:directory", tmp_path / "image.tar")
    assert {path: facts for path, facts in result.items() if wanted.get(path) != facts} == {}
    assert {path for path, entry in wanted.items() if path not in result and entry[0] != tarfile.DIRTYPE} == set()
    settings = msgspec.to_builtins(config.settings(directory.spec.identity, source))
    settings["Env"].sort()
    built = opened.client.api.inspect_image(f"{NAME}:directory")["Config"]
    built["Env"].sort()
    assert {name: built.get(name) for name in settings} == settings
    assert not any(built.get(name) for name in ("Entrypoint", "User", "Volumes", "ExposedPorts", "OnBuild"))
    code = "import sys, mdurl, packaging, pygments; print(sys.prefix, mdurl.EDITED, mdurl.__file__)"
    ran = subprocess.run(
        ["docker", "run", "--rm", "--network", "none", f"{NAME}:directory", "python", "-c", code],
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout.split()[:2] == ["/opt/env", "True"]
    prefix = directory.spec.identity.layout.prefix
    assert ran.stdout.replace("/opt/env", prefix) == small.python_says(code)  # as in our own runner
    script = subprocess.run(
        ["docker", "run", "--rm", f"{NAME}:directory", "pygmentize", "-V"], capture_output=True, text=True, check=True
    )
    assert "2.21.0" in script.stdout


def test_an_edited_step_ends_the_build_with_names(directory: SpecDirectory, tmp_path: Path) -> None:
    odd = copied(directory, tmp_path / "odd")
    path = odd.path / "Dockerfile"
    step = 'COPY --from=distributions ["/.repro-env/build/tree/", "/"]\n'
    assert step in path.read_text()
    path.write_text(
        path.read_text().replace(step, step + 'COPY ["spec.json", "/opt/env/pyvenv.cfg"]\nCOPY ["spec.json", "/etc/more"]\n')
    )
    output = odd.build("odd", "--network", "none", code=1)
    assert "differs: /opt/env/pyvenv.cfg is " in output
    assert "not in the capture: /etc/more" in output
    assert "the image differs from the capture: 2 paths differ" in output


def test_a_tampered_wheel_ends_the_build_with_its_name(directory: SpecDirectory, tmp_path: Path) -> None:
    odd = copied(directory, tmp_path / "odd")
    name = next(name for name in odd.wheels if name.startswith("packaging"))
    data = bytearray(odd.wheels[name].read_bytes())
    data[len(data) // 2] ^= 1
    odd.wheels[name].write_bytes(data)
    output = odd.build("odd", "--network", "none", code=1)
    assert f"differs from the captured {name}" in output


def test_wheels_that_the_directory_lacks_are_downloaded(directory: SpecDirectory, tmp_path: Path) -> None:
    """As on another machine: what is linked is fetched by the build itself. A server on loopback stands in for the index."""
    lacking = copied(directory, tmp_path / "lacking")
    served = tmp_path / "served"
    served.mkdir()
    for name, path in lacking.wheels.items():
        path.rename(served / name)
    handler = functools.partial(_Quiet, directory=str(served))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        spec = json.loads((lacking.path / "spec.json").read_text())
        names = {distribution["sha256"]: distribution["filename"] for distribution in spec["identity"]["distributions"]}
        for hint in spec["hints"]["wheels"]:
            hint["urls"] = [f"http://127.0.0.1:{server.server_port}/{names[hint['sha256']]}"]
        (lacking.path / "spec.json").write_text(json.dumps(spec))
        try:
            output = lacking.build("linked", "--network", "host")
            assert "paths are as captured" in output
            gone = next(iter(served.iterdir()))
            gone.unlink()
            (lacking.path / "spec.json").write_text(json.dumps(spec, indent=1))  # else the engine takes what it built before
            output = lacking.build("linked", "--network", "host", code=1)
            assert f"{gone.name} could not be downloaded" in output
            assert "blobs/" in output
        finally:
            server.shutdown()
            thread.join()


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args: object) -> None:
        pass
