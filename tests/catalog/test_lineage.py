from __future__ import annotations

import hashlib

import msgspec
import pytest

from repro_env.catalog import lineage
from repro_env.catalog.index import Datum, Summary
from repro_env.catalog.lineage import EMPTY, SAME_BYTES, Edge
from repro_env.model.run import Parent


def digest(word: object) -> str:
    return f"sha256:{hashlib.sha256(str(word).encode()).hexdigest()}"


def raw(*words: object) -> bytes:
    return b"".join(bytes.fromhex(digest(word)[7:]) for word in words)


def run(
    number: int, *parents: int, record: str | None = None, end: str | None = None, data: tuple[str, ...] = (), of: str = "data"
) -> Summary:
    return Summary(
        id=str(number),
        started="2026-07-01T10:15:30.000Z",
        command=("train.py",),
        cwd="/p",
        runner="embedded",
        spec=digest("spec"),
        image=digest("image"),
        source=digest("source"),
        source_trees=(digest("source"),),
        source_path="/p",
        seed=0,
        data=tuple(Datum(of, f"/data/{each[7:12]}", each) for each in data),
        parents=tuple(Parent(id=str(one), record=record, how="resumed") for one in parents),
        start=digest(("start", number)),
        end=digest(("end", number)) if end is None else end,
        vouched=True,
        state="done",
        exit_code=0,
        signal=0,
        out_of_memory=False,
        seconds=1.0,
        outputs=0,
        size=0,
        tags=(),
        folder=f"/runs/{number}",
    )


def known(*runs: Summary) -> dict[str, Summary]:
    return {one.id: one for one in runs}


def tree(relatives: tuple[lineage.Relative, ...]) -> list[str]:
    return ["." * one.depth + one.id for one in relatives]


def test_parents_up_and_children_down() -> None:
    runs = known(run(1), run(2, 1), run(3, 2), run(4, 2), run(5, 3, 4))
    found = lineage.family("2", runs, lineage.edges(runs, {}))
    assert tree(found.parents) == [".1"]
    assert tree(found.children) == [".3", "..5", ".4", "..5"]
    assert [one.again for one in found.children] == [False, False, False, True]
    assert {one.how for one in found.children} == {("resumed",)}
    assert not found.cut


def test_each_line_stands_below_its_own() -> None:
    runs = known(run(1), run(2), run(3, 1), run(4, 3, 2))
    assert tree(lineage.family("4", runs, lineage.edges(runs, {})).parents) == [".2", ".3", "..1"]


def test_a_parent_that_is_not_here_is_named() -> None:
    runs = known(run(2, 1))
    (parent,) = lineage.family("2", runs, lineage.edges(runs, {})).parents
    assert (parent.id, parent.run, parent.changed) == ("1", None, False)


def test_a_parent_without_a_name_is_no_relative() -> None:
    one = msgspec.structs.replace(run(2), parents=(Parent(id="", record=None, how="resumed", step=3),))
    assert lineage.edges(known(one), {}) == ()


@pytest.mark.parametrize(("record", "changed"), [(digest(("end", 1)), False), (digest("other"), True), (None, False)])
def test_a_record_that_was_changed_is_seen(record: str | None, changed: bool) -> None:
    runs = known(run(1), run(2, 1, record=record))
    between = lineage.edges(runs, {})
    assert [one.changed for one in lineage.family("2", runs, between).parents] == [changed]
    assert [one.changed for one in lineage.family("1", runs, between).children] == [changed]


def test_records_that_lead_in_a_circle_end() -> None:
    runs = known(run(1, 3), run(2, 1), run(3, 2), run(4, 4))
    found = lineage.family("1", runs, lineage.edges(runs, {}))
    assert tree(found.parents) == [".3", "..2", "...1"]
    assert [one.again for one in found.parents] == [False, False, True]
    assert lineage.edges(known(run(4, 4)), {}) == ()


def test_the_same_bytes_make_a_parent_of_the_first_who_wrote_them() -> None:
    """Runs that are repeated bit for bit all wrote them; what came later cannot have been read."""
    runs = known(run(2), run(3), run(5, data=(digest("w"),)), run(7))
    outputs = {f"/runs/{number}": raw("log", "w") for number in (2, 3, 7)}
    assert lineage.edges(runs, outputs) == (Edge("2", "5", SAME_BYTES),)
    runs["2"] = run(2, data=(digest("w"),))  # it copied its data
    assert lineage.edges(runs, outputs) == (Edge("3", "5", SAME_BYTES),)


def test_what_is_named_is_not_guessed() -> None:
    runs = known(run(2), run(3), run(5, 3, data=(digest("w"),)))
    outputs = {f"/runs/{number}": raw("w") for number in (2, 3)}
    assert lineage.edges(runs, outputs) == (Edge("3", "5", "resumed"),)


def test_empty_files_and_beginnings_make_no_parents() -> None:
    empty = bytes.fromhex(EMPTY[7:])
    runs = known(run(1), run(2, data=(EMPTY, digest("w"))), run(3, data=(digest("w"),), of="recipe"))
    shifted = b"\0" + raw("w") + b"\0" * 31
    assert lineage.edges(runs, {"/runs/1": empty + shifted}) == ()


def test_a_large_family_is_cut_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lineage, "_MOST", 10)
    runs = known(run(100), *(run(number, 100) for number in range(101, 150)))
    found = lineage.family("100", runs, lineage.edges(runs, {}))
    assert (len(found.children), found.cut) == (10, True)
    chain = known(run(100), *(run(number, number - 1) for number in range(101, 110)))
    assert not lineage.family("100", chain, lineage.edges(chain, {})).cut


def test_a_digest_is_found_wherever_it_stands() -> None:
    one = run(1, data=(digest("set"),))
    runs = [run(2, data=(digest("set"),), of="recipe"), one]
    outputs = {"/runs/1": raw("log", "w")}

    def roles(word: str) -> list[tuple[str, str, str]]:
        return [(use.run.id, use.role, use.path) for use in lineage.uses(word, runs, outputs)]

    assert roles(digest("w")) == [("1", "output", "")]
    assert roles(digest("w")[:15]) == [("1", "output", "")]
    assert roles(digest("set")) == [
        ("1", "data", f"/data/{digest('set')[7:12]}"),
        ("2", "recipe", f"/data/{digest('set')[7:12]}"),
    ]
    assert roles(digest("source")) == [("1", "source", "/p"), ("2", "source", "/p")]
    assert roles(digest("image")[:17]) == [("1", "image", ""), ("2", "image", "")]
    assert roles(digest(("end", 1))) == [("1", "record", "/runs/1/end.json")]
    assert roles(digest("none")) == []


def test_an_empty_file_says_nothing() -> None:
    one = run(1, data=(EMPTY,))
    assert lineage.uses(EMPTY, [one], {"/runs/1": bytes.fromhex(EMPTY[7:])}) == ()


def test_the_file_of_a_spec_leads_to_its_runs() -> None:
    """Not only the digest of its identity, which stands in no file's bytes."""
    one = msgspec.structs.replace(run(1), spec_file=digest("spec.json"))
    assert [(use.run.id, use.role) for use in lineage.uses(digest("spec.json"), [one, run(2)], {})] == [("1", "spec")]
