from __future__ import annotations

import os
from pathlib import Path

import pytest

from repro_env.sandbox import limits, memory
from repro_env.sandbox.limits import parse_memory, parse_time
from repro_env.schema.errors import UsageError
from repro_env.schema.run import Limits


@pytest.mark.parametrize(
    ("text", "size"), [("4M", 4 << 20), ("8G", 8 << 30), ("8gib", 8 << 30), ("8GB", 8 << 30), ("5000000", 5000000), ("1t", 1 << 40), ("512000K", 512000 << 10)]
)  # fmt: skip
def test_sizes_are_bytes_or_have_a_unit(text: str, size: int) -> None:
    assert parse_memory(text) == size


@pytest.mark.parametrize("text", ["", "0", "1M", "8 G", "-8G", "8X", "1.5G", "G", "9999999T", "٤G"])
def test_other_sizes_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--memory must be"):
        parse_memory(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90),
        ("2m", 120),
        ("1h30m", 5400),
        ("2d", 172800),
        ("1d1h1m1s", 90061),
        ("90", 5400),
        ("1:30", 90),
        ("2:0:1", 7201),
        ("1-1", 90000),
        ("1-1:1", 90060),
        ("1-1:1:1", 90061),
    ],
)
def test_durations_have_units(text: str, seconds: int) -> None:
    assert parse_time(text) == seconds


@pytest.mark.parametrize("text", ["", "0", "0s", "1.5h", "30m1h", "1 h", "-1", "1w", "99999d", "s", "1:2:3:4", "1-", "1m30", "٣"])
def test_other_durations_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--time must be"):
        parse_time(text)


def groups(root: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], *, own: str) -> None:
    """A machine whose control groups have these files. `own`: the group of this process."""
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    monkeypatch.setattr(memory, "directories", lambda controller: iter([(root, Path(own))]))


def test_a_group_of_version_2_is_next_to_that_of_this_process_and_has_its_limits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {
        "user/cgroup.subtree_control": "cpu memory pids\n",
        "user/cgroup.procs": "",
        "user/own/cgroup.subtree_control": "",
        "user/own/memory.max": "1073741824\n",
        "user/own/cpu.max": "50000 100000\n",
        "user/own/pids.max": "max\n",
    }
    groups(tmp_path, monkeypatch, files, own="user/own")
    found = limits.find(Limits(memory=8 << 30, cpus=2))
    settings = {"cpu.max": "50000 100000", "memory.max": "1073741824", "memory.swap.max": "0"}
    assert (found.groups, found.deviations) == ({f"{tmp_path}/user": settings}, ())
    assert limits.find(Limits(cpus=0.25)).groups == {
        f"{tmp_path}/user": {"cpu.max": "25000 100000", "memory.max": "1073741824"}
    }, "leaving the own group must not raise a limit"


def test_a_group_of_version_1_is_below_that_of_this_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    groups(tmp_path, monkeypatch, {"own/cgroup.procs": ""}, own="own")
    found = limits.find(Limits(memory=8 << 20, cpus=1.5))
    assert found.groups == {
        f"{tmp_path}/own": {
            "memory.limit_in_bytes": str(8 << 20),
            "memory.memsw.limit_in_bytes": str(8 << 20),
            "cpu.cfs_period_us": "100000",
            "cpu.cfs_quota_us": "150000",
        }
    }


@pytest.mark.parametrize("enabled", ["", "pids"])
def test_without_a_group_cpus_are_limited_by_affinity_and_memory_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, enabled: str
) -> None:
    """As on most machines for a plain user who logged in by SSH."""
    files = {"user/cgroup.subtree_control": enabled, "user/cgroup.procs": "", "user/own/cgroup.subtree_control": ""}
    groups(tmp_path, monkeypatch, files if enabled else {}, own="user/own")
    found = limits.find(Limits(memory=8 << 20, cpus=1.5))
    assert (found.groups, found.affinity) == ({}, (min(os.sched_getaffinity(0)),))
    assert found.deviations == (
        "memory: not limited, because no control group can be made here",
        "cpus: limited to 1 by affinity, because no control group can be made here",
    )
    half = limits.find(Limits(cpus=0.5))
    assert (half.affinity, half.deviations) == ((), ("cpus: not limited, because no control group can be made here",))
    assert limits.find(Limits()) == limits.Enforcement()
