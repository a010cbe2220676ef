"""Audit of what runs share: specs, images, code and data. It writes nothing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from repro_env.compare.audit.findings import Answer
from repro_env.io.files import may_exist
from repro_env.oci.config import ImageConfig
from repro_env.runs.specsearch import Found, Specs
from repro_env.runs.start import sourcedirectory
from repro_env.runs.start.sourcedirectory import checkpoint_directories, source_directory
from repro_env.schema.errors import DataError, NetworkError, PlatformError, ReproEnvError
from repro_env.schema.progress import Tell
from repro_env.schema.run import DataFact, SourceFact, Start
from repro_env.store.specs import files
from repro_env.store.specs.blobs import SpecBlobs
from repro_env.store.store import Store

if TYPE_CHECKING:
    from repro_env.delivery.builder.build import Sink


class SharedParts:
    """The parts that runs share, and the places where they may be."""

    def __init__(self, runs: Path, here: Path, store: Store, *, ask: bool, tell: Tell) -> None:
        self._runs = runs
        self._store = store
        self._ask = ask
        self._tell = tell
        self._specs = Specs(runs, here, store)

    def check_spec(self, start: Start) -> Answer:
        if self._specs.exact(start) is not None:
            return None
        found = self._specs.find(start.spec)
        if found is not None and start.spec_file is None:
            return None
        unreadable = f"; these specs cannot be read: {'; '.join(self._specs.problems)}" if self._specs.problems else ""
        if found is None:
            why = "no spec with this digest exists next to the runs or in the store"
            return "gone", f"{why}{unreadable}"
        why = (
            f"the spec file of the run ({start.spec_file}) was not found, but the spec in {found.directory} has the same identity"
        )
        return "gone", f"{why}{unreadable}"

    def check_image(self, start: Start) -> Answer:
        if self._is_stored(start.image):
            return None
        from repro_env.delivery.builder.sinks import StoreSink  # slow to import

        found = self._specs.of(start)
        if found is None:
            return "gone", "it is not in the store, and the spec to rebuild it from was not found"
        if found.spec.expected.image_id != start.image:
            return "gone", f"it is not in the store, and the spec describes {found.spec.expected.image_id} now"
        answer = check_rebuild(found, self._store, StoreSink(self._store), ask=self._ask)
        return None if answer is None else (answer[0], f"it is not in the store, and {answer[1]}")

    def _is_stored(self, image: str) -> bool:
        """Whether the store has the config and all layers of an image."""
        config = self._store.images.get(image)
        if config is None:
            return False
        layers = msgspec.json.decode(config, type=ImageConfig).diff_ids
        return all(self._store.layers.path(layer) is not None for layer in layers)

    def check_code(self, start: Start) -> Answer:
        fact = start.source
        if self._store.layers.path(fact.digest) is not None:
            return None
        found = self._specs.of(start)
        directories = {spec.directory for spec in (*self._specs.all(), *([found] if found else []))}
        if any(SpecBlobs(path / files.BLOBS).has(fact.digest, self._store.facts) for path in sorted(directories)):
            return None
        root = source_directory(fact)
        # The directory of a foreign record may be any directory of this machine, so it is not read.
        is_own = self._runs.is_relative_to(root) or (
            found is not None and sourcedirectory.is_trusted(found.spec, found.directory, self._store)
        )
        if is_own and self._is_live(start, found):
            return None
        where = "the store, the spec's blobs or its directory"
        if found is not None and (found.directory / files.REMOTE).is_file():
            return self._check_pushed(fact, found, where)
        return "gone", f"it is not in {where}"

    def _is_live(self, start: Start, found: Found | None) -> bool:
        """Whether the source directory exists, and is equal to the recorded tree now."""
        from repro_env.compare.environments.code import live_code
        from repro_env.environment.wheels import layers
        from repro_env.io.files import FileContents

        source, root = found.spec.observed.source if found is not None else None, source_directory(start.source)
        if found is None or source is None:
            return False
        try:
            never = (self._runs, *checkpoint_directories(start))
            code = live_code(source, root, found.directory, self._store, without=never)
            entries = sorted(code.entries.values(), key=lambda entry: entry.key)
            return layers.tree_blob(entries, FileContents(root), facts=self._store.facts).sha256 == start.source.digest
        except (OSError, ReproEnvError):
            return False

    def _check_pushed(self, fact: SourceFact, found: Found, where: str) -> Answer:
        from repro_env.delivery.builder.sources import Sources

        source = found.spec.observed.source
        if source is None or source.tree.sha256 != fact.digest:
            return "gone", f"it is not in {where}"
        if not self._ask:
            return "unknown", f"it is not in {where}; it may be where the spec was pushed (--ask checks that)"
        try:
            with Sources(found.spec, found.directory, self._store) as sources:
                is_available = sources.peek_tree("source", source.tree, ask=True).origin != "nowhere"
        except ReproEnvError as error:
            return "unknown", f"it is not in {where}; the place where the spec was pushed could not be checked: {error}"
        return None if is_available else ("gone", f"it is not in {where}, and not where the spec was pushed")

    def check_data(self, fact: DataFact) -> Answer:
        from repro_env.environment.source.data import look

        if fact.digest is None:
            return "unknown", "its digest was not recorded"
        if not may_exist(Path(fact.source)):
            return "gone", f"it does not exist; the run saw it at {fact.target}"
        try:
            current = look(Path(fact.source), fact.target, self._store.hashes, self._tell).data.digest
        except DataError as error:
            return "unknown", f"it could not be compared: {error.what}"
        if current == fact.digest:
            return None
        return "changed", f"its digest was {fact.digest[:19]}… and is {current[:19]}… now"


def check_rebuild(found: Found, store: Store, sink: Sink, *, ask: bool) -> Answer:
    """Check that everything that a rebuild needs is available. `ask`: also ask the servers."""
    from repro_env.delivery.builder.build import Build
    from repro_env.delivery.builder.layers import check_platform

    try:
        check_platform(found.spec)
        Build(found.spec, found.directory, store, sink).plan(ask=ask)
    except (PlatformError, NetworkError) as error:
        return "unknown", f"it could not be checked whether it can be rebuilt: {error}"
    except ReproEnvError as error:
        return "gone", f"it cannot be rebuilt: {error}"
    return None
