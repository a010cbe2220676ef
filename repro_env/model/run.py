"""A run: asked for (`Request`), fully decided (`Launch`), over (`Outcome`), written down (`Start`, `End`)."""

from __future__ import annotations

from typing import Literal

from repro_env.model.artifact import Size
from repro_env.model.codec import Frozen
from repro_env.model.environment import Variable
from repro_env.model.spec import Seed
from repro_env.model.text import AbsPath, Digest, EnvName, FilePath, Line, RelPath, Sibling

RunnerName = Literal["embedded", "docker", "host"]
Isolation = Literal["embedded", "docker", "none"]
Mode = Literal["off", "warn", "strict"]
"""What is asked of libraries that can choose between faster and repeatable code: nothing; the repeatable code, and a
record of where there is none; an error there."""
Ranks = Literal["each", "same"]
"""Whether the ranks of a distributed run have random streams of their own, or all have rank 0's."""
Ids = Literal["system", "seeded"]
"""Where `os.urandom`, `secrets`, `uuid` and the names of `tempfile` come from: the system's randomness, or the run's seed."""


class Mount(Frozen, frozen=True, kw_only=True):
    """One host path inside the run. Named by the user, never by a spec; `git` is the repository of the source."""

    kind: Literal["data", "checkpoints", "git"]
    """`checkpoints` alone can be written."""
    source: AbsPath
    """On the host, symlinks resolved."""
    target: AbsPath
    """Inside the run."""

    @property
    def read_only(self) -> bool:
        return self.kind != "checkpoints"


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
    workspace: AbsPath
    """Where the run sees the source: the captured path, and for the host runner the directory itself."""
    snapshot: Digest
    """What the run sees: the code, perhaps with git-ignored data."""
    code: Digest | None = None
    """The code alone; None where that is what the run sees."""
    data: tuple[DataFact, ...] = ()
    siblings: Digest | None = None
    """As of `Launch`."""
    mounts: tuple[Mount, ...]
    given: tuple[Variable, ...]
    """Variables of `--env` and `--env-file`, the last of a name counts."""
    python_path: tuple[AbsPath, ...] = ()
    """Directories of the source that the caller's PYTHONPATH names, as the run sees them."""
    caller: tuple[Variable, ...]
    """The caller's own variables, as far as they may count: TERM in the image, all of them on the host."""
    user: User
    seed: Seed
    ranks: Ranks = "each"
    determinism: Mode = "warn"
    ids: Ids = "system"
    threads: int | None = None
    """Of every numeric library, as the user asked; None for what was captured."""
    trace: int | None = None
    """The weights are hashed every so many steps; 0 for a number found by their cost, None for no trace."""
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
    """Where the run sees the source; writable, its lower side is the snapshot."""
    snapshot: Digest
    """diff ID of the source tree, unpacked in the store."""
    siblings: Digest | None = None
    """diff ID of a tree with directories beside the source, at their absolute paths; the run may write in its own copy of them."""
    mounts: tuple[Mount, ...]
    """The user's own; nothing of ours."""
    tools: AbsPath
    """On the host: this package's folder, bound read-only at `image.layout.SEEDS`; the hooks are in its `inside/seeds`."""
    notes: AbsPath
    """On the host: an empty folder of this run, bound read-write at `image.layout.NOTES`; the hooks append to files in it."""
    user: User
    hostname: Line
    network: bool
    gpus: int | Literal["all"] = 0
    seed: Seed
    fixed_addresses: bool = False
    """Ask the kernel for the same addresses each time: sets of objects that are hashed by address keep their order."""


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
    """Where the run saw it."""
    digest: Digest
    directory: AbsPath | None
    """Where it was on the host; None for the captured files, as with `--frozen`."""
    differs: tuple[Line, ...]
    """`+ path`, `- path`, `~ path` against the capture, sorted by path."""
    ignored: tuple[Line, ...] = ()
    """Git-ignored files and whole directories that the run saw as well: data; sorted."""
    with_ignored: Digest | None = None
    """The tree of the code and of these; None without them."""
    restored: tuple[Line, ...] = ()
    """Git-ignored files that the directory did not have, so that the run saw the captured ones; sorted."""
    siblings: tuple[Sibling, ...] = ()
    """Directories beside the source that the run saw a copy of: data; sorted."""
    siblings_tree: Digest | None = None
    """The tree of these, at their absolute paths; None without them."""

    @property
    def seen(self) -> str:
        """The digest of the tree that the run saw."""
        return self.with_ignored or self.digest

    @property
    def trees(self) -> tuple[str, ...]:
        """The digests of all trees: the code, what the run saw of its directory and beside it."""
        return tuple(dict.fromkeys(filter(None, (self.digest, self.seen, self.siblings_tree))))


class DataFact(Frozen, frozen=True, kw_only=True):
    source: AbsPath
    target: AbsPath
    kind: Literal["data", "checkpoints"]
    digest: Digest | None
    """None for checkpoints: they change during the run."""


class Parent(Frozen, frozen=True, kw_only=True):
    """A run whose outputs this one starts from."""

    id: Line
    record: Digest | None
    """sha256 of the parent's `end.json`; None where it has none, or is not here."""
    how: Literal["named", "data", "checkpoints", "resumed"]
    """`--parent`; outputs of it, or copies of them, are mounted; `repro_env.checkpoint` went on from one of its checkpoints."""
    path: Line = ""
    """What of it: below its files where it is mounted (empty: all), as the checkpoint's reader named it where it resumed."""
    sha256: Digest | None = None
    """Of the checkpoint's manifest; of the file at `path`, where a copy of one file of it is mounted."""
    step: int | None = None
    """Of the checkpoint."""


class RecipeFile(Frozen, frozen=True, kw_only=True):
    """A file that says how to train."""

    path: Line
    sha256: Digest


class Parameter(Frozen, frozen=True, kw_only=True):
    """One value of a resolved configuration, by its dotted name."""

    name: Line
    value: Line
    file: FilePath
    """Of the outputs, the one that it was read from."""


class Start(Frozen, frozen=True, kw_only=True):
    """Written before the command starts, and never again."""

    schema: Literal["repro-env/run-start/1"]
    id: Line
    """UUIDv7, so ids sort by time."""
    started: Line
    """UTC, ISO 8601 with milliseconds."""
    spec: Digest
    """Of its identity, as everywhere."""
    image: Digest
    runner: RunnerName
    command: tuple[Line, ...]
    cwd: AbsPath
    seed: Seed
    source: SourceFact
    data: tuple[DataFact, ...]
    given: tuple[GivenVariable, ...]
    python_path: tuple[AbsPath, ...] = ()
    """As of `Request`."""
    git: Digest | None = None
    """Diff ID of the directory in which git found the repository of the source, without its objects; None if it found none."""
    passed: tuple[EnvName, ...] = ()
    """The caller's own variables that reached the command in the live environment (host runner) and are neither in the
    spec nor the session's; sorted."""
    network: bool
    host: tuple[Line, ...]
    """Kernel, CPU and cores, one fact a line."""
    ranks: Ranks = "each"
    determinism: Mode = "off"
    ids: Ids = "system"
    threads: tuple[Variable, ...] = ()
    """The variables by which threads were asked for; what came of it is in `End.effective`."""
    trace: int | None = None
    recipe: tuple[RecipeFile, ...] = ()
    """Files named with `--recipe`, by the path as typed."""
    parents: tuple[Parent, ...] = ()
    before: Digest | None = None
    """sha256 of `checkpoints-before.json`, what lay in the folders of `--checkpoints`; None for a run without such."""
    gpus: int | Literal["all"] = 0
    """How many were asked for; which there were is in `End.effective`."""
    spec_file: Digest | None = None
    """Of the bytes of the spec's file, kept in `specs/` beside the run's folder; None in records of versions that kept none."""
    exact: bool = True
    """`command` is what was run; not so where a secret, a line end or a control character was taken out of it."""
    term: Line | None = None
    """The caller's TERM, which the command was given: another one, or none, moves its objects. Empty for none; None where
    the record does not say."""
    tool: Line = ""
    """The version of repro-env."""


class Output(Frozen, frozen=True, kw_only=True):
    path: FilePath
    """Relative to the project; absolute for what the run wrote outside it (`catalog.records.place` has the file)."""
    sha256: Digest
    size: Size


class Lost(Frozen, frozen=True, kw_only=True):
    """Files that a run wrote outside its project and that were not kept."""

    files: int
    size: Size
    """Bytes in all."""
    largest: tuple[Line, ...]
    """`<path> (why)`, at most 100, the largest first."""


class Seeded(Frozen, frozen=True, kw_only=True):
    """A seed that the script set itself."""

    library: Line
    what: Line
    """The call, as `torch.manual_seed`."""
    value: Line
    file: Line
    line: int


class Count(Frozen, frozen=True, kw_only=True):
    """How often something happened at one line of the user's code, over all processes."""

    what: Line
    count: int
    file: Line
    line: int


class Drawn(Frozen, frozen=True, kw_only=True):
    """Random ids drawn at one line of code, as digests, because an id may be a secret."""

    what: Line
    """The function, as `uuid.uuid4`."""
    file: Line
    line: int
    """The line of the user's code, or of the package if no user code was running."""
    ids: tuple[Line, ...]
    """Digests (`model.evidence.digest_of_id`) in the order of the draws; sorted by rank, worker and start if there are several
    processes. For a UUID, a dot and the digest of its first eight digits follow."""


class Own(Frozen, frozen=True, kw_only=True):
    """Facts of one run and its machine that do not come from its code."""

    host: Line
    """`model.evidence.digest_of_name` of the host name that the command saw; a digest, because host names are private."""
    user: Line
    """The digest of the user name."""
    temporary: Line
    """The directory for temporary files, as the command saw it."""
    home: Line
    """The home directory, as the command saw it."""
    pids: tuple[int, ...] = ()
    """The PIDs of the Python processes, as they saw them, in the order of their start. At most 1,000."""


class Fact(Frozen, frozen=True, kw_only=True):
    """What was in force in the script's own process when it ended."""

    name: Line
    value: Line


class Rank(Frozen, frozen=True, kw_only=True):
    """One process of a distributed run."""

    rank: int
    size: int
    """World size."""
    backend: Line
    device: Line


Number = float | Literal["nan", "inf", "-inf"]
"""JSON has no name for the last three."""


class Metric(Frozen, frozen=True, kw_only=True):
    """One series of numbers in an output file."""

    name: Line
    file: FilePath
    count: int
    """How many values, at least 1; `least` and `most` are of those that are numbers."""
    last: Number
    least: Number
    most: Number


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
    start: Digest | None = None
    """sha256 of `start.json`: the end vouches for the beginning. None in records of older versions."""
    seeded: tuple[Seeded, ...] = ()
    """What the script seeded itself, in the order of the first time."""
    entropy: tuple[Count, ...] = ()
    """Draws from the system's randomness (`os.urandom`, `secrets`, `uuid`), which no seed controls; empty with seeded `ids`."""
    drawn: tuple[Drawn, ...] = ()
    """At most 10,000 ids, of draws of 16 to 64 bytes and of `uuid.uuid1`."""
    drawn_more: bool = False
    """Whether more ids were drawn than `drawn` holds."""
    own: Own | None = None
    """None in records of older versions."""
    operations: tuple[Count, ...] = ()
    """Operations without a deterministic implementation that ran."""
    effective: tuple[Fact, ...] = ()
    """Sorted by name."""
    world: tuple[Rank, ...] = ()
    """Sorted by rank; empty for a run of one process."""
    metrics: tuple[Metric, ...] = ()
    """Sorted by file and name."""
    parameters: tuple[Parameter, ...] = ()
    """Sorted by file and name."""
    unread: tuple[Line, ...] = ()
    """`<path> (why)`: outputs in which metrics or parameters were looked for, and not read, or not to their end; sorted."""
    trace: tuple[Output, ...] = ()
    """Of the run's `trace` folder, sorted by path (`exec --trace`)."""
    after: Digest | None = None
    """sha256 of `checkpoints-after.json`, as `Start.before`."""
    compiled: tuple[RelPath, ...] = ()
    """Modules of the image that the command had to compile although bytecode was kept of others, by the path of their
    bytecode below PYTHONPYCACHEPREFIX; sorted. Without any kept, that is all of them, and none is named."""
    console: tuple[Output, ...] = ()
    """What the command printed, as files of the run's folder (`run.console`): without secrets and up to a bound."""
    lost: Lost | None = None
    resumed: tuple[Parent, ...] = ()
    """Known only when the run is over: the checkpoints that it went on from."""
