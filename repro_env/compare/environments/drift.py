"""Checks of the host runner: the live environment and the code that it imports must equal the capture."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

from repro_env.compare.environments.difference import sentence
from repro_env.runs.start import snapshot
from repro_env.runs.start.snapshot import Snapshot
from repro_env.runs.start.sourcedirectory import SourceDirectory
from repro_env.sandbox import plan
from repro_env.schema.errors import DriftError
from repro_env.schema.messages import shorten
from repro_env.schema.progress import Silent, Tell
from repro_env.schema.run import Launch
from repro_env.schema.spec import Spec
from repro_env.store.store import Store


def check_host(spec: Spec, source: SourceDirectory) -> None:
    """Raise `DriftError` if the captured environment is not on this machine, or would import other code than the run's."""
    captured = plan.workspace_of(spec)
    if source.path is not None and str(source.path) != captured and (names := _imports_from(spec, captured)):
        raise DriftError(
            f"the captured environment imports {shorten(names)} from {captured}, so the command would run that code "
            f"instead of the code in {source.path}",
            where=spec.identity.command,
            hint="leave out --runner host, or install the project from its new directory in a new environment and capture that",
        )
    if not Path(spec.identity.command).exists():
        raise DriftError(
            "the captured environment is not on this machine", where=spec.identity.command, hint="leave out --runner host"
        )


def check_imports(spec: Spec, source: Snapshot, spec_directory: Path, *, runs: Path, store: Store) -> None:
    """Raise `DriftError` if the environment imports code from the captured source directory that differs from the run's code."""
    if source.fact.directory is not None or not (names := _imports_from(spec, captured := plan.workspace_of(spec))):
        return
    directory = Path(captured)
    if (
        not directory.is_dir()
        or snapshot.take(spec, spec_directory, directory=directory, runs=runs, store=store).fact.digest != source.fact.digest
    ):
        raise DriftError(
            f"the environment imports {shorten(names)} from this directory, whose files differ from those of the run",
            where=captured,
            hint="restore the files (git checkout), or leave out --runner host",
        )


def _imports_from(spec: Spec, directory: str) -> list[str]:
    """Return what the environment imports from a directory: editable distributions, or else entries of `sys.path`."""
    root = f"{directory}/"
    editable = [
        dist.name
        for dist in spec.observed.distributions
        if dist.editable and f"{unquote(urlsplit(dist.direct_url).path)}/".startswith(root)
    ]
    prefixes = tuple(f"{layout.prefix}/" for layout in (spec.identity.layout, *spec.identity.other_layouts))
    python_path = next((variable.value for variable in spec.identity.config.env if variable.name == "PYTHONPATH"), "").split(":")
    return editable or [
        path
        for path in spec.observed.startup.sys_path
        if f"{path}/".startswith(root) and not path.startswith(prefixes) and path not in python_path
    ]


def check_drift(spec: Spec, spec_directory: Path, launch: Launch, store: Store, tell: Tell) -> None:
    """Raise `DriftError` if any file of the live environment differs from the capture."""
    from repro_env.compare.environments import comparison, sides
    from repro_env.environment.python import selection

    environ = {variable.name: variable.value for variable in launch.env}
    captured = next((variable.value for variable in spec.identity.config.env if variable.name == "PYTHONPATH"), None)
    environ.pop("PYTHONPATH")  # its first entry is the directory of our hooks
    if captured is not None:
        environ["PYTHONPATH"] = captured
    with tell.progress(0, "comparing the environment with the capture"):
        target = selection.captured(spec.identity.command)
        workspace = Path(plan.workspace_of(spec))  # paths into it are code, even if the code is elsewhere now
        live = sides.live_side(target, environ, workspace, store, Silent(), like=spec)  # its messages are about a capture
        captured_side = sides.spec_side(spec, spec_directory, "the capture", store)
        differences = [difference for difference in comparison.files(captured_side, live, store) if difference.counts]
    if differences:
        raise DriftError(
            f"the environment differs from the capture: {shorten([sentence(difference) for difference in differences], separator='; ')}",
            where=launch.prefix,
            hint="list all differences with `repro-env check`, then capture again or leave out --runner host",
        )
