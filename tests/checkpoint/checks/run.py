"""Runs all checks in one process with torch, NumPy, safetensors and torchdata. Prints JSON: name -> traceback, or null.

A check is a function of a file here that takes a folder (an empty one for each), and has no underscore in front.
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
    found: dict[str, str | None] = {}
    for file in sorted(Path(__file__).parent.glob("*.py")):
        module = importlib.import_module(f"tests.checkpoint.checks.{file.stem}")
        for name, check in list(vars(module).items()):
            if not inspect.isfunction(check) or check.__module__ != module.__name__ or name.startswith("_"):
                continue
            if [one.annotation for one in inspect.signature(check).parameters.values()] != ["Path"]:
                continue
            with tempfile.TemporaryDirectory(dir=root) as folder:
                try:
                    check(Path(folder))
                except Exception:  # noqa: BLE001 - each check is told apart
                    found[name] = traceback.format_exc()
                else:
                    found[name] = None
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
