"""What a builder is: it plans, changing nothing, and it makes the layers of a spec's image."""

from __future__ import annotations

from typing import Literal, Protocol

from repro_env.model.artifact import Size
from repro_env.model.codec import Frozen
from repro_env.model.talk import Tell
from repro_env.model.text import Line

Origin = Literal["layer", "blob", "live", "uv", "bundled", "url", "index", "registry", "output", "nowhere"]
"""Where the bytes of an artifact come from, nearest first.

`layer`: unpacked in the store already. `blob`: the wheel is in the store. `live`: installed files of this
machine, each proven by its sha256. `uv`: uv's cache of unpacked wheels, proven likewise. `bundled`: a blob
beside the spec. `url`: a hint of the spec. `index`: an index configured on this machine.
`registry`: where the spec was pushed to, or opened from; a layer whose wheels are nowhere else comes whole.
`output`: already where the image is sent to. `nowhere`: only of a source, which is no part of the image.
"""


class Item(Frozen, frozen=True, kw_only=True):
    """One artifact of the plan."""

    what: Line
    """`name==version` of a distribution, or `base`, `interpreter`, `overlay`, `source`."""
    origin: Origin
    where: Line
    """Path or URL (redacted); empty for `layer`."""
    size: Size
    """Of the artifact, in bytes."""


class Plan(Frozen, frozen=True, kw_only=True):
    """What a build would do."""

    items: tuple[Item, ...]
    """Every artifact, in the order of the layers."""
    fetch: Size
    """Bytes to fetch over the network."""
    write: Size
    """Bytes that the store grows by, in whole blocks of the file system."""
    files: Size
    """Files and folders that the store grows by."""
    exact: bool
    """False when wheels have to be fetched before it is known what they unpack to: then all three are lower bounds."""


class Built(Frozen, frozen=True, kw_only=True):
    """What a build did."""

    diff_ids: tuple[Line, ...]
    """Of the image's layers, lowest first; all of them are in the store."""
    fetched: Size
    written: Size


class Builder(Protocol):
    """Makes the layers of one spec in a store."""

    def plan(self, *, ask: bool) -> Plan:
        """Find everything. `ask`: also ask the servers whether they have it. Raises `ArtifactError` for what is nowhere."""
        ...

    def build(self, tell: Tell) -> Built:
        """Make every layer, each checked against its diff ID. Killed and started again, it goes on from what is there."""
        ...
