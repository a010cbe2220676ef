"""Advice after a failed command: what its exceptions missed, compared with what this machine has."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from repro_env.io.files import open_regular
from repro_env.oci.paths import is_below
from repro_env.runs.records import records
from repro_env.runs.records.reports import Failure
from repro_env.runs.start.inputs import Inputs
from repro_env.sandbox import plan
from repro_env.schema import redact
from repro_env.schema.patterns import lazy
from repro_env.store.store import Store

_MAX_LINES = 8
_OF_THE_SYSTEM = ("/etc", "/usr", "/proc", "/sys", "/dev", "/run", "/bin", "/sbin", "/lib", "/lib64")
"""Directories in which programs look for optional files."""
_DEPTH = 3
"""Advice names the outermost directory with a missing file, but none with fewer components, such as /scratch/ann."""


_NO_REPOSITORY = lazy(
    rb"not (?:in(?:side)? )?a (?:valid )?git repo|InvalidGitRepository|NotGitRepository|no git repo|git repo\w* (?:was )?not found"
    rb"|(?:failed|unable) to (?:find|detect|open) (?:the |a )?git repo",
    re.IGNORECASE,
)
_LOG_END = 1 << 16
"""Bytes of a log in which a failed command says why."""


def _end_of(log: Path, directory: Path) -> bytes:
    try:
        with os.fdopen(open_regular(log, below=directory), "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _LOG_END))
            return file.read(_LOG_END)
    except OSError:
        return b""


class Advisor(msgspec.Struct, frozen=True):
    """A failed run and this machine. Names come from the run and are not trusted: they are only looked up and printed."""

    inputs: Inputs
    store: Store

    def lines(self, failures: Sequence[Failure], directory: Path) -> tuple[str, ...]:
        """Return at most eight lines, each with the option or command that helps. `directory`: of the run, which has what it printed.

        The command's own arguments are checked only if the exceptions gave no advice.
        """
        lines = list(dict.fromkeys(line for failure in failures for line in self._advise(failure)))
        lines = [*self._advise_git(directory), *lines]
        if not lines and all(failure.kind in ("path", "open") for failure in failures):
            paths = plan.named_paths(self.inputs.options.command, here=self.inputs.launch.cwd)
            lines = list(dict.fromkeys(line for path in paths for line in self._advise_path(path)))
        return tuple(redact.line(line) for line in lines[:_MAX_LINES])

    def _advise(self, failure: Failure) -> Iterator[str]:
        name, options = failure.what, self.inputs.options
        if failure.kind == "host" and not options.network:
            yield "the run has no network; to allow it: --network"
        elif failure.kind == "program" and name and "/" not in name and os.path.lexists(self._in_environment(name)):
            yield f"{name} is in the environment, but what its first line names is not; if the environment was moved, make it again"
        elif failure.kind == "program" and name and "/" not in name and shutil.which(name, path=options.environ.get("PATH")):
            yield f"{name} is not in the image; to add it, capture again with --with {shlex.quote(name)}"
        elif failure.kind == "module" and all(part.isidentifier() for part in name.split(".")):
            yield from self._advise_module(name)
        elif failure.kind == "path" and name.startswith("/"):
            yield from self._advise_path(os.path.normpath(name))
        elif failure.kind == "open" and name.startswith("/") and not is_below(os.path.normpath(name), *_OF_THE_SYSTEM):
            if os.path.lexists(self._on_host(os.path.normpath(name))):
                yield from self._advise_path(os.path.normpath(name))
        elif failure.kind == "read-only" and name.startswith("/"):
            for mount in self.inputs.launch.mounts:
                if mount.kind == "data" and is_below(os.path.normpath(name), mount.target):
                    yield f"{mount.target} is data, which is read-only in a run; to mount a writable directory: --checkpoints DIR"

    def _advise_git(self, directory: Path) -> list[str]:
        """Advise on the repository if the run printed that it misses one: git and its callers say so, whatever they raise."""
        root, repository = self.inputs.code.path, self.inputs.repository
        if (
            root is None
            or repository.mounts
            or repository.text
            or not any(os.path.lexists(path / ".git") for path in (root, *root.parents))
        ):
            return []
        if not any(_NO_REPOSITORY.search(_end_of(path, directory)) for path in records.logs(directory)):
            return []
        return ["the project's .git is not in the run; to add it, with git: capture again with --with git"]

    def _in_environment(self, name: str) -> str:
        """The path on this machine of a program of the environment."""
        layout = self.inputs.spec.identity.layout
        return f"{self._on_host(layout.prefix)}/{layout.scripts}/{name}"

    def _advise_module(self, name: str) -> Iterator[str]:
        identity = self.inputs.spec.identity
        for layout in (identity.layout, *identity.other_layouts):
            prefix = self._on_host(layout.prefix)
            for site in (layout.purelib, layout.platlib):
                path = Path(prefix, site, *name.split("."))
                if path.is_dir() or next(path.parent.glob(f"{path.name}.*"), None) is not None:
                    yield f"{name} is installed in {prefix} now, but is not in the image; to add it: repro-env capture"
                    return

    def _advise_path(self, path: str) -> Iterator[str]:
        """Look on this machine for a path that the run did not have, or for the directory in which it could be written."""
        root, found = str(self.inputs.code.root), self._on_host(path)
        exists, real = os.path.lexists(found), os.path.realpath(found)
        if is_below(found, root) and not is_below(real, os.path.realpath(root)):
            path = real  # a symlink in the project that points outside it points to the same path in the run
        if self._is_inside(path):
            return
        parent = os.path.dirname(path)  # noqa: PTH120
        while exists and parent.count("/") >= _DEPTH and not self._is_inside(parent):
            path, parent = parent, os.path.dirname(parent)  # noqa: PTH120
        path = path if exists else parent
        found = self._on_host(path)
        if self._is_inside(path) or not os.path.lexists(found):
            return
        value = shlex.quote(found if found == path else f"{found}:{path}")
        options = [f"to mount it: --data {value}"] if exists else []
        if os.path.isdir(found):  # noqa: PTH112
            options.append(f"to write to it: --checkpoints {value}")
        yield f"{found} is not in the run; {'; '.join(options)}"

    def _on_host(self, path: str) -> str:
        """Return where a path of the run is on this machine: at the same place relative to the source, or the same path."""
        workspace = self.inputs.launch.workspace
        relocated = os.path.normpath(self.inputs.code.root / os.path.relpath(path, workspace))
        return relocated if is_below(path, workspace) or os.path.lexists(relocated) else path

    def _is_inside(self, path: str) -> bool:
        """Whether an absolute path is in the run: from a mount, the source or the image, or created by the runner."""
        launch = self.inputs.launch
        if is_below(path, launch.workspace):
            return path == launch.workspace or path[len(launch.workspace) + 1 :] in self.inputs.source.paths
        made = (launch.workspace, launch.user.home, "/tmp", "/var/tmp", *(mount.target for mount in launch.mounts))  # noqa: S108
        if any(is_below(inner, path) for inner in made):
            return True
        if is_below(path, "/dev", "/proc", "/sys", launch.prefix, *(mount.target for mount in launch.mounts)):
            return True
        trees = (self.store.layers.path(diff_id) for diff_id in launch.layers)
        return any(tree is not None and os.path.lexists(f"{tree}{path}") for tree in trees)
