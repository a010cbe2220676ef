"""Run all checks in one process with torch, NumPy, safetensors and torchdata. Prints JSON: name -> traceback or null.

A check is a function in this directory whose name does not begin with an underscore, and whose only parameter is an empty
directory.
"""

from __future__ import annotations

import importlib
import inspect
import json
import sys
import tempfile
import traceback
from pathlib import Path

import torch


def main(root: str) -> None:
    torch.set_num_threads(1)
    results: dict[str, str | None] = {}
    for file in sorted(Path(__file__).parent.glob("*.py")):
        module = importlib.import_module(f"tests.checkpoint.checks.{file.stem}")
        for name, check in list(vars(module).items()):
            if not inspect.isfunction(check) or check.__module__ != module.__name__ or name.startswith("_"):
                continue
            if [parameter.annotation for parameter in inspect.signature(check).parameters.values()] != ["Path"]:
                continue
            with tempfile.TemporaryDirectory(dir=root) as directory:
                try:
                    check(Path(directory))
                except Exception:  # noqa: BLE001 - the other checks must run as well
                    results[name] = traceback.format_exc()
                else:
                    results[name] = None
    print(json.dumps(results))


if __name__ == "__main__":
    main(sys.argv[1])
