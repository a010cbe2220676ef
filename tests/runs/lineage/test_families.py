from __future__ import annotations

import msgspec
import pytest

from repro_env.runs.lineage import families
from repro_env.runs.lineage.families import EMPTY
from repro_env.runs.lineage.knownruns import Written
from repro_env.schema.run import Parent
from tests.runs.lineage.families import digest, known, run


def tree(relatives: tuple[families.Relative, ...]) -> list[str]:
    return ["." * relative.depth + relative.id for relative in relatives]


def test_a_family_has_all_ancestors_and_descendants() -> None:
    runs = known(run(1), run(2, 1), run(3, 2), run(4, 2), run(5, 3, 4))
    found = families.family("2", runs, families.edges(runs.values()))
    assert tree(found.parents) == [".1"]
    assert tree(found.children) == [".3", "..5", ".4", "..5"]
    assert [child.again for child in found.children] == [False, False, False, True]
    assert {child.how for child in found.children} == {("resumed",)}
    assert not found.truncated


def test_relatives_are_in_depth_first_order() -> None:
    runs = known(run(1), run(2), run(3, 1), run(4, 3, 2))
    assert tree(families.family("4", runs, families.edges(runs.values())).parents) == [".2", ".3", "..1"]


def test_a_parent_without_a_known_record_is_listed() -> None:
    runs = known(run(2, 1))
    (parent,) = families.family("2", runs, families.edges(runs.values())).parents
    assert (parent.id, parent.run, parent.changed) == ("1", None, False)


def test_a_parent_without_an_id_is_not_a_relative() -> None:
    child = run(2)
    resumed = (Parent(id="", record=None, how="resumed", step=3),)
    child = msgspec.structs.replace(child, start=msgspec.structs.replace(child.start, parents=resumed))
    assert families.edges([child]) == set()


@pytest.mark.parametrize(("record", "changed"), [(digest(("end", 1)), False), (digest("other"), True), (None, False)])
def test_a_changed_parent_record_is_detected(record: str | None, changed: bool) -> None:
    runs = known(run(1), run(2, 1, record=record))
    edges = families.edges(runs.values())
    assert [parent.changed for parent in families.family("2", runs, edges).parents] == [changed]
    assert [child.changed for child in families.family("1", runs, edges).children] == [changed]


def test_a_cycle_of_parents_is_cut() -> None:
    runs = known(run(1, 3), run(2, 1), run(3, 2), run(4, 4))
    found = families.family("1", runs, families.edges(runs.values()))
    assert tree(found.parents) == [".3", "..2", "...1"]
    assert [parent.again for parent in found.parents] == [False, False, True]
    assert families.edges([run(4, 4)]) == set()


def test_a_large_family_is_truncated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(families, "_MAX_RELATIVES", 10)
    runs = known(run(100), *(run(number, 100) for number in range(101, 150)))
    found = families.family("100", runs, families.edges(runs.values()))
    assert (len(found.children), found.truncated) == (10, True)
    chain = known(run(100), *(run(number, number - 1) for number in range(101, 110)))
    assert not families.family("100", chain, families.edges(chain.values())).truncated


def test_a_digest_is_found_in_every_role() -> None:
    runs = [run(2, data=(digest("set"),)), run(1, data=(digest("set"),))]
    written = {"1": (Written("output", "log.txt", digest("log")), Written("output", "w.pt", digest("w")))}

    def roles(word: str) -> list[tuple[str, str, str]]:
        return [(use.run.id, use.how, ", ".join(use.paths)) for use in families.uses(word, runs, written)]

    assert roles(digest("w")) == [("1", "output", "w.pt")]
    assert roles(digest("w")[:15]) == [("1", "output", "w.pt")]
    assert roles(digest("set")) == [
        ("1", "data", f"/data/{digest('set')[7:12]}"),
        ("2", "data", f"/data/{digest('set')[7:12]}"),
    ]
    assert roles(digest("source")) == [("1", "source", "/home/ann/project"), ("2", "source", "/home/ann/project")]
    assert roles(digest("image")[:17]) == [("1", "image", ""), ("2", "image", "")]
    assert roles(digest(("end", 1))) == [("1", "record", "/runs/1/end.json")]
    assert roles(digest("none")) == []


def test_an_empty_file_has_no_uses() -> None:
    assert families.uses(EMPTY, [run(1, data=(EMPTY,))], {"1": (Written("output", "log.txt", EMPTY),)}) == ()


def test_the_digest_of_a_spec_file_finds_its_runs() -> None:
    """The identity of a spec is not the digest of its file."""
    user = run(1)
    user = msgspec.structs.replace(user, start=msgspec.structs.replace(user.start, spec_file=digest("spec.json")))
    assert [(use.run.id, use.how) for use in families.uses(digest("spec.json"), [user, run(2)], {})] == [("1", "spec")]
