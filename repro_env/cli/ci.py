"""`repro-env ci`: what a CI job does with a captured project, as one command that reports to GitHub Actions."""

from __future__ import annotations

import contextlib
import io
import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from repro_env.cli import app as commands
from repro_env.cli import github, say
from repro_env.cli.options import JsonOption
from repro_env.model.errors import ReproEnvError, SandboxError, UsageError

if TYPE_CHECKING:
    from repro_env.cli.exec import Words
    from repro_env.flows.doctor import Diagnosis

_HELP = """\
Compare the checked-out code with the spec, rebuild the image, and, if asked, run a command, verify the run and push the image.

\b
  repro-env ci
  repro-env ci --exec 'train.py --epochs 1' --verify
  repro-env ci --push REGISTRY/TEAM/NAME:TAG

The first step that fails ends the job, with its own exit code. In GitHub Actions the result is also written as outputs,
annotations and a job summary. Each option can be set by a variable instead: REPRO_ENV_CI_EXEC for --exec.
"""


class _Report:
    """What the job found so far. `verdict` is one word for programs."""

    def __init__(self) -> None:
        self.verdict = "error"
        self.sentence = ""
        self.after = ""
        """What to do next."""
        self.outputs: dict[str, str] = {}
        self.steps: list[tuple[str, str]] = []
        self.rows: list[tuple[str, str, str, str]] = []
        """What differs: its name, as captured, as it is now, why."""
        self.files: dict[str, str] = {}
        """Name of a row -> path of the file, relative to the repository."""

    def conclude(self, verdict: str, sentence: str, after: str = "") -> None:
        self.verdict, self.sentence, self.after = verdict, sentence, after


def add(app: typer.Typer) -> None:
    app.command(name="ci", help=_HELP, short_help=commands.COMMANDS["ci"])(command)


def command(
    spec: Annotated[
        str,
        typer.Option(
            envvar="REPRO_ENV_CI_SPEC",
            help="The spec, its directory, a bundle FILE, or a registry's REF. Default: the nearest repro/spec.json upwards.",
            metavar="SPEC",
            show_default=False,
            show_envvar=False,
        ),
    ] = "",
    check: Annotated[
        bool,
        typer.Option(
            "--check/--no-check",
            envvar="REPRO_ENV_CI_CHECK",
            help="Stop if the code changed since the capture.",
            show_envvar=False,
        ),
    ] = True,
    exec_: Annotated[
        str,
        typer.Option(
            "--exec",
            envvar="REPRO_ENV_CI_EXEC",
            help="Run this afterwards: what follows `repro-env exec`, quoted as in a shell.",
            metavar="WORDS",
            show_default=False,
            show_envvar=False,
        ),
    ] = "",
    verify: Annotated[
        bool,
        typer.Option(
            "--verify",
            envvar="REPRO_ENV_CI_VERIFY",
            help="Run it a second time and compare the outputs.",
            show_envvar=False,
        ),
    ] = False,
    push: Annotated[
        str,
        typer.Option(
            envvar="REPRO_ENV_CI_PUSH",
            help="Send the image, the spec and the bundled files to this registry.",
            metavar="REF",
            show_default=False,
            show_envvar=False,
        ),
    ] = "",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Read the spec, print what a cache of the store needs, and change nothing.")
    ] = False,
    json: JsonOption = False,
) -> None:
    from repro_env.registry.reference import parse

    report = _Report()
    with github.commands_paused(os.environ):
        try:
            words = _words(exec_, verify=verify)
            if push:
                parse(push)  # before the work, not after it
            source = _identify(report, spec)
            code = 0 if dry_run else _job(report, spec, source, exec_, words, check=check, verify=verify, push=push)
        except ReproEnvError as error:
            say.error(error)
            report.conclude("error", str(error), error.hint)
            code = error.exit_code
        if not (dry_run or json or report.verdict == "error"):
            _print(report)
    if not dry_run or code:
        _publish(report, code)
    if path := os.environ.get("GITHUB_OUTPUT"):
        github.append(path, github.outputs(report.outputs))
    if json:
        say.json_result(report.outputs)
    raise typer.Exit(code)


def _words(text: str, *, verify: bool) -> Words:
    from repro_env.cli.exec import split

    try:
        words = split(shlex.split(text))
    except ValueError as error:
        raise UsageError(f"cannot be split into words: {error}", where=f"--exec {text}", hint="check its quotes") from None
    if words.options and not words.command:
        raise UsageError("names no command", where=f"--exec {text}", hint="for example: --exec 'train.py --epochs 1'")
    if verify and not words.command:
        raise UsageError("there is no run to verify", where="--verify", hint="name a command with --exec")
    return words


def _identify(report: _Report, spec: str) -> list[str]:
    """Read the spec: what it describes, and what a cache needs.

    Returns the option that names the checked-out code, where no such code is beside the spec: a bundle file, or one in a registry.
    """
    from repro_env.flows.opened import opened
    from repro_env.store.store import Store

    store = Store.open()
    found = opened(spec or None, Path.cwd(), store, say.say)
    image = found.spec.expected.image_id
    report.outputs |= {
        "spec-digest": found.spec.digest,
        "image-id": image,
        "store": str(store.root),
        "cache-key": f"repro-env-{image.removeprefix('sha256:')}",
    }
    return ["--source=."] if found.folder.is_relative_to(store.root) else []


def _job(report: _Report, spec: str, source: list[str], exec_: str, words: Words, *, check: bool, verify: bool, push: str) -> int:
    named, last = ([f"--spec={spec}"], ["--", spec]) if spec else ([], [])
    if check:
        code, answer = _answer("check", "--project", "--json", *source, *last)
        _compared(report, answer)
        if code:
            return code
    _answer("rebuild", "--json", *last)
    report.outputs["rebuilt"] = "true"
    report.steps.append(("rebuild", f"the captured image: {report.outputs['image-id']}"))
    report.conclude("rebuilt", "The image is the captured one, file for file.")
    if words.command:
        from repro_env.cli import exec as one_run

        chosen = [] if words.last("--runner") else runner(_diagnosis())
        code_of = [] if words.last("--source") or words.has("--frozen") else source
        # Ours stand first: the user's words end with the command.
        code = one_run.main([*named, *chosen, *code_of, *shlex.split(exec_)])
        report.steps.append(("exec", f"exit code {code}: {shlex.join(words.command)}"))
        report.conclude("ran" if not code else "failed", f"The command ended with exit code {code}.")
        if code:
            return code
    if verify:
        code, answer = _answer("verify", "--json", *named, *_again(words), "latest")
        _verified(report, answer)
        if code:
            return code
    if push:
        answer = _answer("push", "--json", *named, "--", push)[1]
        report.outputs["image-ref"] = answer["image"]
        report.steps.append(("push", answer["image"]))
    return 0


def _answer(*words: str) -> tuple[int, dict[str, Any]]:
    """The exit code and the answer of a command with `--json`. Raises what the command raises."""
    say.say(f"$ repro-env {shlex.join(words)}")
    with contextlib.redirect_stdout(io.StringIO()) as answer:
        code = commands.run(words)
    if not answer.getvalue():
        raise UsageError("was refused; the lines above say why", where=f"repro-env {shlex.join(words)}")
    return code, msgspec.json.decode(answer.getvalue(), type=dict[str, Any])


def _again(words: Words) -> list[str]:
    """What `verify` needs of the options of `exec`: no record holds values of variables or opens the network."""
    given = [f"{name}={value}" for name, value in words.options if name in ("--runs", "--env", "--env-file")]
    return [*given, "--network"] if words.has("--network") else given


def _diagnosis() -> Diagnosis:
    from repro_env.flows.doctor import examine
    from repro_env.store.store import Store

    return examine(Store.open().root, Path.cwd())


def runner(found: Diagnosis) -> list[str]:
    """The option for `exec`: none where our own runner works, else the Docker runner if an engine answers. Raises `SandboxError`."""
    if found.works:
        return []
    finding = next(finding for finding in found.findings if finding.state == "blocked")
    if any(not engine.problem for engine in found.engines):
        say.say.warn(f"using --runner docker: {finding.name}: {finding.text}")
        return ["--runner", "docker"]
    raise SandboxError(f"{finding.name}: {finding.text}", where="this machine", hint=finding.fix)


def _compared(report: _Report, answer: dict[str, Any]) -> None:
    """Take over what `check` answered."""
    root = Path(os.environ.get("GITHUB_WORKSPACE") or Path.cwd()).resolve()
    for difference in answer["differences"]:
        if not difference["counts"]:
            continue
        name = difference["what"]
        report.rows.append((name, difference["left"], difference["right"], difference["why"]))
        path = Path(os.path.normpath(Path(answer["source"], name)))
        if difference["level"] == "source" and path.is_relative_to(root) and os.path.lexists(path):
            report.files[name] = str(path.relative_to(root))
    for missing in answer["not_compared"]:
        report.rows.append((missing["what"], "", "", f"not compared: {missing['why']}"))
    count = len(report.rows)
    differs = f"{count} difference{'s' * (count != 1)} from the spec"
    report.steps.append(("check", "as captured" if answer["same"] else differs))
    if not answer["same"]:
        after = "Run `repro-env capture` and commit repro/, or switch the comparison off (check: false, or --no-check)."
        if any(what == "files of the source" for what, *_ in report.rows):
            after += " With the complete history (fetch-depth: 0 of actions/checkout) the files can be named."
        report.conclude("drifted", f"The code is not the captured one: {differs}.", after)


def _verified(report: _Report, answer: dict[str, Any]) -> None:
    """Take over what `verify` answered."""
    for file in answer["files"]:
        if file["kind"] == "result" and file["level"] not in ("bitwise", "equal except for"):
            report.rows.append((file["path"] or file["now"], "first run", file["level"] or "not compared", file["why"]))
    level = answer["level"] or "not compared"
    report.steps.append(("verify", answer["sentence"]))
    after = "" if answer["same"] else "Run `repro-env verify` on a machine of yours to look at the files."
    report.conclude(level, f"The command was run twice. {answer['sentence']}", after)


def _print(report: _Report) -> None:
    if report.rows:
        say.result(say.table(report.rows, header=("what", "captured", "now", "why")))
    say.result(f"{report.verdict}: {report.sentence}")


def _publish(report: _Report, code: int) -> None:
    """Write the result where GitHub Actions reads it."""
    report.outputs["verdict"] = report.verdict
    if os.environ.get("GITHUB_ACTIONS") == "true" and code:
        title = f"repro-env: {report.verdict}"
        found = [
            github.annotation(f"{name}: {why or f'{left} -> {right}'}", title=title, file=report.files.get(name, ""))
            for name, left, right, why in report.rows
        ]
        found.append(github.annotation(f"{report.sentence.rstrip('.')}. {report.after}".strip(), title=title))
        for line in [*found[: github.ANNOTATIONS - 1], found[-1]] if len(found) > github.ANNOTATIONS else found:
            say.result(line)
    if path := os.environ.get("GITHUB_STEP_SUMMARY"):
        tables = ((("step", "result"), report.steps), (("what differs", "captured", "now", "why"), report.rows))
        github.append(path, github.summary(f"repro-env: {report.verdict}", report.sentence, tables, report.after))
