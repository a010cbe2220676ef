"""The story of `repro-env check`: is what is here still what was captured? Nothing is written but caches.

pip-tools' sync knows which versions to install and remove to reach a list of pins; it knows no files, builds, other
places, interpreter or system, and answers with a plan instead of a reason. So the comparison is our own, the one that
`--runner host` uses.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from pathlib import Path

import msgspec

from repro_env.capture import target as targets
from repro_env.capture.target import Target
from repro_env.flows import code, compare, sides, sourcedir
from repro_env.flows.compare import Compared
from repro_env.model.errors import DriftError, LockError, NetworkError
from repro_env.model.spec import Spec
from repro_env.model.talk import Tell
from repro_env.store.store import Store
from repro_env.verify import environment
from repro_env.verify.difference import Difference, NotCompared, ordered


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What the user asked for. Paths are absolute."""

    environ: Mapping[str, str]
    environment: bool = True
    project: bool = True
    """The source; with the environment also the data."""
    python: str | None = None
    source: Path | None = None
    data: Mapping[str, Path] = {}
    """Where data are now, by where runs see them."""


class Checked(msgspec.Struct, frozen=True, kw_only=True):
    compared: Compared
    environment: str
    """The python that was compared; empty when none was."""
    source: str
    """The folder that was compared; empty when none was."""


def check(spec: Spec, folder: Path, asked: Asked, *, store: Store, tell: Tell) -> Checked:
    """`folder` holds the spec. Raises `DriftError` where there is nothing to compare, and what a capture raises."""
    known = sourcedir.is_known(spec, folder, store)
    found: list[Difference] = []
    missing: list[NotCompared] = []
    command = ""
    if asked.environment:
        target = _target(spec, folder, asked, known=known, tell=tell)
        command = str(target.path)
        more, lacking = _environment(spec, folder, target, asked, store, tell)
        found += more
        missing += lacking
    source, then, root = spec.observed.source, code.captured(spec), None
    if asked.project and source is not None and then is not None:
        chosen = sourcedir.choose(spec, folder, store=store, given=asked.source)
        root = chosen.path
        if asked.environment:
            more, lacking = code.data(spec, asked.data, store, root=chosen.root if known or root is not None else None)
            found += more
            missing += lacking
        if root is None:
            missing.append(NotCompared(what="source", why=f"{chosen.why}; name the directory of the code with --source"))
        else:
            found += code.different(then, code.live(source, root, folder, store))
    if asked.project and not asked.environment and then is None:
        raise DriftError("the spec holds no source", where=str(folder), hint="capture again with --source DIR")
    return Checked(
        compared=Compared(ordered(found), tuple(missing)),
        environment=command,
        source="" if root is None else str(root),
    )


def _target(spec: Spec, folder: Path, asked: Asked, *, known: bool, tell: Tell) -> Target:
    """The Python to look at: the given one, else the captured one.

    Where that is gone, or the spec is a stranger's (who may name any program of this machine), it is the one that a
    variable names. An environment that was only found is not started unasked; the error names it.
    """
    command, source = spec.identity.command, (asked.source or folder.parent).resolve()
    if asked.python is None and known and os.path.lexists(command):
        target = targets.captured(command, asked.environ, source)
        for note in target.notes:
            tell(f"note: {note}")
        return target
    chosen = targets.choose(asked.python, asked.environ, source)
    if chosen.explicit:
        return chosen
    raise DriftError(
        "the captured environment is not on this machine"
        if known
        else "this spec was not captured here, so its Python is not run",
        where=command,
        hint=f"name the environment (--python {shlex.quote(str(chosen.path))}), or check the code alone with --project",
    )


def _environment(
    spec: Spec, folder: Path, target: Target, asked: Asked, store: Store, tell: Tell
) -> tuple[list[Difference], list[NotCompared]]:
    """The files as they are under the captured variables; the variables by themselves."""
    captured = sides.of_spec(spec, folder, "the capture", store)
    found = list(_variables(spec, asked.environ))
    source = spec.observed.source
    # An environment that the user names belongs to the code beside the spec; the captured one to the captured place.
    near = asked.source or (folder if source is None else sourcedir.beside(source, folder))
    try:
        live = sides.of_live(
            target,
            under(spec, asked.environ),
            workspace=Path(source.path) if source is not None and asked.python is None else near,
            programs=spec.observed.programs,
            seed=spec.identity.determinism.seed,
            store=store,
            tell=tell,
            base=spec.hints.base,
            added=spec.observed.variables.added,
        )
    except (NetworkError, LockError) as error:
        # Something new is there that an index was asked about. Names and versions can be told without it.
        why = f"what is new could not be identified: {error}"
        missing = [NotCompared(what="files of the environment", why=why)]
        return [*found, *_by_name(spec, target, asked.environ)], missing
    found += compare.environments(captured, live, store).differences
    return found, []


def under(spec: Spec, environ: Mapping[str, str]) -> dict[str, str]:
    """The caller's variables, those that change numbers as they were captured."""
    from repro_env.capture import variables

    numeric = {one.name for one in variables.sort(environ, spec.observed.variables.added).replayed}
    own = {name: value for name, value in environ.items() if name not in numeric and name != "PYTHONPATH"}
    place = ("PATH", "VIRTUAL_ENV", "PYTHONUSERBASE")
    return own | {one.name: one.value for one in spec.identity.config.env if one.name not in place}


def _variables(spec: Spec, environ: Mapping[str, str]) -> tuple[Difference, ...]:
    from repro_env.capture import variables
    from repro_env.lock.outside import python_path

    then = {one.name: one.value for one in spec.observed.variables.replayed}
    now = {one.name: one.value for one in variables.sort(environ, spec.observed.variables.added).replayed}
    found = list(environment.variables(then, now))
    path = python_path(environ)
    was = next((one.value for one in spec.identity.config.env if one.name == "PYTHONPATH"), "")
    if path != was:
        why = "modules are found along it"
        found.append(Difference(level="layout", what="PYTHONPATH", left=was, right=path, why=why))
    return tuple(found)


def _by_name(spec: Spec, target: Target, environ: Mapping[str, str]) -> tuple[Difference, ...]:
    """Distributions of the environment's own prefix by name and version, without a proof of what is in them."""
    from repro_env.capture import distributions, python

    scanned = distributions.scan(python.interpret(target, environ).layout)
    there = {one.facts.name: one.facts.version for one in scanned.distributions}
    prefix = spec.identity.layout.prefix + "/"
    seen = [one for one in spec.observed.distributions if one.site is None or one.site.startswith(prefix)]
    then = {one.name: one.version for one in seen}
    return tuple(environment.versions(then, there))
