"""Find the hooks in an interpreter that was started without repro-env's PYTHONPATH (`env={}`, `-E`, `-I`).

Runs mount the directory of this file as `python3X.zip`, next to the standard library: Python has this path on `sys.path` and looks
there first, and no environment has it. The syntax is that of Python 2, as in `guest/seeds/sitecustomize.py`.
"""

import sys

_HOOKS = "/.repro-env/seeds/guest/seeds"
if getattr(sys, "pycache_prefix", "") is None:  # as in all other processes of the run
    sys.pycache_prefix = "/run/repro-env/pycache"
del sys.modules["sitecustomize"]
sys.path.insert(0, _HOOKS)
__import__("sitecustomize")
