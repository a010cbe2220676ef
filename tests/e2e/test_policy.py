"""A policy and defaults, with a real run: what hooks report is judged, and a run that is repeated keeps its options."""

from __future__ import annotations

import json

from tests.e2e.parts import Project

CONFIGURATION = """\
[tool.repro-env]
seed = 7
determinism = "strict"

[tool.repro-env.policy]
determinism = "strict"
seeds = true
level = "bitwise"
"""
TRAIN = "import random\nopen('made.txt', 'w').write(str(random.random()))\n"


def test_a_run_is_judged_by_what_it_did_and_by_its_verification(small: Project) -> None:
    (small.directory / "train.py").write_text(TRAIN)
    (small.directory / "pyproject.toml").write_text(CONFIGURATION)
    done = small.run("exec", "train.py", code=1)
    assert "seed 7, determinism strict (from pyproject.toml)" in done.err
    assert "policy: seeds: 1 random generator without a seed: python random, never seeded" in done.err
    (small.directory / "train.py").write_text("import random\nrandom.seed(3)\n" + TRAIN)
    small.run("exec", "train.py")
    assert "the run was not verified" in small.run("check", "--policy", code=1).out
    (small.directory / "pyproject.toml").write_text(CONFIGURATION.replace("seed = 7", "seed = 8"))
    small.run("verify")
    answer = json.loads(small.run("check", "--policy", "--json").out)
    assert [judgement["state"] for judgement in answer["judgements"]] == ["holds", "holds", "holds"]


def test_runs_of_several_seeds_are_judged_too(small: Project) -> None:
    (small.directory / "train.py").write_text("import json, random\njson.dump({'loss': random.random()}, open('m.json', 'w'))\n")
    (small.directory / "pyproject.toml").write_text("[tool.repro-env.policy]\nseeds = true\n")
    done = small.run("sensitivity", "--seeds", "2", "train.py", code=1)
    assert done.err.count("policy: seeds: 1 random generator without a seed") == 1
    done = small.run("sensitivity", "--seeds", "2", "--except", "seeds=from the master seed", "train.py")
    assert "(exception: from the master seed)" in done.err
