"""Seeds for code that wants its own: `repro_env.seed("split")`. Python 3.8 or newer, the standard library only."""

from __future__ import annotations

import os


def seed(purpose: str, bits: int = 32) -> int:
    """A seed for one purpose, such as "split", "train" or "eval": `bits` (1 to 256) of sha256(master seed, purpose).

    The same number on every rank, in every process and at every call, so that all ranks split the data alike and a
    training that goes on later gets what it had. Whoever wants a seed a rank puts the rank into the purpose. A seed with
    fewer bits is the top of one with more. 32 bits suit every library: NumPy's legacy `seed` takes no more.

    The master seed is the run's (REPRO_ENV_SEED, set by `repro-env exec`); outside of a run, where that is not set, 0.
    Raises `ValueError` for an empty purpose, a number of bits out of range, or a REPRO_ENV_SEED that is no whole number.
    """
    if not purpose:
        raise ValueError('a seed is for a purpose: name it, as in repro_env.seed("split")')
    if not 1 <= bits <= 256:
        raise ValueError(f"a seed has 1 to 256 bits, not {bits}")
    master = os.environ.get("REPRO_ENV_SEED") or "0"
    if not (master.isascii() and master.isdigit()):
        raise ValueError(f"REPRO_ENV_SEED is {master!r}: it must be a whole number that is not negative")
    from hashlib import sha256

    text = "\0".join(("repro-env/seed/1", str(int(master)), purpose))
    return int.from_bytes(sha256(text.encode("utf-8", "surrogatepass")).digest(), "big") >> (256 - bits)
