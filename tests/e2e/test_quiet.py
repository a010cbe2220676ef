"""How much a command prints around what it was asked for."""

from __future__ import annotations

import re

from tests.e2e import parts

SCRIPT = "import random; print('trained'); open('made.txt', 'w').write(str(random.random()))"


def test_a_run_that_went_well_has_at_most_four_lines_of_ours_around_it(small: parts.Project) -> None:
    (small.folder / "noisy.py").write_text(SCRIPT)
    normal = small.run("exec", "noisy.py", env={"OMP_NUM_THREADS": "3"})
    assert normal.out == "trained\n"
    run, unused, end, seeds = normal.err.splitlines()
    assert re.fullmatch(r"repro-env: run [0-9a-f]{8}, image [0-9a-f]{12}, seed 0; changed since capture: \+ noisy\.py", run)
    assert "OMP_NUM_THREADS" in unused
    assert re.fullmatch(r"repro-env: finished after \d+\.\d s; 1 output \(\d+ B\) in /\S+/files", end)
    assert re.fullmatch(r"repro-env: seeded automatically: 1 unseeded random generator \(.* at \S+noisy\.py:1\)", seeds)

    quiet = small.run("exec", "-q", "noisy.py", env={"OMP_NUM_THREADS": "3"})
    assert (quiet.out, quiet.err) == ("trained\n", "")

    verbose = small.run("exec", "--verbose", "noisy.py")
    for detail in ("no network", "record:", "next: repro-env runs get"):
        assert detail in verbose.err
        assert detail not in normal.err


def test_a_quiet_command_prints_its_result_and_its_errors_alone(small: parts.Project) -> None:
    for words in (["rebuild", "-q"], ["runs", "list", "--quiet"], ["check", "-q"]):
        assert small.run(*words, code=None).err == ""
    assert small.run("exec", "-q", "no-such-program", code=None).err.startswith("repro-env: error: ")
