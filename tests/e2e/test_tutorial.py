"""The tutorial, in an empty HOME."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import tour
from tests.e2e import parts

EXPECTED = {"repro-env check": [1, 0], "repro-env runs compare 1f2e3d4c latest --html ../comparison.html": [1]}
"""Exit codes of commands that find a difference."""


@pytest.mark.soak
@pytest.mark.index
def test_the_commands_of_the_tutorial_work_in_their_order(tmp_path: Path) -> None:
    (tmp_path / ".cache").mkdir()
    parts.warm(tmp_path / "unused", tmp_path / ".cache" / "repro-env")
    environ = tour.environ(tmp_path)
    done = tour.play(tmp_path, environ)
    assert len(done) > 15
    for line in {command.line for command in done}:
        found = [command for command in done if command.line == line]
        assert [command.code for command in found] == EXPECTED.get(line, [0] * len(found)), "\n".join(
            command.out for command in found
        )
    outputs = {command.line: command.out for command in done}
    assert "bitwise" in outputs["repro-env verify"]
    assert "loss" in (tmp_path / "comparison.html").read_text()
