"""The judgements of a policy, and its score, as a part of a page."""

from __future__ import annotations

from repro_env.api.policy import Judged
from repro_env.cli.ui.page import Page
from repro_env.runs.records.ids import short

EXAMPLE = "for example clean-tree = true in [tool.repro-env.policy] of pyproject.toml"


def show(page: Page, judged: Judged) -> None:
    """Add the verdict, a row for each rule, and the score with its reasons."""
    score, broken = judged.score, judged.broken
    about = f"{score.holds} of {score.rules} rules hold"
    page.verdict("policy broken" if broken else "policy kept", about, "red" if broken else "green")
    page.row("rules", str(judged.policy), indent=0)
    page.row("run", short(judged.run) if judged.run else "none: only the project was judged", indent=0)
    page.table(
        [
            (judgement.rule, judgement.state, judgement.text + (f" (exception: {judgement.reason})" if judgement.reason else ""))
            for judgement in judged.judgements
        ],
        header=("RULE", "STATE", "WHY"),
    )
    for title, texts in (("documented", score.documented), ("not explained", score.unexplained)):
        page.heading(title, str(len(texts)))
        page.table([(text,) for text in texts])
