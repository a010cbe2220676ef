"""InfiniBand for a run, on a machine whose /dev and /sys are in a directory."""

from __future__ import annotations

import os
import resource
import stat
from pathlib import Path

import pytest

from repro_env.sandbox import fabric
from tests.parts import need

PACKAGES = ("libc6", "libibverbs1")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A machine with two adapters and the device files of one."""
    need(os.geteuid() == 0, "uid 0: device files are made here")
    for name in ("mlx5_0", "mlx5_1"):
        (tmp_path / "sys/class/infiniband" / name).mkdir(parents=True)
    (tmp_path / "dev/infiniband").mkdir(parents=True)
    for name in ("uverbs0", "rdma_cm", "umad0"):
        os.mknod(tmp_path / "dev/infiniband" / name, stat.S_IFCHR | 0o600, os.makedev(1, 3))
        (tmp_path / "dev/infiniband" / name).chmod(0o666)
    return tmp_path


def limit(monkeypatch: pytest.MonkeyPatch, soft: int, hard: int) -> list[tuple[int, int]]:
    """Let the process have this limit of locked memory. Returns the limits that it sets."""
    made: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda _, pair: made.append(pair))
    return made


def test_a_run_gets_the_files_that_programs_use_and_may_lock_memory(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = limit(monkeypatch, 8 << 20, resource.RLIM_INFINITY)
    found = fabric.look(PACKAGES, root)
    assert [node.target for node in found.nodes] == ["/dev/infiniband/rdma_cm", "/dev/infiniband/uverbs0"]
    assert (found.problem, made) == ("", [(resource.RLIM_INFINITY, resource.RLIM_INFINITY)])


def test_what_is_missing_is_named(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limit(monkeypatch, 8 << 20, 8 << 20)
    assert fabric.look(PACKAGES, root).problem == (
        "NCCL cannot use this machine's InfiniBand (mlx5_0, mlx5_1) in the run, and uses TCP: processes may lock only 8192 KiB of "
        "memory: ask the administrators for `memlock unlimited`"
    )
    assert "the image has no libibverbs" in fabric.look(("libc6",), root).problem
    assert "the image has no libibverbs" not in fabric.look(("rdma-core",), root).problem
    (root / "dev/infiniband/uverbs0").chmod(0o600)  # root's own, which a run without privileges cannot open
    found = fabric.look(PACKAGES, root)
    assert "this process may not open the files in /dev/infiniband, or they are missing" in found.problem


def test_a_machine_without_adapters_has_no_problem(tmp_path: Path) -> None:
    assert fabric.look((), tmp_path) == fabric.Fabric()
