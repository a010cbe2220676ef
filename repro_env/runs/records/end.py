"""The end of a run's record: everything that the command wrote, printed and reported, as one `End`."""

from __future__ import annotations

import contextlib
import os
import pwd
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path

from repro_env.io.files import remove_tree, sha256_of
from repro_env.runs.lineage import parents
from repro_env.runs.records import checkpointstate, metrics, parameters, records, reports
from repro_env.sandbox import outputs
from repro_env.schema import fingerprints, redact
from repro_env.schema.environment import values_of
from repro_env.schema.run import End, Launch, MachineFacts, Outcome, Output, Process, Start
from repro_env.schema.rundirectory import FILES, TRACE
from repro_env.store.store import Store


def read_end(
    launch: Launch,
    start: Start,
    outcome: Outcome,
    *,
    run_directory: Path,
    seconds: float,
    started: str,
    removed: Sequence[str],
    problems: Sequence[str],
    after: checkpointstate.Listing | None,
    processes: tuple[Process, ...] = (),
    store: Store,
) -> End:
    """Read everything in the run directory. `started`: digest of `start.json`. `problems`: lines to add to `others`."""
    files = run_directory / FILES
    files_found = outputs.of_run(run_directory)
    found = reports.of_run(Path(launch.reports))
    metrics_found, parameters_found = metrics.collect(files, files_found.outputs), parameters.collect(files, files_found.outputs)
    return End(
        schema="repro-env/run-end/1",
        id=start.id,
        ended=timestamp(datetime.now(timezone.utc)),
        seconds=round(seconds, 3),
        outcome=outcome,
        outputs=files_found.outputs,
        special_files=(*files_found.others, *problems),
        removed=tuple(redact.line(path) for path in removed),
        auto_seeded=found.auto_seeded,
        start=started,
        seeded=found.seeded,
        system_randomness=found.system_randomness,
        random_ids=found.random_ids,
        random_ids_incomplete=found.random_ids_incomplete,
        machine=_collect_process_facts(launch, start, found.pids),
        operations=found.operations,
        settings=found.settings,
        ranks=found.ranks,
        processes=processes,
        metrics=metrics_found.metrics,
        parameters=parameters_found.parameters,
        unparsed_outputs=tuple(sorted((*metrics_found.unparsed, *parameters_found.unparsed))),
        trace=keep_trace(launch, run_directory),
        checkpoints_after=checkpointstate.digest(after),
        console=hash_console(run_directory),
        resumed=parents.from_checkpoints(found.resumed, [run_directory.parent, *store.run_directories.paths()], start.id),
    )


def _collect_process_facts(launch: Launch, start: Start, pids: Sequence[int]) -> MachineFacts:
    """Return the PIDs of the command, and what it saw of its machine and user."""
    values = values_of(launch.env)
    host, user = launch.hostname, launch.user.name
    if not start.traits.is_isolated:
        host, user = os.uname().nodename, _login_name()
    return MachineFacts(
        host=fingerprints.digest_of_name(host),
        user=fingerprints.digest_of_name(next((values[name] for name in ("LOGNAME", "USER") if values.get(name)), user)),
        temporary=redact.line(next((values[name] for name in ("TMPDIR", "TEMP", "TMP") if values.get(name)), "/tmp")),  # noqa: S108
        home=redact.line(values.get("HOME", "")),
        pids=tuple(pids),
    )


def _login_name() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return ""


def hash_console(run_directory: Path) -> tuple[Output, ...]:
    """Return the digests of the files in the run directory that contain what the command printed."""
    files = []
    for path in records.logs(run_directory):
        name = path.relative_to(run_directory).as_posix()
        with contextlib.suppress(OSError):
            files.append(Output(path=name, sha256=f"sha256:{sha256_of(path)}", size=path.lstat().st_size))
    return tuple(files)


def keep_trace(launch: Launch, run_directory: Path) -> tuple[Output, ...]:
    """Move the trace from the reports to the run directory and return the digests of its files."""
    source, target = Path(launch.reports) / TRACE, run_directory / TRACE
    if not source.is_dir() or source.is_symlink():
        return ()
    with contextlib.suppress(OSError):
        remove_tree(target)
        source.rename(target)
    return outputs.collect(target).outputs


def timestamp(time: datetime) -> str:
    """Format a UTC time as ISO 8601 with milliseconds."""
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")
