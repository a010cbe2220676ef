"""The Dockerfile of a spec and the files that it needs: the installer, and the list of all paths of the image."""

from __future__ import annotations

import hashlib
import json
import re
import zlib
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from repro_env.delivery.dockerfile import dockerfile, instruction
from repro_env.delivery.documents import templates
from repro_env.delivery.documents.files import update
from repro_env.io.package import GUEST
from repro_env.oci import config
from repro_env.oci.entry import Entry
from repro_env.schema.errors import SpecError
from repro_env.schema.spec import Source, Spec
from repro_env.store.store import Store
from repro_env.version import __version__

if TYPE_CHECKING:
    from repro_env.delivery.builder.imageentries import FactsOf

NAME = "Dockerfile"
NAMES = (NAME, dockerfile.INSTALLER, dockerfile.LISTING)
_RULE_IMPORT = re.compile(r"^from repro_env\.guest\.wheelrule import .*\n", re.MULTILINE)


def write(output: Path, spec: Spec, store: Store, facts: FactsOf | None = None) -> str:
    """Write the three files to the spec directory `output`, unless they are up to date.

    Returns an empty string, or the reason why this spec cannot have a Dockerfile; then existing files are removed.
    `facts`: called for a wheel that the store does not know.
    """
    source = _source(spec)
    problem = dockerfile.refusal(spec) or _render_problem(spec, None)
    if problem:
        for name in NAMES:
            (output / name).unlink(missing_ok=True)
        return problem
    is_downloadable = any(hint.urls for hint in spec.hints.wheels)
    tool = (__version__, templates.state(), hashlib.sha256(installer()).hexdigest())
    labels = config.settings(spec.identity, source).labels
    source_key = None if source is None else (source.path, source.tree.sha256)

    def paths() -> dict[str, bytes]:
        from repro_env.delivery.builder.imageentries import entries  # not needed if the list is up to date

        return {dockerfile.LISTING: listing(entries(spec, output, store, facts))}

    # The list depends on the identity only, so an edit of the code does not change it.
    update(output, (dockerfile.LISTING,), (__version__, spec.digest), paths, store.facts)
    key = (*tool, spec.digest, spec.expected.image_id, is_downloadable, labels, source_key)
    update(output, (NAME, dockerfile.INSTALLER), key, lambda: _render(spec, source), store.facts)
    return ""


def _source(spec: Spec) -> Source | None:
    """Return the code to copy into the image: None if a Dockerfile cannot express the path of the project."""
    return None if _render_problem(spec, spec.observed.source) else spec.observed.source


def _render_problem(spec: Spec, source: Source | None) -> str:
    """Return why a Dockerfile cannot be rendered, such as a no-break space in a path; empty if it can."""
    try:
        for step in dockerfile.steps(spec, config.settings(spec.identity, source), source):
            for command in step.instructions:
                instruction.line(command)
    except SpecError as error:
        return error.what
    return ""


def _render(spec: Spec, source: Source | None) -> dict[str, bytes]:
    return {
        NAME: dockerfile.render(spec, config.settings(spec.identity, source), source),
        dockerfile.INSTALLER: installer(),
    }


@lru_cache(maxsize=1)
def installer() -> bytes:
    """Return `install.py` as a single file: the text of the wheel rule replaces its import."""
    text = (GUEST / "install.py").read_text()
    return _RULE_IMPORT.sub(lambda _: (GUEST / "wheelrule.py").read_text(), text, count=1).encode()


def listing(entries: Iterable[Entry]) -> bytes:
    """Return one line of JSON for each path (path, kind, sha256 or target), compressed with zlib like bundled trees."""
    packer = zlib.compressobj(6, zlib.DEFLATED, 31)  # 31: a gzip header without a name and a timestamp
    rows = (json.dumps([entry.path, *_describe(entry)], ensure_ascii=False, separators=(",", ":")) + "\n" for entry in entries)
    return packer.compress("".join(rows).encode()) + packer.flush()


def _describe(entry: Entry) -> tuple[str, str]:
    if entry.kind == "file":
        return "program" if entry.executable else "file", entry.sha256
    return entry.kind, entry.target
