"""`repro-env sensitivity`: how far do the numbers of a command move with the seed?

Its options are those of `exec` and three of its own; the words are split as there, so that the command stays as typed.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from repro_env.cli import exec as one_run
from repro_env.model.errors import UsageError

if TYPE_CHECKING:
    from repro_env.flows.asked import Asked
    from repro_env.flows.execute import Done
    from repro_env.flows.sensitivity import Found

HELP = """\
Usage: repro-env sensitivity --seeds N [OPTIONS] [--] COMMAND [ARGS]...

Run a command once for each of N seeds, and say how far its metrics move: mean with a 95% t-interval, range,
seeds that stand out, a small plot.

  repro-env sensitivity --seeds 10 train.py
  repro-env sensitivity --seeds 10 --metric val_loss:min -- train.py --epochs 3

Metrics are numbers in files that the command writes: JSON, JSON lines, CSV, TensorBoard. Each run is recorded like one of
`repro-env exec`. Only what takes its randomness from the master seed moves: seeds that the script sets itself are
named, and are the same in all runs.

Options:
  --seeds N                    How many, 2 to 10000. Fewer than 5 say little; 10 or more are better.
  --metric NAME[:WHICH]        Only this metric. WHICH of its values: last (default), min or max. Where several files have
                               one of that name, say FILE:NAME. Default: a table of the last values of all.
  --seed N                     The first seed; the others follow it. Default: the one of the capture.
  --json                       Print the result as one line on stdout, after the command's own output.
  -q, --quiet                  Print only the result, warnings and errors.
  -v, --verbose                Print details too.

All other options are those of `repro-env exec`, except --checkpoints, --save and --record, which are for a single run.
With --runner host, each run works in a private copy of the source.

Exit code 0: every run succeeded, and there is a metric that all of them have. 1: not so. 128 + N when signal N ended it.
"""
_MOST = 10_000
_SINGLE = ("--save", "--record", "--checkpoints")
_SHOWN = 40
"""Metrics of a table."""


def main(words: Sequence[str]) -> int:
    """Run `repro-env sensitivity`. Raises our errors."""
    parsed = one_run.split(words, more=("--seeds", "--metric"), name="sensitivity")
    if parsed.has("--help") or parsed.has("-h"):
        from repro_env.cli import untouched

        untouched.show(HELP)
        return 0
    one_run.set_level(parsed)
    from repro_env.flows.sensitivity import over_seeds, wanted

    if not parsed.command:
        raise UsageError(
            "there is no command", where="repro-env sensitivity", hint="such as repro-env sensitivity --seeds 10 train.py"
        )
    count, metric = _count(parsed.last("--seeds")), wanted(parsed.last("--metric"))
    for option in _SINGLE:
        if parsed.has(option):
            raise UsageError("is for a single run", where=option, hint="every run is recorded: repro-env runs get ID --to DIR")
    asked = one_run.request(parsed, here=Path.cwd(), environ=dict(os.environ))
    asked = msgspec.structs.replace(asked, private=True)  # each seed starts from the same files
    from repro_env.cli import say
    from repro_env.flows.asked import seed_of
    from repro_env.flows.execute import execute
    from repro_env.flows.opened import opened
    from repro_env.model.talk import Details
    from repro_env.store.store import Store

    tell = one_run.Marked()
    found = opened(parsed.last("--spec"), asked.here, tell=tell)
    if asked.runs is None and found.runs is not None:
        asked = msgspec.structs.replace(asked, runs=found.runs)
    store = Store.open()

    def run(asked: Asked) -> Done:
        done = execute(asked, found.spec, found.folder, store=store, tell=Details(tell))
        tell.detail(one_run.ending(done))
        if done.compiled:
            from repro_env.flows import bytecode

            bytecode.keep(done.compiled, found.spec, store=store, tell=tell, asked=asked)
        return done

    result = over_seeds(asked, seed_of(asked, found.spec), count, metric, run=run, tell=tell)
    if parsed.has("--json"):
        say.json_result(result)
    else:
        for line in page(result, _columns()):
            say.result(say.visible(line))
    for text in closing(result, asked.runs):
        tell(text)
    if result.stopped:
        return 128 + result.stopped
    return 0 if result.good else 1


def page(found: Found, columns: int | None = None) -> list[str]:
    """The result, for people: one metric with its plot, or a table of several. `columns`: of the terminal, None for no terminal."""
    from repro_env.cli import say
    from repro_env.verify import sensitivity

    lines: list[str] = []
    told = [one for one in found.metrics if one.spread is not None]
    if len(told) == 1 and told[0].spread is not None:
        one = told[0]
        lines.append(f"{one.metric} ({one.which})")
        lines += [f"  {text}" for text in sensitivity.sentences(told[0].spread)]
        plot = sensitivity.plot(told[0].spread, columns)
        lines += ["", *(f"  {row}" for row in plot)] if plot else []
    elif told:
        rows = [_row(one.metric, one.spread) for one in told[:_SHOWN] if one.spread is not None]
        header = ("METRIC", "SEEDS", "MEAN", "95% INTERVAL", "RANGE", "FAR FROM THE OTHERS")
        lines += say.table(rows, header=header).splitlines()
        if len(told) > _SHOWN:
            lines.append(f"and {len(told) - _SHOWN} more")
    lines += [
        f"{one.metric}: seed{'s' * (len(one.missing) > 1)} {', '.join(map(str, one.missing[:_SHOWN]))} did not write it"
        for one in found.metrics[:_SHOWN]
        if one.missing
    ]
    lines += [f"{one.metric}: fewer than two seeds have a number" for one in found.metrics[:_SHOWN] if one.spread is None]
    return lines


def _row(name: str, spread: Any) -> tuple[str, ...]:
    from repro_env.verify.sensitivity import number

    interval = "all equal" if spread.equal else f"{number(spread.low)} to {number(spread.high)}"
    far = ", ".join(f"seed {seed}" for seed in spread.outliers[:4]) + (" ..." if len(spread.outliers) > 4 else "")
    return (
        name,
        str(len(spread.values)),
        number(spread.mean),
        interval,
        f"{number(spread.least)} to {number(spread.most)}",
        far,
    )


def closing(found: Found, runs: Path | None = None) -> list[str]:
    """What is said when all is over. `runs`: their folder, where it was given."""
    from repro_env.catalog.ids import short
    from repro_env.cli.options import again
    from repro_env.flows.sensitivity import own_seeds
    from repro_env.verify.sensitivity import FEW

    failed = [one for one in found.runs if one.exit_code]
    said = []
    if failed:
        named = ", ".join(f"seed {one.seed} (exit {one.exit_code}, run {short(one.id)})" for one in failed[:_SHOWN])
        said.append(f"failed, and in no number above: {named}")
    if len(found.runs) < found.asked:
        said.append(f"{len(found.runs)} of {found.asked} seeds were run")
    if len(found.runs) - len(failed) < FEW:
        said.append(f"fewer than {FEW} seeds: this is no range over seeds yet")
    if len(found.runs) > 1 and all(one.equal for one in found.runs):
        said.append("all outputs are equal, byte for byte: the master seed changes nothing here")
    if found.seeded:
        said.append("the same in all runs" + own_seeds(found.seeded))
    if found.runs:
        said.append(f"next: repro-env runs show {short(found.runs[-1].id)}{again(runs)}")
    return said


def _columns() -> int | None:
    """Of the terminal that stdout is."""
    return shutil.get_terminal_size().columns - 2 if sys.stdout is not None and sys.stdout.isatty() else None


def _count(text: str | None) -> int:
    if text is None:
        raise UsageError("how many seeds?", where="repro-env sensitivity", hint="such as --seeds 10")
    if not (text.isascii() and text.isdigit() and 2 <= int(text) <= _MOST):
        raise UsageError("is no number of seeds", where=f"--seeds {text}", hint=f"give a number from 2 to {_MOST}")
    return int(text)


def add(app: Any) -> None:
    from repro_env.cli import untouched

    untouched.add(app, "sensitivity", main)
