"""What is written down of a run when its command is over: all that was left, noted and measured, as one `End`."""

from __future__ import annotations

import contextlib
import os
import pwd
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path

from repro_env.catalog import metrics, noted, outputs, parents, recipe, records
from repro_env.flows import before
from repro_env.io.files import remove_tree, sha256_of
from repro_env.model import evidence, redact
from repro_env.model.run import End, Launch, Lost, Outcome, Output, Own, Start
from repro_env.run import console, plan, pycache
from repro_env.run.bytecode import Module
from repro_env.store.store import Store


def end_of(
    launch: Launch,
    start: Start,
    outcome: Outcome,
    *,
    folder: Path,
    seconds: float,
    started: str,
    removed: Sequence[str],
    problems: Sequence[str],
    after: before.Listing | None,
    compiled: Sequence[Module],
    lost: Lost | None = None,
    store: Store,
) -> End:
    """Read everything in the run's `folder`. `started`: digest of its `start.json`. `problems` stand among `others`.

    `compiled`: modules of the image that the command had to compile.
    """
    files, notes = folder / "files", Path(launch.notes)
    left = outputs.of_run(folder)
    said = noted.read(notes / plan.NOTES)
    numbers, values = metrics.collect(files, left.outputs), recipe.parameters(files, left.outputs)
    return End(
        schema="repro-env/run-end/1",
        id=start.id,
        ended=moment(datetime.now(timezone.utc)),
        seconds=round(seconds, 3),
        outcome=outcome,
        outputs=left.outputs,
        others=(*left.others, *problems),
        removed=tuple(redact.line(path) for path in removed),
        holes=said.holes,
        start=started,
        seeded=said.seeded,
        entropy=said.entropy,
        drawn=said.drawn,
        drawn_more=said.drawn_more,
        own=own_of(launch, outcome, said.pids),
        operations=said.operations,
        effective=said.effective,
        world=said.world,
        metrics=numbers.metrics,
        parameters=values.parameters,
        unread=tuple(sorted((*numbers.unread, *values.unread))),
        trace=traced(launch, folder),
        after=before.digest(after),
        compiled=tuple(one.path for one in compiled) if pycache.KEPT in outcome.means else (),
        console=console_of(folder),
        lost=lost,
        resumed=parents.resumed(said.resumed, [folder.parent, *store.seen.folders()], start.id),
    )


def own_of(launch: Launch, outcome: Outcome, pids: Sequence[int]) -> Own:
    """What the command saw of its machine and user, and its processes."""
    values = {variable.name: variable.value for variable in launch.env}
    host, user = launch.hostname, launch.user.name
    if outcome.isolation == "none":
        host, user = os.uname().nodename, _login()
    return Own(
        host=evidence.digest_of_name(host),
        user=evidence.digest_of_name(next((values[name] for name in ("LOGNAME", "USER") if values.get(name)), user)),
        temporary=redact.line(next((values[name] for name in ("TMPDIR", "TEMP", "TMP") if values.get(name)), "/tmp")),  # noqa: S108
        home=redact.line(values.get("HOME", "")),
        pids=tuple(pids),
    )


def _login() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return ""


def console_of(folder: Path) -> tuple[Output, ...]:
    """What the command printed, as it lies in the run's `folder`."""
    found = []
    for name in console.NAMES:
        with contextlib.suppress(OSError):
            path = folder / name
            found.append(Output(path=name, sha256=f"sha256:{sha256_of(path)}", size=path.lstat().st_size))
    return tuple(found)


def traced(launch: Launch, folder: Path) -> tuple[Output, ...]:
    """Keep the trace beside the record, in the run's `folder`."""
    noted_at, kept = Path(launch.notes) / plan.TRACE, folder / records.TRACE
    if not noted_at.is_dir() or noted_at.is_symlink():
        return ()
    with contextlib.suppress(OSError):
        remove_tree(kept)
        noted_at.rename(kept)
    return outputs.collect(kept).outputs


def moment(when: datetime) -> str:
    """UTC, ISO 8601 with milliseconds."""
    return when.strftime("%Y-%m-%dT%H:%M:%S.") + f"{when.microsecond // 1000:03d}Z"
