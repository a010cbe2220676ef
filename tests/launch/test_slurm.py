"""Job scripts, and what Slurm's commands answer. The commands are scripts here; tests/e2e/test_slurm.py has real ones."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from repro_env.launch import slurm
from repro_env.launch.engine import State
from repro_env.launch.slurm import Job, Resources, Slurm
from repro_env.schema.errors import EngineError, UsageError

RUN = "0197c1d2-0000-7000-8000-00000000abcd"
JOB = Job(
    runs=((RUN, 7),),
    name="train-0000abcd",
    command=("/opt/tool/bin/repro-env", "exec"),
    words=("train.py", "--lr", "0.1"),
    directory="/home/ann/digits",
    jobs="/home/ann/digits/runs/.jobs",
    store="/home/ann/.cache/repro-env",
    needed=("/opt/tool/bin/repro-env", "/home/ann/.cache/repro-env"),
)
GOLDEN = f"""\
#!/bin/bash
#SBATCH --job-name=train-0000abcd
#SBATCH --comment=repro-env:{RUN}
#SBATCH --output="/home/ann/digits/runs/.jobs/{RUN}/stdout.log"
#SBATCH --error="/home/ann/digits/runs/.jobs/{RUN}/stderr.log"
#SBATCH --open-mode=append
#SBATCH --partition=gpu
#SBATCH --account=lab_1
#SBATCH --time=1-12
#SBATCH --gpus=2
#SBATCH --requeue
#SBATCH --signal=B:USR1@120
#SBATCH --qos=high
# The run {RUN}. Written by repro-env.

missing() {{
    echo "repro-env: error: $1 is not on the node $(hostname)" >&2
    echo "  -> the project, the store (REPRO_ENV_STORE) and repro-env must be on a file system that the nodes share" >&2
    exit 16
}}
for path in /opt/tool/bin/repro-env /home/ann/.cache/repro-env; do
    [ -e "$path" ] || missing "$path"
done
cd /home/ann/digits || missing /home/ann/digits
export REPRO_ENV_STORE=/home/ann/.cache/repro-env
exec /opt/tool/bin/repro-env exec --run-id {RUN} --seed 7 -- train.py --lr 0.1
"""


def program(directory: Path, name: str, text: str) -> dict[str, str]:
    """Write a script in place of a command of Slurm. Returns the environment in which it is found."""
    directory.mkdir(exist_ok=True)
    (directory / name).write_text(f"#!/bin/sh\n{text}\n")
    (directory / name).chmod(0o755)
    return {"PATH": f"{directory}:/usr/bin:/bin"}


def test_the_job_script_is_the_golden_one() -> None:
    asked = Resources(partition="gpu", account="lab_1", time="1-12", gpus=2, requeue=True, arguments=("--qos=high",))
    assert slurm.render(JOB, asked) == GOLDEN


def test_a_job_without_options_has_only_its_name_and_files() -> None:
    lines = [line for line in slurm.render(JOB, Resources()).splitlines() if line.startswith("#SBATCH")]
    assert lines == GOLDEN.splitlines()[1:6]


def test_limits_are_requested_from_slurm() -> None:
    lines = slurm.render(JOB, Resources(cpus=3, memory=8 << 30)).splitlines()
    assert {"#SBATCH --cpus-per-task=3", "#SBATCH --mem=8388608K"} < set(lines)


def test_several_processes_of_a_run_are_tasks_of_one_step() -> None:
    lines = slurm.render(JOB, Resources(nodes=2, tasks_per_node=4, cpus=3)).splitlines()
    assert {"#SBATCH --nodes=2", "#SBATCH --ntasks-per-node=4"} < set(lines)
    words = "exec srun --kill-on-bad-exit=1 --cpus-per-task=3 /opt/tool/bin/repro-env exec --run-id"
    assert lines[-1].startswith(words)
    assert "exec srun --kill-on-bad-exit=0 /opt" in slurm.render(JOB, Resources(tasks_per_node=2, requeue=True))


def test_the_users_own_warning_signal_replaces_the_default() -> None:
    text = slurm.render(JOB, Resources(requeue=True, arguments=("--signal=B:USR1@300",)))
    assert text.count("--signal=") == 1


@pytest.mark.parametrize(
    ("resources", "option"),
    [
        (Resources(partition="a b"), "--partition"),
        (Resources(partition="gpu\n#SBATCH --uid=0"), "--partition"),
        (Resources(account="$(id)"), "--account"),
        (Resources(time="soon"), "--time"),
        (Resources(time="10\n"), "--time"),
        (Resources(arguments=("-p gpu",)), "--slurm-arg"),
        (Resources(arguments=("--qos=a b",)), "--slurm-arg"),
        (Resources(arguments=("--comment=a#b",)), "--slurm-arg"),
        (Resources(arguments=("--wrap=id",)), "--slurm-arg"),
        (Resources(arguments=("--output=/dev/null",)), "--slurm-arg"),
        (Resources(arguments=("--export=NONE",)), "--slurm-arg"),
    ],
)
def test_values_that_could_be_other_options_are_refused(resources: Resources, option: str) -> None:
    with pytest.raises(UsageError, match=option):
        slurm.render(JOB, resources)


def test_a_directory_that_sbatch_cannot_read_is_refused() -> None:
    import msgspec

    with pytest.raises(UsageError, match="so Slurm cannot read it"):
        slurm.render(msgspec.structs.replace(JOB, jobs='/home/a"b'), Resources())


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
    import msgspec

    job = msgspec.structs.replace(
        JOB,
        command=("/usr/bin/env", "printf", "%s\\0"),
        words=WORDS,
        needed=(str(tmp_path),),
        directory=str(tmp_path),
    )
    done = subprocess.run(
        ["bash"], input=slurm.render(job, Resources()).encode("utf-8", "surrogateescape"), capture_output=True, check=True
    )
    assert done.stdout.decode("utf-8", "surrogateescape").split("\0")[:-1] == ["--run-id", RUN, "--seed", "7", "--", *WORDS]


def test_each_task_of_an_array_job_has_its_own_run_seed_and_logs(tmp_path: Path) -> None:
    import msgspec

    runs = (("first", 4294967295), ("second", 0))
    for run_id, _ in runs:
        (tmp_path / "a b" / run_id).mkdir(parents=True)
    changes = {"runs": runs, "jobs": f"{tmp_path}/a b", "command": ("/bin/echo",), "directory": "/", "needed": ("/",)}
    text = slurm.render(msgspec.structs.replace(JOB, **changes), Resources())
    assert "#SBATCH --array=0-1\n" in text
    for number, (run_id, seed) in enumerate(runs):
        subprocess.run(["bash"], input=text, text=True, env={"SLURM_ARRAY_TASK_ID": str(number)}, check=True)
        log = (tmp_path / "a b" / run_id / slurm.STDOUT).read_text()
        assert log == f"--run-id {run_id} --seed {seed} -- train.py --lr 0.1\n"


def test_a_node_without_a_path_ends_the_job_before_the_command(tmp_path: Path) -> None:
    import msgspec

    job = msgspec.structs.replace(JOB, command=("/bin/echo", "started"), needed=("/", str(tmp_path / "a b")), directory="/")
    done = subprocess.run(["bash"], input=slurm.render(job, Resources()), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (16, "")
    assert f"{tmp_path}/a b is not on the node" in done.stderr


TASKS_WAIT = """\
JobId=8 ArrayJobId=7 ArrayTaskId=0 JobState=FAILED Reason=NonZeroExitCode ExitCode=3:0

JobId=7 ArrayJobId=7 ArrayTaskId=1-9 JobState=PENDING Reason=Resources ExitCode=0:0
"""
TASKS_ENDED = """\
JobId=8 ArrayTaskId=0 JobState=COMPLETED Reason=None ExitCode=0:0
JobId=9 ArrayTaskId=1 JobState=FAILED Reason=NonZeroExitCode ExitCode=3:0
JobId=7 ArrayTaskId=2 JobState=COMPLETED Reason=None ExitCode=0:0
"""


@pytest.mark.parametrize(
    ("line", "phase", "text", "code"),
    [
        ("JobId=1 JobName=a JobState=PENDING Reason=Resources ExitCode=0:0 Restarts=0", "pending", "pending (Resources)", None),
        ("JobId=1 JobName=a JobState=PENDING Reason=BeginTime Restarts=1 ExitCode=0:0", "pending", "pending (BeginTime)", None),
        ("JobId=1 JobState=RUNNING Reason=None ExitCode=0:0", "running", "running", None),
        ("JobId=1 JobState=COMPLETING Reason=None ExitCode=0:0", "running", "completing", None),
        ("JobId=1 JobState=COMPLETED Reason=None ExitCode=0:0 Command=/a JobState=x", "ended", "completed", 0),
        ("JobId=1 JobState=FAILED Reason=NonZeroExitCode ExitCode=7:0", "ended", "failed", 7),
        ("JobId=1 JobState=FAILED Reason=JobLaunchFailure ExitCode=0:53", "ended", "failed (JobLaunchFailure)", 16),
        ("JobId=1 JobState=CANCELLED Reason=None ExitCode=0:15", "ended", "cancelled", 143),
        ("JobId=1 JobState=TIMEOUT Reason=TimeLimit ExitCode=0:0", "ended", "timeout (TimeLimit)", 1),
        ("JobId=1 JobState=OUT_OF_MEMORY Reason=OutOfMemory ExitCode=0:125", "ended", "out of memory (OutOfMemory)", 253),
        ("", "unknown", "", None),
        (TASKS_WAIT, "pending", "failed, pending (Resources)", None),
        (TASKS_ENDED, "ended", "completed, failed", 3),
    ],
)
def test_states_of_jobs(line: str, phase: str, text: str, code: int | None) -> None:
    state = slurm.parse_jobs(line)
    assert (state.phase, state.text, state.exit_code) == (phase, text, code)


def test_a_job_that_slurmctld_has_forgotten_is_looked_up_in_the_accounting(tmp_path: Path) -> None:
    environ = program(tmp_path / "bin", "scontrol", "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")
    program(tmp_path / "bin", "sacct", "echo 'CANCELLED by 1000|0:15'")
    assert Slurm(tmp_path, environ).state("7") == State(phase="ended", text="cancelled", exit_code=143)


@pytest.mark.parametrize("sacct", ["echo 'Slurm accounting storage is disabled' >&2; exit 1", "exit 0"])
def test_without_accounting_a_forgotten_job_has_ended_in_an_unknown_way(tmp_path: Path, sacct: str) -> None:
    environ = program(tmp_path / "bin", "scontrol", "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")
    program(tmp_path / "bin", "sacct", sacct)
    assert Slurm(tmp_path, environ).state("7") == State(phase="ended", text="Slurm does not know the job any more")


def test_a_job_of_the_same_number_with_another_script_is_not_taken_for_it(tmp_path: Path) -> None:
    for command, phase in ((tmp_path / "run/job.sh", "running"), ("/other/job.sh", "ended")):
        line = f"JobId=7 JobState=RUNNING Reason=None ExitCode=0:0 Command={command} WorkDir=/"
        environ = program(tmp_path / "bin", "scontrol", f"echo '{line}'")
        program(tmp_path / "bin", "sacct", "exit 1")
        assert Slurm(tmp_path / "run", environ).state("7").phase == phase


def test_a_controller_that_does_not_answer_says_nothing_about_the_job(tmp_path: Path) -> None:
    why = "Unable to contact slurm controller (connect failure)"
    environ = program(tmp_path / "bin", "scontrol", f"echo 'slurm_load_jobs error: {why}' >&2; exit 1")
    program(tmp_path / "bin", "sacct", "exit 1")
    assert Slurm(tmp_path, environ).state("7") == State(phase="unknown", text=why)


def test_a_machine_without_slurm_is_named(tmp_path: Path) -> None:
    engine = Slurm(tmp_path, {"PATH": str(tmp_path)})
    assert engine.state("7") == State(phase="unknown", text="the command scontrol is not on this machine")
    with pytest.raises(EngineError, match="the command sbatch is not on this machine"):
        engine.submit(GOLDEN)


def test_variables_of_sbatch_do_not_override_the_options_of_the_script(tmp_path: Path) -> None:
    environ = program(tmp_path / "bin", "sbatch", f"env > {tmp_path}/env; echo '12;cluster'")
    environ |= {
        "SBATCH_PARTITION": "other",
        "SBATCH_TIMELIMIT": "1",
        "SBATCH_QOS": "low",
        "SBATCH_RESERVATION": "mine",
        "TOKEN": "x",
    }
    assert Slurm(tmp_path, environ).submit(GOLDEN) == "12"
    names = {line.partition("=")[0] for line in (tmp_path / "env").read_text().splitlines()}
    assert names >= {"SBATCH_RESERVATION", "TOKEN"}
    assert not names & {"SBATCH_PARTITION", "SBATCH_TIMELIMIT", "SBATCH_QOS"}
    assert (tmp_path / slurm.SCRIPT).stat().st_mode & 0o777 == 0o500


def test_a_refused_job_is_an_error_with_the_words_of_sbatch(tmp_path: Path) -> None:
    environ = program(tmp_path / "bin", "sbatch", "echo 'sbatch: error: invalid partition specified: x' >&2; exit 1")
    with pytest.raises(EngineError, match="Slurm refused the job: invalid partition specified: x"):
        Slurm(tmp_path, environ).submit(GOLDEN)


def test_logs_are_read_from_where_the_last_look_ended(tmp_path: Path) -> None:
    engine = Slurm(tmp_path, {})
    assert engine.logs("1") == (b"", b"")
    (tmp_path / slurm.STDOUT).write_bytes(b"one\n")
    assert engine.logs("1") == (b"one\n", b"")
    with (tmp_path / slurm.STDOUT).open("ab") as file:
        file.write(b"two")
    (tmp_path / slurm.STDERR).write_bytes(b"error")
    assert engine.logs("1") == (b"two", b"error")
