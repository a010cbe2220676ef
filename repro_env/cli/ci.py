"""`repro-env ci`: the steps of a CI job for a captured project, with reports for GitHub Actions and as JUnit and SARIF files."""

from __future__ import annotations

import contextlib
import io
import os
import shlex
from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from repro_env.api import policy
from repro_env.api.doctor import Diagnosis, examine
from repro_env.cli import app as commands
from repro_env.cli import exec as exec_command
from repro_env.cli.ui import cireports, github, messages, page
from repro_env.cli.ui.cireports import Difference, Report
from repro_env.cli.ui.options import SPEC, flag, parse_path, value
from repro_env.io.files import atomic_write
from repro_env.registry.reference import parse
from repro_env.schema.errors import DiskError, PolicyError, ReproEnvError, SandboxError, UsageError, os_errors_as
from repro_env.schema.messages import plural
from repro_env.specs.argument import Opened, open_spec
from repro_env.store.specs.files import SPEC as SPEC_FILE
from repro_env.store.store import Store


def _variable(option: str) -> dict[str, Any]:
    """The variable that sets an option."""
    return {"envvar": f"REPRO_ENV_CI_{option}", "show_envvar": False}


def command(
    spec: Annotated[str, value("SPEC", f"Use this spec: {SPEC}", **_variable("SPEC"))] = "",
    check: Annotated[
        bool,
        flag("--check/--no-check", "Stop if the code changed since the capture. Default: --check.", **_variable("CHECK")),
    ] = True,
    exec_: Annotated[
        str,
        value(
            "WORDS",
            "Run a command after the rebuild. WORDS are the arguments of `repro-env exec`, quoted as in a shell.",
            "--exec",
            **_variable("EXEC"),
        ),
    ] = "",
    verify: Annotated[
        bool, flag("--verify", "Run the command of --exec a second time and compare the outputs.", **_variable("VERIFY"))
    ] = False,
    push: Annotated[
        str, value("REF", "Push the image, the spec and the bundled files to this registry.", **_variable("PUSH"))
    ] = "",
    junit: Annotated[
        Path | None, value("FILE", "Write the steps to FILE in the JUnit format.", parser=parse_path, **_variable("JUNIT"))
    ] = None,
    sarif: Annotated[
        Path | None, value("FILE", "Write the differences to FILE in the SARIF format.", parser=parse_path, **_variable("SARIF"))
    ] = None,
    site: Annotated[
        Path | None,
        value("DIR", "Write the site of `repro-env report` to DIR.", "--report", parser=parse_path, **_variable("REPORT")),
    ] = None,
    dry_run: Annotated[
        bool, flag("--dry-run", "Print the digests, the path of the store and a key for caching it; change nothing.")
    ] = False,
) -> None:
    """Compare the checked-out code with the spec and rebuild the image. Optionally run a command, verify the run and push
    the image.

    \b
      repro-env ci
      repro-env ci --exec 'train.py --epochs 1' --verify
      repro-env ci --push REGISTRY/TEAM/NAME:TAG
      repro-env ci --junit ../junit.xml --sarif ../repro-env.sarif

    The rules in [tool.repro-env.policy] of pyproject.toml are enforced. The first step that fails ends the job, with its exit code. In GitHub Actions, the result is also written as outputs,
    annotations and a job summary. Each option can also be a variable, such as REPRO_ENV_CI_EXEC.
    """
    report, json, runs = Report(), messages.Screen.json, None
    messages.Screen.json = False  # of `ci`, not of the command of --exec
    with github.pause_commands(os.environ):
        try:
            context = parse_exec(exec_, verify=verify)
            runs = context.params["runs"] if context is not None else None
            if push:
                parse(push)  # report a wrong REF before the work starts
            location = _identify(report, spec)
            code = 0 if dry_run else _job(report, spec, location, context, check=check, verify=verify, push=push)
        except ReproEnvError as error:
            messages.error(error)
            report.conclude("error", str(error), error.hint)
            if isinstance(error, PolicyError):
                _add_broken(report, error.broken)
                report.steps.append(("policy", report.sentence))
            code = error.exit_code
        if not (dry_run or json or report.verdict == "error"):
            _print(report)
    if not dry_run or code:
        _publish(report, code)
    if site and not dry_run:
        try:
            _answer("report", "--json", *([f"--runs={runs}"] if runs else []), "--", str(site))
        except ReproEnvError as error:
            messages.error(error)
            code = code or error.exit_code
    for file, render in ((junit, cireports.junit), (sarif, cireports.sarif)):
        if file and not dry_run:
            with os_errors_as(DiskError, "the report cannot be written", where=file, hint="name a file in another directory"):
                file.parent.mkdir(parents=True, exist_ok=True)
                atomic_write(file, render(report, code))
    if path := os.environ.get("GITHUB_OUTPUT"):
        github.append(path, github.outputs(report.outputs))
    if json:
        messages.json_result(report.outputs)
    raise typer.Exit(code)


def parse_exec(text: str, *, verify: bool) -> Any:
    """The parser's context for the value of --exec; None if it is empty."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UsageError(f"--exec cannot be split into words: {error}", hint=f"check the quotes of: {text}") from None
    if not words and verify:
        raise UsageError("--verify requires --exec", hint="name a command, for example: --exec 'train.py --epochs 1'")
    with contextlib.suppress(typer.Exit):  # --help was given
        context = commands.parse("exec", words) if words else None
        if context is None or exec_command.words(context):
            return context
    raise UsageError(f'--exec does not name a command (got "{text}")', hint="for example: --exec 'train.py --epochs 1'")


def _identify(report: Report, spec: str) -> Opened:
    """Read the spec, and set the outputs that identify the image and its cache."""
    store = Store.open()
    location = open_spec(spec or None, store=store, tell=messages.say)
    image = location.spec.expected.image_id
    report.spec = _relative(location.directory / SPEC_FILE)
    report.outputs |= {
        "spec-digest": location.spec.digest,
        "image-id": image,
        "store": str(store.root),
        "cache-key": f"repro-env-{image.removeprefix('sha256:')}",
    }
    return location


def _job(report: Report, spec: str, location: Opened, context: Any, *, check: bool, verify: bool, push: str) -> int:
    """Run the steps. Returns the exit code of the first step that fails, else 0."""
    option, argument = ([f"--spec={spec}"], ["--", spec]) if spec else ([], [])
    # The code of a bundle file, or of a spec in a registry, is what was checked out.
    source = "." if location.directory.is_relative_to(Store.open().root) else None
    given, runs = [f"--source={source}"] if source else [], context.params["runs"] if context is not None else None
    found = policy.find(location, source=Path(source).resolve() if source else None, runs=runs)
    scope = ["--project"] if context is None else [f"--runs={runs}"] if runs else []

    def judge() -> int:
        if found is None:
            return 0
        return _add_policy(report, *_answer("check", "--policy", "--json", *scope, *given, *argument))

    if context is None and (code := judge()):  # otherwise `exec` does, which may have exceptions
        return code
    if check:
        code, answer = _answer("check", "--project", "--json", *given, *argument)
        _add_check(report, answer)
        if code:
            return code
    _answer("rebuild", "--json", *argument)
    report.outputs["rebuilt"] = "true"
    report.steps.append(("rebuild", f"the captured image: {report.outputs['image-id']}"))
    report.conclude("rebuilt", "The rebuilt image is identical to the captured one.")
    if context is not None:
        options = context.params
        options["spec"] = options["spec"] or spec or None
        options["runner"] = options["runner"] or runner(examine(Store.open().root, Path.cwd()))
        if not options["frozen"]:
            options["source"] = options["source"] or source
        code = int(context.command.invoke(context))
        report.steps.append(("exec", f"exit code {code}: {shlex.join(exec_command.words(context))}"))
        report.conclude("ran" if not code else "failed", f"The command ended with exit code {code}.")
        if code:
            last = policy.last_run(found.runs) if found is not None else None
            if last is not None and last.end is not None and not last.end.outcome.status:  # the code is that of the policy
                judge()
            return code
        if verify:
            code, answer = _answer("verify", "--json", *option, *_verify_options(options), "latest")
            _add_verify(report, answer)
            if code:
                return code
        if code := judge():
            return code
    if push:
        answer = _answer("push", "--json", *option, "--", push)[1]
        report.outputs["image-ref"] = answer["image"]
        report.steps.append(("push", answer["image"]))
    return 0


def _answer(*words: str) -> tuple[int, dict[str, Any]]:
    """Run a command with `--json`. Returns its exit code and its answer. Raises what the command raises."""
    messages.say(f"$ repro-env {shlex.join(words)}")
    with contextlib.redirect_stdout(io.StringIO()) as answer:
        code = commands.run(words)
    return code, msgspec.json.decode(answer.getvalue(), type=dict[str, Any])


def _verify_options(options: dict[str, Any]) -> list[str]:
    """The options of `exec` that `verify` needs again, because the record does not contain them."""
    words = [f"--{name.replace('_', '-')}={options[name]}" for name in ("runs", "env_file") if options[name] is not None]
    words += [f"--env={name}" if value is None else f"--env={name}={value}" for name, value in options["env"] or ()]
    return [*words, "--network"] if options["network"] else words


def runner(diagnosis: Diagnosis) -> str | None:
    """The runner for `exec`: None if the default runner works, else another one that works. Raises `SandboxError`."""
    if diagnosis.works:
        return None
    finding = next(finding for finding in diagnosis.findings if finding.state == "blocked")
    if diagnosis.runners:
        messages.say.warn(f"using --runner {diagnosis.runners[0]}: {finding.name}: {finding.text}")
        return diagnosis.runners[0]
    raise SandboxError(f"{finding.name}: {finding.text}", where="this machine", hint=finding.fix)


def _add_check(report: Report, answer: dict[str, Any]) -> None:
    """Add the answer of `check` to the report."""
    for difference in answer["differences"]:
        if difference["counts"]:
            name = difference["what"]
            file = _relative(Path(answer["source"], name)) if difference["level"] == "source" else ""
            report.differences.append(Difference("drift", name, difference["left"], difference["right"], difference["why"], file))
    for missing in answer["not_compared"]:
        report.differences.append(Difference("not-compared", missing["what"], why=f"not compared: {missing['why']}"))
    differences = f"{plural(len(report.differences), 'difference')} from the spec"
    report.steps.append(("check", "unchanged since the capture" if answer["same"] else differences))
    if not answer["same"]:
        advice = "Run `repro-env capture` and commit repro/, or skip the comparison (check: false, or --no-check)."
        if any(difference.name == "files of the source" for difference in report.differences):
            advice += " To list the files that changed, check out the complete history (fetch-depth: 0 of actions/checkout)."
        report.conclude("drifted", f"The code changed since the capture: {differences}.", advice)


def _relative(path: Path) -> str:
    """The path of an existing file, relative to the repository; empty if it is not in it."""
    root = Path(os.environ.get("GITHUB_WORKSPACE") or os.environ.get("CI_PROJECT_DIR") or Path.cwd()).resolve()
    path = Path(os.path.normpath(path))
    return str(path.relative_to(root)) if path.is_relative_to(root) and os.path.lexists(path) else ""


def _add_verify(report: Report, answer: dict[str, Any]) -> None:
    """Add the answer of `verify` to the report."""
    for file in answer["files"]:
        if file["kind"] == "result" and file["level"] not in ("bitwise", "equal except for"):
            level = file["level"] or "not compared"
            report.differences.append(Difference("result", file["path"] or file["now"], "first run", level, file["why"]))
    level = answer["level"] or "not compared"
    report.steps.append(("verify", answer["sentence"]))
    advice = "" if answer["same"] else "To inspect the files, run `repro-env verify` on your own machine."
    report.conclude(level, f"The command was run twice. {answer['sentence']}", advice)


def _add_policy(report: Report, code: int, answer: dict[str, Any]) -> int:
    """Add the answer of `check --policy` to the report. Returns its exit code."""
    score = answer["score"]
    report.steps.append(("policy", f"{score['holds']} of {score['rules']} rules hold"))
    if code:
        _add_broken(report, [(rule["rule"], rule["file"], rule["text"]) for rule in answer["broken"]])
    return code


def _add_broken(report: Report, broken: Collection[tuple[str, str, str]]) -> None:
    """Add rules that are broken to the report: the name of each, its file, and how it is broken."""
    here = Path.cwd()
    for rule, name, text in broken:
        path = next((above / name for above in (here, *here.parents) if (above / name).is_file()), here / name)
        report.differences.append(Difference("policy", rule, why=text, file=_relative(path)))
    names = ", ".join(rule for rule, *_ in broken)
    advice = "Correct this, or give a reason for one run: exec --except RULE=REASON."
    report.conclude("policy", f"The policy of the project is broken: {names}.", advice)


def _print(report: Report) -> None:
    if report.differences:
        page.table(report.rows, header=("what", "captured", "now", "why")).print()
    messages.result(f"{report.verdict}: {report.sentence}")


def _publish(report: Report, code: int) -> None:
    """Write the annotations, the outputs and the summary for GitHub Actions."""
    report.outputs["verdict"] = report.verdict
    if os.environ.get("GITHUB_ACTIONS") == "true" and code:
        title = f"repro-env: {report.verdict}"
        lines = [github.annotation(difference.text, title=title, file=difference.file) for difference in report.differences]
        lines = lines[: github.ANNOTATIONS - 1]
        lines.append(github.annotation(report.text, title=title))
        for line in lines:
            messages.result(line)
    if path := os.environ.get("GITHUB_STEP_SUMMARY"):
        tables = ((("step", "result"), report.steps), (("what differs", "captured", "now", "why"), report.rows))
        github.append(path, github.summary(f"repro-env: {report.verdict}", report.sentence, tables, report.advice))
