"""`repro-env sensitivity` through the command: it ends when further runs would show nothing."""

from __future__ import annotations

from tests.e2e import parts


def test_runs_without_a_metric_or_an_effect_of_the_seed_are_not_repeated(small: parts.Project) -> None:
    seeded = "import json, random; random.seed(1); json.dump({'loss': random.random()}, open('m.json', 'w'))"
    done = small.run("sensitivity", "--seeds", "6", "-c", seeded)
    assert "2 of 6 seeds were run" in done.err
    assert "the master seed has no effect on them" in done.err
    assert "run 3 of 6" not in done.err
    done = small.run("sensitivity", "--seeds", "6", "-c", "print('loss 0.5')", code=None)
    assert "the first run wrote no metrics" in done.err
    assert (done.code != 0, "run 2 of 6" in done.err) == (True, False)
