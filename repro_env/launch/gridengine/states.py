"""The states of jobs, as `qstat` and `qacct` print them. Pure."""

from __future__ import annotations

import re
from typing import NamedTuple

from repro_env.launch.engine import Phase, State
from repro_env.schema.errors import RunError

_RAN = (0, 100)
"""Numbers of `failed` with which a job was started: it ended, or was killed."""


class Listed(NamedTuple):
    """A job that waits or runs."""

    name: str
    letters: str
    """`qw`, `r`, `Eqw` ..."""

    @property
    def is_running(self) -> bool:
        return bool(set(self.letters) & set("rtsST"))


def parse_jobs(text: str) -> dict[str, Listed]:
    """Parse what `qstat -xml` prints: the jobs by their numbers."""
    blocks = re.findall(r"<job_list\b.*?</job_list>", text, re.DOTALL)
    entries = [dict(re.findall(r"<(\w+)>([^<]*)</", block)) for block in blocks]
    return {entry["JB_job_number"]: Listed(entry["JB_name"], entry["state"]) for entry in entries}


def parse_reason(text: str) -> str:
    """Parse what `qstat -j` prints: why a job waits, or why it could not start; empty if it does not say so."""
    found = re.search(r"^error reason +\d+: +(?:\S+ \S+ \[[\d:]+\]: )?(?:error: )?(.*)", text, re.MULTILINE)
    found = found or re.search(r"^scheduling info: +(.*)", text, re.MULTILINE)
    return found[1].strip() if found else ""


def state_of(listed: Listed, reason: str, job: str) -> State:
    """Return the state of a job that waits or runs. `reason`: of one that waits."""
    letters, why = listed.letters, f" ({reason})" if reason else ""
    if "E" in letters:
        hint = f"correct this, then start the job with `qmod -cj {job}`, or delete it with `qdel {job}`"
        return State(phase="pending", text=f"could not start{why}", hint=hint, exit_code=RunError.exit_code)
    words = {"d": "being deleted", "s": "suspended", "S": "suspended", "T": "suspended", "h": "held"}
    phase: Phase = "running" if listed.is_running else "pending"
    text = next((word for letter, word in words.items() if letter in letters), phase)
    return State(phase=phase, text=f"{text}{why}")


def parse_accounting(text: str, suffix: str) -> State | None:
    """Parse what `qacct -j` prints, for a job whose name ends with `suffix`; None if it has no such job.

    Each start of a job has an entry, the last one at the end.
    """
    for block in reversed(re.split(r"^=+$", text, flags=re.MULTILINE)):
        fields = {line.split()[0]: line.split(maxsplit=1)[1].strip() for line in block.splitlines() if len(line.split()) > 1}
        if not fields.get("jobname", "").endswith(suffix):
            continue
        number, _, why = fields.get("failed", "0").partition(":")
        code = int(fields.get("exit_status", "1").split()[0])
        if int(number) not in _RAN and not code:
            code = RunError.exit_code
        text = ("failed" if code else "completed") + (f" ({why.strip()})" if why else "")
        return State(phase="ended", text=text, exit_code=code)
    return None
