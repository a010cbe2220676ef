"""The embedded runner, from outside and from inside, as root and as a plain user."""

from __future__ import annotations

from tests.run.conftest import Place


def test_the_command_runs_and_its_code_passes_through(place: Place) -> None:
    ran = place.sh("echo out; echo err >&2; exit 7")
    assert (ran.stdout, ran.stderr) == ("out\n", "err\n")
    assert ran.outcome.exit_code == 7
    assert ran.outcome.signal == 0
    assert ran.outcome.means[:2] == ("root: overlay", "workspace: overlay")
