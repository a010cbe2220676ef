from __future__ import annotations

from pathlib import Path

import msgspec

from repro_env.catalog import outputs, records
from repro_env.catalog.annotation import Annotation
from repro_env.catalog.records import Run
from repro_env.cli import runpage
from repro_env.model.environment import Variable
from repro_env.model.run import Count, Fact, Metric, Parameter, Parent, Rank, RecipeFile, Seeded
from tests.catalog.test_records import DIGEST, end, recorded, start

ID = "01980000-0000-7000-8000-00000000abcd"
NUMBER = dict.fromkeys(("last", "least", "most"), 0.123456789)


def run() -> Run:
    """A run whose record holds something of everything."""
    began = msgspec.structs.replace(
        start(ID),
        ranks="same",
        determinism="warn",
        threads=(Variable(name="OMP_NUM_THREADS", value="2"),),
        recipe=(RecipeFile(path="conf/a.yaml", sha256=DIGEST),),
        parents=(Parent(id=ID, record=DIGEST, how="data", path="best.pt"),),
    )
    ended = msgspec.structs.replace(
        end(ID),
        seeded=(Seeded(library="torch", what="torch.manual_seed", value="42", file="train.py", line=3),),
        entropy=(Count(what="os.urandom", count=1, file="train.py", line=4),),
        operations=(Count(what="put_", count=1200, file="train.py", line=5),),
        effective=(Fact(name="threads.torch", value="2"),),
        world=(Rank(rank=0, size=2, backend="gloo", device="cpu"),),
        metrics=tuple(Metric(name=f"m{n:02}", file="m.json", count=3, **NUMBER) for n in range(25)),
        parameters=(Parameter(name="lr", value="1e-3", file=".hydra/config.yaml"),),
        unread=("big.json (over 8,388,608 bytes)",),
        resumed=(Parent(id="", record=None, how="resumed", path="/ckpt", step=7), Parent(id=ID, record=None, how="resumed")),
    )
    return Run(Path("/runs/x"), began, ended, "done")


def test_the_page_says_all_that_the_record_holds() -> None:
    lines = list(runpage.lines(run(), ()))
    for line in (
        "seed      0, the same on all ranks",
        "mode      deterministic: warn",
        "threads   OMP_NUM_THREADS=2",
        f"recipe    conf/a.yaml ({DIGEST})",
        "parent    0000abcd (its data are of it, best.pt)",
        "parent    (no run) (resumed from it, /ckpt, step 7)",
        "parent    0000abcd (resumed from it, its end was not here)",
        "rank      0 of 2 (gloo, cpu)",
        "own seed  torch.manual_seed(42) at train.py:3",
        "entropy   os.urandom once at train.py:4",
        "not deterministic put_ 1,200 times at train.py:5",
        "  threads.torch = 2",
        "  lr = 1e-3",
        "metrics   25 in 1 file",
        "  m00   0.123457  0.123457  0.123457  3       m.json",
        "not read  big.json (over 8,388,608 bytes)",
    ):
        assert line in lines, line


def test_a_start_that_was_edited_is_told(tmp_path: Path) -> None:
    folder = recorded(tmp_path, 1, over=False)
    recording = records.Recording(folder, -1)
    digest = outputs.digest(folder / "start.json")
    recording.finish(msgspec.structs.replace(end(records.read(folder).start.id), start=digest))
    assert records.read(folder).intact is True
    assert not any("was changed" in line for line in runpage.lines(records.read(folder), ()))
    (folder / "start.json").chmod(0o644)
    (folder / "start.json").write_bytes((folder / "start.json").read_bytes().replace(b'"seed": 0', b'"seed": 1'))
    assert records.read(folder).intact is False
    assert any("start.json was changed" in line for line in runpage.lines(records.read(folder), ()))


def test_long_lists_are_cut_and_say_so() -> None:
    lines = list(runpage.lines(run(), ()))
    assert "  and 5 more (--all shows them)" in lines
    assert not any(line.startswith("  m24") for line in lines)
    assert any(line.startswith("  m24") for line in runpage.lines(run(), (), whole=True))


def test_notes_come_last_with_their_time() -> None:
    said = Annotation(
        schema="repro-env/annotation/1", id=ID, written="2026-07-01T10:15:30.000Z", kind="decision", text=("a", "b"), by="ann"
    )
    assert list(runpage.lines(run(), (said,)))[-3:] == ["decision  2026-07-01T10:15:30.000Z (ann)", "  a", "  b"]
