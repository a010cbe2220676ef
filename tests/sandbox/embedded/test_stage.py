"""The order in which strategies are tried."""

from __future__ import annotations

from repro_env.sandbox.embedded.stage import BEST, Strategy, choose


def test_the_next_strategy_avoids_what_was_refused() -> None:
    assert choose(BEST, frozenset({"root"})) == Strategy(root="memory", workspace="overlay")
    assert choose(BEST, frozenset({"root", "workspace"})) == Strategy(root="memory", workspace="copy")
    assert choose(Strategy(root="memory", workspace="copy"), frozenset({"root"})) == Strategy(root="links", workspace="copy")
    assert choose(Strategy(root="links", workspace="copy"), frozenset({"root"})) is None
    assert choose(Strategy(root="disk", workspace="copy"), frozenset({"workspace"})) is None
