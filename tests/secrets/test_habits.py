"""Detection measured on the planted set, and what must be left alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from repro_env.capture import secrets
from repro_env.io.files import walk
from tests.secrets import habits
from tests.secrets.planted import Mint


def found(root: Path, made: dict[str, bytes]) -> list[secrets.Secret]:
    for path, data in made.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(data)
    return list(secrets.among(root, list(walk(root))))


@pytest.mark.parametrize("seed", [5, 11])
def test_fewer_than_ten_of_the_planted_secrets_are_missed(tmp_path: Path, seed: int) -> None:
    made = habits.planted(Mint(seed))
    assert len(made) > 350
    hits = {one.path for one in found(tmp_path, made)}
    missed = {path for path in made if path not in hits and not any(path.startswith(f"{hit}/") for hit in hits)}
    assert len(missed) < 10, missed
    assert len(missed - habits.OUT_OF_REACH) <= 2, missed  # a drawn value may look like a word


def test_references_placeholders_and_public_keys_are_not_secrets(tmp_path: Path) -> None:
    assert not found(tmp_path, habits.clean(Mint()))
