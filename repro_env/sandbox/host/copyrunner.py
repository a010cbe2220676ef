"""The host runner on a private copy of the source: the command runs in the live environment and does not change the user's files.

For machines that refuse namespaces. The source is copied into the run's directory, at its captured path below a directory that
replaces `/`. The command starts there, with its own home and temporary directory. If the kernel has Landlock, the command
cannot write anywhere else. It can read everything that its user can read, and use the network.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Iterator
from pathlib import Path

import msgspec

from repro_env.io.files import remove_tree, room
from repro_env.oci import paths
from repro_env.sandbox import externaloutputs, scratch
from repro_env.sandbox.externaloutputs import Bound
from repro_env.sandbox.host import landlock
from repro_env.sandbox.host.runner import start
from repro_env.sandbox.outputs import OUTSIDE
from repro_env.sandbox.runner import Runner
from repro_env.sandbox.workspace import CopiedWorkspace, copy_file, copy_tree, harvest
from repro_env.schema.environment import Variable
from repro_env.schema.errors import DataError
from repro_env.schema.run import Launch, Outcome

COPIED = "workspace: private copy"
"""In `Outcome.means` of these runs."""
_RESTRICTED = "writes: only in the copy, its home and temporary directory, by Landlock"
_UNRESTRICTED = "writes: anywhere, because this kernel has no Landlock"
_USER_DIRECTORIES = ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME")
"""Variables that name directories of the user. They are unset, so that programs use the home directory of the copy."""


class HostCopyRunner(Runner):
    """Runs a launch in a private copy of a source tree."""

    def __init__(
        self,
        snapshot: Path,
        siblings: Path | None = None,
        *,
        hidden: Collection[str] | None = None,
        bound: Bound = externaloutputs.DEFAULT,
    ) -> None:
        """Set up a runner. `snapshot` is the tree of the source, `siblings` that of the directories next to it (`Launch.siblings`)."""
        super().__init__(hidden=hidden, bound=bound)
        self._snapshot = snapshot
        self._siblings = [] if siblings is None else [siblings]
        self._links: tuple[str, ...] = ()

    def run(self, launch: Launch, *, directory: Path) -> Outcome:
        """See `Runner`."""
        files, rules = directory / "files", externaloutputs.rules_of(launch)
        files.mkdir(exist_ok=True)
        CopiedWorkspace(self._snapshot, files, needed=()).prepare()
        root = externaloutputs.begin(directory, rules)
        own = scratch.in_temporary_directory()
        try:
            # The copy has the same depth as the source, so that `..` leads to siblings and mounts, not to the user's files.
            with room(root):
                for tree in self._siblings:
                    copy_tree(tree, root)
            copy, home = (Path(f"{root}{path}") for path in (launch.workspace, launch.user.home))
            copy.parent.mkdir(parents=True, exist_ok=True)
            files.rename(copy)
            home.mkdir(parents=True, exist_ok=True)
            _copy_configuration(launch, home)
            self._links = tuple(_link_mounts(launch, root))
            writable = [str(root), str(own.path), launch.notes, *(mount.source for mount in launch.mounts if not mount.read_only)]
            is_restricted = landlock.is_available()
            outcome = start(
                relocate(launch, root, own.path),
                directory,
                self._hidden,
                means=(COPIED, _RESTRICTED if is_restricted else _UNRESTRICTED),
                writable=writable if is_restricted else None,
            )
        except BaseException:
            externaloutputs.drop(directory)
            raise
        finally:
            own.remove()
            for path in self._links:
                _remove(root, path)
            restore(directory, launch.workspace)
        self.lost = externaloutputs.keep(directory, [externaloutputs.Source("/", root)], rules, self._siblings, self._bound)
        return outcome

    def collect(self, workspace: Path, snapshot: Path, files: Path) -> tuple[str, ...]:
        """Leave only outputs in `files`. Returns the source files that the command removed. Raises `OSError`."""
        mounts = tuple(f"/{link}/" for link in self._links)
        return tuple(path for path in harvest(files, snapshot) if not f"{workspace}/{path}/".startswith(mounts))


def restore(directory: Path, workspace: str) -> None:
    """Move the copy of a workspace back to `files` in the run's `directory`: after the command, or later for a killed run."""
    files, root = directory / "files", directory / OUTSIDE
    copy = root / workspace[1:]
    if not files.exists() and copy.is_dir() and not copy.is_symlink() and _is_direct(root, workspace[1:]):
        copy.rename(files)
    files.mkdir(exist_ok=True)


def copy_path(directory: Path, workspace: str) -> str:
    """The path that the copy of a workspace had during the run in `directory`."""
    return f"{directory / OUTSIDE}{workspace}"


def relocate(launch: Launch, root: Path, temporary: Path) -> Launch:
    """Replace the paths of the source by those of the copy, in the arguments and variables of a launch. Pure."""
    keep = (launch.prefix, *(tree.target for tree in launch.trees), launch.tools, launch.notes, str(root))
    workspace = _pattern(launch.workspace, keep)
    host_paths = {paths.SEEDS: launch.tools, paths.NOTES: launch.notes}

    def replaced(text: str) -> str:
        for path, host_path in host_paths.items():
            text = text.replace(path, host_path)
        return workspace.sub(lambda match: f"{root}{match[0]}", text)

    values = {variable.name: replaced(variable.value) for variable in launch.env if variable.name not in _USER_DIRECTORIES}
    # Packages in the user's site directory are part of the live environment.
    values.setdefault("PYTHONUSERBASE", f"{launch.user.home}/.local")
    cwd = replaced(launch.cwd)
    values |= {"HOME": f"{root}{launch.user.home}", "TMPDIR": str(temporary), "PWD": cwd}
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


def _link_mounts(launch: Launch, root: Path) -> Iterator[str]:
    """Make a symbolic link below `root` for each mount. Yields the relative paths of the links.

    Raises `DataError` if a link cannot be made.
    """
    for mount in launch.mounts:
        path = mount.target[1:]
        link = root / path
        if not _is_direct(root, path):
            raise DataError(
                "this path leads through a symbolic link of the source, which the private copy must not follow",
                where=mount.target,
                hint="omit --runner host, or name the data by the target of the link",
            )
        try:
            if link.is_dir() and not link.is_symlink():
                remove_tree(link)
            else:
                link.unlink(missing_ok=True)
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(mount.source)
        except OSError as error:
            raise DataError(
                f"a link to it cannot be made in the private copy of the source: {error.strerror}",
                where=mount.target,
                hint="check the paths of --data and --checkpoints",
            ) from None
        yield path


def _is_direct(base: Path, path: str) -> bool:
    """Whether no parent of a path, relative to `base`, is a symbolic link."""
    return not any((base / above).is_symlink() for above in Path(path).parents)


def _remove(root: Path, path: str) -> None:
    """Remove a link that `_link_mounts` made, unless the command has replaced one of its parents by a link."""
    if _is_direct(root, path) and ((root / path).is_symlink() or (root / path).is_file()):
        (root / path).unlink()


def _copy_configuration(launch: Launch, home: Path) -> None:
    """Copy the captured configuration files of libraries into the home directory of the copy."""
    for tree in launch.trees:
        if tree.root.startswith(paths.HOME + "/"):
            target = home / tree.root[len(paths.HOME) + 1 :]
            target.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileNotFoundError):
                copy_file(Path(tree.target), target)
