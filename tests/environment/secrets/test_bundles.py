from __future__ import annotations

import pytest

from repro_env.environment.secrets.bundles import SecretSearch
from repro_env.environment.secrets.scanner import Secret
from repro_env.schema.errors import CaptureError

KEY = Secret("/env/pkg/tests/key.pem", 1, "private key")


@pytest.mark.parametrize("declared", ["key.pem", "/env/pkg/tests/key.pem", "env/pkg"])
def test_a_declared_secret_is_noted(declared: str) -> None:
    search = SecretSearch([declared], None)
    search.add(KEY)
    search.raise_if_found()
    assert search.notes == [f"{KEY.path}, line 1 looks like a secret (private key), included because --not-secret accepts it"]


def test_an_error_lists_each_file_once() -> None:
    search = SecretSearch(["*.txt", "other/key.pem"], None)
    for secret in (KEY, Secret(KEY.path, 7, "GitHub token"), Secret("b", 0, "private key")):
        search.add(secret)
    with pytest.raises(CaptureError, match="2 files contain a secret") as caught:
        search.raise_if_found()
    assert f"{KEY.path}: private key (line 1), GitHub token (line 7); --not-secret '{KEY.path}'\n" in caught.value.hint
