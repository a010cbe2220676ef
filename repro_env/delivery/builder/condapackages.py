"""Conda packages of an image: what each installs, and the content of its files, from a complete archive on this machine."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from repro_env.oci import conda as rule
from repro_env.oci.entry import Contents
from repro_env.oci.wheel import Installed
from repro_env.schema import codec
from repro_env.schema.artifact import CondaPackage
from repro_env.schema.environment import Layout
from repro_env.schema.errors import ArtifactError
from repro_env.store.packages import condafile
from repro_env.store.store import Store


def recall_facts(package: CondaPackage, layout: Layout, store: Store) -> rule.Facts | None:
    """Return the facts of a package at a prefix that the store has from an earlier, hashed archive."""
    facts = store.facts.recall(condafile.FACTS, condafile.facts_key(package.sha256, layout.prefix), rule.Facts)
    return facts if facts is not None and facts.filename == package.filename else None


def open_package(
    conda_package: CondaPackage, archive: Path | None, layout: Layout, store: Store, stack: ExitStack
) -> tuple[Installed, Contents | None]:
    """Return what a package installs and the content of its files (None without an archive). The store keeps the facts.

    The archive was checked before. Raises `ArtifactError` if the package cannot be installed.
    """
    facts = recall_facts(conda_package, layout, store)
    unpacked = None
    if archive is not None:
        unpacked = stack.enter_context(condafile.UnpackedPackage(archive, conda_package.filename, layout.prefix, store.temp))
    if facts is None:
        if unpacked is None:
            raise ArtifactError(
                "the store does not have the facts of the package any more", where=conda_package.filename, hint="rebuild again"
            )
        facts = unpacked.facts
    if (facts.info.name, facts.info.version, facts.info.build) != (
        conda_package.name,
        conda_package.version,
        conda_package.build,
    ):
        raise ArtifactError(
            f"the archive holds the package {facts.info.name} {facts.info.version} {facts.info.build}",
            where=conda_package.filename,
        )
    installed = rule.canonical(facts, layout)
    store.facts.put(condafile.FACTS, condafile.facts_key(conda_package.sha256, layout.prefix), codec.canonical(facts))
    return installed, condafile.CondaContents(unpacked, installed) if unpacked is not None else None
