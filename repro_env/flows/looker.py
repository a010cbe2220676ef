"""The look into files of tensors that two runs left: where a run would be, with the environment's Python, both sides read-only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from repro_env.flows import inimage, streams
from repro_env.flows.asked import Asked, user_of
from repro_env.flows.execute import TOOLS
from repro_env.model.errors import ReproEnvError
from repro_env.model.spec import Spec
from repro_env.run import comparing
from repro_env.store.store import Store
from repro_env.verify.answers import Answer, answers

Look = Callable[[Sequence[tuple[Path, Path]]], tuple[Answer, ...]]
"""Pairs of files of tensors -> what differs in them."""
_WANTED, _OUT = "wanted.json", "answers.json"
_ANSWERS = 64 << 20
"""Bytes of answers that are read."""


def looker(spec: Spec, asked: Asked, store: Store) -> Look:
    """Looks in the runner of `asked`. What cannot be looked into has its reason as the answer, never an error."""

    def look(pairs: Sequence[tuple[Path, Path]]) -> tuple[Answer, ...]:
        folders = list(dict.fromkeys(str(path.parent) for pair in pairs for path in pair))
        on_host = asked.runner == "host"
        place = {folder: folder if on_host else comparing.shown_at(number) for number, folder in enumerate(folders)}
        words = [[f"{place[str(path.parent)]}/{path.name}" for path in pair] for pair in pairs]
        with store.temp.folder() as temporary:
            notes, folder = temporary / "notes", temporary / "run"
            notes.mkdir()
            folder.mkdir()
            (notes / _WANTED).write_bytes(msgspec.json.encode(words))
            launch = comparing.launch(
                spec,
                folders,
                user=user_of(asked.environ),
                empty=store.layers.add(()),
                tools=str(TOOLS),
                notes=str(notes),
                wanted=_WANTED,
                out=_OUT,
            )
            try:
                with streams.aside():
                    outcome = inimage.run(launch, folder, spec, asked, store)
            except ReproEnvError as error:
                return (Answer(problem=f"the comparison could not run: {error}"),) * len(pairs)
            if outcome.exit_code:
                return (Answer(problem=f"the comparison ended with exit code {outcome.exit_code}"),) * len(pairs)
            try:
                with (notes / _OUT).open("rb") as file:
                    data = file.read(_ANSWERS)
            except OSError as error:
                return (Answer(problem=f"the comparison gave no answer: {error.strerror}"),) * len(pairs)
            return answers(data, len(pairs))

    return look
