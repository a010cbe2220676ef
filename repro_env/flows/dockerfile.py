"""The Dockerfile of a spec and what stands beside it: the installer, and the list of every path that the image has."""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from repro_env import __version__
from repro_env.image import config
from repro_env.image.entry import Entry
from repro_env.io.files import atomic_write
from repro_env.model import codec
from repro_env.model.errors import SpecError
from repro_env.model.spec import Source, Spec
from repro_env.render import dockerfile, instruction, templates
from repro_env.store.store import Store

if TYPE_CHECKING:
    from repro_env.build.expected import Known

NAME = "Dockerfile"
NAMES = (NAME, dockerfile.INSTALLER, dockerfile.LISTING)
_KIND = "dockerfile"
_SOURCE = Path(__file__).resolve().parents[1] / "inside" / "install.py"


class _Written(msgspec.Struct, frozen=True):
    files: dict[str, str]
    """Name -> sha256 (hex)."""


def write(output: Path, spec: Spec, store: Store, facts: Known | None = None) -> str:
    """Write the three files to the spec's folder, where they are not there already; none where there can be none.

    `facts`: asked for a wheel that the store does not know. Returns why there is no Dockerfile, or nothing. The list of
    paths depends on the identity alone: after an edit of the code, it is not made again.
    """
    code = _source(spec)
    why = dockerfile.refusal(spec) or _unsayable(spec, None)
    if why:
        for name in NAMES:
            (output / name).unlink(missing_ok=True)
        return why
    linked = any(hint.urls for hint in spec.hints.wheels)
    tool = (__version__, templates.state(), hashlib.sha256(installer()).hexdigest())
    labels = config.settings(spec.identity, code).labels
    place = None if code is None else (code.path, code.tree.sha256)

    def paths() -> dict[str, bytes]:
        from repro_env.build.expected import entries  # not needed where nothing has changed

        return {dockerfile.LISTING: listing(entries(spec, output, store, facts))}

    _keep(output, (dockerfile.LISTING,), (__version__, spec.digest), paths, store)
    key = (*tool, spec.digest, spec.expected.image_id, linked, labels, place)
    _keep(output, (NAME, dockerfile.INSTALLER), key, lambda: _texts(spec, code), store)
    return ""


def _keep(
    output: Path, names: Sequence[str], key: tuple[object, ...], make: Callable[[], dict[str, bytes]], store: Store
) -> None:
    """Make files anew unless they are those that were made for this key."""
    digest = codec.digest((names, key))
    known = store.facts.recall(_KIND, digest, _Written)
    if known is not None and all(_sha256(output / name) == known.files.get(name) for name in names):
        return
    made = make()
    for name, data in made.items():
        atomic_write(output / name, data)
    digests = {name: hashlib.sha256(data).hexdigest() for name, data in made.items()}
    store.facts.put(_KIND, digest, codec.canonical(_Written(digests)))


def _source(spec: Spec) -> Source | None:
    """The code that a Dockerfile puts into the image: none if the path of the project is one that no Dockerfile can say."""
    return None if _unsayable(spec, spec.observed.source) else spec.observed.source


def _unsayable(spec: Spec, source: Source | None) -> str:
    """A path with a no-break space in it, say, is no reason not to capture."""
    try:
        for step in dockerfile.steps(spec, config.settings(spec.identity, source), source):
            for one in step.instructions:
                instruction.line(one)
    except SpecError as error:
        return error.what
    return ""


def files(spec: Spec, paths: Iterable[Entry], source: Source | None = None) -> dict[str, bytes]:
    """What stands beside the spec, by name. `paths`: all of the image. `source`: the code, if the image is to hold it too."""
    return {**_texts(spec, source), dockerfile.LISTING: listing(paths)}


def _texts(spec: Spec, source: Source | None) -> dict[str, bytes]:
    return {
        NAME: dockerfile.render(spec, config.settings(spec.identity, source), source),
        dockerfile.INSTALLER: installer(),
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


def _sha256(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return ""
