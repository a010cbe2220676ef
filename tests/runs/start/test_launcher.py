from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from repro_env.runs.start import launcher
from repro_env.runs.start.request import RunOptions
from repro_env.schema.environment import values_of
from repro_env.schema.errors import UsageError
from tests.runs.records.examples import start

RUN = "0197c1d2-0000-7000-8000-00000000abcd"
STEP = {
    "SLURM_CLUSTER_NAME": "lab",
    "SLURM_JOB_ID": "17",
    "SLURM_STEP_ID": "2",
    "SLURM_STEP_NUM_TASKS": "8",
    "SLURM_STEP_NUM_NODES": "1",
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
    "SLURM_LAUNCH_NODE_IPADDR": "10.0.0.7",
    "SLURM_JWT": "a secret",
    "MASTER_ADDR": "node7",
}
PLAIN = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}


def options(environ: dict[str, str], **changes: Any) -> RunOptions:
    return RunOptions(command=("train.py",), here=Path("/p"), environ=environ, **changes)


def test_the_tasks_of_a_step_share_a_run() -> None:
    found = launcher.find(options(STEP))
    assert found is not None
    member, key = found
    assert (member.rank, member.size, member.local_rank) == (3, 8, 1)
    assert key == "slurm-lab-17.2-0"
    others = [launcher.find(options({**STEP, **change})) for change in ({"SLURM_PROCID": "4"}, {"SLURM_RESTART_COUNT": "1"})]
    assert [other[1] == key for other in others if other is not None] == [True, False]
    given = launcher.find(options(STEP, run_id=RUN))
    assert given is not None
    assert given[1] == RUN


def test_the_command_gets_what_libraries_read_of_the_launcher_and_no_secret() -> None:
    found = launcher.find(options(STEP))
    assert found is not None
    values = values_of(found[0].variables)
    assert {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "SLURM_PROCID": "3"}.items() <= values.items()
    assert "SLURM_JWT" not in values
    assert values["MASTER_ADDR"] == "localhost", "without a network, the name of a node leads nowhere"
    assert 10_000 <= int(values["MASTER_PORT"]) < 30_000
    networked = launcher.find(options({**STEP, "MASTER_PORT": "29500"}, network=True))
    assert networked is not None
    assert values_of(networked[0].variables)["MASTER_ADDR"] == "node7"
    assert values_of(networked[0].variables)["MASTER_PORT"] == "29500"


@pytest.mark.parametrize(
    ("environ", "changes"),
    [
        ({**PLAIN, "MASTER_ADDR": "train-0.run", "REPRO_ENV_SHARED": "/runs"}, {"runner": "pod", "run_id": RUN}),
        ({**STEP, "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NUM_NODES": "2", "SLURM_PROCID": "1", "SLURM_LOCALID": "0"}, {}),
    ],
    ids=["pods", "tasks"],
)
def test_torchrun_finds_the_other_machines_if_each_has_one_process(environ: dict[str, str], changes: dict[str, Any]) -> None:
    found = launcher.find(options(environ, network=True, **changes))
    assert found is not None
    values = values_of(found[0].variables)
    assert (values["PET_NNODES"], values["PET_NODE_RANK"]) == ("2", "1")
    assert (values["PET_MASTER_ADDR"], values["PET_MASTER_PORT"]) == (environ["MASTER_ADDR"], values["MASTER_PORT"])
    others = launcher.find(options({**STEP, "SLURM_STEP_NUM_NODES": "2"}, network=True))
    assert others is not None
    assert "PET_NNODES" not in values_of(others[0].variables), "srun has started the ranks of each machine"


def test_processes_with_one_run_id_share_a_run() -> None:
    found = launcher.find(options(PLAIN, run_id=RUN))
    assert found is not None
    assert (found[0].rank, found[0].size, found[1]) == (1, 2, RUN)


@pytest.mark.parametrize(
    ("environ", "changes"),
    [
        ({}, {}),
        (PLAIN, {}),
        ({**STEP, "SLURM_STEP_NUM_TASKS": "1"}, {}),
        ({"SLURM_JOB_ID": "17", "SLURM_NTASKS": "8", "SLURM_PROCID": "0"}, {"run_id": RUN}),
        ({**PLAIN, "WORLD_SIZE": "1", "RANK": "0"}, {"run_id": RUN}),
    ],
    ids=["none", "without an id", "one task", "a batch script", "one process"],
)
def test_other_processes_have_a_run_of_their_own(environ: dict[str, str], changes: dict[str, Any]) -> None:
    assert launcher.find(options(environ, **changes)) is None


@pytest.mark.parametrize(
    ("environ", "changes", "text"),
    [
        ({**PLAIN, "RANK": "2"}, {}, "the rank 2 must be less than the number of processes"),
        ({**PLAIN, "RANK": "x"}, {}, "RANK: this variable must be a number"),
        ({"WORLD_SIZE": "2", "RANK": "0"}, {}, "LOCAL_RANK: this variable must be a number"),
        (PLAIN, {"runner": "docker"}, "--runner docker does not support"),
        ({**STEP, "SLURM_STEP_NUM_NODES": "2"}, {}, "are on 2 machines, and cannot reach each other without a network"),
    ],
)
def test_processes_that_cannot_share_a_run_are_refused(environ: dict[str, str], changes: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        launcher.find(options(environ, run_id=RUN, **changes))


def test_several_machines_need_the_network() -> None:
    assert launcher.find(options({**STEP, "SLURM_STEP_NUM_NODES": "2"}, network=True)) is not None


def test_all_processes_have_the_same_options() -> None:
    first = start("x")
    own = msgspec.structs.replace(first, id="y", seed=7, host=("cores 64",))
    launcher.check_same(own, first, has_seed=False)
    with pytest.raises(UsageError, match="different options") as error:
        launcher.check_same(own, first, has_seed=True)
    assert error.value.where == "seed: 7, and not 0"
    with pytest.raises(UsageError, match="different options"):
        launcher.check_same(msgspec.structs.replace(own, trace=True), first, has_seed=False)
