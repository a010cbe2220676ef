"""Repeatable code where a library has a choice, and what was in force in the end. Standard library only, Python 3.8 and newer.

Started by `sitecustomize`. Reads REPRO_ENV_DETERMINISM (`off`, `warn` or `strict`) and REPRO_ENV_THREADS (thread counts of
the captured machine), and notes, one JSON line each:

- {"operation", "count", "file", "line"}: an operation ran that has no repeatable implementation (PyTorch's own alerts);
- {"effective": {name: value}, "rank", "script"}: threads, flags, precisions as they were when the process ended; `script`
  when it was the user's own program, and no installed command;
- {"world": {"rank", "size", "backend", "device"}}: this process is one of several that train together.

What the script sets later wins; only `strict` lets an operation fail. With `off` nothing is set, but what was in force is noted.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType, TracebackType
    from typing import Any

    Items = list[Any]
else:
    Items = list

seeds: Any = __import__("_repro_env_seeds")

_MODE = os.environ.get("REPRO_ENV_DETERMINISM", "")
_THREADS = "REPRO_ENV_THREADS"
_PUT = "REPRO_ENV_THREADS_PUT"
"""What we gave to C code only: a child that gets it from there takes it out of its `os.environ` again."""
_HASHED = os.environ.get("PYTHONHASHSEED", "")
_PHRASES = (" does not have a deterministic implementation", " defaults to a non-deterministic algorithm")
"""How PyTorch's alerts go on after the operation's name (`Context::alertNotDeterministic`, the attention kernels)."""
_CUBLAS = "not deterministic because it uses CuBLAS"
_MOST = 1000
"""Different operations and lines of one process."""
_VARIABLES = (
    "ATEN_CPU_CAPABILITY",
    "BLIS_NUM_THREADS",
    "CUBLAS_WORKSPACE_CONFIG",
    "DNNL_MAX_CPU_ISA",
    "LOKY_MAX_CPU_COUNT",
    "MKL_CBWR",
    "MKL_ENABLE_INSTRUCTIONS",
    "MKL_NUM_THREADS",
    "NPY_DISABLE_CPU_FEATURES",
    "NVIDIA_TF32_OVERRIDE",
    "OMP_NUM_THREADS",
    "ONEDNN_MAX_CPU_ISA",
    "OPENBLAS_CORETYPE",
    "OPENBLAS_NUM_THREADS",
    "TF_DETERMINISTIC_OPS",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    "XLA_FLAGS",
)
"""Variables by which libraries choose their code; their values are no secrets."""
_RESTORING = ("/torch/_dynamo/convert_frame.py", "/fabric/strategies/launchers/multiprocessing.py")
_HELPERS = ("joblib.externals.loky.", "loky.", "multiprocessing.", "torch._inductor.")
"""Programs that libraries start for themselves, by their module."""


class _State:
    """What this process is."""

    pid = 0
    """That started as this interpreter; a fork has another."""
    folder = ""
    """Where this process started."""
    size = 0
    """Of the notes, when this process started."""
    asked = False
    """The script set deterministic algorithms itself."""
    filled = False
    """The script set the filling of uninitialized memory itself."""
    replaying = 0
    """Thread in which a warning is given again."""
    told = False
    """What was in force is noted."""
    frameworks: Any = None
    """Our own `inside/frameworks.py`, once it was needed."""
    world: Any = None
    """The last note of it; of the process `world_pid`."""
    world_pid = 0


_counts: dict[tuple[str, str, int], list[int]] = {}
"""(operation, file, line) -> [how often it ran, how often of that is noted]."""
_shown: dict[str, dict[Any, Any]] = {}
"""Module -> what Python remembers of warnings already given there."""


def install() -> None:
    """Start in this process. Imports nothing of weight."""
    if not _MODE:
        return
    _State.pid = os.getpid()
    try:
        _State.folder = os.getcwd()
    except OSError:
        pass  # it is gone
    try:
        _State.size = os.stat(seeds._NOTES).st_size
    except OSError:
        pass  # nobody noted anything yet
    if _MODE != "off":
        _threads()
        seeds.when_imported("torch", _ask_torch)
        seeds.when_imported("torch._inductor.config", _ask_inductor)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=_counts.clear)
    seeds.when_imported("torch.distributed.distributed_c10d", _watch_world)
    seeds.at_end(_at_end)


# --- threads


def _threads() -> None:
    """As many as on the captured machine, where this one has other cores; with as many cores, libraries choose the same anyway.

    C code reads the variables, Python code does not see them: torchrun and joblib choose a count for their children where
    `os.environ` has none, as they did on the captured machine.
    """
    for name, value in _pairs(os.environ.pop(_PUT, "")).items():
        if os.environ.get(name) == value:
            del os.environ[name]
    wanted = _pairs(os.environ.get(_THREADS, ""))
    cores = wanted.pop("LOKY_MAX_CPU_COUNT", "")
    if not wanted or cores == str(_cores()):
        return
    if cores:
        os.environ.setdefault("LOKY_MAX_CPU_COUNT", cores)  # read by Python code: joblib's own count of cores
    interop = wanted.pop("TORCH_INTEROP", "")
    if interop.isdigit():
        seeds.when_imported("torch", lambda torch: _set_interop(torch, int(interop)))
    every = wanted.get("OMP_NUM_THREADS", "")
    put = []
    if "OMP_NUM_THREADS" not in os.environ:  # else the others follow that one, as they would without us
        for name, value in wanted.items():
            # Each of them reads OMP_NUM_THREADS where its own is not set: the script may still set that one number.
            if name not in os.environ and (name == "OMP_NUM_THREADS" or value != every):
                os.putenv(name, value)
                put.append(f"{name}={value}")
    if put:
        os.putenv(_PUT, " ".join(put))


def _pairs(text: str) -> dict[str, str]:
    return dict(pair.split("=", 1) for pair in text.split() if "=" in pair)


def _cores() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except (AttributeError, OSError):
        return os.cpu_count() or 0


def _set_interop(torch: Any, count: int) -> None:
    """PyTorch takes this number once. The script's own later call, which could fail only because of ours, is no error."""
    if torch.get_num_interop_threads() == count:
        return
    plain = torch.set_num_interop_threads
    plain(count)

    def set_num_interop_threads(number: int) -> None:
        torch.set_num_interop_threads = plain
        seeds.problem("torch.set_num_interop_threads", RuntimeError(f"stays {count}, as captured; the script asked for {number}"))

    torch.set_num_interop_threads = set_num_interop_threads


# --- PyTorch's choices


def _ask_torch(torch: Any) -> None:
    """Choose repeatable code, as `torch.use_deterministic_algorithms` does, but without importing the compiler."""
    torch._C._set_cudnn_benchmark(False)
    torch._C._set_cudnn_deterministic(True)
    if hasattr(torch._C, "_set_sdp_use_cudnn") and _gpu(torch):
        # The one attention kernel that is not repeatable and does not say so (`check_cudnn_deterministic`).
        torch._C._set_sdp_use_cudnn(False)
    _listen()
    choose = torch._C._set_deterministic_algorithms
    choose(True, warn_only=_MODE == "warn")
    fill = getattr(torch._C, "_set_deterministic_fill_uninitialized_memory", None)
    if fill is not None and _MODE == "warn":
        fill(False)  # it only shows programs that read what they never wrote, and costs time

        def _set_deterministic_fill_uninitialized_memory(mode: bool) -> None:
            _State.filled = True
            fill(mode)

        torch._C._set_deterministic_fill_uninitialized_memory = _set_deterministic_fill_uninitialized_memory

    def _set_deterministic_algorithms(mode: bool, *, warn_only: bool = False) -> None:
        if not _State.asked and not _is_restoring(sys._getframe(1)):
            _State.asked = True
            if not _State.filled and fill is not None:
                fill(True)  # PyTorch's own default
        choose(mode, warn_only=warn_only)

    torch._C._set_deterministic_algorithms = _set_deterministic_algorithms


def _is_restoring(frame: FrameType | None) -> bool:
    """Whether a library puts back what it found: the compiler after each piece, Lightning in its children."""
    for _ in range(3):
        if frame is None:
            break
        if frame.f_code.co_filename.endswith(_RESTORING):
            return True
        frame = frame.f_back
    return False


def _ask_inductor(config: Any) -> None:
    torch = sys.modules["torch"]
    if hasattr(config, "deterministic") and torch._C._get_deterministic_algorithms():
        config.deterministic = True


def _gpu(torch: Any) -> bool:
    """Whether this PyTorch was built for GPUs."""
    version = getattr(torch, "version", None)
    return bool(getattr(version, "cuda", None) or getattr(version, "hip", None))


# --- what PyTorch says of its operations


class _Alerts:
    """A warning filter that takes PyTorch's alerts: as Python asks it before all others, no filter of the script's hides them."""

    def match(self, text: str) -> bool:
        """Whether the warning ends here: it would not have come without us."""
        if "determinis" not in text or _State.replaying == _thread():
            return False
        what = operation(text)
        if not what:
            return False
        frame = sys._getframe(1)  # compiled code has no frame: this is who called it
        try:
            _count(what, *seeds.user_line())
        except Exception as error:
            seeds.problem("operation", error)
        if _State.asked:
            _warn(text, frame)
        return True


class _Filters(Items):
    """`warnings.filters` with ours always the first."""

    ours = ("ignore", _Alerts(), UserWarning, None, 0)

    def _first(self) -> None:
        if not self or self[0] is not self.ours:
            rest = [one for one in self if one is not self.ours]
            super().__setitem__(slice(None), [self.ours, *rest])

    def insert(self, index: Any, item: Any) -> None:
        super().insert(index, item)
        self._first()

    def __setitem__(self, index: Any, item: Any) -> None:
        super().__setitem__(index, item)
        self._first()

    def __delitem__(self, index: Any) -> None:
        super().__delitem__(index)
        self._first()

    def clear(self) -> None:
        super().clear()
        self._first()

    def copy(self) -> _Filters:
        return _Filters(self)

    def __getitem__(self, index: Any) -> Any:  # `catch_warnings` copies by a slice
        found = super().__getitem__(index)
        return _Filters(found) if isinstance(index, slice) else found


def _listen() -> None:
    """Not by `warnings` itself, which would forget which warnings it has shown, and show them again."""
    warnings: Any = __import__("warnings")
    if not isinstance(warnings.filters, _Filters):
        warnings.filters = _Filters(warnings.filters)
        warnings.filters._first()


def _thread() -> int:
    return int(__import__("_thread").get_ident())


def operation(text: str) -> str:
    """The operation that an alert of PyTorch names; empty for any other text."""
    for line in text.splitlines():
        for phrase in _PHRASES:
            what, found, _ = line.partition(phrase)
            if found:
                return what.rpartition("Error: ")[2].strip() or "unknown"
        if _CUBLAS in line:
            return "cuBLAS"
    return ""


def _warn(text: str, frame: FrameType) -> None:
    """Give a warning that the script itself asked for, as often as Python would have. Raises where the script wants that."""
    if frame.f_code.co_name == "alert_not_deterministic" and frame.f_back is not None:
        frame = frame.f_back  # it warns in the name of its caller
    module = str(frame.f_globals.get("__name__") or "<string>")
    _State.replaying = _thread()
    try:
        __import__("warnings").warn_explicit(
            text, UserWarning, frame.f_code.co_filename, frame.f_lineno, module, _shown.setdefault(module, {})
        )
    finally:
        _State.replaying = 0


def _count(what: str, file: str, line: int) -> None:
    """The first of a kind is noted at once, lest it be lost with a process that is killed; the rest at the end."""
    key = (what, file, line)
    if key in _counts:
        _counts[key][0] += 1
    elif len(_counts) < _MOST:
        _counts[key] = [1, 1]
        seeds.note({"operation": what, "count": 1, "file": file, "line": line})


def _failed(error: BaseException | None) -> None:
    """Count an operation that ended the process, in `strict`."""
    seen = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        what = operation(str(error)) if isinstance(error, Exception) else ""
        if what:
            _count(what, *_origin(error.__traceback__))
            return
        error = error.__cause__ or error.__context__


def _origin(traceback: TracebackType | None) -> tuple[str, int]:
    """The innermost line of the user's own code; the innermost of all where there is none."""
    found, nearest = ("", 0), ("<unknown>", 0)
    while traceback is not None:
        nearest = (traceback.tb_frame.f_code.co_filename, traceback.tb_lineno)
        if seeds._is_users(traceback.tb_frame):
            found = nearest
        traceback = traceback.tb_next
    file, line = found if found[1] else nearest
    return (file if file.startswith("<") else os.path.abspath(file)), line


# --- processes that train together


def _watch_world(distributed: Any) -> None:
    import functools

    plain = distributed.init_process_group

    @functools.wraps(plain)
    def init_process_group(*args: Any, **kwargs: Any) -> Any:
        result = plain(*args, **kwargs)
        try:
            _State.world, _State.world_pid = None, os.getpid()
            _note_world()
        except Exception as error:
            seeds.problem("init_process_group", error)
        return result

    distributed.init_process_group = init_process_group


def _note_world() -> None:
    """Again at the end: the script may have chosen its device after it joined."""
    torch: Any = sys.modules["torch"]
    distributed = sys.modules["torch.distributed.distributed_c10d"]
    if distributed.is_initialized():
        world = {
            "rank": int(distributed.get_rank()),
            "size": int(distributed.get_world_size()),
            "backend": str(distributed.get_backend()),
            "device": "cpu",
        }
    elif _State.world is not None:  # left again
        world = dict(_State.world)
    else:
        return
    if _on_gpu(torch):
        world["device"] = _device(torch, int(torch.cuda.current_device()))
    if world != _State.world:
        _State.world = world
        seeds.note({"world": world})


def _on_gpu(torch: Any) -> bool:
    """Whether this process computes on a GPU. Asking for its name would else start the driver."""
    return _gpu(torch) and bool(torch.cuda.is_initialized())


def _device(torch: Any, index: int) -> str:
    return f"cuda:{index} {torch.cuda.get_device_name(index)}"


# --- the end


def _at_end() -> None:
    """When any process of the run ends."""
    _failed(getattr(sys, "last_value", None))
    for key, (count, noted) in list(_counts.items()):
        if count > noted:
            _counts[key][1] = count
            seeds.note({"operation": key[0], "count": count - noted, "file": key[1], "line": key[2]})
    rank = next((os.environ[name] for name in seeds._RANKS if os.environ.get(name)), "")
    if _State.world_pid == os.getpid():
        _note_world()
        rank = rank if _State.world is None else str(_State.world["rank"])
    elif os.getpid() != _State.pid or seeds._State.worker or _is_helper():
        return
    if _State.told:
        return
    _State.told = True
    # A rank that multiprocessing started is of the script that started it.
    facts, script = dict(_effective()), bool(seeds._State.worker) or _is_script()
    if not script:  # torchrun, accelerate launch: what was said by what it started counts
        for name in _said():
            facts.pop(name, None)
    if facts:
        seeds.note({"effective": facts, "rank": rank, "script": script})


def _program() -> str:
    """The file that is the program; empty for `-c`. Its `__file__` is gone when a program ends."""
    path = getattr(getattr(sys.modules.get("__main__"), "__loader__", None), "path", None)
    return os.path.join(_State.folder, path) if isinstance(path, str) else ""


def _is_helper() -> bool:
    """Whether a library started this program for itself."""
    name = getattr(getattr(sys.modules.get("__main__"), "__spec__", None), "name", None)
    if isinstance(name, str) and name.startswith(_HELPERS):
        return True
    if _program():
        return False
    try:
        with open("/proc/self/cmdline", "rb") as file:
            return b"from multiprocessing." in file.read()
    except OSError:
        return False


def _is_script() -> bool:
    """Whether the program is the user's own file, and no installed command that may only start others."""
    file = _program()
    installed = "/site-packages/" in file or "/dist-packages/" in file
    places = (sys.prefix + "/bin/", sys.base_prefix + "/bin/", sys.base_prefix + "/lib/python")
    return bool(file) and not installed and not file.startswith(places)


def _said() -> set[str]:
    """Names that other processes noted as effective while this one lived."""
    names: set[str] = set()
    try:
        with open(seeds._NOTES, "rb") as file:
            file.seek(_State.size)
            for line in file:
                if line.startswith(b'{"effective"'):
                    names.update(__import__("json").loads(line)["effective"])  # takes as long as all the rest to import
    except (OSError, ValueError):
        pass
    return names


def _effective() -> Iterator[tuple[str, str]]:
    yield "address randomisation", _randomised()
    yield "hash seed", (_HASHED or "random") if sys.flags.hash_randomization else "0"
    for name in _VARIABLES:
        if name in os.environ:
            yield name, os.environ[name]
    yield "cores", str(_cores())
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if torch is not None or numpy is not None:
        yield from _told(_LIBRARIES if numpy is None else (*_LIBRARIES, *_NUMPY), numpy)
    if torch is not None:
        yield from _told(_TORCH, torch)
        if _gpu(torch):
            yield from _told(_CUDA, torch)
    inductor: Any = sys.modules.get("torch._inductor.config")
    if hasattr(inductor, "deterministic"):
        yield "torch inductor deterministic", str(inductor.deterministic)


def _told(questions: tuple[tuple[str, Callable[[Any], Any]], ...], whom: Any) -> Iterator[tuple[str, str]]:
    """Answers. Versions without such a setting are not asked; a setting that cannot be read is unknown, not left out."""
    for name, question in questions:
        try:
            answer = question(whom)
        except AttributeError:
            continue
        except Exception as error:  # as PyTorch does where a script mixes its old and new names for precision
            answer = f"unknown ({type(error).__name__})"
        if isinstance(answer, dict):
            yield from answer.items()
        elif answer is not None:
            yield name, str(answer)


def _randomised() -> str:
    """Whether the kernel chose this process' addresses at random (personality(2), ADDR_NO_RANDOMIZE; proc(5))."""
    try:
        with open("/proc/self/personality", "rb") as file:
            if int(file.read(), 16) & 0x0040000:
                return "off"
        with open("/proc/sys/kernel/randomize_va_space", "rb") as file:
            return "on" if int(file.read()) else "off"
    except (OSError, ValueError):
        return "unknown"


def _library_threads(_: Any) -> dict[str, str]:
    """How many threads each numeric library takes that is loaded, as it says itself; by its file where there are several."""
    frameworks = _frameworks()
    found: dict[str, list[tuple[str, int]]] = {}
    for path in frameworks.mapped():
        name = frameworks.name_of(path)
        for function in frameworks.THREADS.get(name, ()):
            ask = frameworks.function_of(path, function)
            if ask is not None:
                found.setdefault(name.partition(" ")[0], []).append((os.path.basename(path), int(ask())))
                break
    said = {}
    for name, each in found.items():
        if len({count for _, count in each}) == 1:
            said[f"threads {name}"] = str(each[0][1])
        else:
            said.update({f"threads {name} ({file})": str(count) for file, count in each})
    return said


def _frameworks() -> Any:
    """The questions that capture asks, too. Kept in a file of the same package, which is no package here."""
    if _State.frameworks is not None:
        return _State.frameworks
    import importlib.util

    path = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "frameworks.py")
    spec = importlib.util.spec_from_file_location("_repro_env_frameworks", path)
    if spec is None or spec.loader is None:
        raise ImportError(path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    _State.frameworks = module
    return module


def _capability(torch: Any) -> str:
    return str(_frameworks().capability(torch, torch.__config__.show()))


def _algorithms(torch: Any) -> str:
    if not torch._C._get_deterministic_algorithms():
        return "off"
    return "warn" if torch._C._get_deterministic_algorithms_warn_only() else "error"


def _devices(torch: Any) -> str | None:
    return ", ".join(_device(torch, index) for index in range(torch.cuda.device_count())) if _on_gpu(torch) else None


def _dispatched(_: Any) -> str:
    core: Any = sys.modules.get("numpy._core._multiarray_umath") or sys.modules["numpy.core._multiarray_umath"]
    return " ".join(name for name in core.__cpu_dispatch__ if core.__cpu_features__.get(name))


_LIBRARIES: tuple[tuple[str, Callable[[Any], Any]], ...] = (("threads of libraries", _library_threads),)
_NUMPY: tuple[tuple[str, Callable[[Any], Any]], ...] = (("numpy cpu features", _dispatched),)
_TORCH: tuple[tuple[str, Callable[[Any], Any]], ...] = (
    ("torch", lambda torch: torch.__version__),
    ("threads torch", lambda torch: torch.get_num_threads()),
    ("threads torch interop", lambda torch: torch.get_num_interop_threads()),
    ("torch cpu capability", _capability),
    ("torch default dtype", lambda torch: torch.get_default_dtype()),
    ("torch deterministic algorithms", _algorithms),
    ("torch fill uninitialized memory", lambda torch: torch._C._get_deterministic_fill_uninitialized_memory()),
    ("torch float32 matmul precision", lambda torch: torch.get_float32_matmul_precision()),
    ("torch mkldnn", lambda torch: torch._C._get_mkldnn_enabled()),
    ("torch mkldnn matmul fp32 precision", lambda torch: torch._C._get_fp32_precision_getter("mkldnn", "matmul")),
    ("torch mkldnn conv fp32 precision", lambda torch: torch._C._get_fp32_precision_getter("mkldnn", "conv")),
)
_CUDA: tuple[tuple[str, Callable[[Any], Any]], ...] = (
    ("cuda", lambda torch: torch.version.cuda),
    ("hip", lambda torch: torch.version.hip),
    ("cuda devices", _devices),
    ("cudnn", lambda torch: torch._C._get_cudnn_enabled()),
    ("cudnn benchmark", lambda torch: torch._C._get_cudnn_benchmark()),
    ("cudnn deterministic", lambda torch: torch._C._get_cudnn_deterministic()),
    ("cudnn allow tf32", lambda torch: torch._C._get_cudnn_allow_tf32()),
    ("cublas allow tf32", lambda torch: torch._C._get_cublas_allow_tf32()),
    ("cublas fp16 reduced precision", lambda torch: _first(torch._C._get_cublas_allow_fp16_reduced_precision_reduction())),
    ("cublas bf16 reduced precision", lambda torch: _first(torch._C._get_cublas_allow_bf16_reduced_precision_reduction())),
    ("cublas fp16 accumulation", lambda torch: torch._C._get_cublas_allow_fp16_accumulation()),
    ("sdp flash", lambda torch: torch._C._get_flash_sdp_enabled()),
    ("sdp memory efficient", lambda torch: torch._C._get_mem_efficient_sdp_enabled()),
    ("sdp math", lambda torch: torch._C._get_math_sdp_enabled()),
    ("sdp cudnn", lambda torch: torch._C._get_cudnn_sdp_enabled()),
)


def _first(value: Any) -> Any:
    """Newer versions say (reduced precision, split-k)."""
    return value[0] if isinstance(value, (tuple, list)) else value
