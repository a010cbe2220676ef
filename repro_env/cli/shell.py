"""`repro-env shell`: open an interactive shell in the captured environment. The shell is not recorded, and its files are discarded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from repro_env.api.execute import execute
from repro_env.cli import exec as exec_command
from repro_env.cli.ui import messages
from repro_env.cli.ui.options import read
from repro_env.launch.engines import JobOptions
from repro_env.runs.start.request import RunOptions
from repro_env.schema.errors import UsageError
from repro_env.schema.options import options_of
from repro_env.schema.runners import DEFAULT, TRAITS
from repro_env.store.store import Store

_OF_RECORDS = ("module", "code", "trace", "seconds", "parents", "resume", "tags", "note", "exceptions", "runs", "run_id")
"""Options for a command that ends, and for the record of its run."""


def command() -> None:
    """Open a shell in the captured environment.

    Nothing is recorded. Files that you write are discarded, except with --checkpoints.
    """


class Command(exec_command.SimilarCommand):
    usage = "[OPTIONS]"
    has_answer = False
    excluded = (*_OF_RECORDS, *options_of(JobOptions))

    @staticmethod
    def run(options: Mapping[str, Any], command: Sequence[str]) -> int:
        """Open the shell. Returns its exit code. Raises `ReproEnvError`."""
        if command:
            raise UsageError("`shell` does not accept a command", hint=f"use `repro-env exec {command[0]}`")
        if TRAITS[options["runner"] or DEFAULT].is_live:
            raise UsageError("`shell` does not support --runner host", hint="use your own shell with the environment active")
        store = Store.open()
        with store.temp.directory() as temporary:
            requested = read(
                RunOptions,
                {**options, "runs": temporary / "runs"},
                output=True,
                keeps_record=False,
                defaults=options["defaults"],
            )
            messages.say(
                "this shell runs in the captured environment; files that you write are discarded, except in --checkpoints"
            )
            result = execute(options["spec"], ["bash"], requested, store=store, tell=messages.prefixed)
        messages.say("next: repro-env exec COMMAND")
        return result.end.outcome.status
