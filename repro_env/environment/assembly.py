"""Assemble the spec from facts and artifacts. Pure: everything was read, hashed and proven before."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec

from repro_env.environment.locked import LockedEnvironment
from repro_env.environment.machine import frameworks
from repro_env.environment.system.tree import Tree
from repro_env.io import machine
from repro_env.oci import config
from repro_env.oci.paths import SYSTEM_PATH
from repro_env.schema import redact
from repro_env.schema.artifact import CondaPackage, TreeBlob, Wheel
from repro_env.schema.environment import Carried, Excluded, Interpretation, Layout, Startup, Variable, Variables
from repro_env.schema.image import Config, Expected, Layer
from repro_env.schema.spec import (
    Data,
    Defaults,
    Hints,
    Identity,
    InstalledFrom,
    Observed,
    Platform,
    Rules,
    Runtime,
    Source,
    Spec,
    WheelHint,
)
from repro_env.version import __version__

_MAX_NAMES = 20
"""The number of files behind symlinks that are named."""
_UNRELATED = {"envs": "a directory of other conda environments", "pkgs": "conda's package cache"}


def identity_of(locked: LockedEnvironment, make_blob: Callable[[Tree], TreeBlob]) -> Identity:
    """The identity of a locked environment. `make_blob` returns the blob of a tree, which it stores or only hashes."""
    live = locked.live
    return identity(
        locked.facts,
        machine.platform(),
        [package.package for package in locked.packages],
        [dist.wheel for dist in locked.wheels],
        locked.variables,
        base=make_blob(live.base),
        unpackaged=make_blob(live.unpackaged) if live.unpackaged is not None else None,
        interpreter=make_blob(live.interpreter) if live.interpreter is not None else None,
        overlay=make_blob(locked.overlay) if locked.overlay is not None else None,
        activation=locked.activation,
        other_layouts=[site.layout for site in live.sites[1:]],
        # Only if files of the user are captured: otherwise the image is the same for every user.
        user_base=live.startup.user_base if live.startup.user_base in {site.layout.prefix for site in live.sites} else "",
        python_path=locked.python_path,
        library_path=live.library_path,
    )


def identity(
    facts: Interpretation,
    platform: Platform,
    packages: Sequence[CondaPackage],
    wheels: Sequence[Wheel],
    variables: Variables,
    *,
    base: TreeBlob,
    unpackaged: TreeBlob | None,
    interpreter: TreeBlob | None,
    overlay: TreeBlob | None,
    activation: Sequence[Variable],
    other_layouts: Sequence[Layout],
    python_path: str,
    library_path: str,
    user_base: str,
) -> Identity:
    """The identity, which the spec digest is computed from. The trees are those that are stored as blobs."""
    return Identity(
        rules=Rules(),
        platform=platform,
        base=base,
        unowned=unpackaged,
        interpreter=Runtime(tree=interpreter, executable=facts.interpreter.executable, version=facts.interpreter.version),
        layout=facts.layout,
        others=tuple(other_layouts),
        command=facts.command,
        packages=tuple(sorted(packages, key=lambda package: package.name)),
        distributions=tuple(sorted(wheels, key=lambda wheel: wheel.key)),
        overlay=overlay,
        config=Config(env=_env(facts, [*variables.replayed, *activation], other_layouts, python_path, library_path, user_base)),
    )


def _env(
    facts: Interpretation,
    variables: Sequence[Variable],
    other_layouts: Sequence[Layout],
    python_path: str,
    library_path: str,
    user_base: str,
) -> tuple[Variable, ...]:
    """The image's variables: the captured ones that change numbers, and those that make programs find the environment first."""
    values = {variable.name: variable.value for variable in variables}
    own = facts.command.rpartition("/")[0]
    directories = [] if facts.kind == "venv" or own in SYSTEM_PATH.split(":") else [own]
    directories += [f"{layout.prefix}/{layout.scripts}" for layout in (facts.layout, *other_layouts)]
    values["PATH"] = ":".join(dict.fromkeys([*directories, *SYSTEM_PATH.split(":")]))
    if facts.kind == "venv":
        values["VIRTUAL_ENV"] = facts.layout.prefix
    if python_path:
        values["PYTHONPATH"] = python_path
    if library_path:
        values["LD_LIBRARY_PATH"] = library_path
    if user_base:
        values["PYTHONUSERBASE"] = user_base  # HOME depends on the user of a run
    return tuple(Variable(name=name, value=values[name]) for name in sorted(values))


def expected(identity: Identity, distributions: Sequence[Layer]) -> Expected:
    """The layers of the image, lowest first, and its ID. `distributions`: the layers of conda packages and wheels."""
    layers = [*config.lower_layers(identity), *distributions, *config.upper_layers(identity)]
    return Expected(layers=tuple(layers), image_id=config.image_id(identity, layers))


def spec(
    identity: Identity,
    hints: Sequence[WheelHint],
    packages: Sequence[WheelHint],
    indexes: Sequence[str],
    observed: Observed,
    distributions: Sequence[Layer],
    *,
    seed: int,
) -> Spec:
    """The complete spec. `seed`: the master seed of runs that set no other."""
    return Spec(
        schema="repro-env/spec/2",
        identity=identity,
        defaults=Defaults(seed=seed),
        hints=Hints(
            wheels=tuple(sorted(hints, key=lambda hint: hint.sha256)),
            packages=tuple(sorted(packages, key=lambda hint: hint.sha256)),
            indexes=tuple(indexes),
        ),
        observed=observed,
        expected=expected(identity, distributions),
    )


def observed(
    locked: LockedEnvironment,
    *,
    programs: Sequence[str] = (),
    source: Source | None = None,
    data: Sequence[Data] = (),
    excluded: Sequence[Excluded] = (),
    notes: Sequence[str] = (),
    unknown: Sequence[str] = (),
) -> Observed:
    """The facts of a locked environment, its code and its data; `notes` and `unknown` are about the code and data."""
    live = locked.live
    return Observed(
        tool=f"repro-env {__version__}",
        kind=locked.facts.kind,
        interpreter=locked.facts.interpreter,
        startup=_redact(live.startup),
        host=live.host,
        frameworks=live.frameworks,
        libraries=live.libraries,
        variables=locked.variables,
        system_packages=live.base.packages,
        distributions=tuple(
            InstalledFrom(
                name=dist.facts.name,
                version=dist.facts.version,
                installer=dist.facts.installer,
                requested=dist.facts.requested,
                editable=dist.facts.editable,
                direct_url=redact.line(redact.url(dist.facts.direct_url)),
                site=f"{site.layout.prefix}/{dist.facts.site}",
            )
            for site, dist in locked.installed
        ),
        carried=tuple(_bundled(locked)),
        edited=(*locked.edited, *(line for tree in live.trees for line in tree.edited)),
        notes=tuple(dict.fromkeys([*(note for tree in live.trees for note in tree.notes), *_notes(locked, programs), *notes])),
        excluded=tuple(excluded),
        unknown=tuple(dict.fromkeys([*locked.unknown, *unknown])),
        programs=tuple(programs),
        source=source,
        data=tuple(data),
        home=tuple(file.name for file in locked.home_files),
    )


def _redact(startup: Startup) -> Startup:
    """The start-up report without secrets. The program itself uses the unredacted paths."""
    return msgspec.structs.replace(
        startup,
        sys_path=tuple(map(redact.line, startup.sys_path)),
        mapped=tuple(map(redact.line, startup.mapped)),
        user_base=redact.line(startup.user_base),
    )


def _notes(locked: LockedEnvironment, programs: Sequence[str]) -> Iterator[str]:
    for directory in locked.unrelated_directories:
        yield f"{locked.facts.layout.prefix}/{directory} is {_UNRELATED[directory]}: not part of this environment, not captured"
    names = {dist.facts.name for _, dist in locked.installed} | {package.package.name for package in locked.packages}
    if note := frameworks.compiler_note(locked.live.frameworks, names, programs):
        yield note


def _bundled(locked: LockedEnvironment) -> Iterator[Carried]:
    for package in locked.packages:
        if package.why:
            yield Carried(name=package.package.name, version=package.package.version, why=package.why, size=package.package.size)
    yield from locked.plain_packages
    for wheel in locked.wheels:
        if wheel.why:
            yield Carried(
                name=wheel.wheel.name,
                version=wheel.wheel.version,
                why=wheel.why,
                size=wheel.wheel.size,
            )
    identified = {(wheel.wheel.name, wheel.wheel.place) for wheel in locked.wheels}
    for site, dist in locked.installed:
        if (dist.facts.name, site.number) not in identified:
            why = "no wheel can contain it: its files are bundled as plain files"
            yield Carried(name=dist.facts.name, version=dist.facts.version, why=why)
    yield from locked.live.bundled
    yield from locked.external
    yield from (msgspec.structs.replace(file, name=f"~/{file.name}") for file in locked.home_files)
    targets = locked.link_targets
    for entry in targets[:_MAX_NAMES]:
        yield Carried(name=f"/{entry.path}", version="", why="a symlink of the environment leads there", size=entry.size)
    if more := targets[_MAX_NAMES:]:
        size = sum(entry.size for entry in more)
        yield Carried(name=f"{len(more)} more files", version="", why="symlinks of the environment lead there", size=size)
