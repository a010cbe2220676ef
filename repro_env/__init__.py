"""repro-env captures a Python environment, rebuilds it file for file, and runs and verifies commands in it.

For programs that capture, rebuild, run and verify (Python 3.10 or newer): functions such as `repro_env.capture`. They are the use
cases that the commands call. They print nothing, apart from what `output=True` shows of a command; pass a `tell`
(`schema.progress.Tell`) to follow the progress. They raise subclasses of `repro_env.ReproEnvError`.

    spec = repro_env.capture()
    repro_env.rebuild(spec)
    run = repro_env.execute(spec, ["train.py", "--lr", "0.1"], repro_env.RunOptions(seed=7))
    assert repro_env.verify(run).verdict.same

For training code in a run (Python 3.8 or newer): the functions `repro_env.seed` and `repro_env.tags`, and the package `repro_env.checkpoint`. Other
modules are internal and may change.
"""

from __future__ import annotations

from repro_env.version import __version__

__all__ = [
    "ReproEnvError",
    "RunOptions",
    "__version__",
    "capture",
    "check",
    "compare_runs",
    "diff",
    "execute",
    "lineage",
    "list_runs",
    "list_shared_runs",
    "pack",
    "pull_runs",
    "push",
    "push_runs",
    "rebuild",
    "seed",
    "show",
    "tags",
    "verify",
]
_MODULES = {
    "ReproEnvError": "repro_env.schema.errors",
    "RunOptions": "repro_env.runs.start.request",
    "compare_runs": "repro_env.api.runscompare",
    "list_runs": "repro_env.api.runs",
    "list_shared_runs": "repro_env.api.runsshare",
    "pull_runs": "repro_env.api.runsshare",
    "push_runs": "repro_env.api.runsshare",
    "seed": "repro_env.seeding",
    "tags": "repro_env.tagging",
}
"""The modules of public names that are not in the module of `api` with the same name."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from repro_env.api.capture import capture
    from repro_env.api.check import check
    from repro_env.api.diff import diff
    from repro_env.api.execute import execute
    from repro_env.api.lineage import lineage
    from repro_env.api.pack import pack
    from repro_env.api.push import push
    from repro_env.api.rebuild import rebuild
    from repro_env.api.runs import list_runs
    from repro_env.api.runscompare import compare_runs
    from repro_env.api.runsshare import list_shared_runs, pull_runs, push_runs
    from repro_env.api.show import show
    from repro_env.api.verify import verify
    from repro_env.runs.start.request import RunOptions
    from repro_env.schema.errors import ReproEnvError
    from repro_env.seeding import seed
    from repro_env.tagging import tags


def __getattr__(name: str) -> object:
    # Imported on first use: every command, and every script that only wants checkpoints, imports this package.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_MODULES.get(name, f"repro_env.api.{name}")), name)


def __dir__() -> list[str]:
    """Return all public names, so that `help(repro_env)` shows them."""
    return sorted({*globals(), *__all__})
