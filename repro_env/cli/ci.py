"""`repro-env ci`: the steps of a CI job for a captured project, with reports for GitHub Actions."""

from __future__ import annotations

import contextlib
import io
import os
import shlex
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from repro_env.api.doctor import Diagnosis, examine
from repro_env.cli import app as commands
from repro_env.cli import exec as exec_command
from repro_env.cli.ui import github, messages, page
from repro_env.cli.ui.options import SPEC, flag, value
from repro_env.registry.reference import parse
from repro_env.schema.errors import ReproEnvError, SandboxError, UsageError
from repro_env.schema.messages import plural
from repro_env.specs.argument import open_spec
from repro_env.store.store import Store


class _Report:
    """The results of the steps so far."""

    def __init__(self) -> None:
        self.verdict = "error"
        """A word for programs."""
        self.sentence = ""
        self.advice = ""
        """What to do next."""
        self.outputs: dict[str, str] = {}
        self.steps: list[tuple[str, str]] = []
        self.rows: list[tuple[str, str, str, str]] = []
        """For each difference: the name, the captured value, the value now, and the reason."""
        self.files: dict[str, str] = {}
        """Name of a row -> path of the file, relative to the repository."""

    def conclude(self, verdict: str, sentence: str, advice: str = "") -> None:
        self.verdict, self.sentence, self.advice = verdict, sentence, advice


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
    dry_run: Annotated[
        bool, flag("--dry-run", "Print the digests, the path of the store and a key for caching it; change nothing.")
    ] = False,
) -> None:
    """Compare the checked-out code with the spec and rebuild the image. Optionally run a command, verify the run and push the image.

    \b
      repro-env ci
      repro-env ci --exec 'train.py --epochs 1' --verify
      repro-env ci --push REGISTRY/TEAM/NAME:TAG

    The first step that fails ends the job, with the exit code of that step. In GitHub Actions, the result is also written as
    outputs, annotations and a job summary. Each option can also be set by a variable, for example REPRO_ENV_CI_EXEC for --exec.
    """
    report, json = _Report(), messages.Screen.json
    messages.Screen.json = False  # of `ci`, not of the command of --exec
    with github.pause_commands(os.environ):
        try:
            context = _parse(exec_, verify=verify)
            if push:
                parse(push)  # report a wrong REF before the work starts
            source = _identify(report, spec)
            code = 0 if dry_run else _job(report, spec, source, context, check=check, verify=verify, push=push)
        except ReproEnvError as error:
            messages.error(error)
            report.conclude("error", str(error), error.hint)
            code = error.exit_code
        if not (dry_run or json or report.verdict == "error"):
            _print(report)
    if not dry_run or code:
        _publish(report, code)
    if path := os.environ.get("GITHUB_OUTPUT"):
        github.append(path, github.outputs(report.outputs))
    if json:
        messages.json_result(report.outputs)
    raise typer.Exit(code)


def _parse(text: str, *, verify: bool) -> Any:
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


def _identify(report: _Report, spec: str) -> str | None:
    """Read the spec, and set the outputs that identify the image and its cache.

    Returns the directory of the checked-out code if the spec is a bundle file or in a registry, else None.
    """
    store = Store.open()
    location = open_spec(spec or None, store=store, tell=messages.say)
    image = location.spec.expected.image_id
    report.outputs |= {
        "spec-digest": location.spec.digest,
        "image-id": image,
        "store": str(store.root),
        "cache-key": f"repro-env-{image.removeprefix('sha256:')}",
    }
    return "." if location.directory.is_relative_to(store.root) else None


def _job(report: _Report, spec: str, source: str | None, context: Any, *, check: bool, verify: bool, push: str) -> int:
    """Run the steps. Returns the exit code of the first step that fails, else 0."""
    option, argument = ([f"--spec={spec}"], ["--", spec]) if spec else ([], [])
    if check:
        code, answer = _answer("check", "--project", "--json", *([f"--source={source}"] if source else []), *argument)
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
            return code
        if verify:
            code, answer = _answer("verify", "--json", *option, *_verify_options(options), "latest")
            _add_verify(report, answer)
            if code:
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
    words += [f"--env={text}" for text in options["env"] or ()]
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


def _add_check(report: _Report, answer: dict[str, Any]) -> None:
    """Add the answer of `check` to the report."""
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
    differences = f"{plural(len(report.rows), 'difference')} from the spec"
    report.steps.append(("check", "unchanged since the capture" if answer["same"] else differences))
    if not answer["same"]:
        advice = "Run `repro-env capture` and commit repro/, or skip the comparison (check: false, or --no-check)."
        if any(what == "files of the source" for what, *_ in report.rows):
            advice += " To list the files that changed, check out the complete history (fetch-depth: 0 of actions/checkout)."
        report.conclude("drifted", f"The code changed since the capture: {differences}.", advice)


def _add_verify(report: _Report, answer: dict[str, Any]) -> None:
    """Add the answer of `verify` to the report."""
    for file in answer["files"]:
        if file["kind"] == "result" and file["level"] not in ("bitwise", "equal except for"):
            report.rows.append((file["path"] or file["now"], "first run", file["level"] or "not compared", file["why"]))
    level = answer["level"] or "not compared"
    report.steps.append(("verify", answer["sentence"]))
    advice = "" if answer["same"] else "To inspect the files, run `repro-env verify` on your own machine."
    report.conclude(level, f"The command was run twice. {answer['sentence']}", advice)


def _print(report: _Report) -> None:
    if report.rows:
        page.table(report.rows, header=("what", "captured", "now", "why")).print()
    messages.result(f"{report.verdict}: {report.sentence}")


def _publish(report: _Report, code: int) -> None:
    """Write the annotations, the outputs and the summary for GitHub Actions."""
    report.outputs["verdict"] = report.verdict
    if os.environ.get("GITHUB_ACTIONS") == "true" and code:
        title = f"repro-env: {report.verdict}"
        lines = [
            github.annotation(f"{name}: {why or f'{left} -> {right}'}", title=title, file=report.files.get(name, ""))
            for name, left, right, why in report.rows
        ]
        lines = lines[: github.ANNOTATIONS - 1]
        lines.append(github.annotation(f"{report.sentence.rstrip('.')}. {report.advice}".strip(), title=title))
        for line in lines:
            messages.result(line)
    if path := os.environ.get("GITHUB_STEP_SUMMARY"):
        tables = ((("step", "result"), report.steps), (("what differs", "captured", "now", "why"), report.rows))
        github.append(path, github.summary(f"repro-env: {report.verdict}", report.sentence, tables, report.advice))
