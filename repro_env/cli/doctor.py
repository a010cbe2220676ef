"""`repro-env doctor`: one line for each thing that runs need, with a fix if it is missing.

With a spec, a table of what its runs need, what this machine has, and whether that affects the results.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from repro_env.api.doctor import Diagnosis, examine
from repro_env.api.preflight import examine_spec
from repro_env.cli.ui import messages, page
from repro_env.cli.ui.options import argument, value
from repro_env.compare.preflight.finding import Finding, worst
from repro_env.sandbox.doctor import ADMINISTRATOR
from repro_env.schema.errors import MachineError, ReproEnvError, UsageError
from repro_env.specs.argument import open_spec
from repro_env.store.specs.lookup import locate
from repro_env.store.store import Store


def command(
    spec: Annotated[
        str | None,
        argument(
            "SPEC",
            "Compare this machine with the capture of this spec: a spec.json, its directory, a bundle FILE, or a REF in a registry.",
        ),
    ] = None,
    for_dir: Annotated[
        Path | None,
        value("DIR", "Check the directory in which runs will be stored. Default: the current directory.", "--for"),
    ] = None,
) -> None:
    """Check whether this machine can run commands, and suggest fixes.

    A tiny run is started with each runner. Each line begins with `ok`, `fallback` (runs work, with a limitation), `blocked`, or `absent` (only some runners need it).

    With SPEC, check instead whether this machine can run the image of the spec, and with the same numbers: architecture,
    kernel, CPU, GPUs, driver, memory for DataLoader workers and disk. The verdict of a finding is `ok`, `unknown`, `numerics
    may differ` or `blocked`.

    Exit code 0: runs work on this machine, or all findings are ok. 1: they do not, or numbers may differ. 21: blocked.
    """
    store = Store.open()
    if spec is not None:
        if for_dir is not None:
            raise UsageError("SPEC and --for are mutually exclusive", hint="run `repro-env doctor` once with each of them")
        findings = examine_spec(open_spec(spec, store=store, tell=messages.say).spec, store)
        verdict = worst(findings)
        if not messages.answer_in_json({"verdict": verdict, "findings": findings}):
            _print_checks(findings)
        raise typer.Exit({"ok": 0, "blocked": MachineError.exit_code}.get(verdict, 1))
    answer = examine(store.root, for_dir or Path.cwd())
    if not messages.answer_in_json(answer):
        _print(answer, store)
    raise typer.Exit(0 if answer.works else 1)


def _print_checks(findings: tuple[Finding, ...]) -> None:
    """A table, with the reason and the fix below each row that is not ok."""
    rows = [(finding.verdict, finding.name, finding.captured, finding.here) for finding in findings]
    header, *lines = page.table(rows, header=("verdict", "fact", "captured", "here")).lines
    messages.result(header)
    for line, finding in zip(lines, findings, strict=True):
        messages.result(line)
        for text in filter(None, (finding.why, finding.fix and f"fix: {finding.fix}")):
            messages.result(f"    {text}")


def _print(answer: Diagnosis, store: Store) -> None:
    rows: list[tuple[str, ...]] = []
    for finding in answer.findings:
        rows += [(finding.state, finding.name, finding.text), *([("", "", _fix(finding.fix))] if finding.fix else [])]
    page.table(rows).print()
    for text in answer.alternatives:
        messages.result(f"works     {text}")
    messages.say(
        f"next: repro-env {_next_command(store)}"
        if answer.works
        else "runs in the image do not work on this machine until this is fixed"
    )


def _next_command(store: Store) -> str:
    """The next command for the project in this directory."""
    try:
        spec, _ = locate(None, Path.cwd())
    except ReproEnvError:
        return "capture"
    return "rebuild" if store.images.get(spec.expected.image_id) is None else "exec COMMAND"


def _fix(text: str) -> str:
    """The fix, marked if only an administrator can apply it."""
    plain = text.removeprefix(ADMINISTRATOR)
    return f"fix: {text}" if plain == text else f"fix, by an administrator: {plain}"
