"""The Dockerfile of a spec and what stands beside it: the installer, and the list of every path that the image has."""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

import msgspec

from repro_env import __version__
from repro_env.flows import trees
from repro_env.image import config, stack
from repro_env.image import wheel as rule
from repro_env.image.entry import Entry
from repro_env.image.flat import flatten
from repro_env.image.foreign import Node
from repro_env.io.files import atomic_write
from repro_env.model import codec
from repro_env.model.artifact import TreeBlob, Wheel
from repro_env.model.errors import ArtifactError, BuildError
from repro_env.model.spec import Spec
from repro_env.render import dockerfile, templates
from repro_env.store.carried import Carried
from repro_env.store.store import Store
from repro_env.store.wheelfile import FACTS, open_facts

NAME = "Dockerfile"
NAMES = (NAME, dockerfile.INSTALLER, dockerfile.LISTING)
_KIND = "dockerfile"
_SOURCE = Path(__file__).resolve().parents[1] / "inside" / "install.py"
_HINT = "the spec was edited or damaged; restore it or capture again"


class _Written(msgspec.Struct, frozen=True):
    files: dict[str, str]
    """Name -> sha256 (hex)."""


def write(output: Path, spec: Spec, store: Store) -> str:
    """Write the three files to the spec's folder, where they are not there already; none where there can be none.

    Returns why there is no Dockerfile, or nothing. Depends on the identity alone: after an edit of the code, nothing is done.
    """
    why = dockerfile.refusal(spec)
    if why:
        for name in NAMES:
            (output / name).unlink(missing_ok=True)
        return why
    linked = any(hint.urls for hint in spec.hints.wheels)
    key = codec.digest(
        (__version__, spec.digest, spec.expected.image_id, linked, templates.state(), hashlib.sha256(installer()).hexdigest())
    )
    known = store.facts.recall(_KIND, key, _Written)
    if known is None or any(_sha256(output / name) != known.files.get(name) for name in NAMES):
        made = files(spec, expected(spec, output, store))
        for name, data in made.items():
            atomic_write(output / name, data)
        digests = {name: hashlib.sha256(data).hexdigest() for name, data in made.items()}
        store.facts.put(_KIND, key, codec.canonical(_Written(digests)))
    return ""


def files(spec: Spec, paths: Iterable[Entry]) -> dict[str, bytes]:
    """What stands beside the spec, by name. `paths`: all of the image."""
    return {
        NAME: dockerfile.render(spec, config.LABEL),
        dockerfile.INSTALLER: installer(),
        dockerfile.LISTING: listing(paths),
    }


@lru_cache(maxsize=1)
def installer() -> bytes:
    return _SOURCE.read_bytes()


def listing(paths: Iterable[Entry]) -> bytes:
    """A line of JSON for each path: path, kind, sha256 or target. Compressed by zlib, as carried trees are."""
    packer = zlib.compressobj(6, zlib.DEFLATED, 31)  # a gzip header without name and time
    rows = (json.dumps([one.path, *_told(one)], ensure_ascii=False, separators=(",", ":")) + "\n" for one in paths)
    return packer.compress("".join(rows).encode()) + packer.flush()


def _told(one: Entry) -> tuple[str, str]:
    if one.kind == "file":
        return "program" if one.executable else "file", one.sha256
    return one.kind, one.target


def expected(spec: Spec, folder: Path, store: Store) -> list[Entry]:
    """Every path of the image, sorted: computed from the spec's identity, its carried trees and its wheels' own facts.

    The diff IDs of the layers that it stands for are compared with the expected ones as far as they are known. Raises
    `ArtifactError` when a tree or a wheel's facts are missing, `BuildError` when the spec contradicts itself.
    """
    identity = spec.identity
    layers: list[Iterable[Entry]] = [
        _tree(one, folder, store) for one in (identity.base, identity.unowned, identity.interpreter.tree) if one is not None
    ]
    installed = {
        one.key: rule.canonical(facts(one, folder, store), identity.layout_of(one), name=one.name)
        for one in identity.distributions
    }
    groups = stack.layers(installed)
    labels = {one.key: f"{one.key}=={one.version}" for one in identity.distributions}
    told = [one.holds for one in spec.expected.layers if one.kind == "distributions"]
    if [tuple(labels[name] for name in group.names) for group in groups] != told:
        raise BuildError("the expected layers do not hold the distributions of the identity", where="expected", hint=_HINT)
    layers += [group.entries for group in groups]
    if identity.overlay is not None:
        layers.append(_tree(identity.overlay, folder, store))
    layers.append([entry for entry, _ in config.marker(identity)])
    flat = flatten([[_node(entry) for entry in entries] for entries in layers])
    return flat.entries()


def facts(one: Wheel, folder: Path, store: Store) -> rule.Facts:
    """What is known of a wheel, or stands in the carried one. Raises `ArtifactError`."""
    known = store.facts.recall(FACTS, one.sha256, rule.Facts)
    if known is not None:
        return known if known.filename == one.filename else msgspec.structs.replace(known, filename=one.filename)
    path = store.blobs.path(one.sha256) or Carried(folder / "blobs").file(one.sha256)
    if path is None:
        raise ArtifactError("nothing is known of its wheel", where=f"{one.name}=={one.version}", hint="capture again, or rebuild")
    return open_facts(path, one.filename)


def _tree(blob: TreeBlob, folder: Path, store: Store) -> Iterable[Entry]:
    held = trees.captured(blob, folder, store)
    if held is None:
        raise ArtifactError(
            "is not there",
            where=str(folder / "blobs" / blob.sha256.removeprefix("sha256:")),
            hint="copy the whole folder of the spec, blobs/ included, or capture again",
        )
    return held.entries().values()


def _node(entry: Entry) -> Node:
    return Node(
        path=entry.path,
        kind=entry.kind,
        mode=0o755 if entry.executable or entry.kind != "file" else 0o644,
        size=entry.size,
        sha256=entry.sha256,
        target=entry.target,
    )


def _sha256(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return ""
