"""Assemble the spec from facts and artifacts: everything was read, hashed and proven before."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec

from repro_env.environment.conda import metadata
from repro_env.environment.lock import LockedEnvironment
from repro_env.environment.machine import variables
from repro_env.environment.python.externalpaths import python_path
from repro_env.environment.python.sites import with_prefix
from repro_env.environment.system.tree import Tree
from repro_env.io import machine
from repro_env.oci import config
from repro_env.oci.entry import Entry
from repro_env.oci.paths import HOME, SYSTEM_PATH, inside
from repro_env.schema import redact
from repro_env.schema.artifact import TreeBlob
from repro_env.schema.environment import Bundled, Excluded, Startup, Variable, Variables, values_of
from repro_env.schema.image import Config, Expected, Layer
from repro_env.schema.messages import shorten
from repro_env.schema.spec import Data, Defaults, Hints, Identity, InstalledFrom, Observed, Rules, Runtime, Source, Spec
from repro_env.version import __version__

_MAX_NAMES = 20
"""The number of files behind symlinks that are named."""
_UNRELATED = {"envs": "a directory of other conda environments", "pkgs": "conda's package cache"}


class CapturedCode(msgspec.Struct, frozen=True):
    """The code and the data of a capture."""

    source: Source | None = None
    data: tuple[Data, ...] = ()
    excluded: tuple[Excluded, ...] = ()
    remarks: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()


_NO_CODE = CapturedCode()


def spec(locked: LockedEnvironment, make_blob: Callable[[Tree], TreeBlob], code: CapturedCode = _NO_CODE, seed: int = 0) -> Spec:
    """The spec of a locked environment. `make_blob` returns the blob of a tree, which it stores or only hashes.

    `seed`: the master seed of runs that set no other.
    """
    request = locked.request
    sorted_variables = variables.sort(request.environ, request.added)
    identity = _identity(locked, make_blob, sorted_variables)
    return Spec(
        schema="repro-env/spec/2",
        identity=identity,
        defaults=Defaults(seed=seed),
        hints=Hints(
            wheels=tuple(sorted((wheel.hint for wheel in locked.wheels), key=lambda hint: hint.sha256)),
            packages=tuple(sorted((package.hint for package in locked.packages), key=lambda hint: hint.sha256)),
        ),
        observed=_observed(locked, code, sorted_variables),
        expected=expected(identity, locked.layers),
    )


def expected(identity: Identity, distributions: Sequence[Layer]) -> Expected:
    """The layers of the image, lowest first, and its ID. `distributions`: the layers of conda packages and wheels."""
    layers = [*config.lower_layers(identity), *distributions, *config.upper_layers(identity)]
    return Expected(layers=tuple(layers), image_id=config.image_id(identity, layers))


def _identity(locked: LockedEnvironment, make_blob: Callable[[Tree], TreeBlob], captured: Variables) -> Identity:
    """The identity, which the spec digest is computed from."""
    live, facts = locked.live, locked.live.facts

    def blob(tree: Tree | None) -> TreeBlob | None:
        return None if tree is None else make_blob(tree)

    return Identity(
        rules=Rules(),
        platform=machine.platform(),
        base=make_blob(live.system.base),
        unpackaged=blob(live.system.unpackaged),
        interpreter=Runtime(
            tree=blob(live.interpreter), executable=facts.interpreter.executable, version=facts.interpreter.version
        ),
        layout=facts.layout,
        other_layouts=tuple(site.layout for site in live.sites[1:]),
        command=facts.command,
        packages=tuple(sorted((package.artifact for package in locked.packages), key=lambda package: package.name)),
        distributions=tuple(sorted((dist.artifact for dist in locked.wheels), key=lambda wheel: wheel.key)),
        overlay=blob(locked.overlay),
        config=Config(env=_env(locked, captured)),
    )


def _env(locked: LockedEnvironment, captured: Variables) -> tuple[Variable, ...]:
    """The image's variables: the captured ones that change numbers, and those that make programs find the environment first."""
    live, facts, environ = locked.live, locked.live.facts, locked.request.environ
    values = values_of(captured.replayed)
    if facts.is_conda:
        values |= values_of(metadata.variables(live.sites[0].prefix, environ))
    own = facts.command.rpartition("/")[0]
    directories = [] if facts.is_venv or own in SYSTEM_PATH.split(":") else [own]
    directories += [f"{site.layout.prefix}/{site.layout.scripts}" for site in live.sites]
    values["PATH"] = ":".join(dict.fromkeys([*directories, *SYSTEM_PATH.split(":")]))
    # PYTHONUSERBASE only if files of the user are captured: otherwise the image is the same for every user, whatever HOME is.
    user_base = live.startup.user_base if live.startup.user_base in {site.layout.prefix for site in live.sites} else ""
    optional = {
        "VIRTUAL_ENV": facts.layout.prefix if facts.is_venv else "",
        "PYTHONPATH": python_path(environ),
        "LD_LIBRARY_PATH": live.system.library_path,
        "PYTHONUSERBASE": user_base,
    }
    values |= {name: value for name, value in optional.items() if value}
    return tuple(Variable(name=name, value=values[name]) for name in sorted(values))


def _observed(locked: LockedEnvironment, code: CapturedCode, captured: Variables) -> Observed:
    live, programs = locked.live, locked.request.programs
    pairs = zip(live.sites, locked.compositions, strict=True)
    edited = (line for site, composition in pairs for line in with_prefix(site, composition.edited))
    return Observed(
        tool=f"repro-env {__version__}",
        kind=live.facts.kind,
        interpreter=live.facts.interpreter,
        startup=Startup(
            problem=live.startup.problem,
            sys_path=tuple(map(redact.line, live.startup.sys_path)),
            locale=live.startup.locale,
        ),
        host=live.host,
        frameworks=live.frameworks,
        libraries=live.libraries,
        variables=captured,
        system_packages=live.system.packages,
        distributions=tuple(
            InstalledFrom(
                name=dist.facts.name,
                version=dist.facts.version,
                editable=dist.facts.editable,
                direct_url=redact.line(redact.url(dist.facts.direct_url)),
                site=f"{site.layout.prefix}/{dist.facts.site}",
            )
            for site, dist in locked.installed
        ),
        bundled=tuple(_bundled(locked)),
        edited=tuple(edited),
        remarks=tuple(dict.fromkeys([*live.system.remarks, *_remarks(locked), *code.remarks])),
        excluded=code.excluded,
        unknown=tuple(dict.fromkeys([*locked.unknown, *code.unknown])),
        programs=programs,
        source=code.source,
        data=code.data,
        home=tuple(file.name for file in locked.home_files),
    )


def _remarks(locked: LockedEnvironment) -> Iterator[str]:
    prefix = locked.live.sites[0].prefix
    for directory in metadata.unrelated_directories(prefix) if locked.live.facts.is_conda else ():
        yield f"{prefix}/{directory} is {_UNRELATED[directory]}: not part of this environment, not captured"
    if locked.lacking:
        yield f"the project requires packages that this environment does not have: {shorten(locked.lacking, 5)}"


def _bundled(locked: LockedEnvironment) -> Iterator[Bundled]:
    """What cannot be downloaded again, with the reasons."""
    for archive in locked.archives:
        if archive.why:
            artifact = archive.artifact
            yield Bundled(name=artifact.name, version=artifact.version, why=archive.why, size=artifact.size)
    yield from locked.plain_packages
    wheels = {(wheel.artifact.name, wheel.artifact.site) for wheel in locked.wheels}
    for site, dist in locked.installed:
        if (dist.facts.name, site.number) not in wheels:
            why = "no wheel can contain it: its files are bundled as plain files"
            yield Bundled(name=dist.facts.name, version=dist.facts.version, why=why)
    yield from locked.live.system.bundled
    for path in locked.live.external:
        why = "Python imports from there, outside the environment"
        yield Bundled(name=str(path.root), version="", why=why, size=sum(file.size for file in path.found))
    yield from (msgspec.structs.replace(file, name=f"~/{file.name}") for file in locked.home_files)
    targets = _link_targets(locked)
    for entry in targets[:_MAX_NAMES]:
        yield Bundled(name=f"/{entry.path}", version="", why="a symlink of the environment leads there", size=entry.size)
    if more := targets[_MAX_NAMES:]:
        size = sum(entry.size for entry in more)
        yield Bundled(name=f"{len(more)} more files", version="", why="symlinks of the environment lead there", size=size)


def _link_targets(locked: LockedEnvironment) -> list[Entry]:
    """The files of the overlay outside the environment that only its symlinks lead to."""
    roots = [*(site.root for site in locked.live.sites), *(inside(str(path.root)) for path in locked.live.external), inside(HOME)]
    others = tuple(f"{root}/" for root in roots)
    entries = locked.overlay.entries if locked.overlay is not None else ()
    return [entry for entry in entries if entry.kind == "file" and not entry.path.startswith(others)]
