"""Limits of a run, and runs at the same time, through the installed command."""

from __future__ import annotations

import json

from tests.e2e import parts


def test_a_run_that_reaches_its_time_limit_ends_with_124(small: parts.Project) -> None:
    done = small.run("exec", "--time", "1s", "--memory", "1G", "-c", "import time; time.sleep(1000)", code=124)
    assert "ended by the time limit (--time; ended by SIGTERM)" in done.err
    run = json.loads(small.run("runs", "show", "--json").out)
    assert (run["end"]["outcome"]["timed_out"], run["end"]["outcome"]["signal"]) == (True, 15)
    assert (run["start"]["limits"]["seconds"], run["start"]["limits"]["memory"]) == (1, 1 << 30)
    assert "limits    1.1 GB of memory, 1 s" in small.run("runs", "show").out


def test_sensitivity_makes_runs_at_the_same_time_and_prints_their_output_in_order(small: parts.Project) -> None:
    code = "import json, os; seed = int(os.environ['REPRO_ENV_SEED']); print(seed); json.dump({'m': seed}, open('metrics.json', 'w'))"
    done = small.run("sensitivity", "--seeds", "4", "-j", "3", "--seed", "5", "-c", code)
    assert done.out.split()[:4] == ["5", "6", "7", "8"]
    assert "5 to 8" in done.out
    assert [f"seed {seed}, run {seed - 4} of 4" in done.err for seed in (5, 6, 7, 8)] == [True] * 4
    assert len(json.loads(small.run("runs", "list", "--json").out)["runs"]) >= 4


def test_runs_at_the_same_time_are_not_for_a_scheduler(small: parts.Project) -> None:
    done = small.run("sensitivity", "--seeds", "4", "-j", "3", "--on", "slurm", "hello.py", code=2)
    assert "cannot be used with --on slurm" in parts.one_sentence(done)
