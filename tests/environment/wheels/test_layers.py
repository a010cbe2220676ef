"""Cached diff IDs of installed files are correct for their entries."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from repro_env.environment.wheels import layers
from repro_env.io.files import FileContents
from repro_env.oci import wheel, wheellayers
from repro_env.store.packages.wheelfile import WheelContents, open_facts
from repro_env.store.store import Store
from tests.fakes import wheels

SITE = "lib/python3.11/site-packages"


@pytest.mark.parametrize("differs", [False, True])
def test_a_diff_id_is_cached_only_if_the_wheel_matches_its_record(tmp_path: Path, differs: bool) -> None:
    """An installed file was edited, so its original comes from the wheel, which may differ from RECORD."""
    honest = wheels.make(tmp_path / "wheels", "alpha", files={"alpha.py": b"X = 1\n", "other.py": b"Y = 1\n"})
    path = tmp_path / honest.name
    with zipfile.ZipFile(honest) as old, zipfile.ZipFile(path, "w") as new:
        for name in old.namelist():
            new.writestr(name, b"X = 9\n" if differs and name == "alpha.py" else old.read(name))
    prefix = tmp_path / "venv"
    wheels.install(path, prefix, "alpha")
    (prefix / SITE / "alpha.py").write_bytes(b"X = 2\n")
    installed = wheel.canonical(open_facts(path, path.name), wheels.layout(), name="alpha")
    altered = frozenset({f"{SITE}/alpha.py"})
    source = layers.DistributionContents(installed, FileContents(prefix), altered, WheelContents(path, installed))
    facts = Store.open().facts
    (group,) = wheellayers.layers({"alpha": installed})
    (made,) = layers.diff_ids([group], {"alpha": source}, {"alpha": "1.0"}, facts=facts)
    assert source.differs == differs
    assert layers.known_layer(group, facts=facts) == (None if differs else made.diff_id)
