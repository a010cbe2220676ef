"""A run in its stages: what it starts from (`Start`, which is recorded, and `Request`, which is not), what is started (`Launch`), how
it ended (`Outcome`), and the record of its end (`End`)."""

from __future__ import annotations

import shlex
from typing import Literal

from msgspec import field

from repro_env.schema.artifact import Size
from repro_env.schema.codec import Frozen
from repro_env.schema.environment import Variable
from repro_env.schema.runners import TRAITS, Isolation, RunnerName, Traits
from repro_env.schema.spec import Seed
from repro_env.schema.text import AbsPath, Digest, EnvName, FilePath, Line, RelPath, Word

Mode = Literal["off", "warn", "strict"]
"""How libraries choose between fast and deterministic code. `off`: by default. `warn`: use deterministic code, and record
operations that have none. `strict`: such operations are errors."""
Ranks = Literal["each", "same"]
"""Whether each rank of a distributed run has its own random streams, or all use those of rank 0."""
Ids = Literal["system", "seeded"]
"""Whether `os.urandom`, `secrets`, `uuid` and the names of `tempfile` use the system's randomness or the run's seed."""

StreamKind = Literal["terminal", "pipe", "file", "null"]
"""`pipe`: also a socket. `null`: /dev/null or another device, and a stream that the caller had closed."""


class StandardStreams(Frozen, frozen=True, kw_only=True):
    """How the standard streams of a run are connected, which its command can see."""

    stdin: StreamKind
    stdout: StreamKind
    stderr: StreamKind
    joined: bool = False
    """Whether stdout and stderr are the same file or pipe, so that they have one log."""
    has_input: bool = False
    """Whether standard input is a pipe or file that was not at its end when the run started. Records do not have its content."""
    rows: int = 0
    columns: int = 0
    """The size of the terminal at the start; 0 if it is not known. Later changes are not recorded."""
    typed: bool = False
    """In a repetition: whether something was typed in the recorded run. Then each read of the terminal finds its end."""
    variables: tuple[tuple[Literal["COLUMNS", "LINES"], int], ...] = ()
    """Those that the host runner passed to the command. In an image, no variable has the size."""


class Mount(Frozen, frozen=True, kw_only=True):
    """A host path that is mounted in the run. The user chooses it, never a spec; `git` is the repository of the source."""

    kind: Literal["data", "checkpoints", "git"]
    """Only `checkpoints` is writable."""
    source: AbsPath
    """On the host, symlinks resolved."""
    target: AbsPath
    """Inside the run."""

    @property
    def read_only(self) -> bool:
        return self.kind != "checkpoints"


class Claim(Frozen, frozen=True, kw_only=True):
    """A directory of a volume that pods mount."""

    kind: Literal["data", "checkpoints"]
    """Only `checkpoints` is writable."""
    name: str
    """Of the claim."""
    path: str
    """In the volume; empty for all of it."""
    target: str
    """The path in the run."""

    @property
    def read_only(self) -> bool:
        return self.kind == "data"


class User(Frozen, frozen=True, kw_only=True):
    """The user that the command runs as, which is the caller. Name and home are written to the run's passwd file."""

    uid: int
    gid: int
    name: Line
    home: AbsPath


class Limits(Frozen, frozen=True, kw_only=True):
    """Limits of a run. 0 means unlimited."""

    cpus: float = 0
    memory: int = 0
    """Bytes, for all processes of the run together."""
    seconds: int = 0
    """The command gets SIGTERM after this time."""
    grace: int = 30
    """Seconds until it gets SIGKILL."""


class HostFile(Frozen, frozen=True, kw_only=True):
    """A file of this machine, and where a run sees it."""

    source: AbsPath
    target: AbsPath


class GpuFact(Frozen, frozen=True, kw_only=True):
    """A GPU that a run could use."""

    name: Line
    """As the driver reports it; the name in the CDI spec if the driver does not list the GPU."""
    driver: Line = ""
    """`nvidia 580.65.06` or `amdgpu 6.12.12`."""
    uuid: Line = ""
    """`schema.fingerprints.digest_of_name` of the UUID, so that records can tell GPUs apart; empty if the driver reports none."""
    mig: tuple[Line, ...] = ()
    """The parts of a partitioned GPU that the run could use: `gpu instance 1, compute instance 0`. Empty for a whole GPU."""


class Gpus(Frozen, frozen=True, kw_only=True):
    """What a run gets of this machine's GPUs. The user's options and this machine's drivers decide it, never a spec."""

    count: int = 0
    """Number of GPUs, or of MIG devices."""
    facts: tuple[GpuFact, ...] = ()
    nodes: tuple[HostFile, ...] = ()
    """Device files, below `/dev` in the run. With a network, those of InfiniBand too (`sandbox.fabric`)."""
    files: tuple[HostFile, ...] = ()
    """Libraries and programs of the driver. They are mounted read-only."""
    env: tuple[Variable, ...] = ()
    """Variables of the CDI spec. Those of the image and of the user come first."""
    method: Line = ""
    """How the files were found."""


class Member(Frozen, frozen=True, kw_only=True):
    """A process of `exec` that shares its run with others: a task of a Slurm step, or a process with the ID of the run."""

    rank: int
    size: int
    """The number of processes that share the run."""
    local_rank: int
    node: Line
    """The name of its machine."""
    variables: tuple[Variable, ...] = ()
    """The variables with which the processes find each other, for the command."""


class Request(Frozen, frozen=True, kw_only=True):
    """What a launch needs besides the record of its start: values that records must not have, and paths of this machine."""

    command: tuple[str, ...]
    """As typed, at least one word."""
    mounts: tuple[Mount, ...]
    env: tuple[Variable, ...]
    """Variables of `--env` and `--env-file`. The last value for a name is used."""
    caller: tuple[Variable, ...]
    """The caller's variables that may be passed on: only TERM into an image, all variables on the host."""
    user: User
    threads: int | None = None
    """Requested number of threads of every numeric library; None for the captured settings."""
    network: bool
    gpus: Gpus = Gpus()
    tools: AbsPath
    notes: AbsPath
    resumed: AbsPath | None = None
    member: Member | None = None
    streams: StandardStreams | None = None
    """As in `Launch`."""


class ImageTree(Frozen, frozen=True, kw_only=True):
    """A tree of the image, and the path where it was captured."""

    root: AbsPath
    """Path of the tree in the image."""
    target: AbsPath


class Launch(Frozen, frozen=True, kw_only=True):
    """All parameters of a run. This is plain data, so that runners can be tested with any value."""

    run_id: Line
    image: Digest
    layers: tuple[Digest, ...]
    """Diff IDs, from the lowest layer to the highest."""
    prefix: AbsPath
    """The captured environment prefix."""
    trees: tuple[ImageTree, ...]
    """Trees of the image that must appear at another path, or that the workspace would hide."""
    argv: tuple[str, ...]
    """argv[0] is an absolute path, or is searched on PATH in the run."""
    env: tuple[Variable, ...]
    cwd: AbsPath
    workspace: AbsPath
    """Path of the source in the run. It is writable, with the snapshot as its initial content."""
    snapshot: Digest
    """Diff ID of the source tree, which is unpacked in the store."""
    times: dict[FilePath, int] = field(default_factory=dict)
    """As in `SourceFact`."""
    mounts: tuple[Mount, ...]
    """Only the mounts that the user requested."""
    tools: AbsPath
    """Host path of this package, mounted read-only at `oci.paths.SEEDS`. The hooks are in its `guest/seeds`."""
    site: AbsPath | None = None
    """The `python3X.zip` of the interpreter: a path on its `sys.path`, at which the hooks are mounted if the image has nothing there."""
    notes: AbsPath
    """Host path of an empty directory of this run, mounted writable at `oci.paths.NOTES`. The hooks append to files in it."""
    user: User
    hostname: Line = "repro-env"
    network: bool = False
    gpus: Gpus = Gpus()
    resumed: AbsPath | None = None
    """Host path of the directory of another run, whose outputs are there when the command starts (`exec --resume`)."""
    member: Member | None = None
    """None for a run of one process, which may start others, as torchrun does."""
    limits: Limits = Limits()
    streams: StandardStreams | None = None
    """The streams of the run that is repeated; None for streams like those of the caller."""
    fixed_addresses: bool = False
    """Disable address space randomization, so that sets of objects that are hashed by address keep their order."""


class Outcome(Frozen, frozen=True, kw_only=True):
    """How the command ended."""

    exit_code: int
    """The exit status of the command, or 128 + signal if a signal ended it."""
    signal: int
    """The signal that ended the command, or 0."""
    interrupted: int = 0
    """The first signal that was sent to the run from outside and passed on to the command, or 0. The command may handle it."""
    out_of_memory: bool
    isolation: Isolation
    methods: tuple[Line, ...]
    """The methods that the runner used, including fallbacks, e.g. `root: overlay`."""
    timed_out: bool = False
    """Whether the command reached its time limit. It may have ended with any exit code after SIGTERM."""

    @property
    def status(self) -> int:
        """The exit code of `exec`: that of the command, or 124 (as of timeout(1)) if it reached its time limit."""
        return 124 if self.timed_out else self.exit_code


class SourceFact(Frozen, frozen=True, kw_only=True):
    """The source of a run."""

    path: AbsPath
    """Path of the source in the run."""
    digest: Digest
    directory: AbsPath | None
    """Path of the source on the host; None if the captured files were used (`--frozen`)."""
    differs: tuple[Line, ...]
    """Differences from the capture, sorted by path: `+ path`, `- path`, `~ path`."""
    ignored: tuple[Line, ...] = ()
    """Sorted git-ignored files and directories that were in the run as data."""
    with_ignored: Digest | None = None
    """The tree of the code and of `ignored`; None without them."""
    restored: tuple[Line, ...] = ()
    """Sorted git-ignored files that were missing in the directory and were taken from the capture."""
    not_in_run: dict[AbsPath, Line] = field(default_factory=dict)
    """What the directory has and the run does not, unless it is mounted: path in the run -> what it is. Git-ignored paths that are
    too large or private, and targets of symlinks."""
    times: dict[FilePath, int] = field(default_factory=dict)
    """When each file and directory in the project was last modified, in nanoseconds since 1970. No digest depends on it. For a
    resumed run, the outputs that it started with are included."""

    @property
    def tree_in_run(self) -> str:
        """The digest of the source tree in the run."""
        return self.with_ignored or self.digest

    @property
    def trees(self) -> tuple[str, ...]:
        """The digests of all trees: the code, and the source tree in the run."""
        return tuple(dict.fromkeys((self.digest, self.tree_in_run)))


class DataFact(Frozen, frozen=True, kw_only=True):
    """Data or a checkpoint directory of a run."""

    source: AbsPath
    target: AbsPath
    kind: Literal["data", "checkpoints"]
    digest: Digest | None
    """None for checkpoints, because they change during the run."""


class Parent(Frozen, frozen=True, kw_only=True):
    """A run whose outputs this run uses."""

    id: Line
    record: Digest | None
    """sha256 of the parent's `end.json`; None if it does not exist or was not found."""
    how: Literal["named", "data", "checkpoints", "outputs", "resumed"]
    """`named`: by `--parent`. `data`, `checkpoints`: its outputs, or copies of them, are mounted. `outputs`: the run
    started with copies of all of them (`exec --resume`). `resumed`: `repro_env.checkpoint` resumed from one of its checkpoints."""
    path: Line = ""
    """The used path, relative to the parent's outputs (empty for all of them); or the path of the checkpoint in the run."""
    sha256: Digest | None = None
    """Of the checkpoint's manifest, or of the file at `path` if a copy of a single file is mounted."""
    step: int | None = None
    """Step of the checkpoint."""


class Parameter(Frozen, frozen=True, kw_only=True):
    """A value of a resolved configuration, with its dotted name."""

    name: Line
    value: Line
    file: FilePath
    """The output file that contains it."""


class Job(Frozen, frozen=True, kw_only=True):
    """The job of a scheduler in which a run was started."""

    engine: Line
    """As in `launch.engines`."""
    id: Line
    node: Line
    """The name of the node where the command ran."""
    restarts: int = 0
    """How often the job was queued again before."""
    template: Digest | None = None
    """sha256 of the site's template of the job (`exec --job-template`)."""


class Start(Frozen, frozen=True, kw_only=True):
    """The record of a run's start. It is written before the command starts, and never changed."""

    schema: Literal["repro-env/run-start/1"]
    id: Line
    """A UUIDv7, so that ids sort by time."""
    started: Line
    """UTC, ISO 8601 with milliseconds."""
    spec: Digest
    """The spec digest, that is, the digest of its identity."""
    image: Digest
    runner: RunnerName
    command: tuple[Line, ...]
    cwd: AbsPath
    seed: Seed
    source: SourceFact
    data: tuple[DataFact, ...]
    env_names: tuple[EnvName, ...]
    """Sorted names of the variables that were set for the run. A value may be a secret, so it is not recorded."""
    python_path: tuple[AbsPath, ...] = ()
    """Directories of the source that are in the caller's PYTHONPATH, at their paths in the run."""
    git: Digest | None = None
    """Diff ID of the mounted Git directory without its objects; None without a repository."""
    host_env: tuple[EnvName, ...] = ()
    """Sorted names of the caller's variables that the host runner passed to the command, without those of the spec and of
    the login session."""
    network: bool
    host: tuple[Line, ...]
    """Kernel, CPU and cores, one fact per line."""
    ranks: Ranks = "each"
    determinism: Mode = "off"
    ids: Ids = "system"
    threads: tuple[Variable, ...] = ()
    """The variables that request a number of threads. The effective numbers are in `End.settings`."""
    trace: bool = False
    parents: tuple[Parent, ...] = ()
    resume_of: Line | None = None
    """The id of the run whose outputs were there when the command started (`exec --resume`); None without one."""
    resumes: int = 0
    """How many resumes led to this run. It selects the random streams, so that they do not repeat those of the resumed run."""
    job: Job | None = None
    """None if the run was not started by a scheduler."""
    checkpoints_before: Digest | None = None
    """sha256 of `checkpoints-before.json`, the content of the `--checkpoints` directories; None without `--checkpoints`."""
    gpus: int | Literal["all"] = 0
    """The number of GPUs or MIG devices of the run. `all`, for an unknown number, is only in older records."""
    devices: tuple[GpuFact, ...] = ()
    """The GPUs of the run. Those that a framework used are in `End.settings` and `End.ranks`."""
    limits: Limits = Limits()
    """As requested. What was not enforced is in `Outcome.methods`."""
    spec_file: Digest | None = None
    """sha256 of the spec file, which is stored in `specs/` next to the run directories; None in older records."""
    command_is_exact: bool = True
    """Whether `words`, or else `command`, is exactly the command that ran. False if a secret or an undecodable byte was removed."""
    words: tuple[Word, ...] = ()
    """The command, if it has newlines or control characters, which `command` has as spaces."""
    processes: int = 1
    """The number of processes of `exec` that share the run. The facts of the machine are those of the first one."""
    terminal_type: Line | None = None
    """The TERM that was passed to the command, or empty; it affects the addresses of objects. None in older records."""
    streams: StandardStreams | None = None
    """Those of the first process of the run. None in older records."""
    tool: Line = ""
    """The version of repro-env."""

    @property
    def traits(self) -> Traits:
        """The traits of the runner."""
        return TRAITS[self.runner]

    @property
    def command_line(self) -> str:
        """The command as one line, quoted for a shell, or for Python if it has newlines or control characters."""
        return " ".join(map(repr, self.words)) if self.words else shlex.join(self.command)


class Output(Frozen, frozen=True, kw_only=True):
    """A file that the run wrote."""

    path: FilePath
    """Relative to the project, or absolute for a file outside the project."""
    sha256: Digest
    size: Size


class Seeded(Frozen, frozen=True, kw_only=True):
    """A seed that the script set."""

    library: Line
    what: Line
    """The function, such as `torch.manual_seed`."""
    value: Line
    file: Line
    line: int


UNSEEDED = "unseeded: "
"""The start of the name in `End.system_randomness` of a program or interpreter that no seed reaches (`guest/seeds/_repro_env_starts.py`)."""


class Count(Frozen, frozen=True, kw_only=True):
    """How often an event occurred at a line of the user's code, in all processes together."""

    what: Line
    count: int
    file: Line
    line: int


class RandomIds(Frozen, frozen=True, kw_only=True):
    """Random ids that were drawn at a line of code. Only digests are recorded, because an id may be a secret."""

    what: Line
    """The function, such as `uuid.uuid4`."""
    file: Line
    line: int
    """The line of the user's code, or of the package if no user code was running."""
    ids: tuple[Line, ...]
    """Digests (`schema.fingerprints.digest_of_id`) in the order of the draws; sorted by rank, worker and start if there are several
    processes. For a UUID, a dot and the digest of its first eight digits follow."""


class MachineFacts(Frozen, frozen=True, kw_only=True):
    """Facts of one run and its machine that do not come from its code."""

    host: Line
    """`schema.fingerprints.digest_of_name` of the host name that the command saw; a digest, because host names are private."""
    user: Line
    """The digest of the user name."""
    temporary: Line
    """The directory for temporary files, as the command saw it."""
    home: Line
    """The home directory, as the command saw it."""
    pids: tuple[int, ...] = ()
    """The PIDs of the Python processes, as they saw them, in the order of their start. At most 1,000."""


class Fact(Frozen, frozen=True, kw_only=True):
    """A setting in the script's process when it ended."""

    name: Line
    value: Line


class Rank(Frozen, frozen=True, kw_only=True):
    """A process of a distributed run."""

    rank: int
    size: int
    """World size."""
    backend: Line
    device: Line
    nodes: int = 0
    """The number of nodes according to the launcher; 0 if it is not known."""
    strategy: Line = ""
    """The strategies of PyTorch that the script uses, such as `DDP` or `FSDP`; empty for none of those that are known."""
    accumulation: Line = ""
    """Backward passes per optimizer step, with up to four digits: `4` for gradient accumulation over four batches."""

    @property
    def training(self) -> str:
        """How the training is split between the ranks, in words."""
        nodes = f"{self.nodes} node{'s' * (self.nodes > 1)}" if self.nodes else ""
        passes = (
            f"{self.accumulation} backward pass{'es' * (self.accumulation != '1')} per optimizer step"
            if self.accumulation
            else ""
        )
        return ", ".join(filter(None, (self.strategy, nodes, passes)))


class Process(Frozen, frozen=True, kw_only=True):
    """A process of `exec` that shared the run with others, and the end of its command."""

    rank: int
    local_rank: int
    node: Line
    exit_code: int | None
    """As in `Outcome`; None if the process was killed before it could record it, or could not start its command."""
    signal: int = 0
    seconds: float = 0
    devices: tuple[GpuFact, ...] = ()
    """The GPUs of this process."""


Number = float | Literal["nan", "inf", "-inf"]
"""JSON cannot represent the last three as numbers."""


class Metric(Frozen, frozen=True, kw_only=True):
    """A series of numbers in an output file."""

    name: Line
    file: FilePath
    count: int
    """Number of values, at least 1. `least` and `most` ignore NaN."""
    last: Number
    least: Number
    most: Number


class End(Frozen, frozen=True, kw_only=True):
    """The record of a run's end. It is written when the command has ended, and never changed. Without it, a run was interrupted."""

    schema: Literal["repro-env/run-end/1"]
    id: Line
    ended: Line
    seconds: float
    outcome: Outcome
    outputs: tuple[Output, ...]
    """Sorted by path."""
    special_files: tuple[Line, ...]
    """Outputs that are not regular files, sorted: `<path> -> <target>`, `<path> (why)`."""
    removed: tuple[RelPath, ...]
    """Files of the source that the command deleted."""
    auto_seeded: tuple[Line, ...]
    """Unseeded random generators, which were seeded automatically: `<library> <what> at <file>:<line>`."""
    start: Digest | None = None
    """sha256 of `start.json`, so that a changed start is detected. None in older records."""
    seeded: tuple[Seeded, ...] = ()
    """Seeds that the script set, in the order of their first use."""
    system_randomness: tuple[Count, ...] = ()
    """Draws from the system's randomness (`os.urandom`, `secrets`, `uuid`), which no seed controls; empty with seeded `ids`."""
    random_ids: tuple[RandomIds, ...] = ()
    """At most 10,000 ids, from draws of 16 to 64 bytes and from `uuid.uuid1`."""
    random_ids_incomplete: bool = False
    """Whether the run drew more ids than `random_ids` contains."""
    machine: MachineFacts | None = None
    """None in older records."""
    operations: tuple[Count, ...] = ()
    """Nondeterministic operations that ran because they have no deterministic implementation."""
    settings: tuple[Fact, ...] = ()
    """Sorted by name."""
    ranks: tuple[Rank, ...] = ()
    """Sorted by rank; empty if the run was not distributed."""
    processes: tuple[Process, ...] = ()
    """Sorted by rank; empty for a run of one process. `outcome` is that of all of them together."""
    metrics: tuple[Metric, ...] = ()
    """Sorted by file and name."""
    parameters: tuple[Parameter, ...] = ()
    """Sorted by file and name."""
    unparsed_outputs: tuple[Line, ...] = ()
    """Sorted `<path> (why)` of outputs whose metrics or parameters could not be read completely."""
    trace: tuple[Output, ...] = ()
    """Files in the run's `trace` directory, sorted by path (`exec --trace`)."""
    checkpoints_after: Digest | None = None
    """sha256 of `checkpoints-after.json`; see `Start.checkpoints_before`."""
    console: tuple[Output, ...] = ()
    """Files in the run's directory with what the command printed (`sandbox.streams`), without secrets and limited in size."""
    resumed: tuple[Parent, ...] = ()
    """The checkpoints that the run resumed from."""
