"""Each rule has a project that breaks it and one that keeps it: through `check`, `exec` and `ci`."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from repro_env.api import execute as use_case
from repro_env.api.policy import find, judge, last_run
from repro_env.cli import app, ci
from repro_env.cli import exec as exec_command
from repro_env.environment.git import history
from repro_env.environment.source.data import look
from repro_env.policy.rules import RULES, parse
from repro_env.runs.records import records, verdicts
from repro_env.runs.start.request import RunOptions
from repro_env.schema import codec
from repro_env.schema.errors import PolicyError, UsageError
from repro_env.schema.run import Launch
from repro_env.schema.rundirectory import REPORTS_FILE
from repro_env.schema.spec import Data
from repro_env.specs.argument import open_spec
from tests.api.place import Fake, Place

VERDICT = {"level": "bitwise", "same": True, "failed": False, "ignored": 0}
SEEDED = '{"seeded": "repro_env", "what": "repro_env.seed", "value": "1", "purpose": "%s", "file": "/p/t.py", "line": 3}\n'
REPORT = '{"library": "numpy", "what": "generator without a seed", "file": "/p/t.py", "line": 3}\n'


def git(directory: Path, *words: str, author: str = "Ann") -> None:
    user = ["-c", f"user.name={author}", "-c", f"user.email={author.lower()}@example.com", "-c", "safe.directory=*"]
    subprocess.run(["git", *user, "-C", str(directory), *words], check=True, capture_output=True)


class Project(Place):
    """A project in a Git repository, whose commands are run without an image."""

    level = "bitwise"
    """Of a verification."""

    def __init__(self, root: Path, rules: str) -> None:
        super().__init__(root)
        self.write_spec()
        (self.project / "pyproject.toml").write_text(f"[tool.repro-env.policy]\n{rules}\n")
        (self.project / ".gitignore").write_text("runs/\n.venv/\nck/\nblobs/\n")
        git(self.project, "init", "-q", "-b", "main")
        self.commit()
        self.options: list[str] = []
        self.work: Callable[[Launch, Path], int] = lambda launch, directory: 0

    def write_spec(self) -> None:
        (self.directory / "spec.json").write_bytes(codec.pretty(self.spec))

    def commit(self, author: str = "Ann") -> None:
        git(self.project, "add", "-A")
        git(self.project, "commit", "-qm", "x", author=author)

    def accept(self, text: str, author: str = "Ann") -> None:
        (self.project / "repro-env.ignore").write_text(text)
        self.commit(author)

    def execute(self, opened: Any, command: Sequence[str], options: RunOptions, **_: Any) -> Any:
        options = options.with_command(command, self.project)
        return use_case.run(options, opened, store=self.store, tell=self, backend=Fake(self.work))

    def unseeded(self, launch: Launch, directory: Path) -> int:
        (Path(launch.reports) / REPORTS_FILE).write_text(REPORT)
        return 0

    def split(self, launch: Launch, directory: Path, purposes: str = "split") -> int:
        lines = [SEEDED % purpose for purpose in purposes.split()]
        (Path(launch.reports) / REPORTS_FILE).write_text("".join(lines))
        return 0

    def split_and_train(self, launch: Launch, directory: Path) -> int:
        return self.split(launch, directory, "split train")

    def measured(self, launch: Launch, directory: Path) -> int:
        (directory / "files" / "metrics.json").write_text('{"loss": 0.5}')
        return 0

    def checkpoint(self, *names: str) -> None:
        self.options += ["--checkpoints", str(self.project / "ck")]

        def work(launch: Launch, directory: Path) -> int:
            for name in names:
                (self.project / "ck" / name).mkdir()
                (self.project / "ck" / name / "w.pt").write_text("w")
            return 0

        self.work = work


class Case(NamedTuple):
    rule: str
    breaks: Callable[[Project], object]
    keeps: Callable[[Project], object]
    text: str
    """A part of the sentence."""
    file: str = "pyproject.toml"
    stage: str = "before"


def push(project: Project) -> None:
    git(project.project, "update-ref", "refs/remotes/origin/main", "HEAD")


def nothing(project: Project) -> None:
    """The project is as it is."""


def data(project: Project) -> Data:
    """Give the run data that the spec does not have."""
    images = project.project.parent / "images"
    images.write_text("x")
    project.options += ["--data", f"{images}:/data/images"]
    return look(images, "/data/images", project.store.hashes).data


def pin(project: Project) -> None:
    """Give the run data that the spec has."""
    project.spec = project.at(project.spec, data=(data(project),))
    project.write_spec()
    project.commit()


def attribute(project: Project, name: str, value: object) -> None:
    setattr(project, name, value)


CASES = [
    Case("clean-tree = true", lambda project: (project.project / "new.py").write_text(""), nothing, "not in a commit: new.py"),
    Case("pushed-commit = true", nothing, push, "no branch of a remote has the commit"),
    Case('determinism = "strict"', nothing, lambda project: project.options.append("--determinism=strict"), "is warn, and must be"),
    Case("data-digests = true", data, pin, "not in the spec with this digest: /data/images"),
    Case("data-digests = true", lambda project: project.options.append("--network"), pin, "what it downloads has no digest"),
    Case(
        'accept-by = ["ann@example.com"]',
        lambda project: project.accept("a.json:time\n", "Bob"), lambda project: project.accept("a.json:time\n"),
        "line 1 (a.json:time) was accepted by Bob bob@example.com", "repro-env.ignore",
    ),
    Case(
        'accept-by = ["Ann"]',
        lambda project: (project.project / "repro-env.ignore").write_text("a.log\n"), lambda project: project.accept("a.log\n"),
        "line 1 (a.log) is not in a commit that is here", "repro-env.ignore",
    ),
    Case(
        "note = true",
        lambda project: project.accept("# its own clock\na.json:time\nb.log\n"),
        lambda project: project.accept("# its own clock\na.json:time\n"),
        "without a comment on the line above: line 3 (b.log)", "repro-env.ignore",
    ),
    Case(
        "seeds = true", lambda project: attribute(project, "work", project.unseeded), nothing,
        "1 random generator without a seed: numpy generator without a seed at /p/t.py:3", stage="after",
    ),
    Case(
        'seeds = ["split", "train"]', lambda project: attribute(project, "work", project.split),
        lambda project: attribute(project, "work", project.split_and_train), "the script did not call repro_env.seed for: train",
        stage="after",
    ),
    Case(
        'checkpoints = {names = ["step-*"]}', lambda project: project.checkpoint("final"),
        lambda project: project.checkpoint("step-1", "step-2", "step-3"), "not named as step-*: final", stage="after",
    ),
    Case(
        "checkpoints = {most = 2}", lambda project: project.checkpoint("1", "2", "3"), lambda project: project.checkpoint("1", "2"),
        "the run kept 3 checkpoints, and may keep 2", stage="after",
    ),
    Case(
        'protocols = ["short"]\n[tool.repro-env.protocol.short]\ncommand = ["train.py"]\nmetrics = {loss = "< 1"}',
        nothing, lambda project: attribute(project, "work", project.measured),
        "short: the run has no metric loss (must be < 1)", stage="after",
    ),
    Case(
        'level = "equal except for"', lambda project: attribute(project, "level", "numeric"), nothing,
        "the last verification is numeric, and must be equal except for or better", stage="verified",
    ),
]  # fmt: skip
IDS = [f"{number}-{case.rule.partition(' ')[0]}" for number, case in enumerate(CASES)]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Project]:
    def made(rules: str) -> Project:
        project = Project(tmp_path, rules)
        monkeypatch.chdir(project.project)
        monkeypatch.setenv("REPRO_ENV_STORE", str(project.store.root))
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.setattr(exec_command, "execute", project.execute)
        return project

    return made


def run(project: Project, *options: str) -> int:
    return app.run(["exec", *project.options, *options, "train.py"])


def answer(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return found


def rule(case: Case) -> str:
    return case.rule.partition(" ")[0]


def test_every_rule_has_a_case() -> None:
    assert {rule(case) for case in CASES} == RULES.keys()


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_exec_runs_what_keeps_the_rules(case: Case, make: Callable[[str], Project], capsys: pytest.CaptureFixture[str]) -> None:
    project = make(case.rule)
    case.keeps(project)
    assert run(project) == 0
    assert "policy" not in capsys.readouterr().err


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_exec_refuses_or_reports_what_breaks_a_rule(
    case: Case, make: Callable[[str], Project], capsys: pytest.CaptureFixture[str]
) -> None:
    project = make(case.rule)
    case.breaks(project)
    if case.stage == "before":
        with pytest.raises(PolicyError, match="breaks the policy") as caught:
            run(project)
        ((name, file, text),) = caught.value.broken
        assert (name, file) == (rule(case), case.file)
        assert case.text in text
        assert project.runs == []
        assert run(project, f"--except={name}=a first try") == 0  # and the reason is noted
        assert any(f"exception to the rule {name}: a first try" in line for line in project.lines)
    elif case.stage == "after":
        assert run(project) == 1
        assert f"policy: {rule(case)}: {case.text}" in capsys.readouterr().err
    else:
        assert run(project) == 0


@pytest.mark.parametrize("case", CASES, ids=IDS)
@pytest.mark.parametrize("breaks", [True, False])
def test_check_judges_the_project_and_its_last_run(
    case: Case, breaks: bool, make: Callable[[str], Project], capsys: pytest.CaptureFixture[str]
) -> None:
    project = make("")
    (case.breaks if breaks else case.keeps)(project)
    assert run(project) == 0
    verdicts.write(project.runs[0], {**VERDICT, "level": project.level}, [])
    text = f"[tool.repro-env.policy]\n{case.rule}\n"
    (project.project / "pyproject.toml").write_text(text)
    if "tree" not in case.rule or not breaks:
        git(project.project, "add", "pyproject.toml", "repro")
        git(project.project, "commit", "-qm", "rules")
    if case.keeps is push and not breaks:
        push(project)
    capsys.readouterr()
    assert app.run(["check", "--policy", "--json"]) == breaks
    found = answer(capsys)
    (judged,) = found["judgements"]
    assert (judged["rule"], judged["file"], judged["state"]) == (rule(case), case.file, "broken" if breaks else "holds")
    assert found["score"]["holds"] == 1 - breaks
    assert (case.text.partition(" (")[0] in judged["text"]) == breaks
    assert app.run(["check", "--policy"]) == breaks
    assert ("policy broken: 0 of 1 rules hold" if breaks else "policy kept: 1 of 1 rules hold") in capsys.readouterr().out


@pytest.mark.parametrize("case", CASES, ids=IDS)
@pytest.mark.parametrize("breaks", [True, False])
def test_ci_enforces_the_rules_with_annotations(
    case: Case, breaks: bool, make: Callable[[str], Project], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    project = make(case.rule)
    (case.breaks if breaks else case.keeps)(project)
    real = app.run

    def commands(words: Sequence[str]) -> int:
        if words[0] == "check":
            return real(words)
        facts: dict[str, Any] = {**VERDICT, "level": project.level, "files": [], "sentence": "It is."}
        if words[0] == "verify":
            verdicts.write(project.runs[0], {name: facts[name] for name in VERDICT}, [])
        print(json.dumps(facts))
        return 0

    monkeypatch.setattr(app, "run", commands)
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_WORKSPACE", str(project.project))
    words = " ".join(["--runner=embedded", *project.options, "train.py"])
    sarif, junit = project.project.parent / "x.sarif", project.project.parent / "x.xml"
    code = real(["ci", "--no-check", "--verify", "--exec", words, "--sarif", str(sarif), "--junit", str(junit)])
    out = capsys.readouterr().out
    assert code == (0 if not breaks else 22 if case.stage == "before" else 1)
    lines = [line for line in out.splitlines() if line.startswith("::error")]
    assert bool(lines) == breaks
    assert [item["ruleId"] for item in json.loads(sarif.read_text())["runs"][0]["results"]] == ["policy"] * breaks
    assert ('type="policy"' in junit.read_text()) == breaks
    if breaks:
        assert lines[0].startswith(f"::error file={case.file},title=repro-env%3A policy::{rule(case)}: ")
        assert case.text in lines[0]
        assert f"The policy of the project is broken: {rule(case)}." in lines[-1]


def test_ci_without_a_command_judges_the_project_first(
    make: Callable[[str], Project], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    project = make("pushed-commit = true")
    monkeypatch.setattr(ci, "_answer", lambda *words: (_ for _ in ()).throw(AssertionError(words)) if words[0] != "check" else (1, {
        "broken": [{"rule": "pushed-commit", "file": "pyproject.toml", "text": "not pushed"}], "score": {"holds": 0, "rules": 1},
    }))  # fmt: skip
    assert app.run(["ci"]) == 1
    assert "policy: The policy of the project is broken: pushed-commit." in capsys.readouterr().out
    assert project.runs == []


def test_an_exception_is_a_note_of_the_run_and_is_listed(
    make: Callable[[str], Project], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    project = make("seeds = true\nnote = true")
    project.accept("# its own clock\na.json:time\n")
    project.work = project.unseeded
    assert run(project, "--except", "seeds=the augmentation is meant to vary") == 0
    assert "policy: seeds: " in capsys.readouterr().err
    page = tmp_path / "page.html"
    assert app.run(["check", "--policy", "--html", str(page)]) == 0
    out = capsys.readouterr().out
    assert "(exception: the augmentation is meant to vary)" in out
    assert "policy kept: 1 of 2 rules hold" in out
    assert "line 2 (a.json:time): its own clock" in out
    assert "the augmentation is meant to vary" in page.read_text()
    app.run(["check", "--policy", "--json"])
    found = answer(capsys)
    assert found["exceptions"] == {"seeds": "the augmentation is meant to vary"}
    assert found["score"]["unexplained"] == []
    assert project.runs[0].name.endswith(found["run"][-8:])
    assert app.run(["report", str(tmp_path / "site")]) == 0
    assert "policy kept" in (tmp_path / "site" / "index.html").read_text()


def test_the_score_names_what_is_not_explained(make: Callable[[str], Project], capsys: pytest.CaptureFixture[str]) -> None:
    project = make("seeds = true")
    project.accept("a.json:time\n")
    project.work = project.unseeded
    assert run(project, "--json") == 1
    assert [item["rule"] for item in answer(capsys)["policy"]] == ["seeds"]
    found = find(open_spec(None))
    assert found is not None
    assert judge(found, last_run(found.runs)).score.unexplained == (
        "generator without a seed: numpy generator without a seed at /p/t.py:3",
        "accepted without a note: line 1 (a.json:time)",
    )


def test_a_verification_is_not_judged_before_its_run(make: Callable[[str], Project]) -> None:
    project = make('level = "bitwise"')
    assert run(project) == 0
    found = find(open_spec(None))
    assert found is not None
    assert [judgement.text for judgement in judge(found, last_run(found.runs)).broken] == [
        "the run was not verified (repro-env verify)"
    ]
    assert judge(found, None).judgements == ()


@pytest.mark.parametrize(("option", "message"), [
    ("--except=sees=x", 'no rule "sees"'),
    ("--except=seeds", "must be RULE=REASON"),
    ("--except=seeds= ", "must be RULE=REASON"),
])  # fmt: skip
def test_an_exception_needs_a_rule_and_a_reason(make: Callable[[str], Project], option: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        run(make("seeds = true"), option)


def test_a_project_without_rules_has_no_policy(make: Callable[[str], Project]) -> None:
    project = make("seeds = false")
    for words in (["check", "--policy"], ["exec", "--except=seeds=x", "train.py"]):
        with pytest.raises(UsageError, match="the project has no policy"):
            app.run(words)
    assert run(project) == 0


@pytest.mark.parametrize(("table", "message", "hint"), [
    ({"clean-tre": True}, 'no rule "clean-tre"', "did you mean clean-tree?"),
    ({"clean-tree": "yes"}, "Expected `bool`", "All files of the project are in a commit"),
    ({"determinism": "stric"}, "Invalid enum value 'stric'", "lowest mode"),
    ({"checkpoints": {"least": 3}}, "unknown field `least`", "pattern"),
    ({"checkpoints": {"most": 0}}, "Expected `int` >= 1 - at `.most`", "pattern"),
    ({"accept-by": []}, "length >= 1", "authors"),
])  # fmt: skip
def test_an_invalid_rule_is_an_error(table: dict[str, object], message: str, hint: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        parse(table, "here")
    assert hint in caught.value.hint
    assert caught.value.where.startswith("here.")


def test_a_shallow_clone_does_not_know_the_authors_from_before_it(make: Callable[[str], Project], tmp_path: Path) -> None:
    project = make("note = true")
    project.accept("a.log\n", "Bob")
    project.accept("a.log\nb.log\n")
    assert history.authors(project.project / "repro-env.ignore") == {1: ("Bob", "bob@example.com"), 2: ("Ann", "ann@example.com")}
    git(tmp_path, "clone", "-q", "--depth=1", project.project.as_uri(), "clone")
    assert history.authors(tmp_path / "clone" / "repro-env.ignore") == {}


def test_a_shell_obeys_no_policy(make: Callable[[str], Project]) -> None:
    project = make("pushed-commit = true")
    done = project.run("bash", backend=Fake(), keeps_record=False)
    assert done.end.outcome.exit_code == 0


def test_a_problem_of_git_is_the_reason(make: Callable[[str], Project]) -> None:
    project = make("clean-tree = true")
    (project.project / ".git" / "HEAD").write_text("ref: refs/heads/none\n")
    with pytest.raises(PolicyError, match="HEAD names no commit"):
        run(project)


@pytest.mark.parametrize(
    ("text", "where", "hint"),
    [
        ("[tool.repro_env.policy]\nnote = true", "[tool.repro_env] is not read", "write [tool.repro-env]"),
        ("[tool.repro-env.polcy]\nnote = true", '"polcy"', "did you mean policy?"),
        ("[tool.repro-env.policy]\nlevel = 'equal'", "Invalid enum value 'equal'", "Choose from bitwise, equal except for"),
        ("[tool.repro-env.policy]\nlevel = ?\nnote = true", "(at line 2, column", "it must be a table of TOML"),
    ],
)
@pytest.mark.parametrize("words", [["check", "--policy"], ["ci", "--no-check"], ["exec", "train.py"]], ids=" ".join)
def test_a_misspelled_policy_is_refused(
    make: Callable[[str], Project], words: Sequence[str], text: str, where: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Or else a policy with a mistake would keep everything."""
    project = make("")
    (project.project / "pyproject.toml").write_text(text)
    if words[0] == "ci":
        assert app.run([*words]) == UsageError.exit_code
        error = capsys.readouterr().err
    else:
        with pytest.raises(UsageError) as caught:
            app.run([*words])
        error = f"{caught.value} {caught.value.hint}"
    assert where in error
    assert hint in error
    assert project.runs == []


def test_the_last_run_of_one_second_is_judged(make: Callable[[str], Project]) -> None:
    """The names of their directories differ only in random digits."""
    project = make("seeds = true")
    for _ in range(4):
        assert run(project) == 0
    runs = project.project / "runs"
    for directory in project.runs:
        records.point_latest(directory)
        found = last_run(runs)
        assert found is not None
        assert found.directory == directory
