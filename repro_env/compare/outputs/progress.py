"""Compare texts with progress bars, which are drawn again after a time and not after a step.

How often a bar is drawn, its times and its speeds belong to one run. Everything else does not: two texts agree if all lines without
a bar are equal, each bar ends in the same state, and what both texts show of a bar at the same step is equal.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence

import msgspec

from repro_env.compare.outputs.comparison import Change
from repro_env.schema.codec import Frozen

PLACE = "(progress bar)"
"""The place of the times and speeds of a bar, if everything else that two texts show of it is equal."""
_CLOCK = r"\d+:\d\d(?::\d\d)?"
_TQDM = re.compile(
    rf"(?P<name>.*?):?(?:\s*\d+%)?(?:\|[ #0-9\u2580-\u259f]*\|)?\s*(?P<step>[\d.]+[A-Za-z]*(?:/[\d.?]+[A-Za-z]*)?) "
    rf"\[(?P<elapsed>{_CLOCK})(?:<(?:{_CLOCK}|\?))?,\s*(?:\?|[\d.]+)[^\s,\]]*/[^\s,\]]+(?:, (?P<more>.*?))?\]"
)
"""`Epoch 0:  50%|#####     | 5/10 [00:01<00:01,  4.50it/s, loss=0.5]`, as tqdm and Lightning write it."""
_DRAWN = re.compile(r"(?P<name>.*?)\s*(?:[\u2501\u2578\u257a]{3,}|\[[=>.]{5,}\])\s*(?P<more>.*)")
"""`train ━━━━ 50% 0:00:01 5/10`, as rich and Lightning write it; `5/10 ━━━━ 0s 12ms/step - loss: 0.5`, as Keras does."""
_TIMES = re.compile(
    rf"(?<!\S)(?:{_CLOCK}|-:--:--|\d+(?:s|ms|us)|[\d.]+\s?[A-Za-z]*/s|[\d.]+(?:s|ms|us)/[a-z]+)(?!\S)(?:\s*\u2022\s*)?"
)
_STEP = re.compile(r"(?<!\S)(?:\d+/\d+|\d+%)(?!\S)")
_VERSION = re.compile(r"(?:\A|(?<=\s))v_num(?:=|: )[^\s,]+,?")
"""The version of Lightning's logger, which may be a random name."""
_MOVES = re.compile("(\r|\b+|\x1b\\[[0-9;?]*[A-HJKf])")
"""What moves the cursor or erases."""
_UP, _ERASE = re.compile(r"\x1b\[(\d*)A"), re.compile(r"\x1b\[2?K")
_STYLES = re.compile("\x1b\\[[0-9;?]*[a-zA-Z]|[\u2800-\u28ff]")
"""Colours, and the signs of a spinner."""
_INDENT = " " * 10
_GAP = re.compile(r"(?<=\S) {10,}(?=\S)")
_LONGEST = 2000
"""Characters of the longest piece of text that can be a bar."""


class Bar(Frozen, frozen=True):
    """One drawing of a bar."""

    name: str
    step: str
    more: str
    """What is written after the speed, without times."""
    elapsed: int
    """Seconds; 0 if the bar does not show them."""
    version: str
    """Lightning's version, which `more` does not have."""
    text: str

    @property
    def state(self) -> str:
        """The text without times, speeds and the bar itself."""
        return " ".join(filter(None, (self.name, self.step, self.more)))

    @property
    def number(self) -> float:
        """The number of the step, or its percentage."""
        digits = re.match(r"\d+(?:\.\d+)?", self.step)
        return float(digits[0]) if digits else 0.0


class _Text(Frozen, frozen=True):
    lines: Sequence[tuple[int, str]]
    """The number and the text of each line without a bar."""
    bars: Sequence[Sequence[Bar]]
    """The drawings of each bar, in order of its first one."""
    erased: frozenset[int]
    """Numbers of the bars that are not on the terminal in the end."""


def changes(left: str, right: str) -> list[Change] | None:
    """Return the differences of two texts; None if neither has a progress bar."""
    old, new = _read(left), _read(right)
    if not (old.bars or new.bars):
        return None
    found = [
        Change(place="", at=f"line {(then or now)[0]}", then=then and then[1], now=now and now[1])
        for then, now in itertools.zip_longest(old.lines, new.lines)
        if (then and then[1]) != (now and now[1])
    ]
    for number, (then, now) in enumerate(itertools.zip_longest(old.bars, new.bars, fillvalue=())):
        if [bar.text for bar in then] != [bar.text for bar in now]:
            found += _changes_of_bar(then, now, is_erased=number in old.erased & new.erased)
    return found or _changes_of_bar(old.bars[0], new.bars[0], is_erased=False)


def _changes_of_bar(then: Sequence[Bar], now: Sequence[Bar], *, is_erased: bool) -> list[Change]:
    name = (then or now)[0].name
    at = f"progress bar {name}".rstrip()
    if not (then and now):
        return [Change(place="", at=at, then=then[-1].state if then else None, now=now[-1].state if now else None)]
    last, new = then[-1], now[-1]
    pairs = dict.fromkeys(_conflicts(then, now))
    if last.state != new.state and not is_erased:
        pairs[last.state, new.state] = None
    if last.version != new.version:
        pairs[last.version, new.version] = None
    elapsed = (max(bar.elapsed for bar in then), max(bar.elapsed for bar in now))
    return [
        *(Change(place="", at=at, then=old_state, now=new_state) for old_state, new_state in pairs),
        Change(place=PLACE, at=name, then=last.text, now=new.text, elapsed=elapsed),
    ]


def _conflicts(then: Sequence[Bar], now: Sequence[Bar]) -> Iterator[tuple[str | None, str | None]]:
    """Yield what the runs show differently at a step that both show.

    A script may change the text of a bar more often than the bar changes its step. Then the order of these texts counts instead.
    """
    labels = [[label for label, _ in itertools.groupby((bar.name, bar.more) for bar in bars)] for bars in (then, now)]
    if labels[0] == labels[1]:
        return
    old, new = _by_step(then), _by_step(now)
    for step in old:
        if step in new and not (old[step].keys() <= new[step].keys() or new[step].keys() <= old[step].keys()):
            yield from (pair for pair in itertools.zip_longest(old[step], new[step]) if pair[0] != pair[1])


def _by_step(bars: Sequence[Bar]) -> dict[str, dict[str, None]]:
    """Return the different states that a bar had at each step, in order."""
    found: dict[str, dict[str, None]] = {}
    for bar in bars:
        found.setdefault(bar.step, {})[bar.state] = None
    return found


def _read(text: str) -> _Text:
    """Separate the bars of a text from its lines."""
    bars: list[list[Bar]] = []
    rows: dict[int, int] = {}
    """The bar in each row of the terminal."""
    row = 0
    current: dict[str, int] = {}
    lines: list[tuple[int, str]] = []
    last, last_line = -1, -1
    """The number of the bar that was drawn last, and of its line."""
    for number, line in enumerate(text.split("\n"), 1):
        others, has_bar = [], False
        for piece in _pieces(line):
            bar = parse(piece)
            if up := _UP.fullmatch(piece):
                row -= int(up[1] or 1)
            elif _ERASE.fullmatch(piece):
                rows.pop(row, None)
            elif _MOVES.fullmatch(piece):
                pass
            elif bar is not None:
                has_bar, last, last_line = True, _bar_of(bar, bars, current), number
                rows[row] = last
            elif last_line == number - 1 and piece.startswith(_INDENT) and _DRAWN.fullmatch(bars[last][-1].text):
                drawn = bars[last][-1]  # rich continues a bar that is wider than the terminal on the next line
                own, *after = _GAP.split(_STYLES.sub("", piece).lstrip(), maxsplit=1)
                others += after
                more = " ".join([drawn.more, *own.split()])
                bars[last][-1], has_bar, last_line = msgspec.structs.replace(drawn, more=more), True, number
            elif not _STYLES.sub("", piece).strip():
                if " " in piece and (over := rows.pop(row, -1)) >= 0:
                    current = {name: index for name, index in current.items() if index != over}
            else:
                others.append(piece)
        row += 1
        is_control = not others and _MOVES.search(line) is not None
        if others and not has_bar:
            lines.append((number, line))
        elif others:
            lines.append((number, "\r".join(others)))
        elif not (has_bar or is_control):
            lines.append((number, line))
    if "\x1b[A" in text or "\x1b[1A" in text:  # the cursor also moves with line feeds
        lines = [(number, line) for number, line in lines if line]
    return _Text(lines, bars, frozenset(range(len(bars))) - {*rows.values()})


def _pieces(line: str) -> Iterator[str]:
    """Split a line at what moves the cursor, and after a bar that other text follows directly, or after the spaces that rich adds."""
    for piece in _MOVES.split(line):
        bar, gap = _TQDM.match(piece[:_LONGEST]), _GAP.search(piece[:_LONGEST])
        cut = 0
        if bar is not None and parse(piece) is None:
            cut = bar.end()
        elif gap is not None and parse(piece[: gap.start()]) is not None:
            cut = gap.end()
        yield from filter(None, (piece[:cut], _STYLES.sub("", piece[cut:]) if cut else piece))


def _bar_of(bar: Bar, bars: list[list[Bar]], current: dict[str, int]) -> int:
    """Add a drawing to the bar of its name, or to a new one if that has ended. Returns the number of the bar."""
    index = current.get(bar.name, -1)
    if index < 0 or bar.number < bars[index][-1].number:
        index = current[bar.name] = len(bars)
        bars.append([])
    bars[index].append(bar)
    return index


def parse(piece: str) -> Bar | None:
    """Return the progress bar that is a piece of text; None if it is something else."""
    if len(piece) > _LONGEST:
        return None
    text = _STYLES.sub("", piece).strip()
    if match := _TQDM.fullmatch(text):
        return _bar(match["name"], match["step"], match["more"] or "", _seconds(match["elapsed"]), text)
    match = _DRAWN.fullmatch(text)
    if match is None or _TIMES.search(match["more"]) is None:
        return None
    name, more = match["name"], match["more"]
    if step := _STEP.search(more):
        more = more[: step.start()] + more[step.end() :]
    elif step := _STEP.search(name):
        name = name[: step.start()] + name[step.end() :]
    return _bar(name, step[0], _TIMES.sub(" ", more), 0, text) if step else None


def _bar(name: str, step: str, more: str, elapsed: int, text: str) -> Bar:
    version = _VERSION.search(more)
    words = _VERSION.sub("", more).split()
    return Bar(name.strip(), step, " ".join(words), elapsed, version[0].rstrip(",") if version else "", text)


def _seconds(clock: str) -> int:
    seconds = 0
    for part in clock.split(":"):
        seconds = 60 * seconds + int(part)
    return seconds
