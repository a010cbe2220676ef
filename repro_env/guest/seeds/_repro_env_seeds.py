"""Hooks in every interpreter of a run: after imports, after forks and at exit. Standard library only, Python 3.8 and later.

`sitecustomize` installs them. The other files `_repro_env_*.py` in this directory are the *parts*. Each is loaded on first use,
so that a script that draws no random number starts quickly.

- `streams`: numbers derived from the master seed; `random`, `numpy`, `torch`: the generators that are seeded with them;
- `processes`: processes and tasks with their own streams;
- `starts`: programs that the script starts, and those among them that no seed reaches;
- `ids`: ids drawn from the seed (`--ids seeded`);
- `reports`: the file of reports; `callers`: lines of the user's code, with reports on seeds; `entropy`: reports on random bytes;
- `listings`: sorted directories; `threads`, `determinism`: deterministic code; `settings`: the settings in effect at exit; `parallel`: how ranks split the work;
- `trace`: a line for each training step;
- `failure`: why the process failed.

A part may define these functions: `forget()` is called in a forked child, `restart()` if the process becomes another worker,
`reseed(task)` after that, `note_unseeded()` before a task and at exit, and `finish()` at exit.
"""

from __future__ import annotations

import os
import sys
from _frozen_importlib import module_from_spec
from _frozen_importlib_external import spec_from_file_location

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing typing takes as long as the interpreter's own start
    from collections.abc import Callable, Mapping
    from types import ModuleType
    from typing import Any

_ALL = "/.repro-env/reports/variables"
"""The variables of the run, for a process whose ancestors have ended (`sandbox.workspace`)."""


def _inherit() -> Mapping[str, str]:
    """The variables of this process; if it was started without those of repro-env, of its nearest ancestor that has them."""
    if "REPRO_ENV_SEED" in os.environ:
        return os.environ
    pid = os.getppid()
    try:
        while pid > 1:
            found = _read_variables(f"/proc/{pid}/environ")
            if "REPRO_ENV_SEED" in found:
                return found
            with open(f"/proc/{pid}/stat", "rb") as file:
                pid = int(file.read().rpartition(b")")[2].split()[1])
    except (OSError, ValueError):
        pass
    try:
        return _read_variables(_ALL)
    except OSError:
        return {}


def _read_variables(path: str) -> dict[str, str]:
    with open(path, "rb") as file:
        return dict(os.fsdecode(pair).split("=", 1) for pair in file.read().split(b"\0") if b"=" in pair)


_INHERITED = _inherit()
_MASTER = _INHERITED.get("REPRO_ENV_SEED", "")
_STREAMS = ".".join(filter(None, (_MASTER, _INHERITED.get("REPRO_ENV_RESUMES", ""))))
"""The key of all streams: the master seed, and for a resumed run the number of resumes that led to it."""
_NOTES = _INHERITED.get("REPRO_ENV_REPORTS", "")
_SAME_STREAMS = _INHERITED.get("REPRO_ENV_RANKS", "") == "same"
_IDS = _INHERITED.get("REPRO_ENV_IDS", "")
"""If not empty, ids are drawn from the seed (`_repro_env_ids`)."""
_MODE = _INHERITED.get("REPRO_ENV_DETERMINISM", "")
"""`off`, `warn` or `strict`. If empty, no setting is changed or reported."""
_TRACE = _INHERITED.get("REPRO_ENV_TRACE", "")
_HASH_SEED = "" if sys.flags.ignore_environment else os.environ.get("PYTHONHASHSEED", "")
_PIDS = 1000
"""The most PIDs of children that a process reports."""
_RANKS = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK")
_THREADS = "REPRO_ENV_THREADS"
_THREADS_PUT = "REPRO_ENV_THREADS_PUT"
"""The variables that were set only for C code. A child Python removes them from its `os.environ`."""
_PREFIX = "_repro_env_"
_DIRECTORY = __file__.rpartition("/")[0]
_PACKAGE = __file__.rpartition("/guest/")[0]
"""The directory of the repro_env package."""
_COMMANDS = (os.path.dirname(sys.executable) or "/") + "/"
"""The directory of installed commands such as torchrun."""
_SELF = sys.modules[__name__]


class _State:
    """The identity of this process."""

    worker: tuple[Any, ...] = ()
    """Its place among the workers, for example `("process", 1)`; empty for the first process."""
    forks = 0
    executors = 0
    parallel_calls = 0
    """Calls of joblib's `Parallel`."""
    thread = 0
    """The thread in which a child of multiprocessing works."""
    pid = 0
    """The PID at the start of this interpreter; a forked child has a different one. 0 without a mode."""
    directory = ""
    """The working directory at the start."""


_parts: dict[str, ModuleType] = {"seeds": _SELF}
_imports: dict[str, tuple[str, int]] = {}
"""Module -> (file, line) of the script where it was first imported."""


def install() -> None:
    """Install the hooks. Import only modules that the interpreter has already imported."""
    if not _MASTER:
        return
    try:
        _State.directory = os.getcwd()
    except OSError:
        pass  # the directory was removed
    sys.meta_path.insert(0, _Watch())
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=_before_fork, after_in_child=_after_fork)
    if _NOTES:
        report({"pid": os.getpid()})
    if _IDS:
        part("ids").start()
    for name in ("urandom", "getrandom"):
        if hasattr(os, name):
            setattr(os, name, _wrap_entropy(getattr(os, name), name))
    if _NOTES:
        _watch_failures()
    for name in ("execv", "execve", "posix_spawn", "posix_spawnp", "system"):
        setattr(os, name, _wrap_start(getattr(os, name), name))
    if _INHERITED is not os.environ or (sys.flags.hash_randomization and not _HASH_SEED.isdigit()):
        part("starts").begin()
    for name in list(_HOOKS):
        if name in sys.modules:  # imported by a .pth file of the environment
            _run_hooks(name, sys.modules[name])
    if _MODE:
        _start()
    if _TRACE:
        when_imported("torch", lambda torch: part("trace").install())  # noqa: ARG005
    import atexit

    atexit.register(at_exit)


def _start() -> None:
    """Install the settings that must precede the import of a library."""
    _State.pid = os.getpid()
    if _MODE != "off":
        _sort_listings()
    if _MODE != "off" and (_THREADS_PUT in os.environ or (_THREADS in _INHERITED and not _same_cores())):
        with Attempt("start of threads"):
            part("threads").install()
    when_imported("torch", _lazy_hook("determinism", "hook"))
    if _MODE != "off":
        when_imported("torch._inductor.config", _lazy_hook("determinism", "hook_inductor"))
    when_imported("torch.distributed.distributed_c10d", _lazy_hook("settings", "hook_distributed"))


def _same_cores() -> bool:
    """Whether this machine has as many cores as the captured one. If so, libraries choose the same number of threads."""
    return f"LOKY_MAX_CPU_COUNT={cores()}" in _INHERITED[_THREADS].split()


def cores() -> int:
    """The number of CPUs on which this process may run."""
    try:
        return len(os.sched_getaffinity(0))
    except (AttributeError, OSError):
        return os.cpu_count() or 0


def variable(name: str) -> str:
    """A variable of this process, or else of the ancestor from which it has its settings."""
    return os.environ.get(name) or _INHERITED.get(name, "")


# --- parts


def part(name: str) -> Any:
    """A part, by its name. It is loaded on first use, and raises any exception of the load.

    The load does not depend on `sys.path`, `sys.modules`, the finders of the import system or the working directory. It takes
    no lock, because a fork in another thread could leave the lock held. Two threads may both load a file, which contains only
    definitions; the first module is kept.
    """
    module = _parts.get(name)
    if module is None:
        sys.modules[_SELF.__name__] = _SELF  # a script may have removed it
        module = _parts.setdefault(name, load(_PREFIX + name, f"{_DIRECTORY}/{_PREFIX}{name}.py"))
        sys.modules[_PREFIX + name] = module
    return module


def load(name: str, path: str) -> ModuleType:
    """Load a file as a module, without adding it to `sys.modules`. Raises any exception of the load."""
    spec: Any = spec_from_file_location(name, path)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _lazy_hook(name: str, function: str) -> Callable[[Any], object]:
    """A hook that loads a part when it is called, and calls this function of the part."""
    return lambda module: getattr(part(name), function)(module)  # noqa: PLW0108  or else it would load the part now


def call_parts(function: str, *args: object) -> None:
    """Call a function in all loaded parts that define it. An exception becomes a report."""
    for name in list(_parts):
        method = getattr(_parts[name], function, None)
        if method is not None:
            with Attempt(f"{function} of {name}"):
                method(*args)


def at_exit() -> None:
    """Write the last reports, when the process ends. Not called if it is killed or calls `os._exit` itself."""
    error = getattr(sys, "last_value", None)
    if error is not None:
        _note_failure("report", error)
    call_parts("note_unseeded")
    for name in list(_HOOKS):
        if name in sys.modules and name not in _imports:
            _note_once({"problem": f"{name}: imported without the hooks of repro-env"})
    call_parts("finish")
    if _MODE and ("settings" in _parts or (os.getpid() == _State.pid and not _State.worker)):
        with Attempt("end"):
            part("settings").note_effective()


def note_problem(where: str, error: Exception) -> None:
    """Report that a hook failed. The script continues."""
    _note_once({"problem": f"{where}: {type(error).__name__}: {error}"})


class Attempt:
    """A block of a hook: an exception in it becomes a report, through `note_error` if that is given."""

    def __init__(self, where: str, note_error: Any = None) -> None:
        self._where = where
        self._note_error = note_error or note_problem

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if isinstance(error, Exception):
            self._note_error(self._where, error)
        return isinstance(error, Exception)


def report(facts: dict[str, Any]) -> None:
    """Add a line to the reports."""
    try:
        part("reports").report(facts)
    except Exception:
        pass  # the files of the hooks cannot be read


def _note_once(facts: dict[str, Any]) -> None:
    """Add a line to the reports, unless this process has already added the same line."""
    try:
        part("reports").once(facts)
    except Exception:
        pass  # as above


# --- hooks after an import


def when_imported(name: str, hook: Callable[[Any], object]) -> None:
    """Call `hook(module)` after `name` is imported, or now if it already is. Hooks of the same module run in order.

    An exception of a hook becomes a report. Without a master seed, no hooks run.
    """
    _HOOKS[name] = (*_HOOKS.get(name, ()), hook)
    if name in sys.modules and (name in _imports or not _is_loading(sys.modules[name])):
        _run_hook(name, hook, sys.modules[name])


def _is_loading(module: ModuleType) -> bool:
    """Whether the module is being executed. Its hooks are called after that."""
    return bool(getattr(getattr(module, "__spec__", None), "_initializing", False))


class _Watch:
    """A finder that runs the hooks of a module after its import. It finds parts and repro_env if no other finder does."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name not in _HOOKS and name != "repro_env" and not name.startswith(_PREFIX):
            return None
        for finder in list(sys.meta_path):
            find = getattr(finder, "find_spec", None)
            if finder is self or find is None:
                continue
            spec = find(name, path, target)
            if spec is not None:
                with Attempt(name):
                    if name in _HOOKS:
                        _wrap_loader(name, spec.loader)
                return spec
        return _find_own(name)


def _find_own(name: str) -> Any:
    """The spec of repro_env, or of a part: a process that unpickles an object of a part imports it."""
    if name == "repro_env":
        return spec_from_file_location(name, f"{_PACKAGE}/__init__.py", submodule_search_locations=[_PACKAGE])
    if not name.startswith(_PREFIX):
        return None
    file = f"{_DIRECTORY}/{name}.py"
    loader: Any = _Part()
    return spec_from_file_location(name, file, loader=loader) if os.path.exists(file) else None


class _Part:
    """A loader that returns the loaded part."""

    def create_module(self, spec: Any) -> Any:
        return part(spec.name[len(_PREFIX) :])

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: `part` has executed the module."""


def _wrap_loader(name: str, loader: Any) -> None:
    """Run the hooks after `loader` has executed the module. The loader is not replaced, because packages check its type."""
    run = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        run(module)
        if module.__name__ == name:
            loader.__dict__.pop("exec_module", None)
            _run_hooks(name, module)

    loader.exec_module = exec_module


def _run_hooks(name: str, module: ModuleType) -> None:
    for hook in _HOOKS[name]:
        _run_hook(name, hook, module)


def _run_hook(name: str, hook: Callable[[Any], object], module: ModuleType) -> None:
    with Attempt(name):
        if name not in _imports:
            place = part("callers").user_line()
            _imports[name] = place if place[1] else ("<Python startup>", 0)
        hook(module)


# --- hooks of os


def _wrap_entropy(plain: Any, name: str) -> Any:
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        value = plain(*args, **kwargs)
        with Attempt("os." + name):
            return part("entropy").draw("os." + name, sys._getframe(1), value)
        return value

    copy_name(wrapper, plain, "os", name)
    return wrapper


def _wrap_start(plain: Any, name: str) -> Any:
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        with Attempt("os." + name):
            args, kwargs = part("starts").prepare(name, args, kwargs)
        return plain(*args, **kwargs)

    copy_name(wrapper, plain, "os", name)
    return wrapper


class _Sorted:
    """A function of os that lists a directory, with a sorted result. Like the original, it does not become a method if it is an attribute of a class."""

    def __init__(self, plain: Any, name: str, result: str) -> None:
        self._plain = plain
        self._result = result
        copy_name(self, plain, "os", name)

    def __call__(self, path: Any = None) -> Any:
        return getattr(part("listings"), self._result)(self._plain(path))

    def __reduce__(self) -> str:
        return str(self.__name__)  # type: ignore[attr-defined]


def _sort_listings() -> None:
    """Sort what `os` lists, also for modules that a .pth file of the environment imported before the hooks."""
    for name, result in (("listdir", "sorted_names"), ("scandir", "SortedEntries")):
        plain = getattr(os, name)
        replaced = _Sorted(plain, name, result)
        if plain in os.supports_fd:  # shutil asks for it
            os.supports_fd.add(replaced)
        for module in filter(None, map(sys.modules.get, ("os", "glob", "pathlib", "shutil"))):
            for place in (module, *(item for item in vars(module).values() if isinstance(item, type))):
                if getattr(place, name, None) is plain:
                    setattr(place, name, replaced)


def copy_name(wrapper: Any, plain: Any, module: str, name: str) -> None:
    """Give what replaces a function its public name and its documentation."""
    wrapper.__module__, wrapper.__qualname__, wrapper.__doc__ = module, name, plain.__doc__
    wrapper.__name__ = name.rpartition(".")[2]


class _Opener:
    """`open`, in place of the function. Paths that do not exist are reported if the process ends without them.

    An object and not a function, because a function in a class would become a method. An audit hook would be called for `id` too.
    """

    def __init__(self, plain: Any) -> None:
        self.__wrapped__ = plain
        copy_name(self, plain, "io", "open")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return self.__wrapped__(*args, **kwargs)
        except FileNotFoundError as error:
            _note_failure("missing", error)
            raise

    def __reduce__(self) -> str:
        return "open"


# In a traceback, the call is one line without the code of this file.
_Opener.__call__.__code__ = _Opener.__call__.__code__.replace(co_filename="<repro-env>")


def _watch_failures() -> None:
    """Report failed opens, and the exception that is handled while `sys.exit` is called: the script or a library caught it."""
    import builtins
    import io

    io.open = builtins.open = _Opener(io.open)
    plain = sys.exit

    def leave(*args: Any) -> Any:
        error = sys.exc_info()[1]
        if error is not None and args not in ((), (0,), (None,)):
            _note_failure("report", error)
        return plain(*args)

    copy_name(leave, plain, "sys", "exit")
    sys.exit = leave


def _note_failure(function: str, error: BaseException) -> None:
    """Pass an exception to the part `failure`."""
    with Attempt("failure"):  # the `filename` of an exception may be of any type
        getattr(part("failure"), function)(error)


def _before_fork() -> None:
    _State.forks += 1
    with Attempt("fork"):
        part("processes")  # loaded here, so that each child need not load it


def _after_fork() -> None:
    # A plain os.fork. A child of multiprocessing gets its own identity right after this.
    call_parts("forget")
    if _State.forks <= _PIDS:
        report({"pid": os.getpid()})
    with Attempt("fork"):
        part("processes").become_worker((*_State.worker, "fork", _State.forks))


_HOOKS: dict[str, tuple[Callable[[Any], object], ...]] = {
    "random": (_lazy_hook("random", "hook"),),
    "IPython.core.tips": (_lazy_hook("random", "hook_tips"),),
    "numpy.random.bit_generator": (_lazy_hook("numpy", "hook_bits"),),
    "numpy.random.mtrand": (_lazy_hook("numpy", "hook_legacy"),),
    "subprocess": (_lazy_hook("starts", "hook_subprocess"),),
    "uuid": (_lazy_hook("entropy", "hook_uuid"),),
    "torch": (_lazy_hook("torch", "hook"),),
    "multiprocessing.process": (_lazy_hook("processes", "hook_process"),),
    "multiprocessing.pool": (_lazy_hook("processes", "hook_pool"),),
    "concurrent.futures.process": (_lazy_hook("processes", "hook_executor"),),
    "joblib.externals.loky.process_executor": (_lazy_hook("processes", "hook_executor"),),
    "loky.process_executor": (_lazy_hook("processes", "hook_executor"),),
    "joblib.parallel": (_lazy_hook("processes", "hook_joblib"),),
}
