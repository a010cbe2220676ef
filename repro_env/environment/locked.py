"""A locked environment: its packages, its wheels and all its other files. Nothing is written yet."""

from __future__ import annotations

import msgspec

from repro_env.environment.conda import identification
from repro_env.environment.live import LiveEnvironment
from repro_env.environment.python.distributions import InstalledDistribution
from repro_env.environment.python.sites import Site, list_files, with_prefix
from repro_env.environment.system.tree import Tree
from repro_env.environment.wheels import composition
from repro_env.environment.wheels.identification import IdentifiedWheel
from repro_env.oci.entry import Entry
from repro_env.oci.paths import HOME, inside
from repro_env.schema.environment import Carried, Interpretation, Variable, Variables
from repro_env.schema.errors import CaptureError
from repro_env.schema.image import Layer


class LockedEnvironment(msgspec.Struct, frozen=True, kw_only=True):
    facts: Interpretation
    live: LiveEnvironment
    variables: Variables
    activation: tuple[Variable, ...]
    """Variables that activating a conda environment sets."""
    packages: tuple[identification.IdentifiedPackage, ...]
    plain_packages: tuple[Carried, ...]
    """Conda packages without an archive: their files are plain files of the environment."""
    unrelated_directories: tuple[str, ...]
    """Directories in the prefix of a base conda environment that do not belong to it."""
    wheels: tuple[IdentifiedWheel, ...]
    indexes: tuple[str, ...]
    compositions: tuple[composition.Composition, ...]
    """One per site."""
    overlay: Tree | None
    layers: tuple[Layer, ...]
    """The layers of conda packages and distributions."""
    files_read: bool
    """Whether installed files are read after they were hashed, to compute a layer; `check_unchanged` is needed then."""
    python_path: str
    home_files: tuple[Carried, ...]
    """Configuration files of libraries, by path below the home directory."""
    unknown: tuple[str, ...]

    @property
    def installed(self) -> tuple[tuple[Site, InstalledDistribution], ...]:
        """All distributions with their sites."""
        return tuple((site, dist) for site in self.live.sites for dist in site.scanned.distributions)

    @property
    def external(self) -> tuple[Carried, ...]:
        """Directories outside the environment that Python imports from."""
        why = "Python imports from there, outside the environment"
        return tuple(
            Carried(name=str(path.root), version="", why=why, size=sum(file.size for file in path.found))
            for path in self.live.external
        )

    @property
    def link_targets(self) -> tuple[Entry, ...]:
        """The files of the overlay outside the environment that only its symlinks lead to."""
        entries = self.overlay.entries if self.overlay is not None else ()
        roots = [*(site.root for site in self.live.sites), *(inside(str(path.root)) for path in self.live.external), inside(HOME)]
        others = tuple(f"{root}/" for root in roots)
        return tuple(entry for entry in entries if entry.kind == "file" and not entry.path.startswith(others))

    @property
    def edited(self) -> tuple[str, ...]:
        """Files that differ from what their distribution installed."""
        pairs = zip(self.live.sites, self.compositions, strict=True)
        return tuple(line for site, composition in pairs for line in with_prefix(site, composition.edited))


def check_unchanged(locked: LockedEnvironment) -> None:
    """Raise `CaptureError` if a file was changed while the layers were computed, by comparing the files' keys."""
    for site in locked.live.sites:
        files = list_files(locked.facts, site.layout, site.scanned)
        keys_now = {file.path: file.key for file in files if file.kind == "file"}
        keys_before = {file.path: file.key for file in site.found if file.kind == "file"}
        changed = sorted(path for path in keys_now.keys() | keys_before.keys() if keys_now.get(path) != keys_before.get(path))
        if changed:
            raise CaptureError(
                f"this file changed while it was captured ({len(changed)} files in all)",
                where=str(site.prefix / changed[0]),
                hint="wait until nothing is installed or edited in the environment, then capture again",
            )
