from __future__ import annotations

from pathlib import Path

import pytest

from repro_env.runs.start import devices
from repro_env.runs.start.request import RunOptions
from repro_env.sandbox import gpus
from repro_env.schema.errors import RunError, UsageError
from repro_env.schema.run import Gpus, Member
from tests.fakes import specs


def test_a_run_without_gpus_gets_none_and_zero_as_text_is_refused(tmp_path: Path) -> None:
    spec = specs.make(tmp_path / "repro", {})
    options = RunOptions(command=("train.py",), here=tmp_path, environ={}, gpus=0)
    assert devices.choose(options, spec) == (Gpus(), "")
    with pytest.raises(UsageError, match=r'--gpus must be .* \(got "0"\)'):
        devices.choose(RunOptions(command=("train.py",), here=tmp_path, environ={}, gpus="0"), spec)


def test_one_process_of_several_cannot_choose_gpus(tmp_path: Path) -> None:
    member = Member(rank=0, size=2, local_rank=0, node="node1")
    options = RunOptions(command=("train.py",), here=tmp_path, environ={}, gpus=1, member=member)
    with pytest.raises(UsageError, match="--gpus 1 cannot choose the GPUs of several processes"):
        devices.choose(options, specs.make(tmp_path / "repro", {}))


def test_each_pod_of_several_has_gpus_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "look", lambda _environ: gpus.Machine())
    member = Member(rank=0, size=2, local_rank=0, node="train-0")
    options = RunOptions(command=("train.py",), here=tmp_path, environ={}, gpus=1, member=member, runner="pod")
    with pytest.raises(RunError, match="this machine has no GPU"):
        devices.choose(options, specs.make(tmp_path / "repro", {}))
