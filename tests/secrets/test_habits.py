"""Most planted secrets are found, and harmless text is not reported."""

from __future__ import annotations

from pathlib import Path

import pytest

from repro_env.environment.secrets import scanner
from repro_env.io.files import chunks_of, walk
from tests.secrets import habits
from tests.secrets.planted import Mint


def search(root: Path, files: dict[str, bytes]) -> list[scanner.Secret]:
    for path, data in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(data)
    return list(scanner.in_files(walk(root), lambda file: chunks_of(root / file.path)))


@pytest.mark.parametrize("seed", [5, 11])
def test_fewer_than_ten_of_the_planted_secrets_are_missed(tmp_path: Path, seed: int) -> None:
    files = habits.planted(Mint(seed))
    assert len(files) > 350
    hits = {secret.path for secret in search(tmp_path, files)}
    missed = {path for path in files if path not in hits and not any(path.startswith(f"{hit}/") for hit in hits)}
    assert len(missed) < 10, missed
    assert len(missed - habits.OUT_OF_REACH) <= 2, missed  # a generated value may look like a word


def test_references_placeholders_and_public_keys_are_not_secrets(tmp_path: Path) -> None:
    assert not search(tmp_path, habits.clean(Mint()))
