"""The bytecode of an image's modules: compiled before the first run of the image, and mounted read-only in every run.

It is a separate layer in the store, not a part of the image. Every run uses the same bytecode and writes none, so no run
depends on what earlier runs imported: objects have the same addresses in the first run and in later ones.
"""

from __future__ import annotations

import hashlib
import signal
from collections.abc import Iterator
from pathlib import Path

from repro_env.io import package
from repro_env.io.files import FileContents, locked, walk
from repro_env.oci import paths
from repro_env.oci.entry import Entry, members, sort_with_parents
from repro_env.runs.execution import imageprogram, streams
from repro_env.runs.start.request import RunOptions
from repro_env.schema.progress import Tell
from repro_env.schema.spec import Spec
from repro_env.store.filenames import hex_of
from repro_env.store.store import Store

_FACT = "bytecode"


def of_image(spec: Spec, options: RunOptions, *, store: Store, tell: Tell) -> Path | None:
    """Return the tree to mount as PYTHONPYCACHEPREFIX. If it is not in the store, compile it in the runner of `options`.

    Returns None, with a warning, if the interpreter of the image cannot compile. Raises what the runner and the store raise.
    """
    key = f"{spec.expected.image_id} {_hash_hooks()}"
    tree = _find(key, store)
    if tree is None:
        with (
            tell.progress(0, "compiling the image's modules, once"),
            locked(store.root / "locks" / f"bytecode-{hex_of(spec.expected.image_id)}"),
        ):
            tree = _find(key, store) or _compile(key, spec, options, store, tell)
    return tree


def _hash_hooks() -> str:
    """Return a digest of our hooks, which are compiled with each image."""
    hasher = hashlib.sha256()
    for path in sorted((package.ROOT / paths.HOOKS).glob("*.py")):
        hasher.update(hashlib.sha256(path.read_bytes()).digest())
    return hasher.hexdigest()


def _find(key: str, store: Store) -> Path | None:
    diff_id = store.facts.get(_FACT, key)
    return None if diff_id is None else store.layers.path(diff_id.decode())


def _compile(key: str, spec: Spec, options: RunOptions, store: Store, tell: Tell) -> Path | None:
    with store.temp.directory() as temporary:
        notes, run_directory = temporary / "notes", temporary / "run"
        notes.mkdir()
        run_directory.mkdir()
        program = [spec.identity.interpreter.executable, "-s", "-S", f"{paths.SEEDS}/guest/compile.py"]
        argv = [*program, paths.COMPILED, *_directories(spec)]
        launch = imageprogram.launch(spec, "bytecode", argv, paths.COMPILED, notes=notes, store=store)
        with streams.silent():
            outcome = imageprogram.run(launch, run_directory, spec, options, store)
        if outcome.signal in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.raise_signal(outcome.signal)
        if outcome.exit_code:
            tell.warn(
                f"the image's modules could not be compiled (exit code {outcome.exit_code}), so each process compiles what it imports"
            )
            return None
        files = [file for file in walk(run_directory / "files") if file.kind == "file" and file.path.endswith(".pyc")]
        entries = sort_with_parents(Entry(file.path, "file", size=file.size) for file in files)
        diff_id = store.layers.add(members(entries, FileContents(run_directory / "files")))
    store.facts.put(_FACT, key, diff_id.encode())
    return store.layers.path(diff_id)


def _directories(spec: Spec) -> Iterator[str]:
    """Return the directories of modules in the image, as runs import them."""
    interpreter = spec.observed.interpreter
    yield from (f"{paths.SEEDS}/{paths.HOOKS}", interpreter.platstdlib, interpreter.stdlib)
    for python in (spec.identity.layout, *spec.identity.other_layouts):
        yield from (f"{python.prefix}/{python.platlib}", f"{python.prefix}/{python.purelib}")
