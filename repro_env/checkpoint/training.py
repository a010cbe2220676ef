"""`Checkpoint`: the loops of a training, and when it saves, resumes and ends."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple, NoReturn, Optional

from repro_env.checkpoint import buckets, files, manifest, ranks, rng, values
from repro_env.checkpoint import parts as of_parts
from repro_env.checkpoint.directory import Directory, find, parse_best, write_error
from repro_env.checkpoint.errors import CheckpointError, CheckpointWarning
from repro_env.checkpoint.gradients import Gradients
from repro_env.checkpoint.interrupts import Interrupts
from repro_env.checkpoint.loaders import TrackedLoader, differences
from repro_env.checkpoint.manifest import Opened

_DUE = 1
"""What a rank requests at a step: nothing (0), a checkpoint (1), or a checkpoint and exit (the number of a signal, 2 or more)."""


_RANK_STATE: dict[str, Any] = {"rng": dict, "loader": (dict, type(None)), "buffers": dict, "gradients": dict, "buckets": dict}
"""The entries of the state of a rank, and their types."""


class _Position(NamedTuple):
    """A position within an epoch, which is restored when `batches` is called with the loader."""

    batch: int
    facts: dict[str, Any]
    """The saved facts of the loader."""
    loader: Any
    """The saved state of the loader."""
    rng: Any


class Checkpoint:
    """Saves and resumes the `parts`: objects with `state_dict` and `load_state_dict`, and random generators.

        training = Checkpoint("checkpoints", model=model, optimizer=optimizer, every=100)
        for epoch in training.epochs(10):
            for inputs, labels in training.batches(loader):
                ...
                training.step()

    `epochs` resumes. A checkpoint is written every `every` steps, when `seconds` have passed since the last checkpoint, after
    each epoch, and on SIGTERM and SIGUSR1 (the process then exits with 128 + the signal's number). The last `keep`
    checkpoints are kept (None: all), and also the one with the best metric `best` ("accuracy:max").

    `data`, `splits` (name -> members) and `recipe` are written to the manifest, with the digests of the run's `--data`.
    `resume` refuses data and splits that changed. Two splits must not share members. In a distributed run, every rank must
    make the same calls. The weights of torch modules are written as safetensors. Gradients that no optimizer has used yet
    are also saved, so `step` may be called after each micro-batch of a gradient accumulation.
    """

    def __init__(
        self,
        directory: Any,
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
                raise CheckpointError("this must be an integer of at least 1, or None", where=f"{name}={number!r}")
        self.directory = os.path.abspath(os.fspath(directory))
        self.steps = 0
        """Number of completed steps, including those before resuming."""
        self.epoch = 0
        """The current or next epoch."""
        self.values: dict[str, Any] = {}
        """The script's own numbers, texts and tensors, which are also saved."""
        self._wrapped = parts
        self._parts = {name: of_parts.inner(part) for name, part in parts.items()}
        of_parts.check(self._parts)
        self._gradients = Gradients(self._parts)
        self._every, self._seconds, self._each_epoch = every, seconds, each_epoch
        self._directory = Directory(self.directory, keep=keep, best=parse_best(best) if best else None)
        self._about = {
            "data": {**manifest.data(), **(data or {})},
            "splits": manifest.splits(splits or {}),
            "recipe": recipe,
        }
        manifest.check_about(self._about)
        self._metrics: dict[str, Any] = {}
        self._resumed = False
        self._parent: Optional[dict[str, Any]] = None
        self._position: Optional[_Position] = None
        self._buckets: dict[str, Any] = {}
        """Arrangements for DistributedDataParallel, by part, that must be restored before the next forward pass."""
        self._loader: Optional[TrackedLoader] = None
        self._batch = 0
        self._in_epoch = self._looped = False
        self._agree = ranks.Agreement()
        self._last = time.monotonic()
        self._interrupts = Interrupts()
        if signals:
            self._interrupts.listen()

    # --- the loop

    def epochs(self, count: int) -> Iterator[int]:
        """Yield the numbers of the remaining epochs, counted from 0. The first may be an interrupted epoch."""
        if not self._resumed:
            self.resume()
        while self.epoch < count:
            ranks.run_on_first(self._directory.open)
            self._in_epoch, self._looped = True, False
            try:
                yield self.epoch
            finally:
                self._in_epoch = False
            if self._position is not None:
                raise CheckpointError(
                    "the script did not resume the interrupted epoch", where="epochs()", hint="call batches(loader) in each epoch"
                )
            self.epoch += 1
            self._batch = 0
            signal_number = self._agree(self._interrupts.received)
            if self._each_epoch or signal_number:
                self.save()
            if signal_number:
                self._leave(signal_number)

    def batches(self, loader: Any) -> Iterator[Any]:
        """Yield the remaining batches of this epoch. Call this once per epoch, and only for the training data."""
        if not self._resumed:
            self.resume()
        if self._loader is not None or self._looped:
            raise CheckpointError(
                "this was already called in this epoch",
                where="batches()",
                hint="call it once per epoch, and use other loaders directly",
            )
        self._arrange(last=True)
        tracked = TrackedLoader(loader, self.epoch)
        position, self._position = self._position, None
        if position is None:
            self._batch = 0
            iterator = tracked.begin()
        else:
            changes = differences(position.facts, tracked.facts())
            if changes:
                raise CheckpointError(
                    f"the loader differs from the one in the checkpoint: {'; '.join(changes)}",
                    where="batches()",
                    hint="use the same loader until the end of the interrupted epoch",
                )
            self._batch = position.batch
            iterator = tracked.resume(position.loader, position.batch, position.rng)
        self._loader, self._looped = tracked, self._in_epoch
        last_steps = self.steps
        try:
            while True:
                try:
                    batch = next(iterator)
                except StopIteration:
                    break
                except Exception:
                    # The signal that this process received may also have ended the workers, which causes various errors.
                    if self._interrupts.received and ranks.size() == 1 and self.steps > last_steps:
                        self.save()
                        self._leave(self._interrupts.received)
                    raise
                self._batch += 1
                last_steps = self.steps
                yield batch
        finally:
            self._loader = None
        if not self._in_epoch:
            self.epoch += 1
            self._batch = 0

    def step(self, **metrics: float) -> None:
        """Report that a step is complete, including the optimizer and scheduler. May save a checkpoint, and end the process."""
        self._arrange(last=True)
        self.steps += 1
        self.metrics(**metrics)
        due_by_steps = self._every is not None and self.steps % self._every == 0
        due_by_time = self._seconds is not None and time.monotonic() - self._last >= self._seconds
        agreed = self._agree(self._interrupts.received or (_DUE if due_by_steps or due_by_time else 0))
        if agreed:
            self.save()
        if agreed > _DUE:
            self._leave(agreed)

    def metrics(self, **numbers: float) -> None:
        """Set metrics of the following checkpoints. `best` refers to them."""
        self._metrics.update({name: manifest.number(name, value) for name, value in numbers.items()})

    # --- saving

    def save(self, **metrics: float) -> str:
        """Write a checkpoint now, and return its path after it has been flushed to disk.

        Call this after a step, or outside of `epochs`. Between the last batch and the end of an epoch a training cannot
        resume; `epochs` saves at the end of the epoch.
        """
        self.metrics(**metrics)
        if self._in_epoch and self._loader is None:
            raise CheckpointError(
                "a checkpoint cannot be saved between the last batch and the end of the epoch",
                where="save()",
                hint="epochs() saves at the end of the epoch; pass metrics to metrics(...)",
            )
        own: Any
        try:
            own = self._encode_rank()
        except Exception as error:  # noqa: BLE001 - the other ranks wait for this rank, whatever the error is
            own = write_error(error, self.directory)
            own.__cause__ = None if own is error else error
        states = ranks.gather(own)
        path = ranks.run_on_first(lambda: self._write(states))
        self._last = time.monotonic()
        return str(path)

    def _encode_rank(self) -> bytes:
        """Return the state of this rank, which has a file of its own in the checkpoint. Raises `CheckpointError`."""
        import torch

        of_parts.check(self._parts)
        state = {
            "rng": rng.capture(),
            "loader": self._loader.state() if self._loader else None,
            "buffers": of_parts.buffers(self._parts) if ranks.size() > 1 else {},
            "gradients": self._gradients.unused(),
            "buckets": buckets.arrangements(self._wrapped),
        }
        buffer = io.BytesIO()
        torch.save(values.encode(state, f"the state of rank {ranks.rank()}"), buffer)
        return buffer.getvalue()

    def _write(self, states: list[Any]) -> str:
        for state in states:
            if isinstance(state, CheckpointError):
                raise state

        def fill(hidden: str) -> dict[str, Any]:
            names, written = of_parts.write(self._parts, self.values, hidden, step=self.steps)
            for rank, state in enumerate(states):
                name = _rank_file(rank)
                written[name] = files.write(os.path.join(hidden, name), [state])
            contents = {name: file._asdict() for name, file in written.items()}
            return {**self._facts(), "parts": names, "files": contents}

        return self._directory.add(self.steps, fill)

    def _facts(self) -> dict[str, Any]:
        """Return the facts of the manifest, without the files."""
        return {
            "schema": manifest.SCHEMA,
            "step": self.steps,
            "epoch": self.epoch,
            "batch": self._batch if self._loader else None,
            "parent": self._parent,
            "metrics": self._metrics,
            "loader": self._loader.facts() if self._loader else None,
            **self._about,
            **manifest.origin(),
        }

    # --- resuming

    def resume(self, path: Any = None) -> bool:
        """Resume from the checkpoint at `path`, or from the most recent intact one. Returns False if there is none.

        Raises `CheckpointError` if all checkpoints are damaged, or if the training differs from that of the checkpoint.
        """
        self._resumed = True
        opened = self._find(path)
        if opened is None:
            return False
        _check_training(opened, self._parts, self._about)
        of_parts.load(opened, self._parts)
        own, facts = values.load(opened, _rank_file(ranks.rank()), _RANK_STATE), opened.facts
        for name, buffers in own["buffers"].items():
            if name in self._parts:
                self._parts[name].load_state_dict(buffers, strict=False)
        self.values = values.load(opened, of_parts.STATE, {"values": dict})["values"]
        self.steps, self.epoch, batch = facts["step"], facts["epoch"], facts["batch"]
        self._metrics = dict(facts["metrics"])
        self._parent = {"run": facts["run"], "path": opened.path, "sha256": opened.sha256, "step": facts["step"]}
        self._buckets = buckets.expected(self._wrapped, own["buckets"])
        self._arrange(last=False)
        self._gradients.restore(own["gradients"])
        if batch is None:
            rng.restore(own["rng"])
        else:
            self._batch = batch
            self._position = _Position(batch, facts["loader"], own["loader"], own["rng"])
        if not ranks.rank():
            manifest.note(opened)
            position = f"epoch {self.epoch}" + ("" if batch is None else f", after batch {batch}")
            sys.stderr.write(f"repro-env: resumed from {opened.path} (step {self.steps}, {position})\n")
        self._last = time.monotonic()
        return True

    def _find(self, path: Any) -> Optional[Opened]:
        """Return the checkpoint at `path`, or the most recent intact one in the directory. Only rank 0 searches."""

        def search() -> Optional[Opened]:
            return self._directory.choose() if path is None else find(os.path.abspath(os.fspath(path)), None)

        opened = ranks.run_on_first(search)
        return None if opened is None else Opened(*opened)

    def _arrange(self, *, last: bool) -> None:
        """Restore gradient buckets. The script may wrap modules after `resume`, but must do so before the first batch."""
        if self._buckets:
            self._buckets = buckets.arrange(self._wrapped, self._buckets, self._agree, last=last)

    # --- the end

    def close(self) -> None:
        """Restore the previous signal handlers, and release the lock on the directory."""
        self._interrupts.close()
        self._directory.close()

    def __enter__(self) -> Checkpoint:  # noqa: PYI034 - Self came with Python 3.11
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _leave(self, number: int) -> NoReturn:
        """Exit with the status of the signal, after a checkpoint was written. Raises `SystemExit`."""
        # Otherwise the process would wait at exit for the workers of an unfinished iteration.
        shutdown = getattr(self._loader.iterator, "_shutdown_workers", None) if self._loader else None
        if callable(shutdown):
            with contextlib.suppress(Exception):
                shutdown()
        if not ranks.rank():
            name = signal.Signals(number).name
            sys.stderr.write(f"repro-env: received {name}, saved at step {self.steps}, exiting\n")
        raise SystemExit(128 + number)


def _rank_file(rank: int) -> str:
    return f"rank-{rank}.pt"


def _check_training(opened: Opened, parts: Mapping[str, Any], about: Mapping[str, Any]) -> None:
    """Raise `CheckpointError` if the training cannot resume unchanged; warn about parts that are not restored.

    `about`: the `data` and `splits` of this training.
    """
    saved_size = opened.facts["world"].get("size")
    if saved_size != ranks.size():
        raise CheckpointError(
            f"this checkpoint was written with {saved_size} ranks, but this training has {ranks.size()}",
            where=opened.path,
            hint=f"start {saved_size} ranks, or load only the weights with checkpoint.load()",
        )
    changes = [line for name in ("data", "splits") for line in manifest.changed(name, opened.facts[name], about[name])]
    if changes:
        raise CheckpointError(
            "; ".join(changes),
            where=opened.path,
            hint="resume with the same data and splits, or load only the weights with checkpoint.load()",
        )
    unused = sorted(set(opened.facts["parts"]) - set(parts))
    if unused:
        warnings.warn(
            f"{opened.path}: not restored, because this training has no such parts: {', '.join(unused)}",
            CheckpointWarning,
            stacklevel=4,
        )
