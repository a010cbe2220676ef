"""Seeds for what a script leaves to chance. Standard library only, Python 3.8 and newer; imported by `sitecustomize`.

Reads REPRO_ENV_SEED (the master seed) and REPRO_ENV_NOTES (a file to append notes to). Every stream is
sha256(master, rank, worker, purpose, ordinal). `worker` is the process' identity in multiprocessing, the same
under fork, spawn and forkserver; inside a DataLoader worker it is the seed that torch gave that worker. What the
script seeds itself stays as it is: we only set what would come from the operating system. `os.urandom`,
`secrets`, `uuid` and `tempfile` are left alone.

A hole is a generator that the script left unseeded and drew from. Each is one JSON line
{"library", "what", "file", "line"}; a line {"problem"} says where seeding itself failed.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing typing takes as long as the interpreter's own start
    from collections.abc import Callable
    from types import FrameType, ModuleType
    from typing import Any

_MASTER = os.environ.get("REPRO_ENV_SEED", "")
_NOTES = os.environ.get("REPRO_ENV_NOTES", "")
_RANKS = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
_MOST = 1000
"""Notes of one process."""


class _State:
    """What this process is, and what it seeded."""

    worker: tuple[Any, ...] = ()
    forks = 0
    python: Any = None
    """State of `random` as we set it; None when the script seeded it."""
    numpy: Any = None
    """(its SeedSequence, or None where NumPy cannot tell; its state) as we set them."""
    torch: Any = None
    """(seed, state) as we set them."""


_ordinals: dict[Any, int] = {}
_noted: set[Any] = set()
_seeded: dict[tuple[str, int], bool] = {}
_first: dict[str, tuple[str, int]] = {}
"""Module -> where the script first imported it."""


def install() -> None:
    """Put the hooks in place. Imports nothing that the interpreter has not imported by itself."""
    if not _MASTER:
        return
    sys.meta_path.insert(0, _Watch())
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=_before_fork, after_in_child=_after_fork)
    for name in _HOOKS:
        if name in sys.modules:  # a .pth file of the environment was faster
            _fire(name, sys.modules[name])
    import atexit

    atexit.register(_at_exit)


def stream(purpose: str, bits: int) -> int:
    """The next `bits` (at most 256) of this process for one purpose."""
    worker = _worker()
    ordinal = _ordinals.get((worker, purpose), 0)
    _ordinals[worker, purpose] = ordinal + 1
    text = "\0".join(("repro-env/seeds/1", _MASTER, _rank(), repr(worker), purpose, str(ordinal)))
    return int.from_bytes(_sha256(text.encode()), "big") >> (256 - bits)


def _sha256(data: bytes) -> bytes:
    # hashlib would load OpenSSL, which takes longer than all the rest of this file.
    for name in ("_sha2", "_sha256", "hashlib"):
        try:
            digest: bytes = __import__(name).sha256(data).digest()
        except ImportError:
            continue
        return digest
    raise ImportError("this Python has no SHA-256")


def _rank() -> str:
    return next((os.environ[name] for name in _RANKS if os.environ.get(name)), "")


def _worker() -> tuple[Any, ...]:
    loader = sys.modules.get("torch.utils.data._utils.worker")
    info = getattr(loader, "_worker_info", None)
    return _State.worker if info is None else ("loader", info.seed)


# --- notes


def problem(where: str, error: Exception) -> None:
    """Note that something of ours failed, and go on."""
    _note({"problem": f"{where}: {type(error).__name__}: {error}"})


def _hole(library: str, what: str, file: str, line: int) -> None:
    if not file.startswith("<"):
        file = os.path.abspath(file)  # Python 3.8 names the script as it was typed
    _note({"library": library, "what": what, "file": file, "line": line})


def _note(facts: dict[str, Any]) -> None:
    key = tuple(sorted(facts.items()))
    if not _NOTES or key in _noted or len(_noted) >= _MOST:
        return
    _noted.add(key)
    try:
        import json

        text = json.dumps(facts, sort_keys=True).encode() + b"\n"
        # One write in append mode: the lines of several processes do not mix.
        fd = os.open(_NOTES, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            os.write(fd, text)
        finally:
            os.close(fd)
    except (OSError, ValueError):
        pass


def _own_code(file: str) -> bool:
    """Whether this is a file of the user's: not ours, not the standard library's, not an installed package's."""
    library = os.path.dirname(os.__file__) + "/"
    return not (
        file.startswith(("<frozen ", library)) or file == __file__ or "/site-packages/" in file or "/dist-packages/" in file
    )


def _importer() -> tuple[str, int]:
    """The line of the user's code that the running import comes from; else of whoever asked for it."""
    frame: FrameType | None = sys._getframe(1)
    nearest = ("<unknown>", 0)
    while frame is not None:
        file = frame.f_code.co_filename
        if _own_code(file):
            return file, frame.f_lineno
        if nearest[1] == 0 and not file.startswith("<frozen ") and file != __file__:
            nearest = (file, frame.f_lineno)
        frame = frame.f_back
    return nearest


# --- hooks after an import


def when_imported(name: str, hook: Callable[[Any], object]) -> None:
    """Call `hook(module)` once `name` has been imported; now, where it already is. Several hooks of a name run in order.

    What a hook raises becomes a note. Call this after `install()`: without a master seed there are no hooks.
    """
    _HOOKS[name] = (*_HOOKS.get(name, ()), hook)
    if name in sys.modules and (name in _first or not _half_imported(sys.modules[name])):
        _call(name, hook, sys.modules[name])


def _half_imported(module: ModuleType) -> bool:
    """Whether the module is running right now: its hooks are called when it has run."""
    return bool(getattr(getattr(module, "__spec__", None), "_initializing", False))


class _Watch:
    """Finds nothing itself: lets the other finders find, and fires a hook once the module has run."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name not in _HOOKS:
            return None
        for finder in list(sys.meta_path):
            find = getattr(finder, "find_spec", None)
            if finder is self or find is None:
                continue
            spec = find(name, path, target)
            if spec is not None:
                try:
                    _arm(name, spec.loader)
                except Exception as error:
                    problem(name, error)
                return spec
        return None


def _arm(name: str, loader: Any) -> None:
    """Fire once `loader` has run the module. The loader stays the object it is: packages look at its type."""
    run = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        run(module)
        if module.__name__ == name:
            loader.__dict__.pop("exec_module", None)
            _fire(name, module)

    loader.exec_module = exec_module


def _fire(name: str, module: ModuleType) -> None:
    for hook in _HOOKS[name]:
        _call(name, hook, module)


def _call(name: str, hook: Callable[[Any], object], module: ModuleType) -> None:
    _first.setdefault(name, _importer())
    try:
        hook(module)
    except Exception as error:
        problem(name, error)


# --- Python's own random


def _hook_random(random: Any) -> None:
    plain = random.Random.seed

    def seed(self: Any, a: Any = None, version: int = 2) -> None:
        """Initialize internal state from a seed."""
        if a is None and type(self).seed is seed:
            frame: FrameType | None = sys._getframe(1)
            while frame is not None and frame.f_code.co_filename == random.__file__:
                frame = frame.f_back
            if frame is not None and frame.f_globals.get("__name__") != "tempfile":
                what = "random.seed() without a seed" if self is random._inst else "random.Random() without a seed"
                _hole("python", what, frame.f_code.co_filename, frame.f_lineno)
                a = stream("random.Random", 256)
        if self is random._inst:
            _State.python = None
        plain(self, a, version)

    seed.__qualname__ = "Random.seed"
    seed.__module__ = "random"
    random.Random.seed = seed
    random.seed = random._inst.seed
    if hasattr(os, "register_at_fork"):
        # `random` has itself reseeded from the system after a fork; what is registered later runs later.
        os.register_at_fork(after_in_child=_seed_python)
    _seed_python()


def _seed_python() -> None:
    random: Any = sys.modules["random"]
    random._inst.seed(stream("random", 256))
    _State.python = random.getstate()


# --- NumPy


def _hook_numpy_bits(bit_generator: Any) -> None:
    """Every unseeded SeedSequence, and so every unseeded generator, asks this module's `randbits` for entropy."""
    if not hasattr(bit_generator, "randbits"):
        raise AttributeError("this NumPy takes its entropy elsewhere: generators without a seed are not covered")

    def randbits(bits: int) -> int:
        frame = sys._getframe(1)  # compiled code has no frame: this is who called NumPy
        if frame.f_code.co_filename.startswith("<frozen "):
            return stream("numpy import", bits)
        if not _is_seeded_state(frame.f_code.co_filename, frame.f_lineno):
            _hole("numpy", "generator without a seed", frame.f_code.co_filename, frame.f_lineno)
        return stream("numpy", bits)

    bit_generator.randbits = randbits


def _is_seeded_state(file: str, line: int) -> bool:
    """Whether the call in this line is `RandomState(seed)`: NumPy draws entropy for it first and then throws it away."""
    key = (file, line)
    if key not in _seeded:
        import linecache

        _, call, rest = linecache.getline(file, line).partition("RandomState(")
        _seeded[key] = bool(call) and not rest.lstrip().startswith((")", "None", "seed=None"))
    return _seeded[key]


def _seed_numpy(mtrand: Any) -> None:
    sequence = None
    if hasattr(mtrand, "set_bit_generator"):
        sequence = sys.modules["numpy.random.bit_generator"].SeedSequence(stream("numpy global", 128))
        mtrand.set_bit_generator(sys.modules["numpy.random._mt19937"].MT19937(sequence))
    else:
        mtrand._rand.seed(stream("numpy global", 32))
    _State.numpy = (sequence, _numpy_state(mtrand))


def _numpy_state(mtrand: Any) -> Any:
    name, key, *rest = mtrand._rand.get_state()
    return (name, key.tobytes(), *rest)


def _numpy_is_ours(mtrand: Any) -> bool:
    """Whether the script left the global generator unseeded. NumPy before 1.24 can only tell as long as nothing was drawn."""
    if _State.numpy is None:
        return False
    sequence, state = _State.numpy
    if sequence is None:
        return bool(_numpy_state(mtrand) == state)
    return getattr(mtrand._rand._bit_generator, "seed_seq", None) is sequence


# --- PyTorch


def _seed_torch(torch: Any) -> None:
    seed = stream("torch", 63)
    torch.manual_seed(seed)
    _State.torch = (seed, _torch_state(torch))


def _torch_state(torch: Any) -> bytes:
    return bytes(torch.get_rng_state().tolist())


def _torch_is_ours(torch: Any) -> bool:
    return _State.torch is not None and torch.initial_seed() == _State.torch[0]


# --- child processes


def _hook_process(process: Any) -> None:
    """A child of multiprocessing knows who it is before its work starts, whatever the start method."""
    plain = process.BaseProcess._bootstrap

    def _bootstrap(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            _become(("process", *self._identity))
        except Exception as error:
            problem("child process", error)
        return plain(self, *args, **kwargs)

    _bootstrap.__qualname__ = "BaseProcess._bootstrap"
    _bootstrap.__module__ = process.__name__
    process.BaseProcess._bootstrap = _bootstrap


def _before_fork() -> None:
    _State.forks += 1


def _after_fork() -> None:
    # For a bare os.fork. A child of multiprocessing gets its own identity right after this.
    try:
        _become((*_State.worker, "fork", _State.forks))
    except Exception as error:
        problem("fork", error)


def _become(worker: tuple[Any, ...]) -> None:
    """Be that worker: streams start again, and what the script has not seeded is seeded anew."""
    _State.worker = worker
    _State.forks = 0
    _ordinals.clear()
    random, mtrand, torch = _generators()
    if random is not None:
        # Also where the script seeded it: Python itself reseeds a forked child from the system.
        _seed_python()
    if mtrand is not None and _numpy_is_ours(mtrand):
        _seed_numpy(mtrand)
    if torch is not None and _torch_is_ours(torch):
        _seed_torch(torch)


def _generators() -> tuple[Any, Any, Any]:
    """The modules with a global generator that were imported past a hook of ours."""
    random, mtrand, torch = (
        sys.modules.get(name) if name in _first else None for name in ("random", "numpy.random.mtrand", "torch")
    )
    return random, mtrand, torch


# --- the end


def _at_exit() -> None:
    """Note what was drawn from a global generator that the script never seeded."""
    try:
        random, mtrand, torch = _generators()
        if random is not None and _State.python is not None and random.getstate() != _State.python:
            _hole("python", "random, never seeded, imported", *_first["random"])
        if mtrand is not None and _numpy_is_ours(mtrand) and _numpy_state(mtrand) != _State.numpy[1]:
            _hole("numpy", "global generator, never seeded, imported", *_first["numpy.random.mtrand"])
        if torch is not None and _torch_is_ours(torch) and _torch_state(torch) != _State.torch[1]:
            _hole("torch", "default generator, never seeded, imported", *_first["torch"])
        for name in _HOOKS:
            if name in sys.modules and name not in _first:
                _note({"problem": f"{name}: was imported past our hooks"})
    except Exception as error:
        problem("exit", error)


_HOOKS: dict[str, tuple[Callable[[Any], object], ...]] = {
    "random": (_hook_random,),
    "numpy.random.bit_generator": (_hook_numpy_bits,),
    "numpy.random.mtrand": (_seed_numpy,),
    "torch": (_seed_torch,),
    "multiprocessing.process": (_hook_process,),
}
