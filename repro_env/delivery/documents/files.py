"""The files of a spec: lock files, SBOM and the spec itself. A file that is already up to date is not written again."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from repro_env.delivery.documents import templates
from repro_env.io.files import atomic_write
from repro_env.schema import codec
from repro_env.schema.spec import Spec
from repro_env.store.facts import FactCache
from repro_env.version import __version__

_KIND = "rendered"


class _WrittenFiles(msgspec.Struct, frozen=True):
    files: dict[str, str]
    """Name -> sha256 (hex)."""


def write(output: Path, spec: Spec, facts: FactCache) -> None:
    """Write the lock files and the SBOM, then the spec. `conda-explicit.txt` is removed if the spec has no conda packages."""
    data = codec.pretty(spec)
    names = ["pylock.toml", "requirements.txt", "sbom.cdx.json"] + (["conda-explicit.txt"] if spec.identity.packages else [])
    key = (__version__, hashlib.sha256(data).hexdigest(), templates.state())
    update(output, names, key, lambda: {name: render(spec) for name, render in _renderers().items() if name in names}, facts)
    if not spec.identity.packages:
        (output / "conda-explicit.txt").unlink(missing_ok=True)
    if _sha256(output / "spec.json") != hashlib.sha256(data).hexdigest():
        atomic_write(output / "spec.json", data)


def update(
    output: Path, names: Sequence[str], key: tuple[object, ...], make: Callable[[], dict[str, bytes]], facts: FactCache
) -> None:
    """Write files unless they were already written for this key and have not changed since."""
    digest = codec.digest((names, key))
    written = facts.recall(_KIND, digest, _WrittenFiles)
    if written is not None and all(_sha256(output / name) == written.files.get(name) for name in names):
        return
    files = make()
    for name, data in files.items():
        atomic_write(output / name, data)
    digests = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
    facts.put(_KIND, digest, codec.canonical(_WrittenFiles(digests)))


def _renderers() -> dict[str, Callable[[Spec], bytes]]:
    from repro_env.delivery.documents import condaexplicit, pylock, requirements, sbom  # these imports are slow

    return {
        "requirements.txt": requirements.render,
        "pylock.toml": pylock.render,
        "conda-explicit.txt": condaexplicit.render,
        "sbom.cdx.json": sbom.render,
    }


def _sha256(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return ""
