"""repro-env captures a Python environment, rebuilds it file for file, and runs and verifies commands in it.

For programs that capture, rebuild, run and verify (Python 3.10 or newer): the functions of `repro_env.api.toplevel`, such as
`repro_env.capture`. For training code in a run (Python 3.8 or newer): the function `repro_env.seed`, and the package
`repro_env.checkpoint`. Other modules are internal and may change.
"""

from __future__ import annotations

from repro_env.version import __version__

__all__ = [
    "ReproEnvError",
    "__version__",
    "capture",
    "check",
    "compare_runs",
    "diff",
    "execute",
    "lineage",
    "list_runs",
    "pack",
    "push",
    "rebuild",
    "seed",
    "show",
    "verify",
]
_ELSEWHERE = {"seed": "repro_env.seeding", "ReproEnvError": "repro_env.schema.errors"}
"""The modules of public names that are not in `api.toplevel`."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from repro_env.api.toplevel import (
        capture,
        check,
        compare_runs,
        diff,
        execute,
        lineage,
        list_runs,
        pack,
        push,
        rebuild,
        show,
        verify,
    )
    from repro_env.schema.errors import ReproEnvError
    from repro_env.seeding import seed


def __getattr__(name: str) -> object:
    # Imported on first use: every command, and every script that only wants checkpoints, imports this package.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_ELSEWHERE.get(name, "repro_env.api.toplevel")), name)


def __dir__() -> list[str]:
    """Return all public names, so that `help(repro_env)` shows them."""
    return sorted({*globals(), *__all__})
