"""What to do after a failed command: from what its exceptions missed, compared with what is on this machine."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from repro_env.catalog import records
from repro_env.catalog.ids import short
from repro_env.catalog.noted import Failure
from repro_env.flows.asked import Asked
from repro_env.flows.snapshot import Snapshot
from repro_env.model import redact
from repro_env.model.errors import ReproEnvError
from repro_env.model.run import Launch
from repro_env.model.spec import Spec
from repro_env.run import plan
from repro_env.store.store import Store

_MOST = 2
_RUNS = 20
"""Earlier runs that are searched for a file."""
_DOWNLOADS = ("scikit_learn_data", ".cache/huggingface", ".cache/torch", "nltk_data", ".keras", "seaborn-data")
"""In the home directory: where libraries keep what they download."""
_USERS = ("home", "media", "mnt", "scratch")
"""Top directories that hold directories of users or whole disks: data is named from the third level on."""


class Advisor(msgspec.Struct, frozen=True):
    """A run that failed, and this machine. Names come from the run and are not trusted: they are only looked up and printed."""

    asked: Asked
    spec: Spec
    launch: Launch
    source: Snapshot
    root: Path
    """What the captured path of the source stands for on this machine."""
    runs: Path
    store: Store

    def lines(self, failures: Sequence[Failure]) -> tuple[str, ...]:
        """At most two lines, each with the option or command that helps.

        The command's own words count where no exception gave another reason.
        """
        found = list(dict.fromkeys(line for failure in failures for line in self._advise(failure)))
        if not found and all(failure.kind == "path" for failure in failures):
            named = plan.named_paths(self.asked.command, here=self.launch.cwd)
            found = list(dict.fromkeys(line for path in named for line in self._path(path)))
        return tuple(redact.line(line) for line in found[:_MOST])

    def _advise(self, failure: Failure) -> Iterator[str]:
        what = failure.what
        if failure.kind == "host":
            if not self.asked.network:
                yield "the run has no network; to allow it: --network" + self._downloads()
        elif failure.kind == "program":
            yield from self._program(what)
        elif failure.kind == "module":
            yield from self._module(what)
        elif what.startswith("/"):
            what = os.path.normpath(what)
            yield from self._path(what) if failure.kind == "path" else self._read_only(what)

    def _downloads(self) -> str:
        """The option for what libraries downloaded earlier, as the end of a line; empty if there is nothing."""
        kept = [(name, f"{self.launch.user.home}/{name}") for name in _DOWNLOADS]
        options = [f"--data ~/{name}" for name, path in kept if os.path.isdir(path) and not self._is_inside(path)]  # noqa: PTH112
        return f"; to show earlier downloads: {' '.join(options)}" if options else ""

    def _program(self, name: str) -> Iterator[str]:
        found = shutil.which(name, path=self.asked.environ.get("PATH")) if name and "/" not in name else None
        if found is not None:
            yield f"{name} is not in the image; to add it, capture again with --with {shlex.quote(name)}"

    def _module(self, name: str) -> Iterator[str]:
        identity = self.spec.identity
        if not all(part.isidentifier() for part in name.split(".")):
            return
        for place in (identity.layout, *identity.others):
            prefix = self._here(place.prefix)
            for site in dict.fromkeys((place.purelib, place.platlib)):
                if _is_module(Path(prefix, site, *name.split("."))):
                    yield f"{name} is installed in {prefix} now, but is not in the image; to add it: repro-env capture"
                    return
        if _is_module(Path(self.root.parent, *name.split("."))):
            yield f"{name} is in {self.root.parent}, outside the source; to have both: repro-env capture --source {self.root.parent}"

    def _read_only(self, path: str) -> Iterator[str]:
        for mount in self.launch.mounts:
            if mount.kind == "data" and _below(path, mount.target):
                yield f"{mount.target} is data, which a run cannot change; for a directory that it can: --checkpoints DIR"

    def _path(self, path: str) -> Iterator[str]:
        """A path that the run did not have: where it is on this machine, or which earlier run wrote it."""
        here = self._here(path)
        if os.path.lexists(here):
            real = os.path.realpath(here)
            if _below(here, str(self.root)) and not _below(real, os.path.realpath(self.root)):
                path = real  # a link of the project leads out of it: inside the run, it leads to the same absolute path
            if self._is_inside(path):
                return
            parent = os.path.dirname(path)  # noqa: PTH120
            while parent.count("/") >= (3 if path.split("/")[1] in _USERS else 2) and not self._is_inside(parent):
                path, parent = parent, os.path.dirname(parent)  # noqa: PTH120
            write = f"; to write to it: --checkpoints {self._option(path)}" if os.path.isdir(self._here(path)) else ""  # noqa: PTH112
            yield f"{self._here(path)} is not in the run; to show it there: --data {self._option(path)}{write}"
        elif not _below(path, self.launch.workspace):
            parent = os.path.dirname(path)  # noqa: PTH120
            if os.path.isdir(self._here(parent)) and not self._is_inside(parent):  # noqa: PTH112
                yield f"{self._here(parent)} is not in the run; to write to it: --checkpoints {self._option(parent)}"
        else:
            name = os.path.relpath(path, self.launch.workspace)
            for folder in records.folders(self.runs)[:_RUNS]:
                if os.path.lexists(folder / "files" / name):
                    try:
                        identifier = records.read(folder).start.id
                    except ReproEnvError:
                        continue
                    if identifier == self.launch.run_id:  # this run wrote it before it failed
                        continue
                    run = short(identifier)
                    yield f"run {run} wrote {name}; to put its files into the project: repro-env runs get {run} --to {self.root}"
                    return

    def _here(self, path: str) -> str:
        """Where a path of the run is on this machine: below the source, beside it, or the same path."""
        near = os.path.normpath(self.root / os.path.relpath(path, self.launch.workspace))
        return near if _below(path, self.launch.workspace) or os.path.lexists(near) else path

    def _option(self, path: str) -> str:
        """The value of `--data` that shows a path; relative where that is as good and short."""
        here = self._here(path)
        name = os.path.relpath(here, self.asked.here)
        if not name.startswith("../../") and (here == path or self.asked.here.is_relative_to(self.root)):
            return shlex.quote(name)
        return shlex.quote(here if here == path else f"{here}:{path}")

    def _is_inside(self, path: str) -> bool:
        """Whether an absolute path is in the run: from a mount, the source or the image, or made by the runner."""
        launch = self.launch
        fixed = ("/", "/tmp", "/var/tmp", launch.user.home, launch.workspace)  # noqa: S108
        if path in fixed or _below(path, "/dev", "/proc", "/sys", launch.prefix, *(mount.target for mount in launch.mounts)):
            return True
        if _below(path, launch.workspace):
            return path[len(launch.workspace) + 1 :] in self.source.paths
        if any(_below(inner, path) for inner in (launch.workspace, launch.user.home, *(mount.target for mount in launch.mounts))):
            return True
        trees = (self.store.layers.path(diff_id) for diff_id in (*launch.layers, launch.siblings) if diff_id is not None)
        return any(tree is not None and os.path.lexists(f"{tree}{path}") for tree in trees)


def _is_module(path: Path) -> bool:
    return path.is_dir() or next(path.parent.glob(f"{path.name}.*"), None) is not None


def _below(path: str, *directories: str) -> bool:
    return any(path == directory or path.startswith(directory + "/") for directory in directories)
