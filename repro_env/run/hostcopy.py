"""The host runner on a private copy of the source: the live environment, with nothing of the user's in the way of its writes.

For machines that refuse namespaces. The source is copied into the run's own folder, at its captured path below a directory
that stands for `/`, and the command starts there, with a home and a temporary directory of its own. Where the kernel has
Landlock, it can write nowhere else. It can read all that its user can, and reach the network.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Iterator
from pathlib import Path

import msgspec

from repro_env.catalog.outputs import OUTSIDE
from repro_env.image import layout
from repro_env.io.files import remove_tree, room
from repro_env.model.environment import Variable
from repro_env.model.errors import DataError
from repro_env.model.run import Launch, Lost, Outcome
from repro_env.run import landlock, outside, scratch
from repro_env.run.bytecode import Module
from repro_env.run.host import start
from repro_env.run.interface import Runner
from repro_env.run.outside import Bound
from repro_env.run.workspace import CopiedWorkspace, copy_file, copy_tree, harvest

COPIED = "workspace: private copy"
"""Of `Outcome.means`."""
_HELD = "writes: only in the copy, its home and temporary directory, by Landlock"
_FREE = "writes: anywhere, this kernel has no Landlock to hold them"
_OWN = ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME")
"""They name directories of the user's; without them programs use the home directory."""


class HostCopyRunner:
    """Runs launches in a private copy of a source tree. One object a run."""

    def __init__(
        self,
        snapshot: Path,
        siblings: Path | None = None,
        *,
        hidden: Collection[str] | None = None,
        bound: Bound = outside.DEFAULT,
    ) -> None:
        """`snapshot`, `siblings`: the trees that are copied, of the source and beside it (`Launch.siblings`). `hidden`: as of `HostRunner`. `bound`: of what it writes outside its project."""
        self._snapshot = snapshot
        self._siblings = [] if siblings is None else [siblings]
        self._hidden = hidden
        self._bound = bound
        self.lost: Lost | None = None
        self.began = False
        self.compiled: tuple[Module, ...] = ()  # it uses the environment's own bytecode
        self._links: tuple[str, ...] = ()

    def run(self, launch: Launch, *, folder: Path) -> Outcome:
        """See `interface.Runner`."""
        files, rules = folder / "files", outside.rules_of(launch)
        files.mkdir(exist_ok=True)
        CopiedWorkspace(self._snapshot, files, needed=()).prepare()
        root = outside.begin(folder, rules)
        own = scratch.temporary()
        try:
            # At its own depth, with its surroundings: `..` leads to what is mounted there, and to nothing of the user's.
            with room(root):
                for tree in self._siblings:
                    copy_tree(tree, root)
            copy, home = (Path(f"{root}{path}") for path in (launch.workspace, launch.user.home))
            copy.parent.mkdir(parents=True, exist_ok=True)
            files.rename(copy)
            home.mkdir(parents=True, exist_ok=True)
            _bring_home(launch, home)
            self._links = tuple(_linked(launch, root))
            held = landlock.is_available()
            writable = [str(root), str(own.path), launch.notes, *(one.source for one in launch.mounts if not one.read_only)]
            means = (COPIED, _HELD if held else _FREE)
            outcome = start(moved(launch, root, own.path), folder, self._hidden, means=means, writable=writable if held else None)
        except BaseException:
            outside.drop(folder)
            raise
        finally:
            own.remove()
            for path in self._links:
                _remove(root, path)
            restore(folder, launch.workspace)
        self.lost = outside.keep(folder, [outside.Source("/", root)], rules, self._siblings, self._bound)
        return outcome

    def collect(self, workspace: Path, snapshot: Path, files: Path) -> tuple[str, ...]:
        """Leave only outputs in `files`; return the source files that are gone. Raises `OSError`."""
        covered = tuple(f"/{link}/" for link in self._links)
        return tuple(path for path in harvest(files, snapshot) if not f"{workspace}/{path}/".startswith(covered))


_: type[Runner] = HostCopyRunner


def restore(folder: Path, workspace: str) -> None:
    """Bring the copy of a workspace back to the files of the run in `folder`, after the command or for a run that was killed."""
    files, root = folder / "files", folder / OUTSIDE
    copy = root / workspace[1:]
    if not files.exists() and copy.is_dir() and not copy.is_symlink() and _is_direct(root, workspace[1:]):
        copy.rename(files)
    files.mkdir(exist_ok=True)


def place(folder: Path, workspace: str) -> str:
    """Where the copy of a workspace was during the run in `folder`."""
    return f"{folder / OUTSIDE}{workspace}"


def moved(launch: Launch, root: Path, temporary: Path) -> Launch:
    """The launch, with the paths of the source in its words and variables replaced by those of the copy. Pure."""
    keep = (launch.prefix, *(tree.target for tree in launch.trees), launch.tools, launch.notes, str(root))
    workspace = _pattern(launch.workspace, keep)
    names = {layout.SEEDS: launch.tools, layout.NOTES: launch.notes}

    def here(text: str) -> str:
        for name, path in names.items():
            text = text.replace(name, path)
        return workspace.sub(lambda found: f"{root}{found[0]}", text)

    values = {one.name: here(one.value) for one in launch.env if one.name not in _OWN}
    # Packages of the user's own site directory are a part of the live environment.
    values.setdefault("PYTHONUSERBASE", f"{launch.user.home}/.local")
    cwd = here(launch.cwd)
    values |= {"HOME": f"{root}{launch.user.home}", "TMPDIR": str(temporary), "PWD": cwd}
    return msgspec.structs.replace(
        launch,
        argv=tuple(here(word) for word in launch.argv),
        env=tuple(Variable(name=name, value=values[name]) for name in sorted(values)),
        cwd=cwd,
        workspace=f"{root}{launch.workspace}",
    )


def _pattern(workspace: str, keep: tuple[str, ...]) -> re.Pattern[str]:
    """Finds the path of the workspace where it begins a word, a value or an item of a list, but not in a path of `keep`."""
    ends = r"(?=[/:,;]|\Z)"
    below = "|".join(re.escape(path[len(workspace) :]) for path in keep if path.startswith(workspace + "/"))
    return re.compile(rf"(?:(?<=[=:,;])|\A){re.escape(workspace)}{ends}" + (rf"(?!(?:{below}){ends})" if below else ""))


def _linked(launch: Launch, root: Path) -> Iterator[str]:
    """Show what is mounted by symbolic links below `root`. Yields their paths there.

    Raises `DataError` when a link cannot be made.
    """
    for mount in launch.mounts:
        path = mount.target[1:]
        link = root / path
        if not _is_direct(root, path):
            raise DataError(
                "is behind a symbolic link of the source, which the private copy must not follow",
                where=mount.target,
                hint="leave out --runner host, or name the data by the path that the link leads to",
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
                f"cannot be shown in the private copy of the source: {error.strerror}", where=mount.target, hint="check --data"
            ) from None
        yield path


def _is_direct(base: Path, path: str) -> bool:
    """Whether no symbolic link is on the way from a directory to a path in it."""
    return not any((base / above).is_symlink() for above in Path(path).parents)


def _remove(root: Path, path: str) -> None:
    """Remove a file or link of ours, unless the command has put a link on the way to it."""
    if _is_direct(root, path) and ((root / path).is_symlink() or (root / path).is_file()):
        (root / path).unlink()


def _bring_home(launch: Launch, home: Path) -> None:
    """Copy the configuration of libraries that the spec holds into the home directory of the copy."""
    for tree in launch.trees:
        if tree.root.startswith(layout.HOME + "/"):
            target = home / tree.root[len(layout.HOME) + 1 :]
            target.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileNotFoundError):
                copy_file(Path(tree.target), target)
