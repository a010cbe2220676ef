"""Print what `repro-env exec` is about to run, before the command starts."""

from __future__ import annotations

import contextlib
import shlex
from collections import Counter
from collections.abc import Iterator

from repro_env.environment.machine import variables
from repro_env.launch import engines
from repro_env.oci.paths import is_below
from repro_env.runs.records import annotation, records
from repro_env.runs.records.annotation import Annotation
from repro_env.runs.records.ids import short
from repro_env.runs.start import sourcedirectory
from repro_env.runs.start.inputs import Inputs
from repro_env.runs.start.request import RunOptions
from repro_env.sandbox import landlock, plan
from repro_env.schema.environment import values_of
from repro_env.schema.errors import ReproEnvError
from repro_env.schema.messages import plural, shorten
from repro_env.schema.progress import Tell
from repro_env.schema.run import Parent

_NAMED = 10
"""How many items a detail line names; the others are counted."""


def announce(inputs: Inputs, tell: Tell) -> None:
    """Print a line about the run, lines that the user should know, and details."""
    options, start = inputs.options, inputs.start
    how = f", image {start.image.removeprefix('sha256:')[:12]}"
    if options.traits.is_live:
        how = " on the host, without isolation, in a private copy of the source"
    if start.gpus:
        how += f", {start.gpus} GPU{'s' * (start.gpus != 1)}"
    tell(f"run {short(start.id)}{how}, seed {start.seed}; {_source(inputs)}")
    if start.defaults:
        tell(f"{', '.join(start.defaults)} (from pyproject.toml)")
    if start.resume_of is not None:
        tell(
            f"resumes the run {short(start.resume_of)}, whose outputs are in the project; generators that the script does not seed "
            f"draw new numbers (resume {start.resumes})"
        )
    if start.ids == "seeded":
        tell("random IDs come from the seed and are predictable: do not use them as secrets (to change this: --ids system)")
    if start.source.directory is not None and (hint := _source_hint(inputs)):
        tell(f"{options.here} is not the source of this run{hint}")
    for parent in start.parents:
        if (retired := _retirement(inputs, parent)) is not None:
            tell.warn(f"the run {short(parent.id)}, from which this one starts, is retired: {retired.text[0]}")
    if not _is_confined(options):
        tell.warn("this kernel has no Landlock (Linux 5.19): the command can write to your files if it uses absolute paths")
    for text in (*_unseen(inputs), *_unused(inputs)):
        tell(text)
    for text in _details(inputs):
        tell.detail(f"  {text}")


def _retirement(inputs: Inputs, parent: Parent) -> Annotation | None:
    """Why a parent is retired; None if it is not, or is not known here."""
    with contextlib.suppress(ReproEnvError):  # an unreadable record is the subject of `runs audit`
        return annotation.retirement(annotation.of(records.find(inputs.runs, parent.id)))
    return None


def _source(inputs: Inputs) -> str:
    """Say which code the run uses, and how it differs from the captured code."""
    options, fact = inputs.options, inputs.start.source
    if not inputs.origin.follows_caller:
        return "source of the run"
    if fact.directory is None:
        hint = "" if options.frozen else _source_hint(inputs) or "; to run the code in a directory: --source DIR"
        return f"captured source ({inputs.code.why}{hint})"
    moved = "" if fact.directory == plan.workspace_of(inputs.spec) else f"{fact.directory} "
    ignored = f", and {shorten(fact.ignored)} (git-ignored)" if fact.ignored else ""
    restored = f", with the captured {shorten(fact.restored)} (git-ignored, missing here)" if fact.restored else ""
    more = restored + ignored
    if not fact.differs:
        return f"source {moved}as captured{more}"
    return f"{f'source {moved}' if moved else ''}changed since capture: {shorten(fact.differs)}{more}"


def _source_hint(inputs: Inputs) -> str:
    """Return a hint if the working directory holds another copy of the code than the run uses."""
    options, source = inputs.options, inputs.spec.observed.source
    used = options.source is not None or not inputs.origin.follows_caller
    if source is None or used or options.here == inputs.code.path or not sourcedirectory.holds(source, options.here):
        return ""
    return f"; to run the code here: --source {shlex.quote(str(options.here))}"


def _is_confined(options: RunOptions) -> bool:
    """Whether the command cannot write to the user's own files."""
    return options.traits.is_isolated or landlock.is_available()


def _details(inputs: Inputs) -> Iterator[str]:
    options, start, launch = inputs.options, inputs.start, inputs.launch
    if options.keeps_record:
        yield f"directory {inputs.run_directory}"
    if start.determinism != "warn" or options.threads is not None:
        threads = f", {plural(options.threads, 'thread')}" if options.threads is not None else ""
        yield f"determinism {start.determinism}{threads}"
    fact = start.source
    yield f"source {fact.directory or 'as captured'}" + (f" at {fact.path}" if fact.directory != fact.path else "")
    yield from (f"  {line}" for line in fact.differs)
    yield from (f"  git-ignored and missing here, so the captured file is used: {path}" for path in fact.restored)
    yield from (f"  git-ignored, mounted as data: {path}" for path in fact.ignored)
    if inputs.repository.text:
        yield inputs.repository.text
    for mount in start.data:
        access = "read-only" if _is_confined(options) else "not protected: the host runner can write to it"
        access = access if mount.kind == "data" else "writable"
        yield f"{mount.kind} {mount.source}" + (f" at {mount.target}" if mount.target != mount.source else "") + f" ({access})"
    for name, number in Counter(fact.name for fact in start.devices).items():
        yield f"GPU {name}" + (f" ({number} of them)" if number > 1 else "")
    if launch.cwd != str(inputs.origin.working_directory(options, inputs.code, launch.workspace)):
        yield f"working directory {launch.cwd}, because {options.here} is not part of the source"
    if start.host_env:
        yield f"variables that the command gets from the host, but not in runs in the image: {shorten(start.host_env, _NAMED)}"
    if not options.network:
        network = "no network" if options.traits.has_own_network else "network of the host"
        yield f"{network}; W&B and Hugging Face are set to offline mode (to change this: --network)"


def _unseen(inputs: Inputs) -> Iterator[str]:
    """Yield a line that names what is in the directory, or what its symlinks lead to, and is not in the run."""
    workspace, mounts = inputs.launch.workspace, [mount.target for mount in inputs.launch.mounts]
    unseen = [(path, text) for path, text in inputs.start.source.not_in_run.items() if not is_below(path, *mounts)]
    if not inputs.options.traits.is_isolated:  # it can read the paths of this machine
        unseen = [(path, text) for path, text in unseen if is_below(path, workspace)]
    if unseen:
        path = unseen[0][0]
        source = inputs.code.root / path[len(workspace) + 1 :] if is_below(path, workspace) else path
        names = shorten([text for _, text in unseen], separator="; ")
        yield f"not in this run: {names} (to add {'it' if len(unseen) == 1 else 'one'}: --data {shlex.quote(str(source))})"


def _unused(inputs: Inputs) -> Iterator[str]:
    """Yield a line that names the caller's variables whose values the run does not use."""
    options = inputs.options
    if inputs.origin.follows_caller:
        used = values_of(inputs.launch.env)
        environ = {name: value for name, value in options.environ.items() if not name.startswith(engines.PREFIXES)}
        unused = variables.unused(environ, used, inputs.spec.observed.variables.added)
        if names := [name for name in unused if name not in inputs.start.env_names]:
            yield f"ignored, because the run takes these variables from the spec: {shorten(names, _NAMED)} (to use yours: --env NAME)"
