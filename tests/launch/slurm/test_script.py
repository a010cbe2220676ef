"""Job scripts. tests/e2e/test_slurm.py submits them."""

from __future__ import annotations

import contextlib
import hashlib
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from repro_env.launch import nodescript
from repro_env.launch.engine import NodeJob, Resources
from repro_env.launch.settings import parse
from repro_env.launch.slurm import ENGINE
from repro_env.launch.slurm.settings import SlurmSettings
from repro_env.schema.errors import UsageError
from tests.launch.nodejobs import JOB, RUN
from tests.launch.slurm.jobs import GOLDEN


def render(job: NodeJob = JOB, resources: Resources = Resources(), template: str = "", **settings: Any) -> str:  # noqa: B008
    return ENGINE.script(job, resources, SlurmSettings(**settings), template)


def test_the_job_script_is_the_golden_one() -> None:
    resources = Resources(seconds=36 * 3600, gpus=2)
    assert render(JOB, resources, partition="gpu", account="lab_1", requeue=True, sbatch=("--qos=high",)) == GOLDEN


def test_a_job_without_options_has_only_its_name_and_files() -> None:
    lines = [line for line in render().splitlines() if line.startswith("#SBATCH")]
    assert lines == GOLDEN.splitlines()[1:6]


def test_limits_are_requested_from_slurm() -> None:
    lines = render(JOB, Resources(cpus=3, memory=8 << 30)).splitlines()
    assert {"#SBATCH --cpus-per-task=3", "#SBATCH --mem=8388608K"} < set(lines)


def test_several_processes_of_a_run_are_tasks_of_one_step() -> None:
    lines = render(JOB, Resources(nodes=2, cpus=3), tasks_per_node=4).splitlines()
    assert {"#SBATCH --nodes=2", "#SBATCH --ntasks-per-node=4"} < set(lines)
    words = "exec srun --kill-on-bad-exit=1 --cpus-per-task=3 /opt/tool/bin/repro-env exec --run-id"
    assert lines[-1].startswith(words)
    text = render(tasks_per_node=2, requeue=True)
    assert """exec srun --kill-on-bad-exit=0 bash -c 'trap '"'"''"'"' USR1; exec "$@"' bash /opt""" in text


def test_the_users_own_warning_signal_replaces_the_default() -> None:
    text = render(requeue=True, sbatch=("--signal=B:USR1@300",))
    assert text.count("--signal=") == 1


@pytest.mark.parametrize(
    ("word", "option"),
    [
        ("partition=a b", "--job partition"),
        ("partition=gpu\n#SBATCH --uid=0", "--job partition"),
        ("account=$(id)", "--job account"),
        ("tasks-per-node=0", "--job tasks-per-node"),
        ("sbatch=-p gpu", "--job sbatch"),
        ("sbatch=--qos=a b", "--job sbatch"),
        ("sbatch=--comment=a#b", "--job sbatch"),
        ("sbatch=--wrap=id", "--wrap"),
        ("sbatch=--output=/dev/null", "--output"),
        ("sbatch=--export=NONE", "--export"),
    ],
)
def test_values_that_could_be_other_options_are_refused(word: str, option: str) -> None:
    with pytest.raises(UsageError, match=option):
        render(**msgspec.structs.asdict(parse(ENGINE, [word])))


def test_a_directory_that_sbatch_cannot_read_is_refused() -> None:
    with pytest.raises(UsageError, match="so the scheduler cannot read it"):
        render(msgspec.structs.replace(JOB, jobs='/home/a"b'))


WORDS = (
    "a b",
    "'",
    '"$HOME"',
    "`id`",
    "$(id)",
    "\\",
    "two\nlines",
    "\t",
    "*",
    "ä",
    "#SBATCH --x",
    "\n#SBATCH --uid=0",
    "",
    "\udcff",
)


def test_bash_reads_every_word_as_it_was_typed(tmp_path: Path) -> None:
    job = msgspec.structs.replace(
        JOB,
        command=("/usr/bin/env", "printf", "%s\\0"),
        words=WORDS,
        needed=(str(tmp_path),),
        directory=str(tmp_path),
    )
    done = subprocess.run(["bash"], input=render(job).encode("utf-8", "surrogateescape"), capture_output=True, check=True)
    assert done.stdout.decode("utf-8", "surrogateescape").split("\0")[:-1] == ["--run-id", RUN, "--seed", "7", "--", *WORDS]


def test_a_warning_that_comes_while_python_starts_is_kept_for_it(tmp_path: Path) -> None:
    code = (
        "import pathlib, signal, sys, time; pathlib.Path('started').touch()\n"
        "while not pathlib.Path('sent').exists(): time.sleep(0.01)\n"
        "from repro_env.sandbox.session import hold_signal, queue_signals; hold_signal(signal.SIGUSR1)\n"
        "with queue_signals() as queue: queue.is_forwarded = True; sys.exit(42 if signal.SIGUSR1 in queue.take() else 3)\n"
    )
    command, directory = (sys.executable, "-c", code), str(tmp_path)
    job = msgspec.structs.replace(JOB, command=command, needed=(directory,), directory=directory)
    script = tmp_path / "job.sh"
    script.write_text(render(job, requeue=True))
    with subprocess.Popen(
        ["bash", script], env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(Path(__file__).parents[3])}
    ) as process:
        while not (tmp_path / "started").exists():
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGUSR1)
        (tmp_path / "sent").touch()
        assert process.wait(60) == 42


def test_each_task_of_an_array_job_has_its_own_run_seed_and_logs(tmp_path: Path) -> None:
    runs = (("first", 4294967295), ("second", 0))
    for run_id, _ in runs:
        (tmp_path / "a b" / run_id).mkdir(parents=True)
    changes = {"runs": runs, "jobs": f"{tmp_path}/a b", "command": ("/bin/echo",), "directory": "/", "needed": ("/",)}
    text = render(msgspec.structs.replace(JOB, **changes))
    assert "#SBATCH --array=0-1\n" in text
    for number, (run_id, seed) in enumerate(runs):
        subprocess.run(["bash"], input=text, text=True, env={"SLURM_ARRAY_TASK_ID": str(number)}, check=True)
        log = (tmp_path / "a b" / run_id / nodescript.STDOUT).read_text()
        assert log == f"--run-id {run_id} --seed {seed} -- train.py --lr 0.1\n"


def test_a_node_without_a_path_ends_the_job_before_the_command(tmp_path: Path) -> None:
    job = msgspec.structs.replace(JOB, command=("/bin/echo", "started"), needed=("/", str(tmp_path / "a b")), directory="/")
    done = subprocess.run(["bash"], input=render(job), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (16, "")
    assert f"{tmp_path}/a b is not on the node" in done.stderr


@pytest.mark.parametrize(
    ("time", "arguments", "is_refused"),
    [
        (120, (), True),
        (121, (), False),
        (60, ("--signal=B:USR1@55",), False),
        (60, ("--signal=USR1",), True),
        (600, ("--signal=B:USR1@600",), True),
        (0, (), False),
    ],
)
def test_a_time_limit_that_is_not_longer_than_the_warning_is_refused(
    time: int, arguments: tuple[str, ...], is_refused: bool
) -> None:
    resources = Resources(seconds=time)
    render(JOB, resources, sbatch=arguments)  # a job that is not queued again gets no warning
    with pytest.raises(UsageError, match="must be longer than the warning") if is_refused else contextlib.nullcontext():
        render(JOB, resources, sbatch=arguments, requeue=True)


TEMPLATE = """\
#!/bin/bash
#SBATCH --constraint=[rome|milan]
#SBATCH --container-mounts=/scratch:/scratch
module load cuda
# a comment with a tab\there
"""


def test_the_lines_of_a_template_are_in_the_script_before_the_command() -> None:
    ENGINE.check_template(TEMPLATE)
    lines = render(template=TEMPLATE).splitlines()
    assert lines[6:10] == [*TEMPLATE.splitlines()[1:5]]
    assert f"export REPRO_ENV_JOB_TEMPLATE=sha256:{hashlib.sha256(TEMPLATE.encode()).hexdigest()}" in lines
    assert lines[-1] == GOLDEN.splitlines()[-1].replace('"${block[@]}" ', "")


def test_a_template_may_request_gpus() -> None:
    assert ENGINE.requests_gpus(SlurmSettings(), "#SBATCH --gres=gpu:a100:2")
    assert ENGINE.requests_gpus(SlurmSettings(sbatch=("--gpus-per-task=1",)), "")
    assert not ENGINE.requests_gpus(SlurmSettings(), TEMPLATE)


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("#SBATCH --output=/dev/null\n", "repro-env decides the option --output of sbatch"),
        ("#SBATCH --wrap=id\n", "repro-env decides the option --wrap"),
        ("#SBATCH -p gpu\n", "not an option of sbatch"),
        ("#SBATCH --qos high\n", "not an option of sbatch"),
        ("cat <<END\n", "here-document"),
        ("echo 'open\n", "bash cannot read these lines"),
        ("if true; then\n", "bash cannot read these lines"),
    ],
)
def test_a_template_cannot_hide_the_command_or_replace_options(template: str, text: str) -> None:
    def use() -> None:
        ENGINE.check_template(template)
        render(template=template)

    with pytest.raises(UsageError, match=text):
        use()
