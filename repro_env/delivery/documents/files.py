"""The files of a spec: Dockerfile, lock files, SBOM and the spec itself."""

from __future__ import annotations

from pathlib import Path

from repro_env.oci.wheel import FormOf
from repro_env.schema import codec
from repro_env.schema.spec import Spec
from repro_env.store.specs.files import SPEC, present, update
from repro_env.store.store import Store
from repro_env.version import __version__

_KIND = "documents"
"""Kind of the facts of written files, by version and spec: their digest."""


def write(output: Path, spec: Spec, store: Store, form_of: FormOf) -> str:
    """Write the Dockerfile, the lock files and the SBOM, then the spec. Returns why there is no Dockerfile; an empty string otherwise.

    They are made again only if the spec or one of them has changed. Without conda packages, `conda-explicit.txt` is removed.
    """
    text = codec.pretty(spec)
    key = f"{__version__} {codec.digest_of(text)}"
    if store.facts.get(_KIND, key) == _state(output):
        return ""
    from repro_env.delivery.documents import dockerfile, lockfiles, sbom  # these imports are slow

    problem = dockerfile.write(output, spec, store, form_of)
    documents = {
        "requirements.txt": lockfiles.requirements(spec),
        "pylock.toml": lockfiles.pylock(spec),
        "sbom.cdx.json": sbom.render(spec),
    }
    if spec.identity.packages:
        documents["conda-explicit.txt"] = lockfiles.conda_explicit(spec)
    else:
        (output / "conda-explicit.txt").unlink(missing_ok=True)
    update(output, {**documents, SPEC: text})
    if not problem:
        store.facts.put(_KIND, key, _state(output))
    return problem


def _state(output: Path) -> bytes:
    """Return a digest of the files of a spec without the blobs."""
    return codec.digest({name: codec.digest_of((output / name).read_bytes()) for name in present(output)}).encode()
