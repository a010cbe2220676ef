"""repro-env: the rebuilt environment is the captured one, file for file, or the command fails and says why.

What code in a run may use, with Python 3.8 or newer: the function `repro_env.seed`, and `repro_env.checkpoint`, a package
with a help of its own. All else is the command's, and no interface.
"""

from __future__ import annotations

__version__ = "0.1.0"
__all__ = ["__version__", "seed"]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from repro_env.seeding import seed


def __getattr__(name: str) -> object:
    # Imported when asked for: every command, and every script that wants checkpoints only, passes here.
    if name == "seed":
        from repro_env.seeding import seed

        return seed
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """With `seed`, so that `help(repro_env)` shows it."""
    return sorted({*globals(), *__all__})
