"""What was in force when a process ended: {"effective": {name: value}, "rank", "script"}; `script`: the user's own program.

Said once by the first process of each program of the user's, and by each process that trains together with others.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

seeds: Any = __import__("_repro_env_seeds")

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
_HELPERS = ("joblib.externals.loky.", "loky.", "multiprocessing.", "torch._inductor.")
"""Programs that libraries start for themselves, by their module."""


class _State:
    told = False


def tell() -> None:
    """Note it, where this process is one that says it."""
    rank = next((os.environ[name] for name in seeds._RANKS if os.environ.get(name)), "")
    world = seeds.part("world") if "world" in seeds._parts else None
    if world is not None and world.State.pid == os.getpid():
        world.note_world()
        rank = rank if world.State.world is None else str(world.State.world["rank"])
    elif os.getpid() != seeds._State.pid or seeds._State.worker or _is_helper():
        return
    if _State.told:
        return
    _State.told = True
    # A rank that multiprocessing started is of the script that started it.
    facts, script = dict(_facts()), bool(seeds._State.worker) or _is_script()
    if not script:  # torchrun, accelerate launch: what was said by what it started counts
        for name in _said():
            facts.pop(name, None)
    if facts:
        seeds.part("notes").note({"effective": facts, "rank": rank, "script": script})


def _program() -> str:
    """The file that is the program; empty for `-c`. Its `__file__` is gone when a program ends."""
    path = getattr(getattr(sys.modules.get("__main__"), "__loader__", None), "path", None)
    return os.path.join(seeds._State.folder, path) if isinstance(path, str) else ""


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
            file.seek(seeds._State.size)
            for line in file:
                if line.startswith(b'{"effective"'):
                    names.update(__import__("json").loads(line)["effective"])  # takes as long as all the rest to import
    except (OSError, ValueError):
        pass
    return names


def _facts() -> Iterator[tuple[str, str]]:
    yield "address randomisation", _randomised()
    yield "hash seed", (seeds._HASHED or "random") if sys.flags.hash_randomization else "0"
    for name in _VARIABLES:
        if name in os.environ:
            yield name, os.environ[name]
    yield "cores", str(seeds.cores())
    if "torch" in sys.modules or "numpy" in sys.modules:
        try:
            yield from seeds.part("libraries").said()
        except Exception as error:  # what is known without them is told all the same
            seeds.problem("effective", error)


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
