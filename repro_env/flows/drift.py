"""Whether the live environment is still the captured one: what the host runner needs to know."""

from __future__ import annotations

from pathlib import Path

from repro_env.capture import target as targets
from repro_env.flows.asked import Asked
from repro_env.flows.opening import some
from repro_env.flows.snapshot import Snapshot
from repro_env.model.errors import DriftError, UsageError
from repro_env.model.run import Launch
from repro_env.model.spec import Spec
from repro_env.model.talk import Silent, Tell
from repro_env.store.store import Store
from repro_env.verify.difference import sentence


def check_host(asked: Asked, spec: Spec, source: Snapshot) -> None:
    if asked.frozen:
        raise UsageError("the host runner runs the live source", where="--frozen", hint="leave out --frozen, or --runner host")
    if source.fact.frozen:
        raise DriftError(
            "the source's folder is not on this machine, or this spec was not captured here",
            where=source.fact.path,
            hint="capture here, or leave out --runner host",
        )
    if not Path(spec.identity.command).exists():
        raise DriftError(
            "the captured environment is not on this machine", where=spec.identity.command, hint="leave out --runner host"
        )


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
            workspace=Path(launch.workspace),
            programs=spec.observed.programs,
            seed=launch.seed,
            store=store,
            added=spec.observed.variables.added,
            tell=Silent(),  # what it would say is about a capture that nobody asked for
        )
        found = compare.files(sides.of_spec(spec, folder, "the capture", store), live, store)
    if found:
        raise DriftError(
            f"the environment is no longer the captured one: {some([sentence(one) for one in found], '; ')}",
            where=launch.prefix,
            hint="`repro-env check` shows all of it; capture again, or leave out --runner host",
        )
