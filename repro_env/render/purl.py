"""Package URLs (purl): a name for a package that scanners of other tools know."""

from __future__ import annotations

from urllib.parse import quote

from repro_env.model.artifact import CondaPackage, Wheel
from repro_env.model.environment import SystemPackage
from repro_env.model.spec import BaseHint, Spec

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
"""First word of `PRETTY_NAME` -> the namespace of its packages."""


def wheel(one: Wheel) -> str:
    return f"pkg:pypi/{one.name}@{_quoted(one.version)}?file_name={_quoted(one.filename)}"


def conda(one: CondaPackage) -> str:
    kind = "conda" if one.filename.endswith(".conda") else "tar.bz2"
    return f"pkg:conda/{one.name}@{_quoted(one.version)}?build={_quoted(one.build)}&subdir={one.subdir}&type={kind}"


def system(spec: Spec, one: SystemPackage, family: str) -> str:
    """Empty where the vendor of the package is not known: a scanner would take it for somebody else's."""
    own = spec.hints.base is None  # else the base is another system's, which a spec does not name
    vendor = _VENDORS.get(spec.observed.host.os.partition(" ")[0], "") if own else ""
    if not family or not vendor:
        return ""
    more = []
    name, version = one.name, one.version
    if family == "deb" and ":" in name:
        name, _, architecture = name.partition(":")
        more.append(f"arch={_quoted(architecture)}")
    if family == "rpm" and ":" in version:
        epoch, _, version = version.partition(":")
        more.append(f"epoch={_quoted(epoch)}")
    return f"pkg:{family}/{vendor}/{_quoted(name)}@{_quoted(version)}" + ("?" + "&".join(more) if more else "")


def image(one: BaseHint) -> str:
    """An image in a registry, by the digest of its manifest."""
    repository, colon, tag = one.reference.rpartition(":")
    if not colon or "/" in tag:  # it has no tag, and the colon is a port's
        repository, tag = one.reference, ""
    repository = repository.partition("@")[0]
    name = repository.rpartition("/")[2].lower()
    more = f"repository_url={quote(repository, safe='.-_~:/')}" + (f"&tag={_quoted(tag)}" if tag else "")
    return f"pkg:oci/{_quoted(name)}@{_quoted(one.digest)}?{more}"


def family(spec: Spec) -> str:
    """`deb` or `rpm`, as the owners of the shared libraries that were seen say; empty where none of them does."""
    words = {one.owner.partition(" ")[0] for one in spec.observed.libraries}
    known = words & {"deb", "rpm"}
    return known.pop() if len(known) == 1 else ""


def _quoted(text: str) -> str:
    return quote(text, safe=".-_~:")
