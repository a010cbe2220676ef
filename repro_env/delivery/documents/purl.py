"""Package URLs (purl): the names of packages for scanners and other tools."""

from __future__ import annotations

from urllib.parse import quote

from repro_env.schema.artifact import CondaPackage, Wheel
from repro_env.schema.environment import SystemPackage
from repro_env.schema.spec import Spec

_VENDORS = {
    "AlmaLinux": "almalinux",
    "Amazon": "amazon",
    "CentOS": "centos",
    "Debian": "debian",
    "Fedora": "fedora",
    "Oracle": "oracle",
    "Red": "redhat",
    "Rocky": "rocky",
    "SUSE": "suse",
    "Ubuntu": "ubuntu",
    "openSUSE": "opensuse",
}
"""First word of `PRETTY_NAME` -> namespace of the packages."""


def wheel(distribution: Wheel) -> str:
    """Return the package URL of a wheel."""
    return f"pkg:pypi/{distribution.name}@{_quoted(distribution.version)}?file_name={_quoted(distribution.filename)}"


def conda(package: CondaPackage) -> str:
    """Return the package URL of a conda package."""
    kind = "conda" if package.filename.endswith(".conda") else "tar.bz2"
    return (
        f"pkg:conda/{package.name}@{_quoted(package.version)}?build={_quoted(package.build)}&subdir={package.subdir}&type={kind}"
    )


def system(spec: Spec, package: SystemPackage, family: str) -> str:
    """Return the package URL of an operating system package; empty if its vendor is unknown, so that scanners do not guess."""
    vendor = _VENDORS.get(spec.observed.host.os.partition(" ")[0], "")
    if not family or not vendor:
        return ""
    qualifiers = []
    name, version = package.name, package.version
    if family == "deb" and ":" in name:
        name, _, architecture = name.partition(":")
        qualifiers.append(f"arch={_quoted(architecture)}")
    if family == "rpm" and ":" in version:
        epoch, _, version = version.partition(":")
        qualifiers.append(f"epoch={_quoted(epoch)}")
    return f"pkg:{family}/{vendor}/{_quoted(name)}@{_quoted(version)}" + ("?" + "&".join(qualifiers) if qualifiers else "")


def family(spec: Spec) -> str:
    """Return `deb` or `rpm`, the package type that owns the observed shared libraries; empty if that is unclear."""
    words = {library.owner.partition(" ")[0] for library in spec.observed.libraries}
    families = words & {"deb", "rpm"}
    return families.pop() if len(families) == 1 else ""


def _quoted(text: str) -> str:
    return quote(text, safe=".-_~:")
