"""Layers of distributions, the tree they make together, and the image ID computed from them."""

from __future__ import annotations

import hashlib

import msgspec

from repro_env.image import stack
from repro_env.image.entry import Entry
from repro_env.image.wheel import Installed


def one(**files: str) -> Installed:
    entries = tuple(
        Entry(path.replace("__", "/"), "file", size=len(text), sha256=hashlib.sha256(text.encode()).hexdigest())
        for path, text in sorted(files.items())
    )
    return Installed("opt/env", entries, {entry.path: entry.path for entry in entries}, {}, {}, {})


def test_layers_lie_below_the_environment_with_all_parents() -> None:
    (found,) = stack.layers({"demo": one(lib__demo="x")})
    assert [entry.path for entry in found.entries] == ["opt", "opt/env", "opt/env/lib", "opt/env/lib/demo"]
    assert found.owner == {"opt/env/lib/demo": ("demo", "lib/demo")}


def test_of_two_owners_the_later_layer_shows() -> None:
    installed = {"joblib": one(lib__same="first"), "setuptools": one(lib__same="second")}  # one bucket: later by name
    (found,) = stack.layers(installed)
    assert found.owner["opt/env/lib/same"] == ("setuptools", "lib/same")
    assert stack.composed([installed], "opt/env")["lib/same"] == (installed["setuptools"].entries[0], "setuptools")


def test_input_order_does_not_matter() -> None:
    installed = {name: one(**{f"lib__{name}": name}) for name in ("numpy", "scipy", "attrs", "pip")}
    assert stack.layers(installed) == stack.layers(dict(reversed(installed.items())))


def test_places_share_layers_and_show_apart() -> None:
    own = msgspec.structs.replace(one(lib__same="x"), root="home/ann/.local")
    installed = {"demo": one(lib__same="y"), "demo@1": own}
    assert {path for layer in stack.layers(installed) for path in layer.owner} == {"opt/env/lib/same", "home/ann/.local/lib/same"}
    assert stack.composed([installed], "home/ann/.local") == {"lib/same": (own.entries[0], "demo@1")}


def test_the_higher_stack_shows() -> None:
    lower, upper = {"conda/demo": one(lib__same="conda")}, {"demo": one(lib__same="pip")}
    assert stack.composed([lower, upper], "opt/env")["lib/same"] == (upper["demo"].entries[0], "demo")
