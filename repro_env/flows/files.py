"""The files beside a spec's blobs: written only where they are not there already, byte for byte."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import msgspec

from repro_env import __version__
from repro_env.io.files import atomic_write
from repro_env.model import codec
from repro_env.model.spec import Spec
from repro_env.render import templates
from repro_env.store.facts import FactCache

_KIND = "rendered"


class _Rendered(msgspec.Struct, frozen=True):
    files: dict[str, str]
    """Name -> sha256 (hex) of what was rendered."""


def write(output: Path, spec: Spec, facts: FactCache) -> None:
    """The lock files and the SBOM, then the spec. A file of a kind that this spec has not is removed."""
    data = codec.pretty(spec)
    key = codec.digest((__version__, hashlib.sha256(data).hexdigest(), templates.state()))
    known = facts.recall(_KIND, key, _Rendered)
    names = {"requirements.txt", "pylock.toml", "sbom.cdx.json"} | ({"conda-explicit.txt"} if spec.identity.packages else set())
    if known is None or known.files.keys() != names or any(_sha256(output / name) != known.files[name] for name in names):
        files = {name: render(spec) for name, render in _renderers().items() if name in names}
        for name, text in files.items():
            atomic_write(output / name, text)
        facts.put(
            _KIND, key, codec.canonical(_Rendered({name: hashlib.sha256(text).hexdigest() for name, text in files.items()}))
        )
    if not spec.identity.packages:
        (output / "conda-explicit.txt").unlink(missing_ok=True)
    if _sha256(output / "spec.json") != hashlib.sha256(data).hexdigest():
        atomic_write(output / "spec.json", data)


def _renderers() -> dict[str, Callable[[Spec], bytes]]:
    from repro_env.render import conda, pylock, requirements, sbom  # takes long to import

    return {
        "requirements.txt": requirements.render,
        "pylock.toml": pylock.render,
        "conda-explicit.txt": conda.render,
        "sbom.cdx.json": sbom.render,
    }


def _sha256(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return ""
