"""What the wheels of an environment become, and the layers that they make."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from repro_env.image import stack, wheel
from repro_env.io.files import FileContents, keys_of
from repro_env.lock import compose, identify, layers
from repro_env.lock.places import Place
from repro_env.model import codec
from repro_env.model.environment import Layout
from repro_env.model.image import Layer
from repro_env.model.spec import Rules
from repro_env.store.store import Store
from repro_env.store.wheelfile import FACTS, WheelContents


class Installed(Mapping[str, wheel.Installed]):
    """What each wheel becomes, by its key; made, or read from the store, when it is asked for."""

    def __init__(self, identified: Sequence[identify.Identified], observed: Sequence[Place], store: Store) -> None:
        self._wheels = {one.wheel.key: one for one in identified}
        self._places = observed
        self._store = store
        self._made: dict[str, wheel.Installed] = {}

    def __getitem__(self, key: str) -> wheel.Installed:
        if key not in self._made:
            one = self._wheels[key]
            self._made[key] = _installed(one, self._places[one.wheel.place].layout, self._store)
        return self._made[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._wheels)

    def __len__(self) -> int:
        return len(self._wheels)


def _installed(one: identify.Identified, layout: Layout, store: Store) -> wheel.Installed:
    """What the wheel becomes. The store remembers that, and the wheel's facts: a rebuild here can use the installed files."""
    key = codec.digest([one.wheel.filename, one.wheel.sha256, one.wheel.name, layout, Rules().canonical])
    known = store.facts.recall("installed", key, wheel.Installed)
    if known is not None:
        return known
    facts = identify.facts_of(one, store)
    store.facts.put(FACTS, one.wheel.sha256, codec.canonical(facts))
    made = wheel.canonical(facts, layout, name=one.wheel.name)
    store.facts.put("installed", key, codec.canonical(made))
    return made


def layers_of(
    groups: Sequence[stack.GroupLayer],
    installed: Mapping[str, wheel.Installed],
    identified: Sequence[identify.Identified],
    compositions: Sequence[compose.Composition],
    observed: Sequence[Place],
    store: Store,
) -> tuple[Layer, ...]:
    """The layers by diff ID, from the installed files; from the wheel where those are not as it has them."""
    sources: dict[str, layers.DistributionContents] = {}
    live = [FileContents(place.prefix, keys=keys_of(place.found)) for place in observed]
    for one in identified:
        key, place = one.wheel.key, one.wheel.place
        altered = compositions[place].altered[key] & set(installed[key].members)
        original = WheelContents(identify.whole(one, store), installed[key]) if altered else None
        sources[key] = layers.DistributionContents(installed[key], live[place], altered, original)
    holds = {one.wheel.key: f"{one.wheel.key}=={one.wheel.version}" for one in identified}
    return layers.diff_ids(groups, sources, holds, facts=store.facts)
