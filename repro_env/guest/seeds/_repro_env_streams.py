"""Random numbers that are derived from the master seed.

A stream is sha256(master, rank, worker, purpose, ordinal). In a resumed run, `master` has the number of resumes. `worker` is the identity of the process in multiprocessing, the
same for fork, spawn and forkserver. In a DataLoader worker, it is the seed that torch gave to this worker.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

seeds: Any = __import__("_repro_env_seeds")

_ordinals: dict[Any, int] = {}


def stream(purpose: str, bits: int) -> int:
    """The next number of this process for a purpose, of at most 256 `bits`."""
    identity = worker()
    ordinal = _ordinals.get((identity, purpose), 0)
    _ordinals[identity, purpose] = ordinal + 1
    text = "\0".join(("repro-env/seeds/1", seeds._STREAMS, _rank(), repr(identity), purpose, str(ordinal)))
    return int.from_bytes(_sha256(text.encode()), "big") >> (256 - bits)


class _State:
    sha256: Any = None
    """The function, after the first search: looking for a missing module takes longer than everything else here."""


def _sha256(data: bytes) -> bytes:
    if _State.sha256 is None:
        # hashlib is the last choice because it loads OpenSSL, which takes longer than all hooks together.
        for name in ("_sha2", "_sha256", "hashlib"):
            try:
                _State.sha256 = __import__(name).sha256
                break
            except ImportError:
                continue
        else:
            raise ImportError("this Python has no SHA-256")
    digest: bytes = _State.sha256(data).digest()
    return digest


def _rank() -> str:
    """The rank that selects the streams; empty for the first rank, which has the same streams as a run without ranks."""
    return "" if seeds._SAME_STREAMS else own_rank()


def own_rank() -> str:
    """The rank of this process, even if all ranks use the streams of rank 0."""
    rank = next(filter(None, map(seeds.variable, seeds._RANKS)), None)
    if rank is None:  # Lightning starts its ranks with these two
        rank = f"{seeds.variable('NODE_RANK') or '0'}.{seeds.variable('LOCAL_RANK') or '0'}"
    return "" if rank in ("0", "0.0") else rank


def worker() -> tuple[Any, ...]:
    """The identity of this process: a DataLoader worker, or a process or task of multiprocessing; empty for the first process."""
    loader = sys.modules.get("torch.utils.data._utils.worker")
    info = getattr(loader, "_worker_info", None)
    return seeds._State.worker if info is None else ("loader", info.seed)


def restart() -> None:
    """Restart all streams, for a new worker."""
    _ordinals.clear()
