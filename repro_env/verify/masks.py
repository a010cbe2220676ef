"""What of a name or a text says when, where and by whom, and nothing of what was computed: taken out before two are compared.

A mask takes only what shows by its own form what it is: a bare number is never one. Steps, epochs and losses in names
are results. What was masked is always told.
"""

from __future__ import annotations

import re

_DATE = r"(?:19|20)\d\d([-/])(?:0[1-9]|1[0-2])\1(?:0[1-9]|[12]\d|3[01])"
_FRACTION = r"(?:\.\d{1,9}|,\d{3}(?=[ \t\])|:]))?"
"""After a comma milliseconds alone, as Python's logging has them, and never at the end of a line: that may be the next column."""
_TIME = rf"(?:[01]\d|2[0-3])([-:.])[0-5]\d\2[0-5]\d{_FRACTION}"
_DIGITS = r"(?:19|20)\d\d(?:0[1-9]|1[0-2])(?:0[1-9]|[12]\d|3[01])"
_CLOCK = rf"(?:[01]\d|2[0-3])[0-5]\d[0-5]\d{_FRACTION}"
_ZONE = r"(?:Z|[+-](?:0\d|1[0-4]):?(?:00|15|30|45)(?![0-9.])| UTC| GMT)?"
"""Not after a space: that may be the next number."""
_MONTH = r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)"
_DAY = r"(?:(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)[a-z]{0,6},? )?"
_MOMENTS = (
    # 2026-07-01T10:15:30.123Z, 2026-07-01/10-15-30 (Hydra's folders), 2026-07-01
    re.compile(rf"(?<![0-9]){_DATE}(?:[T _/-]{{1,2}}{_TIME}{_ZONE})?(?![0-9])"),
    # 20260701_101530, 20260701T101530Z, D:20260701101530 (PDF)
    re.compile(rf"(?<![0-9])(?:{_DIGITS}[T_-]|(?<=D:){_DIGITS}){_CLOCK}{_ZONE}(?![0-9])"),
    # Wed Jul  1 10:15:30 2026; Jul01_10-15-30 (TensorBoard's folders)
    re.compile(
        rf"(?<![0-9A-Za-z]){_DAY}{_MONTH} {{0,2}}\d{{1,2}}[ _]\d\d([-:])\d\d\1\d\d(?: (?:19|20)\d\d(?=\s*(?:\Z|[^\w\s.+-])))?(?![0-9])"
    ),
    re.compile(rf"(?<![0-9A-Za-z]){_DAY}\d{{1,2}} {_MONTH}[a-z]{{0,6}} (?:19|20)\d\d(?: \d\d:\d\d:\d\d)?{_ZONE}"),
    re.compile(rf"(?<![0-9:.])(?:[01]?\d|2[0-3]):[0-5]\d:[0-5]\d{_FRACTION}(?![0-9:])"),
)
_NAMED = (
    # Only in names: 20260701, 10-15-30
    re.compile(rf"(?<![0-9A-Za-z.]){_DIGITS}(?![0-9A-Za-z])"),
    re.compile(r"(?<![0-9A-Za-z.-])(?:[01]\d|2[0-3])-[0-5]\d-[0-5]\d(?![0-9A-Za-z-])"),
)
_BOARD = re.compile(rf"(?<![0-9A-Za-z])({_MONTH}\d\d_\d\d-\d\d-\d\d_)[^/]+")
_UUID = re.compile(r"(?<![0-9A-Za-z])[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}(?:-1[34]\d{13})?(?![0-9A-Za-z])", re.IGNORECASE)
"""Also with a thread behind it, as Optuna's journal names who wrote a line: the address of what glibc keeps of a thread."""
_ADDRESS = re.compile(r"(?<=\bat )0x[0-9a-f]{6,16}(?![0-9A-Za-z])")
"""As objects are shown. Any other number may be a checksum."""
_PID = re.compile(r"(?i)(?<![a-z])(pid|tid|(?:process|thread)[ _-]id)([\"']?[ =:_-]{0,3}|\[)\d{1,7}(?!\.?\d)")
"""Linux has none above 4194304."""
_HOST = re.compile(
    r"(?i)(?<![a-z])(hostname|nodename|host)([\"']?\s*[=:]\s*[\"']?)(?!\d+(?:\.\d+)?(?![A-Za-z0-9.-]))[A-Za-z0-9][A-Za-z0-9.-]*"
)
"""A bare number is a score of the hosts'."""
_TEMPORARY = re.compile(r"(?<![0-9A-Za-z])(tmp|tmp_)[a-z0-9_]{8}(?![0-9A-Za-z])")
_EVENTS = re.compile(r"(events\.out\.tfevents\.)\d{9,10}\.[^/]+\Z")
_WANDB = re.compile(r"(?<![A-Za-z])((?:offline-)?run-)(?:<time>|\d{8}_\d{6})-[a-z0-9]{8}(?![a-z0-9])")
_WANDB_FILE = re.compile(r"(?<![A-Za-z])run-[a-z0-9]{8}(?=\.wandb\Z)")
_VERSION = re.compile(r"(?<=/)(version)_\d+(?![0-9A-Za-z])")
_COUNTER = re.compile(
    r"(?<![0-9A-Za-z])(version_|run[-_]?|exp[-_]?|experiment[-_]?|runs/(?:[a-z]+/)?(?:train|predict|val))\d+(?=/|\Z)"
)
_EPOCH = re.compile(r"(?<![0-9A-Za-z])(?:1[5-9]|2[0-4])\d{8}(?:\d{3}|\d{6}|\d{9})?(?:\.\d{1,9})?(?![0-9A-Za-z])")
_MLFLOW = re.compile(r"(?<=mlruns/)\d{18}(?=/|\Z)")
"""MLflow names an experiment by 18 digits of a random number."""
_HEX = re.compile(r"(?<![0-9A-Za-z])(?=[0-9a-f]*[a-f])(?=[0-9a-f]*[0-9])[0-9a-f]{32}(?![0-9A-Za-z])")
_ONE_SPAN = (
    r"\d+(?:\.\d+)?(?:e[+-]?\d+)? ?(?:ns|us|µs|ms|s|secs?|seconds?|mins?|minutes?|hours?|hrs?)(?:/[A-Za-z]+)?(?![0-9A-Za-z])"
)
_SPAN = re.compile(rf"(?<![0-9A-Za-z.]){_ONE_SPAN}(?: {_ONE_SPAN})*(?!\s*[=:]\s*[-+.]?\d| +[-+]?\.?\d)")
"""What a number follows is no unit but a name: `max 0.9 min 0.1`."""
_MEASURED = re.compile(
    r"(?i)(?<![a-z])(?:r?mse|mae|mape|medae|loss|err(?:or)?|score|bias|residual|pred(?:icted|iction)?|target)[ \t]*[=:]?[ \t]*[-+]?\Z"
)
"""What stands before a number that was computed, whatever its unit."""
_NEAR = 100
"""Characters of a line beside a number that are looked at."""
_STATISTIC = re.compile(r"(?i)(?<![a-z])(?:max|mean|avg|average|median|std|sum)(?![a-z])")
_SPEED = re.compile(
    r"(?<![0-9A-Za-z.])\d+(?:\.\d+)?(?:e[+-]?\d+)?[kKMG]? ?(?:"
    # Things that a program does. Not metres: speeds are predicted too.
    r"(?:it|its|iters?|iterations?|steps?|samples?|toks?|tokens?|batch|batches|ba|imgs?|images?|frames?|ex|examples?|rows?|records?"
    r"|files?|reqs?|requests?|queries|epochs?|items?|seqs?|sequences?|words?|chars?|docs?|documents?|games?|episodes?|updates?"
    r"|transitions?|graphs?|nodes?|edges?|molecules?|clips?|videos?|sentences?|calls?|trials?|fits?|ops?|[KMGTP]?FLOPs?"
    r"|[kKMGT]?i?[bB]|bytes|[kKMGT]?bits?)/(?:s|sec|second|min)"
    r"|(?:iterations?|samples|tokens|steps|batches|images) per second|s/it)(?![0-9A-Za-z])"
)
_BAR = re.compile(r"\[(?:\d+:)?\d\d:\d\d<[^\]]{0,200}\]")
_DRAWN = re.compile("[━╸╺]{2,}")
_MINUTES = re.compile(r"(?<![0-9:.])\d{1,2}:\d\d(?![0-9:])")
_VOLATILE = re.compile(
    # Not `duration`, `date`, `start_time`, `end_time`: models predict these.
    r"(?i)_?(?:time|timestamp|wall_?time|elapsed(?:_time)?|time_elapsed|runtime|created_at|started_at|finished_at|hostname|host|pid"
    r"|uuid|run_id|fps|throughput|time_this_iter_s|time_total_s|time_since_restore)"
    r"|(?:train|eval|test|predict|validation|val|epoch|step|batch|iter|iteration|fit)_(?:runtime|time|duration|seconds)"
    # Of CatBoost a model's random name; of scikit-learn how long a search refitted, and where a list lay in memory; of Keras
    # and skops where an object did.
    r"|model_guid|refit_time_|_stop_words_id|shared_object_id|skops_object_id"
    r"|(?:data|total|elapsed|wall)_(?:time|seconds|sec|ms)|(?:mean|std)_(?:fit|score)_time"
    r"|(?:(?:train|eval|test|predict|validation|val)_)?(?:samples|steps|tokens|images|batches|iterations|it)_per_sec(?:ond)?"
)


_NAME = (
    (_EVENTS, r"\1<event>"),
    (_BOARD, r"\1<host>"),
    *((pattern, "<time>") for pattern in (*_MOMENTS, *_NAMED)),
    (_WANDB, r"\1<id>"),
    (_WANDB_FILE, "run-<id>"),
    (_UUID, "<id>"),
    (_HEX, "<id>"),
    (_MLFLOW, "<id>"),
    (_EPOCH, "<time>"),
    (_PID, r"\1\2<pid>"),
    (_TEMPORARY, r"\1<id>"),
    (_COUNTER, r"\1<n>"),
)
NAMES = tuple((pattern.pattern, pattern.flags, replacement) for pattern, replacement in _NAME)
"""What `name` does, step by step, for who has to do it without us: pattern, flags of `re`, replacement."""


def name(path: str) -> str:
    """A path with what may be another each time taken out: files of two runs that are left over pair by it."""
    for pattern, replacement in _NAME:
        path = pattern.sub(replacement, path)
    return path


def text(line: str) -> str:
    """A line of a result without dates, times, spans of time, process numbers, hosts and random names."""
    line = _moments(line)
    line = _WANDB.sub(r"\1<id>", line)
    line = _UUID.sub("<id>", line)
    line = _ADDRESS.sub("<address>", line)
    line = _PID.sub(r"\1\2<pid>", line)
    line = _HOST.sub(r"\1\2<host>", line)
    line = _TEMPORARY.sub(r"\1<id>", line)
    line = _VERSION.sub(r"\1_<n>", line)
    return _SPAN.sub(_span, _SPEED.sub(_speed, line))


def _speed(found: re.Match[str]) -> str:
    return found[0] if _MEASURED.search(_before(found)) else "<speed>"


def _span(found: re.Match[str]) -> str:
    around = found.string[max(0, found.start() - _NEAR) : found.end() + _NEAR]
    if _MEASURED.search(_before(found)) or ("min" in found[0] and _STATISTIC.search(around)):
        return found[0]
    return "<span>"


def _before(found: re.Match[str]) -> str:
    return found.string[max(0, found.start() - _NEAR) : found.start()]


def random(line: str) -> str:
    """A line without runs of 32 hexadecimal digits. Anywhere but where a format says so, they may be a checksum."""
    return _HEX.sub("<id>", line)


def log(line: str) -> str:
    """As `text`, for a line of a log: also clocks of progress bars, and how long rich draws them."""
    return _MINUTES.sub("<span>", text(_DRAWN.sub("<bar>", _BAR.sub("<span>", line))))


def volatile(key: str) -> bool:
    """Whether a value of this name says when, where or how fast: a key of JSON, a column of CSV; the last part of a dotted name."""
    return _VOLATILE.fullmatch(key.rpartition("/")[2]) is not None


def _moments(line: str) -> str:
    for pattern in _MOMENTS:
        line = pattern.sub("<time>", line)
    return line
