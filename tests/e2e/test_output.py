"""`rebuild --output`: the image that other tools load is the one that was captured, wherever and however it was made."""

from __future__ import annotations

import contextlib
import json
import os
import random
import secrets
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.e2e import parts
from tests.parts import need

NAME = f"repro-env-test-output-{secrets.token_hex(4)}"
IMPORTS = "import mdurl, packaging, pygments; print(mdurl.EDITED, pygments.__version__)"
RECORDS = """
import base64, csv, hashlib, importlib.metadata as metadata, sys
wrong = []
for distribution in metadata.distributions():
    for path in distribution.files or ():
        if path.hash is None:
            continue
        digest = base64.urlsafe_b64encode(hashlib.new(path.hash.mode, path.locate().read_bytes()).digest()).rstrip(b"=")
        if digest.decode() != path.hash.value:
            wrong.append(str(path))
print(wrong)
"""


def run(*words: str | Path, env: dict[str, str] | None = None) -> str:
    done = subprocess.run([*map(str, words)], capture_output=True, text=True, check=False, env={**os.environ, **(env or {})})
    assert done.returncode == 0, f"{words}: {done.stdout}\n{done.stderr}"
    return done.stdout


def tool(name: str) -> str:
    program = shutil.which(name)
    need(program, f"{name} is missing: apt-get install {name}")
    assert program
    return program


def sent(project: parts.Project, *words: str | Path, **options: Any) -> dict[str, Any]:
    """What `rebuild --output` says of what it sent."""
    answer = json.loads(project.run("rebuild", "--json", *words, **options).out)
    assert isinstance(answer, dict)
    return answer


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """A directory that another user may reach."""
    with tempfile.TemporaryDirectory(prefix="repro-env-test-", dir="/var/tmp") as made:
        Path(made).chmod(0o755)
        yield Path(made)


@pytest.fixture(scope="module")
def layout(small: parts.Project, place: Path) -> dict[str, Any]:
    """The small project's image in a layout, `layout:v1` in `place`."""
    return sent(small, "--output", f"oci:{place / 'layout'}:v1")


@pytest.fixture(scope="module")
def expected(small: parts.Project) -> str:
    image_id: str = json.loads((small.directory / "repro/spec.json").read_bytes())["expected"]["image_id"]
    return image_id


def test_skopeo_reads_the_layout(layout: dict[str, Any], expected: str, place: Path) -> None:
    skopeo = tool("skopeo")
    content = json.loads(run(skopeo, "inspect", "--raw", f"oci:{place / 'layout'}:v1"))
    assert content["config"]["digest"] == expected == layout["image_id"] == layout["environment_image_id"]
    assert json.loads(run(skopeo, "inspect", f"oci:{place / 'layout'}:v1"))["Digest"] == layout["manifest_digest"]
    run(skopeo, "copy", "-q", f"oci:{place / 'layout'}:v1", f"dir:{place / 'copied'}")  # checks every digest
    shutil.rmtree(place / "copied")


def test_docker_loads_the_archive(small: parts.Project, layout: dict[str, Any], expected: str, place: Path) -> None:
    docker = tool("docker")
    need(Path("/var/run/docker.sock").exists(), "no Docker engine: start dockerd")
    path = place / "image.tar"
    done = sent(small, "--output", f"docker-archive:{path}:{NAME}:1")
    assert (done["image_id"], done["manifest_digest"]) == (expected, layout["manifest_digest"])
    python = json.loads((small.directory / "repro/spec.json").read_bytes())["identity"]["command"]
    try:
        for form in ("docker-archive", "oci-archive"):
            assert json.loads(run(tool("skopeo"), "inspect", "--config", f"{form}:{path}"))["config"]["Labels"]
        assert f"{NAME}:1" in run(docker, "load", "-q", "-i", path)
        assert run(docker, "image", "inspect", "-f", "{{.Id}}", f"{NAME}:1").strip() == expected
        imported, wrong = run(docker, "run", "--rm", "--network=none", f"{NAME}:1", python, "-c", IMPORTS + RECORDS).splitlines()
        assert imported == "True 2.21.0"
        assert wrong == "['mdurl/__init__.py']", "the file that was edited, and no other"
    finally:
        run(docker, "rmi", "-f", f"{NAME}:1")


def test_an_unchanged_output_is_not_sent_again(small: parts.Project, layout: dict[str, Any], place: Path) -> None:
    done = small.run("rebuild", "--output", f"oci:{place / 'layout'}:v1")
    assert done.out.strip() == layout["image_id"]
    assert f"nothing to send: the output already has all {len(layout['layers'])} layers" in done.err
    assert layout["manifest_digest"] in done.err


def test_dry_run_changes_nothing(small: parts.Project, layout: dict[str, Any], place: Path) -> None:
    complete = sent(small, "--output", f"oci:{place / 'layout'}:v1", "--dry-run")
    assert {item["origin"] for item in complete["plan"]["items"]} == {"output"}
    fresh = sent(small, "--output", f"oci:{place / 'never'}", "--dry-run")
    assert {item["origin"] for item in fresh["plan"]["items"]} <= {"blob", "bundled", "url", "index"}
    assert (fresh["made"], complete["made"], complete["plan"]["fetch"]) == ([], [], 0)
    assert not (place / "never").exists()


def test_with_source_adds_the_captured_code_to_the_image(
    small: parts.Project, layout: dict[str, Any], expected: str, place: Path
) -> None:
    words = ("--with-source", "--output", f"oci:{place / 'layout'}:source")
    (small.directory / "new.py").touch()
    try:
        message = parts.one_sentence(small.run("rebuild", *words, code=8))
    finally:
        (small.directory / "new.py").unlink()
    assert "+ new.py" in message
    assert "send the captured code with --frozen" in message
    done = small.run("rebuild", *words, "--frozen")
    image_id = done.out.strip()
    assert image_id != expected
    assert f"; the environment has {expected}" in done.err
    config = json.loads(run(tool("skopeo"), "inspect", "--config", f"oci:{place / 'layout'}:source"))
    assert config["config"]["WorkingDir"] == str(small.directory)
    assert len(config["rootfs"]["diff_ids"]) == len(layout["layers"]) + 1
    again = sent(small, *words, "--frozen")
    assert (again["image_id"], again["environment_image_id"]) == (image_id, expected)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--output", "oci:"), "not a valid output"),
        (("--output", "oci:x:a b"), "not a valid tag"),
        (("--output", "docker-archive:x.tar:A!"), "name"),
        (("--with-source",), "requires --output"),
        (("--frozen", "--output", "oci:x"), "requires --with-source"),
    ],
)
def test_an_invalid_output_is_refused_in_one_sentence(small: parts.Project, words: tuple[str, ...], sentence: str) -> None:
    done = small.run("rebuild", *words, code=2)
    assert sentence in parts.one_sentence(done)
    assert done.out == ""


class Way(NamedTuple):
    """One way to make the image. None of it may show in any digest."""

    store: str
    """`cold`, `warm` (all known), `evicted` (part of what is known, and of the wheels, gone), `live` (unpacked from live files first)."""
    clone: str
    cores: int
    isal: bool
    plain: bool
    env: dict[str, str]
    umask: int


ODD = (
    {"TZ": "Asia/Tokyo", "LC_ALL": "C", "PYTHONHASHSEED": "1"},
    {"TZ": "America/New_York", "LC_ALL": "C.UTF-8", "PYTHONHASHSEED": "77"},
    {"TZ": "UTC", "LANG": "tr_TR.UTF-8", "PYTHONHASHSEED": "0", "SOURCE_DATE_EPOCH": "1"},
)
FEW = (
    Way("cold", "clone", 1, False, True, ODD[0], 0o077),
    Way("warm", "clone é", 2, True, False, ODD[1], 0o000),
    Way("evicted", "clone", 2, False, False, ODD[2], 0o027),
    Way("live", "clone é", 1, True, False, ODD[0], 0o077),
)


def some(count: int) -> Iterator[Way]:
    rng = random.Random(20260101)
    for _ in range(count):
        yield Way(
            rng.choice(["cold", "warm", "evicted", "live"]),
            rng.choice(["clone", "clone é"]),
            rng.choice([1, 2]),
            rng.random() < 0.5,
            rng.random() < 0.5,
            rng.choice(ODD),
            rng.choice([0o077, 0o000, 0o027, 0o022]),
        )


def shuffled(project: parts.Project, ways: Iterator[Way], place: Path) -> Iterator[tuple[str, str, Way]]:
    """(image ID, manifest digest) of each way."""
    without = place / "without-isal" / "isal"
    without.mkdir(parents=True, exist_ok=True)
    (without / "__init__.py").write_text("raise ImportError('not here')\n")
    for clone in ("clone", "clone é"):
        shutil.copytree(project.directory / "repro", place / clone, dirs_exist_ok=True)
    own(place, os.geteuid())
    for number, way in enumerate(ways):
        store = place / f"store-{number}"
        uid = plain_uid() if way.plain else os.geteuid()
        if way.store in ("warm", "evicted"):
            shutil.copytree(place / "known", store)
        if way.store == "evicted":
            evict(store)
        store.mkdir(exist_ok=True)
        store.chmod(0o700)
        own(store, uid)
        out = place / f"out-{number}"
        out.mkdir()
        own(out, uid)
        unpacked = call(place / way.clone, store, way, uid, "rebuild", ".", "--json") if way.store == "live" else {}
        answer = call(place / way.clone, store, way, uid, "rebuild", ".", "--json", "--output", f"oci:{out}:v{number}")
        assert unpacked.get("image_id", answer["image_id"]) == answer["image_id"], way
        yield answer["image_id"], answer["manifest_digest"], way
        shutil.rmtree(store)
        shutil.rmtree(out)


def call(directory: Path, store: Path, way: Way, uid: int, *words: str) -> dict[str, Any]:
    python, found_by = (starter(uid) if way.plain else None) or (Path(sys.executable), "")
    paths = [str(directory.parent / "without-isal")] * (not way.isal) + [found_by] * bool(found_by)
    env = {**parts.environ(store, way.env), "HOME": str(store.parent), "PYTHONPATH": ":".join(paths)}
    cores = sorted(os.sched_getaffinity(0))[: way.cores]

    def start() -> None:
        os.sched_setaffinity(0, cores)
        os.umask(way.umask)
        if uid != os.geteuid():
            os.setgroups([])
            os.setgid(uid)
            os.setuid(uid)

    # Through a shell: a program is started with root's rights in part, and loads what those reach.
    command = ["/bin/sh", "-c", 'exec "$0" "$@"', str(python), "-m", "repro_env", *words]
    done = subprocess.run(command, cwd=directory, env=env, capture_output=True, text=True, preexec_fn=start, check=False)
    assert done.returncode == 0, f"{way}\n{done.stderr}"
    return dict(json.loads(done.stdout))


def own(directory: Path, uid: int) -> None:
    if os.geteuid() != 0:
        return
    for path in (directory, *directory.rglob("*")):
        with contextlib.suppress(FileNotFoundError):
            os.chown(path, uid, uid, follow_symlinks=False)


def plain_uid() -> int:
    return 20_123 if os.geteuid() == 0 else os.geteuid()


def evict(store: Path) -> None:
    """Half of what is known, and of the wheels, is gone; so is one whole directory of facts."""
    for kind in ("blobs", "facts/made", "facts/packed", "facts/wheel", "facts/image"):
        for path in sorted((store / kind).iterdir())[::2] if (store / kind).is_dir() else ():
            path.unlink()


@pytest.fixture(scope="module")
def known(small: parts.Project, place: Path) -> Path:
    """A store that has made the image before, from a copy of the spec's directory."""
    clone = place / "first"
    shutil.copytree(small.directory / "repro", clone)
    store = place / "known"
    small.elsewhere(store).run("rebuild", clone, "--output", f"oci:{place / 'first-out'}")
    return store


def starter(uid: int) -> tuple[Path, str] | None:
    """A Python that a plain user may start here, and the PYTHONPATH by which it finds us; root's own may be out of reach."""

    def become() -> None:
        if uid != os.geteuid():
            os.setgroups([])
            os.setgid(uid)
            os.setuid(uid)

    ours = f"{parts.ROOT}:{sysconfig.get_path('purelib')}"
    for python, found_by in ((Path(sys.executable), ""), (Path("/usr/bin/python3"), ours)):
        command = ["/bin/sh", "-c", 'exec "$0" -c "import repro_env.schema.codec"', str(python)]
        env = {"PYTHONPATH": found_by, "PATH": "/usr/bin:/bin"}
        if not subprocess.run(command, cwd="/", env=env, preexec_fn=become, capture_output=True, check=False).returncode:
            return python, found_by
    return None


def test_the_digests_are_the_same_however_the_image_is_made(
    small: parts.Project, layout: dict[str, Any], known: Path, place: Path
) -> None:
    need(starter(plain_uid()), "a plain user can start no Python that finds this checkout")
    for image_id, manifest, way in shuffled(small, iter(FEW), place):
        assert (image_id, manifest) == (layout["image_id"], layout["manifest_digest"]), way


@pytest.mark.soak
def test_the_digests_of_a_wide_image_are_the_same_however_it_is_made(torch: parts.Project, place: Path) -> None:
    (place / "wide").mkdir()
    wide = place / "wide"
    first = sent(torch, "--output", f"oci:{wide / 'layout'}:v1")
    shutil.copytree(torch.directory / "repro", wide / "first")
    torch.elsewhere(wide / "known").run("rebuild", wide / "first", "--output", f"oci:{wide / 'first-out'}")
    for image_id, manifest, way in shuffled(torch, some(20), wide):
        assert (image_id, manifest) == (first["image_id"], first["manifest_digest"]), way
