from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from repro_env.api.execute import FinishedRun
from repro_env.cli import app, parser
from repro_env.cli import exec as run
from repro_env.cli.ui import messages as say
from repro_env.cli.ui.options import read
from repro_env.runs.start.request import RunOptions
from repro_env.schema.errors import UsageError
from repro_env.schema.options import parse_mount
from repro_env.schema.progress import Silent
from repro_env.schema.run import End, Outcome, Output, SourceFact, Start
from repro_env.schema.runners import RunnerName

EXEC = parser.make("exec").commands["exec"]
DIGEST = "sha256:" + "0" * 64


def parse(*words: str) -> tuple[dict[str, object], list[str]]:
    """The options that were given, and the command."""
    context = app.parse("exec", words)
    options = {name: value for name, value in context.params.items() if value and name not in ("module", "code")}
    lists = {name: list(value) for name, value in options.items() if isinstance(value, (list, tuple))}
    return options | lists, list(run.words(context))


def arguments(*words: str) -> RunOptions:
    return read(RunOptions, app.parse("exec", words).params, output=True)


@pytest.mark.parametrize(
    ("words", "options", "command"),
    [
        ("train.py --lr 0.1", {}, "train.py --lr 0.1"),
        ("train.py -1 -1e-3 --x=-7", {}, "train.py -1 -1e-3 --x=-7"),
        ("--seed 7 train.py --seed 8", {"seed": 7}, "train.py --seed 8"),
        ("--seed=7 train.py --help", {"seed": 7}, "train.py --help"),
        ("-- train.py -- x", {}, "train.py -- x"),
        ("train.py -- x", {}, "train.py -- x"),
        ("--network -- --weird --json", {"network": True}, "--weird --json"),
        ("-- -- x", {}, "-- x"),
        ("-m pkg.mod --json", {}, "-m pkg.mod --json"),
        ("-- -m pkg.mod --json", {}, "-m pkg.mod --json"),
        ("--json -m pkg.mod -h", {}, "-m pkg.mod -h"),
        ("-c pass", {}, "-c pass"),
        ("-c pass -m -c", {}, "-c pass -m -c"),
        ("torchrun --nproc-per-node 2 train.py", {}, "torchrun --nproc-per-node 2 train.py"),
        ("--data a --data b:/c x", {"data": [("a", ""), ("b", "/c")]}, "x"),
        ("--env A=--x=1 x", {"env": [("A", "--x=1")]}, "x"),
        ("--env=A=b=c x", {"env": [("A", "b=c")]}, "x"),
        ("--seed random x", {"seed": "random"}, "x"),
        ("--seed 1 --seed 2 x", {"seed": 2}, "x"),
        ("--runner host --frozen --data-changed x", {"runner": "host", "frozen": True, "data_changed": True}, "x"),
        ("--note -x y", {"note": "-x"}, "y"),
        ("- x", {}, "- x"),
        ("--", {}, ""),
        ("", {}, ""),
    ],
)
def test_options_end_at_the_first_word_that_is_not_an_option(words: str, options: dict[str, object], command: str) -> None:
    assert parse(*words.split()) == (options, command.split())


@settings(deadline=None)
@given(st.lists(st.text()), st.sampled_from([("train.py",), ("-m", "pkg"), ("-c", ""), ("true",), ("./x",), ("-",), ("",)]))
def test_the_words_of_the_command_are_passed_unchanged(words: list[str], first: tuple[str, ...]) -> None:
    for options, command in (((), (*first, *words)), (("--",), tuple(words)), (("--seed", "1", "--"), tuple(words))):
        context = EXEC.make_context("exec", [*options, *command])
        assert run.words(context) == command
        assert context.params["seed"] == (1 if options[:1] == ("--seed",) else None)


def test_a_word_that_is_not_utf8_is_passed_to_the_command() -> None:
    assert parse("train.py", "\udcff") == ({}, ["train.py", "\udcff"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--sed 3 x", "no such option: --sed"),
        ("-x train.py", "no such option: -x"),
        ("-u train.py", "no such option: -u"),
        ("--lr=1 train.py", "no such option: --lr"),
        ("--seed", "'--seed' requires an argument"),
        ("--json=1 x", "'--json' does not take a value"),
        ("--trace= train.py", "'--trace' does not take a value"),
        ("--seeds 5 train.py", "no such option: --seeds"),
    ],
)
def test_the_error_for_a_wrong_option_shows_the_usage(words: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        parse(*words.split())
    assert caught.value.where == "repro-env exec"
    assert "`repro-env exec --help`" in caught.value.hint


def test_options_are_converted_to_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = "--seed 7 --data a:/b --checkpoints ck --env A=1 --env B --env-file ../e --runs /r --network x y"
    converted = arguments(*words.split())
    assert converted == RunOptions(
        seed=7,
        data=(("a", "/b"),),
        checkpoints=(("ck", ""),),
        env=(("A", "1"), ("B", None)),
        env_file=tmp_path.parent / "e",
        runs=Path("/r"),
        network=True,
        output=True,
    )


def test_options_that_are_not_typed_have_the_defaults_of_a_run() -> None:
    assert arguments("x") == RunOptions(output=True)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("", "no command was given"),
        ("--json", "no command was given"),
        ("--seed -1 x", "--seed must be an integer between 0 and 4294967295"),
        ("--seed 4294967296 x", "--seed must be an integer between 0 and 4294967295"),
        ("--seed 1.5 x", "--seed must be an integer between 0 and 4294967295"),
        ("--seed ٣ x", "--seed must be an integer between 0 and 4294967295"),
        ("--runner k8s x", "repro-env exec: invalid value for '--runner': 'k8s' is not one of"),
        ("--data a:b x", '--data must be SRC[:DST] with an absolute DST (got "a:b")'),
        ("--data :/b x", '--data must be SRC[:DST] with an absolute DST (got ":/b")'),
        ("--seed -- x", "--seed must be an integer between 0 and 4294967295"),
        ("--gpus two x", '--gpus must be "all", "none", a number of GPUs, or a list of indices or UUIDs (got "two")'),
        ("--memory 1 x", "--memory must be a size of at least 4M"),
        ("--time soon x", "--time must be a duration"),
        ("--cpus 0 x", "repro-env exec: invalid value for '--cpus'"),
        ("--runs= x", "an option requires a path, but its value is empty"),
        ("--on= x", "--on must be one of slurm, kubernetes, gridengine"),
        ("--push= x", "'': this is neither an existing directory nor a repository of a registry"),
        ("--ranks none x", "repro-env exec: invalid value for '--ranks'"),
        ("--determinism on x", "repro-env exec: invalid value for '--determinism'"),
        ("--threads 0 x", "repro-env exec: invalid value for '--threads'"),
        ("--threads two x", "repro-env exec: invalid value for '--threads'"),
        ("--threads 5000 x", "repro-env exec: invalid value for '--threads'"),
    ],
)
def test_exec_refuses_an_invalid_value(words: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        app.run(["exec", *words.split()])
    assert str(caught.value).startswith(message)
    assert caught.value.hint


def test_the_largest_seed_is_accepted() -> None:
    assert arguments("--seed", "4294967295", "x").seed == 2**32 - 1


def test_an_existing_path_with_a_colon_is_not_split(tmp_path: Path) -> None:
    (tmp_path / "a:b").touch()
    assert parse_mount("--data", f"{tmp_path}/a:b") == (f"{tmp_path}/a:b", "")
    assert parse_mount("--data", f"{tmp_path}/a:b:/x") == (f"{tmp_path}/a:b", "/x")
    assert parse_mount("--data", "a:") == ("a", "")


def make_result(
    *,
    code: int = 0,
    signal: int = 0,
    out_of_memory: bool = False,
    outputs: int = 0,
    generators: tuple[str, ...] = (),
    runner: RunnerName = "embedded",
) -> FinishedRun:
    start = Start(
        schema="repro-env/run-start/1",
        id="01a1fd02-1a59-73ca-8e91-4a5fbfd6a4b6",
        started="2026-07-01T10:15:30.000Z",
        spec=DIGEST,
        image=DIGEST,
        runner=runner,
        command=("x",),
        cwd="/p",
        seed=0,
        source=SourceFact(path="/p", digest=DIGEST, directory="/p", differs=()),
        data=(),
        env_names=(),
        network=False,
        host=(),
    )
    end = End(
        schema="repro-env/run-end/1",
        id=start.id,
        ended="2026-07-01T10:15:31.000Z",
        seconds=1.25,
        outcome=Outcome(exit_code=code, signal=signal, out_of_memory=out_of_memory, isolation="embedded", methods=()),
        outputs=tuple(Output(path=f"{number}.pt", sha256=DIGEST, size=number * 1000) for number in range(outputs)),
        special_files=(),
        removed=(),
        auto_seeded=generators,
    )
    return FinishedRun(Path("/p/runs/x"), start, end)


class Messages(Silent):
    """Collects lines by their level."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.details: list[str] = []
        self.warnings: list[str] = []

    def __call__(self, text: str, /) -> None:
        self.lines.append(text)

    def detail(self, text: str, /) -> None:
        self.details.append(text)

    def warn(self, text: str, /) -> None:
        self.warnings.append(text)


def report(result: FinishedRun, runs: Path | None = None) -> Messages:
    messages = Messages()
    run.report_end(result, messages, runs=runs)
    return messages


def test_exec_reports_the_end_and_the_unseeded_generators_in_two_lines() -> None:
    of_script = ("numpy generator without a seed at /p/t.py:3", "random.Random without a seed at /p/t.py:4")
    generators = ("x at /v/site-packages/x.py:1", *of_script)
    messages = report(make_result(outputs=5, generators=generators))
    assert messages.lines == [
        "finished after 1.2 s; 5 outputs (10.0 kB) in /p/runs/x/files",
        "seeded automatically: 2 unseeded random generators (first: numpy generator without a seed at /p/t.py:3)",
    ]
    assert messages.details == [
        "largest outputs: 4.pt (4.0 kB), 3.pt (3.0 kB), 2.pt (2.0 kB)",
        "record: /p/runs/x",
        "next: repro-env runs get bfd6a4b6 --to DIR",
    ]
    assert not messages.warnings


@pytest.mark.parametrize(
    ("result", "text"),
    [
        (make_result(code=7), "exit code 7"),
        (make_result(code=137, signal=9), "ended by SIGKILL after"),
        (make_result(code=137, signal=9, out_of_memory=True), "ended by SIGKILL, out of memory"),
        (make_result(code=1, out_of_memory=True), "exit code 1, a process ran out of memory"),
        (make_result(code=162, signal=34), "ended by"),
    ],
)
def test_exec_reports_how_the_command_ended(result: FinishedRun, text: str) -> None:
    messages = report(result)
    assert text in messages.lines[0]
    assert messages.lines[0].endswith("; no outputs")
    assert messages.details[-1] == "next: repro-env runs show bfd6a4b6"


def test_exec_warns_about_files_that_are_not_in_the_record() -> None:
    """Symbolic links are in the record, so they cause no warning."""
    result = make_result()
    others = ("out/\ufffd.txt (its name has characters that no record holds)", "pipe (a pipe)", "link -> x")
    result = msgspec.structs.replace(result, end=msgspec.structs.replace(result.end, special_files=others))
    expected = (
        "in the run's directory, but not in its record: out/\ufffd.txt (its name has characters that no record holds) and 1 more"
    )
    assert report(result).warnings == [expected]


def test_exec_warns_about_an_empty_trace() -> None:
    plain = make_result()
    empty = msgspec.structs.replace(plain, start=msgspec.structs.replace(plain.start, trace=True))
    traced = msgspec.structs.replace(
        empty, end=msgspec.structs.replace(empty.end, trace=(Output(path="rank0.jsonl", sha256=DIGEST, size=1),))
    )
    assert report(empty).warnings == ["nothing was traced: no step of a torch optimizer was detected"]
    assert not report(plain).warnings
    assert not report(traced).warnings


def test_the_next_command_has_the_given_runs_option() -> None:
    assert report(make_result(), Path("/my runs")).details[-1] == "next: repro-env runs show bfd6a4b6 --runs '/my runs'"


@pytest.mark.parametrize("words", [["exec", "--help"], ["exec", "--network", "-h", "train.py"], ["-v", "exec", "--help"]])
def test_help_is_an_option_before_the_command(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert app.run(words) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("Usage: repro-env exec [OPTIONS] [--] COMMAND [ARGS]...\n")
    for option in ("-m ", "--data SRC[:DST]", "--ids system|seeded", "--json ", "-q, --quiet ", "-h, --help "):
        assert f"  {option}" in printed


def test_the_application_passes_the_command_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[tuple[str, ...]] = []

    def execute(options: dict[str, object], command: tuple[str, ...]) -> int:
        assert options["seed"] == 1
        commands.append(command)
        return 7

    monkeypatch.setattr(run, "run", execute)
    assert app.run(["exec", "--seed", "1", "-q", "--", "x", "--help", "--", "-v"]) == 7
    assert commands == [("x", "--help", "--", "-v")]
    assert say.Screen.level == "quiet"


def test_trace_is_an_option_without_a_value() -> None:
    for words, trace in ((("train.py",), False), (("--trace", "train.py"), True), (("train.py", "--trace"), False)):
        assert arguments(*words).trace is trace


def test_determinism_ranks_and_threads_have_defaults() -> None:
    names = ("ranks", "determinism", "ids", "threads")
    strict = arguments("--ranks", "same", "--determinism=strict", "--threads", "3", "x")
    assert [getattr(strict, name) for name in names] == ["same", "strict", None, 3]
    default = arguments("x")
    assert [getattr(default, name) for name in names] == ["each", "warn", None, None]


def test_parents_tags_and_the_note_are_arguments() -> None:
    annotated = arguments("--parent", "1f2e", "--tag", "a", "--tag", "b", "--note", "why", "x")
    assert list(annotated.parents) == ["1f2e"]
    assert (list(annotated.tags), annotated.note) == (["a", "b"], "why")
