"""The keys of the JSON answers of commands about runs. They are stable, because other programs use them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from repro_env.cli import app
from repro_env.compare.sensitivity import Spread
from repro_env.schema import codec
from repro_env.schema.errors import UsageError
from tests.api.families import made, parent
from tests.api.sweeps import Runs

KEYS: dict[str, set[str]] = {
    "runs list": {"runs", "unreadable", "jobs"},
    "runs show latest": {"pulled", "directory", "state", "intact", "start", "end", "tags", "annotations", "verified"},
    "runs compare 00000001 00000002": {
        *(
            "same",
            "left",
            "right",
            "tags",
            "differences",
            "code",
            "not_compared",
            "metrics",
            "outputs",
            "files",
            "console",
            "steps",
        ),
    },
    "runs note latest hello": {"run", "annotation"},
    "runs tag latest best": {"run", "tags"},
    "runs audit": {"runs", "checked", "bad", "findings"},
    "runs gc --keep last=1 --dry-run": {"dry_run", "keep", "gone", "unreadable", "failed", "specs", "freed"},
    "lineage 00000002": {
        *("query", "known", "file", "size", "digest", "origins", "uses", "manifest", "run", "family"),
        *("spec", "looked", "missing", "unreadable", "remarks"),
    },
    "runs get latest --to copy": {"files"},
    "runs rm latest": {"removed"},
}


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    first = made(tmp_path / "runs", 1, {"w.pt": "first"})
    made(tmp_path / "runs", 2, {"w.pt": "second"}, parents=[parent(first)])
    monkeypatch.chdir(tmp_path)
    return tmp_path / "runs"


@pytest.mark.parametrize("command", KEYS)
def test_an_answer_has_its_stable_keys(command: str, runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    app.run([*command.split(), "--runs", str(runs), "--json"])
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    assert json.loads(out).keys() == KEYS[command]


def test_an_answer_has_the_properties_and_the_errors_of_a_value(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    damaged = made(runs, 3, {}).directory
    (damaged / "start.json").unlink()
    app.run(["runs", "list", "--runs", str(runs), "--json"])
    answer = json.loads(capsys.readouterr().out)
    assert answer["runs"][0]["short"] == "00000002"
    assert answer["unreadable"][0]["directory"] == str(damaged)
    assert "start.json" in answer["unreadable"][0]["why"]


def test_the_answer_of_sensitivity_has_its_stable_keys() -> None:
    answer = json.loads(codec.canonical(Runs().over(5)))
    assert answer.keys() == {"runs", "requested", "metrics", "seeded", "stopped"}
    assert answer["runs"][0].keys() == {"seed", "id", "exit_code", "equal"}
    assert answer["metrics"][0].keys() == {"metric", "which", "spread", "missing"}
    assert answer["metrics"][0]["spread"].keys() == set(Spread.__struct_fields__)


def test_the_option_json_holds_for_one_command(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    app.run(["runs", "list", "--json"])
    assert capsys.readouterr().out.startswith("{")
    app.run(["runs", "list"])
    assert capsys.readouterr().out.startswith("ID")


def test_shell_has_no_answer_in_json() -> None:
    with pytest.raises(UsageError, match="no such option: --json"):
        app.run(["shell", "--json"])
