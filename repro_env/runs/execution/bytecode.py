"""The bytecode of an image's modules: compiled before the image is first run, and mounted read-only in every run.

It is not a part of the image. Every run uses the same bytecode and writes none, so no run depends on what earlier runs imported:
objects have the same addresses in the first run and in later ones.

Each layer is compiled once for all images with the same Python, in a run that has only the layers of Python itself and the files of this
layer, which it only reads. So no package can write bytecode for the modules of another layer.
"""

from __future__ import annotations

import contextlib
import hashlib
import heapq
import itertools
import os
import signal
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import msgspec

from repro_env.io import package, parallel, process
from repro_env.io.files import locked, read_regular
from repro_env.oci import paths
from repro_env.oci.entry import Entry, Member, Members, sort_with_parents
from repro_env.runs.execution import imageprogram, streams
from repro_env.runs.start.request import RunOptions
from repro_env.sandbox import kernel
from repro_env.sandbox.image import find_in_image, merge
from repro_env.sandbox.session import FORWARDED
from repro_env.schema import codec
from repro_env.schema.errors import ReproEnvError
from repro_env.schema.image import Config, Expected, Layer
from repro_env.schema.progress import SILENT, Tell
from repro_env.schema.run import Mount
from repro_env.schema.rundirectory import FILES, REPORTS
from repro_env.schema.spec import Spec
from repro_env.store.filenames import hex_of
from repro_env.store.store import Store

_FACT = "bytecode"
_LONGEST = 1 << 30
"""Most bytes of a file of the compiler."""
_SHORTEST, _LONGEST_PAUSE = 0.005, 0.08
"""Seconds between two looks for a file of the compiler, so that waiting costs few calls."""
_PYTHON = ("base", "unpackaged", "interpreter")
"""The kinds of the layers that contain Python itself, if it is not a package of the environment."""


class Part(msgspec.Struct, frozen=True):
    """Modules that are compiled together."""

    compiler: Spec
    """The spec with the layers in which they are compiled."""
    directories: tuple[str, ...]
    """The directories of the modules in the image."""
    layer: str = ""
    """The diff ID of the layer that has them; empty if the compiler's layers have them."""
    hooks: str = ""
    """The digest of our hooks, if they are the modules."""

    @property
    def key(self) -> str:
        """Equal for equal modules, paths and interpreters."""
        return codec.digest([self.compiler.expected.image_id, self.layer, self.directories, self.hooks])


def of_image(spec: Spec, options: RunOptions, *, store: Store, tell: Tell) -> Path | None:
    """Return the tree to mount as PYTHONPYCACHEPREFIX. What is not in the store is compiled in the runner of `options`.

    Returns None, with a warning, if the interpreter of the image cannot compile. Raises what the runner and the store raise.
    """
    hooks = _hash_hooks()
    key = codec.digest([spec.expected.image_id, hooks])
    found = (store.facts.get(_FACT, key) or b"").decode().split()
    if not found or None in map(store.layers.path, found):
        found = []
        with tell.progress(0, "compiling the image's modules, once"):
            for diff_id in _make_parts(spec, hooks, options, store, tell):
                if diff_id is None:
                    return None
                found.append(diff_id)
        found.append(store.layers.add(_links(spec)))
        store.facts.put(_FACT, key, " ".join(found).encode())
    trees = [tree for diff_id in found if (tree := store.layers.path(diff_id)) is not None]
    # Its name begins with that of the image, so garbage collection keeps both for the same time.
    target = store.root / "merged" / f"{hex_of(spec.expected.image_id)}.{hex_of(codec.digest(found))[:16]}"
    if not target.is_dir():
        merge(trees, target)
        for diff_id in found:
            store.layers.mark(diff_id)
    return target


@contextlib.contextmanager
def compiling(spec: Spec, store: Store, tell: Tell) -> Iterator[None]:
    """Compile, in another process, the layers that the block makes. After the block, wait for the last ones."""
    if _python_of(spec) is None:
        yield
        return
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(store.temp.directory()) / "spec"
        file.write_bytes(codec.canonical(spec))
        try:
            helper = process.PythonProcess(f"from {__name__} import run\nrun({str(file)!r}, {str(store.root)!r}, {os.getpid()})")
        except OSError:  # this user may not start Python again, so `of_image` compiles everything
            yield
            return
        stack.callback(helper.close)
        try:
            yield
            with tell.progress(0, "compiling the image's modules, once"):
                helper.wait()
        except BaseException:
            os.kill(helper.pid, signal.SIGTERM)
            raise


def run(file: str, root: str, parent: int) -> None:
    """Compile each layer of a spec as soon as it is in the store. Ends with the process `parent`, which started it."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that its temporary files are removed
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        return
    store, spec = Store(Path(root)), codec.decode(Path(file).read_bytes(), Spec, where=file)
    layers, hooks = spec.expected.layers, _hash_hooks()
    found: tuple[Layer, ...] = ()
    compiled: tuple[Layer, ...] = ()
    with contextlib.suppress(ReproEnvError):  # `of_image` raises it again
        while True:
            found = tuple(layer for layer in layers if layer in found or store.layers.path(layer.diff_id) is not None)
            if found != compiled and all(layer in found for layer in layers if layer.kind in _PYTHON):
                made = msgspec.structs.replace(spec, expected=msgspec.structs.replace(spec.expected, layers=found))
                if not all(_make_parts(made, hooks, RunOptions(), store, SILENT)):
                    return
                compiled = found
            if compiled == layers:
                return
            time.sleep(0.1)


def parts(spec: Spec, hooks: str, store: Store, *, shares: bool) -> Iterator[Part]:
    """Yield the modules of an image, first those of Python, and those that replace others last.

    `shares`: each layer is a part that other images can use.
    """
    compiler = (_python_of(spec) if shares else None) or spec
    library = spec.observed.interpreter.library
    layouts = (spec.identity.layout, *spec.identity.other_layouts)
    sites = tuple(f"{paths.root_of(layout)}/{path}" for layout in layouts for path in (layout.platlib, layout.purelib))
    directories = {
        layer: [path for path in dict.fromkeys((*library, *sites)) if _has_directory(store, layer.diff_id, path)]
        for layer in spec.expected.layers
    }
    yield Part(
        compiler, tuple(dict.fromkeys((*library, *(path for layer in compiler.expected.layers for path in directories[layer]))))
    )
    yield Part(compiler, (f"{paths.SEEDS}/{paths.HOOKS}",), hooks=hooks)
    for layer in spec.expected.layers[len(compiler.expected.layers) :]:
        if directories[layer]:
            yield Part(compiler, tuple(directories[layer]), layer.diff_id)


def _has_directory(store: Store, diff_id: str, path: str) -> bool:
    tree = store.layers.path(diff_id)
    found = None if tree is None else find_in_image(tree, path)
    return found is not None and found.is_dir()


def _python_of(spec: Spec) -> Spec | None:
    """Return a spec with only the layers of Python itself, for the modules that all images with it share; None without such layers."""
    layers = tuple(layer for layer in spec.expected.layers if layer.kind in _PYTHON)
    if not any(layer.kind == "interpreter" for layer in layers):
        return None
    # Some interpreters need this variable to find their libraries.
    env = tuple(variable for variable in spec.identity.config.env if variable.name == "LD_LIBRARY_PATH")
    identity = msgspec.structs.replace(
        spec.identity,
        layout=msgspec.structs.replace(spec.identity.layout, in_place=True),  # so that no environment is mounted
        other_layouts=(),
        config=Config(env=env),
    )
    everything = msgspec.json.encode([layers, env, identity.interpreter, spec.observed.interpreter])
    image_id = codec.digest_of(everything)
    return msgspec.structs.replace(spec, identity=identity, expected=Expected(layers=layers, image_id=image_id))


def _hash_hooks() -> str:
    """Return a digest of our hooks, which are compiled for each Python."""
    hasher = hashlib.sha256()
    for path in sorted((package.ROOT / paths.HOOKS).glob("*.py")):
        hasher.update(hashlib.sha256(path.read_bytes()).digest())
    return hasher.hexdigest()


def _links(spec: Spec) -> Members:
    """Yield links from where runs see modules to their bytecode, which has the paths of the image."""
    entries = [
        Entry(paths.inside(f"{layout.prefix}/{path}"), "link", target=f"{paths.PYCACHE}{paths.root_of(layout)}/{path}")
        for layout in (spec.identity.layout, *spec.identity.other_layouts)
        for path in (layout.platlib, layout.purelib)
        if paths.root_of(layout) != layout.prefix
    ]
    return ((entry, ()) for entry in sort_with_parents(entries))


def _make_parts(spec: Spec, hooks: str, options: RunOptions, store: Store, tell: Tell) -> Iterator[str | None]:
    """Yield the diff ID of the bytecode of each part, which is compiled if it is not in the store; None if that fails."""
    python = None
    for part in parts(spec, hooks, store, shares=options.traits.mounts_any_layers):
        with locked(store.root / "locks" / f"bytecode-{hex_of(part.key)}"):
            diff_id = (store.facts.get(_FACT, part.key) or b"").decode() or None
            if diff_id is None or store.layers.path(diff_id) is None:
                diff_id = _compile(part, python, options, store, tell)
        yield diff_id
        python = python or (diff_id and store.layers.path(diff_id)) or None


def _compile(part: Part, python: Path | None, options: RunOptions, store: Store, tell: Tell) -> str | None:
    """Compile a part, and return the diff ID of its bytecode. `python`: the bytecode of Python, so that it starts quickly."""
    spec = part.compiler
    with store.temp.directory() as temporary:
        reports, run_directory = temporary / REPORTS, temporary / "run"
        reports.mkdir()
        run_directory.mkdir()
        tree = store.layers.path(part.layer) if part.layer else None
        mounts = [] if tree is None else [Mount(kind="data", source=str(tree), target=paths.LAYER)]
        program = [spec.identity.interpreter.executable, "-s", "-S", "-X", f"pycache_prefix={paths.PYCACHE}"]
        argv = [*program, f"{paths.SEEDS}/guest/compile.py", paths.COMPILED, paths.LAYER if part.layer else "", *part.directories]
        launch = imageprogram.launch(spec, "bytecode", argv, paths.COMPILED, reports=reports, store=store, mounts=mounts)
        end = temporary / "end"
        with parallel.call_meanwhile(partial(_store, run_directory / FILES, end, store, os.getpid())) as result:
            with streams.silent():
                outcome = imageprogram.run(launch, run_directory, spec, options, store, bytecode=python)
            if (stopped := outcome.interrupted or outcome.signal) in FORWARDED:
                signal.raise_signal(stopped)
            if outcome.exit_code:
                what = f"the image's modules could not be compiled (exit code {outcome.exit_code})"
                tell.warn(f"{what}, so each process compiles what it imports")
                return None
            end.touch()
            diff_id = result()
    store.facts.put(_FACT, part.key, diff_id.encode())
    return diff_id


def _store(directory: Path, end: Path, store: Store, parent: int) -> str:
    """Write what the compiler made to the store, while it makes more, and return the diff ID. Ends with the process `parent`."""
    kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGTERM)
    return store.layers.add(_members(directory, end)) if os.getppid() == parent else ""


def _members(directory: Path, end: Path) -> Members:
    names = (_read(directory / "names", end) or b"").decode(errors="replace").split("\0")
    entries = sort_with_parents(Entry(name, "file") for name in names if name)
    directories = ((entry, ()) for entry in entries if entry.kind == "dir")
    return heapq.merge(directories, _modules(directory, end), key=lambda member: member[0].key)


def _modules(directory: Path, end: Path) -> Iterator[Member]:
    for number in itertools.count():
        pack = _read(directory / str(number), end)
        if pack is None:
            return
        position = 0
        while position < len(pack):
            start = position + 8 + int.from_bytes(pack[position : position + 4], "little")
            size = int.from_bytes(pack[position + 4 : position + 8], "little")
            name = pack[position + 8 : start].decode(errors="replace")
            position = start + size
            yield Entry(name, "file", size=size), (pack[start:position],)


def _read(path: Path, end: Path) -> bytes | None:
    """Return a file of the compiler, which is waited for until `end` exists. No symlink is followed."""
    pause = _SHORTEST
    while True:
        is_last = end.exists()
        with contextlib.suppress(FileNotFoundError):
            return read_regular(path, _LONGEST)
        if is_last:
            return None
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)
