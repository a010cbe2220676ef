"""Conda packages when an image is built: what one becomes, and its bytes, from a whole archive on this machine."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from repro_env.image import conda as rule
from repro_env.image.entry import Contents
from repro_env.image.wheel import Installed
from repro_env.model import codec
from repro_env.model.artifact import CondaPackage
from repro_env.model.environment import Layout
from repro_env.model.errors import ArtifactError
from repro_env.store import condafile
from repro_env.store.store import Store


def known(one: CondaPackage, layout: Layout, store: Store) -> rule.Facts | None:
    """What the store knows of a package at a prefix, from an archive that was hashed."""
    found = store.facts.recall(condafile.FACTS, condafile.facts_key(one.sha256, layout.prefix), rule.Facts)
    return found if found is not None and found.filename == one.filename else None


def opened(
    one: CondaPackage, archive: Path | None, layout: Layout, store: Store, stack: ExitStack
) -> tuple[Installed, Contents | None]:
    """What a package becomes, and where its bytes are; the latter None without an archive.

    The archive was checked before. What it becomes is remembered. Raises `ArtifactError` for one that cannot be linked.
    """
    facts = known(one, layout, store)
    package = None
    if archive is not None:
        package = stack.enter_context(condafile.Unpacked(archive, one.filename, layout.prefix, store.temp))
    if facts is None:
        if package is None:
            raise ArtifactError("what it becomes is not known any more", where=one.filename, hint="rebuild again")
        facts = package.facts
    if (facts.info.name, facts.info.version, facts.info.build) != (one.name, one.version, one.build):
        raise ArtifactError(f"holds {facts.info.name} {facts.info.version} {facts.info.build}", where=one.filename)
    installed = rule.canonical(facts, layout)
    store.facts.put(condafile.FACTS, condafile.facts_key(one.sha256, layout.prefix), codec.canonical(facts))
    return installed, condafile.CondaContents(package, installed) if package is not None else None
