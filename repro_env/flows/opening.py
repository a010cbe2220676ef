"""What `exec` reports before the command starts."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

from repro_env.capture import variables
from repro_env.catalog.ids import short
from repro_env.flows import snapshot, sourcedir
from repro_env.flows.asked import Asked
from repro_env.flows.repository import Shown
from repro_env.flows.sourcedir import SourceDirectory
from repro_env.model import redact
from repro_env.model.run import Launch, Start
from repro_env.model.spec import Spec
from repro_env.model.talk import Tell
from repro_env.run import landlock, plan

_NAMED = 10
"""How many things are named before the rest is counted."""
_FEW = 3
"""The same, in the line that everybody sees."""


def announce(
    asked: Asked,
    spec: Spec,
    start: Start,
    where: Path,
    chosen: SourceDirectory,
    git: Shown,
    launch: Launch,
    tell: Tell,
) -> None:
    """Report what is about to run: a line, another for variables without effect, and details."""
    how = f", image {start.image.removeprefix('sha256:')[:12]}"
    if asked.runner == "host":
        how = f" on the host, without isolation{', in a private copy of the source' if asked.private else ''}"
    tell(f"run {short(start.id)}{how}, seed {start.seed}; {_source(asked, spec, start, chosen)}")
    if start.ids == "seeded":
        tell("random ids are drawn from the seed and can be predicted: do not use them as secrets (--ids system)")
    if start.source.directory is not None and (hint := _own_code(asked, spec, chosen)):
        tell(f"{asked.here} is not the source of this run{hint}")
    if asked.private and not _is_held(asked):
        tell.warn("this kernel has no Landlock (Linux 5.19): the command can write to your own files by their absolute paths")
    for text in _unused(asked, spec, start, launch):
        tell(text)
    for text in _details(asked, start, where, chosen, git, launch):
        tell.detail(f"  {text}")


def _source(asked: Asked, spec: Spec, start: Start, chosen: SourceDirectory) -> str:
    """Which code is used, and what of it differs from the capture."""
    fact = start.source
    if asked.repeats:
        return "source of the run"
    if fact.directory is None:
        hint = "" if asked.frozen else _own_code(asked, spec, chosen) or "; to run the code in a directory: --source DIR"
        return f"captured source ({chosen.why}{hint})"
    moved = "" if fact.directory == plan.workspace_of(spec) else f"{fact.directory} "
    ignored = f", and {some(fact.ignored, ', ', _FEW)} (git-ignored)" if fact.ignored else ""
    ignored += f", and a copy of {some(fact.siblings, ', ', _FEW)}" if fact.siblings else ""
    changes = [line for line in fact.differs if not line.endswith(f"({snapshot.OUTPUT})")]
    outputs = len(fact.differs) - len(changes)
    restored = f", with the captured {some(fact.restored, ', ', _FEW)} (git-ignored, and not here)" if fact.restored else ""
    more = (f", with {outputs:,} output{'s' * (outputs > 1)} of earlier runs on the host" if outputs else "") + restored + ignored
    if not changes:
        return f"source {moved}as captured{more}"
    return f"{f'source {moved}' if moved else ''}changed since capture: {some(changes, ', ', _FEW)}{more}"


def _own_code(asked: Asked, spec: Spec, chosen: SourceDirectory) -> str:
    """A hint for who stands in another copy of the code than the one that is used."""
    source, used = spec.observed.source, asked.source is not None or asked.repeats
    if source is None or used or asked.here == chosen.path or not sourcedir.holds(source, asked.here):
        return ""
    return f"; to run the code here: --source {shlex.quote(str(asked.here))}"


def _is_held(asked: Asked) -> bool:
    """Whether the command is kept from writing to the user's own files."""
    return asked.runner != "host" or (asked.private and landlock.is_available())


def _details(asked: Asked, start: Start, where: Path, chosen: SourceDirectory, git: Shown, launch: Launch) -> Iterator[str]:
    if asked.kept:
        yield f"directory {where}"
    if start.determinism != "warn" or asked.threads is not None:
        threads = f", {asked.threads} thread{'s' * (asked.threads > 1)}" if asked.threads is not None else ""
        yield f"determinism {start.determinism}{threads}"
    fact = start.source
    yield f"source {fact.directory or 'as captured'}" + (f" at {fact.path}" if fact.directory != fact.path else "")
    yield from (f"  {line}" for line in fact.differs)
    yield from (f"  git-ignored, and not here; the captured file is used: {path}" for path in fact.restored)
    yield from (f"  git-ignored, seen as data: {path}" for path in fact.ignored)
    yield from (f"  beside the source, seen as a copy: {path}" for path in fact.siblings)
    if git.text:
        yield git.text
    for mount in start.data:
        access = "read-only" if _is_held(asked) else "not protected: the host runner can write there"
        access = access if mount.kind == "data" else "writable"
        yield f"{mount.kind} {mount.source}" + (f" at {mount.target}" if mount.target != mount.source else "") + f" ({access})"
    if launch.cwd != str(asked.here if asked.repeats else chosen.inside(asked.here, launch.workspace)):
        yield f"working folder {launch.cwd}: {asked.here} is not part of the source"
    if start.passed:
        yield f"passed on to the command by the host runner, and absent from runs in the image: {some(start.passed, ', ')}"
    if not asked.network:
        network = "no network" if asked.runner != "host" else "the network is this machine's"
        yield f"{network}; W&B and Hugging Face are set to offline (--network)"


def _unused(asked: Asked, spec: Spec, start: Start, launch: Launch) -> Iterator[str]:
    """A line on the caller's variables whose values the run does not use."""
    if not asked.repeats:
        unused = variables.unused(asked.environ, {one.name: one.value for one in launch.env}, spec.observed.variables.added)
        given = {one.name for one in start.given}
        if names := [name for name in unused if name not in given]:
            yield f"set here but not used, because the run uses the spec's values: {some(names, ', ')} (--env NAME passes your value)"


def some(items: tuple[str, ...] | list[str], between: str, most: int = _NAMED) -> str:
    shown = between.join(items[:most])
    return shown if len(items) <= most else f"{shown}{between}and {len(items) - most} more"


def shown(command: tuple[str, ...], hidden: frozenset[str] = frozenset()) -> tuple[str, ...]:
    """The command as the record shows it: secrets out, also one that follows its option as a word of its own.

    `hidden` are values of the caller's variables that are secrets by their name.
    """
    shown = []
    for number, word in enumerate(command):
        line = redact.line(word, hidden)
        if number:
            before = redact.line(command[number - 1])
            if redact.REDACTED not in line and redact.line(f"{command[number - 1]} {word}") != f"{before} {line}":
                line = redact.REDACTED
            if command[number - 1].startswith("-") and "=" not in command[number - 1] and not word.startswith("-"):
                line = redact.value(command[number - 1], line)
        name, sign, value = line.partition("=")
        if sign and " " not in name and redact.REDACTED not in line:
            line = f"{name}={redact.value(name, value)}"
        shown.append(line)
    return tuple(shown)
