"""Regular expressions that are compiled when they are first used. To compile all of ours takes a tenth of a second."""

from __future__ import annotations

import re
from typing import Any, AnyStr, cast


class _Pattern:
    def __init__(self, pattern: Any, flags: int) -> None:
        self._arguments = (pattern, flags)

    def __getattr__(self, name: str) -> Any:
        """Called only for what is not in the object yet."""
        value = self.__dict__[name] = getattr(re.compile(*self._arguments), name)  # `re` keeps what it compiled
        return value


def lazy(pattern: AnyStr, flags: int = 0) -> re.Pattern[AnyStr]:
    """Return a regular expression that is compiled by the first use of one of its methods, which raises `re.error` then."""
    return cast("re.Pattern[AnyStr]", _Pattern(pattern, flags))
