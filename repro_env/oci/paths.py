"""Fixed paths inside every image, and inside every run."""

from __future__ import annotations

from repro_env.schema.environment import Layout

ENVIRONMENT = "/opt/env"
"""The virtual environment. The same path in every image, so that the layer of torch has the same bytes for every project."""
MARKER = "/.repro-env/image.json"
"""A file of the last layer that holds the digest of the image's spec. A job can use it to check that it runs in the image."""
SEEDS = "/.repro-env/seeds"
"""Where `Launch.tools` (this package) is mounted in a run, read-only."""
HOOKS = "guest/seeds"
"""The directory below `SEEDS` that comes first on PYTHONPATH."""
SITE = "guest/site"
"""The directory below `SEEDS` that a run mounts where the interpreter looks for modules first (`Launch.site`)."""
REPORTS = "/.repro-env/reports"
"""Where `Launch.reports` is mounted in a run, writable."""
DRIVER = "/.repro-env/driver"
"""Where a run with GPUs sees the libraries of this machine's GPU driver, read-only. The run's `ld.so.cache` names them."""
HOME = "/.repro-env/home"
"""Configuration files of libraries, by their path below a home directory. A run mounts each one in its own home."""
JOB = "/.repro-env/job"
"""The directory of a Kubernetes job, writable: its runs, its store, and repro-env itself. Other mounts of the pod are below it."""
JOB_IMAGE = "/.repro-env/job-image"
"""Where the image that fills `JOB` has its files."""
JOB_SHARED = ".pods"
"""Directory in the directory of runs for what the pods of a job with several nodes share, by the ID of the run."""
JOB_HOME = "/home/repro-env"
"""HOME of a Kubernetes job."""
PYCACHE = "/run/repro-env/pycache"
"""PYTHONPYCACHEPREFIX of every run: the bytecode of the image, read-only, so that no `__pycache__` is in the outputs."""
ISOLATED = ("-I", "-S", "-B", "-X", f"pycache_prefix={PYCACHE}")
"""Options of the image's Python for `guest/init.py`: nothing of the user's is imported, and no module is compiled again."""
VARIABLES = "variables"
"""File in `REPORTS` with the run's own variables, for a Python that was started without them and whose ancestors have ended."""
COMPILED = "/.repro-env/bytecode"
"""Where the image's interpreter writes the bytecode of modules."""
LAYER = "/.repro-env/layer"
"""Where it sees a layer whose modules it compiles and which is not a part of its own image."""
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


CONTAINER_HOME = "/tmp"  # noqa: S108
"""HOME in a container that repro-env did not start: every user may write there, even if the root is read-only."""
CONTAINER_USER = "user"
"""USER in such a container: Python's `getpass.getuser` (which torch.compile calls) fails for a UID that passwd does not list."""


def is_below(path: str, *directories: str) -> bool:
    """Whether a path is one of these directories, or below one of them."""
    return any(path == directory or path.startswith(directory.rstrip("/") + "/") for directory in directories)


def root_of(layout: Layout) -> str:
    """Return where the image holds the tree of a layout: at its own prefix, or at `ENVIRONMENT` if it can be moved."""
    return (layout.real or layout.prefix) if layout.in_place else ENVIRONMENT


def inside(absolute: str) -> str:
    """Return an absolute path relative to the image's root, as entries have it."""
    return absolute.lstrip("/")
