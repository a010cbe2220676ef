"""Reading a spec."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from repro_env.guest import install
from repro_env.schema import spec as model
from repro_env.schema.errors import SpecVersionError
from tests.fakes import specs


def test_reading_a_spec_of_an_older_schema_is_refused(tmp_path: Path) -> None:
    """In schema 1 the seed was part of `identity`."""
    captured = specs.make(tmp_path / "repro", {}, seed=7)
    spec = json.loads((tmp_path / "repro" / "spec.json").read_text())
    spec["identity"]["determinism"] = spec.pop("defaults")
    spec["schema"] = "repro-env/spec/1"
    text = json.dumps(spec)

    with pytest.raises(SpecVersionError) as caught:
        model.read(text.encode(), where="repro/spec.json")
    assert (
        str(caught.value)
        == "repro/spec.json: this spec was written by an older version of repro-env (schema 1, this version reads 2)"
    )
    assert caught.value.hint == "capture the environment again"

    (tmp_path / "repro" / "spec.json").write_text(text)
    with pytest.raises(install.InstallError, match="capture again"):
        install.load(str(tmp_path / "repro"), captured.digest)
