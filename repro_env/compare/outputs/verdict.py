"""Predict the level before a run is repeated, and give the verdict afterwards."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from repro_env.compare.outputs.comparison import HEIGHT, File, Kind, Sameness
from repro_env.sandbox.streams import TYPED
from repro_env.schema.codec import Frozen
from repro_env.schema.messages import plural, shorten
from repro_env.schema.run import UNSEEDED, End, Fact, Start
from repro_env.schema.runners import DEFAULT, TRAITS, RunnerName

_NAMED = 3


class Repetition(Frozen, frozen=True, kw_only=True):
    """The machine and the options with which a run is repeated."""

    host: tuple[str, ...]
    """See `Start.host`."""
    threads: Mapping[str, str]
    """Variable -> value, see `Start.threads`."""
    devices: tuple[str, ...] = ()
    """The names of the GPUs."""
    given: tuple[str, ...] = ()
    """Variables that the user set again, because records do not have values."""
    runner: RunnerName = DEFAULT
    """The runner of the new run."""
    unrecorded: tuple[str, ...] = ()
    """Data that the user mounts and that is not in the record."""
    missing: tuple[str, ...] = ()
    """Data in or next to the source directory that the run used and that is not in the store any more, or was not pulled."""


class Promise(Frozen, frozen=True, kw_only=True):
    level: Sameness
    """`bitwise` or `numeric`."""
    sentence: str


class Verdict(Frozen, frozen=True, kw_only=True):
    level: Sameness | None
    """The worst level of all results; None if nothing was compared."""
    same: bool
    """Whether every result was compared and has the expected level."""
    sentence: str
    promise: Promise
    files: tuple[File, ...] = ()
    """Results first, the worst first, then by path."""
    causes: tuple[str, ...] = ()
    """Threads, versions and settings that differ between the runs."""
    failure: str = ""
    """How the command failed in both runs; empty if it did not."""
    first: str = ""
    """The first training step that differs, if both runs were traced; or what was not compared of the traces."""


def predict(start: Start, end: End, new: Repetition) -> Promise:
    """Predict the level, with the reasons, from the record before the run is repeated."""
    lower = [*machine_differences(start, new.host), *_threads(start, new), *_devices(end, new), *_operations(end)]
    if start.determinism == "off":
        lower.append("the original run used --determinism off")
    risks = []
    program = start.command[0]
    if not end.settings and not (program.endswith(".py") or program in ("-m", "-c") or "python" in program):
        risks.append(f"random numbers and directory listings of {program}, because no Python with the hooks ended in the run")
    # UUIDs are used as names. Some libraries draw them in every run, and results do not depend on them.
    entropy = [
        f"{draws.what} at {draws.file}:{draws.line}" for draws in end.system_randomness if not draws.what.startswith("uuid")
    ]
    programs = [name for name in entropy if name.startswith(UNSEEDED)]
    if programs:
        risks.append(f"random numbers that do not depend on the seed ({shorten(programs, 1).removeprefix(UNSEEDED)})")
    entropy = [name for name in entropy if name not in programs]
    if entropy:
        risks.append(f"{shorten(entropy, 1)} returned bytes that do not depend on a seed")
    if start.determinism != "off" and Fact(name="address randomisation", value="on") in end.settings:
        risks.append("the order of sets of objects without a hash, because addresses were random")
    order = next((fact.value for fact in end.settings if fact.name == "directory order"), "sorted")
    if start.determinism != "off" and order != "sorted":
        risks.append(f"the order in which directories are listed ({order})")
    if new.unrecorded:
        risks.append(f"changed data in {', '.join(new.unrecorded)}, because the record does not have it")
    if new.given:
        risks.append(f"other values of {', '.join(new.given)}, because the record does not have values")
    if new.missing:
        risks.append(f"the run used {shorten(new.missing, 1)}, which is not in the store")
    if not start.traits.is_isolated:
        risks.append("files outside the source, environment and --data, because runs on the host do not record them")
    if not TRAITS[new.runner].is_isolated:
        risks.append("other files, variables and the network of this machine, because the host runner does not isolate")
        risks.append("absolute paths in binary outputs, because the source is at another path (a private copy)")
    elif start.network:
        risks.append("the run used the network, and its content may have changed")
    if start.streams is not None and start.streams.has_input:
        risks.append(f"the content of its standard input (a {start.streams.stdin}), because the record does not have it")
    if TYPED in end.outcome.methods:
        risks.append("what was typed at its terminal, because the record does not have it")
    risks += [f"its seeding failed ({problem})" for problem in end.auto_seeded if problem.startswith("seeds:")][:1]
    suffix = f"; possible causes of differences: {'; '.join(risks)}" if risks else ""
    if lower:
        return Promise(level="numeric", sentence=f"expected: numeric, not bitwise: {'; '.join(lower)}{suffix}")
    what = "environment" if start.traits.is_live or TRAITS[new.runner].is_live else "image"
    return Promise(
        level="bitwise", sentence=f"expected: bitwise identical (same {what}, code, data, seed, threads and CPU type){suffix}"
    )


def machine_differences(start: Start, host: Sequence[str], last: Sequence[str] = ()) -> list[str]:
    """Return how a machine differs from that of a run, so that numbers may differ.

    `host`: its facts, as in the record. `last`: those of the machine to compare with, if it is not that of the run.
    """
    then, now = _facts(last or start.host), _facts(host)
    if then.get("cpu") != now.get("cpu"):
        return [f"this CPU is {now.get('cpu', 'unknown')}, the run's was {then.get('cpu', 'unknown')}"]
    flags = {side: set(facts["isa"].split()) for side, facts in (("then", then), ("now", now)) if "isa" in facts}
    if len(flags) == 2 and flags["then"] != flags["now"]:
        differing = sorted(flags["then"] ^ flags["now"])
        return [f"the CPU has different instruction sets ({' '.join(differing[:_NAMED])}{' …' * (len(differing) > _NAMED)})"]
    cores, most = now.get("cores", ""), max((int(fact.value) for fact in start.threads if fact.value.isdigit()), default=0)
    if cores != then.get("cores") and (start.determinism == "off" or (cores.isdigit() and int(cores) < most)):
        # With fewer cores, libraries may use fewer threads than requested.
        return [
            f"this machine has {cores or 'an unknown number of'} cores, the run's had {then.get('cores', 'an unknown number')}"
        ]
    return []


def _threads(start: Start, new: Repetition) -> list[str]:
    then = {variable.name: variable.value for variable in start.threads}
    return _changes(then, new.threads, "not set", "the run's was")[:_NAMED]


def _devices(end: End, new: Repetition) -> list[str]:
    then = next((fact.value for fact in end.settings if fact.name == DEVICES), "")
    if not then:
        return []
    if new.devices and all(any(name in device for name in new.devices) for device in then.split(", ")):
        return []
    return [f"the run used {then}, and this machine has {', '.join(new.devices) or 'no GPU'}"]


DEVICES = "cuda devices"
"""The fact in `End.settings` with the names of GPUs."""


def _operations(end: End) -> list[str]:
    names = [f"{operation.what} at {operation.file}:{operation.line}" for operation in end.operations]
    return [f"{shorten(names, 1)} has no deterministic implementation"] if names else []


def _facts(host: Sequence[str]) -> dict[str, str]:
    return {name: value for name, _, value in (line.partition(" ") for line in host)}


def causes(then: Sequence[Fact], now: Sequence[Fact]) -> tuple[str, ...]:
    """Return the effective settings that differ between two runs."""
    old, new = ({fact.name: fact.value for fact in facts} for facts in (then, now))
    if not old or not new:
        return ()
    return tuple(_changes(old, new, "unknown", "it was"))


def _changes(then: Mapping[str, str], now: Mapping[str, str], missing: str, was: str) -> list[str]:
    names = sorted(name for name in then.keys() | now.keys() if then.get(name) != now.get(name))
    return [f"{name} is {now.get(name, missing)}, {was} {then.get(name, missing)}" for name in names]


def verdict(
    files: Sequence[File],
    promise: Promise,
    *,
    problem: str = "",
    failure: str = "",
    causes: Sequence[str] = (),
    first: str = "",
) -> Verdict:
    """Give the verdict on the files of two runs.

    `problem`: why the runs are different or cannot be compared even if their files are equal, such as another exit code.
    `failure`: as in `Verdict`. It does not change the level.
    """
    files = tuple(sorted(files, key=_rank))
    results = [file for file in files if file.kind == "result"]
    levels = [file.level for file in results if file.level is not None]
    level = max(levels, key=HEIGHT.__getitem__, default=None)
    if level == "bitwise" and any(file.left_out for file in files):
        level = "equal except for"
    if problem:
        level = "different" if levels else None
    expected = max(HEIGHT[promise.level], HEIGHT["equal except for"])
    same = level is not None and not problem and len(levels) == len(results) and HEIGHT[level] <= expected
    return Verdict(
        level=level,
        same=same,
        sentence=_sentence(level, files, problem, failure, expected="as expected" if same and level == "numeric" else ""),
        promise=promise,
        files=files,
        causes=tuple(causes),
        failure=failure,
        first=first,
    )


def _rank(file: File) -> tuple[int, int, str]:
    """The sort key: results first; within a kind, files that were not compared, then the worst."""
    height = len(HEIGHT) if file.level is None else HEIGHT[file.level]
    return ("result", "console", "ignored").index(file.kind), -height, file.name


def _sentence(level: Sameness | None, files: Sequence[File], problem: str, failure: str, expected: str) -> str:
    results = [file for file in files if file.kind == "result"]
    compared = [file for file in results if file.level is not None]
    skipped = [file.name for file in results if file.level is None]
    not_compared = f"{plural(len(skipped), 'result')} could not be compared: {shorten(skipped, _NAMED)}" if skipped else ""
    if level is None:
        why = problem or not_compared or nothing({file.kind for file in files})
        return f"nothing was compared: {failure}; {why}" if failure else f"nothing was compared: {why}"
    total = plural(len(compared), "result")
    worst = [file for file in compared if file.level == level]
    count = sum(file.ignored_count for file in compared)
    affected = sum(file.ignored_count > 0 for file in compared)
    ignored = f"{plural(count, 'difference')} in {affected:,} of {total}, each with a reason" if count else ""
    left_out = sum(file.left_out for file in files)
    if problem:
        text = problem
    elif level == "bitwise" or (level == "equal except for" and not count):
        text = f"{total} identical"
    elif level == "equal except for":
        text, ignored = ignored, ""
    else:
        text = f"{len(worst):,} of {total} {'differs' if len(worst) == 1 else 'differ'}: {worst[0].name}: {worst[0].why}"
    parts = [
        f"{level}: {failure}; {text}" if failure else f"{level}: {text}",
        f"also {ignored}" if ignored else "",
        not_compared,
        f"{plural(left_out, 'file')} left out" if left_out else "",
        "the console output differs" if any(file.kind == "console" and not file.equal for file in files) else "",
        expected,
    ]
    return "; ".join(part for part in parts if part)


def nothing(kinds: Collection[Kind]) -> str:
    """Return why a run with outputs of these kinds, none of which is a result, cannot be compared."""
    if not kinds:
        return "the run has no outputs; write its results to a file"
    names = {"console": "console output", "ignored": "files that are left out"}
    return f"the run has only {' and '.join(sorted(names[kind] for kind in kinds))}; name its results with --result GLOB"
