"""Read by every Python that starts inside a run: put the hooks in place, then go on as the environment itself would.

This folder comes first on PYTHONPATH and leaves `sys.path` again at once. The environment's own `sitecustomize`
runs as if ours had never been there, its errors included; a failure of ours goes to the notes, not to the script.
No `from __future__`: in a Python before 3.7, which has no hooks, it would already be an error here.
"""

import os
import sys


def _start(*names: str) -> None:
    """`install()` of each of these modules beside us. The first is the one that takes notes."""
    try:
        notes = __import__(names[0])
    except Exception:
        return  # an interpreter older than 3.8, or the folder is gone: nothing there that could take a note
    for name in names:
        try:
            __import__(name).install()
        except Exception as error:  # noqa: PERF203 - a script must never fail because of us
            notes.problem(f"start of {name}", error)


def _go_on() -> None:
    here = __file__.rpartition("/")[0]
    sys.path[:] = [path for path in sys.path if path.rstrip("/") != here]
    import _frozen_importlib
    import _frozen_importlib_external

    spec = _frozen_importlib_external.PathFinder.find_spec("sitecustomize", sys.path)
    if spec is None or spec.loader is None:
        return
    module = _frozen_importlib.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


if os.environ.get("REPRO_ENV_SEED"):
    _start(
        "_repro_env_seeds",
        "_repro_env_entropy",
        "_repro_env_package",
        *(["_repro_env_determinism"] if os.environ.get("REPRO_ENV_DETERMINISM") else []),
        *(["_repro_env_trace"] if os.environ.get("REPRO_ENV_TRACE") else []),
    )
_go_on()
