"""Bundler what cannot be downloaded again: write trees, wheels and conda packages to the blobs of a spec."""

from __future__ import annotations

import msgspec

from repro_env.environment.lock import LockedEnvironment
from repro_env.environment.system.tree import Tree
from repro_env.environment.wheels import layers
from repro_env.oci.entry import members
from repro_env.schema.artifact import TreeBlob
from repro_env.schema.errors import CaptureError
from repro_env.store.specs.blobs import SpecBlobs
from repro_env.store.store import Store


class Bundler(msgspec.Struct, frozen=True):
    blobs: SpecBlobs
    store: Store

    def tree(self, tree: Tree) -> TreeBlob:
        """Add a tree. If an undamaged blob of the same entries exists, nothing is read."""
        facts = self.store.facts
        expected = layers.known_blob(tree.entries, facts=facts)
        if expected is not None and self.blobs.has(expected.sha256, facts):
            return expected
        blob = self.blobs.add_tree(members(tree.entries, tree.contents), facts=facts)
        if expected is not None and blob != expected:
            hint = "wait until nothing writes to them, then capture again"
            raise CaptureError("files changed while they were captured", hint=hint)
        layers.remember_blob(tree.entries, blob, facts=facts)
        return blob

    def packages(self, locked: LockedEnvironment) -> None:
        """Add the wheels and conda packages that cannot be downloaded again."""
        for archive in locked.archives:
            if archive.why and not self.blobs.has(archive.artifact.sha256, self.store.facts):
                # The members of repacked wheels are not compressed, so that their digest does not depend on a compressor's version.
                is_repacked = archive.hint.origin == "repacked"
                self.blobs.add_file(archive.path(self.store), archive.artifact.sha256, compress=is_repacked)
