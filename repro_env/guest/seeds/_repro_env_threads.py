"""Set the number of threads of the captured machine, if this machine has a different number of cores.

The variables are set for C code only, and are not in `os.environ`: torchrun and joblib choose a number for their children if
`os.environ` has none, as they did on the captured machine.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

seeds: Any = __import__("_repro_env_seeds")


def install() -> None:
    """Set the variables. To be called before any library is loaded."""
    for name, value in _pairs(os.environ.pop(seeds._THREADS_PUT, "")).items():
        if os.environ.get(name) == value:
            del os.environ[name]
    wanted = _pairs(seeds.variable(seeds._THREADS))
    cores = wanted.pop("LOKY_MAX_CPU_COUNT", "")
    if not wanted or cores == str(seeds.cores()):
        return
    if cores:
        os.environ.setdefault("LOKY_MAX_CPU_COUNT", cores)  # joblib reads its number of cores in Python
    interop = wanted.pop("TORCH_INTEROP", "")
    if interop.isdigit():
        seeds.when_imported("torch", lambda torch: _set_interop(torch, int(interop)))
    openmp = wanted.get("OMP_NUM_THREADS", "")
    put = []
    if "OMP_NUM_THREADS" not in os.environ:  # if it is set, all libraries use its value
        for name, value in wanted.items():
            # A library whose own variable is not set reads OMP_NUM_THREADS, so that the script can still set all of them with it.
            if name not in os.environ and (name == "OMP_NUM_THREADS" or value != openmp):
                os.putenv(name, value)
                put.append(f"{name}={value}")
    if put:
        os.putenv(seeds._THREADS_PUT, " ".join(put))


def _pairs(text: str) -> dict[str, str]:
    return dict(pair.split("=", 1) for pair in text.split() if "=" in pair)


def _set_interop(torch: Any, count: int) -> None:
    """Set the number, which PyTorch accepts only once. A later call by the script is reported and ignored instead of failing."""
    if torch.get_num_interop_threads() == count:
        return
    plain = torch.set_num_interop_threads
    plain(count)

    def set_num_interop_threads(number: int) -> None:
        torch.set_num_interop_threads = plain
        error = RuntimeError(f"the script set {number}, but the captured value {count} remains")
        seeds.note_problem("torch.set_num_interop_threads", error)

    torch.set_num_interop_threads = set_num_interop_threads
