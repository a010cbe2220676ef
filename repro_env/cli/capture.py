"""`repro-env capture`: its options, and a report of what was captured, as text or JSON."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

from repro_env.api.capture import CaptureResult, capture
from repro_env.cli.ui import messages
from repro_env.cli.ui.defaults import ConfiguredCommand
from repro_env.cli.ui.options import flag, parse_mounts, parse_source, shared, value
from repro_env.environment.machine import variables
from repro_env.environment.source import exclusions
from repro_env.environment.source.request import CodeRequest
from repro_env.environment.source.selection import CAP
from repro_env.schema.environment import Variables
from repro_env.schema.messages import plural, shorten

_GARBAGE = 100_000
"""New objects before Python searches for cycles. Capture makes hundreds of thousands, and keeps nearly all of them."""

_SHOWN = 10
"""Entries of a list."""
_NAMED = 8
"""Variables that a line names. The others are counted."""


def command(
    python: Annotated[
        str | None,
        value(
            "PATH",
            "Capture the environment of this Python: an executable or the environment's directory. Default: the first of $VIRTUAL_ENV, "
            "$CONDA_PREFIX, $UV_PROJECT_ENVIRONMENT, the project's .venv, and python3 on PATH.",
        ),
    ] = None,
    source: Annotated[
        Path, value("DIR", "Capture the code in this directory. Default: the current directory.", parser=parse_source)
    ] = Path(),
    include: Annotated[list[str] | None, shared(CodeRequest, "include")] = None,
    exclude: Annotated[list[str] | None, shared(CodeRequest, "exclude")] = None,
    data: Annotated[
        list[str] | None,
        value(
            "SRC[:DST]",
            "Record the digest of a file or directory of data, and mount it in runs. DST defaults to the same absolute path. "
            "Repeatable.",
        ),
    ] = None,
    output: Annotated[Path, value("DIR", "Write the spec to this directory. Default: repro.", "--output", "-o")] = Path("repro"),
    with_: Annotated[
        list[str] | None,
        value("PROGRAM", "Add a program, package or directory of this machine. Repeatable.", "--with"),
    ] = None,
    env: Annotated[
        list[str] | None, value("NAME", "Capture the value of this variable, and set it in every run. Repeatable.")
    ] = None,
    seed: Annotated[int, value("N", "Set the default master seed for runs. Default: 0.", min=0, max=2**32 - 1)] = 0,
    not_secret: Annotated[list[str] | None, shared(CodeRequest, "not_secret")] = None,
    ask: Annotated[
        bool, flag("--ask", "Ask the package indexes again: wheels that they do not have any more are bundled.")
    ] = False,
) -> None:
    """Capture a Python environment in a spec, file for file, with the code and the digests of the data.

    \b
      repro-env capture                            capture the active environment, and the code in this directory
      repro-env capture --python ENV --with git    capture another environment, and add Git to it

    Files that cannot be downloaded again are bundled. The capture fails if a file seems to contain a secret.
    """
    gc.set_threshold(_GARBAGE)
    result = capture(
        source,
        python=python,
        output=output,
        include=include or (),
        exclude=exclude or (),
        data=parse_mounts(data),
        programs=with_ or (),
        env=env or (),
        seed=seed,
        not_secret=not_secret or (),
        ask=ask,
        tell=messages.say,
    )
    if not messages.answer_in_json(_facts(result)):
        _print(result)
    _say_what_to_commit(result, output)
    where = "" if output == Path("repro") else f" {output}"
    messages.say(f"next: repro-env rebuild{where}, or repro-env show{where} for the complete content")


class Command(ConfiguredCommand):
    """With defaults of the project."""

    def invoke(self, ctx: Any) -> Any:
        """Capture, and print which options are from the project's file."""
        for text in ctx.params.pop("defaults"):
            messages.say(f"{text} (from pyproject.toml)")
        return super().invoke(ctx)


def _say_what_to_commit(result: CaptureResult, output: Path) -> None:
    """Print what belongs into the repository, what a clone will lack, and how it gets that."""
    if result.spec.observed.source is None or result.spec.observed.source.git is None:
        return
    sizes = [path.stat().st_size for path in (result.directory / "blobs").iterdir() if path.name != ".gitignore"]
    files = f"{plural(len(sizes), 'file')}, {messages.size(sum(sizes))}"
    messages.say(f"commit {output}/: Git ignores its blobs/ ({files}), so a clone lacks what cannot be downloaded again")
    if not (result.directory / "remote.json").exists():
        messages.say(
            f"for clones: repro-env push REGISTRY/NAME, and commit {output}/remote.json; or send them repro-env pack {output} FILE"
        )


def _facts(result: CaptureResult) -> dict[str, object]:
    """The object that `--json` prints. Its keys are stable."""
    spec, target = result.spec, result.target
    return {
        "spec": result.path,
        "spec_digest": spec.digest,
        "image_id": spec.expected.image_id,
        "python": {"path": target.path, "why": target.why},
        "packages": len(spec.identity.packages),
        "distributions": len(spec.identity.distributions),
        "proven": result.proven,
        "bundled": spec.observed.bundled,
        "edited": spec.observed.edited,
        "excluded": spec.observed.excluded,
        "unknown": spec.observed.unknown,
        "unheld_variables": variables.unlisted(spec.observed.variables.named),
    }


def _print(result: CaptureResult) -> None:
    """Print what was captured, and what needs attention. `show` prints everything."""
    spec, observed, size = result.spec, result.spec.observed, messages.size
    count = len(spec.identity.packages) + len(spec.identity.distributions)
    downloadable = sum(hint.origin in ("index", "direct") for hint in (*spec.hints.wheels, *spec.hints.packages))
    rows = [
        ("spec", str(result.path)),
        ("image ID", spec.expected.image_id),
        ("python", f"{observed.interpreter.version} ({spec.identity.layout.prefix})"),
        ("packages", f"{count}, {downloadable} downloadable"),
    ]
    rows += _attention(
        "bundled",
        [
            f"{part.name} {part.version}".strip() + (f" ({size(part.size)})" if part.size else "") + f": {part.why}"
            for part in observed.bundled
        ],
    )
    rows += _attention("edited", observed.edited)
    if observed.source is not None:
        rows.append(("source", f"{observed.source.path}, {size(observed.source.size)}"))
    excluded = [row for row in observed.excluded if row.why not in exclusions.USUAL_REASONS or messages.Screen.level == "verbose"]
    excluded.sort(key=lambda row: (-row.size, row.path))
    rows += _attention("left out", [f"{row.path}{f' ({size(row.size)})' if row.size else ''}: {row.why}" for row in excluded])
    if observed.source is not None and any(row.why.startswith("git-ignored") for row in excluded):
        rows.append(
            (
                "",
                f"git-ignored data is not captured; runs in this directory see it, up to {size(CAP)}, and name what they do not see",
            )
        )
    rows += [("data", f"{data.path}, {plural(data.files, 'file')}, {size(data.size)}") for data in observed.data]
    rows += [("note", note) for note in (*observed.remarks, *_variable_remarks(observed.variables))]
    rows += [("unknown", unknown) for unknown in observed.unknown]
    for label, text in rows:
        messages.result(f"{label:<12}  {text}")


def _attention(label: str, items: Sequence[str]) -> list[tuple[str, str]]:
    """The rows of a list: the first entries with the number of the others, or all with --verbose."""
    shown = items if messages.Screen.level == "verbose" else items[:_SHOWN]
    more = [("", f"and {len(items) - len(shown):,} more (`repro-env show --all` lists them)")] if len(items) > len(shown) else []
    return [*((f"  {label}", item) for item in shown), *more]


def _variable_remarks(observed: Variables) -> Iterator[str]:
    """Notes on variables that are set here and not captured."""
    names = sorted(variables.unlisted(observed.named))
    plain = [name for name in names if not variables.is_secret(name)]
    secret = [name for name in names if variables.is_secret(name)]
    if plain:
        yield f"set here but not in the spec: {shorten(plain, _NAMED)} (capture --env NAME adds one)"
    if secret:
        yield f"set here but left out as secrets: {shorten(secret, _NAMED)} (exec --env NAME passes one to a run)"
