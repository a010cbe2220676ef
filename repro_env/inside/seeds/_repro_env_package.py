"""`import repro_env` inside a run: from the environment where it has one, else the package that this file is of."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_NAME = "repro_env"
_PACKAGE = __file__.rpartition("/inside/")[0]


def install() -> None:
    """The last finder: whatever the environment finds comes first, and `sys.path` stays as it is."""
    sys.meta_path.append(_Package())


class _Package:
    """Finds this package. Its own path finds its modules."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:  # noqa: ARG002
        if name != _NAME:
            return None
        import _frozen_importlib_external as external

        return external.spec_from_file_location(_NAME, f"{_PACKAGE}/__init__.py", submodule_search_locations=[_PACKAGE])
