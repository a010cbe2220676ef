from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from repro_env.cli import exec as run
from repro_env.flows.execute import Done
from repro_env.model.errors import UsageError
from repro_env.model.run import End, Outcome, Output, RunnerName, SourceFact, Start
from repro_env.model.talk import Silent

DIGEST = "sha256:" + "0" * 64


@pytest.mark.parametrize(
    ("words", "options", "command"),
    [
        ("train.py --lr 0.1", [], "train.py --lr 0.1"),
        ("--seed 7 train.py --seed 8", [("--seed", "7")], "train.py --seed 8"),
        ("--seed=7 train.py --help", [("--seed", "7")], "train.py --help"),
        ("-- train.py -- x", [], "train.py -- x"),
        ("train.py -- x", [], "train.py -- x"),
        ("--network -- --weird --json", [("--network", "")], "--weird --json"),
        ("-- -- x", [], "-- x"),
        ("-m pkg.mod --json", [], "-m pkg.mod --json"),
        ("--json -m pkg.mod -h", [("--json", "")], "-m pkg.mod -h"),
        ("-c pass", [], "-c pass"),
        ("torchrun --nproc-per-node 2 train.py", [], "torchrun --nproc-per-node 2 train.py"),
        ("--data a --data b:/c x", [("--data", "a"), ("--data", "b:/c")], "x"),
        ("--env A=--x=1 x", [("--env", "A=--x=1")], "x"),
        ("--env=A=b=c x", [("--env", "A=b=c")], "x"),
        ("--seed random x", [("--seed", "random")], "x"),
        ("--runner host --frozen --data-changed x", [("--runner", "host"), ("--frozen", ""), ("--data-changed", "")], "x"),
        ("--save -x y", [("--save", "-x")], "y"),
        ("- x", [], "- x"),
        ("--help", [("--help", "")], ""),
        ("-h x", [("-h", "")], "x"),
        ("--", [], ""),
        ("", [], ""),
    ],
)
def test_our_options_end_at_the_first_word_that_is_not_one(words: str, options: list[tuple[str, str]], command: str) -> None:
    parsed = run.split(words.split())
    assert (list(parsed.options), list(parsed.command)) == (options, command.split())


@given(st.lists(st.text()), st.sampled_from(["train.py", "-m", "-c", "true", "./x"]))
def test_what_follows_the_first_word_is_never_touched(rest: list[str], first: str) -> None:
    assert run.split([first, *rest]).command == (first, *rest)
    assert run.split(["--", *rest]).command == tuple(rest)
    assert run.split(["--seed", "1", "--", *rest]).command == tuple(rest)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--sed 3 x", "did you mean --seed"),
        ("-x train.py", "put it after the command"),
        ("-u train.py", "goes after --"),
        ("--lr=1 train.py", "put it after the command"),
        ("--seed", "shows them all"),
        ("--seed -- x", "shows them all"),
        ("--spec --json x", "shows them all"),
        ("--json=1 x", "say --json alone"),
        ("--seed 1 --seed 2 x", "say it once"),
    ],
)
def test_a_wrong_option_says_what_to_do(words: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        run.split(words.split())
    assert said in caught.value.hint


def asked(words: str, here: Path = Path("/here")) -> object:
    return run.request(run.split(words.split()), here=here, environ={})


def test_options_become_a_request(tmp_path: Path) -> None:
    words = "--seed 7 --data a:/b --checkpoints ck --env A=1 --env B --save out --record ../r.json --runs /r --network x y"
    request = run.request(
        run.split(words.split()),
        here=tmp_path,
        environ={"B": "2"},
    )
    assert request.command == ("x", "y")
    assert request.seed == 7
    assert request.data == (("a", "/b"),)
    assert request.checkpoints == (("ck", ""),)
    assert request.env == (("A", "1"), ("B", None))
    assert (request.save, request.record, request.runs) == (tmp_path / "out", tmp_path.parent / "r.json", Path("/r"))
    assert (request.network, request.frozen, request.runner) == (True, False, "embedded")


@pytest.mark.parametrize(
    ("words", "where"),
    [
        ("", "repro-env exec"),
        ("--json", "repro-env exec"),
        ("--seed -1 x", "--seed"),
        ("--seed 4294967296 x", "--seed"),
        ("--seed 1.5 x", "--seed"),
        ("--seed ٣ x", "--seed"),
        ("--runner k8s x", "--runner"),
        ("--data a:b x", "--data a:b"),
        ("--data :/b x", "--data :/b"),
        ("--save= x", "--save"),
    ],
)
def test_a_value_that_cannot_be_is_refused(words: str, where: str) -> None:
    with pytest.raises(UsageError) as caught:
        asked(words)
    assert caught.value.where == where
    assert caught.value.hint


def test_the_largest_seed_is_one(tmp_path: Path) -> None:
    assert run.request(run.split(["--seed", "4294967295", "x"]), here=tmp_path, environ={}).seed == 2**32 - 1


def test_a_path_with_a_colon_that_is_there_is_one_path(tmp_path: Path) -> None:
    (tmp_path / "a:b").touch()
    assert run.mount(f"{tmp_path}/a:b", "--data") == (f"{tmp_path}/a:b", "")
    assert run.mount(f"{tmp_path}/a:b:/x", "--data") == (f"{tmp_path}/a:b", "/x")
    assert run.mount("a:", "--data") == ("a", "")


def done(
    *,
    code: int = 0,
    signal: int = 0,
    starved: bool = False,
    outputs: int = 0,
    holes: tuple[str, ...] = (),
    runner: RunnerName = "embedded",
) -> Done:
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
        given=(),
        network=False,
        host=(),
    )
    end = End(
        schema="repro-env/run-end/1",
        id=start.id,
        ended="2026-07-01T10:15:31.000Z",
        seconds=1.25,
        outcome=Outcome(exit_code=code, signal=signal, out_of_memory=starved, isolation="embedded", means=()),
        outputs=tuple(Output(path=f"{number}.pt", sha256=DIGEST, size=number * 1000) for number in range(outputs)),
        others=(),
        removed=(),
        holes=holes,
    )
    return Done(Path("/p/runs/x"), start, end)


class Said(Silent):
    """Lines by their level."""

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


def closing(ended: Done, runs: str = "") -> Said:
    said = Said()
    run.close(ended, said, runs=runs)
    return said


def test_the_end_is_one_line_and_another_for_what_had_no_seed() -> None:
    own = ("numpy generator without a seed at /p/t.py:3", "random.Random without a seed at /p/t.py:4")
    holes = ("x at /v/site-packages/x.py:1", *own)
    said = closing(done(outputs=5, holes=holes))
    assert said.lines == [
        "finished after 1.2 s; 5 outputs (10.0 kB) in /p/runs/x/files",
        "seeded automatically: 2 unseeded random generators (first: numpy generator without a seed at /p/t.py:3)",
    ]
    assert said.details == [
        "largest outputs: 4.pt (4.0 kB), 3.pt (3.0 kB), 2.pt (2.0 kB)",
        "record: /p/runs/x",
        "next: repro-env runs get bfd6a4b6 --to DIR",
    ]
    assert not said.warnings


@pytest.mark.parametrize(
    ("how", "said"),
    [
        (done(code=7), "exit code 7"),
        (done(code=137, signal=9), "ended by SIGKILL after"),
        (done(code=137, signal=9, starved=True), "ended by SIGKILL, out of memory"),
        (done(code=1, starved=True), "exit code 1, something in it ran out of memory"),
        (done(code=162, signal=34), "ended by"),
    ],
)
def test_every_way_to_end_is_reported(how: Done, said: str) -> None:
    closed = closing(how)
    assert said in closed.lines[0]
    assert closed.lines[0].endswith("; no outputs")
    assert closing(done(runner="host")).lines[0].endswith("no outputs in /p (files elsewhere are not looked for on the host)")
    assert closed.details[-1] == "next: repro-env runs show bfd6a4b6"


def test_files_that_no_record_holds_are_a_warning() -> None:
    """Their names hold what a record cannot; a link is held as one."""
    ended = done()
    others = ("out/\ufffd.txt (its name has characters that no record holds)", "pipe (a pipe)", "link -> x")
    ended = msgspec.structs.replace(ended, end=msgspec.structs.replace(ended.end, others=others))
    expected = (
        "in the run's directory, but not in its record: out/\ufffd.txt (its name has characters that no record holds) and 1 more"
    )
    assert closing(ended).warnings == [expected]


def test_a_requested_trace_that_is_empty_is_a_warning() -> None:
    plain = done()
    asked = msgspec.structs.replace(plain, start=msgspec.structs.replace(plain.start, trace=0))
    traced = msgspec.structs.replace(
        asked, end=msgspec.structs.replace(asked.end, trace=(Output(path="rank0.jsonl", sha256=DIGEST, size=1),))
    )
    assert closing(asked).warnings == ["nothing was traced: the hooks saw no step of a torch optimizer"]
    assert not [closing(one).warnings for one in (plain, traced) if closing(one).warnings]


def test_the_next_command_looks_where_the_run_is() -> None:
    assert closing(done(), "/my runs").details[-1] == "next: repro-env runs show bfd6a4b6 --runs '/my runs'"


def test_help_names_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert run.main(["--help"]) == 0
    printed = capsys.readouterr().out
    for option in run._VALUES | run._FLAGS:
        assert option in printed


@pytest.mark.parametrize("words", [["exec", "--help"], ["exec", "--network", "-h"]])
def test_the_command_gets_its_words_through_the_application(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    from repro_env.cli import app

    assert app.run(words) == 0
    assert capsys.readouterr().out.split() == run.HELP.split()


def test_words_pass_the_application_untouched(monkeypatch: pytest.MonkeyPatch) -> None:
    from repro_env.cli import app

    seen: list[list[str]] = []

    def main(words: list[str]) -> int:
        seen.append(words)
        return 7

    monkeypatch.setattr(run, "main", main)
    words = ["--seed", "1", "--", "x", "--help", "--", "-v"]
    assert app.run(["exec", *words]) == 7
    assert seen == [words]


def test_a_trace_with_and_without_its_steps() -> None:
    for words, trace in ((("train.py",), None), (("--trace", "train.py"), 0), (("--trace=64", "train.py"), 64)):
        assert run.request(run.split(words), here=Path("/p"), environ={}).trace == trace
    for word in ("--trace=", "--trace=0", "--trace=x", "--trace=-1"):
        with pytest.raises(UsageError):
            run.request(run.split((word, "train.py")), here=Path("/p"), environ={})


def test_modes_ranks_and_threads() -> None:
    asked = run.request(
        run.split(("--ranks", "same", "--determinism=strict", "--threads", "3", "x")), here=Path("/p"), environ={}
    )
    assert (asked.ranks, asked.determinism, asked.threads) == ("same", "strict", 3)
    plain = run.request(run.split(("x",)), here=Path("/p"), environ={})
    assert (plain.ranks, plain.determinism, plain.threads) == ("each", "warn", None)
    for words in (("--ranks", "none"), ("--determinism", "on"), ("--threads", "0"), ("--threads", "two"), ("--threads", "5000")):
        with pytest.raises(UsageError):
            run.request(run.split((*words, "x")), here=Path("/p"), environ={})


def test_what_is_said_of_a_run() -> None:
    words = ("--recipe", "a.yaml", "--recipe", "b.yaml", "--parent", "1f2e", "--tag", "one", "--tag", "two", "--note", "why", "x")
    asked = run.request(run.split(words), here=Path("/p"), environ={})
    assert (asked.recipe, asked.parents, asked.tags, asked.note) == (("a.yaml", "b.yaml"), ("1f2e",), ("one", "two"), "why")
