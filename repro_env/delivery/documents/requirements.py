"""requirements.txt: each distribution with its sha256, for any version of pip."""

from __future__ import annotations

from packaging.version import InvalidVersion, Version

from repro_env.delivery.documents import templates
from repro_env.schema.artifact import Wheel
from repro_env.schema.spec import Spec, WheelHint


def render(spec: Spec) -> bytes:
    """Return the file, sorted by name. The same spec gives the same bytes. Of several distributions of one name, it lists
    the one that Python imports.
    """
    hints = {hint.sha256: hint for hint in spec.hints.wheels}
    shown, shadowed = split_shadowed(spec)
    lines = [
        {
            "what": requirement(wheel, hints[wheel.sha256]),
            "sha256": wheel.sha256,
            "bundled": wheel.sha256 in spec.carried,
            "blob": f"blobs/{wheel.sha256.removeprefix('sha256:')}",
            "filename": wheel.filename,
        }
        for wheel in shown
    ]
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


def requirement(wheel: Wheel, hint: WheelHint) -> str:
    """Return `name==version`, or `name @ URL` if the wheel is not from an index (PEP 508)."""
    if hint.origin == "direct":
        return f"{wheel.name} @ {hint.urls[0]}"
    try:
        Version(wheel.version)
    except InvalidVersion:
        return f"{wheel.name}==={wheel.version}"
    return f"{wheel.name}=={wheel.version}"


def split_shadowed(spec: Spec) -> tuple[tuple[Wheel, ...], tuple[Wheel, ...]]:
    """Return the distributions that are first on `sys.path`, and those that they shadow; both sorted by name.

    A lock file for other installers names each distribution once, because they install into one site directory.
    """
    path = {entry: number for number, entry in reversed(list(enumerate(spec.observed.startup.sys_path)))}

    def rank(wheel: Wheel) -> tuple[int, int]:
        layout = spec.identity.layout_of(wheel)
        sites = (f"{layout.prefix}/{site}" for site in (layout.purelib, layout.platlib))
        return min(path.get(site, len(path)) for site in sites), wheel.place

    first: dict[str, Wheel] = {}
    for wheel in sorted(spec.identity.distributions, key=rank):
        first.setdefault(wheel.name, wheel)
    shadowed = [wheel for wheel in spec.identity.distributions if first[wheel.name] != wheel]
    return tuple(first[name] for name in sorted(first)), tuple(sorted(shadowed, key=lambda wheel: (wheel.name, wheel.place)))
