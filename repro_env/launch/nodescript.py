"""The script of a job on nodes that share files: directives of the scheduler, the site's lines, and `repro-env exec` as the last line.

The command of a run always starts in the image: the script runs nothing but `repro-env exec`, which has no other way to start it.
A node that lacks the project, the store or repro-env ends the job before that, with the exit code of `RunError`.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from typing import NamedTuple

from repro_env.delivery.documents import templates
from repro_env.io import process
from repro_env.launch.engine import TEMPLATE, NodeJob, digest_of
from repro_env.schema.errors import RunError, UsageError

SCRIPT, STDOUT, STDERR = "job.sh", "stdout.log", "stderr.log"
"""The files of a job, in its directory."""


class Dialect(NamedTuple):
    """How a scheduler differs from others in a script."""

    prefix: str
    """Of its directives, such as `#SBATCH`."""
    task: str = "0"
    """The number of an array task, from 0, as an index of bash."""
    warns: bool = False
    """Whether the script may get SIGUSR1 before the time limit."""


def render(
    job: NodeJob,
    directives: Sequence[str],
    dialect: Dialect,
    *,
    starter: Sequence[str] = (),
    warns: bool = False,
    template: str = "",
) -> str:
    """Return the script of a job for bash. Raises `UsageError` for a value that directives cannot have.

    `directives`: the options of the scheduler, without their prefix; those of the template are among them. `starter`: the start of a command that runs once per process.
    `warns`: SIGUSR1 comes before the time limit. `template`: the site's file, whose other lines run before the command.
    """
    if any(not path.isprintable() or set(path) & set('"\\') for path in outputs(job)):
        where = outputs(job)[0]
        raise UsageError(
            "this path has a quote, a backslash or a control character, so the scheduler cannot read it", where=where
        )
    prefix = dialect.prefix
    site = [line for line in template.splitlines() if not line.startswith((prefix, "#!"))]
    run_ids, seeds = zip(*job.runs, strict=True)
    body = templates.render(
        "job.sh.j2",
        quote=_quote,
        job=job,
        dialect=dialect,
        run_ids=run_ids,
        seeds=seeds,
        tasks=len(job.runs) > 1,
        warns=warns,
        starter=tuple(starter),
        stdout=STDOUT,
        stderr=STDERR,
        refused=RunError.exit_code,
        template=digest_of(template),
        template_name=TEMPLATE,
    ).decode()
    lines = [f"{prefix} {directive}" for directive in directives]
    text = "\n".join(["#!/bin/bash", *lines, *site, body])
    if [line for line in text.splitlines() if line.startswith(prefix)] != lines:
        raise UsageError(f"the job script would have other {prefix} lines than the options name", where=job.name)
    return text


def outputs(job: NodeJob) -> tuple[str, str]:
    """Return the paths of what the job prints on stdout and stderr. They have no quotes, or `render` fails."""
    return f"{job.jobs}/{job.runs[0][0]}/{STDOUT}", f"{job.jobs}/{job.runs[0][0]}/{STDERR}"


def directives_of(template: str, prefix: str) -> list[str]:
    """Return the directives in a template, without their prefix."""
    return [line.removeprefix(prefix).strip() for line in template.splitlines() if line.startswith(prefix)]


def check_template(template: str) -> None:
    """Raise `UsageError` unless bash can read the lines of a template, so that nothing that follows them is a part of them."""
    done = process.run(["bash", "-n"], env=dict(os.environ), timeout=60.0, stdin=template.encode())
    if done.code or done.stderr:
        what = f"bash cannot read these lines: {' '.join(done.stderr.decode('utf-8', 'replace').split())}"
        raise UsageError(what, where="--job-template", hint="correct the file: its lines run before the command of the job")


def _quote(words: Sequence[str]) -> str:
    """The words for bash, in one line."""
    return " ".join(shlex.quote(word) if word.isprintable() else f"$'{_escape(word)}'" for word in words)


def _escape(word: str) -> str:
    """The content of a `$'...'` string."""
    return "".join(
        chr(byte) if chr(byte).isalnum() and byte < 128 else f"\\x{byte:02x}" for byte in word.encode("utf-8", "surrogateescape")
    )
