"""Canonical rule 1 for this package: `guest.wheelrule` with the errors and types of an image.

The rule is a pure function of facts from a wheel's central directory and a few of its small members, so it needs neither the
complete file nor an installation. Capture compares the installed files with its result, and rebuild unpacks it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import msgspec

from repro_env.guest import wheelrule
from repro_env.oci.entry import Entry
from repro_env.oci.paths import inside, root_of
from repro_env.schema.artifact import Wheel
from repro_env.schema.environment import Layout
from repro_env.schema.errors import ArtifactError

P = ParamSpec("P")
T = TypeVar("T")
File = wheelrule.File
Facts = wheelrule.Facts
EntryPoint = wheelrule.EntryPoint
Row = wheelrule.Row


class Installed(msgspec.Struct, frozen=True):
    """The files that a wheel or conda package installs, relative to the prefix, and the source of their content."""

    root: str
    """Path of the prefix relative to the image's root: `opt/env`."""
    entries: tuple[Entry, ...]
    """Sorted by the bytes of the path. Directories only of conda packages."""
    members: dict[str, str]
    """Path -> member name, for files that are copied unchanged."""
    literals: dict[str, bytes]
    """Path -> content, for files that the rule writes: scripts, RECORD, INSTALLER."""
    points: dict[str, EntryPoint]
    """Path -> entry point, for generated scripts."""
    bodies: dict[str, bytes]
    """Path -> the content in the wheel, for `.data/scripts` files."""

    @property
    def size(self) -> int:
        """Total size of the files in bytes."""
        return sum(entry.size for entry in self.entries)


FormOf = Callable[[Wheel], Installed]
"""Returns the installed form of a wheel at its layout."""


def _raise_artifact_errors(function: Callable[P, T]) -> Callable[P, T]:
    """Return the function, which raises `ArtifactError` for an invalid wheel."""

    @functools.wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except wheelrule.RuleError as error:
            raise ArtifactError(error.what, where=error.where) from None

    return wrapper


read_facts = _raise_artifact_errors(wheelrule.read_facts)
name_and_version = _raise_artifact_errors(wheelrule.name_and_version)
dist_info = _raise_artifact_errors(wheelrule.dist_info)
read_record = _raise_artifact_errors(wheelrule.read_record)
read_entry_points = _raise_artifact_errors(wheelrule.read_entry_points)


@_raise_artifact_errors
def canonical(facts: Facts, layout: Layout, *, name: str) -> Installed:
    """Return what the wheel installs at `layout`. `name` is the normalized name of the distribution.

    Raises `ArtifactError` if the wheel contradicts itself.
    """
    files = wheelrule.installed_files(facts, layout, name)
    return Installed(
        root=inside(root_of(layout)),
        entries=tuple(Entry(file.path, "file", file.executable, file.size, file.sha256) for file in files),
        members={file.path: file.member for file in files if file.member},
        literals={file.path: file.data for file in files if not file.member},
        points={file.path: file.point for file in files if file.point},
        bodies={file.path: file.body for file in files if file.body is not None},
    )
