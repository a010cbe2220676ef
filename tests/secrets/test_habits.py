"""Most planted secrets are found, and harmless text is not reported."""

from __future__ import annotations

import json
import random
import string
from pathlib import Path

import pytest

from repro_env.environment.secrets import scanner
from repro_env.io.files import chunks_of, walk
from tests.secrets import habits
from tests.secrets.planted import Mint

FORMS = {
    "train.py": 'api_key = "§"',
    "train.ipynb": json.dumps({"cells": [{"cell_type": "code", "source": ['api_key = "§"\n']}]}, ensure_ascii=False),
    "settings.py": "password = '§'",
    "config.yaml": "password: §",
    "config.cfg": "api_key = §",
    "service.env": "API_TOKEN=§",
}
"""Where plain keys are; a random key of letters and digits replaces the §."""
MOST_MISSED = 14
"""Of 960 keys. A key without digits, or with few changes of case, looks like a name. Lower this number when the search finds more."""


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


def test_plain_random_keys_of_letters_and_digits_are_found() -> None:
    """160 keys in each place: 40 each of 16, 24, 32 and 40 characters."""
    numbers, missed = random.Random(24), []
    for path, text in FORMS.items():
        for length in (16, 24, 32, 40):
            keys = ["".join(numbers.choices(string.ascii_letters + string.digits, k=length)) for _ in range(40)]
            missed += [(path, key) for key in keys if not scanner.in_chunks([f"{text.replace('§', key)}\n".encode()], path)]
    assert len(missed) <= MOST_MISSED, missed
    assert max(sum(path == name for path, _ in missed) for name in FORMS) <= 10
