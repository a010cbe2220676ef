"""Seeds for what a script leaves to chance. Standard library only, Python 3.8 and newer; imported by `sitecustomize`.

Reads REPRO_ENV_SEED (the master seed), REPRO_ENV_RANKS (`same`: the rank does not count) and REPRO_ENV_NOTES (a file
to append notes to). Every stream is sha256(master, rank, worker, purpose, ordinal). `worker` is the process' identity
in multiprocessing, the same under fork, spawn and forkserver; inside a DataLoader worker it is the seed that torch gave
that worker. What the script seeds itself stays as it is: we only set what would come from the operating system.

Notes are JSON lines. A hole is a generator that the script left unseeded and drew from:
{"library", "what", "file", "line"}. {"seeded": library, "what", "value", "file", "line"} is a seed that the script set
itself; {"problem"} says where something of ours failed.
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
_SAME = os.environ.get("REPRO_ENV_RANKS", "") == "same"
_RANKS = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK")
_OURS = __file__.rpartition("/inside/")[0] + "/"
"""The package that this file is of."""
_COMMANDS = (os.path.dirname(sys.executable) or "/") + "/"
"""Installed commands such as torchrun."""
_LIBRARY = os.path.dirname(os.__file__) + "/"
_WRAPPERS = (_LIBRARY + "random.py", "/torch/_dynamo/eval_frame.py", "/torch/_compile.py")
"""Code between a call of the script's and what we stand in for."""
_PLUMBING = ("/torch/utils/data/_utils/worker.py", "/torch/random.py")
"""Code that hands on what was seeded elsewhere: in its workers from the main generator, on a device from the CPU."""
_MOST = 1000
"""Notes of one process."""
_FULL = 3 << 20
"""Bytes of the notes file: beyond them only facts of which there is one a process are added (`catalog.noted` reads 4 MiB)."""
_VALUES = 4
"""Different seeds that are noted of one call."""


class _State:
    """What this process is, and what it seeded."""

    worker: tuple[Any, ...] = ()
    forks = 0
    executors = 0
    thread = 0
    """The one that a child of multiprocessing works in."""
    python: Any = None
    """State of `random` as we set it; None when the script seeded it."""
    numpy: Any = None
    """(its SeedSequence, None before NumPy 1.24; its state) as we set them; None when the script seeded it."""
    torch: Any = None
    """(seed, state) as we set them."""
    entropy: Any = None
    """What NumPy last got from us instead of the system's entropy."""


_ordinals: dict[Any, int] = {}
_noted: set[Any] = set()
_values: dict[tuple[str, str, int], set[str]] = {}
"""(what, file, line) of a call that seeds -> the values it gave."""
_drawn: dict[tuple[str, int], int] = {}
"""(file, line) -> generators made there for which NumPy asked for entropy, and that have got no seed since."""
_made: list[tuple[Any, int, str, int]] = []
"""(weak reference, hash of the state, file, line) of each unseeded `random.Random` of a package."""
_ends: list[Callable[[], object]] = []
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
    at_end(_note_unseeded)
    import atexit

    atexit.register(_end)


def at_end(hook: Callable[[], object]) -> None:
    """Call this when the process ends, children of multiprocessing too; twice where such a child is an interpreter of its own.

    Not called where the process is killed or leaves by `os._exit` itself. Forked children have their parent's hooks.
    """
    _ends.append(hook)


def _end() -> None:
    for hook in _ends:
        try:
            hook()
        except Exception as error:  # noqa: PERF203
            problem("end", error)


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
    """Empty for the first rank too: alone, it has the numbers of a run without ranks."""
    if _SAME:
        return ""
    rank = next((os.environ[name] for name in _RANKS if os.environ.get(name)), None)
    if rank is None:  # Lightning starts its ranks with these two
        rank = f"{os.environ.get('NODE_RANK') or '0'}.{os.environ.get('LOCAL_RANK') or '0'}"
    return "" if rank in ("0", "0.0") else rank


def _worker() -> tuple[Any, ...]:
    loader = sys.modules.get("torch.utils.data._utils.worker")
    info = getattr(loader, "_worker_info", None)
    return _State.worker if info is None else ("loader", info.seed)


# --- notes


def problem(where: str, error: Exception) -> None:
    """Note that something of ours failed, and go on."""
    _note({"problem": f"{where}: {type(error).__name__}: {error}"})


def _hole(library: str, what: str, file: str, line: int) -> None:
    _note({"library": library, "what": what, "file": _absolute(file), "line": line})


def note_seed(library: str, what: str, value: object) -> None:
    """Note that the script called `what` with this seed. To be called by what stands in for `what`."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename.endswith(_WRAPPERS):
        frame = frame.f_back
    if not _NOTES or frame is None or frame.f_code.co_filename.startswith(_OURS):
        return
    if frame.f_code.co_filename.endswith(_PLUMBING) or (_worker()[:1] == ("loader",) and not _is_users(frame)):
        return
    values = _values.setdefault((what, frame.f_code.co_filename, frame.f_lineno), set())
    if len(values) > _VALUES:
        return
    text = _told(value)
    if text in values:
        return
    values.add(text)
    file, line = user_line(within_import=False)
    if not line:
        return  # a package's own, made as it is imported
    _note(
        {
            "seeded": library,
            "what": what,
            "value": text if len(values) <= _VALUES else "and others",
            "file": file,
            "line": line,
        }
    )


def _told(value: object) -> str:
    """A seed as text. Nothing of the user's is called for it, and no tensor is brought back from a device."""
    if value is None or type(value) in (int, bool, float, str, bytes):
        return repr(value)[:100]
    if type(value) in (list, tuple):
        return repr(value)[:100] if all(type(one) is int for one in value) else f"a {type(value).__name__}"  # type: ignore[attr-defined]
    if type(value).__module__ == "numpy":
        return str(value)[:100]
    return f"a {type(value).__name__}"


def note(facts: dict[str, Any]) -> None:
    """Add a line to the notes, as it is."""
    if not _NOTES:
        return
    try:
        # One write in append mode: the lines of several processes do not mix.
        fd = os.open(_NOTES, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            size = os.fstat(fd).st_size
            if size >= _FULL and not {"effective", "world", "resumed"} & set(facts):
                if size >= _FULL + 4096:
                    return
                facts = {"problem": f"more notes than {_FULL} bytes: the others are left out"}
            os.write(fd, _json(facts).encode() + b"\n")
        finally:
            os.close(fd)
    except (OSError, ValueError):
        pass


def _json(value: Any) -> str:
    # The json module brings the re module: together a third of what a bare interpreter costs to start.
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_json(str(name))}: {_json(value[name])}" for name in sorted(value)) + "}"
    if type(value) in (int, bool):
        return str(value).lower()
    if type(value) is str:
        try:
            from _json import encode_basestring_ascii
        except ImportError:  # not CPython
            pass
        else:
            return str(encode_basestring_ascii(value))
    return str(__import__("json").dumps(value))


def _note(facts: dict[str, Any]) -> None:
    """The same line once a process."""
    key = tuple(sorted(facts.items()))
    if key in _noted or len(_noted) >= _MOST:
        return
    _noted.add(key)
    note(facts)


def _is_users(frame: FrameType) -> bool:
    """Whether this runs the user's code: not ours, not the standard library's, not an installed package's."""
    file = frame.f_code.co_filename
    if file.startswith("<"):  # of `-c`, or made by a library while it runs
        return file in ("<string>", "<stdin>") and frame.f_globals.get("__name__") == "__main__"
    return not (file.startswith((_LIBRARY, _OURS, _COMMANDS)) or "/site-packages/" in file or "/dist-packages/" in file)


def user_line(*, within_import: bool = True) -> tuple[str, int]:
    """The line of the user's code that is running; else of whoever is nearest and not ours: a package, the standard library.

    Line 0 where there is none; also, without `within_import`, where the user's line only imports what is running.
    """
    frame: FrameType | None = sys._getframe(1)
    nearest = ("<unknown>", 0)
    while frame is not None:
        file = frame.f_code.co_filename
        if _is_users(frame):
            return _absolute(file), frame.f_lineno
        if not within_import and file.startswith("<frozen importlib"):
            return "<unknown>", 0
        if not file.startswith(("<", _OURS)) and (nearest[1] == 0 or is_standard(nearest[0])):
            nearest = (file, frame.f_lineno)
        frame = frame.f_back
    return nearest


def is_standard(file: str) -> bool:
    return file.startswith(_LIBRARY) and "/site-packages/" not in file and "/dist-packages/" not in file


def _absolute(file: str) -> str:
    return file if file.startswith("<") else os.path.abspath(file)  # Python 3.8 names the script as it was typed


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
    if name not in _first:
        place = user_line()
        _first[name] = place if place[1] else ("<start of Python>", 0)
    try:
        hook(module)
    except Exception as error:
        problem(name, error)


# --- Python's own random


def _hook_random(random: Any) -> None:
    from _weakref import ref

    plain = random.Random.seed

    def seed(self: Any, a: Any = None, version: int = 2) -> None:
        """Initialize internal state from a seed."""
        if a is not None:
            note_seed("python", "random.seed" if self is random._inst else "random.Random", a)
        else:
            frame: FrameType | None = sys._getframe(1)
            while frame is not None and frame.f_code.co_filename == random.__file__:
                frame = frame.f_back
            if frame is not None and frame.f_globals.get("__name__") != "tempfile":
                what = "random.seed() without a seed" if self is random._inst else "random.Random() without a seed"
                a = stream("random.Random", 256)
                if self is random._inst or _is_users(frame) or len(_made) >= _MOST:
                    _hole("python", what, frame.f_code.co_filename, frame.f_lineno)
                else:  # packages make some that they never use
                    plain(self, a, version)
                    _made.append((ref(self), hash(self.getstate()), frame.f_code.co_filename, frame.f_lineno))
                    return
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
        frame: Any = sys._getframe(1)  # compiled code has no frame: this is who called NumPy
        made = frame.f_locals.get("self") if frame.f_code.co_filename == __file__ else None
        while frame.f_code.co_filename == __file__ and frame.f_back is not None:
            frame = frame.f_back
        file, line = frame.f_code.co_filename, frame.f_lineno
        if file.startswith("<frozen ") or file.endswith("/numpy/random/_pickle.py"):  # which gives it a state next
            _State.entropy = stream("numpy import", bits)
            return int(_State.entropy)
        if hasattr(made, "drawn_at"):
            made.drawn_at = (file, line)  # type: ignore[union-attr]
            _drawn[file, line] = _drawn.get((file, line), 0) + 1
        else:
            _hole("numpy", "generator without a seed", file, line)
        _State.entropy = stream("numpy", bits)
        return int(_State.entropy)

    bit_generator.randbits = randbits
    _hook_numpy_entropy(bit_generator)


def _hook_numpy_entropy(bit_generator: Any) -> None:
    """Every SeedSequence turns its entropy, then its spawn key into words by this function; what is a seed passes here."""
    plain = bit_generator._coerce_to_uint32_array
    second: set[int] = set()
    """Threads whose next call is for the spawn key."""
    within: set[int] = set()
    from _thread import get_ident

    def coerce(x: Any) -> Any:
        thread = get_ident()
        if thread in within:  # a list is taken apart
            return plain(x)
        entropy = thread not in second
        (second.add if entropy else second.discard)(thread)
        if entropy and x is not _State.entropy:
            note_seed("numpy", "numpy.random.SeedSequence", x)
        within.add(thread)
        try:
            return plain(x)
        except BaseException:
            second.discard(thread)
            raise
        finally:
            within.discard(thread)

    bit_generator._coerce_to_uint32_array = coerce


def _hook_numpy_legacy(mtrand: Any) -> None:
    """`RandomState(seed)` draws entropy, throws it away and seeds: told apart by a bit generator that sees both."""
    plain, real = mtrand.seed, mtrand._MT19937

    class Same(type):
        def __instancecheck__(cls, one: Any) -> bool:
            return isinstance(one, real)

    class MT19937(real, metaclass=Same):  # type: ignore[misc, valid-type]
        drawn_at: Any = None

        def __init__(self, seed: Any = None) -> None:
            real.__init__(self, seed)

        def _legacy_seeding(self, seed: Any) -> Any:
            if seed is not None:
                if self.drawn_at is not None:
                    _drawn[self.drawn_at] -= 1
                    self.drawn_at = None
                note_seed("numpy", "numpy.random.RandomState", seed)
            return real._legacy_seeding(self, seed)

        def __reduce__(self) -> Any:  # what is pickled has NumPy's own class, by its name or as it is
            make, (which, *rest), *state = real.__reduce__(self)
            return (make, (which if isinstance(which, str) else real, *rest), *state)

    def seed(seed: Any = None) -> None:
        if seed is not None:
            note_seed("numpy", "numpy.random.seed", seed)
        plain(seed)
        _State.numpy = None

    seed.__doc__ = plain.__doc__
    seed.__module__ = "numpy.random"
    seed.__qualname__ = "seed"
    MT19937.__module__, MT19937.__qualname__ = real.__module__, real.__qualname__
    mtrand._MT19937 = MT19937
    mtrand.seed = seed


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
    """Whether the script left the global generator unseeded. A state that it set is no seed."""
    if _State.numpy is None:
        return False
    bits = getattr(mtrand._rand, "_bit_generator", None)
    return _State.numpy[0] is None or _State.numpy[0] is (getattr(bits, "seed_seq", None) or getattr(bits, "_seed_seq", None))


# --- PyTorch


def _hook_torch(torch: Any) -> None:
    from functools import wraps

    _seed_torch(torch)

    def hook(name: str, modules: tuple[Any, ...]) -> None:
        plain = getattr(modules[0], name)

        if name in ("seed", "seed_all"):
            manual = getattr(modules[0], name.replace("seed", "manual_seed"))
            manual = getattr(manual, "__wrapped__", manual)

            @wraps(plain)
            def ours() -> Any:
                value = stream("torch.seed", 64)
                _hole("torch", f"{modules[0].__name__}.{name}() without a seed", *user_line())
                manual(value)
                return value if modules[0] is torch else None

        else:

            @wraps(plain)
            def ours(seed: Any) -> Any:
                note_seed("torch", f"{modules[0].__name__}.{name}", seed)
                return plain(seed)

        for module in modules:
            setattr(module, name, ours)

    for name in ("manual_seed", "seed"):
        hook(name, (torch, torch.random))
    for name in ("manual_seed", "manual_seed_all", "seed", "seed_all"):
        hook(name, (torch.cuda, torch.cuda.random))


def _seed_torch(torch: Any) -> None:
    seed = stream("torch", 63)
    torch.manual_seed(seed)
    _State.torch = (seed, torch.get_rng_state())


def _torch_is_ours(torch: Any) -> bool:
    return _State.torch is not None and torch.initial_seed() == _State.torch[0]


# --- child processes


def _hook_process(process: Any) -> None:
    """A child of multiprocessing knows who it is before its work starts, whatever the start method."""
    plain = process.BaseProcess._bootstrap

    def _bootstrap(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            _become(("process", *self._identity))
            _State.thread = _thread()
        except Exception as error:
            problem("child process", error)
        try:
            return plain(self, *args, **kwargs)
        finally:
            _end()  # a forked child leaves by os._exit

    _bootstrap.__qualname__ = "BaseProcess._bootstrap"
    _bootstrap.__module__ = process.__name__
    process.BaseProcess._bootstrap = _bootstrap


def _thread() -> int:
    from _thread import get_ident

    return get_ident()


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
    _State.forks = _State.executors = 0
    _ordinals.clear()
    _made.clear()  # what the parent made is the parent's to note
    _drawn.clear()
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


# --- pools: which worker takes a task is chance, so a task has streams of its own


class _Tasks:
    """The queue that a worker of a pool takes its tasks from."""

    def __init__(self, queue: Any, number: Callable[[Any], tuple[int, ...] | None], parent: tuple[Any, ...]) -> None:
        self._queue = queue
        self._number = number
        self._parent = parent

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)

    def get(self, *args: Any, **kwargs: Any) -> Any:
        """The next task; the generators that nobody seeded are seeded for it."""
        try:
            _note_unseeded()  # a pool kills its workers
        except Exception as error:
            problem("task", error)
        task = self._queue.get(*args, **kwargs)
        try:
            number = self._number(task)
            if number is not None:
                _take((*self._parent, "task", *number))
        except Exception as error:
            problem("task", error)
        return task


def _take(worker: tuple[Any, ...]) -> None:
    """As `_become`, but what was seeded in this process stays."""
    _State.worker = worker
    _State.forks = _State.executors = 0
    _ordinals.clear()
    random, mtrand, torch = _generators()
    if random is not None and _State.python is not None:
        _seed_python()
    if mtrand is not None and _numpy_is_ours(mtrand):
        _seed_numpy(mtrand)
    if torch is not None and _torch_is_ours(torch):
        _seed_torch(torch)


def _hook_worker(module: Any, name: str, number: Callable[[Any], tuple[int, ...] | None]) -> None:
    plain = getattr(module, name)

    def worker(queue: Any, *args: Any, **kwargs: Any) -> Any:
        if _State.worker[:1] == ("process",) and _State.thread == _thread():  # not of a pool of threads
            queue = _Tasks(queue, number, _State.worker[:-1])
        return plain(queue, *args, **kwargs)

    worker.__name__ = worker.__qualname__ = name  # spawn finds it by its name
    worker.__module__ = module.__name__
    setattr(module, name, worker)


def _hook_pool(pool: Any) -> None:
    # A task is (job, index, function, arguments, keywords); jobs are counted over all pools of a process.
    _hook_worker(pool, "worker", lambda task: None if task is None else (task[0], task[1] or 0))


def _hook_executor(module: Any) -> None:
    """concurrent.futures and loky, which counts in the same way: tasks from 0 in each executor, so those get ranges."""
    _hook_worker(module, "_process_worker", lambda task: None if task is None else (task.work_id,))
    plain = module.ProcessPoolExecutor.__init__

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        plain(self, *args, **kwargs)
        _State.executors += 1
        self._queue_count += _State.executors << 32

    __init__.__wrapped__ = plain  # type: ignore[attr-defined]
    __init__.__doc__ = plain.__doc__
    module.ProcessPoolExecutor.__init__ = __init__


# --- the end


def _note_unseeded() -> None:
    """Note what was drawn from a generator that the script never seeded."""
    random, mtrand, torch = _generators()
    if random is not None and _State.python is not None and random.getstate() != _State.python:
        _hole("python", "random, never seeded, imported", *_first["random"])
    if mtrand is not None and _numpy_is_ours(mtrand) and _numpy_state(mtrand) != _State.numpy[1]:
        _hole("numpy", "global generator, never seeded, imported", *_first["numpy.random.mtrand"])
    if torch is not None and _torch_is_ours(torch) and not torch.equal(torch.get_rng_state(), _State.torch[1]):
        _hole("torch", "default generator, never seeded, imported", *_first["torch"])
    for one, state, file, line in _made:
        made = one()
        if made is None or hash(made.getstate()) != state:
            _hole("python", "random.Random() without a seed", file, line)
    for place, count in _drawn.items():
        if count > 0:
            _hole("numpy", "generator without a seed", *place)
    for name in _HOOKS:
        if name in sys.modules and name not in _first:
            _note({"problem": f"{name}: was imported past our hooks"})


_HOOKS: dict[str, tuple[Callable[[Any], object], ...]] = {
    "random": (_hook_random,),
    "numpy.random.bit_generator": (_hook_numpy_bits,),
    "numpy.random.mtrand": (_seed_numpy, _hook_numpy_legacy),
    "torch": (_hook_torch,),
    "multiprocessing.process": (_hook_process,),
    "multiprocessing.pool": (_hook_pool,),
    "concurrent.futures.process": (_hook_executor,),
    "joblib.externals.loky.process_executor": (_hook_executor,),
    "loky.process_executor": (_hook_executor,),
}
