"""Job scripts, and how `start.sh` starts processes. tests/e2e/test_gridengine.py submits them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from repro_env.launch.engine import NodeJob, Resources
from repro_env.launch.gridengine import ENGINE, engine
from repro_env.launch.gridengine.settings import GridEngineSettings
from repro_env.schema.errors import UsageError
from tests.launch import nodejobs
from tests.launch.nodejobs import ON_THE_NODE, RUN

START = Path(engine.__file__).with_name("start.sh")
DIRECTORY = f"/home/ann/digits/runs/.jobs/{RUN}"
JOB = msgspec.structs.replace(nodejobs.JOB, name="3d train.py-0000abcd")
GOLDEN = f"""\
#!/bin/bash
#$ -N _3d_train.py-0000abcd
#$ -S /bin/bash
#$ -wd /
#$ -notify
#$ -o "{DIRECTORY}/stdout.log"
#$ -e "{DIRECTORY}/stderr.log"
#$ -r y
#$ -v PATH
#$ -q gpu.q
#$ -P lab_1
#$ -pe shared 8
#$ -l gpu=2
#$ -l h_vmem=2097152K
#$ -l h_rt=129600
#$ -l h=node1
module load cuda
# The run {RUN}. Written by repro-env.

{ON_THE_NODE}export REPRO_ENV_JOB_TEMPLATE=DIGEST
exec bash {START} {DIRECTORY} 2 1 129480 /opt/tool/bin/repro-env exec --run-id {RUN} --seed 7 -- train.py --lr 0.1
"""


def render(job: NodeJob = JOB, resources: Resources = Resources(), template: str = "", **settings: Any) -> str:  # noqa: B008
    return ENGINE.script(job, resources, GridEngineSettings(**settings), template)


def directives(text: str) -> list[str]:
    return [line[3:] for line in text.splitlines() if line.startswith("#$")]


def test_the_job_script_is_the_golden_one() -> None:
    text = render(
        JOB,
        Resources(gpus=2, cpus=3.5, memory=16 << 30, seconds=36 * 3600),
        "#!/bin/bash\n#$ -l h=node1\nmodule load cuda\n",
        queue="gpu.q",
        project="lab_1",
        parallel_environment="shared",
        memory_resource="h_vmem",
        tasks_per_node=2,
        requeue=True,
    )
    found = next(line for line in text.splitlines() if line.startswith("export REPRO_ENV_JOB_TEMPLATE=")).partition("=")[2]
    assert text.replace(found, "DIGEST") == GOLDEN


def test_a_job_without_options_has_its_name_and_its_files() -> None:
    files = [f'-o "{DIRECTORY}/stdout.log"', f'-e "{DIRECTORY}/stderr.log"']
    assert directives(render()) == [*directives(GOLDEN)[:4], *files, "-r n", "-v PATH"]


@pytest.mark.parametrize(
    ("job", "resources", "settings", "what"),
    [
        ({"jobs": "/home/ann/a,b/runs/.jobs"}, {}, {}, "this path has a quote, a comma"),
        ({"jobs": "/home/ann/$HOME/.jobs"}, {}, {}, "this path has a quote, a comma"),
        ({}, {"nodes": 2}, {}, "does not support several nodes"),
        ({}, {"seconds": 120}, {"requeue": True}, "must be longer than the warning"),
        ({"command": ("repro-env", "exec", "--env", "TOKEN")}, {}, {}, "all users of the cluster can read"),
    ],
)
def test_what_grid_engine_cannot_do_is_refused(
    job: dict[str, Any], resources: dict[str, Any], settings: dict[str, Any], what: str
) -> None:
    with pytest.raises(UsageError, match=what):
        render(msgspec.structs.replace(JOB, **job), Resources(**resources), **settings)


def test_variables_are_passed_by_name_if_everybody_may_read_them() -> None:
    job = msgspec.structs.replace(JOB, command=("repro-env", "exec", "--env", "TOKEN", "--env", "LEVEL"))
    assert "-v PATH,TOKEN,LEVEL" in directives(render(job, show_variables=True))


@pytest.mark.parametrize("line", ["-o /elsewhere", "-t 1-3", "-pe mpi 4", "-N name", "l h=node1", "-cwd"])
def test_a_template_cannot_change_what_a_job_is(line: str) -> None:
    with pytest.raises(UsageError, match="a template cannot have this option of qsub"):
        render(template=f"#$ {line}\n")


def test_a_template_can_request_gpus() -> None:
    assert ENGINE.requests_gpus(GridEngineSettings(), "#$ -l h=node1,gpu=2\n")
    assert ENGINE.requests_gpus(GridEngineSettings(gpu_resource="cards"), "#$ -l cards=2\n")
    assert not ENGINE.requests_gpus(GridEngineSettings(), "#$ -l gpu_model=a100\n")


def start(directory: Path, code: str, *, processes: int = 1, requeue: bool = False, warning: float = 0) -> subprocess.Popen[str]:
    """Start a command of Python as a job does, in a process group of its own, and wait for its first line."""
    words = ["bash", str(START), str(directory), str(processes), str(int(requeue)), str(warning), sys.executable, "-c", code]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


HANDLES = """
import os, signal, sys, time
def handle(number, frame):
    print(signal.Signals(number).name, flush=True)
    sys.exit(number)
for number in (signal.SIGTERM, signal.SIGUSR1):
    signal.signal(number, handle)
assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
print("ready", flush=True)
time.sleep(60)
"""


def rest(process: subprocess.Popen[str]) -> tuple[str, int]:
    out, _ = process.communicate(timeout=30)
    return out, process.returncode


@pytest.mark.parametrize(("number", "code"), [(signal.SIGUSR2, signal.SIGTERM), (signal.SIGTERM, signal.SIGTERM)])
def test_a_command_gets_sigterm_once_for_the_signals_of_the_group(tmp_path: Path, number: int, code: int) -> None:
    process = start(tmp_path, HANDLES)
    os.killpg(process.pid, signal.SIGUSR1)  # before a suspension
    time.sleep(0.2)
    os.killpg(process.pid, number)
    assert rest(process) == ("SIGTERM\n", code)


def test_a_command_is_warned_and_its_job_queued_again(tmp_path: Path) -> None:
    process = start(tmp_path, HANDLES, requeue=True, warning=0.5)
    time.sleep(0.1)
    client = ENGINE.client(Path(), {"REPRO_ENV_JOB_DIRECTORY": str(tmp_path)})
    client.requeue("7")
    assert rest(process) == ("SIGUSR1\n", 99)
    assert not (tmp_path / "requeue").exists()


@pytest.mark.parametrize(("code", "expected"), [(0, 0), (7, 7), (99, 1), (100, 1)])
def test_an_exit_code_with_another_meaning_for_grid_engine_is_1(tmp_path: Path, code: int, expected: int) -> None:
    assert rest(start(tmp_path, f"print('ready', flush=True); exit({code})")) == ("", expected)


RANKS = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
if os.environ["RANK"] == "0":
    print("ready", flush=True)
    time.sleep(60)
time.sleep(0.3)
sys.exit(5 if os.environ["WORLD_SIZE"] == "2" else 6)
"""


def test_a_failing_process_ends_the_others(tmp_path: Path) -> None:
    assert rest(start(tmp_path, RANKS, processes=2)) == ("", 5)


def test_starts_of_a_job_are_counted(tmp_path: Path) -> None:
    file = tmp_path / "restarts"
    code = f"import os; open({str(file)!r}, 'a').write(os.environ['REPRO_ENV_JOB_RESTARTS']); print('ready', flush=True)"
    assert [rest(start(tmp_path, code))[1] for _ in range(3)] == [0, 0, 0]
    assert file.read_text() == "012"


def test_a_process_knows_its_job() -> None:
    environ = {"SGE_ROOT": "/sge", "JOB_ID": "12", "HOSTNAME": "node1", "REPRO_ENV_JOB_RESTARTS": "2"}
    job = ENGINE.job_of(environ)
    assert job is not None
    assert (job.engine, job.id, job.node, job.restarts) == ("gridengine", "12", "node1", 2)
    assert ENGINE.job_of({"JOB_ID": "12"}) is None
    assert ENGINE.job_of({"SGE_ROOT": "/sge", "JOB_ID": "x"}) is None
