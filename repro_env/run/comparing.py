"""The launch in which outputs of two runs are looked into: the environment's own Python, both sides read-only. Pure.

Outputs are the work of a script that nobody has to trust: they are opened where a run would be, not in our own process.
"""

from __future__ import annotations

from collections.abc import Sequence

from repro_env.image import layout
from repro_env.model.environment import Variable
from repro_env.model.run import Launch, Mount, User
from repro_env.model.spec import Spec
from repro_env.model.text import AbsPath, Digest
from repro_env.run import plan

_PLACE = "/.repro-env/compare"


def shown_at(number: int) -> str:
    """Where the folder of this number is shown."""
    return f"{_PLACE}-{number}"


def launch(
    spec: Spec, folders: Sequence[str], *, user: User, empty: Digest, tools: AbsPath, notes: AbsPath, wanted: str, out: str
) -> Launch:
    """A run of `inside/compare.py` alone, without network and without the user's start-up code.

    `folders` on the host are shown at `shown_at`, read-only. `empty`: the diff ID of a tree with nothing in it, which is
    the source. `tools` as in any run, `wanted` and `out` are names in `notes`.
    """
    values = {one.name: one.value for one in spec.identity.config.env if not one.name.startswith("PYTHON")}
    values |= {"HOME": user.home, "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"}
    return Launch(
        run_id="compare",
        spec=spec.digest,
        image=spec.expected.image_id,
        layers=tuple(layer.diff_id for layer in spec.expected.layers),
        prefix=spec.identity.layout.prefix,
        trees=plan.trees(spec, _PLACE),
        argv=(
            spec.identity.command,
            "-s",
            f"{layout.SEEDS}/inside/compare.py",
            f"{layout.NOTES}/{wanted}",
            f"{layout.NOTES}/{out}",
        ),
        env=tuple(Variable(name=name, value=values[name]) for name in sorted(values)),
        cwd=_PLACE,
        workspace=_PLACE,
        snapshot=empty,
        mounts=tuple(Mount(kind="data", source=folder, target=shown_at(number)) for number, folder in enumerate(folders)),
        tools=tools,
        notes=notes,
        user=user,
        hostname=plan.HOSTNAME,
        network=False,
        seed=0,
    )
