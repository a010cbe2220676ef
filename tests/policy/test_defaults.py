"""Defaults of options in `[tool.repro-env]`, which may be a stranger's: what is taken, what is refused, and what messages say."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from repro_env.cli import app
from repro_env.cli.exec import words
from repro_env.cli.ui import messages
from repro_env.cli.ui.options import read
from repro_env.io import pyproject
from repro_env.policy import defaults
from repro_env.policy.rules import parse
from repro_env.runs.start.origin import Submitted
from repro_env.runs.start.request import RunOptions
from repro_env.schema.errors import UsageError
from repro_env.schema.options import options_of
from repro_env.schema.runners import TRAITS
from tests.api.place import Fake, Place
from tests.runs.records import examples

FILE = """\
[tool.repro-env]
seed = 7
determinism = "strict"
cpus = 2.5
memory = "8G"
time = "1h30m"
runner = "docker"
trace = true
include = ["config/*.toml"]
exclude = "notes/**"

[tool.repro-env.jobs.slurm]
partition = "gpu"

[tool.repro-env.policy]
clean-tree = true
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "pyproject.toml").write_text(FILE)
    (tmp_path / "src").mkdir()
    monkeypatch.chdir(tmp_path / "src")
    return tmp_path


def options(*line: str) -> RunOptions:
    context = app.parse("exec", line)
    assert words(context) == ("train.py",)
    return read(RunOptions, context.params, defaults=context.params["defaults"])


def test_the_nearest_file_sets_the_defaults_of_exec(project: Path) -> None:
    made = options("train.py")
    assert (made.seed, made.determinism, made.cpus, made.memory, made.seconds) == (7, "strict", 2.5, 8 << 30, 5400)
    assert (made.runner, made.trace) == ("docker", True)
    said = ("seed 7", "determinism strict", "cpus 2.5", "memory 8G", "time 1h30m", "runner docker", "trace")
    assert made.defaults == said


def test_the_command_line_wins_and_no_defaults_ignores_the_file(project: Path) -> None:
    made = options("--seed", "3", "--determinism", "warn", "--runner", "embedded", "train.py")
    assert (made.seed, made.determinism, made.runner) == (3, "warn", "embedded")
    assert made.defaults == ("cpus 2.5", "memory 8G", "time 1h30m", "trace")
    assert options("--no-defaults", "train.py") == RunOptions(no_defaults=True)


def test_a_resume_has_the_seed_of_its_run(project: Path) -> None:
    made = options("--resume", "latest", "train.py")
    assert (made.seed, made.determinism) == (None, "strict")
    assert options("--resume", "latest", "--seed", "3", "train.py").seed == 3


def test_a_job_does_not_read_the_file_again(project: Path) -> None:
    line = [*options("--determinism", "warn", "train.py").words(()), "train.py"]
    assert options(*line).determinism == "warn"


@pytest.mark.parametrize(("name", "value", "reason"), [
    ("data", '["/etc"]', "shows the command files"),
    ("checkpoints", '["/home"]', "shows the command files"),
    ("env", '["AWS_SECRET_ACCESS_KEY"]', "a secret of your shell"),
    ("env-file", '"../.env"', "reads a file of yours"),
    ("network", "true", "send your data away"),
    ("gpus", '"all"', "devices of this machine"),
    ("source", '"/"', "reads a directory"),
    ("runs", '"/tmp"', "writes to a directory"),
    ("runner", '"host"', "must isolate the command"),
    ("runner", '"pod"', "must isolate the command"),
    ("not-secret", '["*"]', "a secret of yours"),
    ("on", '"slurm"', "a single command line"),
    ("except", '"seeds=x"', "a single command line"),
    ("push", '"evil.example/x"', "a single command line"),
    ("sed", "7", 'no option "sed"'),
    ("seed", "true", "a text or a number"),
    ("seed", '"x"', "must be an integer"),
    ("seed", "[1, 2]", "takes one value"),
    ("trace", '"yes"', "true or false"),
    ("cpus", "0", "not in the range"),
])  # fmt: skip
def test_what_a_stranger_must_not_set_is_an_error_that_says_why(project: Path, name: str, value: str, reason: str) -> None:
    (project / "pyproject.toml").write_text(f"[tool.repro-env]\n{name} = {value}\n")
    with pytest.raises(UsageError, match=reason) as caught:
        app.parse("exec", ["train.py"])
    assert f"pyproject.toml: tool.repro-env.{name}" in caught.value.where
    assert caught.value.hint


def test_only_options_without_an_effect_outside_the_run_may_be_set() -> None:
    allowed = {field.encode_name: option.project for field, option in options_of(RunOptions).values() if option.project}
    assert allowed.keys() == {"seed", "ranks", "determinism", "ids", "threads", "trace", "runner", "cpus", "memory", "time"}
    runners = allowed["runner"]
    assert isinstance(runners, tuple)
    assert all(TRAITS[name].is_isolated and not TRAITS[name].is_live for name in runners)  # type: ignore[index]


def test_the_nearest_name_is_suggested() -> None:
    with pytest.raises(UsageError) as caught:
        defaults.parse({"determinsm": "off"}, (RunOptions,), (), "here")
    assert caught.value.hint == "did you mean determinism?"


@pytest.mark.parametrize(
    "text", [r'"a\nrepro-env: error: b" = 1', r'seed = "1\n\u001b[2J"', r"""policy = {"x\ny" = 1}""", r'runner = "x\ny"']
)
def test_a_message_has_no_line_of_the_file(project: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "pyproject.toml").write_text(f"[tool.repro-env]\n{text}\n")

    def read_all() -> None:
        app.parse("exec", ["train.py"])
        parse(pyproject.read(project, defaults.POLICY)[0], "here")

    with pytest.raises(UsageError) as caught:
        read_all()
    messages.error(caught.value)
    assert capsys.readouterr().err.count("\n") == 2


def test_a_shell_has_the_options_that_it_can_use(project: Path) -> None:
    params = app.parse("shell", []).params
    assert (params["seed"], params["trace"], params["seconds"]) == (7, False, None)
    assert "trace" not in params["defaults"]


def test_help_does_not_need_the_file(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "pyproject.toml").write_text("[tool.repro-env\n")
    assert app.run(["exec", "--help"]) == 0
    assert "--no-defaults" in capsys.readouterr().out
    with pytest.raises(UsageError, match=r"tool\.repro-env cannot be read"):
        app.parse("exec", ["train.py"])


@pytest.mark.parametrize("text", ["tool = 3 # repro-env", "[tool]\nrepro-env = 3", "\\repro-env"])
def test_a_file_without_tables_is_an_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "pyproject.toml").write_text(text)
    with pytest.raises(UsageError, match="cannot be read"):
        pyproject.read(tmp_path)


def test_the_file_may_be_a_symlink_and_anything_else_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "shared.toml").write_text("[tool.repro-env]\nseed = 3\n")
    (tmp_path / "pyproject.toml").symlink_to("shared.toml")
    (tmp_path / "a" / "pyproject.toml").mkdir(parents=True)
    (tmp_path / "a" / "b").mkdir()
    os.mkfifo(tmp_path / "a" / "b" / "pyproject.toml")
    assert pyproject.read(tmp_path / "a" / "b") == ({"seed": 3}, tmp_path / "pyproject.toml")


def test_capture_takes_its_own_options(project: Path) -> None:
    params = app.parse("capture", []).params
    assert (params["seed"], params["include"], params["exclude"]) == (7, ("config/*.toml",), ("notes/**",))
    assert params["defaults"] == ("seed 7", "include config/*.toml", "exclude notes/**")
    assert app.parse("capture", ["--exclude", "x"]).params["exclude"] in (["x"], ("x",))


def test_the_record_and_the_messages_say_what_the_file_set(tmp_path: Path) -> None:
    place = Place(tmp_path)
    done = place.run("train.py", seed=7, defaults=("seed 7",), backend=Fake())
    assert done.start.defaults == ("seed 7",)
    assert "seed 7 (from pyproject.toml)" in place.lines


def test_the_record_of_a_job_says_what_its_submission_took_from_the_file() -> None:
    start = examples.start("0" * 8)
    submitted = Submitted(run_id=start.id, start=msgspec.structs.replace(start, defaults=("seed 7",)))
    assert submitted.record(start, RunOptions(no_defaults=True)).defaults == ("seed 7",)
