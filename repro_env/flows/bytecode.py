"""The story of what is left after a run: what it had to compile of the image and of our hooks is compiled for the next one.

It happens when the user has all that they asked for. Whatever goes wrong here costs time in a later run and nothing else.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence

import msgspec

from repro_env.flows import inimage, streams
from repro_env.flows.asked import Asked
from repro_env.flows.execute import TOOLS, undisturbed
from repro_env.model.errors import ReproEnvError
from repro_env.model.run import User
from repro_env.model.spec import Spec
from repro_env.model.talk import Tell
from repro_env.run import bytecode
from repro_env.run.bytecode import Module
from repro_env.store.store import Store

_WANTED = "wanted.json"


def keep(
    modules: Sequence[Module],
    spec: Spec,
    *,
    store: Store,
    tell: Tell,
    asked: Asked | None = None,
    least: int = bytecode.WORTHWHILE,
) -> None:
    """Compile these modules in a run of their own and keep the bytecode for later runs. Never raises.

    `asked`: the run before, whose runner is taken for it. `least`: with fewer new ones, nothing is done.
    """
    if len(modules) < least:
        return
    try:
        with undisturbed(), store.bytecode.adding(spec.expected.image_id) as may:
            if may:
                _keep(modules, spec, store, tell, asked, least)
    except (OSError, ReproEnvError) as error:
        tell.detail(f"the bytecode of this run's modules was not kept: {error}")


def _keep(modules: Sequence[Module], spec: Spec, store: Store, tell: Tell, asked: Asked | None, least: int) -> None:
    image = spec.expected.image_id
    missing = store.bytecode.missing(image, [module.path for module in modules])
    # A hook that is kept and had to be compiled is that of another version of ours.
    modules = [module for module in modules if module.path in missing or module.is_hook]
    if len(modules) < max(least, 1):
        return
    began = time.monotonic()
    with store.temp.folder() as temporary:
        notes, folder = temporary / "notes", temporary / "run"
        notes.mkdir()
        folder.mkdir()
        wanted = [(module.source, module.path, module.optimize) for module in modules]
        (notes / _WANTED).write_bytes(msgspec.json.encode(wanted))
        launch = bytecode.launch(
            spec,
            user=User(uid=os.geteuid(), gid=os.getegid(), name="user", home="/home/user"),
            empty=store.layers.add(()),
            tools=str(TOOLS),
            notes=str(notes),
            wanted=_WANTED,
        )
        with tell.progress(0, "keeping bytecode for later runs"):
            with streams.silent():
                outcome = inimage.run(launch, folder, spec, asked, store)
            if outcome.signal in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                return  # the user does not want to wait
            count = store.bytecode.add(image, folder / "files", [module.path for module in modules])
    if count:
        tell.detail(f"keeping bytecode of {count:,} modules for later runs ({time.monotonic() - began:.1f} s)")
    elif outcome.exit_code:
        tell.detail(f"the bytecode of this run's modules was not kept: compiling it ended with exit code {outcome.exit_code}")
