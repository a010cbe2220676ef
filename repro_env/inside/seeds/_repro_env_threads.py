"""As many threads as on the captured machine, where this one has other cores.

C code reads the variables, Python code does not see them: torchrun and joblib choose a count for their children where
`os.environ` has none, as they did on the captured machine.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

seeds: Any = __import__("_repro_env_seeds")


def install() -> None:
    """Before any library is loaded."""
    for name, value in _pairs(os.environ.pop(seeds._PUT, "")).items():
        if os.environ.get(name) == value:
            del os.environ[name]
    wanted = _pairs(os.environ.get(seeds._THREADS, ""))
    cores = wanted.pop("LOKY_MAX_CPU_COUNT", "")
    if not wanted or cores == str(seeds.cores()):
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
        os.putenv(seeds._PUT, " ".join(put))


def _pairs(text: str) -> dict[str, str]:
    return dict(pair.split("=", 1) for pair in text.split() if "=" in pair)


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
