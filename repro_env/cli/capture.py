"""`repro-env capture`: its options, and a report of what was captured, as text or JSON."""

from __future__ import annotations

import gc
import os
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from repro_env.cli import app as commands
from repro_env.cli.ui import messages
from repro_env.cli.ui.options import JsonOption, check_source, parse_path, value
from repro_env.schema.errors import UsageError

if TYPE_CHECKING:
    from repro_env.environment.python.selection import Target
    from repro_env.schema.environment import Excluded, Variables
    from repro_env.schema.spec import Spec

_GARBAGE = 100_000
"""New objects before Python searches for cycles. Capture makes hundreds of thousands, and keeps nearly all of them."""

_OFFERS = 4
"""Lines about data that the user did not name."""
_NAMED = 8
"""Variables that a line names. The others are counted."""


_HELP = """\
Capture a Python environment in a spec, file for file, together with the code and the digests of the data.

\b
  repro-env capture                            capture the active environment, and the code in this directory
  repro-env capture --python ENV --with git    capture another environment, and add Git to it

Files that cannot be downloaded again are bundled with the spec. The capture fails if a file seems to contain a secret.
"""


def add(app: typer.Typer) -> None:
    app.command(name="capture", help=_HELP, short_help=commands.COMMANDS["capture"])(command)


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
        Path, value("DIR", "Capture the code in this directory. Default: the current directory.", parser=parse_path)
    ] = Path(),
    include: Annotated[
        list[str] | None, value("GLOB", "Capture these files of the source even if Git ignores them. Repeatable.")
    ] = None,
    exclude: Annotated[list[str] | None, value("GLOB", "Leave these files out of the source. Repeatable.")] = None,
    data: Annotated[
        list[str] | None,
        value(
            "SRC[:DST]",
            "Record the digest of a file or directory of data, and mount it in runs. DST defaults to the same absolute path. "
            "Repeatable.",
        ),
    ] = None,
    output: Annotated[Path, value("DIR", "Write the spec and its files to this directory. Default: repro.")] = Path("repro"),
    base: Annotated[
        str,
        value(
            "host|REF", "Take the operating system from this machine (`host`, the default), or from an image in a registry (REF)."
        ),
    ] = "host",
    keep_base: Annotated[bool, typer.Option("--keep-base", help="Bundle a copy of the image that --base names.")] = False,
    with_: Annotated[
        list[str] | None,
        value("PROGRAM", "Add a program, package or directory of this machine, for example git. Repeatable.", "--with"),
    ] = None,
    env: Annotated[
        list[str] | None, value("NAME", "Capture the value of this variable, and set it in every run. Repeatable.")
    ] = None,
    seed: Annotated[int, value("N", "Set the default master seed for runs. Default: 0.", min=0, max=2**32 - 1)] = 0,
    not_secret: Annotated[
        list[str] | None, value("GLOB", "Capture these files even if they seem to contain a secret. Repeatable.")
    ] = None,
    json: JsonOption = False,
) -> None:
    from repro_env.api.capture import Request, capture
    from repro_env.store.store import Store

    gc.set_threshold(_GARBAGE)
    if keep_base and base == "host":
        raise UsageError("--keep-base requires --base REF", hint="leave it out: a base from this machine is always bundled")
    if with_ and base != "host":
        hint = "use a base image that contains the programs, or use --base host"
        raise UsageError("--with requires --base host, because it adds programs of this machine", hint=hint)
    request = Request(
        python=python,
        source=check_source(source) or source,
        output=output.absolute(),
        environ=dict(os.environ),
        include=tuple(include or ()),
        exclude=tuple(exclude or ()),
        data=tuple(_parse_mount(text) for text in data or ()),
        programs=tuple(with_ or ()),
        env=tuple(dict.fromkeys(env or ())),
        seed=seed,
        not_secret=tuple(not_secret or ()),
        base="" if base == "host" else base,
        keep_base=keep_base,
    )
    result = capture(request, store=Store.open(), tell=messages.say)
    if json:
        messages.json_result(_facts(result.path, result.spec, result.target, result.proven))
    else:
        _print(result.path, result.spec, result.proven, result.mentioned, holds_us=result.holds_us)
        for offer in result.offers[:_OFFERS]:
            messages.result(f"note          {offer}")
    messages.say("next: repro-env rebuild" if output == Path("repro") else f"next: repro-env rebuild {output}")


def _parse_mount(text: str) -> tuple[Path, str]:
    """The parts of `SRC[:DST]`. DST defaults to the same absolute path."""
    path, _, target = text.partition(":")
    absolute = Path(os.path.normpath(Path(path).absolute()))
    return absolute, target.rstrip("/") or str(absolute)


def _facts(path: Path, spec: Spec, target: Target, proven: int) -> dict[str, object]:
    """The object that `--json` prints. Its keys are stable."""
    from repro_env.environment.machine import variables

    return {
        "spec": path,
        "spec_digest": spec.digest,
        "image_id": spec.expected.image_id,
        "python": {"path": target.path, "why": target.why, "notes": target.notes},
        "packages": len(spec.identity.packages),
        "distributions": len(spec.identity.distributions),
        "proven": proven,
        "carried": spec.observed.carried,
        "edited": spec.observed.edited,
        "excluded": spec.observed.excluded,
        "unknown": spec.observed.unknown,
        "unheld_variables": variables.unlisted(spec.observed.variables.named),
        "base": spec.hints.base,
    }


def _print(path: Path, spec: Spec, proven: int, mentioned: Collection[str], *, holds_us: bool) -> None:
    from repro_env.environment.source import exclusions

    identity, observed = spec.identity, spec.observed
    if holds_us:
        messages.say("note: repro-env is installed in this environment, so it is captured too")
    messages.result(f"spec          {path}")
    messages.result(f"spec digest   {spec.digest}")
    messages.result(f"image ID      {spec.expected.image_id}")
    messages.result(f"python        {observed.interpreter.version} ({identity.layout.prefix})")
    if identity.packages:
        count = sum(hint.origin == "direct" for hint in spec.hints.packages)
        messages.result(f"conda         {len(identity.packages)} packages, {count} downloadable from their channel")
    count = sum(hint.origin in ("index", "direct") for hint in spec.hints.wheels)
    messages.result(f"distributions {len(identity.distributions)}, {count} downloadable, {proven} with their original wheel")
    for part in observed.carried:
        name = f"{part.name} {part.version}".strip() + (f" ({messages.size(part.size)})" if part.size else "")
        messages.result(f"  bundled     {name}: {part.why}")
    for file in observed.edited:
        messages.result(f"  edited      {file}")
    messages.result(
        f"base          {len(observed.system_packages)} system packages, {messages.size(identity.base.size)}{_base_origin(spec)}"
    )
    if identity.overlay is not None:
        messages.result(f"other files   {identity.overlay.files}, {messages.size(identity.overlay.size)}")
    if observed.source is not None:
        messages.result(f"source        {observed.source.path}, {messages.size(observed.source.size)}{_git_state(spec)}")
    shown = [row for row in observed.excluded if row.why not in exclusions.USUAL_REASONS or messages.Screen.level == "verbose"]
    for row in _largest(shown):
        size = f" ({messages.size(row.size)})" if row.size else ""
        messages.result(f"  left out    {row.path}{size}: {row.why}")
    if observed.source is not None and any(row.why.startswith("git-ignored") for row in shown):
        from repro_env.environment.source.selection import CAP

        limit = messages.size(CAP)
        messages.result(f"              git-ignored data is not captured; runs in this directory still see it, up to {limit}")
    for data in observed.data:
        messages.result(f"data          {data.path}, {data.files:,} file{'s' * (data.files != 1)}, {messages.size(data.size)}")
    for note in (*observed.notes, *_variable_notes(observed.variables, mentioned)):
        messages.result(f"note          {note}")
    for unknown in observed.unknown:
        messages.result(f"unknown       {unknown}")


def _variable_notes(observed: Variables, mentioned: Collection[str]) -> Iterator[str]:
    """Notes on variables that are set here and not captured. Names that the project's code mentions come first."""
    from repro_env.environment.machine import variables

    names = sorted(variables.unlisted(observed.named), key=lambda name: (name not in mentioned, name))
    plain = [name for name in names if not variables.is_secret(name)]
    secret = [name for name in names if variables.is_secret(name)]
    if plain:
        yield f"set here but not in the spec: {_shorten(plain)} (capture --env NAME adds one)"
    if secret:
        yield f"set here but left out as secrets: {_shorten(secret)} (exec --env NAME passes one to a run)"


def _shorten(names: Sequence[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")


def _base_origin(spec: Spec) -> str:
    hint = spec.hints.base
    if hint is None:
        return ""
    return f", {'a bundled copy of' if hint.kept else 'downloadable:'} {hint.reference}@{hint.digest}"


def _largest(excluded: Sequence[Excluded]) -> list[Excluded]:
    return sorted(excluded, key=lambda row: (-row.size, row.path))[:10]


def _git_state(spec: Spec) -> str:
    git = spec.observed.source.git if spec.observed.source else None
    if git is None:
        return ", no readable Git repository"
    return f", commit {git.commit[:12] or '(none yet)'}{' with changes' if git.dirty or git.untracked else ''}"
