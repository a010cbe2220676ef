"""What the rules of a policy judge: the state of the project, and a run."""

from __future__ import annotations

from collections.abc import Mapping

from repro_env.compare.outputs.ignorefile import Entry
from repro_env.policy.protocol import Evaluation
from repro_env.runs.records.verdicts import Last
from repro_env.schema.codec import Frozen
from repro_env.schema.environment import Git
from repro_env.schema.messages import plural
from repro_env.schema.run import UNSEEDED, End, Start


class Accepted(Frozen, frozen=True, kw_only=True):
    """A difference that the project accepts: a line of `repro-env.ignore`."""

    entry: Entry
    authors: tuple[str, ...] = ()
    """The name and the address of the author of its commit; none if it is not in a commit."""

    @property
    def shown(self) -> str:
        return f"line {self.entry.line} ({self.entry.text})"


class Facts(Frozen, frozen=True, kw_only=True):
    git: Git | None = None
    """None if the project is not in a Git repository that can be read, or has no commit."""
    git_problem: str = ""
    """Why Git could not be asked."""
    is_pushed: bool = False
    """Whether a branch of a remote has the commit."""
    accepted: tuple[Accepted, ...] = ()
    pinned: Mapping[str, str] = {}
    """The digest of all data of the spec, by its path in a run."""
    start: Start | None = None
    end: End | None = None
    checkpoints: tuple[str, ...] = ()
    """What is directly in the directories of `--checkpoints` after the run, and is from the run, sorted."""
    verdict: Last | None = None
    """The last one."""
    evaluations: Mapping[str, Evaluation] = {}
    """Of the run, by the protocols of the project."""

    @property
    def unseeded(self) -> tuple[str, ...]:
        """The generators of the run without a seed of their own, except those that libraries create."""
        if self.end is None:
            return ()
        programs = [
            f"{item.what.removeprefix(UNSEEDED)} at {item.file}:{item.line}"
            for item in self.end.system_randomness
            if item.what.startswith(UNSEEDED)
        ]
        return (*(entry for entry in self.end.auto_seeded if "-packages/" not in entry), *programs)

    @property
    def purposes(self) -> frozenset[str]:
        """The purposes for which the script took a seed from `repro_env.seed`."""
        return frozenset(seed.purpose for seed in self.end.seeded) if self.end is not None else frozenset()

    @property
    def nondeterministic(self) -> tuple[str, ...]:
        """The operations of the run that have no deterministic implementation."""
        operations = self.end.operations if self.end is not None else ()
        return tuple(f"{item.what} at {item.file}:{item.line} ({plural(item.count, 'time')})" for item in operations)
