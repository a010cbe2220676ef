"""What every interpreter of a run starts with: hooks after imports, after forks and at the end. Standard library only, Python 3.8 and newer.

Installed by `sitecustomize`. Everything else is in files beside this one, its *parts*, and each is read when it is first
needed: an image's first run finds no bytecode of these files, so what is not read is not compiled.

- `streams`: the numbers that take the place of the system's randomness; `random`, `numpy`, `torch`: who gets them;
- `children`, `pools`: processes and tasks that have streams of their own;
- `ids`: ids drawn from the seed (`--ids seeded`);
- `notes`, `places`, `holes`, `entropy`: what is written down, and of which line of the user's;
- `threads`, `determinism`, `alerts`, `world`, `effective`, `libraries`: repeatable code, and what was in force in the end;
- `trace`: one line for each step of training;
- `failure`: why the process failed.

A part is called, where it has them: `forget()` in a forked child, `restart()` where the process becomes another worker,
`reseed(task)` after that, `unseeded()` before a task and at the end, `finish()` at the end.
"""

from __future__ import annotations

import os
import sys
from _frozen_importlib import module_from_spec
from _frozen_importlib_external import spec_from_file_location

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing typing takes as long as the interpreter's own start
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

_MASTER = os.environ.get("REPRO_ENV_SEED", "")
_NOTES = os.environ.get("REPRO_ENV_NOTES", "")
_SAME = os.environ.get("REPRO_ENV_RANKS", "") == "same"
_IDS = os.environ.get("REPRO_ENV_IDS", "")
"""Not empty: ids are drawn from the seed (`_repro_env_ids`)."""
_MODE = os.environ.get("REPRO_ENV_DETERMINISM", "")
"""`off`, `warn` or `strict`; empty: nothing is set, and nothing said of what was in force."""
_TRACE = os.environ.get("REPRO_ENV_TRACE", "")
_HASHED = os.environ.get("PYTHONHASHSEED", "")
_PIDS = 1000
"""PIDs of a process' children that are noted."""
_RANKS = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK")
_THREADS = "REPRO_ENV_THREADS"
_PUT = "REPRO_ENV_THREADS_PUT"
"""What we gave to C code only: a child that gets it from there takes it out of its `os.environ` again."""
_PREFIX = "_repro_env_"
_HERE = __file__.rpartition("/")[0]
_PACKAGE = __file__.rpartition("/inside/")[0]
"""The package that this file is of."""
_COMMANDS = (os.path.dirname(sys.executable) or "/") + "/"
"""Installed commands such as torchrun."""
_SELF = sys.modules[__name__]


class _State:
    """What this process is."""

    worker: tuple[Any, ...] = ()
    forks = 0
    executors = 0
    calls = 0
    """Of joblib's `Parallel`."""
    thread = 0
    """The one that a child of multiprocessing works in."""
    pid = 0
    """That started as this interpreter; a fork has another. 0 without a mode."""
    folder = ""
    """Where this process started."""
    size = 0
    """Of the notes, when this process started."""


_parts: dict[str, ModuleType] = {"seeds": _SELF}
_ends: list[Callable[[], object]] = []
_first: dict[str, tuple[str, int]] = {}
"""Module -> where the script first imported it."""


def install() -> None:
    """Put the hooks in place. Imports nothing that the interpreter has not imported by itself."""
    if not _MASTER:
        return
    try:
        _State.folder = os.getcwd()
    except OSError:
        pass  # it is gone
    sys.meta_path.insert(0, _Watch())
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=_before_fork, after_in_child=_after_fork)
    if _NOTES:
        note({"pid": os.getpid()})
    if _IDS:
        part("ids").start()
    for name in ("urandom", "getrandom"):
        if hasattr(os, name):
            setattr(os, name, _drawn(getattr(os, name), name))
    sys.exit = _watched(sys.exit)
    for name in list(_HOOKS):
        if name in sys.modules:  # a .pth file of the environment was faster
            _fire(name, sys.modules[name])
    if _MODE:
        _start()
    if _TRACE:
        when_imported("torch", lambda torch: part("trace").install())  # noqa: ARG005
    import atexit

    atexit.register(_end)


def _start() -> None:
    """What has to be known from the beginning, and to be set before a library is loaded."""
    _State.pid = os.getpid()
    try:
        _State.size = os.stat(_NOTES).st_size
    except OSError:
        pass  # nobody noted anything yet
    if _MODE != "off" and (_PUT in os.environ or (_THREADS in os.environ and not _same_cores())):
        try:
            part("threads").install()
        except Exception as error:
            problem("start of threads", error)
    when_imported("torch", _later("determinism", "hook"))
    if _MODE != "off":
        when_imported("torch._inductor.config", _later("determinism", "hook_inductor"))
    when_imported("torch.distributed.distributed_c10d", _later("world", "hook"))


def _same_cores() -> bool:
    """Whether this machine has as many as the captured one: then libraries choose the same number of threads anyway."""
    return f"LOKY_MAX_CPU_COUNT={cores()}" in os.environ[_THREADS].split()


def cores() -> int:
    """Those that this process may run on."""
    try:
        return len(os.sched_getaffinity(0))
    except (AttributeError, OSError):
        return os.cpu_count() or 0


# --- parts


def part(name: str) -> Any:
    """The part of that name; read and run where that has not been done yet.

    Found whatever has become of `sys.path`, `sys.modules`, the import system's finders and the working directory.
    Raises what reading or running it raises. Without a lock, which a fork in another thread would leave locked:
    two threads may both run a file, which does nothing but define, and the first one counts.
    """
    found = _parts.get(name)
    if found is None:
        sys.modules[_SELF.__name__] = _SELF  # a script may have thrown it out
        found = _parts.setdefault(name, load(_PREFIX + name, f"{_HERE}/{_PREFIX}{name}.py"))
        sys.modules[_PREFIX + name] = found
    return found


def load(name: str, path: str) -> ModuleType:
    """Run a file as a module of that name, which is not kept. Raises what reading or running it raises."""
    spec: Any = spec_from_file_location(name, path)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _later(name: str, function: str) -> Callable[[Any], object]:
    """A hook of a part that is read when it is called."""

    def hook(module: Any) -> None:
        getattr(part(name), function)(module)

    return hook


def each(function: str, *args: object) -> None:
    """Call a function of all parts that were read and have it; what one raises becomes a note, and the others go on."""
    for name in list(_parts):
        ours = getattr(_parts[name], function, None)
        if ours is not None:
            try:
                ours(*args)
            except Exception as error:
                problem(f"{function} of {name}", error)


def at_end(hook: Callable[[], object]) -> None:
    """Call this when the process ends, children of multiprocessing too; twice where such a child is an interpreter of its own.

    Not called where the process is killed or leaves by `os._exit` itself. Forked children have their parent's hooks.
    """
    _ends.append(hook)


def _end() -> None:
    _failed(getattr(sys, "last_value", None))
    each("unseeded")
    for name in list(_HOOKS):
        if name in sys.modules and name not in _first:
            _note({"problem": f"{name}: was imported past our hooks"})
    each("finish")
    if _MODE and ("world" in _parts or (os.getpid() == _State.pid and not _State.worker)):
        try:
            part("effective").tell()
        except Exception as error:
            problem("end", error)
    for hook in _ends:
        try:
            hook()
        except Exception as error:  # noqa: PERF203
            problem("end", error)


def problem(where: str, error: Exception) -> None:
    """Note that something of ours failed, and go on."""
    _note({"problem": f"{where}: {type(error).__name__}: {error}"})


def note(facts: dict[str, Any]) -> None:
    """Add a line to the notes, as it is."""
    try:
        part("notes").note(facts)
    except Exception:
        pass  # our own files are out of reach: there is nobody left to tell


def _note(facts: dict[str, Any]) -> None:
    """The same line once a process."""
    try:
        part("notes").once(facts)
    except Exception:
        pass  # as above


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
    """Lets the other finders find, and fires a hook once the module has run. What nobody else has and is ours, it finds itself."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name not in _HOOKS and name != "repro_env" and not name.startswith(_PREFIX):
            return None
        for finder in list(sys.meta_path):
            find = getattr(finder, "find_spec", None)
            if finder is self or find is None:
                continue
            spec = find(name, path, target)
            if spec is not None:
                try:
                    if name in _HOOKS:
                        _arm(name, spec.loader)
                except Exception as error:
                    problem(name, error)
                return spec
        return _own(name)


def _own(name: str) -> Any:
    """`import repro_env` where the environment has none; a part, for who unpickles something of ours in another process."""
    if name == "repro_env":
        return spec_from_file_location(name, f"{_PACKAGE}/__init__.py", submodule_search_locations=[_PACKAGE])
    if not name.startswith(_PREFIX):
        return None
    file = f"{_HERE}/{name}.py"
    loader: Any = _Part()
    return spec_from_file_location(name, file, loader=loader) if os.path.exists(file) else None


class _Part:
    """Loads a part: the one that there is."""

    def create_module(self, spec: Any) -> Any:
        return part(spec.name[len(_PREFIX) :])

    def exec_module(self, module: ModuleType) -> None:
        """It has run."""


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
    try:
        if name not in _first:
            place = part("places").user_line()
            _first[name] = place if place[1] else ("<start of Python>", 0)
        hook(module)
    except Exception as error:
        problem(name, error)


# --- hooks of os


def _drawn(plain: Any, name: str) -> Any:
    def ours(*args: Any, **kwargs: Any) -> Any:
        value = plain(*args, **kwargs)
        try:
            return part("entropy").draw("os." + name, sys._getframe(1), value)
        except Exception as error:
            problem("os." + name, error)
        return value

    ours.__name__ = ours.__qualname__ = name
    ours.__module__ = "os"
    ours.__doc__ = plain.__doc__
    return ours


def _watched(plain: Any) -> Any:
    """`sys.exit` that keeps why a script gives up: it is called where the exception is handled, and nothing knows it later."""

    def ours(status: object = None, /) -> Any:
        if status not in (None, 0):
            _failed(sys.exc_info()[1])
        return plain(status)

    ours.__name__ = ours.__qualname__ = "exit"
    ours.__module__ = "sys"
    ours.__doc__ = plain.__doc__
    return ours


def _failed(error: BaseException | None) -> None:
    if error is not None:
        try:
            part("failure").see(error)
        except Exception as problem_:
            problem("failure", problem_)


def _before_fork() -> None:
    _State.forks += 1
    try:
        part("children")  # read once, and not by each child anew
    except Exception as error:
        problem("fork", error)


def _after_fork() -> None:
    # For a bare os.fork. A child of multiprocessing gets its own identity right after this.
    each("forget")
    if _State.forks <= _PIDS:
        note({"pid": os.getpid()})
    try:
        part("children").become((*_State.worker, "fork", _State.forks))
    except Exception as error:
        problem("fork", error)


_HOOKS: dict[str, tuple[Callable[[Any], object], ...]] = {
    "random": (_later("random", "hook"),),
    "numpy.random.bit_generator": (_later("numpy", "hook_bits"),),
    "numpy.random._bit_generator": (_later("numpy", "hook_bits"),),  # of NumPy 1.18
    "numpy.random.mtrand": (_later("numpy", "hook_legacy"),),
    "uuid": (_later("entropy", "hook_uuid"),),
    "torch": (_later("torch", "hook"),),
    "multiprocessing.process": (_later("children", "hook"),),
    "multiprocessing.pool": (_later("pools", "hook_pool"),),
    "concurrent.futures.process": (_later("pools", "hook_executor"),),
    "joblib.externals.loky.process_executor": (_later("pools", "hook_executor"),),
    "loky.process_executor": (_later("pools", "hook_executor"),),
    "joblib.parallel": (_later("pools", "hook_joblib"),),
}
