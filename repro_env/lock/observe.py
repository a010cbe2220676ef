"""What was seen, for the spec: facts that no digest is taken of. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from repro_env import __version__
from repro_env.capture import frameworks
from repro_env.lock.locked import Locked
from repro_env.model import redact
from repro_env.model.environment import Carried, Excluded, Startup
from repro_env.model.spec import Data, InstalledFrom, Observed, Source

_NAMED = 20
"""Files behind symlinks that are named each."""
_BESIDE = {"envs": "a folder of other conda environments", "pkgs": "conda's package cache"}


def observed(
    locked: Locked,
    *,
    programs: Sequence[str] = (),
    source: Source | None = None,
    data: Sequence[Data] = (),
    excluded: Sequence[Excluded] = (),
    notes: Sequence[str] = (),
    unknown: Sequence[str] = (),
) -> Observed:
    """The facts of a locked environment, and of the code and data beside it; `notes` and `unknown` are about those two."""
    live = locked.live
    return Observed(
        tool=f"repro-env {__version__}",
        kind=locked.facts.kind,
        interpreter=locked.facts.interpreter,
        startup=_written(live.startup),
        host=live.host,
        accelerators=live.accelerators,
        frameworks=live.frameworks,
        libraries=live.libraries,
        variables=locked.variables,
        system_packages=live.base.packages,
        distributions=tuple(
            InstalledFrom(
                name=one.facts.name,
                version=one.facts.version,
                installer=one.facts.installer,
                requested=one.facts.requested,
                editable=one.facts.editable,
                direct_url=redact.line(redact.url(one.facts.direct_url)),
                site=f"{place.layout.prefix}/{one.facts.site}",
            )
            for place, one in locked.installed
        ),
        carried=tuple(_carried(locked)),
        edited=(*locked.edited, *(line for tree in live.trees for line in tree.edited)),
        notes=tuple(dict.fromkeys([*(note for tree in live.trees for note in tree.notes), *_notes(locked, programs), *notes])),
        excluded=tuple(excluded),
        unknown=tuple(dict.fromkeys([*locked.unknown, *unknown])),
        programs=tuple(programs),
        source=source,
        data=tuple(data),
        home=tuple(one.name for one in locked.home),
    )


def _written(startup: Startup) -> Startup:
    """The report of a start without secrets, to be written down. The program itself uses the unredacted paths."""
    return msgspec.structs.replace(
        startup,
        sys_path=tuple(map(redact.line, startup.sys_path)),
        mapped=tuple(map(redact.line, startup.mapped)),
        user_base=redact.line(startup.user_base),
    )


def _notes(locked: Locked, programs: Sequence[str]) -> Iterator[str]:
    for folder in locked.beside:
        yield f"{locked.facts.layout.prefix}/{folder} is {_BESIDE[folder]}: not part of this environment, not captured"
    if note := frameworks.compiler_note(locked.live.frameworks, programs):
        yield note


def _carried(locked: Locked) -> Iterator[Carried]:
    for package in locked.packages:
        if package.why:
            yield Carried(name=package.package.name, version=package.package.version, why=package.why, size=package.package.size)
    yield from locked.plain
    for one in locked.identified:
        if one.why:
            yield Carried(name=one.wheel.name, version=one.wheel.version, why=one.why, size=one.wheel.size)
    told = {(one.wheel.name, one.wheel.place) for one in locked.identified}
    for place, found in locked.installed:
        if (found.facts.name, place.number) not in told:
            why = "no wheel can hold it: its files are carried as they are"
            yield Carried(name=found.facts.name, version=found.facts.version, why=why)
    yield from locked.live.carried
    yield from locked.outside
    yield from (msgspec.structs.replace(one, name=f"~/{one.name}") for one in locked.home)
    for entry in locked.followed[:_NAMED]:
        yield Carried(name=f"/{entry.path}", version="", why="a symlink of the environment leads there", size=entry.size)
    if more := locked.followed[_NAMED:]:
        size = sum(entry.size for entry in more)
        yield Carried(name=f"{len(more)} more files", version="", why="symlinks of the environment lead there", size=size)
