"""Real engines read each value unchanged: Docker with BuildKit, Docker's classic builder, and Podman."""

from __future__ import annotations

import contextlib
import io
import json
import re
import subprocess
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from docker.errors import BuildError

from repro_env.delivery.documents.dockerfile import json_words, plain_path, quoted, setting
from repro_env.io import engine
from repro_env.io.engine import Engine
from repro_env.oci import tar
from repro_env.oci.entry import Entry, sort_with_parents
from tests.delivery.documents.values import NASTY
from tests.parts import need
from tests.sandbox import engines

PARAMETERS = {
    "BuildKit": {"version": "2"},
    "classic": {},
    "Podman": {"layers": "0"},  # else each instruction leaves an unnamed image
}
"""The options that select the builder of an engine."""


class Builder:
    """Builds images without network, and removes them at the end of the test."""

    def __init__(self, engine: Engine, parameters: Mapping[str, str]) -> None:
        self._engine = engine
        self._parameters = {"networkmode": "none", "forcerm": "1", **parameters}
        self._images: list[str] = []

    def build(self, text: str, files: Mapping[str, bytes] | None = None) -> str:
        """Return the ID of the image. Not by docker-py's own `build`, which cannot ask for BuildKit."""
        api = self._engine.client.api
        url = f"{api.base_url}/v{api.api_version}/build"
        headers = {"Content-Type": "application/x-tar"}
        context = archive({"Dockerfile": text.encode(), **(files or {})})
        with api.post(url, params=self._parameters, data=context, headers=headers, timeout=300) as answer:
            answer.raise_for_status()
            events = [json.loads(line) for line in answer.iter_lines() if line.strip()]
        images = [event["aux"]["ID"] for event in events if isinstance(event.get("aux"), dict) and "ID" in event["aux"]]
        printed = "".join(str(event.get("stream", "")) for event in events)
        self._images += [*re.findall(r"^ ---> ([0-9a-f]{12})$", printed, re.MULTILINE), *images]  # the classic builder's steps
        if errors := [event["error"] for event in events if event.get("error")]:
            raise BuildError(errors[0], events)
        return str(images[-1])

    def config(self, image: str) -> Mapping[str, object]:
        found: Mapping[str, object] = self._engine.client.api.inspect_image(image)["Config"]
        return found

    def remove_images(self) -> None:
        for image in reversed(self._images):
            with contextlib.suppress(Exception):
                self._engine.client.api.remove_image(image, force=True)


@pytest.fixture(scope="module", params=PARAMETERS)
def builder(request: pytest.FixtureRequest) -> Iterator[Builder]:
    with contextlib.ExitStack() as stack:
        address = stack.enter_context(engines.podman()) if request.param == "Podman" else engines.docker()
        made = Builder(stack.enter_context(engine.connect(address)), PARAMETERS[request.param])
        yield made
        made.remove_images()


def archive(files: Mapping[str, bytes]) -> bytes:
    """A build context."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as made:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            made.addfile(member, io.BytesIO(data))
    return out.getvalue()


def test_values_reach_the_image_unchanged(builder: Builder) -> None:
    """No value is expanded, split, continued or read as an instruction."""
    values = [(f"V{number}", value) for number, value in enumerate(NASTY.values())]
    label = 'a "$HOME" \\ <<EOF'
    # On one line, since the classic builder starts a container for each instruction.
    env = "ENV " + " ".join(f"{name}={quoted(value)}" for name, value in [("HOME", "/wrong"), *values])
    config = builder.config(builder.build(f"FROM scratch\n{env}\n{setting('LABEL', 'io.example.odd', label)}\n"))
    variables, labels = config["Env"], config["Labels"]
    assert isinstance(variables, list)
    assert variables[-len(values) :] == [f"{name}={value}" for name, value in values]
    assert isinstance(labels, dict)
    assert labels["io.example.odd"] == label


def test_the_words_of_a_command_reach_the_image_unchanged(builder: Builder, tmp_path: Path) -> None:
    """In JSON form, without a shell: a static program compares its arguments with a file."""
    words = [value for value in NASTY.values() if value]
    listed = b"".join(word.encode() + b"\0" for word in words)
    project = "/home/a b@c,d:e=f~g+h"  # where the code is unpacked
    targets = ("/", f"{plain_path(project)}/")
    steps = [
        "FROM scratch",
        *(f"ADD {json_words(['program.tar', target])}" for target in targets),
        f"RUN {json_words([f'{project}/compare', *words])}",
        f"CMD {json_words(words)}",
        f"WORKDIR {project}",
    ]
    text = "\n".join(steps) + "\n"
    program = compare(tmp_path)
    config = builder.config(builder.build(text, {"program.tar": layer({"compare": program, "words": listed})}))
    assert (config["Cmd"], config["WorkingDir"]) == (words, project)
    with pytest.raises(BuildError):
        builder.build(text, {"program.tar": layer({"compare": program, "words": listed + b"more\0"})})


def compare(directory: Path) -> bytes:
    """A static program that exits with 0 if its arguments are those in /words."""
    source = directory / "compare.c"
    source.write_text(
        "#include <stdio.h>\n"
        'int main(int n, char **v) { FILE *f = fopen("/words", "rb"); int c;\n'
        "for (int i = 1; i < n; i++) for (char *p = v[i];; p++) { if ((c = fgetc(f)) != (unsigned char)*p) return 1; if (!c) break; }\n"
        "return fgetc(f) == EOF ? 0 : 1; }\n"
    )
    done = subprocess.run(["gcc", "-static", "-o", directory / "compare", source], capture_output=True, check=False)
    need(done.returncode == 0, "gcc and a static libc: apt-get install gcc libc6-dev")
    return (directory / "compare").read_bytes()


def layer(files: Mapping[str, bytes]) -> bytes:
    """Executable files as a tar, which ADD unpacks."""
    entries = [Entry(path, "file", True, len(data)) for path, data in files.items()]
    return b"".join(tar.write((entry, [files[entry.path]]) for entry in sort_with_parents(entries)))
