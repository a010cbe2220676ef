"""The host runner: runs the command in the live environment, without isolation, which the record states.

For machines that refuse namespaces. The environment was compared with the spec before (`compare.environments.drift`). The
source is copied into the run's directory, at its captured path below a directory that replaces `/`. The command starts there,
with its own home and temporary directory. If the kernel has Landlock, the command cannot write anywhere else. It can read
everything that its user can read, and use the network.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import msgspec

from repro_env.io.files import remove_tree
from repro_env.oci import paths
from repro_env.sandbox import command, kernel, landlock, workspace
from repro_env.sandbox.limits import Group
from repro_env.sandbox.runner import Runner
from repro_env.sandbox.session import FORWARDED, Clock, Ended, Result, SignalQueue, queue_signals
from repro_env.sandbox.streams import Streams
from repro_env.schema.environment import Variable
from repro_env.schema.run import Launch
from repro_env.schema.rundirectory import FILES, OUTSIDE

MEANS = "isolation: none, the live environment with the files and network of this machine"
_RESTRICTED = "writes: only in the copy, its home and temporary directory, by Landlock"
_UNRESTRICTED = "writes: anywhere, because this kernel has no Landlock"
_USER_DIRECTORIES = ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME")
"""Variables that name directories of the user. They are unset, so that programs use the home directory of the copy."""


class HostRunner(Runner):
    """Runs a launch in a private copy of a source tree."""

    name = "host"

    @classmethod
    def project_path(cls, directory: Path, path: str) -> str:
        """See `Runner`. The command worked in a copy."""
        return f"{directory / OUTSIDE}{path}"

    @classmethod
    def restore(cls, directory: Path, run_id: str, path: str) -> None:  # noqa: ARG003
        """See `Runner`."""
        files, root = directory / FILES, directory / OUTSIDE
        copy = root / path[1:]
        if not files.exists() and copy.is_dir() and not copy.is_symlink() and _is_direct(root, path[1:]):
            copy.rename(files)
        files.mkdir(exist_ok=True)

    def execute(self, launch: Launch, directory: Path, streams: Streams, group: Group, stack: contextlib.ExitStack) -> Result:
        """See `Runner`."""
        root = directory / OUTSIDE
        # The copy has the same depth as the source, so that `..` leads to mounts, not to the user's files.
        copy, home = (Path(f"{root}{path}") for path in (launch.workspace, launch.user.home))
        copy.parent.mkdir(parents=True, exist_ok=True)
        (directory / FILES).rename(copy)
        home.mkdir(parents=True, exist_ok=True)
        stack.callback(self.restore, directory, launch.run_id, launch.workspace)
        copy_configuration(launch, home)
        _link_mounts(launch, root)
        temporary = stack.enter_context(tempfile.TemporaryDirectory(prefix="repro-env-", ignore_cleanup_errors=True))
        writable = [str(root), temporary, launch.reports, *(mount.source for mount in launch.mounts if not mount.read_only)]
        result = start(relocate(launch, root, temporary), streams, group, writable=writable)
        result.methods = (MEANS, _RESTRICTED if landlock.is_available() else _UNRESTRICTED)
        return result


def relocate(launch: Launch, root: Path, temporary: str) -> Launch:
    """Replace the paths of the source by those of the copy, in the arguments and variables of a launch. Pure."""
    keep = (launch.prefix, *(tree.target for tree in launch.trees), launch.tools, launch.reports, str(root))
    workspace = _pattern(launch.workspace, keep)
    host_paths = {paths.SEEDS: launch.tools, paths.REPORTS: launch.reports}

    def replaced(text: str) -> str:
        for path, host_path in host_paths.items():
            text = text.replace(path, host_path)
        return workspace.sub(lambda match: f"{root}{match[0]}", text)

    values = {variable.name: replaced(variable.value) for variable in launch.env if variable.name not in _USER_DIRECTORIES}
    # Packages in the user's site directory are part of the live environment.
    values.setdefault("PYTHONUSERBASE", f"{launch.user.home}/.local")
    cwd = replaced(launch.cwd)
    values |= {"HOME": f"{root}{launch.user.home}", "TMPDIR": temporary, "PWD": cwd}
    return msgspec.structs.replace(
        launch,
        argv=tuple(replaced(word) for word in launch.argv),
        env=tuple(Variable(name=name, value=values[name]) for name in sorted(values)),
        cwd=cwd,
        workspace=f"{root}{launch.workspace}",
    )


def _pattern(workspace: str, keep: tuple[str, ...]) -> re.Pattern[str]:
    """Match the path of the workspace at the start of an argument, value or list item, but not in a path of `keep`."""
    ends = r"(?=[/:,;]|\Z)"
    below = "|".join(re.escape(path[len(workspace) :]) for path in keep if path.startswith(workspace + "/"))
    return re.compile(rf"(?:(?<=[=:,;])|\A){re.escape(workspace)}{ends}" + (rf"(?!(?:{below}){ends})" if below else ""))


def _link_mounts(launch: Launch, root: Path) -> None:
    """Make a symbolic link below `root` for each mount. `workspace.prepare` has made real directories of their parents."""
    for mount in launch.mounts:
        make_link(root / mount.target[1:], mount.source)


def make_link(link: Path, source: str) -> None:
    """Make a symbolic link, in place of what is there."""
    if link.is_dir() and not link.is_symlink():
        remove_tree(link)
    link.unlink(missing_ok=True)
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(source)


def _is_direct(base: Path, path: str) -> bool:
    """Whether no parent of a path, relative to `base`, is a symbolic link."""
    return not any((base / above).is_symlink() for above in Path(path).parents)


def copy_configuration(launch: Launch, home: Path, *, from_image: bool = False) -> None:
    """Copy the captured configuration files of libraries into the home directory of a run, from the live ones or from the image."""
    for tree in launch.trees:
        if tree.root.startswith(paths.HOME + "/"):
            target = home / tree.root[len(paths.HOME) + 1 :]
            target.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileNotFoundError):
                workspace.copy_file(Path(tree.root if from_image else tree.target), target)


def start(launch: Launch, streams: Streams, group: Group, *, writable: Sequence[str] | None) -> Result:
    """Start the command and wait for its end. `writable`: where it may write; None for anywhere."""
    clock, deviations = Clock(launch.limits), list[str]()
    read, write = os.pipe2(os.O_CLOEXEC)
    with queue_signals(signal.SIGCHLD) as queue:
        # Block signals until the child has restored its handlers, so that it loses none.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)
        before = command.fix_addresses(launch, deviations)
        child = os.fork()
        if child == 0:
            _become_command(launch, write, queue, set(mask), streams, group, writable)
        queue.is_forwarded = True
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if before is not None:
            kernel.personality(before)
        os.close(write)
        with os.fdopen(read, "rb") as pipe:
            refused = pipe.read()
        clock.start()
        status = _wait(child, queue, streams, clock)
        interrupted = next(filter(FORWARDED.__contains__, queue.taken), 0)
    return Result(
        deviations=(*deviations, *streams.deviations),
        ended=Ended(status, refused=msgspec.json.decode(refused, type=command.Refused) if refused else None),
        interrupted=interrupted,
        timed_out=clock.is_over,
    )


def _wait(child: int, queue: SignalQueue, streams: Streams, clock: Clock) -> int:
    """Forward signals, input and output until the child ends. Returns its status."""
    with streams.connected():
        while not (result := os.waitpid(child, os.WNOHANG))[0]:
            queue.wait(clock.milliseconds)
            for number in (*queue.take(), *clock.take()):
                if number == signal.SIGWINCH:
                    streams.resize()
                elif number in (signal.SIGINT, signal.SIGQUIT, signal.SIGKILL):
                    os.killpg(child, number)
                elif number != signal.SIGCHLD:
                    os.kill(child, number)  # its PID is valid until waitpid(2) has returned its status
    return result[1]


def _become_command(
    launch: Launch,
    report: int,
    queue: SignalQueue,
    mask: set[int],
    streams: Streams,
    group: Group,
    writable: Sequence[str] | None,
) -> NoReturn:
    """In the child: execute the command, or report why this failed."""
    try:
        kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)
        group.join()
        streams.replace()
        queue.restore_defaults()
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        refused = command.enter_directory(launch)
        if not refused:
            if writable is not None and landlock.is_available():
                landlock.restrict_writes(writable)
            refused = command.execute(launch)
        os.write(report, msgspec.json.encode(refused))
    except OSError as error:  # Landlock
        os.write(report, msgspec.json.encode(("argv", [(launch.argv[0], error.errno)])))
    finally:
        os._exit(127)
