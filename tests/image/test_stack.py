"""Layers of distributions, the tree they make together, and the image ID computed from them."""

from __future__ import annotations

import hashlib

from repro_env.image import layout, stack
from repro_env.image.entry import Entry
from repro_env.image.wheel import Installed


def one(**files: str) -> Installed:
    entries = tuple(
        Entry(path.replace("__", "/"), "file", size=len(text), sha256=hashlib.sha256(text.encode()).hexdigest())
        for path, text in sorted(files.items())
    )
    return Installed(entries, {entry.path: entry.path for entry in entries}, {}, {}, {})


def test_layers_lie_below_the_environment_with_all_parents() -> None:
    (found,) = stack.layers({"demo": one(lib__demo="x")})
    assert [entry.path for entry in found.entries] == ["opt", "opt/env", "opt/env/lib", "opt/env/lib/demo"]
    assert found.owner == {"opt/env/lib/demo": "demo"}
    assert layout.inside(layout.ENVIRONMENT) == stack.ROOT


def test_of_two_owners_the_later_layer_shows() -> None:
    installed = {"joblib": one(lib__same="first"), "setuptools": one(lib__same="second")}  # one bucket: later by name
    (found,) = stack.layers(installed)
    assert found.owner["opt/env/lib/same"] == "setuptools"
    assert stack.composed(installed)["lib/same"] == (installed["setuptools"].entries[0], "setuptools")


def test_input_order_does_not_matter() -> None:
    installed = {name: one(**{f"lib__{name}": name}) for name in ("numpy", "scipy", "attrs", "pip")}
    assert stack.layers(installed) == stack.layers(dict(reversed(installed.items())))
