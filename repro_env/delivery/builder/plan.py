"""The plan of a rebuild: where each artifact comes from, and how much is downloaded and written."""

from __future__ import annotations

from typing import Literal

from repro_env.schema.artifact import Size
from repro_env.schema.codec import Frozen
from repro_env.schema.text import Line

Origin = Literal["layer", "blob", "live", "bundled", "url", "index", "registry", "output", "nowhere"]
"""Where the bytes of an artifact come from, nearest first.

- `layer`: a layer that is already unpacked in the store.
- `blob`: a wheel in the store.
- `live`: installed files of this machine, each checked by sha256.
- `bundled`: a blob next to the spec.
- `url`: a URL in the spec's hints.
- `index`: an index configured on this machine.
- `registry`: where the spec was pushed to or opened from. A layer whose wheels are not found is fetched complete.
- `output`: the destination of the image has it already.
- `nowhere`: not found. Only for the source, which is not part of the image.
"""


class Item(Frozen, frozen=True, kw_only=True):
    """One artifact of a plan."""

    what: Line
    """`name==version` of a distribution, or `base`, `interpreter`, `overlay`, `source`."""
    origin: Origin
    where: Line
    """Path or URL without credentials; empty for `layer`."""
    size: Size
    """Size of the artifact in bytes."""


class Plan(Frozen, frozen=True, kw_only=True):
    """What a rebuild would do."""

    items: tuple[Item, ...]
    """Every artifact, in the order of the layers."""
    fetch: Size
    """Bytes to download."""
    write: Size
    """Bytes that are added to the store, in whole blocks of the file system."""
    files: Size
    """Files and directories that are added to the store."""
    exact: bool
    """False if the installed size of a wheel is unknown until it is fetched. Then the three numbers are lower bounds."""
