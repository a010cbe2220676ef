"""Every numeric library that is mapped: what it is, and what it loads later."""

from __future__ import annotations

import functools
import os

from .beside import put_off
from .functions import THREADS, function_of, opened
from .mapped import mapped
from .names import name_of
from .versions import VERSIONS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .report import Report


def libraries(report: Report) -> None:
    """Every numeric library that is mapped, asked what it is and how many threads it takes."""
    found = mapped()
    report.say(mapped=found)
    beside = set()
    for path in found:
        name = name_of(path)
        if not name:
            continue
        beside.update(put_off(path))
        version, build = "", ""
        ask = VERSIONS.get(name)
        if ask is not None:
            said = report.step("version of " + os.path.basename(path), functools.partial(asked, ask, path))
            version, build = said if isinstance(said, tuple) else (said or "", "")
        report.say(library={"name": name, "version": version, "build": build, "path": path, "how": "mapped"})
        for function in THREADS.get(name, ()):
            if function_of(path, function) is not None:
                report.threads(name.partition(" ")[0], path, function_of(path, function))
                break
    inodes = {os.path.realpath(path) for path in found}
    for path in sorted(beside):
        real = os.path.realpath(path)
        if real not in inodes:
            inodes.add(real)
            report.say(beside=path, library={"name": name_of(path) or os.path.basename(path), "path": real, "how": "beside"})


def asked(ask: Callable[[Any], Any], path: str) -> Any:
    return ask(opened(path))
