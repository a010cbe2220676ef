"""Diff IDs from installed files: what is remembered of them is true of the entries."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from repro_env.image import stack, wheel
from repro_env.io.files import FileContents
from repro_env.lock import layers
from repro_env.store.store import Store
from repro_env.store.wheelfile import WheelContents, open_facts
from tests.fakes import wheels

SITE = "lib/python3.11/site-packages"


@pytest.mark.parametrize("lies", [False, True])
def test_what_a_wheel_gave_is_remembered_only_when_its_record_is_true(tmp_path: Path, lies: bool) -> None:
    """An installed file was edited, so its original comes from the wheel, and that may be another than RECORD says."""
    honest = wheels.make(tmp_path / "wheels", "alpha", files={"alpha.py": b"X = 1\n", "other.py": b"Y = 1\n"})
    path = tmp_path / honest.name
    with zipfile.ZipFile(honest) as old, zipfile.ZipFile(path, "w") as new:
        for name in old.namelist():
            new.writestr(name, b"X = 9\n" if lies and name == "alpha.py" else old.read(name))
    prefix = tmp_path / "venv"
    wheels.install(path, prefix, "alpha")
    (prefix / SITE / "alpha.py").write_bytes(b"X = 2\n")
    installed = wheel.canonical(open_facts(path, path.name), wheels.layout(), name="alpha")
    altered = frozenset({f"{SITE}/alpha.py"})
    source = layers.DistributionContents(installed, FileContents(prefix), altered, WheelContents(path, installed))
    facts = Store.open().facts
    (group,) = stack.layers({"alpha": installed})
    (made,) = layers.diff_ids([group], {"alpha": source}, {"alpha": "alpha==1.0"}, facts=facts)
    assert source.lies == lies
    assert layers.known_layer(group, facts=facts) == (None if lies else made.diff_id)
