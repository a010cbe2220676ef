"""What of an environment could not be told, or cannot be held, in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from repro_env.capture.unsaid import unsaid
from repro_env.lock import places
from repro_env.lock.live import Live
from repro_env.lock.outside import systems
from repro_env.lock.places import Place
from repro_env.model import codec, redact
from repro_env.model.environment import Interpretation
from repro_env.store.store import Store


def untold(facts: Interpretation, live: Live, environ: Mapping[str, str], store: Store) -> tuple[str, ...]:
    """One line each. Never empty by default: each source of facts adds its own."""
    lines = [line for place in live.places for line in places.edited(place, place.scanned.problems)]
    lines += [line for tree in live.trees for line in tree.unknown]
    lines += map(redact.line, live.unknown)
    lines += systems(live.startup, live.places)
    if live.startup.problem:
        lines.append(f"start of Python: {live.startup.problem}")
    path = environ.get("PYTHONPATH", "")
    if path and any(not part.startswith("/") for part in path.split(":")):
        lines.append("PYTHONPATH has a relative or empty entry; a run takes those in the source from the PYTHONPATH at that time")
    lines += _unsaid(facts, live.places, store)
    return tuple(dict.fromkeys(lines))


def _unsaid(facts: Interpretation, observed: Sequence[Place], store: Store) -> tuple[str, ...]:
    """Remembered while no file of a place changes: bytecode is looked at once."""
    told: list[str] = []
    for place in observed:
        key = codec.digest([place.layout, place.state, facts.interpreter.cache_tag])
        known = store.facts.recall("unsaid", key, tuple[str, ...])
        if known is None:
            known = unsaid(place.layout, place.found, facts.interpreter.cache_tag)
            if place.settled:
                store.facts.put("unsaid", key, codec.canonical(known))
        told += known
    return tuple(told)
