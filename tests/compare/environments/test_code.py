"""Captured data against current data: what is read, and what cannot be compared."""

from __future__ import annotations

from pathlib import Path

import msgspec

from repro_env.compare.environments import code
from repro_env.environment.source.data import look
from repro_env.store.store import Store
from tests.fakes import specs
from tests.fakes.rights import file_modes_obeyed


def test_data_below_a_closed_directory_are_not_compared_and_the_others_are(tmp_path: Path) -> None:
    """The user may not enter the directory, so it is not even known whether the data are there."""
    store = Store.open()
    paths = [tmp_path / "closed" / "train", tmp_path / "open"]
    for path in paths:
        path.mkdir(parents=True)
        (path / "x").write_text("1")
    data = tuple(look(path, f"/data/{path.name}", store.hashes).data for path in paths)
    spec = specs.make(tmp_path / "repro", {})
    spec = msgspec.structs.replace(spec, observed=msgspec.structs.replace(spec.observed, data=data))
    (tmp_path / "open" / "x").write_text("2")
    (tmp_path / "closed").chmod(0)
    try:
        with file_modes_obeyed():
            differences, missing = code.compare_data(spec, {f"/data/{path.name}": path for path in paths}, store, root=None)
    finally:
        (tmp_path / "closed").chmod(0o755)
    assert [difference.what for difference in differences] == ["/data/open"]
    assert [(entry.what, "Permission denied" in entry.why) for entry in missing] == [("data /data/train", True)]
