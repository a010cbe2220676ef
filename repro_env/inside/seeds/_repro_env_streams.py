"""The numbers that take the place of the system's randomness: functions of the master seed.

Every stream is sha256(master, rank, worker, purpose, ordinal). `worker` is the process' identity in multiprocessing, the
same under fork, spawn and forkserver; inside a DataLoader worker it is the seed that torch gave that worker.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

seeds: Any = __import__("_repro_env_seeds")

_ordinals: dict[Any, int] = {}


def stream(purpose: str, bits: int) -> int:
    """The next `bits` (at most 256) of this process for one purpose."""
    who = worker()
    ordinal = _ordinals.get((who, purpose), 0)
    _ordinals[who, purpose] = ordinal + 1
    text = "\0".join(("repro-env/seeds/1", seeds._MASTER, _rank(), repr(who), purpose, str(ordinal)))
    return int.from_bytes(_sha256(text.encode()), "big") >> (256 - bits)


class _Known:
    sha256: Any = None
    """The function, once it was found: to look for a module that is not there takes longer than all the rest."""


def _sha256(data: bytes) -> bytes:
    if _Known.sha256 is None:
        # hashlib would load OpenSSL, which takes longer than all the rest of ours.
        for name in ("_sha2", "_sha256", "hashlib"):
            try:
                _Known.sha256 = __import__(name).sha256
                break
            except ImportError:
                continue
        else:
            raise ImportError("this Python has no SHA-256")
    digest: bytes = _Known.sha256(data).digest()
    return digest


def _rank() -> str:
    """Empty for the first rank too: alone, it has the numbers of a run without ranks."""
    return "" if seeds._SAME else own_rank()


def own_rank() -> str:
    """Return the rank even if all ranks use the streams of rank 0."""
    rank = next((os.environ[name] for name in seeds._RANKS if os.environ.get(name)), None)
    if rank is None:  # Lightning starts its ranks with these two
        rank = f"{os.environ.get('NODE_RANK') or '0'}.{os.environ.get('LOCAL_RANK') or '0'}"
    return "" if rank in ("0", "0.0") else rank


def worker() -> tuple[Any, ...]:
    """Who this process is: the loader's worker, else the process or task of multiprocessing; empty for the first process."""
    loader = sys.modules.get("torch.utils.data._utils.worker")
    info = getattr(loader, "_worker_info", None)
    return seeds._State.worker if info is None else ("loader", info.seed)


def restart() -> None:
    """Another worker's streams begin at their beginning."""
    _ordinals.clear()
