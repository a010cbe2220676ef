"""`Checkpoint`: the loops of a training, and when it saves, resumes and ends. What is saved is told in `parts` and `own`."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple, Optional

from repro_env.checkpoint import buckets, files, manifest, ranks, resuming, retention, rng, values
from repro_env.checkpoint import own as of_rank
from repro_env.checkpoint import parts as of_parts
from repro_env.checkpoint.errors import CheckpointError
from repro_env.checkpoint.folder import Folder, unwritable
from repro_env.checkpoint.gradients import Gradients
from repro_env.checkpoint.interrupts import Interrupts, leave
from repro_env.checkpoint.loaders import Followed, differing

_DUE = 1
"""What a rank asks for at a step: nothing (0), a checkpoint (1), or a checkpoint and the end (the signal's number, 2 or more)."""


class _Place(NamedTuple):
    """In the middle of an epoch: restored when the loader is there."""

    batch: int
    facts: dict[str, Any]
    """Of the loader."""
    loader: Any
    rng: Any


class Checkpoint:
    """Saves and resumes what is named in `parts`: anything with `state_dict` and `load_state_dict`, and random generators.

        training = Checkpoint("checkpoints", model=model, optimizer=optimizer, every=100)
        for epoch in training.epochs(10):
            for inputs, labels in training.batches(loader):
                ...
                training.step()

    `epochs` resumes. A checkpoint is written every `every` steps, when `seconds` have passed since the last one, after
    each epoch, and on TERM and USR1 (the process then ends with 128 + the signal's number). The last `keep` stay (None:
    all), and the one with the best `best` ("accuracy:max").

    `data`, `splits` (name -> members) and `recipe` are written to the manifest, with the digests of the run's `--data`.
    `resume` refuses data and splits that changed. Two splits must not share members. In a distributed run every rank makes the same
    calls. Weights of torch modules are written as safetensors. Gradients that no optimizer has used yet are kept too, so
    `step` may also be called after each micro-batch of an accumulation.
    """

    def __init__(
        self,
        folder: Any,
        *,
        every: Optional[int] = None,
        seconds: Optional[float] = None,
        each_epoch: bool = True,
        keep: Optional[int] = 2,
        best: Optional[str] = None,
        signals: bool = True,
        data: Optional[Mapping[str, str]] = None,
        splits: Optional[Mapping[str, Iterable[Any]]] = None,
        recipe: Any = None,
        **parts: Any,
    ) -> None:
        for name, number in (("every", every), ("keep", keep)):
            if number is not None and (number < 1 or int(number) != number):
                raise CheckpointError("is no number of 1 or more", where=f"{name}={number!r}", hint="leave it out, or give None")
        self.folder = os.path.abspath(os.fspath(folder))
        self.steps = 0
        """Steps done, over all processes that went before."""
        self.epoch = 0
        """The one that is running, or comes next."""
        self.values: dict[str, Any] = {}
        """Numbers, text, tensors of the script's own that are to be saved as well."""
        self._given = parts
        self._parts = {name: of_parts.inner(part) for name, part in parts.items()}
        of_parts.check(self._parts)
        self._gradients = Gradients(self._parts)
        self._every, self._seconds, self._each_epoch = every, seconds, each_epoch
        self._folder = Folder(self.folder, keep=keep, best=retention.best(best) if best else None)
        self._about = {
            "data": {**manifest.data(), **(data or {})},
            "splits": manifest.splits(splits or {}),
            "recipe": recipe,
        }
        manifest.check_about(self._about)
        self._metrics: dict[str, Any] = {}
        self._resumed = False
        self._parent: Optional[dict[str, Any]] = None
        self._place: Optional[_Place] = None
        self._buckets: dict[str, Any] = {}
        """Of DistributedDataParallel, by part, as they have to be before the next forward."""
        self._followed: Optional[Followed] = None
        self._batch = 0
        self._in_epoch = self._looped = False
        self._iterator: Any = None
        self._agree = ranks.Agreement()
        self._last = time.monotonic()
        self._interrupts = Interrupts()
        if signals:
            self._interrupts.listen()

    # --- the loop

    def epochs(self, count: int) -> Iterator[int]:
        """The numbers of the epochs that are left, from 0; the first may be one that was interrupted."""
        if not self._resumed:
            self.resume()
        while self.epoch < count:
            ranks.by_first(self._folder.open)
            self._in_epoch, self._looped = True, False
            try:
                yield self.epoch
            finally:
                self._in_epoch = False
            if self._place is not None:
                raise CheckpointError(
                    "the interrupted epoch was not gone on with", where="epochs", hint="use batches(loader) in each epoch"
                )
            self.epoch += 1
            self._batch = 0
            came = self._agree(self._interrupts.came)
            if self._each_epoch or came:
                self.save()
            if came:
                self._leave(came)

    def batches(self, loader: Any) -> Iterator[Any]:
        """The batches of this epoch that are left. Once in each epoch; loaders for validation are used as they are."""
        if not self._resumed:
            self.resume()
        if self._followed is not None or self._looped:
            raise CheckpointError(
                "was called before in this epoch", where="batches()", hint="one loader in an epoch has a position"
            )
        self._arrange(last=True)
        followed = Followed(loader, self.epoch)
        place, self._place = self._place, None
        if place is None:
            self._batch = 0
            iterator = followed.begin()
        else:
            wrong = differing(place.facts, followed.facts())
            if wrong:
                raise CheckpointError(
                    f"a position in another loader: {'; '.join(wrong)}",
                    where="resume",
                    hint="use the same loader until the interrupted epoch is over",
                )
            self._batch = place.batch
            iterator = followed.go_on(place.loader, place.batch, place.rng)
        self._followed, self._iterator, self._looped = followed, iterator, self._in_epoch
        stepped = self.steps
        try:
            while True:
                try:
                    batch = next(iterator)
                except StopIteration:
                    break
                except Exception:
                    # The workers may have been ended by the signal that we heard too: what it is then depends on where.
                    if self._interrupts.came and ranks.size() == 1 and self.steps > stepped:
                        self.save()
                        self._leave(self._interrupts.came)
                    raise
                self._batch += 1
                stepped = self.steps
                yield batch
        finally:
            self._followed = self._iterator = None
        if not self._in_epoch:
            self.epoch += 1
            self._batch = 0

    def step(self, **metrics: float) -> None:
        """A step is done: weights, optimizer and scheduler are as they should be saved. May save; may end the process."""
        self._arrange(last=True)
        self.steps += 1
        self.metrics(**metrics)
        due = self._every is not None and self.steps % self._every == 0
        late = self._seconds is not None and time.monotonic() - self._last >= self._seconds
        wanted = self._agree(self._interrupts.came or (_DUE if due or late else 0))
        if wanted:
            self.save()
        if wanted > _DUE:
            self._leave(wanted)

    def metrics(self, **numbers: float) -> None:
        """What the next checkpoints say of how good they are; `best` looks at it."""
        self._metrics.update({name: manifest.number(name, value) for name, value in numbers.items()})

    # --- saving

    def save(self, **metrics: float) -> str:
        """Write a checkpoint now. Its path, once it is whole on the disk.

        After a step, or outside of `epochs`: between the end of the batches and the end of an epoch there is nothing to
        go on from, and `epochs` saves by itself then.
        """
        self.metrics(**metrics)
        if self._in_epoch and self._followed is None:
            raise CheckpointError(
                "the epoch is not over",
                where="save",
                hint="epochs() saves at its end; hand it numbers with metrics(...)",
            )
        mine: Any
        try:
            mine = of_rank.pack(self._given, self._gradients, self._followed)
        except Exception as error:  # noqa: BLE001 - whatever it is, the other ranks wait for this one
            mine = unwritable(error, self.folder)
            mine.__cause__ = None if mine is error else error
        everyone = ranks.gather(mine)
        path = ranks.by_first(lambda: self._write(everyone))
        self._last = time.monotonic()
        return str(path)

    def _write(self, everyone: list[Any]) -> str:
        for one in everyone:
            if isinstance(one, CheckpointError):
                raise one

        def fill(hidden: str) -> dict[str, Any]:
            written = of_parts.write(self._parts, self.values, hidden, step=self.steps)
            for rank, state in enumerate(everyone):
                name = of_rank.name(rank)
                written.files[name] = files.write(os.path.join(hidden, name), [state])
            return {**self._facts(), **written.facts()}

        return self._folder.add(self.steps, fill)

    def _facts(self) -> dict[str, Any]:
        """Of the manifest, without the files."""
        followed = self._followed
        return {
            "schema": manifest.SCHEMA,
            "step": self.steps,
            "epoch": self.epoch,
            "batch": self._batch if followed else None,
            "created": manifest.now(),
            "parent": self._parent,
            "metrics": self._metrics,
            "loader": followed.facts() if followed else None,
            **self._about,
            **manifest.origin(),
        }

    # --- resuming

    def resume(self, path: Any = None) -> bool:
        """Go on from a checkpoint: the youngest whole one of the folder, or the one at `path`. False where there is none.

        Raises `CheckpointError` where there are some and none is whole, or where this is not the training they are of.
        """
        self._resumed = True
        opened = resuming.find(self._folder, path)
        if opened is None:
            return False
        resuming.same_training(opened, self._parts, self._about)
        of_parts.fill(opened, self._parts)
        own, facts = of_rank.unpack(opened), opened.facts
        for name, buffers in own["buffers"].items():
            if name in self._parts:
                self._parts[name].load_state_dict(buffers, strict=False)
        self.values = values.load(opened, of_parts.STATE, {"values": dict})["values"]
        self.steps, self.epoch, batch = facts["step"], facts["epoch"], facts["batch"]
        self._metrics = dict(facts["metrics"])
        self._parent = {"run": facts["run"], "path": opened.path, "sha256": opened.sha256, "step": facts["step"]}
        self._buckets = buckets.expected(self._given, own["buckets"])
        self._arrange(last=False)
        self._gradients.put_back(own["gradients"])
        if batch is None:
            rng.restore(own["rng"])
        else:
            self._batch = batch
            self._place = _Place(batch, facts["loader"], own["loader"], own["rng"])
        if not ranks.rank():
            manifest.note(opened)
            place = f"epoch {self.epoch}" + ("" if batch is None else f", after batch {batch}")
            sys.stderr.write(f"repro-env: goes on from {opened.path} (step {self.steps}, {place})\n")
        self._last = time.monotonic()
        return True

    def _arrange(self, *, last: bool) -> None:
        """DistributedDataParallel may come around a module after `resume`, and has to be there before the first batch."""
        if self._buckets:
            self._buckets = buckets.arrange(self._given, self._buckets, self._agree, last=last)

    # --- the end

    def close(self) -> None:
        """Stop listening to signals, and let others write to the folder."""
        self._interrupts.close()
        self._folder.close()

    def __enter__(self) -> Checkpoint:  # noqa: PYI034 - Self came with Python 3.11
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _leave(self, number: int) -> None:
        leave(number, self.steps, self._iterator, tell=not ranks.rank())
