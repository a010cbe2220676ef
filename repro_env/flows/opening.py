"""What `exec` says before the command starts."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from pathlib import Path

from repro_env.capture import variables
from repro_env.flows import snapshot, sourcedir
from repro_env.flows.asked import Asked
from repro_env.flows.repository import Shown
from repro_env.flows.snapshot import Snapshot
from repro_env.flows.sourcedir import SourceDirectory
from repro_env.model import redact
from repro_env.model.run import Launch, Start
from repro_env.model.spec import Spec
from repro_env.run import landlock, plan
from repro_env.store.store import Store

_NAMED = 10
"""How many things are named before the rest is counted."""


def opening(
    asked: Asked,
    spec: Spec,
    start: Start,
    where: Path,
    source: Snapshot,
    chosen: SourceDirectory,
    git: Shown,
    launch: Launch,
    store: Store,
) -> list[str]:
    said = [f"run {where}"] if asked.kept else []
    said.append(f"  seed {start.seed}, image {start.image.removeprefix('sha256:')[:12]}{_isolation(asked)}")
    if start.determinism != "warn" or asked.threads is not None:
        threads = f", {asked.threads} thread{'s' * (asked.threads > 1)}" if asked.threads is not None else ""
        said.append(f"  determinism {start.determinism}{threads}")
    said.append(f"  source {_source(asked, start, chosen)}")
    said += [f"  {git.text}"] if git.text else []
    for one in start.data:
        how = "read-only" if _is_held(asked) else "not protected: the host runner can write there"
        how = how if one.kind == "data" else "writable"
        said.append(f"  {one.kind} {one.source}" + (f" at {one.target}" if one.target != one.source else "") + f" ({how})")
    here = asked.here if asked.repeats else chosen.inside(asked.here, launch.workspace)
    if launch.cwd != str(here):
        said.append(f"  working folder {launch.cwd}: {asked.here} is not part of the source{_own_code(asked, spec, chosen)}")
    said += [f"  {text}" for text in _variables(asked, spec, start, launch)]
    if not asked.network:
        text = "no network" if asked.runner != "host" else "the network is this machine's"
        said.append(f"  {text}; W&B and Hugging Face are set to offline (--network)")
    if asked.runner != "host":
        missing = plan.named_paths(
            asked.command,
            here=str(asked.here),
            seen=str(here),
            exists=os.path.exists,
            inside=lambda path: is_inside(path, launch, source, store),
        )
        for path, seen in missing:
            option = path if path == seen else f"{path}:{seen}"
            said.append(f"  {path} is named in the command and not in the run; to bring it: --data {option}")
    return said


def _isolation(asked: Asked) -> str:
    """What a run on the host is told apart by; empty for a run in the image."""
    if asked.runner != "host":
        return ""
    if not asked.private:
        return ", isolation none: the live environment on this machine"
    writes = "it cannot write anywhere else" if _is_held(asked) else "this kernel cannot keep it from writing elsewhere"
    return f", isolation none: the live environment, in a private copy of the source; {writes}"


def _is_held(asked: Asked) -> bool:
    """Whether the command is kept from writing to data."""
    return asked.runner != "host" or (asked.private and landlock.is_available())


def _source(asked: Asked, start: Start, chosen: SourceDirectory) -> str:
    """Which code is used, and what of it differs from the capture."""
    fact = start.source
    if asked.repeats:
        return f"{fact.path} (the run's)"
    if fact.directory is None:
        return f"{fact.path} (the captured files: {chosen.why})"
    changes = [line for line in fact.differs if not line.endswith(f"({snapshot.OUTPUT})")]
    state = f"differs from the capture: {some(changes, ', ')}" if changes else "as captured"
    if outputs := len(fact.differs) - len(changes):
        state += f", with {outputs:,} output{'s' * (outputs > 1)} of earlier runs on the host"
    moved = "" if start.runner == "host" or fact.directory == fact.path else f", seen by the run at {fact.path}"
    return f"{fact.directory} (live, {state}{moved})"


def _own_code(asked: Asked, spec: Spec, chosen: SourceDirectory) -> str:
    """A hint for who stands in another copy of the code than the one that is used."""
    source = spec.observed.source
    if source is None or asked.source is not None or asked.here == chosen.root or not sourcedir.holds(source, asked.here):
        return ""
    return f"; to run the code here: --source {shlex.quote(str(asked.here))}"


def _variables(asked: Asked, spec: Spec, start: Start, launch: Launch) -> Iterator[str]:
    """Lines on the caller's variables that the run does not have, or that a run in the image would not have."""
    if not asked.repeats:
        unused = variables.unused(asked.environ, {one.name: one.value for one in launch.env}, spec.observed.variables.added)
        given = {one.name for one in start.given}
        if names := [name for name in unused if name not in given]:
            yield f"set here but not used, because the run uses the spec's values: {some(names, ', ')} (--env NAME passes your value)"
    if start.passed:
        yield f"passed on to the command by the host runner, and absent from runs in the image: {some(start.passed, ', ')}"


def is_inside(path: str, launch: Launch, source: Snapshot, store: Store) -> bool:
    """Whether an absolute path of the host will be there in the run: by mount, source, image, or made by the runner."""
    if path in ("/", "/tmp", "/var/tmp", launch.user.home, launch.workspace) or _below(path, "/dev", "/proc", "/sys"):  # noqa: S108
        return True
    if any(_below(path, mount.target) for mount in launch.mounts):
        return True
    if _below(path, launch.prefix):
        return True
    if _below(path, launch.workspace):
        return path[len(launch.workspace) + 1 :] in source.paths
    if launch.workspace.startswith(path + "/") or any(mount.target.startswith(path + "/") for mount in launch.mounts):
        return True
    trees = (store.layers.path(diff_id) for diff_id in launch.layers)
    return any(tree is not None and os.path.lexists(f"{tree}{path}") for tree in trees)


def _below(path: str, *folders: str) -> bool:
    return any(path == folder or path.startswith(folder + "/") for folder in folders)


def some(items: tuple[str, ...] | list[str], between: str) -> str:
    shown = between.join(items[:_NAMED])
    return shown if len(items) <= _NAMED else f"{shown}{between}and {len(items) - _NAMED} more"


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
