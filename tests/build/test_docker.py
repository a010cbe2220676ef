"""The docker builder: what is sent, what both builders say, what comes out, and each way in which it can be wrong."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import io
import json
import secrets
import subprocess
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from docker.errors import ImageNotFound

from repro_env.build import docker, saved
from repro_env.build.heard import Heard, fields
from repro_env.flows import docker as story
from repro_env.image import tar
from repro_env.image.entry import Entry, Member, members, ordered
from repro_env.inside import install
from repro_env.io import engine
from repro_env.io.engine import Engine
from repro_env.model.artifact import TreeBlob
from repro_env.model.errors import ArtifactError, BuildError, EngineError, PlatformError, UsageError
from repro_env.model.spec import Spec
from repro_env.model.talk import Silent
from repro_env.render import instruction
from repro_env.render.instruction import Command, From, Instruction, Run, Set, Workdir
from repro_env.store.store import Store
from tests.fakes import specs, wheels
from tests.parts import need
from tests.render.test_instruction import NASTY
from tests.run import engines


@pytest.fixture(scope="module")
def opened() -> Iterator[Engine]:
    need(engine.available(environ={}), "a Docker engine: apt-get install docker.io, and dockerd running")
    with engine.opened(environ={}) as found:
        yield found


@pytest.fixture(scope="module")
def podman() -> Iterator[Engine]:
    with engines.podman() as address, engine.opened(address) as found:
        yield found


@pytest.fixture(params=["BuildKit", "classic", "Podman"])
def builder(request: pytest.FixtureRequest, opened: Engine) -> Engine:
    """Docker by each of its builders, and Podman."""
    if request.param == "Podman":
        found: Engine = request.getfixturevalue("podman")
        return found
    need(opened.facts.buildkit, "an engine with BuildKit")
    facts = msgspec.structs.replace(opened.facts, buildkit=request.param == "BuildKit")
    return Engine(opened.client, opened.address, facts)


class Told(Silent):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def __call__(self, text: str, /) -> None:
        self.lines.append(text)


@contextlib.contextmanager
def removed(engine: Engine, *images: str) -> Iterator[None]:
    try:
        yield
    finally:
        for image in images:
            with contextlib.suppress(Exception):
                engine.client.api.remove_image(image, force=True)


def image_of(engine: Engine, instructions: list[Instruction], files: Mapping[str, docker.Content] | None = None) -> str:
    text = "\n".join(map(instruction.line, instructions)) + "\n"
    return docker.build(engine, {"Dockerfile": text.encode(), **(files or {})}, Silent())


# What is sent.


def test_the_context_is_one_tar_the_same_each_time(tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(bytes(3 << 20))
    files: dict[str, docker.Content] = {"b": b"two", "blobs/" + "a" * 120: tmp_path / "big", "Dockerfile": b""}
    data = b"".join(docker.context(files))
    assert data == b"".join(docker.context(dict(reversed(files.items()))))
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        found = {one.name: (one.size, one.mode, one.uid, one.mtime) for one in archive}
    assert found == {"b": (3, 0o644, 0, 0), "Dockerfile": (0, 0o644, 0, 0), "blobs/" + "a" * 120: (3 << 20, 0o644, 0, 0)}


def test_a_file_that_shrinks_on_the_way(tmp_path: Path) -> None:
    (tmp_path / "one").write_bytes(bytes(1000))
    parts = docker.context({"one": tmp_path / "one"})
    next(parts)
    (tmp_path / "one").write_bytes(b"")
    with pytest.raises(ArtifactError, match="shorter"):
        list(parts)


def test_wheels_and_trees_are_brought_whole(tmp_path: Path) -> None:
    spec = made(tmp_path)
    found = docker.fetch(spec, tmp_path / "repro", Store.open(tmp_path / "store"), Silent())
    names = {one.sha256.removeprefix("sha256:") for one in spec.identity.distributions}
    assert {name.removesuffix(".gz") for name in found.blobs} == names | {hex_of(tree) for tree in trees(spec)}
    for name, path in found.blobs.items():
        if not name.endswith(".gz"):
            assert hashlib.sha256(path.read_bytes()).hexdigest() == name
    source = spec.observed.source
    assert source is not None
    assert hex_of(source.tree) + ".gz" not in found.blobs  # no part of the image


def trees(spec: Spec) -> list[TreeBlob]:
    identity = spec.identity
    return [one for one in (identity.base, identity.interpreter.tree, identity.overlay) if one is not None]


def hex_of(tree: TreeBlob) -> str:
    return tree.sha256.removeprefix("sha256:")


def made(folder: Path) -> Spec:
    one = {name: wheels.make(folder / "wheels", name) for name in ("one", "two")}
    return specs.make(folder / "repro", one, carry=tuple(one), overlay={"opt/env/pyvenv.cfg": b"x"})


def test_an_edit_of_the_code_changes_nothing_that_is_sent(tmp_path: Path) -> None:
    spec = made(tmp_path)
    source = spec.observed.source
    assert source is not None
    other = msgspec.structs.replace(
        spec.observed, source=msgspec.structs.replace(source, path="/elsewhere", size=1), tool="repro-env 9"
    )
    sent = story._needed(spec)
    assert sent == story._needed(msgspec.structs.replace(spec, observed=other))
    assert b"/elsewhere" not in sent
    (tmp_path / "spec.json").write_bytes(sent)
    assert install.load(str(tmp_path), spec.digest)["identity"]["layout"]["prefix"] == spec.identity.layout.prefix


# What builders say.


def varint(value: int) -> bytes:
    out = b""
    while value > 127:
        out, value = out + bytes([value & 127 | 128]), value >> 7
    return out + bytes([value])


def field(number: int, value: bytes | int) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def test_protobuf_without_a_schema() -> None:
    data = field(1, b"abc") + field(300, 2**40) + varint(2 << 3 | 1) + bytes(8) + varint(3 << 3 | 5) + bytes(4) + field(4, b"")
    assert list(fields(data)) == [(1, b"abc"), (300, 2**40), (4, b"")]
    for cut in range(len(data)):
        list(fields(data[:cut]))  # never an error, never without end
    list(fields(b"\xff" * 100))


def heard(*events: dict[str, Any]) -> tuple[Told, Heard]:
    told = Told()
    found = Heard(told)
    for event in events:
        found.take(json.dumps(event).encode())
    return told, found


def test_what_the_classic_builder_says() -> None:
    told, found = heard(
        {"stream": "Step 1/2 : FROM scratch\n"},
        {"stream": " ---> 0123456789ab\n"},
        {"stream": "repro-env: one==1.0\n"},
        {"aux": {"ID": "sha256:abc"}},
        {"stream": "Successfully built abc\n"},
    )
    assert told.lines == ["Step 1/2 : FROM scratch", "  one==1.0"]
    assert found.image("x") == "sha256:abc"


def trace(*parts: bytes) -> dict[str, Any]:
    return {"id": "moby.buildkit.trace", "aux": base64.b64encode(b"".join(parts)).decode()}


def test_what_buildkit_says() -> None:
    waiting = field(1, field(1, b"sha256:1") + field(3, b"[base 1/2] ADD x"))
    started = field(1, field(1, b"sha256:1") + field(3, b"[base 1/2] ADD x") + field(5, b"\x08\x01"))
    own = field(1, field(3, b"[internal] load build context") + field(5, b"\x08\x01"))
    log = field(3, field(1, b"sha256:1") + field(3, 1) + field(4, b"repro-env: one==1.0\nother\n"))
    told, found = heard(
        trace(waiting), trace(started, own), trace(started, log), {"id": "moby.image.id", "aux": {"ID": "sha256:abc"}}
    )
    assert told.lines == ["[base 1/2] ADD x", "  one==1.0"]
    assert found.image("x") == "sha256:abc"


def test_a_build_that_fails_with_names() -> None:
    log = b"repro-env: missing: /a\nrepro-env: differs: /b is x\nrepro-env: error: the image is not the captured one: 2 paths differ\n"
    _, found = heard(trace(field(3, field(4, log))), {"error": "executor failed running [x]: exit code: 1"})
    with pytest.raises(BuildError, match=r"the build fails: the image is not .*: missing: /a; differs: /b is x") as caught:
        found.image("here")
    assert caught.value.exit_code == 12
    _, found = heard({"stream": "Step"}, {"error": "no\nroom\x1b[31m left on device"})
    with pytest.raises(BuildError, match=r"no room .*left on device") as caught:
        found.image("here")
    assert str(caught.value).isprintable()
    with pytest.raises(BuildError, match="without an image"):
        heard({"stream": "x"})[1].image("here")
    with pytest.raises(EngineError, match="no answer"):
        Heard(Silent()).take(b"<html>")


# What comes out.

ROWS = [
    Entry("etc/a", "file", False, 1, hashlib.sha256(b"a").hexdigest()),
    Entry("bin/b", "file", True, 1, hashlib.sha256(b"b").hexdigest()),
    Entry("bin/c", "link", target="b"),
]
SETTINGS = {"Env": ["A=b", "C=d"], "Labels": {"x": "y"}, "WorkingDir": "/"}


def archived(*layers: list[Member], config: Mapping[str, Any] | None = None, name: str = "layer.tar") -> bytes:
    """As `docker save` writes it."""
    told = {"config": {"Env": ["C=d", "A=b"], "Labels": {"x": "y"}, "WorkingDir": "/"} if config is None else config}
    files = {f"{number}/{name}": b"".join(tar.write(layer)) for number, layer in enumerate(layers)}
    files["c.json"] = json.dumps(told).encode()
    files["manifest.json"] = json.dumps([{"Config": "c.json", "Layers": [one for one in files if one != "c.json"]}]).encode()
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for path, data in files.items():
            one = tarfile.TarInfo(path)
            one.size = len(data)
            archive.addfile(one, io.BytesIO(data))
    return out.getvalue()


class Contents:
    def chunks(self, entry: Entry) -> Iterator[bytes]:
        yield entry.path.rpartition("/")[2].encode()


def layer(*rows: Entry) -> list[Member]:
    return list(members(ordered(rows), Contents()))


def found_in(data: bytes, chunk: int = 1000) -> list[str]:
    chunks = (data[at : at + chunk] for at in range(0, len(data), chunk))
    return saved.differences(saved.archive(chunks, where="test"), ordered(ROWS), SETTINGS)


@pytest.mark.parametrize("chunk", [1, 511, 1 << 20])
@pytest.mark.parametrize("name", ["layer.tar", "layer"])
def test_the_captured_image(name: str, chunk: int) -> None:
    assert found_in(archived(layer(ROWS[0]), layer(*ROWS[1:]), name=name), chunk) == []


@pytest.mark.parametrize(
    ("layers", "line"),
    [
        ([layer(*ROWS[:2])], "missing: /bin/c"),
        ([layer(*ROWS), layer(Entry("etc/a", "gone"))], "missing: /etc/a"),
        ([layer(*ROWS, Entry("etc/d", "file", False, 1))], "not in the capture: /etc/d"),
        ([layer(*ROWS), layer(Entry("bin/a", "file", False, 1))], "not in the capture: /bin/a"),
        ([layer(ROWS[0], ROWS[2], Entry("bin/b", "file", False, 1))], "differs: /bin/b has the mode 0644, and had 0755"),
        ([layer(*ROWS[:2], Entry("bin/c", "link", target="/etc/passwd"))], "differs: /bin/c"),
        ([layer(*ROWS[:2], Entry("bin/c", "file", False, 1))], "differs: /bin/c is a file, and was a link"),
    ],
)
def test_each_difference_has_its_name(layers: list[list[Member]], line: str) -> None:
    assert line in found_in(archived(*layers))


def test_other_bytes() -> None:
    rows = [(entry, [b"X"] if entry.path == "etc/a" else chunks) for entry, chunks in layer(*ROWS)]
    assert found_in(archived(rows)) == ["differs: /etc/a"]


def test_a_builders_own_label_is_none_of_the_capture() -> None:
    config = {"Env": ["A=b", "C=d"], "Labels": {"x": "y", "io.buildah.version": "1.28.2"}, "WorkingDir": "/"}
    assert found_in(archived(layer(*ROWS), config=config)) == []
    config["Labels"] = {"x": "y", "more": "z"}
    assert found_in(archived(layer(*ROWS), config=config)) == ["the setting Labels is not as captured"]


@pytest.mark.parametrize(
    ("config", "line"),
    [
        ({"Env": ["A=b"], "Labels": {"x": "y"}, "WorkingDir": "/"}, "the setting Env is not as captured"),
        ({"Env": ["A=b", "C=d"], "Labels": {}, "WorkingDir": "/"}, "the setting Labels is not as captured"),
        ({"Env": ["A=b", "C=d"], "Labels": {"x": "y"}, "WorkingDir": "/", "User": "1"}, "the setting User is not in the capture"),
        ({}, "the setting Env is not as captured"),
    ],
)
def test_settings_too(config: dict[str, Any], line: str) -> None:
    assert line in found_in(archived(layer(*ROWS), config=config))


@pytest.mark.parametrize(
    "data", [b"", b"x" * 5000, archived(layer(*ROWS))[:2000], archived(layer(*ROWS)).replace(b'"Layers"', b'"Sreyal"')]
)
def test_what_is_no_image(data: bytes) -> None:
    with pytest.raises(ArtifactError):
        found_in(data)


# On a real engine, by both builders.


def test_values_reach_the_image_as_they_are(builder: Engine) -> None:
    """A real builder is the judge of the quoting: no value is expanded, split, continued or made an instruction."""
    values = [(f"V{number}", value) for number, value in enumerate(NASTY.values())]
    label = Set("LABEL", "io.example.odd", 'a "$HOME" \\ <<EOF')
    # On one line, since the classic builder starts a container for each.
    env = "ENV " + " ".join(f"{name}={instruction.quoted(value)}" for name, value in [("HOME", "/wrong"), *values])
    text = f"FROM scratch\n{env}\n{instruction.line(label)}\n"
    image = docker.build(builder, {"Dockerfile": text.encode()}, Silent())
    with removed(builder, image):
        config = builder.client.api.inspect_image(image)["Config"]
        assert config["Env"][-len(values) :] == [f"{name}={value}" for name, value in values]
        assert config["Labels"]["io.example.odd"] == label.value


def test_words_of_a_command_reach_it_as_they_are(builder: Engine, tmp_path: Path) -> None:
    """Through the JSON form and no shell: seen by a static program that compares them with what is sent beside them."""
    words = [value for value in NASTY.values() if value]
    listed = b"".join(word.encode() + b"\0" for word in words)
    place = "/home/a b@c,d:e=f~g+h"  # of a project: where code is unpacked
    steps: list[Instruction] = [
        From("scratch"),
        *(instruction.Copy(("program.tar",), target, unpack=True) for target in ("/", f"{place}/")),
        Run((f"{place}/compare", *words)),
        Command(tuple(words)),
        Workdir(place),
    ]
    program = compare(tmp_path)
    image = image_of(builder, steps, {"program.tar": packed({"compare": program, "words": listed})})
    with removed(builder, image):
        config = builder.client.api.inspect_image(image)["Config"]
        assert (config["Cmd"], config["WorkingDir"]) == (words, place)
    with pytest.raises(BuildError):
        image_of(builder, steps, {"program.tar": packed({"compare": program, "words": listed + b"more\0"})})


def compare(folder: Path) -> bytes:
    """A static program that exits with 0 when its arguments are those in /words."""
    source = folder / "compare.c"
    source.write_text(
        "#include <stdio.h>\n"
        'int main(int n, char **v) { FILE *f = fopen("/words", "rb"); int c;\n'
        "for (int i = 1; i < n; i++) for (char *p = v[i];; p++) { if ((c = fgetc(f)) != (unsigned char)*p) return 1; if (!c) break; }\n"
        "return fgetc(f) == EOF ? 0 : 1; }\n"
    )
    done = subprocess.run(["gcc", "-static", "-o", folder / "compare", source], capture_output=True, check=False)
    need(done.returncode == 0, "gcc and a static libc: apt-get install gcc libc6-dev")
    return (folder / "compare").read_bytes()


def packed(files: Mapping[str, bytes]) -> bytes:
    entries = [Entry(path, "file", True, len(data)) for path, data in files.items()]
    return b"".join(tar.write((entry, [files[entry.path]]) for entry in ordered(entries)))


def test_nothing_is_left_of_a_build(builder: Engine, tmp_path: Path) -> None:
    name = f"compare-{secrets.token_hex(4)}"  # others use the engine too, and may have theirs
    program = packed({name: compare(tmp_path), "words": b"a\0"})
    stage: list[Instruction] = [
        From("scratch", "first"),
        instruction.Copy(("program.tar",), "/", unpack=True),
        Run((f"/{name}", "a")),
    ]
    for word in ("a", "b"):
        last: list[Instruction] = [
            From("first", "second"),
            Run((f"/{name}", word)),
            From("scratch"),
            instruction.Copy(("/words",), "/", "second"),
        ]
        with contextlib.suppress(BuildError):
            builder.client.api.remove_image(image_of(builder, [*stage, *last], {"program.tar": program}), force=True)
    api = builder.client.api
    assert not [one for one in api.containers(all=True) if name in one["Command"]]
    for one in api.images(filters={"dangling": True}):
        with contextlib.suppress(ImageNotFound):  # another's may be gone by now
            assert name not in str(api.history(one["Id"]))


def test_a_context_without_what_it_names(builder: Engine) -> None:
    with pytest.raises(BuildError, match="the build fails"):
        image_of(builder, [From("scratch"), instruction.Copy(("nothing",), "/")])


def test_an_engine_for_other_machines(opened: Engine, tmp_path: Path) -> None:
    spec = made(tmp_path)
    other = "arm64" if specs.ARCHITECTURE == "amd64" else "amd64"
    elsewhere = Engine(opened.client, opened.address, msgspec.structs.replace(opened.facts, architecture=other))
    docker.check_engine(spec, opened)
    with pytest.raises(PlatformError, match=other):
        docker.check_engine(spec, elsewhere)


def test_a_name_that_is_none(tmp_path: Path) -> None:
    for name in ("A", "a b", "a:b:c", "-a", "a;id", "a\n"):
        with pytest.raises(UsageError, match="no name for an image"):
            story.built(
                made(tmp_path / "x"), tmp_path / "x" / "repro", store=Store.open(tmp_path / "s"), tell=Silent(), name=name
            )


def test_no_engine(tmp_path: Path) -> None:
    spec = made(tmp_path)
    with pytest.raises(EngineError, match="no such socket"):
        story.built(
            spec, tmp_path / "repro", store=Store.open(tmp_path / "s"), tell=Silent(), address=f"unix://{tmp_path}/none.sock"
        )
