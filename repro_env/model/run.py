"""A run: asked for (`Request`), fully decided (`Launch`), over (`Outcome`), written down (`Start`, `End`)."""

from __future__ import annotations

from typing import Literal

from repro_env.model.artifact import Size
from repro_env.model.codec import Frozen
from repro_env.model.environment import Variable
from repro_env.model.spec import Seed
from repro_env.model.text import AbsPath, Digest, EnvName, Line, RelPath

RunnerName = Literal["embedded", "docker", "host"]
Isolation = Literal["embedded", "docker", "none"]


class Mount(Frozen, frozen=True, kw_only=True):
    """One host path inside the run. Only ever named by the user, never by a spec."""

    kind: Literal["data", "checkpoints"]
    """`data` is read-only, `checkpoints` is not."""
    source: AbsPath
    """On the host, symlinks resolved."""
    target: AbsPath
    """Inside the run."""

    @property
    def read_only(self) -> bool:
        return self.kind == "data"


class User(Frozen, frozen=True, kw_only=True):
    """Who the command runs as: the caller, by number; name and home go into the run's own passwd."""

    uid: int
    gid: int
    name: Line
    home: AbsPath


class Request(Frozen, frozen=True, kw_only=True):
    """A run as asked for, with all that had to be read from the world: what is decided from it needs no world."""

    run_id: Line
    runner: RunnerName
    command: tuple[str, ...]
    """As typed, at least one word."""
    cwd: AbsPath
    """The working folder; it is there inside."""
    snapshot: Digest
    mounts: tuple[Mount, ...]
    given: tuple[Variable, ...]
    """Variables of `--env` and `--env-file`, the last of a name counts."""
    caller: tuple[Variable, ...]
    """The caller's own variables, as far as they may count: TERM in the image, all of them on the host."""
    user: User
    seed: Seed
    network: bool
    gpus: int | Literal["all"] = 0
    """How many, as the user asked."""
    tools: AbsPath
    notes: AbsPath


class Shown(Frozen, frozen=True, kw_only=True):
    """A tree of the image at the path where it was captured."""

    root: AbsPath
    """Where the image holds it."""
    target: AbsPath


class Launch(Frozen, frozen=True, kw_only=True):
    """A run fully decided; plain data, so that any runner can be tested without running."""

    run_id: Line
    spec: Digest
    image: Digest
    layers: tuple[Digest, ...]
    """Diff IDs, lowest first."""
    prefix: AbsPath
    """The captured environment prefix."""
    trees: tuple[Shown, ...]
    """Trees of the image that have to be shown at another place, or that the workspace would hide."""
    argv: tuple[str, ...]
    """argv[0] is absolute, or a word to be found on PATH inside."""
    env: tuple[Variable, ...]
    cwd: AbsPath
    workspace: AbsPath
    """The captured absolute path of the source; writable, its lower side is the snapshot."""
    snapshot: Digest
    """diff ID of the source tree, unpacked in the store."""
    mounts: tuple[Mount, ...]
    """The user's own; nothing of ours."""
    tools: AbsPath
    """On the host: the folder of seeds and hooks (`inside/seeds`), bound read-only at `image.layout.SEEDS`."""
    notes: AbsPath
    """On the host: an empty folder of this run, bound read-write at `image.layout.NOTES`; the hooks append to files in it."""
    user: User
    hostname: Line
    network: bool
    gpus: int | Literal["all"] = 0
    seed: Seed


class Outcome(Frozen, frozen=True, kw_only=True):
    """What became of the command."""

    exit_code: int
    """The command's own; 128 + signal when a signal ended it."""
    signal: int
    """The signal that ended it, 0 for none."""
    out_of_memory: bool
    isolation: Isolation
    means: tuple[Line, ...]
    """What the runner used, e.g. `root: overlay`, `workspace: copy`. Never silent about a fall-back."""


class GivenVariable(Frozen, frozen=True, kw_only=True):
    """A variable given at run time: by name only, since its value may be a secret."""

    name: EnvName
    how: Literal["value", "host", "file"]


class SourceFact(Frozen, frozen=True, kw_only=True):
    path: AbsPath
    digest: Digest
    frozen: bool
    """The captured source was used (`--frozen`), not the live tree."""
    differs: tuple[Line, ...]
    """`+ path`, `- path`, `~ path` against the capture, sorted by path."""


class DataFact(Frozen, frozen=True, kw_only=True):
    source: AbsPath
    target: AbsPath
    kind: Literal["data", "checkpoints"]
    digest: Digest | None
    """None for checkpoints: they change during the run."""


class Start(Frozen, frozen=True, kw_only=True):
    """Written before the command starts, and never again."""

    schema: Literal["repro-env/run-start/1"]
    id: Line
    """UUIDv7, so ids sort by time."""
    started: Line
    """UTC, ISO 8601 with milliseconds."""
    spec: Digest
    image: Digest
    runner: RunnerName
    command: tuple[Line, ...]
    cwd: AbsPath
    seed: Seed
    source: SourceFact
    data: tuple[DataFact, ...]
    given: tuple[GivenVariable, ...]
    network: bool
    host: tuple[Line, ...]
    """Kernel, CPU and cores, one fact a line."""


class Output(Frozen, frozen=True, kw_only=True):
    path: RelPath
    """Inside the run's files."""
    sha256: Digest
    size: Size


class End(Frozen, frozen=True, kw_only=True):
    """Written when the command is over, and never again. No end means: interrupted."""

    schema: Literal["repro-env/run-end/1"]
    id: Line
    ended: Line
    seconds: float
    outcome: Outcome
    outputs: tuple[Output, ...]
    """Sorted by path."""
    others: tuple[Line, ...]
    """What lies among the outputs and is no plain file: `<path> -> <target>`, `<path> (why)`; sorted."""
    removed: tuple[RelPath, ...]
    """Files of the source that the command deleted."""
    holes: tuple[Line, ...]
    """Random generators that the script left unseeded and we seeded: `<library> <what> at <file>:<line>`."""
