"""What is tried after the kernel refused one way of mounting."""

from __future__ import annotations

from repro_env.run.strategy import BEST, Strategy, choose


def test_what_is_tried_next() -> None:
    assert choose(BEST, frozenset({"root"})) == Strategy(root="memory", workspace="overlay")
    assert choose(BEST, frozenset({"root", "workspace"})) == Strategy(root="memory", workspace="copy")
    assert choose(Strategy(root="memory", workspace="copy"), frozenset({"root"})) == Strategy(root="links", workspace="copy")
    assert choose(Strategy(root="links", workspace="copy"), frozenset({"root"})) is None
    assert choose(Strategy(root="disk", workspace="copy"), frozenset({"workspace"})) is None
