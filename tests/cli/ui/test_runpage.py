from __future__ import annotations

from pathlib import Path

import msgspec

from repro_env.cli.ui import runpage
from repro_env.runs.records import records
from repro_env.runs.records.annotation import Annotation
from repro_env.runs.records.records import Run
from repro_env.runs.records.reports import MORE_VALUES
from repro_env.schema.environment import Variable
from repro_env.schema.run import Count, Fact, GpuFact, Limits, Metric, Parameter, Parent, Rank, Seeded
from tests.runs.records.examples import DIGEST, end, recorded, start

ID = "01980000-0000-7000-8000-00000000abcd"
NUMBER = dict.fromkeys(("last", "least", "most"), 0.123456789)


def run() -> Run:
    """A run that has an entry in every field of its record."""
    started = msgspec.structs.replace(
        start(ID),
        ranks="same",
        determinism="warn",
        threads=(Variable(name="OMP_NUM_THREADS", value="2"),),
        gpus=2,
        limits=Limits(cpus=1.5, memory=8 << 30, seconds=90),
        devices=(GpuFact(name="NVIDIA H100", driver="nvidia 580", uuid="ab12", mig=("gpu instance 3",)), GpuFact(name="other")),
        parents=(Parent(id=ID, record=DIGEST, how="data", path="best.pt"),),
    )
    ended = msgspec.structs.replace(
        end(ID),
        seeded=(Seeded(library="torch", what="torch.manual_seed", value="42", file="train.py", line=3),),
        system_randomness=(Count(what="os.urandom", count=1, file="train.py", line=4),),
        operations=(Count(what="put_", count=1200, file="train.py", line=5),),
        settings=(Fact(name="threads.torch", value="2"),),
        ranks=(Rank(rank=0, size=2, backend="gloo", device="cpu"),),
        metrics=tuple(Metric(name=f"m{n:02}", file="m.json", count=3, **NUMBER) for n in range(25)),
        parameters=(Parameter(name="lr", value="1e-3", file=".hydra/config.yaml"),),
        unparsed_outputs=("big.json (over 8,388,608 bytes)",),
        resumed=(Parent(id="", record=None, how="resumed", path="/ckpt", step=7), Parent(id=ID, record=None, how="resumed")),
    )
    return Run(Path("/runs/x"), started, ended, "done")


def shown(found: Run, *annotations: Annotation, complete: bool = False) -> list[str]:
    page = runpage.new(complete=complete)
    runpage.show(page, found, annotations)
    return page.lines


def test_the_page_shows_every_field_of_the_record() -> None:
    lines = shown(run())
    for line in (
        "seed      0, the same on all ranks",
        "mode      determinism: warn",
        "threads   OMP_NUM_THREADS=2",
        "parent    0000abcd (its outputs were used as data, best.pt)",
        "parent    (no run) (resumed from its checkpoint, /ckpt, step 7)",
        "parent    0000abcd (resumed from its checkpoint, its record was not found)",
        "GPU       NVIDIA H100; nvidia 580; UUID digest ab12; gpu instance 3",
        "GPU       other",
        "limits    1.5 CPUs, 8.6 GB of memory, 90 s",
        "rank      0 of 2 (gloo, cpu)",
        "own seed  torch.manual_seed(42) at train.py:3",
        "random    os.urandom once at train.py:4 (from the system)",
        "not deterministic  put_ 1,200 times at train.py:5",
        "  threads.torch = 2",
        "  lr = 1e-3",
        "metrics   25 in 1 file",
        "  m00   0.123457  0.123457  0.123457  3       m.json",
        "not read  big.json (over 8,388,608 bytes)",
    ):
        assert line in lines, line


def test_the_page_reports_that_start_json_was_edited(tmp_path: Path) -> None:
    directory = recorded(tmp_path, 1, over=False)
    recording = records.Recording(directory, -1)
    digest = records.digest(directory / "start.json")
    recording.finish(msgspec.structs.replace(end(records.read(directory).start.id), start=digest))
    assert records.read(directory).intact is True
    assert not any("was changed" in line for line in shown(records.read(directory)))
    (directory / "start.json").chmod(0o644)
    (directory / "start.json").write_bytes((directory / "start.json").read_bytes().replace(b'"seed": 0', b'"seed": 1'))
    assert records.read(directory).intact is False
    assert any("start.json was changed" in line for line in shown(records.read(directory)))


def test_long_lists_are_shortened_with_a_count() -> None:
    lines = shown(run())
    assert "  and 5 more (--all shows them)" in lines
    assert not any(line.startswith("  m24") for line in lines)
    assert any(line.startswith("  m24") for line in shown(run(), complete=True))


def test_notes_are_at_the_end_of_the_page_with_their_time() -> None:
    decision = Annotation(
        schema="repro-env/annotation/1", id=ID, written="2026-07-01T10:15:30.000Z", kind="decision", text=("a", "b"), by="ann"
    )
    assert shown(run(), decision)[-3:] == ["decision  2026-07-01T10:15:30.000Z (ann)", "  a", "  b"]


def seeded(*values: str, line: int = 7) -> tuple[Seeded, ...]:
    return tuple(Seeded(library="numpy", what="RandomState", value=value, file="/p/t.py", line=line) for value in values)


def test_a_single_seed_is_shown_in_its_call() -> None:
    assert runpage.own_seeds([*seeded("1"), *seeded("2", line=8)], complete=False) == [
        "RandomState(1) at /p/t.py:7",
        "RandomState(2) at /p/t.py:8",
    ]


def test_the_seeds_of_a_call_are_shown_in_a_line() -> None:
    many = seeded("5", "3", MORE_VALUES, "4", "1")
    assert runpage.own_seeds(many, complete=False) == ["RandomState at /p/t.py:7, with more than 4 values: 5, 3, 4, ..."]
    assert runpage.own_seeds(many, complete=True) == ["RandomState at /p/t.py:7, with more than 4 values: 5, 3, 4, 1, ..."]
    assert runpage.own_seeds(seeded("5", "3"), complete=False) == ["RandomState at /p/t.py:7, with 2 values: 5, 3"]
