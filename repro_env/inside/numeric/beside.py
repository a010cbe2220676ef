"""Parts of libraries that are loaded when a program first needs them."""

from __future__ import annotations

import os
import re

BESIDE = ((re.compile(r"libcudnn\.so\.(\d+)"), "libcudnn_"), (re.compile(r"libnvrtc\.so\.(\d+)"), "libnvrtc-builtins"))


def put_off(path: str) -> list[str]:
    """Parts that a library loads by name when a program first needs them: in its own folder, of its own version."""
    folder, file = os.path.split(path)
    if file.startswith("libmkl_"):
        ending = file.partition(".so")[2]
        return [
            os.path.join(folder, each)
            for each in os.listdir(folder)
            if each.startswith("libmkl_") and each.endswith(".so" + ending)
        ]
    for pattern, start in BESIDE:
        found = pattern.match(file)
        if found:
            ending = ".so." + found.group(1)
            return [
                os.path.join(folder, each)
                for each in os.listdir(folder)
                if each.startswith(start) and (each.endswith(ending) or ending + "." in each)
            ]
    return []
