"""Count the random bytes that a script takes from the operating system, and report digests of the ids among them.

`secrets`, `random.SystemRandom` and `uuid.uuid4` call `os.urandom` or `os.getrandom`; `uuid.uuid1` is counted separately. A
report is {"system_randomness": function, "count", "file", "line"} with a line of the user's code. The counts of all reports of a line are
added. A line is reported after 1, 2, 4, 8 ... calls and at exit, so the reports of a killed process have at least half of the
calls. With `exec --ids seeded`, the script gets bytes derived from the seed, and the count is 0. Bytes that the standard
library takes for itself, such as the keys of its processes, are neither counted nor replaced.

A draw of 16 to 64 bytes may be an id. "ids" has a word for each such draw, in order, together with the process ("pid", and
"worker", by which the processes are sorted). "more" is true if some ids are missing. A word is a digest (`schema.fingerprints`)
because an id may be a secret. Fewer bytes have no digest, since they could be found by trying. For a UUID, which is a name
rather than a secret, the word also has a digest of the first 8 digits, after a dot.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any

seeds: Any = __import__("_repro_env_seeds")
reports: Any = seeds.part("reports")
callers: Any = seeds.part("callers")
streams: Any = seeds.part("streams")

_LIBRARY = os.path.dirname(os.__file__) + "/"
_WRAPPERS = {_LIBRARY + name + ".py": name for name in ("random", "secrets", "uuid")}
_PLACES = 1000
"""The most pairs of a function and a line that a process counts."""
_MOST = 10_000
"""The most ids that a process reports."""
_FULL = 1 << 20
"""The size of the reports in bytes at which no more ids are added, which leaves room for other reports."""


class _Draws:
    """The draws at a line: their number, the number in the reports, and the ids that are not in the reports yet."""

    __slots__ = ("count", "ids", "reported")

    def __init__(self) -> None:
        self.count = self.reported = 0
        self.ids: list[str] = []


_draws: dict[tuple[str, str, int], _Draws] = {}
"""(function, file, line) -> draws."""


class _State:
    ids = 0
    """The number of ids drawn in this process."""
    worker = streams.own_rank() + repr(seeds._State.worker)


def hook_uuid(uuid: Any) -> None:
    """Wrap `uuid1`, which does not call `os.urandom`, and `getnode`, which is random without a network card."""
    if seeds._IDS:
        uuid._node = int.from_bytes(seeds.part("ids").draw(6), "big") | 1 << 40
    plain = uuid.uuid1

    def uuid1(node: Any = None, clock_seq: Any = None) -> Any:
        value = plain(node, clock_seq)
        with seeds.Attempt("uuid.uuid1"):
            data = draw("uuid.uuid1", sys._getframe(1), value.bytes)
            return value if data == value.bytes else uuid.UUID(bytes=data, version=1)
        return value

    seeds.copy_name(uuid1, plain, "uuid", "uuid1")
    uuid.uuid1 = uuid1


def draw(function: str, frame: FrameType | None, value: bytes) -> bytes:
    """Count a call of `function` by `frame`, for which the system returned `value`. Return the bytes for the caller."""
    while frame is not None and frame.f_code.co_filename in _WRAPPERS:
        module = _WRAPPERS[frame.f_code.co_filename]
        function = "random.SystemRandom" if module == "random" else f"{module}.{frame.f_code.co_name}"
        frame = frame.f_back
    file = frame.f_code.co_filename if frame is not None else ""
    if file.startswith("<frozen ") or callers.is_standard(file):
        return value
    if seeds._IDS:
        value = bytes(seeds.part("ids").draw(len(value)))
    place = (function, *callers.user_line())
    draws = _draws.get(place)
    if draws is None:
        if len(_draws) >= _PLACES:
            return value
        draws = _draws.setdefault(place, _Draws())  # another thread may have added it
    draws.count += 1
    if 16 <= len(value) <= 64:
        _State.ids += 1
        if _State.ids <= _MOST:
            draws.ids.append(_word(function, value))
    if draws.count >= 2 * draws.reported:
        _note(place, draws)
    return value


def _word(function: str, value: bytes) -> str:
    """The digest of an id. Random bytes have the version and variant bits of a UUID set, as `uuid.uuid4` sets them."""
    digits = value.hex()
    if len(digits) == 32 and function != "uuid.uuid1":
        digits = f"{digits[:12]}4{digits[13:16]}{int(digits[16], 16) & 3 | 8:x}{digits[17:]}"
    return _digest(digits) + (f".{_digest(digits[:8])}" if function.startswith("uuid.") else "")


def _digest(digits: str) -> str:
    digest: bytes = streams._sha256(b"repro-env id\0" + digits.encode())
    return digest.hex()[:16]


def _note(place: tuple[str, str, int], draws: _Draws) -> None:
    function, file, line = place
    more, ids = draws.count - draws.reported, len(draws.ids)
    draws.reported += more  # set before the write, during which other threads run
    facts = {"system_randomness": function, "count": 0 if seeds._IDS else more, "file": file, "line": line}
    if ids or _State.ids > _MOST:
        facts.update(pid=os.getpid(), worker=_State.worker)
        if _State.ids > _MOST or reports.size() > _FULL:
            facts["more"] = True
        if reports.size() <= _FULL:
            facts["ids"] = " ".join(draws.ids[:ids])
        del draws.ids[:ids]
    reports.report(facts)


def forget() -> None:
    """In a forked child: the parent reports its own counts."""
    _draws.clear()


def restart() -> None:
    """Use the identity of the new worker."""
    _State.worker = streams.own_rank() + repr(seeds._State.worker)


def finish() -> None:
    """Report the draws that are not in the reports yet."""
    for place, draws in list(_draws.items()):
        if draws.count > draws.reported:
            _note(place, draws)
