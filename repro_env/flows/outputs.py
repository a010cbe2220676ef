"""The word after `--output` -> where the image is sent."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from repro_env.image.output import Output
from repro_env.model.errors import UsageError
from repro_env.model.spec import Spec
from repro_env.store.sent import expected
from repro_env.store.store import Store

if TYPE_CHECKING:
    from repro_env.registry.reference import Reference

Kind = Literal["oci", "docker-archive", "docker", "squashfs", "registry"]
FORMS = "oci:DIR[:TAG], docker-archive:FILE[:NAME], docker:NAME, squashfs:FILE, or HOST/REPOSITORY:TAG"
_TAG = re.compile(r"[A-Za-z0-9]+(?:[-._+@/]+[A-Za-z0-9]+)*")
_HINT = f"name one of {FORMS}"


class Target(msgspec.Struct, frozen=True):
    """A word that was understood."""

    kind: Kind
    place: str
    """Folder, file, or the name of an image."""
    name: str = ""
    """Tag in a layout, name in an archive; may be empty."""

    @property
    def local(self) -> bool:
        """Whether looking into it costs no connection and changes nothing."""
        return self.kind in ("oci", "docker-archive", "docker")


def parse(word: str) -> Target:
    """Raises `UsageError` for a word that is none of the forms."""
    kind, colon, rest = word.partition(":")
    if colon and kind in ("oci", "docker-archive"):
        place, _, name = rest.partition(":")
        if not place or rest.endswith(":"):
            raise UsageError("names no place", where=f"--output {word}", hint=_HINT)
        return Target("oci" if kind == "oci" else "docker-archive", place, name)
    if colon and kind == "docker":
        return Target("docker", rest)
    if colon and kind == "squashfs":
        if not rest:
            raise UsageError("names no file", where=f"--output {word}", hint=_HINT)
        return Target("squashfs", rest)
    if "/" not in word or word.startswith(("/", ".")) or "//" in word:
        raise UsageError("is no output", where=f"--output {word}", hint=_HINT)
    return Target("registry", word)


@contextmanager
def opened(target: Target, spec: Spec, folder: Path, store: Store, *, here: Path, dry_run: bool = False) -> Iterator[Output]:
    """What takes the image of a spec there; closed at the end. `here`: what paths are relative to.

    Layers that the same registry has where the spec was pushed are had from there, but not in a dry run.

    Raises `UsageError` for a place that cannot be written to, `EngineError`.
    """
    if target.kind == "oci":
        from repro_env.output.oci import Oci

        made: Output = Oci(here / target.place, _tag(target.name), store.boot)
    elif target.kind == "docker-archive":
        from repro_env.output.archive import Archive
        from repro_env.registry.reference import parse as named

        name = named(target.name) if target.name else None
        if name is not None and name.digest:
            raise UsageError("names the image by a digest, which follows from it", where=target.name, hint="name a tag")
        made = Archive(here / target.place, name, store.boot)
    elif target.kind == "registry":
        from repro_env.output.registry import RegistryOutput
        from repro_env.registry.reference import parse as named

        reference = named(target.place)
        others = () if dry_run else _beside(reference, folder)
        with store.temp.folder() as held, closing(RegistryOutput(reference, others=others, folder=held)) as registry:
            yield registry
        return
    elif target.kind == "docker":
        from repro_env.io import engine
        from repro_env.output.engine import EngineOutput

        with engine.opened() as client:
            packed = expected(spec.expected.layers, folder / "blobs", store.facts)
            diff_ids = [one.diff_id for one in spec.expected.layers]
            with closing(EngineOutput(client, target.place, store.temp, packed, diff_ids)) as output:
                yield output
        return
    else:
        raise UsageError("takes no layers", where=target.kind, hint=_HINT)
    with closing(made):
        yield made


def _beside(to: Reference, folder: Path) -> tuple[str, ...]:
    from repro_env.build.remote import read
    from repro_env.registry.reference import parse as named

    pushed = [named(one.repository) for one in read(folder).copies]
    return tuple(one.repository for one in pushed if one.host == to.host)


def _tag(text: str) -> str:
    """Of a layout's index (OCI image spec, annotations.md: `org.opencontainers.image.ref.name`)."""
    if text and not _TAG.fullmatch(text):
        raise UsageError("is no name of an image in a layout", where=text[:200], hint="use letters, digits and `.-_+@/`")
    return text
