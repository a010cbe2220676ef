"""The Dockerfile as a product: a copied folder and an engine, nothing else; and `rebuild --builder docker`."""

from __future__ import annotations

import base64
import contextlib
import functools
import http.server
import json
import os
import re
import secrets
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from repro_env.build import docker, expected, saved
from repro_env.image import config
from repro_env.image.entry import ordered
from repro_env.image.stack import below
from repro_env.io import engine
from repro_env.model.spec import Spec, read
from repro_env.model.talk import Silent
from repro_env.store.carried import Carried
from repro_env.store.store import Store
from tests.e2e import parts
from tests.parts import need

NAME = f"repro-env-test-dockerfile-{secrets.token_hex(4)}"
KEPT: list[str] = []
"""Images without a name that the classic builder made on the way."""


class Folder:
    """A capture's output folder, copied, with every wheel in its `blobs/` unless asked otherwise."""

    def __init__(self, project: parts.Project, to: Path, *, wheels: bool = True) -> None:
        shutil.copytree(project.folder / "repro", to)
        self.path = to
        self.spec: Spec = read((to / "spec.json").read_bytes(), where="spec.json")
        self.wheels = {
            one.filename: to / "blobs" / one.sha256.removeprefix("sha256:") for one in self.spec.identity.distributions
        }
        self.store = Store.open(project.store)
        if wheels:
            for name, path in self.wheels.items():
                shutil.copy(self.whole(name), path)

    def whole(self, filename: str) -> Path:
        """A wheel of the environment, fetched into the project's store."""
        found = docker.fetch(self.spec, self.path, self.store, Silent())
        return found.blobs[self.wheels[filename].name]

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
        said = done.stdout + done.stderr
        KEPT.extend(re.findall(r"^ ---> ([0-9a-f]{12})$", said, re.MULTILINE))
        assert (done.returncode == 0) == (code == 0), said
        return said


@pytest.fixture(scope="module")
def opened() -> Iterator[engine.Engine]:
    need(
        shutil.which("docker") and engine.available(environ={}), "a Docker engine: apt-get install docker.io, and dockerd running"
    )
    with engine.opened(environ={}) as found:
        yield found
        for image in found.client.api.images(name=NAME):
            for tag in image["RepoTags"] or ():
                with contextlib.suppress(Exception):
                    found.client.api.remove_image(tag, force=True)
        for image in reversed(KEPT):
            with contextlib.suppress(Exception):
                found.client.api.remove_image(image)


@pytest.fixture(scope="module")
def folder(small: parts.Project, opened: engine.Engine, tmp_path_factory: pytest.TempPathFactory) -> Folder:
    return Folder(small, tmp_path_factory.mktemp("dockerfile") / "copied")


def copied(folder: Folder, to: Path) -> Folder:
    shutil.copytree(folder.path, to)
    found = object.__new__(Folder)
    found.path, found.spec, found.store = to, folder.spec, folder.store
    found.wheels = {name: to / "blobs" / path.name for name, path in folder.wheels.items()}
    return found


def test_the_folder_alone_makes_the_captured_image(folder: Folder, small: parts.Project, opened: engine.Engine) -> None:
    """From scratch, with an empty build cache and without network; then every path read out of the engine and compared."""
    said = folder.build("folder", "--no-cache", "--network", "none")
    assert "paths are as captured" in said
    wanted = expected.entries(folder.spec, folder.path, folder.store)
    made = saved.read(opened, f"{NAME}:folder")
    source = folder.spec.observed.source
    assert source is not None
    root = source.path.lstrip("/")
    wanted = ordered(
        [*(below(entry, root) for entry in Carried(folder.path / "blobs").entries(source.tree, folder.store.facts)), *wanted]
    )
    settings = msgspec.to_builtins(config.settings(folder.spec.identity, source))
    assert saved.differences(made, wanted, settings) == []
    code = "import sys, mdurl, packaging, pygments; print(sys.prefix, mdurl.EDITED, mdurl.__file__)"
    ran = subprocess.run(
        ["docker", "run", "--rm", "--network", "none", f"{NAME}:folder", "python", "-c", code],
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout.split()[:2] == ["/opt/env", "True"]
    prefix = folder.spec.identity.layout.prefix
    assert ran.stdout.replace("/opt/env", prefix) == small.python_says(code)  # as in our own runner
    script = subprocess.run(
        ["docker", "run", "--rm", f"{NAME}:folder", "pygmentize", "-V"], capture_output=True, text=True, check=True
    )
    assert "2.21.0" in script.stdout


def test_an_edited_step_ends_the_build_with_names(folder: Folder, tmp_path: Path) -> None:
    odd = copied(folder, tmp_path / "odd")
    path = odd.path / "Dockerfile"
    step = 'COPY --from=distributions ["/.repro-env/build/tree/", "/"]\n'
    assert step in path.read_text()
    path.write_text(
        path.read_text().replace(step, step + 'COPY ["spec.json", "/opt/env/pyvenv.cfg"]\nCOPY ["spec.json", "/etc/more"]\n')
    )
    said = odd.build("odd", "--network", "none", code=1)
    assert "differs: /opt/env/pyvenv.cfg is " in said
    assert "not in the capture: /etc/more" in said
    assert "the image is not the captured one: 2 paths differ" in said


def test_a_tampered_wheel_ends_the_build_with_its_name(folder: Folder, tmp_path: Path) -> None:
    odd = copied(folder, tmp_path / "odd")
    name = next(name for name in odd.wheels if name.startswith("packaging"))
    data = bytearray(odd.wheels[name].read_bytes())
    data[len(data) // 2] ^= 1
    odd.wheels[name].write_bytes(data)
    said = odd.build("odd", "--network", "none", code=1)
    assert f"is not {name} as captured" in said


def test_wheels_come_by_url_where_the_folder_lacks_them(folder: Folder, tmp_path: Path) -> None:
    """As on another machine: what is linked is fetched by the build itself. A server on loopback stands in for the index."""
    lacking = copied(folder, tmp_path / "lacking")
    served = tmp_path / "served"
    served.mkdir()
    for name, path in lacking.wheels.items():
        path.rename(served / name)
    handler = functools.partial(_Quiet, directory=str(served))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        spec = json.loads((lacking.path / "spec.json").read_text())
        names = {one["sha256"]: one["filename"] for one in spec["identity"]["distributions"]}
        for hint in spec["hints"]["wheels"]:
            hint["urls"] = [f"http://127.0.0.1:{server.server_port}/{names[hint['sha256']]}"]
        (lacking.path / "spec.json").write_text(json.dumps(spec))
        try:
            said = lacking.build("linked", "--network", "host")
            assert "paths are as captured" in said
            gone = next(iter(served.iterdir()))
            gone.unlink()
            (lacking.path / "spec.json").write_text(json.dumps(spec, indent=1))  # else the engine takes what it built before
            said = lacking.build("linked", "--network", "host", code=1)
            assert f"{gone.name} could not be had" in said
            assert "blobs/" in said
        finally:
            server.shutdown()
            thread.join()


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args: object) -> None:
        pass


def test_rebuild_by_the_engine(small: parts.Project, opened: engine.Engine, tmp_path: Path) -> None:
    """The command: one image ID on stdout, the engine's; what this machine has of proxies and credentials stays here."""
    config = tmp_path / "docker"
    config.mkdir()
    secret = "hunter2hunter2"
    auth = base64.b64encode(f"ann:{secret}".encode()).decode()
    (config / "config.json").write_text(
        json.dumps(
            {
                "auths": {"registry.example.com": {"auth": auth}},
                "proxies": {"default": {"httpProxy": f"http://{secret}.example.com"}},
            }
        )
    )
    env = {"DOCKER_CONFIG": str(config), "PIP_EXTRA_INDEX_URL": f"https://ann:{secret}@packages.example.com/simple"}
    done = small.run("rebuild", "--builder", "docker", "--json", env=env)
    found = json.loads(done.out)
    captured = json.loads((small.folder / "repro" / "spec.json").read_text())
    try:
        assert found["image_id"] != captured["expected"]["image_id"] == found["environment_image_id"]
        assert "not the promised" in done.err
        assert found["builder"] == "BuildKit"
        assert found["paths"] > 1000
        image = opened.client.api.inspect_image(found["name"])
        assert image["Id"] == found["image_id"]
        said = json.dumps([image, opened.client.api.history(found["name"])])
        assert secret not in said
        assert auth not in said
        assert "proxy" not in said.lower()
    finally:
        with contextlib.suppress(Exception):
            opened.client.api.remove_image(found["name"], force=True)


def test_no_engine_is_one_sentence(small: parts.Project, tmp_path: Path) -> None:
    done = small.run("rebuild", "--builder", "docker", env={"DOCKER_HOST": f"unix://{tmp_path}/none.sock"}, code=20)
    said = parts.one_sentence(done)
    assert "no Docker or Podman engine answers there" in said
    assert done.out == ""


def test_captures_of_one_environment_give_one_dockerfile(small: parts.Project, tmp_path: Path) -> None:
    """Same environment, same bytes; an edit of the code changes the last lines of the Dockerfile, which add the code."""

    def made(folder: Path) -> list[bytes]:
        text = (folder / "Dockerfile").read_bytes().partition(b"\nLABEL ")[0]
        return [text, *((folder / name).read_bytes() for name in ("install.py", "image-files.txt.gz"))]

    source = tmp_path / "project"
    source.mkdir()
    (source / "other.py").write_text("print(2)\n")
    parts.lay(parts.large_blobs(small.folder), source)
    parts.Project(source, small.python, small.store).capture()
    assert made(source / "repro") == made(small.folder / "repro")
