"""Where things lie inside every image."""

from __future__ import annotations

from repro_env.model.environment import Layout

ENVIRONMENT = "/opt/env"
"""A virtual environment's tree, the same place in every image, so that torch's layer is the same bytes for every project."""
MARKER = "/.repro-env/image.json"
"""Written by the last layer: says which spec the image is made of. A job can check that it really runs inside."""
SEEDS = "/.repro-env/seeds"
"""Where a run sees `Launch.tools`, this package, read-only."""
HOOKS = "inside/seeds"
"""Below `SEEDS`: what comes first on PYTHONPATH."""
NOTES = "/.repro-env/notes"
"""Where a run sees `Launch.notes`, writable."""
HOME = "/.repro-env/home"
"""Configuration of libraries, by its path below a home directory: a run shows each file in its own."""
PYCACHE = "/run/repro-env/pycache"
"""PYTHONPYCACHEPREFIX of every run: throw-away (a tmpfs /run will do), so that no `__pycache__` is among the outputs."""
KEPT = "/run/repro-env/bytecode"
"""Where the kept bytecode is when there is no overlay: `PYCACHE` has symlinks to it then."""
COMPILED = "/.repro-env/bytecode"
"""Where the image's interpreter writes bytecode that is to be kept."""
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


CONTAINER_HOME = "/tmp"  # noqa: S108
"""HOME in a container that repro-env did not start: every user may write there, also when the root is read-only."""
CONTAINER_USER = "user"
"""USER there: Python's `getpass.getuser` (torch.compile calls it) fails for a UID that passwd does not name."""


def root_of(layout: Layout) -> str:
    """Where the image holds the tree of a place: its own prefix, or `ENVIRONMENT` for one that can be moved."""
    return (layout.real or layout.prefix) if layout.in_place else ENVIRONMENT


def inside(absolute: str) -> str:
    """An absolute path as an entry's path: relative to the image's root."""
    return absolute.lstrip("/")
