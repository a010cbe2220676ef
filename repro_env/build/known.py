"""What is known of a spec's wheels and conda packages: first from earlier builds, then from what is found on the way."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from repro_env.build import conda
from repro_env.build.room import BLOCK, blocks
from repro_env.build.sources import Artifact, Place
from repro_env.image import conda as linking
from repro_env.image import wheel as rule
from repro_env.model.artifact import CondaPackage, Wheel
from repro_env.model.errors import ArtifactError
from repro_env.model.spec import Identity
from repro_env.store.store import Store
from repro_env.store.wheelfile import open_facts


class Known:
    """The facts of each, and what they become."""

    def __init__(self, identity: Identity, store: Store, facts_of: Callable[[Wheel], rule.Facts | None]) -> None:
        self._identity = identity
        self._store = store
        self.facts: dict[str, rule.Facts] = {}
        """Of wheels, by key. Fetchers' threads add what they find out."""
        self._linked: dict[str, linking.Facts] = {}
        """Of conda packages, by key."""
        self._weights: dict[str, tuple[int, int]] = {}
        """Bytes and files that each becomes, by key."""
        for wheel in identity.distributions:
            known = facts_of(wheel)
            if known is not None:
                self.facts[wheel.key] = known
        self.learn_packages()

    def has(self, one: Artifact) -> bool:
        """Whether its facts are known."""
        return one.key in (self._linked if isinstance(one, CondaPackage) else self.facts)

    def weighs(self, one: Artifact) -> bool:
        """Whether it is known what it becomes, if only for a forecast."""
        return one.key in self._weights

    def learn_packages(self) -> None:
        """What the store has found out of conda packages by now."""
        for package in self._identity.packages:
            found = conda.known(package, self._identity.layout, self._store)
            if found is not None:
                self._linked[package.key] = found

    def weigh(self, wheel: Artifact, place: Place) -> None:
        """Look into a whole wheel on this machine, whose facts are not known, for what it will unpack to."""
        if isinstance(wheel, CondaPackage) or wheel.key in self.facts or not place.whole or place.remote:
            return
        try:
            # Not checked yet, so good for a forecast and for nothing else.
            self._weights[wheel.key] = _weight(open_facts(Path(place.where), wheel.filename))
        except (ArtifactError, OSError):
            return

    def unpacked(self, one: Artifact) -> tuple[int, int]:
        """Bytes in whole blocks and files that it becomes; a lower bound while nothing is known of it."""
        linked = self._linked.get(one.key)
        if linked is not None:
            self._weights[one.key] = sum(blocks(each.size) for each in linked.linked), len(linked.linked)
            return self._weights[one.key]
        facts = self.facts.get(one.key)
        if facts is not None:
            self._weights[one.key] = _weight(facts)
        return self._weights.get(one.key, (one.size, 1))

    def sizes(self) -> dict[str, int]:
        """Bytes that each becomes in its layer, by key; only of those whose facts are known."""
        identity = self._identity
        packages = {
            one.key: linking.canonical(self._linked[one.key], identity.layout).size
            for one in identity.packages
            if one.key in self._linked
        }
        wheels = {
            one.key: rule.canonical(self.facts[one.key], identity.layout_of(one), name=one.name).size
            for one in identity.distributions
            if one.key in self.facts
        }
        return packages | wheels


def _weight(facts: rule.Facts) -> tuple[int, int]:
    folders = {file.name.rpartition("/")[0] for file in facts.files}
    return sum(blocks(file.size) for file in facts.files) + BLOCK * len(folders), len(facts.files) + len(folders)
