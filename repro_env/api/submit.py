"""The command `repro-env exec --on`: submit a run to a scheduler.

Everything that `exec` checks is checked before the job is submitted. The image, the code and the spec are in the store and next to
the runs from then on, or in a registry for Kubernetes, so a job that waits for days runs what was submitted.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from repro_env.api import execute
from repro_env.api.jobs import client_of
from repro_env.environment.secrets.bundles import SecretSearch
from repro_env.io.files import FileContents, walk
from repro_env.launch import settings as job_settings
from repro_env.launch.engine import Engine, NodeJob, PodEngine, PodJob, Resources, digest_of
from repro_env.launch.engines import JobOptions
from repro_env.oci import paths
from repro_env.runs.lineage.parents import directory_of
from repro_env.runs.records import ids, records, submissions
from repro_env.runs.records.submissions import Submission, Submitted
from repro_env.runs.start.inputs import Inputs
from repro_env.runs.start.launcher import no_network
from repro_env.runs.start.request import RunOptions, pairs_of
from repro_env.sandbox import plan as planning
from repro_env.schema import codec
from repro_env.schema.errors import DataError, SpecError, UsageError, os_errors_as
from repro_env.schema.progress import Tell
from repro_env.schema.run import Claim, Start
from repro_env.schema.runners import DEFAULT
from repro_env.specs.argument import Opened, reference_of
from repro_env.store.specs import archive, files
from repro_env.store.specs.lookup import runs_directory
from repro_env.store.store import Store

if TYPE_CHECKING:
    from repro_env.delivery.targets.jobimage import JobImage

DECIDED = ("runs", "run_id", "seed", "env", "env_file", "gpus", "seconds")
"""Options of the run that `exec` on the node has with another value, or not at all."""
_DECIDED_IN_POD = (*DECIDED, "data", "checkpoints", "source", "frozen", "runner", "network")
_USER = 1000
"""The user of a pod if the caller is root, which pods never are."""


class Planned(msgspec.Struct, frozen=True):
    """Runs that are to be submitted as one job."""

    inputs: Inputs
    submissions: tuple[Submission, ...]
    """One for each run. They differ in the ID and the seed."""
    script: str
    image: JobImage | None = None
    """What is sent to the registry first."""

    @property
    def starts(self) -> tuple[Start, ...]:
        return tuple(submission.start for submission in self.submissions)


class _Request(msgspec.Struct, frozen=True):
    """What a job requests from its engine."""

    engine: Any
    """A `NodeEngine` or a `PodEngine`, and its settings."""
    settings: Any
    job: JobOptions
    resources: Resources
    template: str
    gpus: str
    """The option `--gpus` on the node."""

    def submission(self, start: Start, catalog: str = "") -> Submission:
        default = msgspec.to_builtins(type(self.settings)())
        settings = {key: value for key, value in msgspec.to_builtins(self.settings).items() if value != default[key]}
        return Submission(
            engine=self.engine.name, start=start, catalog=catalog, settings=settings, template=digest_of(self.template)
        )


def plan(options: RunOptions, opened: Opened, job: JobOptions, *, store: Store, tell: Tell) -> Planned:
    """Check runs that are to be submitted.

    Raises as `execute.run`; `EngineError`; and `SpecError` if the image must be in a registry and is not.
    """
    request = _request(options, job)
    plan_job = _plan_pod if isinstance(request.engine, PodEngine) else _plan_node
    return plan_job(msgspec.structs.replace(options, gpus=None), opened, request, store=store, tell=tell)


def _request(options: RunOptions, job: JobOptions) -> _Request:
    """Resolve what a job requests. Raises `UsageError`, `EngineError`."""
    engine = job.engine
    defaults, where = job_settings.defaults(engine.name, options.here)
    path = job.template
    if named := defaults.pop("template", None):
        path = path or where.parent / str(named)
    template = "" if path is None else _read_template(engine, path)
    settings = engine.complete(job_settings.parse(engine, job.settings, defaults, str(where)), options.environ)
    gpus = _check_gpus(options.gpus, requests_gpus=engine.requests_gpus(settings, template))
    resources = Resources(
        gpus=gpus if isinstance(gpus, int) else 0,
        cpus=options.limits.cpus,
        memory=options.limits.memory,
        seconds=options.limits.seconds,
        nodes=job.nodes,
    )
    several = job.nodes * settings.processes_per_node > 1
    return _Request(engine, settings, job, resources, template, "all" if gpus and several else str(gpus or "none"))


def _read_template(engine: Engine[Any], path: Path) -> str:
    with os_errors_as(UsageError, "this file cannot be read", where=f"--job-template {path}", hint="name a readable file"):
        data = path.read_bytes()
    try:
        template = data.decode()
    except UnicodeDecodeError:
        raise UsageError("this file is not UTF-8", where=f"--job-template {path}", hint="name a text file") from None
    engine.check_template(template)
    return template


def _check_gpus(request: int | str | None, *, requests_gpus: bool) -> int | str:
    """The number of GPUs that each node gets; or `all` if settings or template request them. Without a request, the run gets none.

    Raises `UsageError` for GPUs by name, because the engine chooses them.
    """
    if request is None:
        return "all" if requests_gpus else 0
    if isinstance(request, int) or (request == "all" and requests_gpus):
        return request
    hint = "give a number, for example --gpus 1, or request them as the cluster names them in a file: --job-template FILE"
    raise UsageError(f"--gpus {request} does not say how many GPUs the job gets", hint=hint)


def _plan_node(options: RunOptions, opened: Opened, request: _Request, *, store: Store, tell: Tell) -> Planned:
    """Plan runs of nodes that share files with this machine."""
    engine, settings, nodes, count = request.engine, request.settings, request.job.nodes, request.job.count
    if not options.traits.starts_in_jobs:
        raise UsageError(f"--on {engine.name} does not support --runner {options.runner}", hint="leave out --runner")
    if nodes * settings.processes_per_node > 1 and count > 1:
        raise UsageError("runs with several seeds have one process each", hint="leave out --nodes and --job tasks-per-node")
    if settings.requeues and count > 1:
        raise UsageError("jobs with several seeds are not queued again", hint="leave out --job requeue")
    if nodes > 1 and not options.network:
        raise no_network(f"{nodes} machines")
    runs = options.runs or opened.runs or runs_directory(opened.directory)
    # `latest` may be another run when the job starts.
    again = msgspec.structs.replace(
        options,
        parents=[str(directory_of(word, runs, options.here)) for word in options.parents],
        resume=options.resume and str(directory_of(options.resume, runs, options.here)),
    )
    inputs = execute.prepare(options, opened, compiles=False, is_here=False, store=store, tell=tell)
    start = inputs.start
    others = (msgspec.structs.replace(start, id=ids.new(), seed=(start.seed + number) % 2**32) for number in range(1, count))
    starts = (start, *others)
    spec = archive.directory_of(inputs.runs, start.spec_file or "")
    decided = ["--spec", str(spec), "--runs", str(inputs.runs), *_env_words(start)]
    decided += ["--job", "requeue"] if settings.requeues else []
    decided += ["--push", request.job.catalog] if request.job.catalog else []
    tool = [str(path)] if (path := Path(sys.executable).with_name("repro-env")).is_file() else [sys.executable, "-m", "repro_env"]
    directory = submissions.directory_of(inputs.runs, start.id)
    job = NodeJob(
        runs=tuple((start.id, start.seed) for start in starts),
        name=f"{records.script_of(start.command)}-{ids.short(start.id)}",
        command=(*tool, "exec", "--gpus", request.gpus, *again.words(DECIDED), *decided),
        words=options.command,
        directory=str(options.here),
        jobs=str(directory.parent),
        store=str(store.root),
        needed=(tool[0], str(store.root), str(directory), str(spec)),
    )
    script = engine.script(job, request.resources, settings, request.template)
    return Planned(inputs, tuple(map(request.submission, starts)), script)


def _env_words(start: Start) -> list[str]:
    return [word for name in start.env_names for word in ("--env", name)]


def _plan_pod(options: RunOptions, opened: Opened, request: _Request, *, store: Store, tell: Tell) -> Planned:
    """Plan a run of pods."""
    from repro_env.delivery.builder import remote  # slow to import, like the next one
    from repro_env.delivery.targets import jobimage

    engine = request.engine
    for option, value in (("resume", options.resume), ("parent", options.parents)):
        if value:
            what = f"--on {engine.name} does not support --{option}, because pods do not have the runs of this machine"
            raise UsageError(what, hint=f"leave out --{option}")
    if options.runner != DEFAULT:
        raise UsageError(f"--on {engine.name} does not support --runner {options.runner}", hint="leave out --runner")
    spec = opened.spec
    copy = next(iter(remote.read(opened.directory).copies), None)
    if copy is None:
        hint = "push it with `repro-env push HOST/NAME:TAG`; nodes pull it from there"
        raise SpecError("the image of this spec is not in a registry", where=str(opened.directory), hint=hint)
    catalog = request.job.catalog or copy.repository
    if reference_of(catalog) is None:
        hint = "name HOST/NAME of a registry, or leave it out to push to the repository of the image"
        raise UsageError("a pod can push its run only to a registry", where=f"--push {catalog}", hint=hint)
    claims = [engine.claim("data", *pair) for pair in pairs_of(options.data)]
    claims += [engine.claim("checkpoints", *pair) for pair in pairs_of(options.checkpoints)]
    _check_claims(opened, claims, is_optional=options.data_changed)
    options = msgspec.structs.replace(options, runner="pod", network=True, data=(), checkpoints=())
    without_data = msgspec.structs.replace(spec, observed=msgspec.structs.replace(spec.observed, data=()))
    inputs = execute.prepare(
        options, msgspec.structs.replace(opened, spec=without_data), compiles=False, is_here=False, store=store, tell=tell
    )
    start = inputs.start
    _check_secrets(inputs, store)
    submission = request.submission(start, catalog)
    spec_directory = archive.directory_of(inputs.runs, start.spec_file or "")
    in_pod = f"{paths.JOB}/runs/{spec_directory.relative_to(inputs.runs)}"
    contents = {
        f"{in_pod[len(paths.JOB) + 1 :]}/{name}": (spec_directory / name).read_bytes() for name in (files.SPEC, files.REMOTE)
    }
    contents[f"runs/{records.JOBS}/{start.id}/submission.json"] = codec.pretty(submission)
    image = jobimage.make(spec, copy, contents, start.source.trees, store)
    workspace = planning.workspace_of(spec)
    time = ("--time", f"{options.limits.seconds}s") if options.limits.seconds else ()
    passed = ("exec", "--gpus", request.gpus, *time, *options.words(_DECIDED_IN_POD))
    decided = ["--spec", in_pod, "--runs", f"{paths.JOB}/runs", "--runner", "pod", "--network", "--push", catalog]
    for number, claim in enumerate(claims):
        decided += [f"--{claim.kind}", f"{PodJob.mount_path(claim, number, workspace)}:{claim.target}"]
    ending = ("--run-id", start.id, "--seed", str(start.seed), "--", *options.command)
    script_name = re.sub(r"[^a-z0-9]+", "-", Path(records.script_of(start.command)).stem.lower()).strip("-")[:40].strip("-")
    job = PodJob(
        run_id=start.id,
        name="-".join(filter(None, (script_name, ids.short(start.id)))),
        image=f"{copy.repository}@{copy.image}",
        job_image=image.name,
        interpreter=spec.identity.interpreter.executable,
        command=(*passed, *decided, *_env_words(start), *ending),
        workspace=workspace,
        claims=tuple(claims),
        protected=tuple(planning.protected_directories(spec.identity)),
        given=start.env_names,
        uid=os.geteuid() or _USER,
        gid=os.getegid() or _USER,
    )
    return Planned(inputs, (submission,), engine.script(job, request.resources, request.settings, request.template), image)


def _check_claims(opened: Opened, claims: Sequence[Claim], *, is_optional: bool) -> None:
    """Raise `UsageError` for an invalid mount, and `DataError` if captured data is not mounted."""
    spec = opened.spec
    planning.check_mounts(spec, claims)
    workspace = planning.workspace_of(spec)
    for tree in planning.trees(spec, workspace):
        if paths.is_below(tree.root, workspace):
            what = f"the environment {tree.root} is in the project, whose directory the pod mounts over it"
            hint = "create the environment outside the project, and capture it again"
            raise UsageError(what, where=tree.root, hint=hint)
    targets = {claim.target for claim in claims}
    for data in spec.observed.data:
        if data.path not in targets and not is_optional:
            hint = f"mount a claim that has them: --data CLAIM:{data.path}; to run without them: --data-changed"
            raise DataError("these data were named at capture, and pods do not have them", where=data.path, hint=hint)


def _check_secrets(inputs: Inputs, store: Store) -> None:
    """Raise `CaptureError` if a file that goes to the registry has a secret."""
    search = SecretSearch((), store.facts)
    for diff_id in inputs.start.source.trees:
        tree = store.layers.path(diff_id)
        if tree is not None:
            search.search_tree(list(walk(tree)), FileContents(tree).chunks)
    search.raise_if_found(where="the code", options="")


def submit(planned: Planned, *, prints: bool = False, store: Store, tell: Tell) -> Submitted:
    """Submit the job of planned runs; return the first of them, whose job is the complete one.

    `prints`: prepare all that the job needs, for a user who submits it. Its ID may not be known then. Raises `EngineError`,
    `RecordError`, `DiskError`, `NetworkError`; nothing is left behind then, except in the registry.
    """
    inputs, options = planned.inputs, planned.inputs.options
    store.run_directories.add(inputs.runs, inputs.start.source.trees)
    written: list[Path] = []
    if planned.image is not None:
        from repro_env.delivery.targets import jobimage  # slow to import

        jobimage.push(planned.image, f"job-{inputs.start.id}", tell)
    try:
        written.extend(submissions.write(inputs.runs, submission) for submission in planned.submissions)
        first = Submitted(written[0], planned.submissions[0], "")
        client = client_of(first, options.environ, variables=options.variables())
        job = client.prepare(planned.script) if prints else client.submit(planned.script)
    except BaseException:
        for directory in written:
            submissions.remove(directory)
        raise
    for number, directory in enumerate(written if job else ()):
        submissions.write_job(directory, f"{job}_{number}" if len(written) > 1 else job)
    return msgspec.structs.replace(first, job=job)
