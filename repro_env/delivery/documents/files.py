"""The files of a spec: lock files, SBOM and the spec itself. Templates of files ship with the package and contain no decisions."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from repro_env.io import package
from repro_env.io.files import atomic_write
from repro_env.schema import codec
from repro_env.schema.errors import SpecError
from repro_env.schema.spec import Spec

if TYPE_CHECKING:
    from jinja2 import Environment


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


def render(name: str, /, **values: object) -> bytes:
    """Return a template filled with values, as UTF-8. Raises `SpecError` for a value that does not fit into one line."""
    return _environment().get_template(name).render(values).encode()


def template_directory() -> Path:
    """Return the directory of the templates: in the installed package, or next to it in a checkout."""
    shipped = package.ROOT / "_templates"
    return shipped if shipped.is_dir() else package.ROOT.parent / "templates"


@lru_cache(maxsize=1)
def _environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(  # noqa: S701 - no HTML
        loader=FileSystemLoader(template_directory()),
        undefined=StrictUndefined,
        finalize=_one_line,
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["toml"] = json.dumps  # the escapes of JSON are valid in TOML
    return environment


def _one_line(value: Any) -> Any:
    if isinstance(value, str) and not value.isprintable():
        raise SpecError(f"a value contains a line break or a control character: {value!r}", hint="capture again")
    return value
