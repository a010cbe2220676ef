"""Advice after a failed command: what its exceptions missed, compared with what this machine has."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from repro_env.oci.paths import is_below
from repro_env.runs.records import records
from repro_env.runs.records.ids import short
from repro_env.runs.records.notes import Failure
from repro_env.runs.start.inputs import Inputs
from repro_env.sandbox import plan
from repro_env.schema import redact
from repro_env.schema.errors import ReproEnvError
from repro_env.store.store import Store

_MAX_LINES = 2
_MAX_RUNS = 20
"""How many earlier runs are searched for a missing file."""
_DOWNLOAD_DIRECTORIES = ("scikit_learn_data", ".cache/huggingface", ".cache/torch", "nltk_data", ".keras", "seaborn-data")
"""Directories in the home directory where libraries keep their downloads."""
_SHARED_ROOTS = ("home", "media", "mnt", "scratch")
"""Top-level directories that hold home directories or mounted disks. Below them, advice names a path of at least three components."""


class Advisor(msgspec.Struct, frozen=True):
    """A failed run and this machine. Names come from the run and are not trusted: they are only looked up and printed."""

    inputs: Inputs
    store: Store

    def lines(self, failures: Sequence[Failure]) -> tuple[str, ...]:
        """Return at most two lines, each with the option or command that helps.

        The command's own arguments are checked only if the exceptions gave no advice.
        """
        lines = list(dict.fromkeys(line for failure in failures for line in self._advise(failure)))
        if not lines and all(failure.kind == "path" for failure in failures):
            paths = plan.named_paths(self.inputs.options.command, here=self.inputs.launch.cwd)
            lines = list(dict.fromkeys(line for path in paths for line in self._advise_path(path)))
        return tuple(redact.line(line) for line in lines[:_MAX_LINES])

    def _advise(self, failure: Failure) -> Iterator[str]:
        name = failure.what
        if failure.kind == "host":
            if not self.inputs.options.network:
                yield "the run has no network; to allow it: --network" + self._offer_downloads()
        elif failure.kind == "program":
            yield from self._advise_program(name)
        elif failure.kind == "module":
            yield from self._advise_module(name)
        elif name.startswith("/"):
            path = os.path.normpath(name)
            yield from self._advise_path(path) if failure.kind == "path" else self._advise_read_only(path)

    def _offer_downloads(self) -> str:
        """Return the options that mount earlier downloads of libraries, as the end of a line; empty if there are none."""
        paths = [(name, f"{self.inputs.launch.user.home}/{name}") for name in _DOWNLOAD_DIRECTORIES]
        options = [f"--data ~/{name}" for name, path in paths if os.path.isdir(path) and not self._is_inside(path)]  # noqa: PTH112
        return f"; to mount earlier downloads: {' '.join(options)}" if options else ""

    def _advise_program(self, name: str) -> Iterator[str]:
        if name and "/" not in name and shutil.which(name, path=self.inputs.options.environ.get("PATH")) is not None:
            yield f"{name} is not in the image; to add it, capture again with --with {shlex.quote(name)}"

    def _advise_module(self, name: str) -> Iterator[str]:
        identity = self.inputs.spec.identity
        if not all(part.isidentifier() for part in name.split(".")):
            return
        for layout in (identity.layout, *identity.others):
            prefix = self._on_host(layout.prefix)
            for site in dict.fromkeys((layout.purelib, layout.platlib)):
                if _is_module(Path(prefix, site, *name.split("."))):
                    yield f"{name} is installed in {prefix} now, but is not in the image; to add it: repro-env capture"
                    return
        if _is_module(Path(self.inputs.code.root.parent, *name.split("."))):
            parent = self.inputs.code.root.parent
            yield f"{name} is in {parent}, outside the source; to include both: repro-env capture --source {parent}"

    def _advise_read_only(self, path: str) -> Iterator[str]:
        for mount in self.inputs.launch.mounts:
            if mount.kind == "data" and is_below(path, mount.target):
                yield f"{mount.target} is data, which is read-only in a run; to mount a writable directory: --checkpoints DIR"

    def _advise_path(self, path: str) -> Iterator[str]:
        """Look for a path that the run did not have on this machine, then among the outputs of earlier runs."""
        host_path, root = self._on_host(path), self.inputs.code.root
        if os.path.lexists(host_path):
            real = os.path.realpath(host_path)
            if is_below(host_path, str(root)) and not is_below(real, os.path.realpath(root)):
                path = real  # a symlink in the project that points outside it points to the same absolute path in the run
            if self._is_inside(path):
                return
            parent = os.path.dirname(path)  # noqa: PTH120
            while parent.count("/") >= (3 if path.split("/")[1] in _SHARED_ROOTS else 2) and not self._is_inside(parent):
                path, parent = parent, os.path.dirname(parent)  # noqa: PTH120
            host_path = self._on_host(path)
            value = self._option_value(path)
            write = f"; to write to it: --checkpoints {value}" if os.path.isdir(host_path) else ""  # noqa: PTH112
            yield f"{host_path} is not in the run; to mount it: --data {value}{write}"
        elif not is_below(path, self.inputs.launch.workspace):
            parent = os.path.dirname(path)  # noqa: PTH120
            host_path = self._on_host(parent)
            if os.path.isdir(host_path) and not self._is_inside(parent):  # noqa: PTH112
                yield f"{host_path} is not in the run; to write to it: --checkpoints {self._option_value(parent)}"
        else:
            name = os.path.relpath(path, self.inputs.launch.workspace)
            for directory in records.directories(self.inputs.runs)[:_MAX_RUNS]:
                if os.path.lexists(directory / "files" / name):
                    try:
                        run_id = records.read(directory).start.id
                    except ReproEnvError:
                        continue
                    if run_id == self.inputs.launch.run_id:  # this run wrote it before it failed
                        continue
                    run = short(run_id)
                    yield f"run {run} wrote {name}; to copy its files into the project: repro-env runs get {run} --to {root}"
                    return

    def _on_host(self, path: str) -> str:
        """Return where a path of the run is on this machine: at the same place relative to the source, or the same path."""
        workspace = self.inputs.launch.workspace
        relocated = os.path.normpath(self.inputs.code.root / os.path.relpath(path, workspace))
        return relocated if is_below(path, workspace) or os.path.lexists(relocated) else path

    def _option_value(self, path: str) -> str:
        """Return the value of `--data` or `--checkpoints` that mounts a path: relative if that is short and has the same effect."""
        host_path, here = self._on_host(path), self.inputs.options.here
        name = os.path.relpath(host_path, here)
        if not name.startswith("../../") and (host_path == path or here.is_relative_to(self.inputs.code.root)):
            return shlex.quote(name)
        return shlex.quote(host_path if host_path == path else f"{host_path}:{path}")

    def _is_inside(self, path: str) -> bool:
        """Whether an absolute path is in the run: from a mount, the source or the image, or created by the runner."""
        launch = self.inputs.launch
        fixed = ("/", "/tmp", "/var/tmp", launch.user.home, launch.workspace)  # noqa: S108
        if path in fixed or is_below(path, "/dev", "/proc", "/sys", launch.prefix, *(mount.target for mount in launch.mounts)):
            return True
        if is_below(path, launch.workspace):
            return path[len(launch.workspace) + 1 :] in self.inputs.source.paths
        if any(
            is_below(inner, path) for inner in (launch.workspace, launch.user.home, *(mount.target for mount in launch.mounts))
        ):
            return True
        trees = (self.store.layers.path(diff_id) for diff_id in (*launch.layers, launch.siblings) if diff_id is not None)
        return any(tree is not None and os.path.lexists(f"{tree}{path}") for tree in trees)


def _is_module(path: Path) -> bool:
    return path.is_dir() or next(path.parent.glob(f"{path.name}.*"), None) is not None
