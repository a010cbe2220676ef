"""The rules by name. Each has a type of its own, whose value is that of its key in `[tool.repro-env.policy]`."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Annotated, ClassVar, Literal, get_args, get_type_hints

import msgspec
from msgspec import Meta

from repro_env.compare.outputs.comparison import HEIGHT, Sameness
from repro_env.compare.outputs.ignorefile import NAME as IGNORE_FILE
from repro_env.io.pyproject import NAME as PROJECT_FILE
from repro_env.policy.defaults import unknown
from repro_env.policy.facts import Facts
from repro_env.schema import redact
from repro_env.schema.codec import Frozen
from repro_env.schema.errors import UsageError
from repro_env.schema.messages import plural, shorten
from repro_env.schema.run import Mode

Stage = Literal["project", "start", "end", "verdict"]
"""What a rule judges: the project before a run, what is decided when a run starts, how it ended, or its verification."""
STAGES: tuple[Stage, ...] = get_args(Stage)
_NO_RUN = "the project has no run"
_NO_COMMIT = "the project is not in a Git repository with a commit"
_MODES: tuple[Mode, ...] = get_args(Mode)


class Rule(Frozen, frozen=True):
    name: ClassVar[str]
    stage: ClassVar[Stage]
    file: ClassVar[str] = PROJECT_FILE
    """The file that an error about it names."""

    def judge(self, facts: Facts) -> str:
        """Return how the rule is broken, as a sentence; empty if it holds. `facts` has what its stage needs."""
        raise NotImplementedError


class CleanTree(Rule, frozen=True):
    """All files of the project are in a commit."""

    value: bool
    name = "clean-tree"
    stage = "project"

    def judge(self, facts: Facts) -> str:
        """Return whether files differ from the commit, or are in none."""
        if facts.git is None:
            return facts.git_problem or _NO_COMMIT
        if facts.git.untracked:
            return f"not in a commit: {shorten(facts.git.untracked)}"
        return "files of the project differ from the commit" if facts.git.dirty else ""


class PushedCommit(Rule, frozen=True):
    """The commit is on a branch of a remote, as Git knew it last."""

    value: bool
    name = "pushed-commit"
    stage = "project"

    def judge(self, facts: Facts) -> str:
        """Return that the commit was not pushed."""
        if facts.git is None:
            return facts.git_problem or _NO_COMMIT
        return "" if facts.is_pushed else f"no branch of a remote has the commit {facts.git.commit[:12]}"


class Determinism(Rule, frozen=True):
    """The lowest mode of `--determinism`."""

    value: Mode
    name = "determinism"
    stage = "start"

    def judge(self, facts: Facts) -> str:
        """Return that the mode is lower."""
        if facts.start is None:
            return _NO_RUN
        mode = facts.start.determinism
        return (
            ""
            if _MODES.index(mode) >= _MODES.index(self.value)
            else f"--determinism is {mode}, and must be {self.value} or higher"
        )


class Seeds(Rule, frozen=True):
    """The script seeds every random generator that it uses; a list: with `repro_env.seed` for at least these purposes."""

    value: bool | Annotated[tuple[str, ...], Meta(min_length=1)]
    name = "seeds"
    stage = "end"

    def judge(self, facts: Facts) -> str:
        """Return the generators without a seed, or the purposes without one."""
        if found := facts.unseeded:
            return f"{plural(len(found), 'random generator')} without a seed: {shorten(found, 1)}"
        wanted = self.value if isinstance(self.value, tuple) else ()
        missing = [purpose for purpose in wanted if purpose not in facts.purposes]
        return f"the script did not call repro_env.seed for: {shorten(missing)}" if missing else ""


class DataDigests(Rule, frozen=True):
    """The spec has the digest of all data."""

    value: bool
    name = "data-digests"
    stage = "start"

    def judge(self, facts: Facts) -> str:
        """Return the data that the spec does not have with this digest, or that the run can download."""
        start = facts.start
        if start is None:
            return _NO_RUN
        data = [fact for fact in start.data if fact.kind == "data"]
        found = [fact.target for fact in data if fact.digest is None or facts.pinned.get(fact.target) != fact.digest]
        if found:
            return f"not in the spec with this digest: {shorten(found)}"
        return "the run has a network, and what it downloads has no digest" if start.network else ""


class CheckpointNames(Frozen, frozen=True, kw_only=True):
    names: Annotated[tuple[str, ...], Meta(min_length=1)] = ("*",)
    """Patterns."""
    most: Annotated[int, Meta(ge=1)] | None = None
    """How many the run keeps; None for any number."""


class Checkpoints(Rule, frozen=True):
    """Each checkpoint has a name of a pattern, and the run keeps at most so many."""

    value: CheckpointNames
    name = "checkpoints"
    stage = "end"

    def judge(self, facts: Facts) -> str:
        """Return the names that no pattern matches, or that there are too many."""
        wrong = [name for name in facts.checkpoints if not any(fnmatchcase(name, pattern) for pattern in self.value.names)]
        if wrong:
            return f"not named as {', '.join(self.value.names)}: {shorten(wrong)}"
        count = len(facts.checkpoints)
        too_many = self.value.most is not None and count > self.value.most
        return f"the run kept {plural(count, 'checkpoint')}, and may keep {self.value.most}" if too_many else ""


class Level(Rule, frozen=True):
    """The lowest verdict of the last verification."""

    value: Sameness
    name = "level"
    stage = "verdict"

    def judge(self, facts: Facts) -> str:
        """Return that the run was not verified, or that its level is lower."""
        if facts.verdict is None:
            return "the run was not verified (repro-env verify)"
        level = facts.verdict.level
        if level in HEIGHT and HEIGHT[level] <= HEIGHT[self.value]:
            return ""
        return f"the last verification is {level}, and must be {self.value} or better"


class AcceptBy(Rule, frozen=True):
    """Only these authors of commits, by name or address, accept differences in `repro-env.ignore`."""

    value: Annotated[tuple[str, ...], Meta(min_length=1)]
    name = "accept-by"
    stage = "project"
    file = IGNORE_FILE

    def judge(self, facts: Facts) -> str:
        """Return the first line that another author accepted, or that is in no commit."""
        for accepted in facts.accepted:
            if not accepted.authors:
                return f"{accepted.shown} is not in a commit that is here (commit it, or fetch the complete history)"
            if not set(accepted.authors) & set(self.value):
                return f"{accepted.shown} was accepted by {' '.join(accepted.authors)}"
        return ""


class Note(Rule, frozen=True):
    """Each line of `repro-env.ignore` has a comment on the line above. An exception of a run always has its reason."""

    value: bool
    name = "note"
    stage = "project"
    file = IGNORE_FILE

    def judge(self, facts: Facts) -> str:
        """Return the lines without a comment."""
        found = [accepted.shown for accepted in facts.accepted if not accepted.entry.note]
        return f"without a comment on the line above: {shorten(found)}" if found else ""


class Protocols(Rule, frozen=True):
    """The run meets these validation protocols: command, data, code and metrics are as required."""

    value: Annotated[tuple[str, ...], Meta(min_length=1)]
    name = "protocols"
    stage = "end"

    def judge(self, facts: Facts) -> str:
        """Return how the run departs from a protocol, or which metric is not as required."""
        for name in self.value:
            evaluation = facts.evaluations.get(name)
            if evaluation is None:
                return f"the project has no protocol {name}"
            if evaluation.problem:
                return f"{name}: {evaluation.problem}"
        return ""


RULES: dict[str, type[Rule]] = {rule.name: rule for rule in Rule.__subclasses__()}


def parse(table: Mapping[str, object], where: str) -> tuple[Rule, ...]:
    """Return the rules of a table; those with the value false are left out. Raises `UsageError`. `where`: the table."""
    rules = []
    for name, value in table.items():
        place = f"{where}.{redact.line(name)}"
        if name not in RULES:
            raise unknown(name, place, "rule", [*RULES])
        if value is False:
            continue
        try:
            rules.append(msgspec.convert({"value": value}, RULES[name]))
        except msgspec.ValidationError as error:
            what = str(error).replace(" - at `$.value", " - at `").removesuffix(" - at ``")
            hint = f"the rule: {RULES[name].__doc__}"
            if choices := get_args(get_type_hints(RULES[name])["value"]) if "enum" in what else ():
                hint += f" Choose from {', '.join(choices)}"
            raise UsageError(f"invalid value: {redact.line(what)}", where=place, hint=hint) from None
    return tuple(sorted(rules, key=lambda rule: STAGES.index(rule.stage)))
