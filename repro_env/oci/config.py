"""The image config, the image ID computed from it, and the marker layer."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from repro_env.oci import layer, paths, tar
from repro_env.oci.entry import Entry, Member, sort_with_parents
from repro_env.schema import codec
from repro_env.schema.image import LABEL, Layer, Settings
from repro_env.schema.spec import Identity, Source
from repro_env.schema.text import Digest

CREATED = "1980-01-01T00:00:00Z"
_OCI = "org.opencontainers.image"
"""Prefix of the annotation keys that the OCI image spec defines (annotations.md)."""


class ContainerSettings(msgspec.Struct, frozen=True, rename="pascal"):
    """The container settings of an image that repro-env reads."""

    labels: dict[str, str] | None = None
    user: str | None = None


class RootFilesystem(msgspec.Struct, frozen=True):
    """The layers that a config names."""

    diff_ids: Annotated[list[Digest], Meta(max_length=1000)]


class ImageConfig(msgspec.Struct, frozen=True):
    """The config of any image (OCI image spec, config.md)."""

    rootfs: RootFilesystem
    config: ContainerSettings | None = None

    @property
    def diff_ids(self) -> list[str]:
        """The layers, lowest first."""
        return self.rootfs.diff_ids

    @property
    def settings(self) -> ContainerSettings:
        return self.config or ContainerSettings()

    @property
    def label(self) -> str:
        """The digest of the spec; empty if repro-env did not build the image."""
        return (self.settings.labels or {}).get(LABEL, "")


def config(identity: Identity, diff_ids: Sequence[str], *, source: Source | None = None, user: str = "") -> bytes:
    """Return the OCI image config as canonical JSON. It holds the spec digest and never an image ID, which would depend on itself.

    `source`: the code, if the image includes it. `user`: the `UID` or `UID:GID` that a container runs as (default: root).
    Without both, the config depends on the identity alone, and its digest is the image ID that a capture expects.
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
    """Return what the image sets for every container. `source`: the code, if the image includes it."""
    return Settings(
        cmd=[_command(identity)],
        env=[f"{name}={value}" for name, value in sorted(variables(identity).items())],
        labels=_labels(identity, source),
        working_dir=source.path if source is not None else "/",
    )


def _command(identity: Identity) -> str:
    """Return the path of the environment's Python inside the image: the default command of a container."""
    prefix = identity.layout.prefix
    if identity.layout.in_place or not identity.command.startswith(prefix + "/"):
        return identity.command
    return paths.ENVIRONMENT + identity.command.removeprefix(prefix)


def variables(identity: Identity) -> dict[str, str]:
    """Return the captured variables, and those that a container needs if repro-env does not start it.

    PATH names the environment by its path inside the image, not by the captured prefix: a project mounted over the
    captured prefix would bring in the host's environment.
    """
    environment = {variable.name: variable.value for variable in identity.config.env}
    tree_layout = identity.layout
    if not tree_layout.in_place:
        captured = f"{tree_layout.prefix}/{tree_layout.scripts}"
        others = [directory for directory in environment.get("PATH", paths.SYSTEM_PATH).split(":") if directory != captured]
        environment["PATH"] = ":".join([f"{paths.ENVIRONMENT}/{tree_layout.scripts}", *others])
        environment["VIRTUAL_ENV"] = paths.ENVIRONMENT
    return {"HOME": paths.CONTAINER_HOME, "USER": paths.CONTAINER_USER, **environment}


def _labels(identity: Identity, source: Source | None) -> dict[str, str]:
    """Return the spec digest and OCI annotations (image spec 1.1). Only an image with the code has labels about the code."""
    labels = {LABEL: codec.digest(identity), f"{_OCI}.title": f"Python {identity.interpreter.version} environment"}
    if source is None:
        return labels
    labels[f"{_OCI}.title"] = posixpath.basename(source.path) or "/"
    if source.git is not None and source.git.commit:
        labels[f"{_OCI}.revision"] = source.git.commit + ("-dirty" if source.git.dirty else "")
        labels[f"{_OCI}.created"] = source.git.date or CREATED
    if source.git is not None and (url := _url(source.git.remote)):
        labels[f"{_OCI}.source"] = url
    return labels


def _url(remote: str) -> str:
    """Return the URL of a git remote, or empty for a local path. Capture has removed credentials."""
    if match := re.fullmatch(r"([\w.-]+@[\w.-]+):(?!/)([^\s:]+)", remote):
        return f"ssh://{match[1]}/{match[2]}"
    return remote if re.match(r"(https?|ssh|git)://", remote) else ""


def image_id(identity: Identity, layers: Iterable[Layer]) -> str:
    """Return `sha256:<hex>` of the config, which Docker shows as the image ID. It does not depend on compression."""
    return codec.digest_of(config(identity, [image_layer.diff_id for image_layer in layers]))


def marker(identity: Identity) -> list[Member]:
    """Return the last layer: the marker file, directories for temporary files, and a symlink at the captured prefix."""
    text = codec.canonical({"schema": "repro-env/image/1", "spec": codec.digest(identity)}) + b"\n"
    entries = [Entry(path, "dir") for path in tar.SHARED]
    entries.append(Entry.of(paths.inside(paths.MARKER), text))
    if not identity.layout.in_place:
        entries.append(Entry(paths.inside(identity.layout.prefix), "link", target=paths.ENVIRONMENT))
    return [(entry, [text] if entry.kind == "file" else ()) for entry in sort_with_parents(entries)]


def lower_layers(identity: Identity) -> list[Layer]:
    """Return the layers of bundled trees, which are below conda packages and distributions."""
    trees = ((name, tree) for name, tree in identity.trees.items() if tree is not None and name != "overlay")
    return [Layer(kind=name, diff_id=tree.sha256, holds=()) for name, tree in trees]


def upper_layers(identity: Identity) -> list[Layer]:
    """Return the layers above all packages: the overlay, if there is one, and the marker."""
    overlay = identity.overlay
    above = [] if overlay is None else [Layer(kind="overlay", diff_id=overlay.sha256, holds=())]
    return [*above, marker_layer(identity)]


def marker_layer(identity: Identity) -> Layer:
    return Layer(kind="marker", diff_id=layer.diff_id(marker(identity)), holds=())
