"""Install the hooks in every Python that starts in a run, and then run the `sitecustomize` of the environment.

The directory of this file is first on PYTHONPATH, and is removed from `sys.path` at once. The environment's own
`sitecustomize` runs as it would without this file, and Python reports its errors. A failure of the hooks is written to the
reports. A process without the variables of repro-env gets those of its nearest ancestor from /proc. The syntax is that of Python 2, because every interpreter that a script starts imports this file.
"""

import os
import sys


def _install_hooks():
    # type: () -> None
    try:
        seeds = __import__("_repro_env_seeds")
        if not seeds._MASTER:
            del sys.modules["_repro_env_seeds"]
            return
    except Exception:
        return  # the interpreter is older than 3.8, or the directory was removed: a report cannot be written
    with seeds.Attempt("start"):  # a script must not fail because of the hooks
        seeds.install()


def _run_own_sitecustomize():
    # type: () -> None
    directory = __file__.rpartition("/")[0]
    site = directory[:-5] + "site/sitecustomize.py"
    sys.path[:] = [path for path in sys.path if path.rstrip("/") != directory]
    try:
        import _frozen_importlib
        import _frozen_importlib_external
    except ImportError:
        return  # the interpreter is older than 3.5
    # Runs mount `guest/site` as python3X.zip (see there).
    others = [path for path in sys.path if path[-4:] != ".zip" or not _is_same(path + "/sitecustomize.py", site)]
    spec = _frozen_importlib_external.PathFinder.find_spec("sitecustomize", others)
    if spec is None or spec.loader is None:
        return
    module = _frozen_importlib.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


def _is_same(path, other):
    # type: (str, str) -> bool
    try:
        return os.path.samestat(os.stat(path), os.stat(other))
    except OSError:
        return False


_install_hooks()
_run_own_sitecustomize()
