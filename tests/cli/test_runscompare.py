from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from repro_env.catalog import ids, records
from repro_env.cli import app, runscompare
from repro_env.flows import before
from repro_env.io import process
from repro_env.model.errors import RecordError
from repro_env.model.run import DataFact, Metric, Output
from repro_env.model.spec import Spec
from repro_env.store.store import Store
from tests.catalog.test_records import end, start
from tests.fakes import specs, wheels
from tests.verify.test_trace import lines

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
    checkpoints: tuple[before.Listing, before.Listing] | None = None,
) -> Path:
    """A run of a spec with one result. `checkpoints`: what lay in the folder of those before and after."""
    run_id = ids.uuid7(number, number.to_bytes(10, "big"))
    recording = records.begin(runs, f"20260701T10150{number}Z-train-{ids.short(run_id)}")
    one = start(run_id)
    fact = msgspec.structs.replace(one.source, digest=source, path=path, directory=path)
    one = msgspec.structs.replace(one, spec=spec.digest, image=spec.expected.image_id, seed=seed, source=fact)
    if checkpoints is not None:
        for name, listing in zip((before.BEFORE, before.AFTER), checkpoints, strict=True):
            before.write(recording.folder, name, listing)
        data = (DataFact(source="/c", target="/ckpt", kind="checkpoints", digest=None),)
        one = msgspec.structs.replace(one, data=data, before=before.digest(checkpoints[0]))
    recording.start(one)
    if not over:
        recording.close()
        return recording.folder
    metric = Metric(name="loss", file="metrics.json", count=1, last=loss, least=loss, most=loss)
    output = Output(path="metrics.json", sha256=A if loss == 1.0 else B, size=9)
    after = before.digest(checkpoints[1]) if checkpoints is not None else None
    recording.finish(msgspec.structs.replace(end(run_id), outputs=(output,), metrics=(metric,), after=after))
    return recording.folder


def call(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    code = app.run(["runs", "compare", *words])
    return code, capsys.readouterr().out


@pytest.fixture
def made(tmp_path: Path) -> tuple[Spec, Spec]:
    """Two specs: of alpha 1.0 and 2.0; the first lies beside the runs."""
    first, second = wheels.make(tmp_path / "w", "alpha"), wheels.make(tmp_path / "w", "alpha", "2.0")
    return (
        specs.make(tmp_path / "p" / "repro", {"alpha": first}, carry=["alpha"]),
        specs.make(tmp_path / "p" / "new", {"alpha": second}, carry=["alpha"]),
    )


def test_equal_outputs_are_exit_0_and_what_was_asked_otherwise_is_told(
    tmp_path: Path, made: tuple[Spec, Spec], capsys: pytest.CaptureFixture[str]
) -> None:
    runs = tmp_path / "p" / "runs"
    recorded(runs, 1, made[0], A)
    recorded(runs, 2, made[0], A, seed=7)
    code, out = call(capsys, "00000001", "latest", "--runs", str(runs))
    assert code == 0
    assert "same: 1 of 1 outputs that both have are the same, byte for byte\n" in out
    assert "random numbers\n  seed  0 -> 7\n" in out
    assert "metrics  1 of 1 the same" in out


def test_long_values_are_cut_but_not_what_differs() -> None:
    long, other = "1" * 80, "2" * 80
    assert runscompare._change_of(long, other, whole=False) == f"{'1' * 60}… -> {'2' * 60}…"
    assert runscompare._change_of(long, "", whole=True) == f"{long} -> (not said)"
    assert runscompare._change_of(long + "a", long + "b", whole=False) == f"{long}a -> {long}b"


def test_other_outputs_are_exit_1_with_numbers_beside_each_other_and_all_that_differs(
    tmp_path: Path, made: tuple[Spec, Spec], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store.open()
    trees = [store.layers.add(specs.tree({"train.py": text, "same.py": b"s"})) for text in (b"a", b"b")]
    left = recorded(tmp_path / "p" / "runs", 1, made[0], trees[0])
    right = recorded(tmp_path / "p" / "runs", 2, made[1], trees[1], loss=0.75)
    monkeypatch.chdir(tmp_path)
    code, out = call(capsys, str(left), "p/runs/" + right.name)
    assert code == 1
    assert "different: 0 of 1 outputs" in out
    assert "~ alpha" in out
    assert "~ train.py" in out
    assert "same.py" not in out
    assert "loss  1 (1)  0.75 (1)  -0.25  metrics.json" in out
    code, out = call(capsys, str(left), str(right), "--json")
    found: dict[str, Any] = json.loads(out)
    assert (code, found["same"], found["outputs"]["different"]) == (1, False, [["metrics.json"] * 2])
    assert found["metrics"][0]["left"]["last"] == 1.0
    assert found["not_compared"] == []
    assert {one["what"] for one in found["differences"]} >= {"alpha", "train.py"}


def test_what_is_not_here_is_not_compared_and_never_the_same(
    tmp_path: Path, made: tuple[Spec, Spec], capsys: pytest.CaptureFixture[str]
) -> None:
    runs = tmp_path / "p" / "runs"
    recorded(runs, 1, made[0], A)
    recorded(runs, 2, made[1], B, over=False)
    (tmp_path / "p" / "new" / "spec.json").unlink()
    code, out = call(capsys, "00000001", "00000002", "--runs", str(runs))
    assert code == 1
    assert f"? environment: they differ; the spec of 00000002 ({made[1].digest[7:19]}) is not here" in out
    assert "? outputs, metrics and settings in force: 00000002 is interrupted" in out
    assert "which ones cannot be told: the code of 00000001 and 00000002 is not here" in out
    assert "different: there are no outputs to compare" in out
    with pytest.raises(RecordError):
        app.run(["runs", "compare", "00000001", "00000009", "--runs", str(runs)])


def test_code_that_only_git_has_is_told_file_by_file(
    tmp_path: Path, made: tuple[Spec, Spec], capsys: pytest.CaptureFixture[str]
) -> None:
    project, elsewhere = tmp_path / "p", Store.open(tmp_path / "elsewhere")
    git = ("git", "-C", str(project), "-c", "user.name=ann", "-c", "user.email=ann@example.org")
    digests = []
    for text in (b"a", b"b"):
        (project / "train.py").write_bytes(text)
        for words in (["init", "-q"], ["add", "train.py"], ["commit", "-qm", "x", "--date", "2026-01-01T00:00:00Z"]):
            assert process.run([*git, *words], env={**os.environ, "GIT_COMMITTER_DATE": "2026-01-01T00:00:00Z"}).code == 0
        digests.append(elsewhere.layers.add(specs.tree({"train.py": text})))
    for number, digest in enumerate(digests, 1):
        recorded(project / "runs", number, made[0], digest, path=str(project))
    code, out = call(capsys, "00000001", "00000002", "--runs", str(project / "runs"))
    assert code == 0
    assert "~ train.py  file, 1 bytes" in out
    assert "cannot be told" not in out


def listing(**files: str) -> before.Listing:
    held = (before.Held(target="/ckpt", path=path, sha256=digest, size=1) for path, digest in sorted(files.items()))
    return before.Listing(files=tuple(held), links=(), others=())


def test_what_runs_leave_in_folders_of_checkpoints_counts(
    tmp_path: Path, made: tuple[Spec, Spec], capsys: pytest.CaptureFixture[str]
) -> None:
    runs = tmp_path / "p" / "runs"
    recorded(runs, 1, made[0], A, checkpoints=(listing(old=A), listing(old=A, last=A)))
    recorded(runs, 2, made[0], A, checkpoints=(listing(old=B), listing(old=B, last=A)))
    other = recorded(runs, 3, made[0], A, checkpoints=(listing(old=A), listing(last=B)))
    at = ("--runs", str(runs))
    code, out = call(capsys, "00000001", "00000002", *at)
    assert code == 0
    assert "same: 2 of 2 outputs" in out
    code, out = call(capsys, "00000001", "00000003", *at)
    assert code == 1
    assert "~  /ckpt/last" in out
    assert "+  /ckpt/old" in out
    (other / before.AFTER).unlink()
    code, out = call(capsys, "00000003", "00000003", *at)
    assert code == 1
    assert "?  checkpoints of 00000003 (cannot be read" in out


def test_the_first_step_that_differs_is_named(
    tmp_path: Path, made: tuple[Spec, Spec], capsys: pytest.CaptureFixture[str]
) -> None:
    runs = tmp_path / "p" / "runs"
    for number, loss in ((1, 2.5), (2, 2.25), (3, 2.5)):
        folder = recorded(runs, number, made[0], A)
        told = lines()
        told[3]["loss"] = [loss]
        (folder / "trace").mkdir()
        (folder / "trace" / "rank0.jsonl").write_text("\n".join(map(json.dumps, told)))
    at = ("--runs", str(runs))
    code, out = call(capsys, "00000001", "00000002", *at)
    assert code == 0
    assert "~ rank0: first at step 1, in the loss" in out
    code, out = call(capsys, "00000001", "00000003", *at)
    assert "= no step differs" in out
    assert json.loads(call(capsys, "00000001", "00000003", "--json", *at)[1])["trace"]["equal"] is True
