"""Find configuration files in the home directory that affect libraries.

A run has its own home directory. The files found here are stored in the image below `oci.paths.HOME`, where the library
finds them without any variable. Files that only an interactive session reads (`.pdbrc`, `$PYTHONSTARTUP`) are not on the
list, nor are credentials.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import NamedTuple

import msgspec

from repro_env.environment.secrets import scanner
from repro_env.io.files import read_regular
from repro_env.schema import redact

LARGEST = 1_000_000
"""Maximum bytes of one file."""


class Configuration(NamedTuple):
    """The configuration files of one library. The items of a text are separated by white space."""

    library: str
    distributions: str
    """The files are read if one of these is installed."""
    files: str
    """Names or globs, relative to the directory."""
    directories: str
    """Directories in which the library looks. The first whose variable is set is used. A variable may name the file itself."""
    target: str
    """The directory below the home directory that is used if no variable is set; empty for the home directory itself."""


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
    Configuration("PyTensor", "pytensor", ".pytensorrc", "$PYTENSORRC ~", ""),
    Configuration("Astropy", "astropy", "astropy.cfg", "$XDG_CONFIG_HOME/astropy ~/.astropy/config", ".astropy/config"),
    Configuration("ASE", "ase", "config.ini", "$ASE_CONFIG_PATH $XDG_CONFIG_HOME/ase ~/.config/ase", ".config/ase"),
    Configuration("Brian", "brian2", "user_preferences", "~/.brian", ".brian"),
    Configuration("MNE", "mne", "mne-python.json", "~/.mne", ".mne"),
    Configuration("Nipype", "nipype", "nipype.cfg", "$NIPYPE_CONFIG_DIR ~/.nipype", ".nipype"),
    Configuration("yt", "yt", "yt.toml", "$XDG_CONFIG_HOME/yt ~/.config/yt", ".config/yt"),
    Configuration("Intake", "intake", "conf.yaml", "$INTAKE_CONF_DIR ~/.intake", ".intake"),
    Configuration("Open MPI", "mpi4py horovod", "mca-params.conf", "~/.openmpi", ".openmpi"),
)


class HomeFile(msgspec.Struct, frozen=True):
    """A configuration file, and the library that reads it."""

    library: str
    data: bytes


class HomeFiles(msgspec.Struct, frozen=True):
    files: Mapping[str, HomeFile]
    """Path below a run's home directory -> the file."""
    problems: tuple[str, ...]
    """One line for each file that a library reads on this machine but a run will not have."""


def look(installed: AbstractSet[str], environ: Mapping[str, str], *, without: Path) -> HomeFiles:
    """Find the configuration files of these distributions. `without`: the source, whose files are captured with it."""
    files: dict[str, HomeFile] = {}
    problems: list[str] = []
    home = Path(environ.get("HOME") or "/nonexistent")
    for configuration in CONFIGURATIONS:
        if installed.isdisjoint(configuration.distributions.split()):
            continue
        location = _location(configuration, home, environ)
        if location is None:
            continue
        for path in _files(location, configuration.files.split()):
            name = path.relative_to(location).as_posix() if location.is_dir() else configuration.files.split()[0]
            target = f"{configuration.target}/{name}".lstrip("/")
            if path.is_relative_to(without):
                continue
            data, why = _read(path)
            if why or redact.line(target) != target:
                option = f"--data {path}:{home / target}"
                why = why or "its name looks like a secret or is not printable"
                problems.append(
                    redact.line(
                        f"{configuration.library} reads {path}, which was not captured: {why} (pass it with exec {option})"
                    )
                )
            else:
                files.setdefault(target, HomeFile(configuration.library, data))
    return HomeFiles(files, tuple(problems))


def _location(configuration: Configuration, home: Path, environ: Mapping[str, str]) -> Path | None:
    """Return where the library looks on this machine: a directory, or a file that a variable names."""
    for text in configuration.directories.split():
        first, _, path = text.partition("/")
        base = str(home) if first == "~" else environ.get(first[1:], "")
        if base:
            location = Path(base, path)
            return location if location.is_absolute() else None
    return None


def _files(location: Path, names: list[str]) -> list[Path]:
    try:
        if location.is_file():
            return [location]
        return sorted(path for name in names for path in location.glob(name) if path.is_file())
    except OSError:
        return []


def _read(path: Path) -> tuple[bytes, str]:
    """Return the bytes of a file, and why it cannot be captured. Symlinks are followed, since the user made them."""
    try:
        data = read_regular(Path(os.path.realpath(path)), LARGEST)
    except OSError as error:
        return b"", f"it cannot be read: {error.strerror}"
    matches = scanner.in_chunks([data], str(path))
    return (b"", f"line {matches[0][0]} looks like a secret ({matches[0][1]})") if matches else (data, "")
