"""PYTHONPYCACHEPREFIX of a run: bytecode that was kept below, read-only; what the run writes on top, thrown away.

By overlay; where the kernel refuses it, a folder of symlinks to what was kept, which is bound read-only beside.
Either way a run can write there what it wants, and nobody else ever reads it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from repro_env.image import layout
from repro_env.io import files
from repro_env.run import kernel, overlay

KEPT, NONE = "bytecode: kept", "bytecode: none yet"
"""What `Outcome.means` says of it."""
_MOST = 50_000
"""More files than any run compiles; a script may have written there without end."""


class Pycache:
    """The bytecode that one run finds and makes."""

    def __init__(self, kept: Path | None, own: Path, work: Path) -> None:
        """`kept`: a tree laid out as PYTHONPYCACHEPREFIX, or None. `own` and `work`: empty folders on one disk."""
        self._kept = kept
        self.own = own
        self._work = work

    @property
    def means(self) -> str:
        """A Python that compiles has its objects at other addresses than one that does not, and so another order of sets of them."""
        return KEPT if self._kept is not None else NONE

    def stack(self, target: Path) -> Path | None:
        """Show it at `target`. Returns what has to be shown read-only at `layout.KEPT` too, if anything. Raises `OSError`."""
        if self._kept is not None:
            try:
                overlay.mount(target, (self._kept,), upper=self.own, work=self._work, throw_away=True)
            except OSError:
                self.linked()
            else:
                return None
        kernel.bind(str(self.own), str(target), recursive=False)
        return self._kept

    def linked(self) -> Path | None:
        """Fill `own` with symlinks to what was kept, and return what has to be shown read-only at `layout.KEPT`, if anything."""
        if self._kept is not None:
            with contextlib.suppress(OSError):  # what is not linked is compiled
                _link(self._kept, self.own)
        return self._kept

    def written(self) -> Iterator[str]:
        """The files that the run itself wrote, after it. Raises `OSError`, `CaptureError` for a name that is not UTF-8."""
        names = (found.path for found in files.walk(self.own) if found.kind == "file")
        return islice(names, _MOST)


def _link(kept: Path, own: Path) -> None:
    for found in files.walk(kept):
        here = own / found.path
        if found.kind == "dir":
            here.mkdir()
        elif found.kind == "file":
            here.symlink_to(f"{layout.KEPT}/{found.path}")
