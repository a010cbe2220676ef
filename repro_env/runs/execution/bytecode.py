"""The bytecode of an image's modules: compiled before the first run of the image, and mounted read-only in every run.

It is a separate layer in the store, not a part of the image. Every run uses the same bytecode and writes none, so no run
depends on what earlier runs imported: objects have the same addresses in the first run and in later ones.

The standard library is compiled once for all images with the same Python, in a run that has only the layers of Python itself. So no
package of one image can write bytecode for another.
"""

from __future__ import annotations

import hashlib
import signal
from collections.abc import Iterator
from pathlib import Path

import msgspec

from repro_env.io import package
from repro_env.io.files import FileContents, locked, walk
from repro_env.oci import paths
from repro_env.oci.entry import Entry, members, sort_with_parents
from repro_env.runs.execution import imageprogram, streams
from repro_env.runs.start.request import RunOptions
from repro_env.sandbox.session import FORWARDED
from repro_env.schema import codec
from repro_env.schema.image import Config, Expected
from repro_env.schema.progress import SILENT, Tell
from repro_env.schema.rundirectory import FILES, NOTES
from repro_env.schema.spec import Spec
from repro_env.store.filenames import hex_of
from repro_env.store.store import Store

_FACT = "bytecode"
_PYTHON = ("base", "unpackaged", "interpreter")
"""The kinds of the layers that contain Python itself, if it is not a package of the environment."""


def of_image(spec: Spec, options: RunOptions, *, store: Store, tell: Tell) -> Path | None:
    """Return the tree to mount as PYTHONPYCACHEPREFIX. If it is not in the store, compile it in the runner of `options`.

    Returns None, with a warning, if the interpreter of the image cannot compile. Raises what the runner and the store raise.
    """
    if (tree := _find(spec, store)) is not None:
        return tree
    with tell.progress(0, "compiling the image's modules, once"):
        python = _python_of(spec) if options.traits.mounts_any_layers else None
        known = None if python is None else _make(python, options, None, store, SILENT)
        return _make(spec, options, known, store, tell)


def _python_of(spec: Spec) -> Spec | None:
    """Return a spec with only the layers of Python itself, for the modules that all images with it share; None without such layers."""
    layers = tuple(layer for layer in spec.expected.layers if layer.kind in _PYTHON)
    if not any(layer.kind == "interpreter" for layer in layers) or len(layers) == len(spec.expected.layers):
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


def _make(spec: Spec, options: RunOptions, known: Path | None, store: Store, tell: Tell) -> Path | None:
    with locked(store.root / "locks" / f"bytecode-{hex_of(spec.expected.image_id)}"):
        return _find(spec, store) or _compile(spec, options, known, store, tell)


def _hash_hooks() -> str:
    """Return a digest of our hooks, which are compiled with each image."""
    hasher = hashlib.sha256()
    for path in sorted((package.ROOT / paths.HOOKS).glob("*.py")):
        hasher.update(hashlib.sha256(path.read_bytes()).digest())
    return hasher.hexdigest()


def _key(spec: Spec) -> str:
    return f"{spec.expected.image_id} {_hash_hooks()}"


def _find(spec: Spec, store: Store) -> Path | None:
    diff_id = store.facts.get(_FACT, _key(spec))
    return None if diff_id is None else store.layers.path(diff_id.decode())


def _compile(spec: Spec, options: RunOptions, known: Path | None, store: Store, tell: Tell) -> Path | None:
    """Compile what is not in the tree `known`, and copy the rest from there."""
    with store.temp.directory() as temporary:
        notes, run_directory = temporary / NOTES, temporary / "run"
        notes.mkdir()
        run_directory.mkdir()
        program = [spec.identity.interpreter.executable, "-s", "-S", f"{paths.SEEDS}/guest/compile.py"]
        argv = [*program, paths.COMPILED, paths.PYCACHE, *_directories(spec)]
        launch = imageprogram.launch(spec, "bytecode", argv, paths.COMPILED, notes=notes, store=store)
        with streams.silent():
            outcome = imageprogram.run(launch, run_directory, spec, options, store, bytecode=known)
        if (stopped := outcome.interrupted or outcome.signal) in FORWARDED:
            signal.raise_signal(stopped)
        if outcome.exit_code:
            tell.warn(
                f"the image's modules could not be compiled (exit code {outcome.exit_code}), so each process compiles what it imports"
            )
            return None
        files = [file for file in walk(run_directory / FILES) if file.kind == "file" and file.path.endswith(".pyc")]
        entries = sort_with_parents(Entry(file.path, "file", size=file.size) for file in files)
        diff_id = store.layers.add(members(entries, FileContents(run_directory / FILES)))
    store.facts.put(_FACT, _key(spec), diff_id.encode())
    return store.layers.path(diff_id)


def _directories(spec: Spec) -> Iterator[str]:
    """Return the directories of modules in the image, as runs import them."""
    interpreter = spec.observed.interpreter
    yield from (f"{paths.SEEDS}/{paths.HOOKS}", interpreter.platstdlib, interpreter.stdlib)
    for python in (spec.identity.layout, *spec.identity.other_layouts):
        yield from (f"{python.prefix}/{python.platlib}", f"{python.prefix}/{python.purelib}")
