"""What may be promised before a run is repeated, and what is said of it afterwards: never without a level."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from repro_env.model.codec import Frozen
from repro_env.model.run import End, Fact, RunnerName, Start
from repro_env.verify.compared import HEIGHT, File, Sameness
from repro_env.verify.kinds import Kind

_NAMED = 3


class Here(Frozen, frozen=True, kw_only=True):
    """The machine on which a run is repeated, in the words of `Start.host`, and what the repetition asks for."""

    host: tuple[str, ...]
    threads: Mapping[str, str]
    """Variable -> value, as `Start.threads`."""
    devices: tuple[str, ...] = ()
    """Names of GPUs."""
    given: tuple[str, ...] = ()
    """Variables whose values no record holds, and that were given again."""
    compiles: bool = False
    """The run found bytecode of its modules, and none is kept here."""
    runner: RunnerName = "embedded"
    """Of the new run."""
    unrecorded: tuple[str, ...] = ()
    """Data that the user names and the record does not."""
    missing: tuple[str, ...] = ()
    """Data of the source's directory, or beside it, that the run saw and that the store does not have any more."""


class Promise(Frozen, frozen=True, kw_only=True):
    level: Sameness
    """`bitwise` or `numeric`."""
    sentence: str


class Verdict(Frozen, frozen=True, kw_only=True):
    level: Sameness | None
    """The worst of all results; None where nothing was compared."""
    same: bool
    """What was promised holds, and every result was compared."""
    sentence: str
    promise: Promise
    files: tuple[File, ...] = ()
    """Results first, those that differ before those that do not; sorted by path."""
    causes: tuple[str, ...] = ()
    """What was in force in one of the runs alone: threads, versions, settings."""
    first: str = ""
    """The first step of training that differs, where both runs were traced; or what of their traces was not compared."""


def promised(start: Start, end: End, here: Here) -> Promise:
    """What repeating a run on this machine can give, and why not more. Decided from records, before anything runs."""
    lower = [*_machine(start, here), *_threads(start, here), *_devices(end, here), *_operations(end)]
    if start.determinism == "off":
        lower.append("the run was made with --determinism off")
    besides = []
    # What `uuid` gives is a name: in every run of some libraries, and of no result.
    entropy = [one for one in end.entropy if not one.what.startswith("uuid")]
    if entropy:
        one = entropy[0]
        more = f" and {len(entropy) - 1} more" if len(entropy) > 1 else ""
        besides.append(f"{one.what} at {one.file}:{one.line}{more} gave bytes that no seed reaches")
    if start.determinism != "off" and any(one == Fact(name="address randomisation", value="on") for one in end.effective):
        besides.append("sets of objects that are hashed by address, since addresses were random")
    elif start.determinism != "off" and here.compiles:
        besides.append(
            "sets of objects that are hashed by address, since the run found its modules compiled and no run did here yet"
        )
    if here.unrecorded:
        besides.append(f"other data in {', '.join(here.unrecorded)}, since the record does not name them")
    if here.given:
        besides.append(f"another value of {', '.join(here.given)}, since no record holds values")
    if here.missing:
        more = f" and {len(here.missing) - 1} more" if len(here.missing) > 1 else ""
        besides.append(f"the run saw {here.missing[0]}{more}, which the store does not have any more")
    if start.runner == "host":
        besides.append(
            "files that the recorded run read outside of its source, environment and --data, since a run on the host records none"
        )
    if here.runner == "host":
        besides.append("this machine's other files, its variables and network, since isolation is none on the host")
        besides.append("absolute paths in binary outputs, since the source is at another path (a private copy)")
    elif start.network:
        besides.append("the run had the network, and what it read there may be other now")
    besides += [f"its seeding failed ({hole})" for hole in end.holes if hole.startswith("seeds:")][:1]
    unless = f"; what can break it: {'; '.join(besides)}" if besides else ""
    if lower:
        return Promise(level="numeric", sentence=f"expected: numeric, not bitwise: {'; '.join(lower)}{unless}")
    what = "environment" if "host" in (start.runner, here.runner) else "image"
    return Promise(
        level="bitwise", sentence=f"expected: bitwise identical (same {what}, code, data, seed, threads and CPU type){unless}"
    )


def _machine(start: Start, here: Here) -> list[str]:
    then, now = _facts(start.host), _facts(here.host)
    if then.get("cpu") != now.get("cpu"):
        return [f"this CPU is {now.get('cpu', 'not known')}, the run's was {then.get('cpu', 'not known')}"]
    flags = {side: set(facts["isa"].split()) for side, facts in (("then", then), ("now", now)) if "isa" in facts}
    if len(flags) == 2 and flags["then"] != flags["now"]:
        other = sorted(flags["then"] ^ flags["now"])
        return [f"the CPU shows other instruction sets ({' '.join(other[:_NAMED])}{' …' * (len(other) > _NAMED)})"]
    cores, most = now.get("cores", ""), max((int(one.value) for one in start.threads if one.value.isdigit()), default=0)
    if cores != then.get("cores") and (start.determinism == "off" or (cores.isdigit() and int(cores) < most)):
        # Libraries may take fewer threads than they are asked for where there are fewer cores.
        return [
            f"this machine has {cores or 'an unknown number of'} cores, the run's had {then.get('cores', 'an unknown number')}"
        ]
    return []


def _threads(start: Start, here: Here) -> list[str]:
    then = {one.name: one.value for one in start.threads}
    other = [
        f"{name} is {here.threads.get(name, 'not set')}, the run's was {then.get(name, 'not set')}"
        for name in sorted(then.keys() | here.threads.keys())
        if then.get(name) != here.threads.get(name)
    ]
    return other[:_NAMED]


def _devices(end: End, here: Here) -> list[str]:
    then = next((one.value for one in end.effective if one.name == DEVICES), "")
    if not then:
        return []
    now = ", ".join(here.devices)
    if here.devices and all(any(name in one for name in here.devices) for one in then.split(", ")):
        return []
    return [f"the run was on {then}, and here is {now or 'no GPU that can be seen'}"]


DEVICES = "cuda devices"
"""The fact of `End.effective` that names GPUs."""


def _operations(end: End) -> list[str]:
    if not end.operations:
        return []
    one = end.operations[0]
    more = f" and {len(end.operations) - 1} others" if len(end.operations) > 1 else ""
    return [f"{one.what} at {one.file}:{one.line}{more} ran, which has no deterministic implementation"]


def _facts(host: Sequence[str]) -> dict[str, str]:
    return {name: value for name, _, value in (line.partition(" ") for line in host)}


def causes(then: Sequence[Fact], now: Sequence[Fact]) -> tuple[str, ...]:
    """What was in force in one of two runs and not in the other."""
    old, new = {one.name: one.value for one in then}, {one.name: one.value for one in now}
    if not old or not new:
        return ()
    return tuple(
        f"{name} is {new.get(name, 'not known')}, it was {old.get(name, 'not known')}"
        for name in sorted(old.keys() | new.keys())
        if old.get(name) != new.get(name)
    )


def verdict(
    files: Sequence[File],
    promise: Promise,
    *,
    problem: str = "",
    causes: Sequence[str] = (),
    first: str = "",
) -> Verdict:
    """`problem`: what makes the runs different, or not comparable, whatever their files are: another exit code, changed data."""
    ordered = tuple(sorted(files, key=lambda one: (_KINDS[one.kind], -_height(one), one.path or one.now)))
    results = [one for one in ordered if one.kind == "result"]
    compared = [one for one in results if one.level is not None]
    open_ = [one for one in results if one.level is None]
    level = _worst([one.level for one in compared if one.level is not None])
    if level == "bitwise" and any(one.kind == "ignored" for one in ordered):
        level = "equal except for"
    if problem:
        level = "different" if compared else None
    same = level is not None and not problem and not open_ and HEIGHT[level] <= _allowed(promise)
    return Verdict(
        level=level,
        same=same,
        sentence=_sentence(level, compared, open_, ordered, problem, promise),
        promise=promise,
        files=ordered,
        causes=tuple(causes),
        first=first,
    )


def _worst(levels: Sequence[Sameness]) -> Sameness | None:
    worst: Sameness | None = None
    for one in levels:
        if worst is None or HEIGHT[one] > HEIGHT[worst]:
            worst = one
    return worst


def _allowed(promise: Promise) -> int:
    """What is explained is no less than bitwise."""
    return max(HEIGHT[promise.level], HEIGHT["equal except for"])


_KINDS = {"result": 0, "console": 1, "ignored": 2}


def _height(one: File) -> int:
    return 5 if one.level is None else HEIGHT[one.level]


def _sentence(
    level: Sameness | None, compared: Sequence[File], left: Sequence[File], files: Sequence[File], problem: str, promise: Promise
) -> str:
    if level is None:
        why = problem or (_not_compared(left) if left else nothing({one.kind for one in files}))
        return f"nothing was compared: {why}"
    worst = [one for one in compared if one.level == level]
    count = sum(one.ignored_count for one in compared)
    within = sum(bool(one.ignored_count) for one in compared)
    fields = f"{count:,} difference{'s' * (count != 1)} in {_some(within, len(compared))}, each with its reason"
    if problem:
        text = problem
    elif level == "bitwise":
        text = f"{_all(len(compared))} the same, bit for bit"
    elif level == "equal except for":
        text = fields if count else f"files that are left out; {_all(len(compared))} the same, bit for bit"
    else:
        first = worst[0]
        of = len(compared)
        number = f"{len(worst):,} of {_count(of)}" if len(worst) < of else _every(of)
        text = f"{number} {'differs' if len(worst) == 1 else 'differ'}: {first.path or first.now}: {first.why}"
    said = [f"{level}: {text}"]
    if count and level != "equal except for":
        said.append(f"besides, {fields}")
    if left:
        said.append(_not_compared(left))
    ignored = sum(one.kind == "ignored" for one in files)
    if ignored:
        said.append(f"{ignored:,} file{'s' * (ignored != 1)} left out")
    if any(one.kind == "console" and one.level not in ("bitwise", "equal except for") for one in files):
        said.append("what was printed differs")
    if not problem and not left and HEIGHT["equal except for"] < HEIGHT[level] <= HEIGHT[promise.level]:
        said.append("which is what was promised")
    return "; ".join(said)


def _some(count: int, of: int) -> str:
    return f"{count:,} of {_count(of)}" if count < of else _every(of)


def _all(count: int) -> str:
    return f"{_every(count)} {'is' if count == 1 else 'are'}"


def _every(count: int) -> str:
    return "the one result" if count == 1 else "both results" if count == 2 else f"all {count:,} results"


def _count(count: int) -> str:
    return f"{count:,} result{'s' * (count != 1)}"


def _not_compared(left: Sequence[File]) -> str:
    names = ", ".join(one.path or one.now for one in left[:_NAMED])
    more = f" and {len(left) - _NAMED:,} more" if len(left) > _NAMED else ""
    return f"{_count(len(left))} could not be compared: {names}{more}"


def nothing(kinds: Collection[Kind]) -> str:
    """Why outputs of these kinds cannot be compared: there is no result among them."""
    if not kinds:
        return "the run left no outputs; let it write what counts into a file"
    names = {"console": "what it printed", "ignored": "files that are left out"}
    return f"the run left only {' and '.join(sorted(names[kind] for kind in kinds))}; name what counts with --result GLOB"
