"""sbom.cdx.json: valid, with the same bytes each time, and only with facts of the spec."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from cyclonedx.schema import SchemaVersion
from packageurl import PackageURL

from repro_env.delivery.documents import sbom
from repro_env.schema.artifact import CondaPackage
from repro_env.schema.environment import SharedLibrary, SystemPackage
from repro_env.schema.spec import Spec, WheelHint

LIBC = SystemPackage(name="libc6", version="2.36-9+deb12u9")
FOREIGN = SystemPackage(name="libc6:i386", version="2.36-9+deb12u9")


def observed(
    spec: Spec, *packages: SystemPackage, os: str = "Debian GNU/Linux 12 (bookworm)", owner: str = "deb libc6 2"
) -> Spec:
    facts = msgspec.structs.replace(
        spec.observed,
        host=msgspec.structs.replace(spec.observed.host, os=os),
        system_packages=packages,
        libraries=(SharedLibrary(path="/lib/libc.so.6", owner=owner, sha256=None),),
    )
    return msgspec.structs.replace(spec, observed=facts)


def parsed(spec: Spec) -> Any:
    """Parse the document after checking it with the validator of the CycloneDX library."""
    from cyclonedx.validation.json import JsonStrictValidator  # takes seconds, and each worker would import it

    text = sbom.render(spec).decode()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    return json.loads(text)


def components(spec: Spec) -> dict[str, Any]:
    found = parsed(spec)["components"]
    named = {item["bom-ref"]: item for item in found}
    assert len(named) == len(found)
    for item in found:
        if "purl" in item:
            assert PackageURL.from_string(item["purl"]).to_string() == item["purl"]
    return named


def test_the_document_lists_all_components(spec: Spec) -> None:
    found = components(observed(spec, LIBC, FOREIGN))
    wheels = {f"wheel/{wheel.key}" for wheel in spec.identity.distributions}
    system = {"system/libc6@2.36-9+deb12u9", "system/libc6:i386@2.36-9+deb12u9"}
    assert found.keys() == {"base", "interpreter"} | wheels | system
    for wheel in spec.identity.distributions:
        shown = found[f"wheel/{wheel.key}"]
        assert shown["hashes"] == [{"alg": "SHA-256", "content": wheel.sha256.removeprefix("sha256:")}]
        assert (shown["name"], shown["version"]) == (wheel.name, wheel.version)
    assert found["base"]["hashes"][0]["content"] == spec.identity.base.sha256.removeprefix("sha256:")
    assert found["interpreter"]["cpe"] == "cpe:2.3:a:python:python:3.11.7:*:*:*:*:*:*:*"


def test_components_have_package_urls(spec: Spec) -> None:
    found = components(observed(spec, LIBC, FOREIGN))
    assert found["wheel/mid"]["purl"] == "pkg:pypi/mid@2.0%2Bcpu?file_name=mid-2.0%2Bcpu-py3-none-any.whl"
    assert found["system/libc6@2.36-9+deb12u9"]["purl"] == "pkg:deb/debian/libc6@2.36-9%2Bdeb12u9"
    assert found["system/libc6:i386@2.36-9+deb12u9"]["purl"] == "pkg:deb/debian/libc6@2.36-9%2Bdeb12u9?arch=i386"
    rpm = components(observed(spec, SystemPackage(name="curl", version="1:8.0-1.fc41"), os="Fedora Linux 41", owner="rpm a 1"))
    assert rpm["system/curl@1:8.0-1.fc41"]["purl"] == "pkg:rpm/fedora/curl@8.0-1.fc41?epoch=1"


@pytest.mark.parametrize(("os", "owner"), [("Homemade 1", "deb libc6 2"), ("Debian GNU/Linux 12", "")])
def test_an_unknown_vendor_is_not_guessed(spec: Spec, os: str, owner: str) -> None:
    assert "purl" not in components(observed(spec, LIBC, os=os, owner=owner))["system/libc6@2.36-9+deb12u9"]


def test_download_urls_are_listed_and_unknown_facts_left_out(spec: Spec) -> None:
    found = components(spec)
    assert found["wheel/zeta"]["externalReferences"][0]["url"].endswith("/files/zeta-1.0-py3-none-any.whl")
    assert "externalReferences" not in found["wheel/alpha-pkg"]  # bundled
    origins = {name: {p["name"]: p["value"] for p in item["properties"]}.get("repro-env:origin") for name, item in found.items()}
    assert (origins["wheel/zeta"], origins["wheel/mid"], origins["wheel/alpha-pkg"]) == ("index", "direct", "bundled")
    assert not any("licenses" in value for value in found.values())
    bom = parsed(spec)
    assert "dependencies" not in bom
    assert bom["compositions"] == [{"aggregate": "unknown", "dependencies": sorted(found)}]


def test_conda_packages_are_listed(spec: Spec) -> None:
    package = CondaPackage(
        name="numpy",
        version="1.26.4",
        build="py311_0",
        subdir="linux-64",
        filename="numpy-1.26.4-py311_0.conda",
        sha256=f"sha256:{'b' * 64}",
        size=1,
    )
    url = "https://conda.example.com/main/linux-64/numpy-1.26.4-py311_0.conda"
    hint = WheelHint(sha256=package.sha256, origin="index", urls=(url,), index="https://conda.example.com/main")
    runtime = msgspec.structs.replace(spec.identity.interpreter, tree=None)
    found = components(
        msgspec.structs.replace(
            spec,
            identity=msgspec.structs.replace(spec.identity, packages=(package,), interpreter=runtime),
            hints=msgspec.structs.replace(spec.hints, packages=(hint,)),
        )
    )
    assert found["conda/numpy"]["purl"] == "pkg:conda/numpy@1.26.4?build=py311_0&subdir=linux-64&type=conda"
    assert found["conda/numpy"]["externalReferences"][0]["url"] == url
    assert "interpreter" not in found  # it is one of the packages


def test_each_spec_has_its_own_bytes_and_serial_number(spec: Spec) -> None:
    changed = observed(spec, LIBC, FOREIGN)
    other = observed(spec, FOREIGN, LIBC)
    assert sbom.render(changed) == sbom.render(other)
    assert sbom.render(changed) == sbom.render(msgspec.json.decode(msgspec.json.encode(changed), type=Spec))
    mirror = msgspec.structs.replace(
        spec, hints=msgspec.structs.replace(spec.hints, wheels=tuple(_elsewhere(hint) for hint in spec.hints.wheels))
    )
    assert mirror.digest == spec.digest
    assert parsed(mirror)["serialNumber"] != parsed(spec)["serialNumber"]
    assert "timestamp" not in parsed(spec)["metadata"]


def _elsewhere(hint: WheelHint) -> WheelHint:
    return msgspec.structs.replace(hint, urls=tuple(f"https://mirror.example.com/ä {{}}/{n}" for n, _ in enumerate(hint.urls)))
