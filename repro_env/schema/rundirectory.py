"""The names inside the directory of a run. Each is written here once; `runs.records.records` says what the files are for."""

from __future__ import annotations

from pathlib import Path

START, END, LOCK = "start.json", "end.json", "lock"
READY = "ready.json"
"""With `END` and `LOCK`, in the directory of a process that shares the run: it can start its command."""
FILES, OUTSIDE = "files", "outside"
"""What the run wrote in its project, and elsewhere, by absolute path."""
SCRATCH = ".scratch"
"""What is not an output. It is removed with everything else that was made before the command started."""
OPEN = ".unfinished.json"
"""What an output is, until the outputs are collected."""
RANKS, HOSTS = "ranks", "hosts"
"""For each process that shares the run, what it records; for each of their machines, until the end, what only it writes."""
REPORTS, REPORTS_FILE = "reports", "reports.jsonl"
"""The directory that the hooks write to, and the file there of one process."""
TRACE = "trace"
"""The steps of the training: one file per process."""
STDOUT, STDERR, CONSOLE = LOGS = ("stdout.log", "stderr.log", "console.log")
"""What the command printed. If stdout and stderr are the same terminal, file or pipe, there is only `console.log`."""
CHECKPOINTS_BEFORE, CHECKPOINTS_AFTER = "checkpoints-before.json", "checkpoints-after.json"
ANNOTATIONS, VERIFIED, PULLED = "annotations", "verified", "pulled.json"
"""What is written after the run: by its users, by `verify`, and by `runs pull`."""


def path_of(output: str) -> str:
    """Return the path of an output in the run's directory. An output outside the project has an absolute path."""
    return f"{OUTSIDE}{output}" if output.startswith("/") else f"{FILES}/{output}"


def locate(files: Path, output: str) -> Path:
    """Return where the file of an output is. `files`: the directory `FILES` of the run."""
    return files.with_name(OUTSIDE) / output[1:] if output.startswith("/") else files / output


def output_of(path: str) -> str | None:
    """Return the output at a path in the run's directory; None if the path is not that of an output."""
    directory, _, name = path.partition("/")
    return {FILES: name, OUTSIDE: f"/{name}"}.get(directory) if name else None
