"""Start programs in an image: the user's command, or a program of repro-env with only the files that its launch mounts."""

from __future__ import annotations

import os
import secrets
from collections.abc import Collection, Sequence
from pathlib import Path

from repro_env.io import package
from repro_env.oci import paths
from repro_env.runs.start.request import RunOptions
from repro_env.sandbox import plan, runners
from repro_env.sandbox.image import Image
from repro_env.sandbox.runner import Runner
from repro_env.schema.environment import Variable
from repro_env.schema.run import Launch, Mount, Outcome, User
from repro_env.schema.spec import Spec
from repro_env.store.store import Store


def runner(
    spec: Spec, options: RunOptions, store: Store, *, bytecode: Path | None = None, hidden: Collection[str] | None = None
) -> Runner:
    """Return the runner that `options` name. `hidden` is as in `Runner`."""
    image = Image(
        store.layers.path,
        linked=store.layers.mark,
        merged=store.root / "merged",
        interpreter=spec.identity.interpreter.executable,
        bytecode=bytecode,
    )
    return runners.runner_class(options.runner)(image, hidden=hidden)


def launch(
    spec: Spec, name: str, argv: Sequence[str], workspace: str, *, reports: Path, store: Store, mounts: Sequence[Mount] = ()
) -> Launch:
    """Plan a run of a program of repro-env, without source, network and the user's start-up code. The ID of the run starts with `name`."""
    values = {variable.name: variable.value for variable in spec.identity.config.env if not variable.name.startswith("PYTHON")}
    values |= {"HOME": "/home/user", "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"}
    return Launch(
        run_id=f"{name}-{secrets.token_hex(8)}",
        image=spec.expected.image_id,
        layers=tuple(layer.diff_id for layer in spec.expected.layers),
        prefix=spec.identity.layout.prefix,
        trees=plan.trees(spec, workspace),
        argv=tuple(argv),
        env=tuple(Variable(name=name, value=values[name]) for name in sorted(values)),
        cwd=workspace,
        workspace=workspace,
        snapshot=store.layers.add(()),
        mounts=tuple(mounts),
        tools=str(package.ROOT),
        reports=str(reports),
        user=User(uid=os.geteuid(), gid=os.getegid(), name=paths.CONTAINER_USER, home="/home/user"),
    )


def run(
    launch: Launch, directory: Path, spec: Spec, options: RunOptions, store: Store, *, bytecode: Path | None = None
) -> Outcome:
    """Run a launch of a program of repro-env in the runner of `options`. Raises what the runner raises.

    The host runner does not move the launch's files.
    """
    return runner(spec, options, store, bytecode=bytecode).run(launch, directory=directory)
