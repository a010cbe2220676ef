"""conda-explicit.txt: each conda package with the one archive that it is, for conda, mamba and others that read `@EXPLICIT`."""

from __future__ import annotations

from repro_env.model.spec import Spec
from repro_env.render import templates

_PLATFORMS = {"amd64": "linux-64", "arm64": "linux-aarch64"}


def render(spec: Spec) -> bytes:
    """Sorted by name; the same spec gives the same bytes."""
    urls = {hint.sha256: hint.urls[0] for hint in spec.hints.packages if hint.urls}
    lines = [
        {
            "url": urls.get(one.sha256, ""),
            "sha256": one.sha256,
            "carried": one.sha256 not in urls,
            "blob": f"blobs/{one.sha256.removeprefix('sha256:')}",
            "filename": one.filename,
        }
        for one in sorted(spec.identity.packages, key=lambda one: one.name)
    ]
    return templates.render(
        "conda-explicit.txt.j2",
        lines=lines,
        some_carried=any(line["carried"] for line in lines),
        platform=_PLATFORMS[spec.identity.platform.architecture],
        prefix=spec.identity.layout.prefix,
        digest=spec.digest,
    )
