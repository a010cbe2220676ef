"""The image config and the ID computed from it; the marker layer."""

from __future__ import annotations

import hashlib
import posixpath
import re
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from repro_env.image import layer, layout, tar
from repro_env.image.entry import Entry, Member, ordered
from repro_env.model import codec
from repro_env.model.artifact import TreeBlob
from repro_env.model.image import Layer, LayerKind, Settings
from repro_env.model.spec import Identity, Source

CREATED = "1980-01-01T00:00:00Z"
LABEL = "io.repro-env.spec"
_OCI = "org.opencontainers.image"
"""Prefix of the keys that the image spec defines (annotations.md)."""


def config(identity: Identity, diff_ids: Sequence[str], *, source: Source | None = None, user: str = "") -> bytes:
    """The OCI image config, canonical JSON. It carries the spec digest and never an image ID, so there is no circle.

    `source`: the code, if the image holds it too. `user`: `UID` or `UID:GID` that the image starts as; default: root.
    Without either it follows from the identity alone, and its digest is the image ID that a capture expects.
    """
    return codec.canonical(
        {
            "architecture": identity.platform.architecture,
            "config": {**msgspec.to_builtins(settings(identity, source)), **({"User": user} if user else {})},
            "created": (source and source.git and source.git.date) or CREATED,
            "os": identity.platform.os,
            "rootfs": {"diff_ids": list(diff_ids), "type": "layers"},
        }
    )


def settings(identity: Identity, source: Source | None = None) -> Settings:
    """What the image sets for every container. `source`: the code, if the image holds it too."""
    return Settings(
        cmd=[_command(identity)],
        env=[f"{name}={value}" for name, value in sorted(variables(identity).items())],
        labels=_labels(identity, source),
        working_dir=source.path if source is not None else "/",
    )


def _command(identity: Identity) -> str:
    """The environment's own Python, by its place in the image: what a container runs by default."""
    prefix = identity.layout.prefix
    if identity.layout.in_place or not identity.command.startswith(prefix + "/"):
        return identity.command
    return layout.ENVIRONMENT + identity.command.removeprefix(prefix)


def variables(identity: Identity) -> dict[str, str]:
    """The captured variables, and those that a container needs which repro-env did not start.

    A moved environment is named by its place in the image, not by the captured one: a project that is mounted over the
    captured prefix would bring the host's environment.
    """
    values = {variable.name: variable.value for variable in identity.config.env}
    place = identity.layout
    if not place.in_place:
        captured = f"{place.prefix}/{place.scripts}"
        rest = [folder for folder in values.get("PATH", layout.SYSTEM_PATH).split(":") if folder != captured]
        values["PATH"] = ":".join([f"{layout.ENVIRONMENT}/{place.scripts}", *rest])
        values["VIRTUAL_ENV"] = layout.ENVIRONMENT
    return {"HOME": layout.CONTAINER_HOME, "USER": layout.CONTAINER_USER, **values}


def _labels(identity: Identity, source: Source | None) -> dict[str, str]:
    """The spec digest and the OCI annotation keys (image spec 1.1). What is about the code is in images that hold the code."""
    found = {LABEL: codec.digest(identity), f"{_OCI}.title": f"Python {identity.interpreter.version} environment"}
    if source is None:
        return found
    found[f"{_OCI}.title"] = posixpath.basename(source.path) or "/"
    if source.git is not None and source.git.commit:
        found[f"{_OCI}.revision"] = source.git.commit + ("-dirty" if source.git.dirty else "")
        found[f"{_OCI}.created"] = source.git.date or CREATED
    if source.git is not None and (url := _url(source.git.remote)):
        found[f"{_OCI}.source"] = url
    return found


def _url(remote: str) -> str:
    """The URL of a git remote; empty for a path of the machine. Capture has removed credentials."""
    if match := re.fullmatch(r"([\w.-]+@[\w.-]+):(?!/)([^\s:]+)", remote):
        return f"ssh://{match[1]}/{match[2]}"
    return remote if re.match(r"(https?|ssh|git)://", remote) else ""


def image_id(identity: Identity, layers: Iterable[Layer]) -> str:
    """`sha256:<hex>` of the config: what Docker shows as Image ID; independent of compression."""
    return "sha256:" + hashlib.sha256(config(identity, [one.diff_id for one in layers])).hexdigest()


def marker(identity: Identity) -> list[Member]:
    """The last layer: the marker file, directories for temporary files, and a symlink where a moved tree was captured."""
    text = codec.canonical({"schema": "repro-env/image/1", "spec": codec.digest(identity)}) + b"\n"
    entries = [Entry(path, "dir") for path in tar.SHARED]
    entries.append(Entry(layout.inside(layout.MARKER), "file", size=len(text), sha256=hashlib.sha256(text).hexdigest()))
    if not identity.layout.in_place:
        entries.append(Entry(layout.inside(identity.layout.prefix), "link", target=layout.ENVIRONMENT))
    return list(_with(ordered(entries), text))


def _with(entries: Iterable[Entry], text: bytes) -> Iterator[Member]:
    for entry in entries:
        yield entry, ([text] if entry.kind == "file" else ())


def lower_layers(identity: Identity) -> list[Layer]:
    """The layers that carried trees make, below conda packages and distributions."""
    trees: list[tuple[LayerKind, TreeBlob | None]] = [
        ("base", identity.base),
        ("unowned", identity.unowned),
        ("interpreter", identity.interpreter.tree),
    ]
    return [Layer(kind=kind, diff_id=tree.sha256, holds=()) for kind, tree in trees if tree is not None]


def upper_layers(identity: Identity) -> list[Layer]:
    """The layers above all packages: the overlay, where there is one, and the marker."""
    overlay = identity.overlay
    above = [] if overlay is None else [Layer(kind="overlay", diff_id=overlay.sha256, holds=())]
    return [*above, marker_layer(identity)]


def marker_layer(identity: Identity) -> Layer:
    return Layer(kind="marker", diff_id=layer.diff_id(marker(identity)), holds=())
