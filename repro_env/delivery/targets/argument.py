"""Parse the value of `--output`, and open that output."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from repro_env.delivery.target import Output
from repro_env.schema.errors import UsageError
from repro_env.schema.spec import Spec
from repro_env.store.layerblobs import recall_all
from repro_env.store.store import Store

if TYPE_CHECKING:
    from repro_env.registry.reference import Reference

Kind = Literal["oci", "docker-archive", "docker", "registry"]
FORMS = "oci:DIR[:TAG], docker-archive:FILE[:NAME], docker:NAME, or HOST/REPOSITORY:TAG"
_TAG = re.compile(r"[A-Za-z0-9]+(?:[-._+@/]+[A-Za-z0-9]+)*")
_HINT = f"use one of these forms: {FORMS}"


class Target(msgspec.Struct, frozen=True):
    """A parsed value of `--output`."""

    kind: Kind
    place: str
    """Directory, file, or the name of an image."""
    name: str = ""
    """Tag in a layout or name in an archive; may be empty."""

    @property
    def local(self) -> bool:
        """Whether the output can be read without a connection, and without a change to it."""
        return self.kind in ("oci", "docker-archive", "docker")


def parse(word: str) -> Target:
    """Parse a value of `--output`. Raises `UsageError` if it has none of the known forms."""
    kind, colon, value = word.partition(":")
    if colon and kind in ("oci", "docker-archive"):
        place, _, name = value.partition(":")
        if not place or value.endswith(":"):
            raise UsageError(f"{kind}: must be followed by the path of the output", where=f"--output {word}", hint=_HINT)
        return Target("oci" if kind == "oci" else "docker-archive", place, name)
    if colon and kind == "docker":
        return Target("docker", value)
    if "/" not in word or word.startswith(("/", ".")) or "//" in word:
        raise UsageError("this is not a valid output", where=f"--output {word}", hint=_HINT)
    return Target("registry", word)


@contextmanager
def open_output(
    target: Target, spec: Spec, directory: Path, store: Store, *, here: Path, dry_run: bool = False
) -> Iterator[Output]:
    """Open the output that receives the image of a spec, and close it at the end. `here`: the base of relative paths.

    Layers that were pushed to the same registry before are mounted from there, but not in a dry run.

    Raises `UsageError` if the output cannot be written to, `EngineError`.
    """
    if target.kind == "oci":
        from repro_env.delivery.targets.ocilayout import Oci

        output: Output = Oci(here / target.place, _tag(target.name), store.boot)
    elif target.kind == "docker-archive":
        from repro_env.delivery.targets.archive import Archive
        from repro_env.registry.reference import parse as parse_reference

        name = parse_reference(target.name) if target.name else None
        if name is not None and name.digest:
            what = "an image in an archive cannot be named by a digest"
            raise UsageError(what, where=target.name, hint="name it by a tag")
        output = Archive(here / target.place, name)
    elif target.kind == "docker":
        from repro_env.delivery.targets.engine import EngineOutput
        from repro_env.io import engine

        with engine.connect() as client:
            blobs = recall_all(spec.expected.layers, directory / "blobs", store.facts)
            diff_ids = [layer.diff_id for layer in spec.expected.layers]
            with closing(EngineOutput(client, target.place, store.temp, blobs, diff_ids)) as output:
                yield output
        return
    else:
        from repro_env.delivery.targets.registry import RegistryOutput
        from repro_env.registry.reference import parse as parse_reference

        reference = parse_reference(target.place)
        others = () if dry_run else _pushed_repositories(reference, directory)
        output = RegistryOutput(reference, others=others)
    with closing(output):
        yield output


def _pushed_repositories(to: Reference, directory: Path) -> tuple[str, ...]:
    """Return the repositories of the same registry that the spec was pushed to."""
    from repro_env.delivery.builder.remote import read
    from repro_env.registry.reference import parse as parse_reference

    references = [parse_reference(copy.repository) for copy in read(directory).copies]
    return tuple(reference.repository for reference in references if reference.host == to.host)


def _tag(text: str) -> str:
    """Return a tag of a layout's index if it is valid (OCI image spec, annotations.md: `org.opencontainers.image.ref.name`)."""
    if text and not _TAG.fullmatch(text):
        raise UsageError("this is not a valid tag in an OCI layout", where=text[:200], hint="use letters, digits and `.-_+@/`")
    return text
