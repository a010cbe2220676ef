"""Packages of the environment that are imported."""

from __future__ import annotations

import sys

from .report import reason

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .report import Report


def there(name: str) -> bool:
    import importlib.util

    try:
        return importlib.util.find_spec(name) is not None
    except BaseException:
        return False


def load(report: Report, name: str) -> Any:
    """Import a package and say its version; None where it is not there or does not import."""
    import importlib

    top = name.partition(".")[0]
    if not there(top):
        return None
    report.say(doing="import of " + name)
    try:
        module = importlib.import_module(name)
    except BaseException as error:
        report.say(failed="import of %s: %s" % (name, reason(error)))
        return None
    report.say(imported=top, version=str(getattr(sys.modules[top], "__version__", "")))
    return module
