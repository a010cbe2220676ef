"""`repro-env store`: the parsing of sizes, and the answers for an empty store."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from repro_env.cli import app, store
from repro_env.schema.errors import UsageError


@pytest.mark.parametrize(
    ("text", "size"),
    [("0", 0), ("12", 12), ("1kB", 1000), ("20GB", 20 * 10**9), ("1.5 TiB", 3 * 2**39), ("500m", 500 * 10**6), ("2MiB", 2 << 20)],
)
def test_a_size_is_parsed_to_bytes(text: str, size: int) -> None:
    assert store.parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GB", "-1GB", "1PB", "1,5GB", "20 GB more", "nan", "1e9"])
def test_an_invalid_size_is_refused(text: str) -> None:
    with pytest.raises(UsageError) as raised:
        store.parse_size(text)
    assert "20GB" in raised.value.hint


def test_all_commands_accept_an_empty_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("REPRO_ENV_STORE", str(tmp_path / "store"))
    answers = {}
    for words in (["usage"], ["gc"]):
        assert app.run(["store", *words, "--json"]) == 0
        answers[words[0]] = json.loads(capsys.readouterr().out)
    assert answers["usage"]["kinds"] == {}
    assert answers["gc"]["items"] == []
    assert app.run(["store", "gc"]) == 0
    assert capsys.readouterr().out == "nothing to remove\n"
