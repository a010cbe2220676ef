"""conda-explicit.txt: the exact archive of each conda package, for conda, mamba and other tools that read `@EXPLICIT`."""

from __future__ import annotations

from repro_env.delivery.documents import templates
from repro_env.schema.spec import Spec

_PLATFORMS = {"amd64": "linux-64", "arm64": "linux-aarch64"}


def render(spec: Spec) -> bytes:
    """Return the file, sorted by name. The same spec gives the same bytes."""
    urls = {hint.sha256: hint.urls[0] for hint in spec.hints.packages if hint.urls}
    lines = [
        {
            "url": urls.get(package.sha256, ""),
            "sha256": package.sha256,
            "bundled": package.sha256 not in urls,
            "blob": f"blobs/{package.sha256.removeprefix('sha256:')}",
            "filename": package.filename,
        }
        for package in sorted(spec.identity.packages, key=lambda package: package.name)
    ]
    return templates.render(
        "conda-explicit.txt.j2",
        lines=lines,
        some_bundled=any(line["bundled"] for line in lines),
        platform=_PLATFORMS[spec.identity.platform.architecture],
        prefix=spec.identity.layout.prefix,
        digest=spec.digest,
    )
