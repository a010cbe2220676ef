"""The Apptainer runner: apptainer isolates the run, with the setuid program of a cluster or in a user namespace.

The options are those of versions 1.4 and 1.5 (their manuals, and cmd/internal/cli/action_flags.go). `init.py` checks in the
container that it is isolated as asked, because a site's apptainer.conf can ignore options with a warning.
"""

from __future__ import annotations

import csv
import io
from pathlib import Path

from repro_env.sandbox.image import Mounts
from repro_env.sandbox.programs.runner import Container, ProgramRunner, environment
from repro_env.schema.environment import values_of
from repro_env.schema.errors import RunError
from repro_env.schema.run import Launch

_OPTIONS = (
    "--containall",  # own PID and IPC namespaces, a minimal /dev, none of the caller's variables and directories
    "--no-home",
    "--no-mount=hostfs,bind-paths,cwd",  # what apptainer.conf mounts in every container
    "--no-init",  # init.py is PID 1
    "--no-privs",
    "--pwd=/",
)
_CGROUP = "/sys/fs/cgroup"


class ApptainerRunner(ProgramRunner):
    """Runs a launch with apptainer."""

    name = "apptainer"
    program = "apptainer"
    etc_files = ("hostname", "resolv.conf")
    package = "load its module or ask the administrators for Apptainer, or use another runner"

    def container(self, launch: Launch, binds: Mounts, root: Path, scratch: Path) -> Container:  # noqa: ARG002
        """See `ProgramRunner`."""
        arguments = ["exec", *_OPTIONS, f"--hostname={launch.hostname}"]
        if not launch.network:
            arguments += ["--net", "--network=none"]
        if Path(_CGROUP).is_dir():  # programs read their limits there
            binds = {**binds, _CGROUP: (_CGROUP, True)}
        for target in sorted(binds, key=lambda path: (path.count("/"), path)):
            arguments += ["--mount", _mount(*binds[target], target)]
        for node in launch.gpus.nodes:
            if node.source != node.target:
                hint = "generate a CDI spec with the same paths on both sides, or use another runner"
                raise RunError("apptainer cannot give a device file another name", where=node.source, hint=hint)
            arguments += ["--mount", _mount(node.source, False, node.target)]
        env = environment()
        if libraries := values_of(launch.env).get("LD_LIBRARY_PATH"):  # some interpreters need it to find their libraries
            env["APPTAINERENV_LD_LIBRARY_PATH"] = libraries
        return Container(arguments=(*arguments, str(root)), env=env)


def _mount(source: str, read_only: bool, target: str) -> str:
    """The value of `--mount`: fields of a CSV line."""
    text = io.StringIO()
    fields = ["type=bind", f"source={source}", f"destination={target}", *(["ro"] if read_only else [])]
    csv.writer(text, lineterminator="").writerow(fields)
    return text.getvalue()
