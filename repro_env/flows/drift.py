"""Whether the live environment is still the captured one: what the host runner needs to know."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote, urlsplit

from repro_env.flows.asked import Asked
from repro_env.flows.opening import some
from repro_env.flows.snapshot import Snapshot
from repro_env.model.errors import DriftError, SourceError
from repro_env.model.run import Launch
from repro_env.model.spec import Spec
from repro_env.model.talk import Silent, Tell
from repro_env.store.store import Store
from repro_env.verify.difference import sentence


def check_host(asked: Asked, spec: Spec, source: Snapshot, live: Callable[[], Snapshot]) -> None:
    """Whether the host can run this source at all. `live`: looks at the source directory as it is now."""
    if source.fact.frozen and not asked.private:
        raise DriftError(
            "the source's folder is not on this machine, or this spec was not captured here",
            where=source.fact.path,
            hint="capture here, or leave out --runner host",
        )
    if not Path(spec.identity.command).exists():
        raise DriftError(
            "the captured environment is not on this machine", where=spec.identity.command, hint="leave out --runner host"
        )
    editable = _editable(spec, source.fact.path)
    if source.fact.frozen and editable and live().fact.digest != source.fact.digest:
        raise SourceError(
            "the environment imports the project from there (an editable install), and its files differ from those of this run",
            where=editable,
            hint="restore them (git checkout), or leave out --runner host",
        )


def _editable(spec: Spec, source: str) -> str:
    """The directory below the source that the environment itself imports from; empty where there is none."""
    observed, identity = spec.observed, spec.identity
    variable = next((one.value for one in identity.config.env if one.name == "PYTHONPATH"), "")
    apart = tuple(f"{one.prefix}/" for one in (identity.layout, *identity.others))
    named = [path for path in observed.startup.sys_path if path not in variable.split(":")]
    named += [unquote(urlsplit(one.direct_url).path) for one in observed.distributions if one.editable]
    return next((path for path in named if f"{path}/".startswith(f"{source}/") and not f"{path}/".startswith(apart)), "")


def check_drift(spec: Spec, folder: Path, launch: Launch, store: Store, tell: Tell) -> None:
    """The live environment has to be the captured one, file for file. `folder` holds the spec."""
    from repro_env.flows import compare, sides

    environ = {variable.name: variable.value for variable in launch.env}
    captured = next((one.value for one in spec.identity.config.env if one.name == "PYTHONPATH"), None)
    environ.pop("PYTHONPATH")  # it names our seeds first
    if captured is not None:
        environ["PYTHONPATH"] = captured
    tell("checking that the environment is the captured one")
    live = sides.of_live(
        spec.identity.command,
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
