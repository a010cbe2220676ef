"""pylock.toml (PEP 751): the same wheels for other installers. `packaging` validates it before it is written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from packaging.pylock import Package, PackageWheel, Pylock
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from repro_env.delivery.documents import templates
from repro_env.delivery.documents.requirements import split_shadowed
from repro_env.schema.artifact import Wheel
from repro_env.schema.spec import Spec, WheelHint


def render(spec: Spec) -> bytes:
    """Return the file, sorted by name. The same spec gives the same bytes. Bundled wheels have their path in `blobs/`."""
    hints = {hint.sha256: hint for hint in spec.hints.wheels}
    wheels, _ = split_shadowed(spec)
    lock = Pylock(
        lock_version=Version("1.0"),
        requires_python=_python(spec.identity.interpreter.version),
        created_by="repro-env",
        packages=[_package(wheel, hints[wheel.sha256]) for wheel in wheels],
        tool={"repro-env": {"spec": spec.digest}},
    )
    lock.validate()
    return templates.render("pylock.toml.j2", lock=_plain(lock.to_dict()))


def _package(wheel: Wheel, hint: WheelHint) -> Package:
    digest = wheel.sha256.removeprefix("sha256:")
    linked = bool(hint.urls)
    return Package(
        name=canonicalize_name(wheel.name),
        version=_version(wheel.version),
        index=hint.index if linked and hint.index else None,
        wheels=[
            PackageWheel(
                name=wheel.filename,
                url=hint.urls[0] if linked else None,
                path=None if linked else f"blobs/{digest}",
                size=wheel.size,
                hashes={"sha256": digest},
            )
        ],
    )


def _version(text: str) -> Version | None:
    """Return a version of PEP 440; other versions are left out, as PEP 751 allows."""
    try:
        return Version(text)
    except InvalidVersion:
        return None


def _python(version: str) -> SpecifierSet | None:
    parts = version.split(".")
    return SpecifierSet(f"=={parts[0]}.{parts[1]}.*") if len(parts) > 1 and parts[0].isdigit() and parts[1].isdigit() else None


def _plain(value: Any) -> Any:
    """Convert the sequences and mappings of `packaging` to lists and dicts."""
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, (list, tuple)) else value
