"""Whether the live environment is still the captured one: what the host runner needs to know."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

from repro_env.capture import target as targets
from repro_env.flows import snapshot
from repro_env.flows.asked import Asked
from repro_env.flows.opening import some
from repro_env.flows.snapshot import Snapshot
from repro_env.flows.sourcedir import SourceDirectory
from repro_env.model.errors import DriftError
from repro_env.model.run import Launch
from repro_env.model.spec import Spec
from repro_env.model.talk import Silent, Tell
from repro_env.run import plan
from repro_env.store.store import Store
from repro_env.verify.difference import sentence


def check_host(asked: Asked, spec: Spec, source: SourceDirectory) -> None:
    """Raises `DriftError` where the live environment cannot run the code in a directory of this machine, or in a private copy."""
    if source.path is None and not asked.private:
        raise DriftError(
            f"the host runner needs the code in a directory: {source.why}",
            where="--runner host",
            hint="name it with --source, or leave out --runner host",
        )
    captured = plan.workspace_of(spec)
    if source.path is not None and str(source.path) != captured and (names := _imported_from(spec, captured)):
        raise DriftError(
            f"the captured environment imports {some(names, ', ')} from {captured}, so the command would run that code "
            f"and not the code in {source.path}",
            where=spec.identity.command,
            hint="leave out --runner host, or install the project from its new place into an environment of its own and capture",
        )
    if not Path(spec.identity.command).exists():
        raise DriftError(
            "the captured environment is not on this machine", where=spec.identity.command, hint="leave out --runner host"
        )


def check_imports(spec: Spec, source: Snapshot, folder: Path, *, runs: Path, store: Store) -> None:
    """What the environment itself imports from the source directory has to be the code of the run. Raises `DriftError`."""
    if source.fact.directory is not None or not (names := _imported_from(spec, captured := plan.workspace_of(spec))):
        return
    directory = Path(captured)
    if (
        not directory.is_dir()
        or snapshot.take(spec, folder, directory=directory, runs=runs, store=store).fact.digest != source.fact.digest
    ):
        raise DriftError(
            f"the environment imports {some(names, ', ')} from there, and its files differ from those of the run",
            where=captured,
            hint="restore them (git checkout), or leave out --runner host",
        )


def _imported_from(spec: Spec, directory: str) -> list[str]:
    """What the environment itself leads to in a directory: editable distributions, else entries of `sys.path`."""
    below = f"{directory}/"
    editable = [
        found.name
        for found in spec.observed.distributions
        if found.editable and f"{unquote(urlsplit(found.direct_url).path)}/".startswith(below)
    ]
    prefixes = tuple(f"{layout.prefix}/" for layout in (spec.identity.layout, *spec.identity.others))
    python_path = next((variable.value for variable in spec.identity.config.env if variable.name == "PYTHONPATH"), "").split(":")
    return editable or [
        path
        for path in spec.observed.startup.sys_path
        if f"{path}/".startswith(below) and not path.startswith(prefixes) and path not in python_path
    ]


def check_drift(asked: Asked, spec: Spec, folder: Path, launch: Launch, store: Store, tell: Tell) -> None:
    """The live environment has to be the captured one, file for file. `folder` holds the spec."""
    from repro_env.flows import compare, sides

    environ = {variable.name: variable.value for variable in launch.env}
    captured = next((one.value for one in spec.identity.config.env if one.name == "PYTHONPATH"), None)
    environ.pop("PYTHONPATH")  # it names our seeds first
    if captured is not None:
        environ["PYTHONPATH"] = captured
    target = targets.captured(spec.identity.command, asked.environ, Path(launch.workspace))
    for note in target.notes:
        tell(f"note: {note}")
    with tell.progress(0, "checking that the environment is the captured one"):
        live = sides.of_live(
            target,
            environ,
            workspace=Path(plan.workspace_of(spec)),  # what of the environment leads there is the code, wherever that is now
            programs=spec.observed.programs,
            seed=launch.seed,
            store=store,
            added=spec.observed.variables.added,
            tell=Silent(),  # what it would say is about a capture that nobody asked for
        )
        found = [one for one in compare.files(sides.of_spec(spec, folder, "the capture", store), live, store) if one.counts]
    if found:
        raise DriftError(
            f"the environment is no longer the captured one: {some([sentence(one) for one in found], '; ')}",
            where=launch.prefix,
            hint="`repro-env check` shows all of it; capture again, or leave out --runner host",
        )
