"""The files of a spec: lock files, SBOM and the spec itself."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from repro_env.io.files import atomic_write
from repro_env.schema import codec
from repro_env.schema.spec import Spec


def write(output: Path, spec: Spec) -> None:
    """Write the lock files and the SBOM, then the spec. `conda-explicit.txt` is removed if the spec has no conda packages."""
    from repro_env.delivery.documents import lockfiles, sbom  # these imports are slow

    documents = {
        "requirements.txt": lockfiles.requirements(spec),
        "pylock.toml": lockfiles.pylock(spec),
        "sbom.cdx.json": sbom.render(spec),
    }
    if spec.identity.packages:
        documents["conda-explicit.txt"] = lockfiles.conda_explicit(spec)
    else:
        (output / "conda-explicit.txt").unlink(missing_ok=True)
    update(output, {**documents, "spec.json": codec.pretty(spec)})


def update(output: Path, documents: Mapping[str, bytes]) -> None:
    """Write files by name. A file that has these bytes is not written again."""
    for name, data in documents.items():
        path = output / name
        if not path.is_file() or path.read_bytes() != data:
            atomic_write(path, data)
