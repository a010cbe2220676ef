"""Comparisons are cached by everything that they depend on, but not while a file may still change unnoticed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from repro_env.environment.python.distributions import Scan
from repro_env.environment.python.sites import Site
from repro_env.environment.system.tree import Tree
from repro_env.environment.wheels import comparisoncache
from repro_env.environment.wheels.composition import Composition
from repro_env.oci.entry import Entry
from repro_env.schema.artifact import Wheel
from repro_env.schema.image import Layer
from repro_env.store.facts import FactCache
from tests.fakes import specs

PLACE = Site(0, specs._facts("/home/ann/.venv").layout, Scan((), ()), (), {}, "state", True)
WHEEL = Wheel(name="demo", version="1.0", filename="demo-1.0-py3-none-any.whl", sha256="sha256:" + "0" * 64, size=1)


class Nothing:
    def chunks(self, entry: Entry) -> Any:
        raise AssertionError(entry)


def tree(text: str) -> Tree:
    return Tree(entries=(Entry("etc/motd", "file", False, 1, text * 64),), contents=Nothing())


def key(**changed: Any) -> str:
    asked: dict[str, Any] = {"sites": [PLACE], "trees": [tree("a")], "packages": (), "wheels": [WHEEL], "generated": {}}
    return comparisoncache.key(**(asked | changed))


@pytest.mark.parametrize(
    "changed",
    [
        {"sites": [msgspec.structs.replace(PLACE, state="other")]},
        {"sites": [PLACE, msgspec.structs.replace(PLACE, number=1)]},
        {"sites": [msgspec.structs.replace(PLACE, layout=specs._facts("/home/bob/.venv").layout)]},
        {"trees": [tree("b")]},
        {"trees": []},
        {"wheels": []},
        {"wheels": [msgspec.structs.replace(WHEEL, sha256="sha256:" + "1" * 64)]},
        {"generated": {"conda-meta/history": b""}},
    ],
)
def test_the_key_covers_everything_that_a_comparison_depends_on(changed: dict[str, Any]) -> None:
    assert key() == key()
    assert key(**changed) != key()


def test_comparisons_of_recently_modified_files_are_not_cached(tmp_path: Path) -> None:
    facts = FactCache(tmp_path)
    comparison = comparisoncache.Comparison(compositions=(), layers=())
    recent_key = key(sites=[msgspec.structs.replace(PLACE, settled=False)])
    comparisoncache.remember(recent_key, comparison, facts)
    assert comparisoncache.recall(recent_key, facts) is None
    assert not list(tmp_path.iterdir())


def test_a_cached_comparison_is_returned_unchanged(tmp_path: Path) -> None:
    facts = FactCache(tmp_path)
    comparison = comparisoncache.Comparison(
        compositions=(
            Composition(
                overlay=(Entry("opt/env/x", "link", target="y"),),
                edited=("x (demo: changed)",),
                altered={"demo": frozenset({"x", "y"})},
                unsupported=(),
            ),
        ),
        layers=(Layer(kind="distributions", diff_id="sha256:" + "0" * 64, holds=("demo==1.0",)),),
    )
    comparisoncache.remember(key(), comparison, facts)
    assert comparisoncache.recall(key(), facts) == comparison
