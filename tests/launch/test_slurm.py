"""Job scripts, and what Slurm's commands answer. The commands are scripts here; tests/e2e/test_slurm.py has real ones."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
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
trap '' USR1  # comes before the time limit; `exec` handles it from its start
block=(env --block-signal=USR1)              # keeps it until then
"${{block[@]}}" true 2>/dev/null || block=()   # coreutils before 8.31

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
exec "${{block[@]}}" /opt/tool/bin/repro-env exec --run-id {RUN} --seed 7 -- train.py --lr 0.1
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
    text = slurm.render(JOB, Resources(tasks_per_node=2, requeue=True))
    assert """exec srun --kill-on-bad-exit=0 bash -c 'trap '"'"''"'"' USR1; exec "$@"' bash /opt""" in text


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
    script.write_text(slurm.render(job, Resources(requeue=True)))
    with subprocess.Popen(
        ["bash", script], env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(Path(__file__).parents[2])}
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
    text = slurm.render(msgspec.structs.replace(JOB, **changes), Resources())
    assert "#SBATCH --array=0-1\n" in text
    for number, (run_id, seed) in enumerate(runs):
        subprocess.run(["bash"], input=text, text=True, env={"SLURM_ARRAY_TASK_ID": str(number)}, check=True)
        log = (tmp_path / "a b" / run_id / slurm.STDOUT).read_text()
        assert log == f"--run-id {run_id} --seed {seed} -- train.py --lr 0.1\n"


def test_a_node_without_a_path_ends_the_job_before_the_command(tmp_path: Path) -> None:
    job = msgspec.structs.replace(JOB, command=("/bin/echo", "started"), needed=("/", str(tmp_path / "a b")), directory="/")
    done = subprocess.run(["bash"], input=slurm.render(job, Resources()), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (16, "")
    assert f"{tmp_path}/a b is not on the node" in done.stderr


FIRST, SECOND = Path("/runs/.jobs/1"), Path("/runs/.jobs/2")


def row(job: str, state: str, reason: str, code: str, script: str = "/runs/.jobs/1/job.sh") -> str:
    """A line of squeue, with the exit code as waitpid(2) returns it."""
    return f"{job}|{state}|{reason}|{code}|{script}|\n"


@pytest.mark.parametrize(
    ("lines", "phase", "text", "code"),
    [
        (row("7", "PENDING", "Resources", "0"), "pending", "pending (Resources)", None),
        (row("7", "PENDING", "BeginTime", "0"), "pending", "pending (BeginTime)", None),
        (row("7", "PENDING", "QOSMaxJobsPerUserLimit", "0"), "pending", "pending (QOSMaxJobsPerUserLimit)", None),
        (row("7", "PENDING", "launch failed requeued held", "0"), "pending", "pending (launch_failed_requeued_held)", 16),
        (row("7", "RUNNING", "None", "0"), "running", "running", None),
        (row("7", "COMPLETING", "None", "0"), "running", "completing", None),
        (row("7", "COMPLETED", "None", "0"), "ended", "completed", 0),
        (row("7", "FAILED", "NonZeroExitCode", "1792"), "ended", "failed", 7),
        (row("7", "FAILED", "NonZeroExitCode", "7:0"), "ended", "failed", 7),
        (row("7", "FAILED", "JobLaunchFailure", "3893"), "ended", "failed (JobLaunchFailure)", 16),
        (row("7", "CANCELLED", "None", "15"), "ended", "cancelled", 143),
        (row("7", "TIMEOUT", "TimeLimit", "0"), "ended", "timeout (TimeLimit)", 1),
        (row("7", "OUT_OF_MEMORY", "OutOfMemory", "125"), "ended", "out of memory (OutOfMemory)", 253),
        (row("7_0", "FAILED", "NonZeroExitCode", "768") + row("7_1", "PENDING", "Resources", "0"), "pending", "failed, pending (Resources)", None),
        (row("7_0", "COMPLETED", "None", "0") + row("7_1", "FAILED", "NonZeroExitCode", "768"), "ended", "completed, failed", 3),
    ],
)  # fmt: skip
def test_states_of_jobs(lines: str, phase: str, text: str, code: int | None) -> None:
    state = slurm.parse_jobs(lines, {FIRST: "7"})[FIRST]
    assert (state.phase, state.text, state.exit_code) == (phase, text, code)


def test_a_job_of_the_same_number_with_another_script_is_not_taken_for_it() -> None:
    lines = row("7", "RUNNING", "None", "0") + row("8", "RUNNING", "None", "0", "/other/job.sh") + "noise\n"
    lines += row("9_1", "RUNNING", "None", "0")  # the script of an array job is that of its first run
    jobs = {FIRST: "7", SECOND: "7", Path("/runs/.jobs/3"): "8", Path("/runs/.jobs/4"): "9_1", Path("/runs/.jobs/5"): "10"}
    assert [path.name for path in slurm.parse_jobs(lines, jobs)] == ["1", "4"]


def test_slurm_is_asked_once_for_several_jobs_and_its_accounting_for_those_that_it_has_forgotten(tmp_path: Path) -> None:
    jobs = tmp_path / "runs/.jobs"
    lines = row("7", "PENDING", "Resources", "0", f"{jobs}/1/job.sh") + row("9_1", "RUNNING", "None", "0", f"{jobs}/2/job.sh")
    environ = program(tmp_path / "bin", "squeue", f"echo \"$@\" >>{tmp_path}/asked; printf '%s' '{lines}'")
    program(
        tmp_path / "bin", "sacct", f"echo \"$@\" >>{tmp_path}/asked; echo '10|CANCELLED by 1000|0:15'; echo '11.0|RUNNING|0:0'"
    )
    numbers = {jobs / "1": "7", jobs / "3": "9_1", jobs / "4": "10", jobs / "5": "11"}
    states = Slurm(jobs / "1", environ).states(numbers)
    assert [state.text for state in states.values()] == [
        "pending (Resources)",
        "running",
        "cancelled",
        "Slurm does not know the job any more",
    ]
    asked = (tmp_path / "asked").read_text().splitlines()
    assert ["--jobs=7,9_1,10,11" in asked[0], "--jobs=10,11" in asked[1], len(asked)] == [True, True, 2]


def test_a_job_that_failed_without_its_output_files_has_a_hint(tmp_path: Path) -> None:
    environ = program(tmp_path / "bin", "squeue", f"echo '7|FAILED|NonZeroExitCode|{16 << 8}|{tmp_path}/job.sh|'")
    assert "the node cannot open the job's output files" in Slurm(tmp_path, environ).state("7").hint
    (tmp_path / slurm.STDERR).touch()
    assert Slurm(tmp_path, environ).state("7") == State(phase="ended", text="failed", exit_code=16)


def test_a_job_that_slurmctld_has_forgotten_is_looked_up_in_the_accounting(tmp_path: Path) -> None:
    environ = program(tmp_path / "bin", "squeue", "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")
    program(tmp_path / "bin", "sacct", "echo '7|CANCELLED by 1000|0:15'")
    assert Slurm(tmp_path, environ).state("7") == State(phase="ended", text="cancelled", exit_code=143)


@pytest.mark.parametrize("sacct", ["echo 'Slurm accounting storage is disabled' >&2; exit 1", "exit 0"])
def test_without_accounting_it_is_not_known_how_a_forgotten_job_ended(tmp_path: Path, sacct: str) -> None:
    environ = program(tmp_path / "bin", "squeue", "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")
    program(tmp_path / "bin", "sacct", sacct)
    assert Slurm(tmp_path, environ).state("7") == State(phase="forgotten", text="Slurm does not know the job any more")


def test_a_controller_that_does_not_answer_says_nothing_about_the_job(tmp_path: Path) -> None:
    why = "Unable to contact slurm controller (connect failure)"
    environ = program(tmp_path / "bin", "squeue", f"echo 'slurm_load_jobs error: {why}' >&2; exit 1")
    assert Slurm(tmp_path, environ).state("7") == State(phase="unknown", text=why)


@pytest.mark.parametrize(
    ("time", "arguments", "is_refused"),
    [
        ("2", (), True),
        ("2:01", (), False),
        ("0:02:00", (), True),
        ("1", ("--signal=B:USR1@55",), False),
        ("1", ("--signal=USR1",), True),
        ("10", ("--signal=B:USR1@600",), True),
        (None, (), False),
    ],
)
def test_a_time_limit_that_is_not_longer_than_the_warning_is_refused(
    time: str | None, arguments: tuple[str, ...], is_refused: bool
) -> None:
    resources = Resources(time=time, arguments=arguments)
    slurm.render(JOB, resources)  # without --requeue there is no warning
    with pytest.raises(UsageError, match="must be longer than the warning") if is_refused else contextlib.nullcontext():
        slurm.render(JOB, msgspec.structs.replace(resources, requeue=True))


def test_the_largest_array_is_that_of_the_configuration(tmp_path: Path) -> None:
    environ = program(
        tmp_path / "bin", "scontrol", "printf 'MaxArraySize            = 1001\\nMaxJobCount             = 10000\\n'"
    )
    assert Slurm(tmp_path, environ).largest_array() == 1001


def test_a_machine_without_slurm_is_named(tmp_path: Path) -> None:
    engine = Slurm(tmp_path, {"PATH": str(tmp_path)})
    assert engine.state("7") == State(phase="unknown", text="the command squeue is not on this machine")
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
