from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from repro_env.cli import app
from repro_env.runs.records import checkpointstate, ids, records
from repro_env.schema.errors import RecordError
from repro_env.schema.run import DataFact, Metric, Output
from repro_env.schema.rundirectory import CHECKPOINTS_AFTER, CHECKPOINTS_BEFORE
from repro_env.schema.spec import Spec
from repro_env.store.store import Store
from tests.compare.traces.lines import lines
from tests.fakes import specs, wheels
from tests.runs.records.examples import end, start

A, B = ("sha256:" + letter * 64 for letter in "ab")


def recorded(
    runs: Path,
    number: int,
    spec: Spec,
    source: str,
    *,
    seed: int = 0,
    loss: float = 1.0,
    over: bool = True,
    path: str = "/home/ann/project",
    checkpoints: tuple[checkpointstate.Listing, checkpointstate.Listing] | None = None,
) -> Path:
    """Record a run of a spec with an output. `checkpoints`: the files in its --checkpoints directory before and after it."""
    run_id = ids.uuid7(number, number.to_bytes(10, "big"))
    recording = records.begin(runs, f"20260701T10150{number}Z-train-{ids.short(run_id)}")
    record = start(run_id)
    fact = msgspec.structs.replace(record.source, digest=source, path=path, directory=path)
    record = msgspec.structs.replace(record, spec=spec.digest, image=spec.expected.image_id, seed=seed, source=fact)
    if checkpoints is not None:
        for name, listing in zip((CHECKPOINTS_BEFORE, CHECKPOINTS_AFTER), checkpoints, strict=True):
            checkpointstate.write(recording.directory, name, listing)
        data = (DataFact(source="/c", target="/ckpt", kind="checkpoints", digest=None),)
        record = msgspec.structs.replace(record, data=data, checkpoints_before=checkpointstate.digest(checkpoints[0]))
    recording.start(record)
    if not over:
        recording.close()
        return recording.directory
    metric = Metric(name="loss", file="metrics.json", count=1, last=loss, least=loss, most=loss)
    output = Output(path="metrics.json", sha256=A if loss == 1.0 else B, size=9)
    after = checkpointstate.digest(checkpoints[1]) if checkpoints is not None else None
    recording.finish(msgspec.structs.replace(end(run_id), outputs=(output,), metrics=(metric,), checkpoints_after=after))
    return recording.directory


def call(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    code = app.run(["runs", "compare", *words])
    return code, capsys.readouterr().out


@pytest.fixture
def two_specs(tmp_path: Path) -> tuple[Spec, Spec]:
    """Two specs, with alpha 1.0 and 2.0. The first spec is next to the runs."""
    first, second = wheels.make(tmp_path / "w", "alpha"), wheels.make(tmp_path / "w", "alpha", "2.0")
    return (
        specs.make(tmp_path / "p" / "repro", {"alpha": first}, carry=["alpha"]),
        specs.make(tmp_path / "p" / "new", {"alpha": second}, carry=["alpha"]),
    )


def test_compare_exits_with_0_for_equal_outputs_and_shows_other_differences(
    tmp_path: Path, two_specs: tuple[Spec, Spec], capsys: pytest.CaptureFixture[str]
) -> None:
    runs = tmp_path / "p" / "runs"
    recorded(runs, 1, two_specs[0], A)
    recorded(runs, 2, two_specs[0], A, seed=7)
    code, out = call(capsys, "00000001", "latest", "--runs", str(runs))
    assert code == 0
    assert "same: 1 of 1 common outputs are identical\n" in out
    assert "random numbers\n  ~ seed  0 -> 7\n" in out
    assert "metrics  1 of 1 the same" in out


def test_compare_exits_with_1_for_different_outputs_and_lists_all_differences(
    tmp_path: Path, two_specs: tuple[Spec, Spec], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store.open()
    trees = [store.layers.add(specs.tree({"train.py": text, "same.py": b"s"})) for text in (b"a", b"b")]
    left = recorded(tmp_path / "p" / "runs", 1, two_specs[0], trees[0])
    right = recorded(tmp_path / "p" / "runs", 2, two_specs[1], trees[1], loss=0.75)
    monkeypatch.chdir(tmp_path)
    code, out = call(capsys, str(left), "p/runs/" + right.name)
    assert code == 1
    assert "different: 0 of 1 common outputs" in out
    assert "~ alpha" in out
    assert "~ train.py" in out
    assert "same.py" not in out
    assert "loss  1 (1)  0.75 (1)  -0.25  metrics.json" in out
    code, out = call(capsys, str(left), str(right), "--json")
    answer: dict[str, Any] = json.loads(out)
    assert (code, answer["same"], answer["outputs"]["pairs"]) == (
        1,
        False,
        [{"left": "metrics.json", "right": "metrics.json", "same": False}],
    )
    assert answer["metrics"][0]["left"]["last"] == 1.0
    assert answer["not_compared"] == []
    assert {difference["what"] for difference in answer["differences"]} >= {"alpha", "train.py"}


def test_compare_lists_missing_parts_as_not_compared_and_exits_with_1(
    tmp_path: Path, two_specs: tuple[Spec, Spec], capsys: pytest.CaptureFixture[str]
) -> None:
    runs = tmp_path / "p" / "runs"
    recorded(runs, 1, two_specs[0], A)
    recorded(runs, 2, two_specs[1], B, over=False)
    (tmp_path / "p" / "new" / "spec.json").unlink()
    code, out = call(capsys, "00000001", "00000002", "--runs", str(runs))
    assert code == 1
    assert f"? environment: they differ, but this was not found: the spec of 00000002 ({two_specs[1].digest[7:19]})" in out
    assert "? outputs, metrics and effective settings: 00000002 is interrupted" in out
    assert "their names are not known, because the code of 00000001 and 00000002 was not found" in out
    assert "different: neither run has outputs" in out
    with pytest.raises(RecordError):
        app.run(["runs", "compare", "00000001", "00000009", "--runs", str(runs)])


def listing(**files: str) -> checkpointstate.Listing:
    held = (
        checkpointstate.CheckpointFile(target="/ckpt", path=path, sha256=digest, size=1) for path, digest in sorted(files.items())
    )
    return checkpointstate.Listing(files=tuple(held), links=(), special_files=())


def test_compare_includes_new_files_in_checkpoints_directories(
    tmp_path: Path, two_specs: tuple[Spec, Spec], capsys: pytest.CaptureFixture[str]
) -> None:
    runs = tmp_path / "p" / "runs"
    recorded(runs, 1, two_specs[0], A, checkpoints=(listing(old=A), listing(old=A, last=A)))
    recorded(runs, 2, two_specs[0], A, checkpoints=(listing(old=B), listing(old=B, last=A)))
    third = recorded(runs, 3, two_specs[0], A, checkpoints=(listing(old=A), listing(last=B)))
    option = ("--runs", str(runs))
    code, out = call(capsys, "00000001", "00000002", *option)
    assert code == 0
    assert "same: 2 of 2 common outputs" in out
    code, out = call(capsys, "00000001", "00000003", *option)
    assert code == 1
    assert "~  /ckpt/last" in out
    assert "+  /ckpt/old" in out
    (third / CHECKPOINTS_AFTER).unlink()
    code, out = call(capsys, "00000003", "00000003", *option)
    assert code == 1
    assert "?  checkpoints of 00000003 (this file cannot be read" in out


def test_compare_shows_the_first_training_step_that_differs(
    tmp_path: Path, two_specs: tuple[Spec, Spec], capsys: pytest.CaptureFixture[str]
) -> None:
    runs = tmp_path / "p" / "runs"
    for number, loss in ((1, 2.5), (2, 2.25), (3, 2.5)):
        directory = recorded(runs, number, two_specs[0], A)
        trace = lines()
        trace[3]["loss"] = [loss]
        (directory / "trace").mkdir()
        (directory / "trace" / "rank0.jsonl").write_text("\n".join(map(json.dumps, trace)))
    option = ("--runs", str(runs))
    code, out = call(capsys, "00000001", "00000002", *option)
    assert code == 0
    assert "~ rank0: the first difference is the loss in step 1 (" in out
    code, out = call(capsys, "00000001", "00000003", *option)
    assert "= no step differs" in out
    assert json.loads(call(capsys, "00000001", "00000003", "--json", *option)[1])["steps"]["equal"] is True
