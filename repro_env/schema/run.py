"""A run in its stages: what it starts from (`Start`, which is recorded, and `Request`, which is not), what is started (`Launch`), how
it ended (`Outcome`), and the record of its end (`End`)."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Literal

from msgspec import field

from repro_env.schema.artifact import Size
from repro_env.schema.codec import Frozen
from repro_env.schema.environment import Variable
from repro_env.schema.rundirectory import HOSTS, RANKS, REPORTS_FILE
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
    """How the standard streams of a run are connected."""

    stdin: StreamKind
    stdout: StreamKind
    stderr: StreamKind
    joined: bool = False
    """Whether stdout and stderr are the same file or pipe."""
    has_input: bool = False
    """Whether standard input was a pipe or file that was not at its end. Its content is not recorded."""
    rows: int = 0
    columns: int = 0
    """The size of the terminal at the start."""
    typed: bool = False
    """In a repetition: whether something was typed in the recorded run."""
    variables: tuple[tuple[Literal["COLUMNS", "LINES"], int], ...] = ()
    """Those that the host runner passed to the command."""


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
    """As the driver reports it, or else the CDI spec."""
    driver: Line = ""
    """`nvidia 580.65.06` or `amdgpu 6.12.12`."""
    uuid: Line = ""
    """A digest (`schema.fingerprints.digest_of_name`)."""
    mig: tuple[Line, ...] = ()
    """The parts of a partitioned GPU that the run could use: `gpu instance 1, compute instance 0`."""


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
    """A process of `exec`, and its place in its run. It may share the run with others: the tasks of a Slurm step, or the processes
    that have the ID of the run. Without them, it is alone, and its files are in the run's directory itself.
    """

    rank: int = 0
    size: int = 1
    """The number of processes that share the run."""
    local_rank: int = 0
    node: Line = ""
    """The name of its machine; empty if it is alone."""
    variables: tuple[Variable, ...] = ()
    """The variables with which the processes find each other, for the command."""

    @property
    def is_alone(self) -> bool:
        return not self.node

    def host_directory(self, directory: Path) -> Path:
        """The directory, in the run's `directory` or that itself, for what only this machine writes."""
        return directory if self.is_alone else directory / HOSTS / self.node

    def logs_directory(self, directory: Path) -> Path:
        """The directory, in the run's `directory` or that itself, for what the command prints."""
        return directory if self.is_alone else directory / RANKS / str(self.rank)

    @property
    def reports_file(self) -> str:
        """The name of the file with the reports of the hooks. Machines cannot append to one file on a shared file system."""
        return REPORTS_FILE if self.is_alone else f"{self.rank}-{REPORTS_FILE}"


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
    reports: AbsPath
    resumed: AbsPath | None = None
    member: Member = Member()
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
    """The `python3X.zip` of the interpreter: a path on its `sys.path`, at which the hooks are mounted if the image has nothing
    there."""
    reports: AbsPath
    """Host path of an empty directory of this run, mounted writable at `oci.paths.REPORTS`. The hooks append to files in it."""
    user: User
    hostname: Line = "repro-env"
    network: bool = False
    gpus: Gpus = Gpus()
    resumed: AbsPath | None = None
    """Host path of the directory of another run, whose outputs are there when the command starts (`exec --resume`)."""
    member: Member = Member()
    """None for a run of one process, which may start others, as torchrun does."""
    limits: Limits = Limits()
    streams: StandardStreams | None = None
    """The streams of the run that is repeated; None for streams like those of the caller."""
    fixed_addresses: bool = False
    """Disable address space randomization, so that sets of objects that are hashed by address keep their order."""


class Outcome(Frozen, frozen=True, kw_only=True):
    """How the command ended."""

    exit_code: int
    """Of the command, or 128 + signal if a signal ended it."""
    signal: int
    """The one that ended the command, or 0."""
    interrupted: int = 0
    """The first signal from outside that was passed on to the command, or 0. The command may handle it."""
    out_of_memory: bool
    isolation: Isolation
    methods: tuple[Line, ...]
    """What the runner used, including fallbacks, e.g. `root: overlay`."""
    timed_out: bool = False
    """Whether the time limit was reached. The command may have any exit code."""

    @property
    def status(self) -> int:
        """The exit code of `exec`: that of the command, or 124 (as of timeout(1)) if it reached its time limit."""
        return 124 if self.timed_out else self.exit_code


class SourceFact(Frozen, frozen=True, kw_only=True):
    """The source of a run."""

    path: AbsPath
    """In the run."""
    digest: Digest
    directory: AbsPath | None
    """Path on the host; None if the captured files were used (`--frozen`)."""
    differs: tuple[Line, ...]
    """Differences from the capture, sorted by path: `+ path`, `- path`, `~ path`."""
    ignored: tuple[Line, ...] = ()
    """Sorted Git-ignored files and directories that were in the run as data."""
    with_ignored: Digest | None = None
    """The tree of the code and of `ignored`."""
    restored: tuple[Line, ...] = ()
    """Sorted Git-ignored files that were missing and were taken from the capture."""
    not_in_run: dict[AbsPath, Line] = field(default_factory=dict)
    """What the directory has and the run does not: path in the run -> what it is. Git-ignored paths that are too large or
    private, and targets of symlinks."""
    times: dict[FilePath, int] = field(default_factory=dict)
    """When each file and directory in the project, with the outputs of a resumed run, was last modified, in nanoseconds since
    1970. No digest depends on it."""

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
    """None for checkpoints, which change during the run."""


class Parent(Frozen, frozen=True, kw_only=True):
    """A run whose outputs this run uses."""

    id: Line
    record: Digest | None
    """sha256 of the parent's `end.json`, if found."""
    how: Literal["named", "data", "checkpoints", "outputs", "resumed"]
    """`named`: by `--parent`. `data`, `checkpoints`: its outputs, or copies of them, are mounted. `outputs`: the run
    started with copies of all of them (`exec --resume`). `resumed`: `repro_env.checkpoint` resumed from one of its checkpoints."""
    path: Line = ""
    """Relative to the parent's outputs (empty for all of them); or of the checkpoint in the run."""
    sha256: Digest | None = None
    """Of the checkpoint's manifest, or of the single file at `path`."""
    step: int | None = None
    """Of the checkpoint."""


class Parameter(Frozen, frozen=True, kw_only=True):
    """A value of a configuration, with its dotted name."""

    name: Line
    value: Line
    file: FilePath


class Job(Frozen, frozen=True, kw_only=True):
    """The job of a scheduler in which a run was started."""

    engine: Line
    """As in `launch.engines`."""
    id: Line
    node: Line
    """Where the command ran."""
    restarts: int = 0
    """How often the job was queued again."""
    template: Digest | None = None
    """sha256 of the file of `exec --job-template`."""


class Start(Frozen, frozen=True, kw_only=True):
    """The record of a run's start, written before the command starts."""

    schema: Literal["repro-env/run-start/1"]
    id: Line
    """A UUIDv7."""
    started: Line
    """UTC, ISO 8601 with milliseconds."""
    spec: Digest
    """The spec digest."""
    image: Digest
    runner: RunnerName
    command: tuple[Line, ...]
    cwd: AbsPath
    seed: Seed
    source: SourceFact
    data: tuple[DataFact, ...]
    env_names: tuple[EnvName, ...]
    """Sorted names of the variables that were set for the run. Values, which may be secrets, are not recorded."""
    python_path: tuple[AbsPath, ...] = ()
    """Directories of the source in the caller's PYTHONPATH, at their paths in the run."""
    git: Digest | None = None
    """Diff ID of the mounted Git directory without its objects."""
    host_env: tuple[EnvName, ...] = ()
    """Sorted names of the caller's variables that the host runner passed, without those of the spec and of the login session."""
    network: bool
    host: tuple[Line, ...]
    """Kernel, CPU and cores, one fact per line."""
    ranks: Ranks = "each"
    determinism: Mode = "off"
    ids: Ids = "system"
    threads: tuple[Variable, ...] = ()
    """The variables that request them. The effective numbers are in `End.settings`."""
    trace: bool = False
    parents: tuple[Parent, ...] = ()
    resume_of: Line | None = None
    """The id of the run whose outputs were there when the command started (`exec --resume`)."""
    resumes: int = 0
    """How many resumes led to this run. It selects the random streams."""
    job: Job | None = None
    checkpoints_before: Digest | None = None
    """sha256 of `checkpoints-before.json`, the content of the `--checkpoints` directories."""
    gpus: int | Literal["all"] = 0
    """The number of GPUs or MIG devices. `all` is only in older records."""
    devices: tuple[GpuFact, ...] = ()
    """Those that a framework used are in `End.settings` and `End.ranks`."""
    limits: Limits = Limits()
    """As requested. What was not enforced is in `Outcome.methods`."""
    spec_file: Digest | None = None
    """sha256 of the spec file in `specs/`, next to the run directories."""
    command_is_exact: bool = True
    """False if a secret or an undecodable byte was removed from the command."""
    words: tuple[Word, ...] = ()
    """The command, if it has newlines or control characters, which `command` has as spaces."""
    processes: int = 1
    """Of `exec`, which share the run. The facts of the machine are those of the first one."""
    terminal_type: Line | None = None
    """The TERM that was passed to the command; it affects the addresses of objects."""
    streams: StandardStreams | None = None
    """Those of the first process of the run."""
    tool: Line = ""
    """The version of repro-env."""
    defaults: tuple[Line, ...] = ()
    """The options that the project's `pyproject.toml` set, such as `seed 7`."""

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
    purpose: Line = ""
    """The argument of `repro_env.seed`, such as `split`."""
    file: Line
    line: int

    @property
    def shown(self) -> str:
        return f"{self.purpose}: {self.value}" if self.purpose else self.value


UNSEEDED = "unseeded: "
"""The start of the name in `End.system_randomness` of a program or interpreter that no seed reaches
(`guest/seeds/_repro_env_starts.py`)."""


class Count(Frozen, frozen=True, kw_only=True):
    """How often something occurred at a line of the user's code, in all processes."""

    what: Line
    count: int
    file: Line
    line: int


class RandomIds(Frozen, frozen=True, kw_only=True):
    """Digests of random ids that were drawn at a line of code."""

    what: Line
    """The function, such as `uuid.uuid4`."""
    file: Line
    line: int
    """Of the user's code, or else of the package."""
    ids: tuple[Line, ...]
    """`schema.fingerprints.digest_of_id`, by rank, worker and start, in the order of the draws. For a UUID, a dot and the
    digest of its first eight digits follow."""


class MachineFacts(Frozen, frozen=True, kw_only=True):
    """What identifies a run and its machine."""

    host: Line
    """The digest of the host name that the command saw (`schema.fingerprints.digest_of_name`)."""
    user: Line
    """The digest of the user name."""
    temporary: Line
    """The directory for temporary files in the run."""
    home: Line
    """The home directory in the run."""
    pids: tuple[int, ...] = ()
    """Of the Python processes, in the order of their start. At most 1,000."""


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
    """According to the launcher."""
    strategy: Line = ""
    """Of PyTorch, such as `DDP` or `FSDP`."""
    accumulation: Line = ""
    """Backward passes per optimizer step, such as `4`."""

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
    """A process of `exec` that shared the run with others."""

    rank: int
    local_rank: int
    node: Line
    exit_code: int | None
    """As in `Outcome`; None if the process was killed, or could not start its command."""
    signal: int = 0
    seconds: float = 0
    devices: tuple[GpuFact, ...] = ()


Number = float | Literal["nan", "inf", "-inf"]
"""JSON cannot represent the last three as numbers."""


class Metric(Frozen, frozen=True, kw_only=True):
    """A series of numbers in an output file."""

    name: Line
    file: FilePath
    count: int
    """Of values. `least` and `most` ignore NaN."""
    last: Number
    least: Number
    most: Number


class End(Frozen, frozen=True, kw_only=True):
    """The record of a run's end. Without it, a run was interrupted."""

    schema: Literal["repro-env/run-end/1"]
    id: Line
    ended: Line
    seconds: float
    outcome: Outcome
    outputs: tuple[Output, ...]
    """Sorted by path."""
    special_files: tuple[Line, ...]
    """Other outputs than files, sorted: `<path> -> <target>`, `<path> (why)`."""
    removed: tuple[RelPath, ...]
    """Files of the source that the command deleted."""
    auto_seeded: tuple[Line, ...]
    """Random generators that were seeded automatically: `<library> <what> at <file>:<line>`."""
    start: Digest | None = None
    """sha256 of `start.json`."""
    seeded: tuple[Seeded, ...] = ()
    """Seeds that the script set, in the order of their first use."""
    system_randomness: tuple[Count, ...] = ()
    """Draws from the system's randomness (`os.urandom`, `secrets`, `uuid`); empty with seeded `ids`."""
    random_ids: tuple[RandomIds, ...] = ()
    """At most 10,000 ids, from draws of 16 to 64 bytes and from `uuid.uuid1`."""
    random_ids_incomplete: bool = False
    """Whether the run drew more ids than `random_ids` contains."""
    machine: MachineFacts | None = None
    operations: tuple[Count, ...] = ()
    """Nondeterministic operations that ran because they have no deterministic implementation."""
    settings: tuple[Fact, ...] = ()
    """Sorted by name."""
    ranks: tuple[Rank, ...] = ()
    """Sorted by rank."""
    processes: tuple[Process, ...] = ()
    """Sorted by rank, if there are several. `outcome` is that of all together."""
    metrics: tuple[Metric, ...] = ()
    """Sorted by file and name."""
    parameters: tuple[Parameter, ...] = ()
    """Sorted by file and name."""
    unparsed_outputs: tuple[Line, ...] = ()
    """Sorted `<path> (why)` of outputs whose numbers could not be read completely."""
    trace: tuple[Output, ...] = ()
    """Files of `exec --trace`, sorted by path."""
    checkpoints_after: Digest | None = None
    """sha256 of `checkpoints-after.json`."""
    console: tuple[Output, ...] = ()
    """Files with what the command printed, without secrets and limited in size."""
    resumed: tuple[Parent, ...] = ()
    """The checkpoints that the run resumed from."""
