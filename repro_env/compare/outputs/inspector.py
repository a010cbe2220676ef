"""Compare tensor files of two runs, in the runner and with the environment's Python, both sides read-only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from repro_env.compare.outputs.tensors import Answer, answers
from repro_env.oci import paths as layout
from repro_env.runs.execution import imageprogram, streams
from repro_env.runs.start.request import RunOptions
from repro_env.schema.errors import ReproEnvError
from repro_env.schema.run import Mount
from repro_env.schema.rundirectory import REPORTS
from repro_env.schema.spec import Spec
from repro_env.store.store import Store

CompareTensors = Callable[[Sequence[tuple[Path, Path]]], tuple[Answer, ...]]
"""Pairs of tensor files -> their differences."""
_WANTED, _OUT = "wanted.json", "answers.json"
_WORKSPACE = "/.repro-env/compare"
_ANSWERS = 64 << 20
"""Most bytes of answers that are read."""


def tensor_comparer(spec: Spec, options: RunOptions, store: Store) -> CompareTensors:
    """Return a function that compares pairs of tensor files in the runner of `options`.

    If a comparison fails, its answer has the reason; the function does not raise.
    """

    def compare(pairs: Sequence[tuple[Path, Path]]) -> tuple[Answer, ...]:
        directories = list(dict.fromkeys(str(path.parent) for pair in pairs for path in pair))
        moves = options.traits.moves_mounts
        paths = {directory: directory if not moves else f"{_WORKSPACE}-{number}" for number, directory in enumerate(directories)}
        wanted = [[f"{paths[str(path.parent)]}/{path.name}" for path in pair] for pair in pairs]
        with store.temp.directory() as temporary:
            reports, directory = temporary / REPORTS, temporary / "run"
            reports.mkdir()
            directory.mkdir()
            (reports / _WANTED).write_bytes(msgspec.json.encode(wanted))
            program = [spec.identity.command, "-s", f"{layout.SEEDS}/guest/compare.py"]
            argv = [*program, f"{layout.REPORTS}/{_WANTED}", f"{layout.REPORTS}/{_OUT}"]
            mounts = [Mount(kind="data", source=directory, target=target) for directory, target in paths.items()]
            launch = imageprogram.launch(spec, "compare", argv, _WORKSPACE, reports=reports, store=store, mounts=mounts)
            try:
                with streams.stdout_to_stderr():
                    outcome = imageprogram.run(launch, directory, spec, options, store)
            except ReproEnvError as error:
                return (Answer(problem=f"the comparison could not run: {error}"),) * len(pairs)
            if outcome.exit_code:
                return (Answer(problem=f"the comparison ended with exit code {outcome.exit_code}"),) * len(pairs)
            try:
                with (reports / _OUT).open("rb") as file:
                    data = file.read(_ANSWERS)
            except OSError as error:
                return (Answer(problem=f"the comparison's result cannot be read: {error.strerror}"),) * len(pairs)
            return answers(data, len(pairs))

    return compare
