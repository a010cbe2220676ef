"""`repro-env exec`: our options, then the command, untouched.

The words are split here and not by the option parser of the other commands: nothing of the command may be taken
for ours, `--help` and `--` included, and a run should not wait for a parser to be imported.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import msgspec

from repro_env.cli import say
from repro_env.model.errors import RecordError, UsageError

if TYPE_CHECKING:
    from repro_env.flows.asked import Asked
    from repro_env.flows.execute import Done
    from repro_env.model.run import End, Ids, Lost, Mode, Ranks, RunnerName
    from repro_env.model.talk import Tell
    from repro_env.run.outside import Bound

HELP = """\
Usage: repro-env exec [OPTIONS] [--] COMMAND [ARGS]...

Run a command in the captured environment, and record the run.

  repro-env exec train.py --lr 0.1          the image's python runs the script
  repro-env exec -m pkg.train               a module; -c CODE works too
  repro-env exec torchrun train.py          any other word is found on the image's PATH
  repro-env exec --seed 7 -- train.py       our options stand before the command

The options of repro-env end at the first word that is not one of them. Everything after it is passed to the command,
including --seed, --help and --. A script runs in a copy of your source. Files that it writes are kept in the directory
of the run, runs/<UTC>-<script>-<id>/files, and `repro-env runs get latest` copies them to you.

Options:
  --spec SPEC                  Use this spec: a file, its directory, a packed FILE, or a registry's REF. Default: the nearest
                               repro/spec.json upwards.
  --data SRC[:DST]             Mount a file or directory read-only; DST defaults to the same absolute path. Repeatable. Data named
                               at capture is mounted by itself when it is unchanged and where it was.
  --checkpoints SRC[:DST]      Mount a persistent, writable directory; created if missing. Repeatable.
  --data-changed               Run even if data named at capture is missing or changed; changed data needs --data as well.
  --seed N|random              Set the master seed, 0 to 4294967295. Default: the seed of the capture.
  --ranks each|same            Give each rank of a distributed run its own random streams (default), or rank 0's.
  --determinism MODE           warn (default): use deterministic implementations where libraries have them, and record where
                               they have none; strict: fail there; off: leave libraries as they are.
  --ids system|seeded          seeded: draw uuid4, secrets, os.urandom and the names of tempfile from the seed. They can be
                               predicted then: not for secrets. Default: system, or seeded with --determinism strict.
  --threads N                  Set the threads of numeric libraries. Default: as many as at capture.
  --trace[=K]                  Record each training step: its loss, a summary of the weights, and their sha256 every K steps
                               (default: as often as a small share of the time allows).
  --env NAME[=VALUE]           Set a variable; NAME alone passes your value. The record keeps the name only. Repeatable.
  --env-file FILE              Set variables from lines of NAME=VALUE.
  --network                    Let the run reach the network.
  --source DIR                 Run the code in this directory. Default: the directory that holds the spec's directory.
  --frozen                     Run the captured files, not the code as it is now.
  --runner NAME                embedded (default); docker: in a container of Docker or Podman; host: in the live
                               environment, without isolation.
  --gpus N|all|none            Request GPUs from the engine of the docker runner. Default: none.
  --recipe FILE                Record the digest of a file (or of a folder's files) that says how to train. Repeatable.
  --parent RUN                 Record that this run starts from another one: an id, or a run's folder. Repeatable.
  --tag TAG                    Tag the run. Repeatable; `repro-env runs tag` does so later.
  --note TEXT                  Add a note to the run; `repro-env runs note` does so later.
  --runs DIR                   Record the run in this directory. Default: runs/ beside the spec's directory.
  --keep-outside SIZE|all      How much to keep of what the command writes outside the project (not of temporary files and
                               caches), such as 20G. Default: 16G and 100,000 files. More than that fails the run.
  --save DIR                   Copy the outputs to this directory afterwards; it must be new or empty.
  --record FILE                Write the record to this JSON file too; an existing file is replaced.
  --json                       Print the end of the record as one line on stdout, after the command's own output.
  -q, --quiet                  Print only warnings and errors beside the command's own output.
  -v, --verbose                Print details too.
  -h, --help                   Show this and exit.

The exit code is the command's own (128 + N when signal N ended it); errors of repro-env start with "repro-env: error".
"""

_VALUES = frozenset(
    {
        "--spec",
        "--source",
        "--runner",
        "--gpus",
        "--data",
        "--checkpoints",
        "--seed",
        "--ranks",
        "--determinism",
        "--ids",
        "--threads",
        "--recipe",
        "--parent",
        "--tag",
        "--note",
        "--env",
        "--env-file",
        "--runs",
        "--keep-outside",
        "--save",
        "--record",
    }
)
_MAYBE = frozenset({"--trace"})
"""With a value after `=`, or with none."""
_FLAGS = frozenset({"--network", "--frozen", "--data-changed", "--json", "--help", "-h", *say.LEVELS})
_REPEATED = frozenset({"--data", "--checkpoints", "--env", "--recipe", "--parent", "--tag"})
_GPUS = 1024
_CORES = 4096
RANKS: tuple[Ranks, ...] = ("each", "same")
MODES: tuple[Mode, ...] = ("warn", "off", "strict")
IDS: tuple[Ids, ...] = ("system", "seeded")
Word = TypeVar("Word", bound=str)
_AFTER = "to give it to the command, put it after the command; a command that begins with a dash goes after --"


class Words(msgspec.Struct, frozen=True):
    """A command line, split: our options in order, and the command."""

    options: tuple[tuple[str, str], ...]
    """(name, value); the value of a flag is empty."""
    command: tuple[str, ...]

    def last(self, name: str) -> str | None:
        return next((value for option, value in reversed(self.options) if option == name), None)

    def all(self, name: str) -> tuple[str, ...]:
        return tuple(value for option, value in self.options if option == name)

    def has(self, name: str) -> bool:
        return any(option == name for option, _ in self.options)


def split(words: Sequence[str], *, more: Sequence[str] = (), name: str = "exec") -> Words:
    """Our options end at the first word that is not one: a program, a script, `-m`, `-c`, or what follows `--`.

    `more`: options with a value that another command of that `name` has beside those of `exec`. Raises `UsageError`
    for an option that is not ours, one without its value, one given twice.
    """
    options: list[tuple[str, str]] = []
    left = list(words)
    values = _VALUES.union(more)
    while left:
        word = left[0]
        if word == "--":
            return Words(tuple(options), tuple(left[1:]))
        if not word.startswith("-") or word in ("-m", "-c", "-"):
            break
        option, equals, value = word.partition("=")
        left.pop(0)
        if option in _FLAGS:
            if equals:
                raise UsageError("takes no value", where=word, hint=f"say {option} alone")
        elif option in _MAYBE:
            if equals and not value:
                raise UsageError("needs a value after =", where=word, hint=f"or say {option} alone")
        elif option in values:
            if not equals:
                if not left or left[0] == "--" or left[0] in values | _FLAGS:
                    raise UsageError("needs a value", where=option, hint=f"`repro-env {name} --help` shows them all")
                value = left.pop(0)
        else:
            raise UsageError(f"is no option of repro-env {name}", where=word, hint=_hint(option, values))
        if option not in _REPEATED and any(option == known for known, _ in options):
            raise UsageError("is given twice", where=option, hint="say it once")
        options.append((option, value))
    return Words(tuple(options), tuple(left))


def _hint(name: str, values: frozenset[str]) -> str:
    import difflib

    close = difflib.get_close_matches(name, sorted(values | _FLAGS | _MAYBE), 1)
    return f"did you mean {close[0]}? {_AFTER}" if close else _AFTER


def main(words: Sequence[str]) -> int:
    """Run `repro-env exec`. Returns the command's own exit code; raises our errors."""
    parsed = split(words)
    if parsed.has("--help") or parsed.has("-h"):
        from repro_env.cli import untouched

        untouched.show(HELP)
        return 0
    set_level(parsed)
    asked = request(parsed, here=_here(), environ=dict(os.environ))
    from repro_env.flows.execute import execute
    from repro_env.flows.opened import opened
    from repro_env.store.store import Store

    tell = Marked()
    found = opened(parsed.last("--spec"), asked.here, tell=tell)
    if asked.runs is None and found.runs is not None:
        asked = msgspec.structs.replace(asked, runs=found.runs)
    store = Store.open()
    done = execute(asked, found.spec, found.folder, store=store, tell=tell)
    close(done, tell, runs=parsed.last("--runs") or "")
    if parsed.has("--json"):
        say.json_result(done.end)
    if done.compiled:
        from repro_env.flows import bytecode

        bytecode.keep(done.compiled, found.spec, store=store, tell=tell, asked=asked)
    code = done.end.outcome.exit_code
    if done.end.lost is not None:
        problem = loss(done.end.lost)
        if not code:
            raise problem
        say.error(problem)
    return code


def loss(lost: Lost) -> RecordError:
    """The error for results of the command that were not kept."""
    count = f"{lost.files:,} file{'s' * (lost.files != 1)}"
    return RecordError(
        f"{count} ({say.size(lost.size)}) that the command wrote outside the project were not kept: {', '.join(lost.largest[:3])}",
        hint="run it again with --keep-outside all, or with --checkpoints DIR for a directory that stays where it is",
    )


def set_level(words: Words) -> None:
    """Apply --quiet and --verbose."""
    for option, _ in words.options:
        if option in say.LEVELS:
            say.set_level(say.LEVELS[option])


def request(words: Words, *, here: Path, environ: dict[str, str]) -> Asked:
    """Options as typed -> what is asked for. Raises `UsageError`."""
    from repro_env.flows.asked import Asked

    if not words.command:
        raise UsageError("there is no command", where="repro-env exec", hint="say what to run: repro-env exec train.py")
    if not words.command[0]:
        raise UsageError("the command is an empty word", where="repro-env exec", hint="check the variable it came from")
    runner = runner_of(words.last("--runner"))
    determinism = _one_of("--determinism", words.last("--determinism"), MODES)

    def path(option: str) -> Path | None:
        text = words.last(option)
        if text == "":
            raise UsageError("needs a value", where=option, hint="`repro-env exec --help` shows them all")
        return None if text is None else Path(os.path.normpath(here / text))

    return Asked(
        command=words.command,
        here=here,
        environ=environ,
        runner=runner,
        gpus=gpus_of(words.last("--gpus"), runner),
        data=tuple(mount(text, "--data") for text in words.all("--data")),
        checkpoints=tuple(mount(text, "--checkpoints") for text in words.all("--checkpoints")),
        seed=_seed(words.last("--seed")),
        ranks=_one_of("--ranks", words.last("--ranks"), RANKS),
        determinism=determinism,
        ids=_one_of("--ids", words.last("--ids") or ("seeded" if determinism == "strict" else None), IDS),
        threads=_threads(words.last("--threads")),
        trace=_steps(words.last("--trace")),
        recipe=words.all("--recipe"),
        parents=words.all("--parent"),
        tags=words.all("--tag"),
        note=words.last("--note") or "",
        env=tuple(variable(text) for text in words.all("--env")),
        env_file=path("--env-file"),
        network=words.has("--network"),
        frozen=words.has("--frozen"),
        private=words.has("--frozen"),
        source=path("--source"),
        data_changed=words.has("--data-changed"),
        runs=path("--runs"),
        keep_outside=_bound(words.last("--keep-outside")),
        save=path("--save"),
        record=path("--record"),
    )


def runner_of(text: str | None) -> RunnerName:
    if text is None or text == "embedded":
        return "embedded"
    if text in ("docker", "host"):
        return "docker" if text == "docker" else "host"
    raise UsageError(f'invalid value "{text}"', where="--runner", hint="choose from embedded, docker, host")


def gpus_of(text: str | None, runner: RunnerName) -> int | Literal["all"]:
    """How many GPUs are asked for. Raises `UsageError`, also for a runner that takes no such request."""
    if text is None or text in ("none", "0"):
        return 0
    if text != "all" and not (text.isascii() and text.isdigit() and int(text) <= _GPUS):
        raise UsageError(f'must be a number, "all" or "none" (got "{text}")', where="--gpus", hint="such as --gpus 1")
    if runner == "embedded":
        raise UsageError("the embedded runner gives no GPUs yet", where=f"--gpus {text}", hint="use --runner docker")
    if runner == "host":
        raise UsageError("the host runner has all GPUs of this machine", where=f"--gpus {text}", hint="leave it out")
    return "all" if text == "all" else int(text)


def mount(text: str, option: str) -> tuple[str, str]:
    """`SRC[:DST]`. A path that is there, colon and all, is SRC alone."""
    source, colon, target = text.rpartition(":")
    if not colon or os.path.exists(text):  # noqa: PTH110
        source, target = text, ""
    if not source or (colon and target and not target.startswith("/")):
        raise UsageError(
            "is not SRC[:DST] with an absolute DST", where=f"{option} {text}", hint=f"such as {option} ./images:/data/images"
        )
    return source, target


def variable(text: str) -> tuple[str, str | None]:
    """`NAME=VALUE`, or `NAME` for the caller's own value."""
    name, equals, value = text.partition("=")
    return name, value if equals else None


def _seed(text: str | None) -> Any:
    if text is None or text == "random":
        return text
    if not (text.isascii() and text.isdigit() and int(text) < 2**32):
        raise UsageError(
            f'must be an integer between 0 and 4294967295, or "random" (got "{text}")', where="--seed", hint="such as --seed 7"
        )
    return int(text)


def _one_of(option: str, text: str | None, there: Sequence[Word]) -> Word:
    """One of a few words, the first where none is given."""
    for word in there:
        if text is None or text == word:
            return word
    raise UsageError(f'invalid value "{text}"', where=option, hint=f"choose from {', '.join(there)}")


def _threads(text: str | None) -> int | None:
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and 0 < int(text) <= _CORES):
        raise UsageError(
            f'must be an integer between 1 and {_CORES} (got "{text}")', where="--threads", hint="such as --threads 8"
        )
    return int(text)


def _steps(text: str | None) -> int | None:
    """Every how many steps weights are hashed: 0 for a number found by their cost; None where nothing is traced."""
    if not text:
        return None if text is None else 0
    if not (text.isascii() and text.isdigit() and 0 < int(text) < 2**31):
        raise UsageError(f'must be an integer from 1 (got "{text}")', where="--trace=K", hint="or give --trace alone")
    return int(text)


def _bound(text: str | None) -> Bound:
    from repro_env.run.outside import ALL, Bound

    if text is None or text == "all":
        return Bound() if text is None else ALL
    from repro_env.cli.store import parsed

    return Bound(size=parsed(text, "--keep-outside"))


def _here() -> Path:
    try:
        return Path.cwd()
    except FileNotFoundError:
        raise UsageError("the current folder was removed", where=".", hint="change to one that exists") from None


class Marked:
    """Ours among the command's own lines on stderr."""

    def __call__(self, text: str, /) -> None:
        say.say(f"repro-env: {text}")

    def detail(self, text: str, /) -> None:
        say.say.detail(f"repro-env: {text}")

    def warn(self, text: str, /) -> None:
        say.say.warn(f"repro-env: {text}")

    def progress(self, total: int, label: str, /) -> Any:
        return say.say.progress(total, f"repro-env: {label}")


def close(done: Done, tell: Tell, *, runs: str = "") -> None:
    """Report how a run ended: two lines, a warning for each thing that could be lost, and details.

    `runs`: the value of --runs; empty when it was not given.
    """
    import shlex

    from repro_env.catalog.ids import short

    end = done.end
    tell(ending(done))
    for text in done.advice:
        tell(f"hint: {text}")
    if outside := [output for output in end.outputs if output.path.startswith("/")]:
        count = f"{len(outside):,} file{'s' * (len(outside) > 1)} ({say.size(sum(output.size for output in outside))})"
        tell(f"kept outside the project: {count} in {done.folder / 'outside'}")
    if end.outputs:
        largest = sorted(end.outputs, key=lambda output: (-output.size, output.path))[:3]
        tell.detail("largest outputs: " + ", ".join(f"{output.path} ({say.size(output.size)})" for output in largest))
    if skipped := [entry for entry in end.others if " -> " not in entry]:
        more = f" and {len(skipped) - 1} more" if len(skipped) > 1 else ""
        tell.warn(f"in the run's directory, but not in its record: {skipped[0]}{more}")
    if done.start.trace is not None and not end.trace:
        tell.warn("nothing was traced: the hooks saw no step of a torch optimizer")
    if found := chance(end):
        tell("; ".join(found))
    tell.detail(f"record: {done.folder}")
    word = short(end.id)
    where = f" --runs {shlex.quote(runs)}" if runs else ""
    tell.detail(f"next: repro-env runs {f'get {word} --to DIR' if end.outputs else f'show {word}'}{where}")


def ending(done: Done) -> str:
    """How the command ended, and where its outputs are."""
    end, outcome = done.end, done.end.outcome
    if outcome.signal:
        import signal

        try:
            name = signal.Signals(outcome.signal).name
        except ValueError:
            name = f"signal {outcome.signal}"
        ended = f"ended by {name}" + (", out of memory" if outcome.out_of_memory else "")
    else:
        ended = "finished" if not outcome.exit_code else f"exit code {outcome.exit_code}"
        ended += ", something in it ran out of memory" if outcome.out_of_memory else ""
    ended += f" after {end.seconds:.1f} s"
    inside = [output for output in end.outputs if not output.path.startswith("/")]
    if not end.outputs:
        from repro_env.run import hostcopy

        live = done.start.runner == "host" and hostcopy.COPIED not in outcome.means
        place = f" in {done.start.source.directory} (files elsewhere are not looked for on the host)" if live else ""
        return f"{ended}; no outputs{place}"
    if not inside:
        return ended
    count = f"{len(inside)} output{'s' * (len(inside) > 1)}"
    return f"{ended}; {count} ({say.size(sum(output.size for output in inside))}) in {done.folder / 'files'}"


def chance(end: End) -> list[str]:
    """What of the run its seed alone did not decide."""
    found = []
    # Those that libraries make for themselves are in the record alone.
    if own := [hole for hole in end.holes if "-packages/" not in hole]:
        count = f"{len(own)} unseeded random generator{'s' * (len(own) > 1)}"
        found.append(f"seeded automatically: {count} ({'first: ' * (len(own) > 1)}{own[0]})")
    if end.operations:
        most = max(end.operations, key=lambda operation: operation.count)
        more = f" and {len(end.operations) - 1} more" if len(end.operations) > 1 else ""
        found.append(f"not deterministic: {most.what}, {most.count} times at {most.file}:{most.line}{more}")
    return found


def add(app: Any) -> None:
    from repro_env.cli import untouched

    untouched.add(app, "exec", main)
