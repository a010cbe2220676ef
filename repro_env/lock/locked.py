"""A locked environment: what it is, what of it are packages and wheels, and what the rest is. Nothing is written yet."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from repro_env.base.tree import Tree
from repro_env.capture.distributions import InstalledDistribution
from repro_env.image.entry import Entry
from repro_env.io import machine
from repro_env.lock import assemble, compose, conda, identify, places
from repro_env.lock.live import Live
from repro_env.lock.places import Place
from repro_env.model.artifact import TreeBlob
from repro_env.model.environment import Carried, Interpretation, Variable, Variables
from repro_env.model.errors import CaptureError
from repro_env.model.image import Layer
from repro_env.model.spec import Identity


class Locked(msgspec.Struct, frozen=True, kw_only=True):
    facts: Interpretation
    live: Live
    variables: Variables
    activation: tuple[Variable, ...]
    """What activating a conda environment sets."""
    packages: tuple[conda.Identified, ...]
    plain: tuple[Carried, ...]
    """Conda packages that are none here: their files are plain files of the environment."""
    beside: tuple[str, ...]
    """Folders in the prefix of a base conda environment that are no part of it."""
    identified: tuple[identify.Identified, ...]
    indexes: tuple[str, ...]
    compositions: tuple[compose.Composition, ...]
    """Of the places."""
    overlay: Tree | None
    layers: tuple[Layer, ...]
    """Of the conda packages and the distributions."""
    read: bool
    """Whether a layer has to be, or was, computed from the installed files after they were hashed."""
    python_path: str
    followed: tuple[Entry, ...]
    """Files outside of it that its symlinks lead to."""
    outside: tuple[Carried, ...]
    """Folders that Python imports from, outside of all of it."""
    home: tuple[Carried, ...]
    """Configuration of libraries, by its path below the home directory."""
    unknown: tuple[str, ...]

    @property
    def installed(self) -> tuple[tuple[Place, InstalledDistribution], ...]:
        """Every distribution with its place."""
        return tuple((place, one) for place in self.live.places for one in place.scanned.distributions)

    @property
    def edited(self) -> tuple[str, ...]:
        """Files that are not as their distribution installed them."""
        pairs = zip(self.live.places, self.compositions, strict=True)
        return tuple(line for place, one in pairs for line in places.edited(place, one.edited))


def identity_of(locked: Locked, seed: int, hold: Callable[[Tree], TreeBlob]) -> Identity:
    """The identity of a locked environment. `hold` says what becomes of each tree: carried, or only hashed."""
    live = locked.live
    return assemble.identity(
        locked.facts,
        machine.platform(),
        assemble.Trees(
            base=hold(live.base),
            unowned=hold(live.unowned) if live.unowned is not None else None,
            interpreter=hold(live.interpreter) if live.interpreter is not None else None,
            overlay=hold(locked.overlay) if locked.overlay is not None else None,
        ),
        [one.package for one in locked.packages],
        [one.wheel for one in locked.identified],
        locked.variables,
        activation=locked.activation,
        others=[place.layout for place in live.places[1:]],
        # Where nothing of the user's is held, the image is the same for every user.
        user_base=live.startup.user_base if live.startup.user_base in {place.layout.prefix for place in live.places} else "",
        python_path=locked.python_path,
        seed=seed,
    )


def check_unchanged(locked: Locked) -> None:
    """Nobody installed or edited while the layers were computed: the trees still have the keys they were hashed by."""
    for place in locked.live.places:
        again = places.listed(locked.facts, place.layout, place.scanned)
        now = {one.path: one.key for one in again if one.kind == "file"}
        before = {one.path: one.key for one in place.found if one.kind == "file"}
        changed = sorted(path for path in now.keys() | before.keys() if now.get(path) != before.get(path))
        if changed:
            raise CaptureError(
                f"changed while it was captured ({len(changed)} files in all)",
                where=str(place.prefix / changed[0]),
                hint="wait until nothing is installing into the environment and capture again",
            )
