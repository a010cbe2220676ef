"""A comparison is remembered by all that it depends on, and not while a file may still change unseen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from repro_env.base.tree import Tree
from repro_env.capture.distributions import Scan
from repro_env.image.entry import Entry
from repro_env.lock import compared
from repro_env.lock.compose import Composition
from repro_env.lock.places import Place
from repro_env.model.artifact import Wheel
from repro_env.model.image import Layer
from repro_env.store.facts import FactCache
from tests.fakes import specs

PLACE = Place(0, specs._facts("/home/ann/.venv").layout, Scan((), ()), (), {}, "state", True)
WHEEL = Wheel(name="demo", version="1.0", filename="demo-1.0-py3-none-any.whl", sha256="sha256:" + "0" * 64, size=1)


class Nothing:
    def chunks(self, entry: Entry) -> Any:
        raise AssertionError(entry)


def tree(text: str) -> Tree:
    return Tree(entries=(Entry("etc/motd", "file", False, 1, text * 64),), contents=Nothing())


def key(**changed: Any) -> str:
    asked: dict[str, Any] = {"places": [PLACE], "trees": [tree("a")], "packages": (), "wheels": [WHEEL], "made": {}}
    return compared.key(**(asked | changed))


@pytest.mark.parametrize(
    "changed",
    [
        {"places": [msgspec.structs.replace(PLACE, state="other")]},
        {"places": [PLACE, msgspec.structs.replace(PLACE, number=1)]},
        {"places": [msgspec.structs.replace(PLACE, layout=specs._facts("/home/bob/.venv").layout)]},
        {"trees": [tree("b")]},
        {"trees": []},
        {"wheels": []},
        {"wheels": [msgspec.structs.replace(WHEEL, sha256="sha256:" + "1" * 64)]},
        {"made": {"conda-meta/history": b""}},
    ],
)
def test_whatever_a_comparison_depends_on_is_in_its_key(changed: dict[str, Any]) -> None:
    assert key() == key()
    assert key(**changed) != key()


def test_nothing_is_remembered_of_files_that_are_too_young(tmp_path: Path) -> None:
    facts = FactCache(tmp_path)
    found = compared.Compared(compositions=(), layers=())
    young = key(places=[msgspec.structs.replace(PLACE, settled=False)])
    compared.remember(young, found, facts)
    assert compared.recall(young, facts) is None
    assert not list(tmp_path.iterdir())


def test_what_was_remembered_comes_back_as_it_was(tmp_path: Path) -> None:
    facts = FactCache(tmp_path)
    found = compared.Compared(
        compositions=(
            Composition(
                overlay=(Entry("opt/env/x", "link", target="y"),),
                edited=("x (demo: changed)",),
                altered={"demo": frozenset({"x", "y"})},
                unheld=(),
            ),
        ),
        layers=(Layer(kind="distributions", diff_id="sha256:" + "0" * 64, holds=("demo==1.0",)),),
    )
    compared.remember(key(), found, facts)
    assert compared.recall(key(), facts) == found
