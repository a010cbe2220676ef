"""Configuration files in the home directory that change what libraries do: a list of them, and those that exist.

A run has a home directory of its own. What is found here is held in the image below `image.layout.HOME`, and every run
sees it where the library looks without any variable. Files that only an interactive session reads (`.pdbrc`,
`$PYTHONSTARTUP`) are not on the list, nor are credentials.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import NamedTuple

import msgspec

from repro_env.capture import secrets
from repro_env.io.files import read_regular
from repro_env.model import redact

LARGEST = 1_000_000
"""Bytes of one file."""


class Configuration(NamedTuple):
    """The files of one library. Names and folders are separated by white space."""

    library: str
    distributions: str
    """The files are read if one of these is installed."""
    files: str
    """Names or globs, relative to the folder."""
    folders: str
    """Where the library looks, in order: the first one whose variable is set decides. A variable may name the file itself."""
    target: str
    """The folder below the home directory in which it looks when no variable is set; empty for that directory itself."""


CONFIGURATIONS = (
    Configuration("Keras", "keras tensorflow tf-keras", "keras.json", "$KERAS_HOME ~/.keras", ".keras"),
    Configuration(
        "Matplotlib",
        "matplotlib matplotlib-base",
        "matplotlibrc",
        "$MATPLOTLIBRC $MPLCONFIGDIR $XDG_CONFIG_HOME/matplotlib ~/.config/matplotlib",
        ".config/matplotlib",
    ),
    Configuration(
        "Matplotlib",
        "matplotlib matplotlib-base",
        "stylelib/*.mplstyle",
        "$MPLCONFIGDIR $XDG_CONFIG_HOME/matplotlib ~/.config/matplotlib",
        ".config/matplotlib",
    ),
    Configuration(
        "Accelerate",
        "accelerate",
        "default_config.yaml default_config.yml default_config.json",
        "$HF_HOME/accelerate $XDG_CACHE_HOME/huggingface/accelerate ~/.cache/huggingface/accelerate",
        ".cache/huggingface/accelerate",
    ),
    Configuration("Dask", "dask dask-core", "*.yaml *.yml *.json", "$DASK_CONFIG ~/.config/dask", ".config/dask"),
    Configuration(
        "IPython",
        "ipython ipykernel",
        "profile_default/*_config.py profile_default/*_config.json profile_default/startup/*.py profile_default/startup/*.ipy",
        "$IPYTHONDIR ~/.ipython",
        ".ipython",
    ),
    Configuration(
        "nbconvert",
        "nbconvert",
        "jupyter_nbconvert_config.py jupyter_nbconvert_config.json",
        "$JUPYTER_CONFIG_DIR ~/.jupyter",
        ".jupyter",
    ),
    Configuration("NCCL", "torch jax tensorflow cupy", ".nccl.conf", "$NCCL_CONF_FILE ~", ""),
    Configuration("Theano", "theano theano-pymc", ".theanorc", "$THEANORC ~", ""),
    Configuration("PyTensor", "pytensor", ".pytensorrc", "$PYTENSORRC ~", ""),
    Configuration("Aesara", "aesara", ".aesararc", "$AESARARC ~", ""),
    Configuration("Astropy", "astropy", "astropy.cfg", "$XDG_CONFIG_HOME/astropy ~/.astropy/config", ".astropy/config"),
    Configuration("ASE", "ase", "config.ini", "$ASE_CONFIG_PATH $XDG_CONFIG_HOME/ase ~/.config/ase", ".config/ase"),
    Configuration("Brian", "brian2", "user_preferences", "~/.brian", ".brian"),
    Configuration("MNE", "mne", "mne-python.json", "~/.mne", ".mne"),
    Configuration("Nipype", "nipype", "nipype.cfg", "$NIPYPE_CONFIG_DIR ~/.nipype", ".nipype"),
    Configuration("yt", "yt", "yt.toml", "$XDG_CONFIG_HOME/yt ~/.config/yt", ".config/yt"),
    Configuration("Intake", "intake", "conf.yaml", "$INTAKE_CONF_DIR ~/.intake", ".intake"),
    Configuration("Open MPI", "mpi4py horovod", "mca-params.conf", "~/.openmpi", ".openmpi"),
)


class Held(msgspec.Struct, frozen=True):
    """One file, and the library that reads it."""

    library: str
    data: bytes


class HomeFiles(msgspec.Struct, frozen=True):
    held: Mapping[str, Held]
    """By the path below a run's home directory."""
    problems: tuple[str, ...]
    """One line for each file that a library reads here but a run will not have."""


def look(installed: AbstractSet[str], environ: Mapping[str, str], *, without: Path) -> HomeFiles:
    """The files on the list for these distributions. Files below `without`, the source, are skipped: the source brings them."""
    held: dict[str, Held] = {}
    problems: list[str] = []
    home = Path(environ.get("HOME") or "/nonexistent")
    for one in CONFIGURATIONS:
        folder = _folder(one, home, environ) if not installed.isdisjoint(one.distributions.split()) else None
        if folder is None:
            continue
        for path in _files(folder, one.files.split()):
            name = path.name if folder.is_dir() else one.files.split()[0]
            below = path.relative_to(folder).as_posix() if folder.is_dir() else name
            target = f"{one.target}/{below}".lstrip("/")
            if path.is_relative_to(without):
                continue
            data, why = _read(path)
            if why or redact.line(target) != target:
                option = f"--data {path}:{home / target}"
                why = why or "its name looks like a secret or is not printable"
                problems.append(redact.line(f"{path}, which {one.library} reads, is not held: {why} (exec {option})"))
            else:
                held.setdefault(target, Held(one.library, data))
    return HomeFiles(held, tuple(problems))


def _folder(one: Configuration, home: Path, environ: Mapping[str, str]) -> Path | None:
    """Where the library looks on this machine: a directory, or a file that a variable names."""
    for text in one.folders.split():
        first, _, rest = text.partition("/")
        base = str(home) if first == "~" else environ.get(first[1:], "")
        if base:
            folder = Path(base, rest)
            return folder if folder.is_absolute() else None
    return None


def _files(folder: Path, names: list[str]) -> list[Path]:
    try:
        if folder.is_file():
            return [folder]
        return sorted(path for name in names for path in folder.glob(name) if path.is_file())
    except OSError:
        return []


def _read(path: Path) -> tuple[bytes, str]:
    """The bytes, and why they cannot be held; a symlink of the user's own is followed."""
    try:
        data = read_regular(Path(os.path.realpath(path)), LARGEST)
    except OSError as error:
        return b"", f"it cannot be read: {error.strerror}"
    found = secrets.in_chunks([data], str(path))
    return (b"", f"line {found[0][0]} looks like a secret ({found[0][1]})") if found else (data, "")
