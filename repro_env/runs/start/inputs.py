"""What a run starts from, as one value: made once, before the command starts, and read by everything after it."""

from __future__ import annotations

import contextlib
from datetime import datetime, timezone
from pathlib import Path

import msgspec

from repro_env.environment.machine import host as machine
from repro_env.io import package
from repro_env.launch import engines
from repro_env.runs.records import checkpointstate, records
from repro_env.runs.records import end as ended
from repro_env.runs.records.checkpointstate import Listing
from repro_env.runs.start import request, speccopy
from repro_env.runs.start.data import RunData
from repro_env.runs.start.origin import Origin, Project
from repro_env.runs.start.repository import Repository
from repro_env.runs.start.request import RunOptions
from repro_env.runs.start.snapshot import Snapshot
from repro_env.runs.start.sourcedirectory import SourceDirectory
from repro_env.sandbox import plan
from repro_env.schema.progress import Tell
from repro_env.schema.run import Gpus, Launch, Request, Start
from repro_env.schema.rundirectory import REPORTS
from repro_env.schema.spec import Spec
from repro_env.version import __version__


class Inputs(msgspec.Struct, frozen=True, kw_only=True):
    """What a run starts from: the user's options, all that was read for them, and the record and the launch made of both."""

    origin: Origin
    options: RunOptions
    project: Project
    code: SourceDirectory
    """Where the code is on this machine."""
    source: Snapshot
    """The code in the store."""
    repository: Repository
    """The git repository of the code."""
    bytecode: Path | None
    """The compiled modules of the image in the store; None if the run has none."""
    checkpoints: Listing | None = None
    """The files of the `--checkpoints` directories; None without `--checkpoints`."""
    start: Start
    launch: Launch

    @property
    def spec(self) -> Spec:
        """The spec of the run."""
        return self.project.spec

    @property
    def run_directory(self) -> Path:
        """The directory of the run, which the caller makes."""
        return Path(self.launch.reports).parent

    @property
    def runs(self) -> Path:
        """The directory with all runs of the project."""
        return self.run_directory.parent


def make(
    options: RunOptions,
    project: Project,
    origin: Origin,
    *,
    code: SourceDirectory,
    source: Snapshot,
    git: Repository,
    data: RunData,
    gpus: Gpus,
    bytecode: Path | None,
) -> Inputs:
    """Make the record of the start and the launch from all that was read. Raises `UsageError` for an invalid command or mount."""
    spec, started, given = project.spec, datetime.now(timezone.utc), options.variables()
    here = origin.working_directory(options, code, project.workspace)
    command = request.redact_command(options.command, request.secrets_of(options))
    words = request.exact_words(options.command, command)
    directory = origin.directory or project.runs / records.name_of(started, command, origin.run_id)
    start = Start(
        schema="repro-env/run-start/1",
        id=origin.run_id,
        started=ended.timestamp(started),
        spec=spec.digest,
        image=spec.expected.image_id,
        runner=options.runner,
        command=command,
        cwd=plan.working_directory(str(here), project.workspace, source.directories),
        seed=options.seed_for(spec),
        source=source.fact,
        data=data.facts,
        env_names=tuple(variable.name for variable in given),
        python_path=request.python_path_of(options, code.root, project.workspace),
        git=git.digest,
        network=options.network or not options.traits.has_own_network,
        host=host_facts(),
        ranks=options.ranks,
        determinism=options.determinism,
        ids=options.ids or ("seeded" if options.determinism == "strict" else "system"),
        threads=plan.threads(spec, options.determinism, options.threads),
        trace=options.trace,
        gpus=gpus.count,
        devices=gpus.facts,
        limits=options.limits,
        processes=options.member.size,
        command_is_exact=(words or command) == options.command,
        words=words,
        terminal_type=request.term_of(options.environ),
        streams=request.streams_of(options),
        parents=origin.parents(options, project, data),
        job=engines.job_of(options.environ),
        tool=__version__,
        defaults=options.defaults,
    )
    start = origin.record(start, options)
    needed = Request(
        command=options.command,
        mounts=(*data.mounts, *git.mounts),
        env=given,
        caller=request.caller_variables_of(options),
        user=request.user_of(options.environ),
        threads=options.threads,
        network=options.network,
        gpus=gpus,
        tools=str(package.ROOT),
        resumed=None if origin.resumed is None else str(origin.resumed.directory.resolve()),
        reports=str(directory / REPORTS),
        member=options.member,
        streams=options.streams,
    )
    return Inputs(
        origin=origin,
        options=options,
        project=project,
        code=code,
        source=source,
        repository=git,
        bytecode=bytecode,
        start=start,
        launch=plan.plan(spec, start, needed),
    )


def complete(inputs: Inputs, tell: Tell) -> Inputs:
    """Return the inputs with what is read and kept at the end of all checks: the checkpoints, and the copy of the spec."""
    if not inputs.origin.records_start:
        return inputs
    options, project, launch = inputs.options, inputs.project, inputs.launch
    with tell.progress(0, "reading checkpoints") if options.checkpoints else contextlib.nullcontext():
        checkpoints = checkpointstate.scan(launch.mounts, project.store)
    start = msgspec.structs.replace(
        inputs.start,
        host_env=request.host_variables_of(options, project.spec, launch),
        checkpoints_before=checkpointstate.digest(checkpoints),
        spec_file=speccopy.keep(options, project.spec, project.directory, project.runs, store=project.store, tell=tell),
    )
    return msgspec.structs.replace(inputs, checkpoints=checkpoints, start=start)


def host_facts() -> tuple[str, ...]:
    """Return the facts of this machine for the record: one per line, each starting with its name."""
    host = machine.host()
    return (
        f"os {host.os}",
        f"kernel {host.kernel}",
        f"cpu {host.cpu} ({host.machine})",
        f"isa {' '.join(host.isa)}",
        f"cores {host.cores}",
        f"memory {host.memory}",
    )
