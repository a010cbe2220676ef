"""Layers of distributions, and the tree that they make together."""

from __future__ import annotations

import hashlib

import msgspec

from repro_env.oci import wheellayers
from repro_env.oci.entry import Entry
from repro_env.oci.wheel import Installed


def installed_files(**files: str) -> Installed:
    entries = tuple(
        Entry(path.replace("__", "/"), "file", size=len(text), sha256=hashlib.sha256(text.encode()).hexdigest())
        for path, text in sorted(files.items())
    )
    return Installed("opt/env", entries, {entry.path: entry.path for entry in entries}, {}, {}, {})


def test_layers_are_below_the_environment_with_all_parents() -> None:
    (found,) = wheellayers.layers({"demo": installed_files(lib__demo="x")})
    assert [entry.path for entry in found.entries] == ["opt", "opt/env", "opt/env/lib", "opt/env/lib/demo"]
    assert found.owner == {"opt/env/lib/demo": ("demo", "lib/demo")}


def test_of_two_owners_the_later_layer_wins() -> None:
    installed = {
        "joblib": installed_files(lib__same="first"),
        "setuptools": installed_files(lib__same="second"),
    }  # in one bucket: the later name wins
    (found,) = wheellayers.layers(installed)
    assert found.owner["opt/env/lib/same"] == ("setuptools", "lib/same")
    assert wheellayers.compose([installed], "opt/env")["lib/same"] == (installed["setuptools"].entries[0], "setuptools")


def test_input_order_does_not_matter() -> None:
    installed = {name: installed_files(**{f"lib__{name}": name}) for name in ("numpy", "scipy", "attrs", "pip")}
    assert wheellayers.layers(installed) == wheellayers.layers(dict(reversed(installed.items())))


def test_site_directories_share_layers_and_are_merged_separately() -> None:
    own = msgspec.structs.replace(installed_files(lib__same="x"), root="home/ann/.local")
    installed = {"demo": installed_files(lib__same="y"), "demo@1": own}
    assert {path for layer in wheellayers.layers(installed) for path in layer.owner} == {
        "opt/env/lib/same",
        "home/ann/.local/lib/same",
    }
    assert wheellayers.compose([installed], "home/ann/.local") == {"lib/same": (own.entries[0], "demo@1")}


def test_the_higher_stack_wins() -> None:
    lower, upper = {"conda/demo": installed_files(lib__same="conda")}, {"demo": installed_files(lib__same="pip")}
    assert wheellayers.compose([lower, upper], "opt/env")["lib/same"] == (upper["demo"].entries[0], "demo")
