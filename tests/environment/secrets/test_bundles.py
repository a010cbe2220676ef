from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from repro_env.environment.secrets.bundles import SecretSearch
from repro_env.environment.secrets.scanner import Secret
from repro_env.io.files import Found, chunks_of, walk
from repro_env.schema.errors import CaptureError
from repro_env.store.facts import FactCache

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


def test_files_without_secrets_are_not_read_again(tmp_path: Path) -> None:
    tree, cache = tmp_path / "tree", FactCache(tmp_path)
    tree.mkdir()

    def read(file: Found) -> Iterator[bytes]:
        return chunks_of(tree / file.path)

    (tree / "a.py").write_text("x = 1\n")
    found = list(walk(tree))
    assert SecretSearch((), cache).search_tree(found, read)
    (tree / "a.py").unlink()
    assert SecretSearch((), cache).search_tree(found, read), "the cache is keyed by inode and times"
    (tree / "a.py").write_text("x = 'ghp_" + "0a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R'\n")
    for _ in range(2):
        search = SecretSearch((), cache)
        assert not search.search_tree(walk(tree), read)
        with pytest.raises(CaptureError, match="1 file contains a secret") as caught:
            search.raise_if_found()
        assert "a.py: GitHub token (line 1)" in caught.value.hint
