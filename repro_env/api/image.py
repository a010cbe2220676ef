"""The command `repro-env image verify`: recompute every digest that an image states, and compare it with the spec."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import msgspec

from repro_env.compare.image import Report, check
from repro_env.io import machine
from repro_env.oci.manifest import Descriptor
from repro_env.schema import codec
from repro_env.schema.errors import SpecError, UsageError
from repro_env.schema.progress import Tell
from repro_env.schema.spec import Spec
from repro_env.specs import argument as opening
from repro_env.store import imagefile
from repro_env.store.imagefile import ImageBlob, ImageFile
from repro_env.store.specs.lookup import locate
from repro_env.store.store import Store

_FORM = re.compile(r"(?:oci|docker-archive|oci-archive):(?P<path>.+)")


class Verified(msgspec.Struct, frozen=True):
    reports: tuple[Report, ...]
    """One report per image."""
    spec: str
    """Directory of the spec that the images were compared with; empty without a spec."""

    @property
    def good(self) -> bool:
        return all(report.good for report in self.reports)


def verify_image(word: str, given: str | None, here: Path, *, store: Store, tell: Tell) -> Verified:
    """Verify the images that `word` (a directory, a file, `docker:NAME` or a reference) names.

    `given`: the spec to compare with; default: the nearest spec, if the image's label has its digest. Raises `ArtifactError` if
    no image can be read or repro-env did not build it, `UsageError` if `word` names nothing, `EngineError`, `NetworkError`.
    """
    directory = ""
    opened = opening.open_spec(given, here, store, tell) if given is not None else None

    def spec_of(label: str) -> tuple[Spec, Path] | None:
        nonlocal directory
        found = (opened.spec, opened.directory) if opened is not None else _nearest(label, here)
        directory = str(found[1]) if found is not None else ""
        return found

    with _open(word, here, store) as images:
        reports = tuple(check(image, spec_of, tell) for image in images)
    return Verified(reports=reports, spec=directory)


@contextlib.contextmanager
def _open(word: str, here: Path, store: Store) -> Iterator[list[ImageFile]]:
    architecture = machine.platform().architecture
    if name := re.fullmatch("docker:(.+)", word):
        with _in_engine(name[1], architecture, store) as images:
            yield images
        return
    form = _FORM.fullmatch(word)
    path, tag = form["path"] if form else word, ""
    if form and not (here / path).exists():
        path, _, tag = path.rpartition(":")
    if path and (here / path).exists():
        with imagefile.open_images(here / path, architecture=architecture) as images:
            yield [image for image in images if tag in ("", image.name)] or _refuse(word, f"no image has the tag {tag}")
    elif form or word.startswith((".", "/")) or not re.search("[/:@]", word):
        _refuse(word, "this file or directory does not exist")
    else:
        with _in_registry(word, architecture) as image:
            yield [image]


def _refuse(word: str, what: str) -> list[ImageFile]:
    raise UsageError(
        what, where=word, hint="name a directory or file that holds an image, docker:NAME, or an image in a registry"
    )


@contextlib.contextmanager
def _in_engine(name: str, architecture: str, store: Store) -> Iterator[list[ImageFile]]:
    from repro_env.delivery.targets import engine as target
    from repro_env.io import engine as engines

    with store.temp.directory() as directory:
        with engines.connect() as engine:
            if not engine.inspect_image(name):
                _refuse(f"docker:{name}", "the engine has no image of this name")
            target.save(engine, name, directory / "image.tar")
        with imagefile.open_images(directory / "image.tar", architecture=architecture) as images:
            yield images


@contextlib.contextmanager
def _in_registry(word: str, architecture: str) -> Iterator[ImageFile]:
    from repro_env.registry import reference
    from repro_env.registry.client import Registry

    ref = reference.parse(word)
    with Registry(ref.host) as registry:
        manifest, data, digest = registry.image(ref.repository, ref.tag_or_digest, architecture=architecture)

        def described(descriptor: Descriptor) -> ImageBlob:
            chunks = partial(registry.blob, ref.repository, descriptor.digest, descriptor.size)
            return ImageBlob(name=descriptor.digest, digest=descriptor.digest, chunks=chunks)

        own = ImageBlob(name=digest, digest=codec.digest_of(data), chunks=lambda: iter((data,)))
        yield imagefile.image(str(ref), own, manifest.media_type or "", described)


def _nearest(label: str, here: Path) -> tuple[Spec, Path] | None:
    """Return the nearest spec and its directory, if the image's label has its digest."""
    try:
        spec, directory = locate(None, here)
    except SpecError:
        return None
    return (spec, directory) if spec.digest == label else None
