"""Which distribution Python imports where several places have one of a name."""

from __future__ import annotations

from repro_env.model.artifact import Wheel
from repro_env.model.spec import Spec


def imported(spec: Spec) -> tuple[tuple[Wheel, ...], tuple[Wheel, ...]]:
    """Those whose place comes first on `sys.path`, and those that they hide; each sorted by name.

    A lock file for other installers names each distribution once: they install to one place.
    """
    path = {entry: number for number, entry in reversed(list(enumerate(spec.observed.startup.sys_path)))}

    def rank(wheel: Wheel) -> tuple[int, int]:
        layout = spec.identity.layout_of(wheel)
        sites = (f"{layout.prefix}/{site}" for site in (layout.purelib, layout.platlib))
        return min(path.get(site, len(path)) for site in sites), wheel.place

    first: dict[str, Wheel] = {}
    for wheel in sorted(spec.identity.distributions, key=rank):
        first.setdefault(wheel.name, wheel)
    hidden = [wheel for wheel in spec.identity.distributions if first[wheel.name] != wheel]
    return tuple(first[name] for name in sorted(first)), tuple(sorted(hidden, key=lambda wheel: (wheel.name, wheel.place)))
