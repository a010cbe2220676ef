"""The command `repro-env exec`: run a command with an image and a source, and record the run.

Every check comes before the run directory is created. From then on the run has a record, even if the command fails; a
record without an end means that the run was interrupted.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path

import msgspec

from repro_env.api import preflight, rebuild
from repro_env.compare.environments.drift import check_drift, check_host, check_imports
from repro_env.compare.preflight.finding import facts_of
from repro_env.delivery.builder import layers
from repro_env.io import pyproject
from repro_env.policy.defaults import POLICY
from repro_env.runs.execution import bytecode, recording, sharing
from repro_env.runs.execution.recording import FinishedRun
from repro_env.runs.records import annotation
from repro_env.runs.records.processes import Gathering
from repro_env.runs.start import data, devices, inputs, launcher, origin, script, sourcedirectory
from repro_env.runs.start.inputs import Inputs
from repro_env.runs.start.origin import Origin, Project
from repro_env.runs.start.report import announce
from repro_env.runs.start.repository import Repository
from repro_env.runs.start.request import RunOptions
from repro_env.sandbox import fabric
from repro_env.sandbox.runner import Runner
from repro_env.sandbox.runners import runner_class
from repro_env.schema.progress import SILENT, Tell
from repro_env.schema.run import Gpus
from repro_env.specs.argument import Opened, SpecName, current_directory, open_spec, project_of
from repro_env.store.specs.lookup import runs_directory
from repro_env.store.store import Store

__all__ = ["FinishedRun", "execute"]


def execute(
    spec: SpecName, command: Sequence[str], options: RunOptions | None = None, *, store: Store | None = None, tell: Tell = SILENT
) -> FinishedRun:
    """Run a command in the image of a spec, and record the run. The options are those of `repro-env exec`.

    A failure of the command itself is not an error: its exit code is `end.outcome.exit_code` of the result. Raises as `run`.
    """
    store = store or Store.open()
    options = (options or RunOptions()).with_command(command, current_directory())
    return run(options, open_spec(spec, options.here, store, tell), store=store, tell=tell)


def run(
    options: RunOptions, opened: Opened, start: Origin | None = None, *, store: Store, tell: Tell, backend: Runner | None = None
) -> FinishedRun:
    """Run a command and record it. `start`: where it starts from; None for what the options say, which may be a shared run.

    Raises `UsageError`, `DataError`, `DriftError`, `RecordError`, `PolicyError` for the options; `MachineError` if this machine cannot run the image;
    `SandboxError`, `RunError`, `CommandMissingError` if the command cannot be started; what a rebuild raises.
    """
    make = functools.partial(prepare, compiles=backend is None, store=store, tell=tell)
    shared = launcher.find(options) if start is None else None
    if shared is None:
        made = make(options, opened, start)
        announce(made, tell)
        return recording.run(made, backend, tell)
    member, key = shared
    options = msgspec.structs.replace(options, member=member)
    gathering = Gathering(_project(options, opened, store).runs, key)
    return sharing.run(member, gathering, functools.partial(make, options, opened), options, backend=backend, tell=tell)


def _project(options: RunOptions, opened: Opened, store: Store) -> Project:
    return Project(opened.spec, opened.directory, options.runs or opened.runs or runs_directory(opened.directory), store)


def prepare(
    options: RunOptions,
    opened: Opened,
    start: Origin | None = None,
    *,
    compiles: bool,
    is_here: bool = True,
    store: Store,
    tell: Tell,
) -> Inputs:
    """Check the options, and bring the image and the source into the store. Nothing is recorded yet. Raises as `run`.

    `start`: as in `run`. `compiles`: also the bytecode of the image. `is_here`: the command runs on this machine, so it is examined,
    with its GPUs.
    """
    spec, traits = opened.spec, options.traits
    project = _project(options, opened, store)
    start = start or origin.find(options, project)
    options.variables()  # checks them first
    code = sourcedirectory.choose(spec, project.directory, store=store, given=options.source, frozen=options.frozen)
    here = start.working_directory(options, code, project.workspace)
    mounts = options.mounts(spec, here, tell)
    if start.checks_command:
        others = (*(mount.target for mount in mounts), *(item.path for item in spec.observed.data), spec.identity.layout.prefix)
        script.check(options.command, code, here=here, workspace=project.workspace, others=others)
    for tag in options.tags:
        annotation.check_tag(tag)
    for note in runner_class(options.runner).check(spec, options.limits) if is_here else ():
        tell(f"not as requested: {note}")
    if not traits.is_live:
        layers.check_platform(spec)
    gpus = _examine(options, project, warns=start.records_start, tell=tell) if is_here else Gpus()
    is_trusted = code.path is not None or sourcedirectory.is_trusted(spec, project.directory, store)
    found = data.collect(options, spec, mounts, root=code.root, is_trusted=is_trusted, store=store, tell=tell)
    compiled = None
    if traits.is_live:
        check_host(spec, code)
    elif traits.needs_image:
        compiled = _prepare_image(options, opened, compiles=compiles, store=store, tell=tell)
    source = start.code(project, code, found.mounts, tell)
    git = Repository() if traits.is_live else start.repository(project, code, source, found.mounts)
    made = inputs.make(options, project, start, code=code, source=source, git=git, data=found, gpus=gpus, bytecode=compiled)
    if traits.is_live:
        check_imports(spec, source, project.directory, runs=project.runs, store=store)
        check_drift(spec, project.directory, made.launch, store, tell)
    if start.obeys_policy and options.keeps_record and has_policy(options, opened):
        from repro_env.api import policy  # slow to import

        policy.require(options, opened, made.start, tell)
    return inputs.complete(made, tell)


def has_policy(options: RunOptions, opened: Opened) -> bool:
    """Whether the project has rules for a run, or the run has exceptions to them. Raises `UsageError` if its file cannot be read."""
    return bool(options.exceptions or pyproject.read(options.source or project_of(opened), POLICY)[0])


def _examine(options: RunOptions, project: Project, *, warns: bool, tell: Tell) -> Gpus:
    """Return the GPUs of the run. Raises `MachineError` if this machine cannot run the image, and prints what may differ."""
    gpus, absence = devices.choose(options, project.spec)
    findings = preflight.examine(
        project.spec,
        project.store,
        gpus=gpus.facts,
        absence=absence,
        runner=options.runner,
        replays_threads=options.determinism != "off",
    )
    preflight.require(findings, project.directory, here=options.here, tell=tell)
    if options.network and options.traits.is_isolated:
        adapters = fabric.look(facts_of(project.spec).packages)
        gpus = msgspec.structs.replace(gpus, nodes=(*gpus.nodes, *adapters.nodes))
        if adapters.problem and warns:
            tell.warn(adapters.problem)
    return gpus


def _prepare_image(options: RunOptions, opened: Opened, *, compiles: bool, store: Store, tell: Tell) -> Path | None:
    """Bring the image to where the runner uses it. Return its bytecode in the store, with `compiles`."""
    if not rebuild.present(opened.spec, opened.directory, store):
        tell.detail("the image is not on this machine yet; rebuilding it first")
        rebuild.rebuild(opened, store=store, tell=tell)
    if options.traits.keeps_images:
        from repro_env.runs.execution import engine  # slow to import

        engine.load(opened.spec, store, tell)
    return bytecode.of_image(opened.spec, options, store=store, tell=tell) if compiles else None
