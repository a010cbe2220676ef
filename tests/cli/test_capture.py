"""The page that `capture` prints: what was captured, what needs attention, and what to do next."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from repro_env.api.capture import CaptureResult
from repro_env.cli import capture
from repro_env.cli.ui import messages
from repro_env.environment.python.selection import Target
from repro_env.schema.environment import Bundled, Excluded
from tests.fakes import specs, wheels


@pytest.fixture
def result(tmp_path: Path) -> CaptureResult:
    paths = {name: wheels.make(tmp_path / "wheels", name) for name in ("alpha", "beta")}
    spec = specs.make(tmp_path / "repro", paths, carry=["alpha"])
    bundled = tuple(Bundled(name=f"local{number}", version="1", why="no index has it", size=1000) for number in range(12))
    observed = msgspec.structs.replace(
        spec.observed,
        bundled=bundled,
        edited=("beta/__init__.py (beta: edited)",),
        excluded=(
            Excluded(path="small.bin", size=10, why="git-ignored"),
            Excluded(path="large.bin", size=10**9, why="git-ignored"),
        ),
        unknown=("the licence server",),
    )
    spec = msgspec.structs.replace(spec, observed=observed)
    target = Target(Path("/env/bin/python"), "named", "--python", explicit=True)
    return CaptureResult(spec, tmp_path / "repro", target=target, proven=1)


def test_the_page_has_what_was_captured_and_what_needs_attention(
    result: CaptureResult, capsys: pytest.CaptureFixture[str]
) -> None:
    capture._print(result)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"spec          {result.path}"
    assert lines[1] == f"image ID      {result.spec.expected.image_id}"
    assert "packages      2, 1 downloadable" in lines
    assert "  edited      beta/__init__.py (beta: edited)" in lines
    assert [line for line in lines if line.startswith("  left out")] == [
        "  left out    large.bin (1.0 GB): git-ignored",
        "  left out    small.bin (10 B): git-ignored",
    ]
    assert "unknown       the licence server" in lines


def test_long_lists_are_shortened_unless_verbose(
    result: CaptureResult, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    capture._print(result)
    short = capsys.readouterr().out
    assert short.count("  bundled     ") == 10
    assert "              and 2 more (`repro-env show --all` lists them)" in short
    monkeypatch.setattr(messages.Screen, "level", "verbose")
    capture._print(result)
    assert capsys.readouterr().out.count("  bundled     ") == 12
