"""requirements.txt: each distribution with the one sha256 that it has, for pip of any age."""

from __future__ import annotations

from packaging.version import InvalidVersion, Version

from repro_env.model.artifact import Wheel
from repro_env.model.spec import Spec, WheelHint
from repro_env.render import templates
from repro_env.render.imported import imported


def render(spec: Spec) -> bytes:
    """Sorted by name; the same spec gives the same bytes. Of a name that several places have, the one that is imported."""
    hints = {hint.sha256: hint for hint in spec.hints.wheels}
    shown, hidden = imported(spec)
    lines = [
        {
            "what": requirement(wheel, hints[wheel.sha256]),
            "sha256": wheel.sha256,
            "carried": wheel.sha256 in spec.carried,
            "blob": f"blobs/{wheel.sha256.removeprefix('sha256:')}",
            "filename": wheel.filename,
        }
        for wheel in shown
    ]
    return templates.render(
        "requirements.txt.j2",
        lines=lines,
        some_carried=any(line["carried"] for line in lines),
        hidden=[{"what": f"{one.name} {one.version}", "prefix": spec.identity.layout_of(one).prefix} for one in hidden],
        conda=bool(spec.identity.packages),
        python=spec.identity.interpreter.version,
        digest=spec.digest,
    )


def requirement(wheel: Wheel, hint: WheelHint) -> str:
    """`name==version`, or `name @ URL` for what no index gave (PEP 508)."""
    if hint.origin == "direct":
        return f"{wheel.name} @ {hint.urls[0]}"
    try:
        Version(wheel.version)
    except InvalidVersion:
        return f"{wheel.name}==={wheel.version}"
    return f"{wheel.name}=={wheel.version}"
