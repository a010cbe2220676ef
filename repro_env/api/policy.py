"""Judge a project and its runs by its policy: `[tool.repro-env.policy]` in the nearest `pyproject.toml`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from repro_env.api import protocols
from repro_env.compare.outputs import ignorefile
from repro_env.environment.git import history, repository
from repro_env.environment.git.repository import Answer
from repro_env.io import pyproject
from repro_env.policy import judge as judging
from repro_env.policy.defaults import POLICY, unknown
from repro_env.policy.due import TABLES
from repro_env.policy.facts import Accepted, Facts
from repro_env.policy.judge import Judgement, Score
from repro_env.policy.protocol import Evaluation
from repro_env.policy.rules import RULES, STAGES, Protocols, Rule, Stage, parse
from repro_env.runs.records import annotation, checkpointstate, records, verdicts
from repro_env.runs.records.records import Run
from repro_env.runs.start.request import RunOptions
from repro_env.schema.errors import PolicyError, UsageError
from repro_env.schema.progress import Tell
from repro_env.schema.run import Start
from repro_env.schema.rundirectory import CHECKPOINTS_AFTER
from repro_env.schema.spec import Spec
from repro_env.specs.argument import Opened, current_directory, project_of
from repro_env.store.specs.lookup import runs_directory
from repro_env.store.store import Store


class Policy(msgspec.Struct, frozen=True):
    """The rules of a project."""

    rules: tuple[Rule, ...]
    path: Path
    """The file that has them."""
    project: Path
    """The directory of the project."""
    spec: Spec
    runs: Path
    """The directory of its runs."""

    def facts(self, *, start: Start | None = None, run: Run | None = None) -> Facts:
        """Read what the rules need: the state of the project, and a run that starts, or a recorded one."""
        names = {rule.name for rule in self.rules}
        file = ignorefile.project(self.runs, self.project / "repro") / ignorefile.NAME
        authors = history.authors(file) if "accept-by" in names else {}
        entries = ignorefile.entries(file.parent)
        answer = repository.look(self.project, never=[self.runs]) if names & {"clean-tree", "pushed-commit"} else Answer()
        return Facts(
            git=answer.git,
            git_problem=answer.problem,
            is_pushed="pushed-commit" in names and history.is_pushed(self.project),
            accepted=tuple(Accepted(entry=entry, authors=authors.get(entry.line, ())) for entry in entries),
            pinned={data.path: data.digest for data in self.spec.observed.data},
            start=start if run is None else run.start,
            end=None if run is None else run.end,
            checkpoints=_checkpoints(run) if run is not None else (),
            verdict=verdicts.last(run.directory) if run is not None else None,
            evaluations=_evaluations(self.project, run) if run is not None and Protocols.name in names else {},
        )


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """A project, or a project with its run, judged by its policy."""

    policy: Path
    """The file with the rules."""
    run: str
    """The ID of the run; empty if only the project was judged."""
    judgements: tuple[Judgement, ...]
    exceptions: Mapping[str, str]
    """The reasons for the exceptions of the run, by rule."""
    score: Score

    @property
    def good(self) -> bool:
        """Whether no rule is broken without an exception."""
        return not self.broken

    @property
    def broken(self) -> tuple[Judgement, ...]:
        """The rules that are broken without an exception."""
        return tuple(judgement for judgement in self.judgements if judgement.state == "broken")


def find(opened: Opened, *, source: Path | None = None, runs: Path | None = None) -> Policy | None:
    """Return the policy of the project that a spec belongs to; None if it has none. Raises `UsageError` for an invalid one.

    The project is in `source`, or else as `project_of`.
    """
    runs = runs or opened.runs or runs_directory(opened.directory)
    project = source or project_of(opened)
    tables, path = pyproject.read(project)
    for name in (name for name, value in tables.items() if isinstance(value, dict) and name not in TABLES):
        raise unknown(name, f"{path}: {pyproject.TABLE}.{name}", "table", TABLES)
    where, table = f"{path}: {pyproject.TABLE}.{POLICY}", tables.get(POLICY, {})
    if not isinstance(table, dict):
        raise UsageError("this is not a table of rules", where=where, hint=f"write them below [{pyproject.TABLE}.{POLICY}]")
    rules = parse(table, where)
    return Policy(rules, path, project, opened.spec, runs) if rules else None


def require(options: RunOptions, opened: Opened, start: Start, tell: Tell) -> None:
    """Raise `PolicyError` if a run that is about to start breaks a rule. Raises `UsageError` for an exception to no rule."""
    policy = find(opened, source=options.source, runs=options.runs)
    reasons = {rule.strip(): reason.strip() for rule, _, reason in (text.partition("=") for text in options.exceptions)}
    for rule in reasons:
        if rule not in RULES:
            raise unknown(rule, "--except", "rule", [*RULES])
    if policy is None:
        if reasons:
            hint = f"leave out --except, or add rules to [{pyproject.TABLE}.{POLICY}] of its pyproject.toml"
            raise UsageError("the project has no policy", where="--except", hint=hint)
        return
    judgements = judging.judge(policy.rules, policy.facts(start=start), reasons, ("project", "start"))
    for judgement in judgements:
        if judgement.state == "excepted":
            tell(f"exception to the rule {judgement.rule}: {judgement.reason} ({judgement.text})")
    if broken := [judgement for judgement in judgements if judgement.state == "broken"]:
        raise error(policy, broken, f"correct this, or give a reason: --except '{broken[0].rule}=REASON'")


def error(policy: Policy, broken: Sequence[Judgement], hint: str) -> PolicyError:
    """Return the error for a run that breaks rules."""
    return PolicyError(
        "the run breaks the policy: " + "; ".join(f"{judgement.rule}: {judgement.text}" for judgement in broken),
        where=str(policy.path),
        hint=hint,
        broken=tuple((judgement.rule, judgement.file, judgement.text) for judgement in broken),
    )


def judge(policy: Policy, run: Run | None, stages: Sequence[Stage] = STAGES) -> Judged:
    """Judge a project and a run. Without a run, or the end of one, rules about it are left out. Raises if its files are damaged."""
    known = ("project",) if run is None else ("project", "start") if run.end is None else stages
    facts = policy.facts(run=run)
    exceptions = annotation.exceptions(annotation.of(run.directory)) if run is not None else {}
    judgements = judging.judge(policy.rules, facts, exceptions, [stage for stage in stages if stage in known])
    return Judged(
        policy=policy.path,
        run=run.id if run is not None else "",
        judgements=judgements,
        exceptions=exceptions,
        score=judging.score(judgements, facts, exceptions),
    )


def last_run(runs: Path) -> Run | None:
    """Return the run `latest`; None without runs. Names of directories do not order the runs of one second. Raises if it cannot be read."""
    return records.read(records.find(runs, records.LATEST)) if records.directories(runs) else None


def _evaluations(project: Path, run: Run) -> dict[str, Evaluation]:
    """Judge a run by the protocols of the project."""
    found = protocols.evaluate(run, protocols.find(project), current_directory(), Store.open())
    return {evaluation.protocol: evaluation for evaluation in found}


def _checkpoints(run: Run) -> tuple[str, ...]:
    """Return the names of what is directly in the directories of `--checkpoints` after a run."""
    after = run.end.checkpoints_after if run.end is not None else None
    listing = checkpointstate.read(run.directory, CHECKPOINTS_AFTER, after)
    paths = [entry.path for entry in listing.files] + [link.path for link in listing.links] if listing is not None else []
    return tuple(sorted({path.partition("/")[0] for path in paths} - {""}))
