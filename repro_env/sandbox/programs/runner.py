"""What the runners that start a container program share.

    this process         copies the source, makes private directories, forwards streams and signals
      |  a socket
    the container program, in the control groups of the run
      `- init.py (PID 1) checks what the container promises, starts the command, reaps processes, reports how the command ended

If this process dies, the socket is closed, and init.py ends the run.
"""

from __future__ import annotations

import abc
import contextlib
import os
import pwd
import shutil
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, NoReturn

from repro_env.io import process
from repro_env.oci import paths
from repro_env.sandbox import handover, mounts, workspace
from repro_env.sandbox.doctor import Finding
from repro_env.sandbox.embedded import firstprocess
from repro_env.sandbox.image import Mounts, find_in_image, image_means
from repro_env.sandbox.limits import Group
from repro_env.sandbox.runner import Runner
from repro_env.sandbox.session import Result
from repro_env.sandbox.streams import Streams
from repro_env.schema import redact
from repro_env.schema.codec import Frozen
from repro_env.schema.errors import SandboxError
from repro_env.schema.run import Launch, Limits
from repro_env.schema.rundirectory import SCRATCH
from repro_env.schema.spec import Spec

_ROOT = "image"
"""Directory with the root of the container, in the run's directory for what is not an output."""
_SHOWN = 300
"""Characters of what the program printed that an error shows."""


class Container(Frozen, frozen=True, kw_only=True):
    """How a program starts a container."""

    arguments: tuple[str, ...]
    """Without the command in the container."""
    env: Mapping[str, str]
    isolation: Mapping[str, object] | None = None
    """What `init.py` does before the command (`guest/init.py`); None if the program isolates the run."""
    deviations: tuple[str, ...] = ()
    """What deviates from a usual run, for the record."""


class ProgramRunner(Runner):
    """Runs a launch in a container that a program makes."""

    reads_ahead = True
    program: ClassVar[str]
    package: ClassVar[str]
    """How to get the program."""
    etc_files: ClassVar[tuple[str, ...]] = ()
    """Files of `/etc` that the program itself binds. Without them in the root, it mounts ours writable."""

    @abc.abstractmethod
    def container(self, launch: Launch, binds: Mounts, root: Path, scratch: Path) -> Container:
        """The container of a launch, in which `binds` are mounted on `root`. `scratch` is a private directory of the run.

        Raises `RunError` for what the program cannot do.
        """

    @classmethod
    def find(cls) -> Finding:
        """See `Runner`."""
        try:
            path, version = cls.locate()
        except SandboxError as error:
            return Finding(name=cls.name, state="absent", text=f"{error.what}; only --runner {cls.name} needs it", fix=error.hint)
        return Finding(name=cls.name, state="ok", text=f"{cls.program} {version} at {path}")

    @classmethod
    def check(cls, spec: Spec, requested: Limits) -> tuple[str, ...]:
        """See `Runner`."""
        cls.locate()
        return super().check(spec, requested)

    @classmethod
    def locate(cls) -> tuple[str, str]:
        """The path of the program, and its version. Raises `SandboxError`."""
        path = shutil.which(cls.program)
        if path is None:
            raise SandboxError(f"{cls.program} is not on the PATH", where=f"--runner {cls.name}", hint=cls.package)
        done = process.run([path, "--version"], env=environment(), timeout=30)
        words = (done.stdout or done.stderr).decode(errors="replace").split()  # ch-run prints it to stderr
        if done.code or not words:
            printed = redact.line(" ".join(words)[:_SHOWN]) or f"exit code {done.code}"
            raise SandboxError(f"`{cls.program} --version` failed: {printed}", where=path, hint=cls.package)
        return path, words[-1]

    def execute(self, launch: Launch, directory: Path, streams: Streams, group: Group, stack: contextlib.ExitStack) -> Result:
        """See `Runner`."""
        program, version = self.locate()
        directory = directory.resolve()
        scratch = directory / SCRATCH
        log, control = scratch / "program.log", scratch / "control"
        control.mkdir(mode=0o700)
        image = self._image.merge(launch)
        binds = _make_root(mounts.make(launch, directory, self._image, control), image, scratch, self.etc_files, launch.site)
        container = self.container(launch, binds, scratch / _ROOT, scratch)
        listener = stack.enter_context(handover.listen(control))
        child = _start([program, *container.arguments, *handover.command(self._image.interpreter)], container.env, log, group)
        stack.callback(_end, child)

        def failure() -> SandboxError | None:
            has_ended = os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
            return self._failure(log) if has_ended else None

        more = {} if container.isolation is None else {"isolation": container.isolation}
        result = handover.attend(listener, launch, streams, failure, promises=_promises(launch, binds, image), **more)
        user = ["user: uid 0 in the run is uid 0 on the host"] if launch.user.uid == 0 else []
        result.methods = (f"{self.program} {version}", *image_means(self._image, launch), *container.deviations, *user)
        return result

    def _failure(self, log: Path) -> SandboxError:
        """The error for a container that ended before `init.py` ran."""
        lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
        printed = redact.line(lines[-1][:_SHOWN]) if lines else "it printed nothing"
        return SandboxError(
            f"{self.program} ended before the command started: {printed}",
            where=f"--runner {self.name}",
            hint="run `repro-env doctor` to see what this machine refuses",
        )


def environment() -> dict[str, str]:
    """Variables for a container program. The caller's own could add mounts to the container."""
    try:
        user = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        user = str(os.geteuid())
    return {"PATH": os.environ.get("PATH", os.defpath), "HOME": "/", "USER": user}


def _make_root(made: Mounts, image: Path, scratch: Path, etc_files: Sequence[str], site: str | None) -> Mounts:
    """Make the root of the container, with mount points for the mounts `made` and for the directories of the image.

    Its `/etc`, below the one that is mounted, has only `etc_files`.

    Programs mount only on what exists, and follow symlinks of the image. Returns all mounts.
    """
    root, etc, run = scratch / _ROOT, scratch / "etc", scratch / "run"
    root.mkdir()
    run.mkdir()
    needed = dict.fromkeys(("/dev", "/proc", "/sys", "/run", "/tmp", "/etc"), True)  # noqa: S108
    binds = dict(mounts.fill(root, "", image, {*made, *needed} - {site})) | made
    points = {target: os.path.isdir(source) for target, (source, _) in binds.items() if target != site}  # noqa: PTH112
    workspace.make_mount_points(root, "", needed | points)
    workspace.make_mount_points(run, "/run", points)
    (root / "etc").rename(etc)  # or else ch-run mounts files of this machine in it
    (root / "etc").mkdir()
    for name in etc_files:
        workspace.make_file_point(root / "etc" / name)
    return binds | {"/etc": (str(etc), True), "/run": (str(run), False)}


def _promises(launch: Launch, binds: Mounts, image: Path) -> dict[str, object]:
    """What must hold in the container. `init.py` checks it, because a program may be configured not to do what it is asked."""
    marker = find_in_image(image, paths.MARKER)
    return {
        "user": [launch.user.uid, launch.user.gid],
        "network": "" if launch.network else os.readlink("/proc/self/ns/net"),  # noqa: PTH115  not a path
        "read_only": ["/", *(target for target in binds if binds[target][1])],
        "marker": [paths.MARKER, marker.read_text(encoding="utf-8") if marker is not None and marker.is_file() else ""],
    }


def _start(argv: Sequence[str], env: Mapping[str, str], log: Path, group: Group) -> int:
    """Start the program in the control groups of the run, with its output in `log`. Returns its PID."""
    null, file = os.open(os.devnull, os.O_RDONLY), os.open(log, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    child = os.fork()
    if child == 0:
        _become_program(argv, env, null, file, group)
    os.close(null)
    os.close(file)
    return child


def _become_program(argv: Sequence[str], env: Mapping[str, str], null: int, log: int, group: Group) -> NoReturn:
    try:
        for stream, handle in enumerate((null, log, log)):
            os.dup2(handle, stream)
        firstprocess.mark_all_but({0, 1, 2})
        os.setsid()  # signals of the caller's terminal come from `init.py` instead
        os.umask(0o022)
        group.join()
        os.execve(argv[0], list(argv), env)  # noqa: S606
    except BaseException as error:  # noqa: BLE001  a forked process has no caller to raise to
        os.write(2, f"{error}\n".encode(errors="replace"))
    finally:
        os._exit(127)


def _end(child: int) -> None:
    """End the program. The connection is closed before, so the processes in the container end too."""
    with contextlib.suppress(OSError):  # a program with the setuid bit may belong to root for a moment
        os.kill(child, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):  # the caller ignores SIGCHLD
        os.waitpid(child, 0)
