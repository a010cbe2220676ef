"""What the small index has: wheels made here, and the real ones that building from source needs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.fakes import wheels

REAL = ("setuptools==80.9.0", "setuptools==68.2.2", "wheel==0.45.1")


def publish(directory: Path) -> None:
    """Put everything there. Asks the configured index for `REAL`."""
    pip = [sys.executable, "-m", "pip", "download", "-qq", "--no-deps", "--only-binary", ":all:", "-d", str(directory)]
    for entry in REAL:
        subprocess.run([*pip, entry], check=True)
    wheels.make(
        directory, "alpha", files={"alpha.py": _script("alpha 1.0")}, entry_points="[console_scripts]\nalpha = alpha:main\n"
    )
    wheels.make(directory, "beta", files={**BETA, "beta/__init__.py": _reads("data/words.txt")})
    wheels.make(directory, "gamma", "1.0", files={"gamma.py": b"VALUE = 'gamma 1.0'\n"})
    wheels.make(directory, "gamma", "2.0", files={"gamma.py": b"VALUE = 'gamma 2.0'\n"})
    wheels.make(directory, "gamma", "3.0rc1", files={"gamma.py": b"VALUE = 'gamma 3.0rc1'\n"})
    wheels.make(directory, "wants-new", files={"wants_new.py": b"import gamma\nVALUE = gamma.VALUE\n"}, requires=["gamma>=2"])
    wheels.make(directory, "wants-old", files={"wants_old.py": b"import gamma\nVALUE = gamma.VALUE\n"}, requires=["gamma<2"])
    for name in ("first", "second"):
        wheels.make(directory, f"names-{name}", files={f"shared_names/{name}.py": f"VALUE = {name!r}\n".encode()})
        wheels.make(directory, f"over-{name}", files={"over/__init__.py": f"VALUE = {name!r}\n".encode(), f"over/{name}.py": b""})
    wheels.make(directory, "placed", files=PLACED, executable=frozenset({"placed-1.0.data/scripts/placed-sh"}))
    wheels.make(
        directory,
        "plugged",
        files={"plugged.py": b"def main(): print('plugged')\n"},
        entry_points="[some.plugins]\nhere = plugged:main\n",
    )


def _script(value: str) -> bytes:
    return f"import sys\nVALUE = {value!r}\ndef main():\n    print(VALUE, sys.argv[1:], sys.prefix)\n".encode()


def _reads(name: str) -> bytes:
    return f"import importlib.resources as r\nVALUE = r.files(__name__).joinpath({name!r}).read_text()\n".encode()


BETA = {"beta/data/words.txt": b"one two three\n", "beta/sub/__init__.py": b"", "beta/sub/deep.py": b"VALUE = 'deep'\n"}
PLACED = {
    "placed/__init__.py": b"import pathlib, sys\nVALUE = (pathlib.Path(sys.prefix) / 'share' / 'placed' / 'note.txt').read_text()\n",
    "placed-1.0.data/data/share/placed/note.txt": b"a note\n",
    "placed-1.0.data/data/etc/placed/placed.conf": b"on = 1\n",
    "placed-1.0.data/headers/placed.h": b"#define PLACED 1\n",
    "placed-1.0.data/purelib/placed_pure.py": b"VALUE = 'pure'\n",
    "placed-1.0.data/platlib/placed_plat.py": b"VALUE = 'plat'\n",
    "placed-1.0.data/scripts/placed-py": b"#!python\nimport sys\nprint('placed', sys.argv[1:])\n",
    "placed-1.0.data/scripts/placed-sh": b'#!/bin/sh\necho placed "$@"\n',
}
