"""The runners of `exec --runner`, and how they differ, as a table. Nothing outside `sandbox` asks for the name of a runner.

A new runner needs a name and a row here, a class in `sandbox`, and a line in `sandbox.runners`, which finds the class.
"""

from __future__ import annotations

from typing import Literal

from repro_env.schema.codec import Frozen

RunnerName = Literal["embedded", "docker", "charliecloud", "apptainer", "host", "pod"]
Isolation = Literal[RunnerName, "none"]
"""`none`: for `host`."""
DEFAULT: RunnerName = "embedded"


class Traits(Frozen, frozen=True, kw_only=True):
    """How a runner differs from the others. Each default is that of most runners."""

    text: str
    """What it does, for the help of `--runner`."""
    is_isolated: bool = True
    """If not, the command has the files, devices and network of this machine."""
    is_live: bool = False
    """It runs the command in the live environment, which is checked for drift from the capture, and not in the image."""
    needs_image: bool = True
    """The image must be in the store of this machine."""
    keeps_images: bool = False
    """The image is also loaded into an engine, which keeps it."""
    mounts_any_layers: bool = False
    """It can run any selection of layers, not only a complete image."""
    has_own_root: bool = True
    """The command has another `/` than this process, in which our tools and reports have fixed paths."""
    moves_mounts: bool = True
    """Data and checkpoints can be mounted at any path."""
    has_own_network: bool = True
    """Without `--network`, the command has no network."""
    passes_environment: bool = False
    """The command gets the caller's environment variables."""
    shares_runs: bool = False
    """Several processes can share a run."""
    starts_in_jobs: bool = False
    """The job of a scheduler can start it on another node, with the image in the store."""
    is_in_container: bool = False
    """This process is already in a container of the image, alone. A job has started it, and users do not choose this runner."""


TRAITS: dict[RunnerName, Traits] = {
    "embedded": Traits(text="run in the image", mounts_any_layers=True, shares_runs=True, starts_in_jobs=True),
    "docker": Traits(text="run in a container of Docker or Podman", keeps_images=True),
    "charliecloud": Traits(text="let ch-run start the image", starts_in_jobs=True),
    "apptainer": Traits(text="let apptainer start the image", starts_in_jobs=True),
    "host": Traits(
        text="run in the live environment, without isolation, with a private copy of the source", is_isolated=False, is_live=True,
        needs_image=False, has_own_root=False, moves_mounts=False, has_own_network=False, passes_environment=True,
    ),
    "pod": Traits(
        text="run in this container, as jobs of Kubernetes do", needs_image=False, has_own_root=False, shares_runs=True,
        is_in_container=True,
    ),
}  # fmt: skip
CHOICES = tuple(name for name in TRAITS if not TRAITS[name].is_in_container)
"""Those that users can choose."""
ISOLATED = tuple(name for name in CHOICES if TRAITS[name].is_isolated)
HELP = ". ".join(f"{name}{' (default)' * (name == DEFAULT)}: {traits.text}" for name, traits in TRAITS.items())
"""What each runner does, for the help of an option."""
