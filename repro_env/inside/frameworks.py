"""Says what PyTorch and the numeric libraries below it are when they are really loaded.

Run as the user runs a script: `python frameworks.py REPORT`, in the environment that is captured. What it finds goes to
the file REPORT, one JSON object a line; before each step that could crash or hang stands a line that says which (`doing`).
Libraries are asked for their versions through ctypes, and only those that are mapped already: nothing is loaded for it.

The questions are in the folder `numeric` beside it.
"""

from __future__ import annotations

import importlib
import os
import sys
from importlib.util import module_from_spec, spec_from_file_location

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

PACKAGE = "_repro_env_numeric"
"""What the folder is called in this process: PyTorch imports whatever registers with it, and nothing gets ours for its own."""


def main() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [path for path in sys.path if path != here]
    folder = os.path.join(here, "numeric")
    spec: Any = spec_from_file_location(PACKAGE, os.path.join(folder, "__init__.py"), submodule_search_locations=[folder])
    sys.modules[PACKAGE] = module_from_spec(spec)
    spec.loader.exec_module(sys.modules[PACKAGE])
    importlib.import_module(PACKAGE + ".look").main(sys.argv[1])


if __name__ == "__main__":
    main()
