"""Lock files for other tools: requirements.txt, pylock.toml and conda-explicit.txt. The same spec gives the same bytes.

They name the same wheels and packages as the spec, but not the interpreter, the system and edited files.
"""

from __future__ import annotations

from typing import Any

from packaging.pylock import Pylock
from packaging.version import InvalidVersion, Version

from repro_env.delivery.documents import templates
from repro_env.schema.artifact import Artifact, Wheel
from repro_env.schema.spec import Spec, WheelHint

_PLATFORMS = {"amd64": "linux-64", "arm64": "linux-aarch64"}


def requirements(spec: Spec) -> bytes:
    """Return requirements.txt, sorted by name: each distribution with its sha256, for any version of pip.

    Of several distributions of one name, it lists the one that Python imports.
    """
    hints = {hint.sha256: hint for hint in spec.hints.wheels}
    shown, shadowed = split_shadowed(spec)
    lines = [{**_row(wheel, spec), "what": requirement(wheel, hints[wheel.sha256])} for wheel in shown]
    return templates.render(
        "requirements.txt.j2",
        lines=lines,
        some_bundled=any(line["bundled"] for line in lines),
        shadowed=[
            {"what": f"{wheel.name} {wheel.version}", "prefix": spec.identity.layout_of(wheel).prefix} for wheel in shadowed
        ],
        conda=bool(spec.identity.packages),
        python=spec.identity.interpreter.version,
        digest=spec.digest,
    )


def _row(artifact: Artifact, spec: Spec) -> dict[str, Any]:
    return {
        "sha256": artifact.sha256,
        "bundled": artifact.sha256 in spec.bundled,
        "blob": f"blobs/{artifact.sha256.removeprefix('sha256:')}",
        "filename": artifact.filename,
    }


def requirement(wheel: Wheel, hint: WheelHint) -> str:
    """Return `name==version`, or `name @ URL` if the wheel is not from an index (PEP 508)."""
    if hint.origin == "direct":
        return f"{wheel.name} @ {hint.urls[0]}"
    return f"{wheel.name}{'==' if _is_version(wheel.version) else '==='}{wheel.version}"


def _is_version(text: str) -> bool:
    """Return whether this is a version of PEP 440."""
    try:
        Version(text)
    except InvalidVersion:
        return False
    return True


def split_shadowed(spec: Spec) -> tuple[tuple[Wheel, ...], tuple[Wheel, ...]]:
    """Return the distributions that are first on `sys.path`, and those that they shadow; both sorted by name.

    A lock file for other installers names each distribution once, because they install into one site directory.
    """
    path = {entry: number for number, entry in reversed(list(enumerate(spec.observed.startup.sys_path)))}

    def rank(wheel: Wheel) -> tuple[int, int]:
        return min(path.get(site, len(path)) for site in spec.identity.layout_of(wheel).sites), wheel.site

    first: dict[str, Wheel] = {}
    for wheel in sorted(spec.identity.distributions, key=rank):
        first.setdefault(wheel.name, wheel)
    shadowed = [wheel for wheel in spec.identity.distributions if first[wheel.name] != wheel]
    return tuple(first[name] for name in sorted(first)), tuple(sorted(shadowed, key=lambda wheel: (wheel.name, wheel.site)))


def pylock(spec: Spec) -> bytes:
    """Return pylock.toml (PEP 751), sorted by name. Bundled wheels have their path in `blobs/`. `packaging` validates it."""
    hints = {hint.sha256: hint for hint in spec.hints.wheels}
    python = spec.identity.interpreter.version.split(".")
    lock = {
        "lock-version": "1.0",
        "requires-python": f"=={python[0]}.{python[1]}.*",
        "created-by": "repro-env",
        "packages": [_locked(wheel, hints[wheel.sha256]) for wheel in split_shadowed(spec)[0]],
        "tool": {"repro-env": {"spec": spec.digest}},
    }
    Pylock.from_dict(lock)
    return templates.render("pylock.toml.j2", lock=lock)


def _locked(wheel: Wheel, hint: WheelHint) -> dict[str, Any]:
    digest = wheel.sha256.removeprefix("sha256:")
    place = {"url": hint.urls[0]} if hint.urls else {"path": f"blobs/{digest}"}
    package: dict[str, Any] = {"name": wheel.name}
    if _is_version(wheel.version):  # PEP 751 allows to leave out others
        package["version"] = wheel.version
    if hint.urls and hint.index:
        package["index"] = hint.index
    return {**package, "wheels": [{"name": wheel.filename, **place, "size": wheel.size, "hashes": {"sha256": digest}}]}


def conda_explicit(spec: Spec) -> bytes:
    """Return conda-explicit.txt, sorted by name: the exact archives, for conda and other tools that read `@EXPLICIT`."""
    urls = {hint.sha256: hint.urls[0] for hint in spec.hints.packages if hint.urls}
    packages = sorted(spec.identity.packages, key=lambda package: package.name)
    lines = [
        {**_row(package, spec), "bundled": package.sha256 not in urls, "url": urls.get(package.sha256, "")}
        for package in packages
    ]
    return templates.render(
        "conda-explicit.txt.j2",
        lines=lines,
        some_bundled=any(line["bundled"] for line in lines),
        platform=_PLATFORMS[spec.identity.platform.architecture],
        prefix=spec.identity.layout.prefix,
        digest=spec.digest,
    )
