"""Which bytecode of a run is worth keeping, and the launch that makes it: the image's modules, and our own hooks. Pure.

Only *names* are taken from a run, never the bytes it wrote: a script can put anything where Python keeps bytecode.
The names of modules that are the image's own are compiled again, from the image's own files, where no code of the
user runs.

What is kept carries the hash of its source, and Python compares it at each import (PEP 552, checked): a run that
edits a module of the image in its own throw-away root, and imports it in another process, gets what it edited.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from repro_env.image import layout
from repro_env.model.codec import Frozen
from repro_env.model.environment import Variable
from repro_env.model.run import Launch, User
from repro_env.model.spec import Spec
from repro_env.model.text import AbsPath, Digest, RelPath
from repro_env.run import plan
from repro_env.run.plan import HOSTNAME

WORTHWHILE = 20
"""With fewer new modules than this, starting another Python would cost more than it saves."""
_TEMPORARY = ("/tmp", "/var/tmp", "/run", "/dev", "/proc", "/sys", "/.repro-env")  # noqa: S108
_PATH = re.compile(r"(?:/(?!\.{1,2}(?:/|\Z))[^/\x00-\x1f\x7f]+)+")
_HOOKS = f"{layout.SEEDS}/{layout.HOOKS}"


class Module(Frozen, frozen=True, kw_only=True):
    """A module of the image or a hook of ours, and the bytecode file that Python looks for."""

    path: RelPath
    """Below PYTHONPYCACHEPREFIX (PEP 3147 and `importlib.util.cache_from_source`)."""
    source: AbsPath
    """As the run imported it: below the captured prefix."""
    optimize: int
    """`-O` level, 0 to 2."""

    @property
    def is_hook(self) -> bool:
        """Of ours, not of the image: another version of repro-env has another one at the same path."""
        return self.source.startswith(_HOOKS + "/")


def modules(names: Iterable[str], spec: Spec, launch: Launch) -> tuple[Module, ...]:
    """The image's modules, and our hooks, among the files that a run left below PYTHONPYCACHEPREFIX; sorted."""
    interpreter = spec.observed.interpreter
    sites = (f"{place.prefix}/{site}" for place in spec.identity.others for site in (place.purelib, place.platlib))
    own = (launch.prefix, layout.ENVIRONMENT, interpreter.stdlib, interpreter.platstdlib, _HOOKS, *sites)
    foreign = (launch.workspace, launch.user.home, *(mount.target for mount in launch.mounts), *_TEMPORARY)
    pattern = re.compile(rf"(?P<module>.+)\.{re.escape(interpreter.cache_tag)}(?:\.opt-(?P<optimize>[12]))?\.pyc")
    found = []
    for name in sorted(names):
        match = pattern.fullmatch(name)
        source = f"/{match['module']}.py" if match else ""
        if match and len(source) < 4000 and _PATH.fullmatch(source) and _belongs(source, own, foreign):
            found.append(Module(path=name, source=source, optimize=int(match["optimize"] or 0)))
    return tuple(found)


def _belongs(path: str, own: Sequence[str], foreign: Sequence[str]) -> bool:
    """Whether the innermost of these folders around `path` is the image's: an environment may lie in the source, and the source in it."""

    def depth(folders: Sequence[str]) -> int:
        return max((len(folder) for folder in folders if path.startswith(folder + "/")), default=0)

    return depth(own) > depth(foreign)


def launch(spec: Spec, *, user: User, empty: Digest, tools: AbsPath, notes: AbsPath, wanted: str) -> Launch:
    """A run of `inside/compile.py` alone: no source, no mounts, no network, no start-up files; it writes into `files`.

    `empty`: the diff ID of a tree with nothing in it, which is the source. `tools` as in any run,
    `wanted` the name of the list of modules in `notes`.
    """
    values = {one.name: one.value for one in spec.identity.config.env if not one.name.startswith("PYTHON")}
    values |= {"HOME": user.home, "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"}
    return Launch(
        run_id="bytecode",
        spec=spec.digest,
        image=spec.expected.image_id,
        layers=tuple(layer.diff_id for layer in spec.expected.layers),
        prefix=spec.identity.layout.prefix,
        trees=plan.trees(spec, layout.COMPILED),
        argv=(
            spec.identity.interpreter.executable,
            *("-s", "-S"),
            f"{layout.SEEDS}/inside/compile.py",
            f"{layout.NOTES}/{wanted}",
            layout.COMPILED,
        ),
        env=tuple(Variable(name=name, value=values[name]) for name in sorted(values)),
        cwd=layout.COMPILED,
        workspace=layout.COMPILED,
        snapshot=empty,
        mounts=(),
        tools=tools,
        notes=notes,
        user=user,
        hostname=HOSTNAME,
        network=False,
        seed=0,
    )
