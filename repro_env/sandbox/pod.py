"""The pod runner: runs the command in this container, which Kubernetes has started from the image.

The pod has mounted everything already (`launch.kubernetes`): an empty directory at the path of the source, another one as HOME,
and volumes at their paths. The root is read-only. repro-env itself runs here too, from the directory of the job.

With several nodes, the directory of runs is on a claim, and the directory at the path of the source is one for all pods. As later pods
mount it by its path, it is moved to the run only at the end.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import msgspec

from repro_env.io.files import read_regular, remove_tree
from repro_env.oci import paths
from repro_env.oci.paths import is_below
from repro_env.sandbox import host, workspace
from repro_env.sandbox.limits import Group
from repro_env.sandbox.runner import Runner
from repro_env.sandbox.session import Result
from repro_env.sandbox.streams import Streams
from repro_env.schema.errors import RunError
from repro_env.schema.run import Launch, Limits
from repro_env.schema.rundirectory import FILES, OUTSIDE
from repro_env.schema.spec import Spec

WORKSPACE, HOME = f"{paths.JOB}/workspace", f"{paths.JOB}/home"
"""The directories that a pod mounts at the path of the source, and at `JOB_HOME`, if it shares the run with no other pod."""


class PodRunner(Runner):
    """Runs the launch of a job, once."""

    name = "pod"
    enforces_limits = False

    @classmethod
    def check(cls, spec: Spec, requested: Limits) -> tuple[str, ...]:
        """See `Runner`. This process must be in a container of the spec's image, with the directories of a job."""
        try:
            marker = msgspec.json.decode(read_regular(Path(paths.MARKER), 1 << 16), type=dict[str, str])
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
            marker = {}
        if marker.get("spec") != spec.digest:
            found = f"it has that of the spec {marker['spec'][:19]}…" if "spec" in marker else "it has none"
            raise RunError(
                f"this is not a container of the image, whose {paths.MARKER} names the spec {spec.digest[:19]}…: {found}",
                where="--runner pod",
                hint="submit the run with `repro-env exec --on kubernetes`, which starts the right image",
            )
        if not Path(WORKSPACE).is_dir():
            raise RunError(
                "this container does not have the directories of a job",
                where=WORKSPACE,
                hint="submit the run with `repro-env exec --on kubernetes`",
            )
        return super().check(spec, requested)

    @classmethod
    def restore(cls, directory: Path, run_id: str, path: str) -> None:  # noqa: ARG003
        """See `Runner`. Only pods that share a run have its project in another directory."""
        shared = _shared(directory, run_id)
        if shared.is_dir():
            (shared / "workspace").rename(directory / FILES)
            remove_tree(shared)

    def prepare(self, launch: Launch, directory: Path) -> None:
        """See `Runner`. Makes the directory that the pod mounts at the path of the source that of the run."""
        files = directory / FILES
        if launch.member.is_alone:
            Path(WORKSPACE).rename(files)
            super().prepare(launch, directory)
        else:
            is_prepared = not workspace.is_collected(directory)
            super().prepare(launch, directory)
            if is_prepared:  # by another pod of the run
                return
            mounted = _shared(directory, launch.run_id) / "workspace"
            for path in files.iterdir():
                path.rename(mounted / path.name)
            files = mounted
        _link(launch, files)

    def execute(self, launch: Launch, directory: Path, streams: Streams, group: Group, stack: contextlib.ExitStack) -> Result:  # noqa: ARG002
        """See `Runner`."""
        mounted_home = Path(HOME)
        if not launch.member.is_alone:
            mounted_home = _shared(directory, launch.run_id) / f"home-{launch.member.rank}"
        home = Path(f"{launch.member.host_directory(directory) / OUTSIDE}{launch.user.home}")
        home.parent.mkdir(parents=True)
        # What is mounted stays mounted: the command writes directly to the directory of the run.
        mounted_home.rename(home)
        host.copy_configuration(launch, home, from_image=True)
        result = host.start(launch, streams, group, writable=None)
        result.methods = ("root: read-only, mounted by Kubernetes", "network: that of the pod")
        return result


def _shared(directory: Path, run_id: str) -> Path:
    """The directory that the pods of the run in `directory` share. It is the same before the run has a directory."""
    return directory.parent / paths.JOB_SHARED / run_id


def _link(launch: Launch, files: Path) -> None:
    """Make symbolic links for what has to be seen below the source: trees of the image, and volumes, which are mounted elsewhere."""
    links = {tree.target: tree.root for tree in launch.trees} | {mount.target: mount.source for mount in launch.mounts}
    for target, source in links.items():
        if is_below(target, launch.workspace) and not source.startswith(paths.HOME):
            host.make_link(files / target[len(launch.workspace) + 1 :], source)
