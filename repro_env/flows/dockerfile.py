"""The Dockerfile of a spec and what stands beside it: the installer, and the list of every path that the image has."""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Iterable
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
from repro_env.model.spec import Spec
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

    `facts`: asked for a wheel that the store does not know. Returns why there is no Dockerfile, or nothing. Depends on the identity alone: after an edit of the code, nothing is done.
    """
    why = dockerfile.refusal(spec) or _unsayable(spec)
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
        from repro_env.build.expected import entries  # not needed where nothing has changed

        made = files(spec, entries(spec, output, store, facts))
        for name, data in made.items():
            atomic_write(output / name, data)
        digests = {name: hashlib.sha256(data).hexdigest() for name, data in made.items()}
        store.facts.put(_KIND, key, codec.canonical(_Written(digests)))
    return ""


def _unsayable(spec: Spec) -> str:
    """A path with a no-break space in it, say, is no reason not to capture."""
    try:
        for step in dockerfile.steps(spec, config.LABEL):
            for one in step.instructions:
                instruction.line(one)
    except SpecError as error:
        return error.what
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


def _sha256(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return ""
