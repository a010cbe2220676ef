"""`exec --runner docker` through the installed command, on a real engine."""

from __future__ import annotations

import contextlib
import io
import json
import os
import resource
import secrets
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from repro_env.delivery.targets.engine import default_name
from repro_env.io import engine as engines
from repro_env.schema.errors import EngineError, UsageError
from tests.e2e import parts
from tests.e2e.machine import check_two_runs
from tests.parts import need
from tests.sandbox.conftest import PLAIN, environ, identity, python
from tests.sandbox.engines import docker, podman


@pytest.fixture(scope="module")
def image(small: parts.Project) -> Iterator[str]:
    """The ID of the image, which the first run puts into the engine for all tests of this module."""
    with parts.in_docker(small) as image:
        yield image


def test_a_run_in_docker_has_the_record_of_an_embedded_one(small: parts.Project, image: str, tmp_path: Path) -> None:
    seen = {}
    for runner in ("docker", "embedded"):
        done = small.run("exec", "-v", "--runner", runner, "--seed", "5", "hello.py")
        assert done.out.startswith("hello from ")
        assert ("loading the image into" in done.err) == (runner == "docker")
        seen[runner] = json.loads(small.run("runs", "show", "--json").out)
    ours, theirs = seen["docker"], seen["embedded"]
    assert (ours["start"]["runner"], ours["end"]["outcome"]["isolation"]) == ("docker", "docker")
    assert ours["start"]["image"] == image
    assert ours["end"]["outputs"] == theirs["end"]["outputs"] != []
    same = ("command", "cwd", "data", "env_names", "host", "image", "network", "seed", "source", "spec")
    assert {name: ours["start"][name] for name in same} == {name: theirs["start"][name] for name in same}
    (small.directory / "results.py").write_text(parts.WRITES_OUTSIDE.replace("/scratch/me/y", "../out/y"))
    done = small.run("exec", "--runner", "docker", "results.py")
    assert "written outside the project: 3 files (3.0 kB), kept in " in done.err
    end = json.loads(small.run("runs", "show", "--json").out)["end"]
    there = {"made.txt", f"{Path.home()}/results/x", f"{small.directory.parent}/out/y", f"{small.directory.parent}/out/w.pt"}
    assert {output["path"] for output in end["outputs"]} == there
    assert {log["path"]: log["size"] for log in end["console"]} == {"stdout.log": 32, "stderr.log": 10}
    ended = small.run("exec", "-v", "--runner", "docker", "-c", "import edited_or_not, sys", code=1)
    assert "loading" not in ended.err
    clone = tmp_path / "a clone"
    clone.mkdir()
    shutil.copytree(small.directory / "repro", clone / "repro", ignore=shutil.ignore_patterns("blobs"))
    (clone / "hello.py").write_text("print('cloned', __file__)\n")
    ended = small.run("exec", "--runner", "docker", "hello.py", cwd=clone)
    assert ended.out == f"cloned {small.directory}/hello.py\n"
    assert f"source {clone} changed since capture: ~ hello.py" in ended.err
    ended = small.run("exec", "--runner", "docker", "-c", "import mdurl, sys; print(mdurl.EDITED, mdurl.__file__, sys.prefix)")
    prefix = str(small.directory / ".venv")
    assert ended.out.split()[0] == "True"
    assert ended.out.split()[1].startswith(prefix)
    assert ended.out.split()[2] == prefix


@pytest.mark.usefixtures("image")
def test_two_runs_in_docker_see_the_same_machine_and_user(small: parts.Project) -> None:
    check_two_runs(small, "docker")


@pytest.fixture
def adapter() -> Iterator[None]:
    """A device file where those of InfiniBand are. It opens as /dev/null does."""
    directory = Path("/dev/infiniband")
    need(os.geteuid() == 0 and not directory.exists(), "uid 0, and a machine without InfiniBand")
    directory.mkdir()
    try:
        os.mknod(directory / "uverbs0", stat.S_IFCHR | 0o600, os.makedev(1, 3))
        (directory / "uverbs0").chmod(0o666)
        yield
    finally:
        shutil.rmtree(directory)


@pytest.mark.usefixtures("image", "adapter")
def test_a_run_with_a_network_gets_infiniband_and_its_lack_is_named(small: parts.Project) -> None:
    opens = (
        "import os, resource; os.open('/dev/infiniband/uverbs0', os.O_RDWR); print(resource.getrlimit(resource.RLIMIT_MEMLOCK))"
    )
    for runner in ("docker", "embedded"):
        done = small.run("exec", "--runner", runner, "--network", "-c", opens)
        limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[1]
        assert done.out == f"{(limit, limit)}\n"
        assert "NCCL cannot use this machine's InfiniBand in the run, and uses TCP: the image has no libibverbs" in done.err
        assert "infiniband: 1" in json.loads(small.run("runs", "show", "--json").out)["end"]["outcome"]["methods"]
        alone = small.run("exec", "--runner", runner, "-c", "import os; print(os.path.exists('/dev/infiniband'))")
        assert (alone.out, "InfiniBand" in alone.err) == ("False\n", False)


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({"DOCKER_HOST": "unix:///nowhere/engine.sock"}, ["the socket does not exist", "unix:///nowhere/engine.sock"]),
        ({"DOCKER_HOST": "ssh://far.example.com"}, ["ssh"]),
    ],
)
def test_a_missing_engine_is_reported_in_one_sentence(small: parts.Project, env: dict[str, str], words: list[str]) -> None:
    before = sorted((small.directory / "runs").iterdir()) if (small.directory / "runs").is_dir() else []
    done = small.run("exec", "--runner", "docker", "hello.py", env=env, code=20)
    message = parts.one_sentence(done)
    assert all(word in message for word in words)
    assert (sorted((small.directory / "runs").iterdir()) if (small.directory / "runs").is_dir() else []) == before


def test_a_request_for_gpus_that_cannot_be_met_is_reported_in_one_sentence(small: parts.Project) -> None:
    for words, reason, code in (
        (("--gpus", "1000"), "cannot be met", 16),
        (("--runner", "docker", "--gpus", "990,991"), "GPU 990 cannot be used here", 16),
        (("--runner", "host", "--gpus", "all"), "uses all GPUs", 2),
        (("--runner", "docker", "--gpus", "two"), "a number of GPUs", 2),
    ):
        assert reason in parts.one_sentence(small.run("exec", *words, "hello.py", code=code))


def test_an_image_in_the_engine_is_verified_and_a_run_uses_it(small: parts.Project) -> None:
    name = f"repro-env-test-verify-{secrets.token_hex(4)}"
    with parts.in_docker(small) as image, engines.connect(docker()) as engine:
        with contextlib.suppress(EngineError), engine.talk("remove the image"):  # of the tests before
            engine.client.api.remove_image(default_name(image), force=True)
        assert not engine.find_image(image)
        try:
            assert small.run("rebuild", "--output", f"docker:{name}:1").out == f"{image}\n"
            done = small.run("image", "verify", f"docker:{name}:1")
            assert "intact: " in done.out
            assert f"image ID      {image}" in done.out
            assert "loading" not in small.run("exec", "-v", "--runner", "docker", "hello.py").err
            # the same layers and the same label, but not the same image
            text = io.BytesIO(f"FROM {name}:1\nENV MORE=1\n".encode())
            assert [
                line for line in engine.client.api.build(fileobj=text, tag=f"{name}:2", rm=True, decode=True) if "error" in line
            ] == []
            assert "the config" in small.run("image", "verify", f"docker:{name}:2", code=1).out
            for number in (2, 1):
                engine.client.api.remove_image(f"{name}:{number}", force=True)
            assert not engine.find_image(image)
            assert "loading" in small.run("exec", "-v", "--runner", "docker", "hello.py").err
            missing = small.run("image", "verify", f"docker:{name}:3", code=UsageError.exit_code)
            assert f"docker:{name}:3: the engine has no image of this name" in parts.one_sentence(missing)
        finally:
            for number in (2, 1):
                with contextlib.suppress(EngineError), engine.talk("remove the image"):
                    engine.client.api.remove_image(f"{name}:{number}", force=True)


def test_a_plain_user_runs_in_rootless_podman(small: parts.Project) -> None:
    place = Path(tempfile.mkdtemp(prefix="repro-env-test-"))
    try:
        place.chmod(0o755)
        (place / "project").mkdir()
        subprocess.run(["cp", "-a", small.store, place / "store"], check=True)
        subprocess.run(["cp", "-a", small.directory / "repro", small.directory / "hello.py", place / "project"], check=True)
        subprocess.run(["chown", "-hR", f"{PLAIN}:{PLAIN}", place], check=True)
        with podman(PLAIN) as address:
            env = {**environ(), "HOME": str(place), "REPRO_ENV_STORE": str(place / "store"), "DOCKER_HOST": address}
            words = ["-m", "repro_env", "exec", "--runner", "docker", "--memory", "2G", "hello.py"]
            command = [*identity(PLAIN), python(PLAIN), *words]
            done = subprocess.run(command, cwd=place / "project", env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert done.stdout == f"hello from {small.directory}/hello.py\n"
        with engines.connect() as engine:
            version = engine.client.info().get("CgroupVersion")
        assert ("not as requested: memory: not limited" in done.stderr) == (version == "1")
    finally:
        shutil.rmtree(place)
