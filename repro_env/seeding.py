"""Seeds derived from the master seed: `repro_env.seed("split")`. Supports Python 3.8 and uses only the standard library."""

from __future__ import annotations

import os
import sys


def seed(purpose: str, bits: int = 32) -> int:
    """Return the seed for a purpose such as "split", "train" or "eval": the first bits of sha256(master seed, purpose).

    The seed is the same on every rank, in every process and in every call, so that all ranks split the data in the same
    way, also when a training resumes. For a different seed on each rank, include the rank in the purpose. A seed with
    fewer bits consists of the highest bits of a longer seed. All libraries accept 32 bits.

    The master seed is the variable REPRO_ENV_SEED, which `repro-env exec` sets. Outside of a run, the default is 0.
    Raises `ValueError` if the purpose is empty, if `bits` is not between 1 and 256, or if REPRO_ENV_SEED is not an integer.
    """
    if not purpose:
        raise ValueError('the purpose of the seed is empty: name it, for example repro_env.seed("split")')
    if not 1 <= bits <= 256:
        raise ValueError(f"bits must be between 1 and 256 for a seed (got {bits})")
    hooks = sys.modules.get("_repro_env_seeds")  # a process that was started without the variable has it there
    master = os.environ.get("REPRO_ENV_SEED") or getattr(hooks, "_MASTER", "") or "0"
    if not (master.isascii() and master.isdigit()):
        raise ValueError(f"REPRO_ENV_SEED must be an integer that is not negative (got {master!r})")
    from hashlib import sha256

    text = "\0".join(("repro-env/seed/1", str(int(master)), purpose))
    value = int.from_bytes(sha256(text.encode("utf-8", "surrogatepass")).digest(), "big") >> (256 - bits)
    if hooks is not None:
        with hooks.Attempt("repro_env.seed"):
            hooks.part("callers").note_seed("repro_env", "repro_env.seed", value, purpose)
    return value
