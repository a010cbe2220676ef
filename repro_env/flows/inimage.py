"""Code of ours in an image: in the runner that the user's own command has, with nothing of the user's but what the launch shows."""

from __future__ import annotations

from pathlib import Path

from repro_env.flows.asked import Asked
from repro_env.model.errors import StoreError
from repro_env.model.run import Launch, Outcome
from repro_env.model.spec import Spec
from repro_env.model.talk import Silent
from repro_env.store.store import Store


def run(launch: Launch, folder: Path, spec: Spec, asked: Asked | None, store: Store) -> Outcome:
    """Raises what the runner raises; on the host, the files of the launch are where they are. Without `asked` it is the embedded one; kept bytecode is not shown there."""
    if asked is not None and asked.runner == "docker":
        from repro_env.flows.engine import Docker

        return Docker(asked, spec, store, Silent()).run(launch, folder=folder)
    if asked is not None and asked.runner == "host":
        from repro_env.run.hostcopy import HostCopyRunner

        tree = store.layers.path(launch.snapshot)
        if tree is None:
            raise StoreError("is not in the store", where=launch.snapshot, hint="run it again")
        return HostCopyRunner(tree).run(launch, folder=folder)
    from repro_env.run.embedded import EmbeddedRunner

    interpreter = spec.identity.interpreter.executable
    runner = EmbeddedRunner(store.layers.path, merged=store.root / "merged", interpreter=interpreter)
    return runner.run(launch, folder=folder)
