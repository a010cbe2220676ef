"""The command `repro-env check`: compare the environment, code and data with the capture. It writes only caches.

It uses the same comparison as `--runner host`. A tool such as pip-sync is not enough: it compares versions only, not
files, builds, the interpreter or the system.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from pathlib import Path

import msgspec

from repro_env.api.arguments import Pairs, absolute_pairs_of
from repro_env.compare.environments import code, comparison, sides
from repro_env.compare.environments import identity as environment
from repro_env.compare.environments.comparison import Comparison
from repro_env.compare.environments.difference import Difference, NotCompared, sort_differences
from repro_env.environment.machine import variables
from repro_env.environment.python import distributions, interpreter
from repro_env.environment.python import selection as targets
from repro_env.environment.python.externalpaths import python_path
from repro_env.environment.python.selection import Target
from repro_env.runs.start import sourcedirectory
from repro_env.schema.environment import Environ, values_of
from repro_env.schema.errors import DriftError, LockError, NetworkError
from repro_env.schema.progress import SILENT, Tell
from repro_env.schema.spec import Spec
from repro_env.specs.argument import SpecName, open_spec
from repro_env.store.store import Store


class CheckResult(msgspec.Struct, frozen=True, kw_only=True):
    compared: Comparison
    environment: str
    """The Python that was compared; empty if none was."""
    source: str
    """The source directory that was compared; empty if none was."""


def check(
    spec: SpecName = None,
    *,
    environment: bool = True,
    project: bool = True,
    python: str | None = None,
    source: Path | str | None = None,
    data: Pairs = (),
    environ: Mapping[str, str] | None = None,
    store: Store | None = None,
    tell: Tell = SILENT,
) -> CheckResult:
    """Compare the live environment (`environment`) and the code (`project`) with a spec; the data, if both are compared.

    The options are those of `repro-env check`. Raises `DriftError` if there is nothing to compare, and what a capture raises.
    """
    store, environ = store or Store.open(), Environ(os.environ if environ is None else environ)
    opened = open_spec(spec, store=store, tell=tell)
    given = None if source is None else Path(source).resolve()
    is_trusted = sourcedirectory.is_trusted(opened.spec, opened.directory, store)
    differences: list[Difference] = []
    missing: list[NotCompared] = []
    command = ""
    if environment:
        directory = (given or opened.directory.parent).resolve()
        target = _choose_python(opened.spec, python, environ, directory, is_trusted=is_trusted)
        command = str(target.path)
        workspace = _workspace(opened.spec, opened.directory, given, is_captured=python is None)
        differences, missing = _compare_environment(opened.spec, opened.directory, target, workspace, environ, store, tell)
    captured, root = opened.spec.observed.source, None
    if project and captured is not None:
        chosen = sourcedirectory.choose(opened.spec, opened.directory, store=store, given=given)
        root = chosen.path
        if environment:
            may_read = is_trusted or root is not None
            named = {target: path for path, target in absolute_pairs_of(data)}
            data_differences, missing_data = code.compare_data(opened.spec, named, store, root=chosen.root if may_read else None)
            differences += data_differences
            missing += missing_data
        if root is None:
            missing.append(NotCompared(what="source", why=f"{chosen.why}; name the directory of the code with --source"))
        else:
            live = code.live_code(captured, root, opened.directory, store)
            differences += code.compare(code.captured_code(captured), live)
    if project and not environment and captured is None:
        raise DriftError("this spec has no source", where=str(opened.directory), hint="capture again with --source DIR")
    return CheckResult(
        compared=Comparison(sort_differences(differences), tuple(missing)),
        environment=command,
        source="" if root is None else str(root),
    )


def _choose_python(spec: Spec, python: str | None, environ: Mapping[str, str], source: Path, *, is_trusted: bool) -> Target:
    """Choose the Python to inspect: the one of `--python`, else the captured one if it exists and the spec is trusted.

    A spec from another user may name any program, so its Python is not started. Then the Python of the active environment
    ($VIRTUAL_ENV, $CONDA_PREFIX) is used. A Python that was only found on this machine is not started; the error names it.
    """
    command = spec.identity.command
    if python is None and is_trusted and os.path.lexists(command):
        return targets.captured(command)
    if python is not None and "/" in python:
        python = str(Path(python).absolute())
    chosen = targets.find(python, environ, source)
    if chosen.explicit:
        return chosen
    name = "ENV" if chosen.is_own else shlex.quote(str(chosen.path))
    raise DriftError(
        "the captured environment is not on this machine"
        if is_trusted
        else "this spec was not captured here, so its Python is not started",
        where=command,
        hint=f"name the environment (--python {name}), or check the code alone with --project",
    )


def _workspace(spec: Spec, spec_directory: Path, given: Path | None, *, is_captured: bool) -> Path:
    """Return the directory of the code of an environment: the captured Python belongs to the captured directory.

    The Python of `--python` belongs to the code next to the spec, or to `given`.
    """
    source = spec.observed.source
    if is_captured and source is not None:
        return Path(source.path)
    return given or (spec_directory if source is None else sourcedirectory.default_directory(source, spec_directory))


def _compare_environment(
    spec: Spec, spec_directory: Path, target: Target, workspace: Path, environ: Mapping[str, str], store: Store, tell: Tell
) -> tuple[list[Difference], list[NotCompared]]:
    """Compare the variables, and the files of the environment as they are with the captured variables."""
    captured = sides.spec_side(spec, spec_directory, "the capture", store)
    differences = _compare_variables(spec, environ)
    try:
        captured_environ = with_captured_variables(spec, environ)
        live = sides.live_side(target, captured_environ, workspace, store, tell, like=spec)
    except (NetworkError, LockError) as error:
        # New packages need an answer of the index to be identified. Names and versions can be compared without it.
        why = f"new packages could not be identified: {error}"
        missing = [NotCompared(what="files of the environment", why=why)]
        return [*differences, *_compare_versions(spec, target, environ)], missing
    return [*differences, *comparison.environments(captured, live, store)], []


def with_captured_variables(spec: Spec, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the caller's variables; variables that can change results have their captured values instead."""
    replayed = {variable.name for variable in variables.sort(environ, spec.observed.variables.added).replayed}
    own = {name: value for name, value in environ.items() if name not in replayed and name != "PYTHONPATH"}
    paths = ("PATH", "VIRTUAL_ENV", "PYTHONUSERBASE")
    return own | {variable.name: variable.value for variable in spec.identity.config.env if variable.name not in paths}


def _compare_variables(spec: Spec, environ: Mapping[str, str]) -> list[Difference]:
    captured = values_of(spec.observed.variables.replayed)
    current = values_of(variables.sort(environ, spec.observed.variables.added).replayed)
    differences = list(environment.variables(captured, current))
    old_path = values_of(spec.identity.config.env).get("PYTHONPATH", "")
    new_path = python_path(environ)
    if new_path != old_path:
        why = "Python imports modules from these directories"
        differences.append(Difference("layout", "PYTHONPATH", old_path, new_path, why))
    return differences


def _compare_versions(spec: Spec, target: Target, environ: Mapping[str, str]) -> list[Difference]:
    """Compare the names and versions of the distributions in the environment's own prefix, but not their files."""
    scanned = distributions.scan(interpreter.interpret(target, environ).layout)
    current = {dist.facts.name: dist.facts.version for dist in scanned.distributions}
    prefix = spec.identity.layout.prefix + "/"
    captured = {
        dist.name: dist.version for dist in spec.observed.distributions if dist.site is None or dist.site.startswith(prefix)
    }
    return list(environment.versions(captured, current))
