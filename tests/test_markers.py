"""Markers follow from what tests say that they need."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

from tests import markers, registries
from tests.e2e import parts
from tests.guest import scripts
from tests.sandbox import conftest, engines

ROOT = Path(__file__).parents[1]


def seeded(place: object) -> None:
    scripts.python_with("torch")


def plain(path: Path) -> str:
    return path.read_text() + "docker, slurm, torch, uid 0"


def test_a_marker_follows_from_what_is_needed_directly_or_not() -> None:
    assert markers.markers(engines.docker) == {"docker", "root"}
    assert markers.markers(inspect.unwrap(parts.in_docker)) == {"docker", "root"}
    assert markers.markers(inspect.unwrap(conftest.open_way)) >= {"root"}
    assert markers.markers(inspect.unwrap(registries.registry)) == frozenset()
    assert markers.markers(seeded) == {"torch"}
    assert markers.markers(plain) == frozenset()


def test_tests_are_selected_by_markers() -> None:
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--collect-only",
        "tests/sandbox/test_workspace.py",
    ]
    docker, others = (
        {
            line
            for line in subprocess.run(
                [*command, "-m", chosen], cwd=ROOT, capture_output=True, text=True, check=True
            ).stdout.splitlines()
            if "::" in line
        }
        for chosen in ("docker", "not docker")
    )
    assert (
        "tests/sandbox/test_workspace.py::test_files_outside_the_project_are_kept_in_a_container_with_a_read_only_image" in docker
    )
    assert len(others) > 20
    assert not docker & others
