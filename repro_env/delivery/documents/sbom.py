"""sbom.cdx.json: the components of an environment in CycloneDX 1.6, for scanners and reviewers.

It holds what the spec holds. Licences and dependencies are not in a spec, so they are left out and the composition is
marked as unknown. It has neither a time nor a random number, so the same spec gives the same bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote
from uuid import UUID

from repro_env.schema import codec
from repro_env.schema.artifact import Artifact, TreeBlob
from repro_env.schema.spec import Spec, WheelHint

MEDIA_TYPE = "application/vnd.cyclonedx+json; version=1.6"

_Component = dict[str, Any]
_VENDORS = ["almalinux", "amazon", "centos", "debian", "fedora", "opensuse", "oracle", "redhat", "rocky", "suse", "ubuntu"]
"""Namespaces of package URLs. The name of an operating system begins like its namespace: `Red Hat`, `Ubuntu`."""


def render(spec: Spec) -> bytes:
    """Return the file, sorted. The same spec gives the same bytes."""
    components = sorted((*_packages(spec), *_system(spec), *_trees(spec)), key=lambda component: str(component["bom-ref"]))
    bom = {
        "bomFormat": "CycloneDX",
        "components": components,
        # Dependencies are unknown, which is not the same as "has no dependencies".
        "compositions": [{"aggregate": "unknown", "dependencies": [component["bom-ref"] for component in components]}],
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
    # Of the complete content, not of the spec digest alone: the same environment from two mirrors gives two documents.
    digest = hashlib.sha256(codec.canonical(bom)).digest()
    return codec.pretty({**bom, "serialNumber": f"urn:uuid:{_uuid(digest)}"})


def _uuid(digest: bytes) -> UUID:
    """Return a UUID of version 8, which is for custom rules (RFC 9562)."""
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
    for wheel in identity.distributions:
        site = (("prefix", identity.layout_of(wheel).prefix),) if wheel.site else ()
        purl = f"pkg:pypi/{wheel.name}@{_quoted(wheel.version)}?file_name={_quoted(wheel.filename)}"
        yield _artifact(f"wheel/{wheel.key}", wheel, hints.get(wheel.sha256), purl, *site)
    for package in identity.packages:
        kind = "conda" if package.filename.endswith(".conda") else "tar.bz2"
        qualifiers = f"build={_quoted(package.build)}&subdir={package.subdir}&type={kind}"
        purl = f"pkg:conda/{package.name}@{_quoted(package.version)}?{qualifiers}"
        yield _artifact(package.key, package, hints.get(package.sha256), purl)


def _artifact(ref: str, artifact: Artifact, hint: WheelHint | None, name: str, *properties: tuple[str, str]) -> _Component:
    origin = "" if hint is None else hint.origin
    component = {
        "bom-ref": ref,
        "hashes": _hashes(artifact.sha256),
        "name": artifact.name,
        "properties": _properties(("file", artifact.filename), ("origin", origin), *properties),
        "purl": name,
        "type": "library",
        "version": artifact.version,
    }
    if hint is not None and hint.urls:
        # Characters that are not allowed in a URL are percent-encoded.
        urls = (quote(url, safe="%/:=&?~#+!$,;'@()*[]") for url in sorted(set(hint.urls)))
        component["externalReferences"] = [
            {"hashes": _hashes(artifact.sha256), "type": "distribution", "url": url} for url in urls
        ]
    return component


def _system(spec: Spec) -> Iterator[_Component]:
    """Yield the operating system packages that own files of the base. Without a known vendor, scanners get no package URL."""
    families = {library.owner.partition(" ")[0] for library in spec.observed.libraries} & {"deb", "rpm"}
    word = spec.observed.host.os.partition(" ")[0].lower()
    vendor = next((vendor for vendor in _VENDORS if word and vendor.startswith(word)), "")
    for package in {(package.name, package.version): package for package in spec.observed.system_packages}.values():
        ref, name, version = f"system/{package.name}@{package.version}", package.name, package.version
        component = {"bom-ref": ref, "name": name, "type": "library", "version": version}
        if vendor and families == {"deb"}:
            name, _, architecture = name.partition(":")
            qualifier = f"?arch={_quoted(architecture)}" if architecture else ""
            component["purl"] = f"pkg:deb/{vendor}/{_quoted(name)}@{_quoted(version)}{qualifier}"
        elif vendor and families == {"rpm"}:
            epoch, _, version = version.rpartition(":")
            qualifier = f"?epoch={_quoted(epoch)}" if epoch else ""
            component["purl"] = f"pkg:rpm/{vendor}/{_quoted(name)}@{_quoted(version)}{qualifier}"
        yield component


def _trees(spec: Spec) -> Iterator[_Component]:
    identity = spec.identity
    yield _tree("base", "operating-system", spec.observed.host.os or "base", identity.base)
    if identity.unpackaged is not None:
        yield _tree("unpackaged", "file", "libraries and programs of no package", identity.unpackaged)
    if identity.overlay is not None:
        edited = (("edited", line) for line in spec.observed.edited)
        yield _tree("overlay", "file", "files next to the packages, and edited files", identity.overlay, *edited)
    runtime = identity.interpreter
    if runtime.tree is not None:  # else the interpreter is a conda package
        component = _tree("interpreter", "platform", "cpython", runtime.tree)
        component |= {"version": runtime.version, "purl": f"pkg:generic/python@{quote(runtime.version, safe='')}"}
        component["cpe"] = f"cpe:2.3:a:python:python:{runtime.version}:*:*:*:*:*:*:*"
        yield component


def _tree(ref: str, kind: str, name: str, tree: TreeBlob, *properties: tuple[str, str]) -> _Component:
    return {
        "bom-ref": ref,
        "hashes": _hashes(tree.sha256),
        "name": name,
        "properties": _properties(("files", str(tree.files)), ("origin", "bundled"), *properties),
        "type": kind,
    }


def _hashes(sha256: str) -> list[dict[str, str]]:
    return [{"alg": "SHA-256", "content": sha256.removeprefix("sha256:")}]


def _properties(*pairs: tuple[str, str]) -> list[dict[str, str]]:
    return [{"name": f"repro-env:{name}", "value": value} for name, value in pairs if value]


def _quoted(text: str) -> str:
    return quote(text, safe=".-_~:")
