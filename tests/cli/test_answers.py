"""The keys of what commands about runs print with `--json`: others build on them, so a change has to be meant."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from repro_env.catalog import records
from repro_env.cli import app
from repro_env.cli import sensitivity as over_seeds
from repro_env.model import codec
from repro_env.verify.sensitivity import Spread
from tests.flows.test_lineage import made, parent
from tests.flows.test_sensitivity import Runs

RUN = {"id", "short", "folder", "started", "command", "state", "exit_code", "tags"}
KEYS: dict[str, set[str]] = {
    "runs list": {"runs", "unreadable"},
    "runs show latest": {"folder", "state", "intact", "start", "end", "tags", "annotations"},
    "runs compare 00000001 00000002": {
        *("same", "left", "right", "records", "differences", "not_compared", "metrics", "outputs", "trace"),
    },
    "runs note latest hello": {"run", "annotation"},
    "runs tag latest best": {"run", "tags"},
    "runs audit": {"runs", "checked", "bad", "findings"},
    "runs gc --keep last=1 --dry-run": {"dry_run", "kept", "removed", "unreadable", "failed", "specs", "freed"},
    "lineage 00000002": {
        *("asked", "known", "file", "digest", "made_by", "used_by", "manifest", "metadata", "run", "parents", "children"),
        *("complete", "looked", "missing", "unreadable", "notes"),
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
def test_the_keys_of_an_answer(command: str, runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    app.run([*command.split(), "--runs", str(runs), "--json"])
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    assert json.loads(out).keys() == KEYS[command]


def test_a_run_is_told_alike_everywhere(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torn = made(runs, 3, {}).folder
    (torn / "start.json").unlink()

    def ask(*words: str) -> dict[str, list[dict[str, object]]]:
        app.run([*words, "--runs", str(runs), "--json"])
        found: dict[str, list[dict[str, object]]] = json.loads(capsys.readouterr().out)
        return found

    listed, told = ask("runs", "list"), ask("lineage", str(records.folders(runs)[1] / "files" / "w.pt"))
    assert listed["runs"][0].keys() == RUN | {"seconds", "outputs", "size", "seed"}
    assert listed["unreadable"][0].keys() == {"folder", "error"}
    assert told["made_by"][0].keys() == RUN | {"how", "paths"}
    assert told["parents"][0].keys() == {"id", "depth", "how", "changed", "again", "run"}
    assert {key: told["made_by"][0][key] for key in RUN} == {key: listed["runs"][0][key] for key in RUN}
    collected = ask("runs", "gc", "--keep", "last=1", "--dry-run")
    assert collected["kept"][0].keys() == {"id", "short", "folder", "state", "why"}


def test_the_keys_of_seeds() -> None:
    found = json.loads(codec.canonical(Runs().over(5)))
    assert found.keys() == {"runs", "asked", "metrics", "seeded", "stopped"}
    assert found["runs"][0].keys() == {"seed", "id", "exit_code", "equal"}
    assert found["metrics"][0].keys() == {"metric", "which", "spread", "missing"}
    assert found["metrics"][0]["spread"].keys() == set(Spread.__struct_fields__)
    assert "--json" in over_seeds.HELP
