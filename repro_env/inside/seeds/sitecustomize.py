"""Read by every Python that starts inside a run: put the hooks in place, then go on as the environment itself would.

This folder comes first on PYTHONPATH and leaves `sys.path` again at once. The environment's own `sitecustomize`
runs as if ours had never been there, its errors included; a failure of ours goes to the notes, not to the script.
Written so that a Python which has no hooks, even Python 2, can read it.
"""

import os
import sys


def _start():
    # type: () -> None
    try:
        seeds = __import__("_repro_env_seeds")
    except Exception:
        return  # an interpreter older than 3.8, or the folder is gone: nothing there that could take a note
    try:
        seeds.install()
    except Exception as error:  # a script must never fail because of us
        seeds.problem("start", error)


def _go_on():
    # type: () -> None
    here = __file__.rpartition("/")[0]
    sys.path[:] = [path for path in sys.path if path.rstrip("/") != here]
    try:
        import _frozen_importlib
        import _frozen_importlib_external
    except ImportError:
        _go_on_long_ago()
        return
    spec = _frozen_importlib_external.PathFinder.find_spec("sitecustomize", sys.path)
    if spec is None or spec.loader is None:
        return
    module = _frozen_importlib.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


def _go_on_long_ago():
    # type: () -> None
    imp = __import__("imp")
    try:
        found = imp.find_module("sitecustomize", sys.path)
    except ImportError:
        return
    imp.load_module("sitecustomize", *found)


if os.environ.get("REPRO_ENV_SEED"):
    _start()
_go_on()
