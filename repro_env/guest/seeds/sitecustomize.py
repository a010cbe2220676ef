"""Install the hooks in every Python that starts in a run, and then run the `sitecustomize` of the environment.

The directory of this file is first on PYTHONPATH, and is removed from `sys.path` at once. The environment's own
`sitecustomize` runs as it would without this file, and Python reports its errors. A failure of the hooks is written to the
notes. The syntax is that of Python 2, because every interpreter that a script starts imports this file.
"""

import os
import sys


def _install_hooks():
    # type: () -> None
    try:
        seeds = __import__("_repro_env_seeds")
    except Exception:
        return  # the interpreter is older than 3.8, or the directory was removed: a note cannot be written
    try:
        seeds.install()
    except Exception as error:  # a script must not fail because of the hooks
        seeds.note_problem("start", error)


def _run_own_sitecustomize():
    # type: () -> None
    directory = __file__.rpartition("/")[0]
    sys.path[:] = [path for path in sys.path if path.rstrip("/") != directory]
    try:
        import _frozen_importlib
        import _frozen_importlib_external
    except ImportError:
        return  # the interpreter is older than 3.5
    spec = _frozen_importlib_external.PathFinder.find_spec("sitecustomize", sys.path)
    if spec is None or spec.loader is None:
        return
    module = _frozen_importlib.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


if os.environ.get("REPRO_ENV_SEED"):
    _install_hooks()
_run_own_sitecustomize()
