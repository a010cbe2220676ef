"""sbom.cdx.json: what an environment is made of, as CycloneDX 1.6 for scanners and reviewers.

It says what the spec says. Licences and who depends on whom are not in a spec: they are left out, and the
composition is marked so. No time and no random number: the same spec gives the same bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote
from uuid import UUID

from repro_env.model import codec
from repro_env.model.artifact import CondaPackage, TreeBlob, Wheel
from repro_env.model.spec import Spec, WheelHint
from repro_env.render import purl

MEDIA_TYPE = "application/vnd.cyclonedx+json; version=1.6"

_Component = dict[str, Any]


def render(spec: Spec) -> bytes:
    """Sorted; the same spec gives the same bytes."""
    components = sorted((*_packages(spec), *_system(spec), *_trees(spec)), key=lambda one: str(one["bom-ref"]))
    bom = {
        "bomFormat": "CycloneDX",
        "components": components,
        # Nothing is said of what needs what: that is not the same as "it needs nothing".
        "compositions": [{"aggregate": "unknown", "dependencies": [one["bom-ref"] for one in components]}],
        "metadata": {
            "component": {
                "bom-ref": "environment",
                "description": "A Python environment as an image, captured from a live one",
                "name": "environment",
                "properties": _properties(
                    ("spec", spec.digest),
                    ("image", spec.expected.image_id),
                    ("platform", f"{spec.identity.platform.os}/{spec.identity.platform.architecture}"),
                ),
                "type": "container",
                "version": spec.digest,
            },
            "tools": {"components": [_tool(spec)]},
        },
        "specVersion": "1.6",
        "version": 1,
    }
    # Of all that is in it, not of the spec digest alone: two mirrors give one environment two documents.
    digest = hashlib.sha256(codec.canonical(bom)).digest()
    return codec.pretty({**bom, "serialNumber": f"urn:uuid:{_uuid(digest)}"})


def _uuid(digest: bytes) -> UUID:
    """Version 8: made by a rule of one's own (RFC 9562)."""
    value = bytearray(digest[:16])
    value[6] = value[6] & 0x0F | 0x80
    value[8] = value[8] & 0x3F | 0x80
    return UUID(bytes=bytes(value))


def _tool(spec: Spec) -> _Component:
    name, _, version = spec.observed.tool.partition(" ")
    return {"name": name, "type": "application", **({"version": version} if version else {})}


def _packages(spec: Spec) -> Iterator[_Component]:
    identity = spec.identity
    hints = {hint.sha256: hint for hint in (*spec.hints.wheels, *spec.hints.packages)}
    for one in identity.distributions:
        place = (("prefix", identity.layout_of(one).prefix),) if one.place else ()
        yield _artifact(f"wheel/{one.key}", one, hints.get(one.sha256), purl.wheel(one), *place)
    for package in identity.packages:
        yield _artifact(package.key, package, hints.get(package.sha256), purl.conda(package))


def _artifact(ref: str, one: Wheel | CondaPackage, hint: WheelHint | None, name: str, *more: tuple[str, str]) -> _Component:
    origin = "" if hint is None else hint.origin
    found = {
        "bom-ref": ref,
        "hashes": _hashes(one.sha256),
        "name": one.name,
        "properties": _properties(("file", one.filename), ("origin", origin), *more),
        "purl": name,
        "type": "library",
        "version": one.version,
    }
    if hint is not None and hint.urls:
        found["externalReferences"] = [
            {"hashes": _hashes(one.sha256), "type": "distribution", "url": _iri(url)} for url in sorted(set(hint.urls))
        ]
    return found


def _system(spec: Spec) -> Iterator[_Component]:
    """Packages of the operating system that the base has files of."""
    family = purl.family(spec)
    for one in {(one.name, one.version): one for one in spec.observed.system_packages}.values():
        known = purl.system(spec, one, family)
        found = {"bom-ref": f"system/{one.name}@{one.version}", "name": one.name, "type": "library", "version": one.version}
        yield {**found, "purl": known} if known else found


def _trees(spec: Spec) -> Iterator[_Component]:
    identity = spec.identity
    base = spec.hints.base
    if base is None:
        yield _tree("base", "operating-system", spec.observed.host.os or "base", identity.base)
    else:
        origin = "carried" if base.kept else "registry"
        found = _tree("base", "container", base.reference, identity.base, origin=origin)
        yield {**found, "version": base.digest, "purl": purl.image(base)}
    if identity.unowned is not None:
        yield _tree("unowned", "file", "libraries and programs of no package", identity.unowned)
    if identity.overlay is not None:
        edited = (("edited", line) for line in spec.observed.edited)
        yield _tree("overlay", "file", "files beside the packages, and edited ones", identity.overlay, *edited)
    runtime, seen = identity.interpreter, spec.observed.interpreter
    if runtime.tree is not None:  # else it is one of the conda packages
        found = _tree("interpreter", "platform", seen.implementation or "python", runtime.tree)
        found |= {"version": runtime.version, "purl": f"pkg:generic/python@{quote(runtime.version, safe='')}"}
        if seen.implementation == "cpython":
            found["cpe"] = f"cpe:2.3:a:python:python:{runtime.version}:*:*:*:*:*:*:*"
        yield found


def _tree(ref: str, kind: str, name: str, tree: TreeBlob, *more: tuple[str, str], origin: str = "carried") -> _Component:
    return {
        "bom-ref": ref,
        "hashes": _hashes(tree.sha256),
        "name": name,
        "properties": _properties(("files", str(tree.files)), ("origin", origin), *more),
        "type": kind,
    }


def _hashes(sha256: str) -> list[dict[str, str]]:
    return [{"alg": "SHA-256", "content": sha256.removeprefix("sha256:")}]


def _properties(*pairs: tuple[str, str]) -> list[dict[str, str]]:
    return [{"name": f"repro-env:{name}", "value": value} for name, value in pairs if value]


def _iri(url: str) -> str:
    """The URL as a standard reader takes it: what may not stand in one is percent-encoded."""
    return quote(url, safe="%/:=&?~#+!$,;'@()*[]")
