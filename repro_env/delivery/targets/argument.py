"""Parse the value of `--output`, and open that output."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from repro_env.registry.reference import parse as parse_reference
from repro_env.schema.errors import UsageError
from repro_env.schema.spec import Spec
from repro_env.store.store import Store

if TYPE_CHECKING:
    from repro_env.delivery.builder.sinks import Output

Kind = Literal["oci", "docker-archive", "docker", "registry"]
FORMS = "oci:DIR[:TAG], docker-archive:FILE[:NAME], docker:NAME, or HOST/REPOSITORY:TAG"


class Target(msgspec.Struct, frozen=True):
    """A parsed value of `--output`."""

    kind: Kind
    place: str
    """Directory, file, or the name of an image."""
    name: str = ""
    """Tag in a layout or name in an archive; may be empty."""


def parse(word: str) -> Target:
    """Parse a value of `--output`. Raises `UsageError` if it has none of the known forms."""
    kind, colon, value = word.partition(":")
    if colon and kind in ("oci", "docker-archive"):
        place, _, name = value.partition(":")
        if place and not value.endswith(":"):
            return Target("oci" if kind == "oci" else "docker-archive", place, name)
    elif colon and kind == "docker":
        return Target("docker", value)
    elif "/" in word and not word.startswith(("/", ".")) and "//" not in word:
        return Target("registry", word)
    raise UsageError("this is not a valid output", where=f"--output {word}", hint=f"use one of these forms: {FORMS}")


@contextmanager
def open_output(target: Target, spec: Spec, store: Store, *, here: Path) -> Iterator[Output]:
    """Open the output that receives the image of a spec, and close it at the end. `here`: the base of relative paths.

    Raises `UsageError` if the output cannot be written to, `EngineError`.
    """
    output: Output
    if target.kind == "oci":
        from repro_env.delivery.targets.ocilayout import Oci

        output = Oci(here / target.place, target.name)
    elif target.kind == "docker-archive":
        from repro_env.delivery.targets.archive import Archive

        output = Archive(here / target.place, parse_reference(target.name) if target.name else None)
    elif target.kind == "docker":
        from repro_env.delivery.targets.engine import EngineOutput
        from repro_env.io import engine

        with engine.connect() as client:
            diff_ids = [layer.diff_id for layer in spec.expected.layers]
            with closing(EngineOutput(client, target.place, store.temp, diff_ids)) as output:
                yield output
        return
    else:
        from repro_env.delivery.targets.registry import RegistryOutput

        output = RegistryOutput(parse_reference(target.place))
    with closing(output):
        yield output
