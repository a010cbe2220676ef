"""Judge a project and its run by the rules, and give a score with its reasons."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from repro_env.policy.facts import Facts
from repro_env.policy.rules import Rule, Stage
from repro_env.schema.codec import Frozen


class Judgement(Frozen, frozen=True, kw_only=True):
    rule: str
    file: str
    """The name of the file that it is about."""
    state: Literal["holds", "broken", "excepted"]
    text: str = ""
    """How the rule is broken."""
    reason: str = ""
    """Of the exception."""


class Score(Frozen, frozen=True, kw_only=True):
    holds: int
    rules: int
    documented: tuple[str, ...]
    """The reasons for exceptions and accepted differences."""
    unexplained: tuple[str, ...]
    """What is nondeterministic, or accepted, without a reason."""


def judge(rules: Iterable[Rule], facts: Facts, exceptions: Mapping[str, str], stages: Sequence[Stage]) -> tuple[Judgement, ...]:
    """Judge by the rules of some stages. `exceptions`: the reasons by rule."""
    return tuple(_judge(rule, facts, exceptions.get(rule.name, "")) for rule in rules if rule.stage in stages)


def _judge(rule: Rule, facts: Facts, reason: str) -> Judgement:
    text = rule.judge(facts)
    state: Literal["holds", "broken", "excepted"] = "holds" if not text else "excepted" if reason else "broken"
    return Judgement(rule=rule.name, file=rule.file, state=state, text=text, reason=reason if text else "")


def score(judgements: Sequence[Judgement], facts: Facts, exceptions: Mapping[str, str]) -> Score:
    """Return how many rules hold, and what has a reason and what has none."""
    noted = [accepted for accepted in facts.accepted if accepted.entry.note]
    unexplained = {
        "seeds": [f"generator without a seed: {text}" for text in facts.unseeded],
        "determinism": [f"not deterministic: {text}" for text in facts.nondeterministic],
        "note": [f"accepted without a note: {accepted.shown}" for accepted in facts.accepted if accepted not in noted],
    }
    return Score(
        holds=sum(judgement.state == "holds" for judgement in judgements),
        rules=len(judgements),
        documented=(
            *(f"{rule}: {reason}" for rule, reason in exceptions.items()),
            *(f"{accepted.shown}: {accepted.entry.note}" for accepted in noted),
        ),
        unexplained=tuple(text for rule, texts in unexplained.items() if rule not in exceptions for text in texts),
    )
