"""The command `repro-env exec --on`: submit a run to a scheduler.

Everything that `exec` checks is checked before the job is submitted. The image, the code and the spec are in the store and next to
the runs from then on, or in a registry for Kubernetes, so a job that waits for days runs what was submitted.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from repro_env.api import execute
from repro_env.api.jobs import engine_of
from repro_env.environment.secrets.bundles import SecretSearch
from repro_env.io.files import FileContents, walk
from repro_env.launch import slurm
from repro_env.oci import paths
from repro_env.runs.records import ids, records, submissions
from repro_env.runs.records.submissions import Submission, Submitted
from repro_env.runs.start.inputs import Inputs
from repro_env.runs.start.request import RunOptions, variables_of
from repro_env.sandbox import plan as planning
from repro_env.schema import codec
from repro_env.schema.errors import DataError, SpecError, UsageError
from repro_env.schema.progress import Tell
from repro_env.schema.run import Mount, Start
from repro_env.schema.runners import DEFAULT
from repro_env.specs.argument import Opened, reference_of
from repro_env.store.specs import archive, files
from repro_env.store.store import Store

if TYPE_CHECKING:
    from repro_env.delivery.targets.jobimage import JobImage
    from repro_env.launch import kubernetes

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


def plan(
    options: RunOptions,
    opened: Opened,
    words: Sequence[str],
    resources: slurm.Resources,
    *,
    count: int = 1,
    store: Store,
    tell: Tell,
) -> Planned:
    """Check runs that are to be submitted to Slurm: one, or `count` with consecutive seeds, as the tasks of an array job.

    `words`: the options of `exec` on the node. Those that this function decides are added. Raises as `execute.run`.
    """
    if not options.traits.starts_in_jobs:
        raise UsageError(f"--on slurm does not support --runner {options.runner}", hint="leave out --runner")
    inputs = execute.prepare(options, opened, compiles=False, is_here=False, store=store, tell=tell)
    start = inputs.start
    others = (msgspec.structs.replace(start, id=ids.new(), seed=(start.seed + number) % 2**32) for number in range(1, count))
    starts = (start, *others)
    spec = archive.directory_of(inputs.runs, start.spec_file or "")
    decided = ["--spec", str(spec), "--runs", str(inputs.runs)]
    decided += [word for name in start.env_names for word in ("--env", name)]
    tool = [str(path)] if (path := Path(sys.executable).with_name("repro-env")).is_file() else [sys.executable, "-m", "repro_env"]
    directory = submissions.directory_of(inputs.runs, start.id)
    job = slurm.Job(
        runs=tuple((start.id, start.seed) for start in starts),
        name=f"{records.script_of(start.command)}-{ids.short(start.id)}",
        command=(*tool, "exec", *words, *decided),
        words=options.command,
        directory=str(options.here),
        jobs=str(directory.parent),
        store=str(store.root),
        needed=(tool[0], str(store.root), str(directory), str(spec)),
    )
    return Planned(inputs, tuple(Submission(engine="slurm", start=start) for start in starts), slurm.render(job, resources))


def plan_pod(
    options: RunOptions,
    opened: Opened,
    words: Sequence[str],
    resources: kubernetes.Resources,
    claims: Sequence[Mount],
    shared: str,
    *,
    catalog: str | None,
    store: Store,
    tell: Tell,
) -> Planned:
    """Check a run that is to be submitted to Kubernetes. `words` are as in `plan`, `claims` of `kubernetes.parse_claim`, and
    `shared` of `parse_shared`.

    `catalog`: where the run is pushed, by default the repository of the image. Raises as `execute.run`, and `SpecError` if the
    image is not in a registry.
    """
    from repro_env.delivery.builder import remote  # slow to import, like the next ones
    from repro_env.delivery.targets import jobimage
    from repro_env.launch import kubernetes

    if options.runner != DEFAULT:
        raise UsageError(f"--on kubernetes does not support --runner {options.runner}", hint="leave out --runner")
    spec = opened.spec
    copy = next(iter(remote.read(opened.directory).copies), None)
    if copy is None:
        hint = "push it with `repro-env push HOST/NAME:TAG`; nodes pull it from there"
        raise SpecError("the image of this spec is not in a registry", where=str(opened.directory), hint=hint)
    catalog = catalog or copy.repository
    if reference_of(catalog) is None:
        hint = "name HOST/NAME of a registry, or leave it out to push to the repository of the image"
        raise UsageError("a pod can push its run only to a registry", where=f"--push {catalog}", hint=hint)
    _check_claims(opened, claims, is_optional=options.data_changed)
    options = msgspec.structs.replace(options, runner="pod", network=True)
    without_data = msgspec.structs.replace(spec, observed=msgspec.structs.replace(spec.observed, data=()))
    inputs = execute.prepare(
        options, msgspec.structs.replace(opened, spec=without_data), compiles=False, is_here=False, store=store, tell=tell
    )
    start = inputs.start
    _check_secrets(inputs, store)
    submission = Submission(engine="kubernetes", start=start, catalog=catalog)
    spec_directory = archive.directory_of(inputs.runs, start.spec_file or "")
    in_pod = f"{paths.JOB}/runs/{spec_directory.relative_to(inputs.runs)}"
    contents = {
        f"{in_pod[len(paths.JOB) + 1 :]}/{name}": (spec_directory / name).read_bytes() for name in (files.SPEC, files.REMOTE)
    }
    contents[f"runs/{records.JOBS}/{start.id}/submission.json"] = codec.pretty(submission)
    image = jobimage.make(spec, copy, contents, start.source.trees, store)
    workspace = planning.workspace_of(spec)
    decided = ["--spec", in_pod, "--runs", f"{paths.JOB}/runs", "--runner", "pod", "--network", "--push", catalog]
    for number, claim in enumerate(claims):
        decided += [f"--{claim.kind}", f"{kubernetes.mount_path(claim, number, workspace)}:{claim.target}"]
    decided += [word for name in start.env_names for word in ("--env", name)]
    job = kubernetes.Job(
        run_id=start.id,
        name=kubernetes.name_of(Path(records.script_of(start.command)).stem, ids.short(start.id)),
        image=f"{copy.repository}@{copy.image}",
        job_image=image.name,
        interpreter=spec.identity.interpreter.executable,
        command=("exec", *words, *decided, "--run-id", start.id, "--seed", str(start.seed), "--", *options.command),
        workspace=workspace,
        claims=tuple(claims),
        shared=shared,
        given=start.env_names,
        uid=os.geteuid() or _USER,
        gid=os.getegid() or _USER,
    )
    return Planned(inputs, (submission,), kubernetes.render(job, resources), image)


def _check_claims(opened: Opened, claims: Sequence[Mount], *, is_optional: bool) -> None:
    """Raise `UsageError` for an invalid mount, and `DataError` if captured data is not mounted."""
    spec = opened.spec
    planning.check_mounts(spec, claims)
    workspace = planning.workspace_of(spec)
    for tree in planning.trees(spec, workspace):
        if paths.is_below(tree.root, workspace):
            what = f"the environment {tree.root} is in the project, whose directory the pod mounts over it"
            hint = "create the environment outside the project, and capture it again"
            raise UsageError(what, where="--on kubernetes", hint=hint)
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


def submit(planned: Planned, *, store: Store, tell: Tell) -> Submitted:
    """Submit the job of planned runs; return the first of them, whose job is the complete one.

    Raises `EngineError`, `RecordError`, `DiskError`, `NetworkError`; nothing is left behind then, except in the registry.
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
        job = engine_of(first, options.environ, variables=variables_of(options)).submit(planned.script)
    except BaseException:
        for directory in written:
            submissions.remove(directory)
        raise
    for number, directory in enumerate(written):
        submissions.write_job(directory, f"{job}_{number}" if len(written) > 1 else job)
    return msgspec.structs.replace(first, job=job)
