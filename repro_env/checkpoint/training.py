"""`Checkpoint`: the state of a training, kept so that a killed one goes on bit for bit."""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import re
import signal
import sys
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple, Optional

from repro_env.checkpoint import files, manifest, ranks, retention, rng, values, weights
from repro_env.checkpoint.errors import CheckpointError, CheckpointWarning
from repro_env.checkpoint.interrupts import Interrupts
from repro_env.checkpoint.loaders import Followed, differing
from repro_env.checkpoint.manifest import Opened

_STATE = "state.pt"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
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

    `data`, `splits` (name -> members) and `recipe` go into the manifest. In a distributed run every rank makes the same
    calls. Weights of torch modules are written as safetensors.
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
        self.folder = os.path.abspath(os.fspath(folder))
        self.steps = 0
        """Steps done, over all processes that went before."""
        self.epoch = 0
        """The one that is running, or comes next."""
        self.values: dict[str, Any] = {}
        """Numbers, text, tensors of the script's own that are to be saved as well."""
        self._parts = {name: _inner(part) for name, part in parts.items()}
        self._every, self._seconds, self._each_epoch, self._keep = every, seconds, each_epoch, keep
        self._best = retention.best(best) if best else None
        self._about = {
            "data": dict(data or {}),
            "splits": {name: manifest.split(members) for name, members in (splits or {}).items()},
            "recipe": recipe,
        }
        self._metrics: dict[str, Any] = {}
        self._resumed = False
        self._parent: Optional[dict[str, Any]] = None
        self._place: Optional[_Place] = None
        self._followed: Optional[Followed] = None
        self._batch = 0
        self._in_epoch = self._looped = False
        self._iterator: Any = None
        self._lock: Optional[int] = None
        self._broken: set[str] = set()
        self._agree = ranks.Agreement()
        self._last = time.monotonic()
        for name, part in self._parts.items():
            if not _NAME.fullmatch(name):
                raise CheckpointError("is no name for a part", where=name)
            rng.state_of(part, name)  # says at once what cannot be kept
        if ranks.size() > 2 and any(_rearranges(part) for part in parts.values()):
            warnings.warn(
                "DistributedDataParallel arranges its buckets anew after the first step of each process, and with more than two "
                "ranks the order of a sum changes with it: a resumed training differs in the last bits; "
                "find_unused_parameters=True keeps the buckets as they are",
                CheckpointWarning,
                stacklevel=2,
            )
        self._interrupts = Interrupts()
        if signals:
            self._interrupts.listen()

    # --- the loop

    def epochs(self, count: int) -> Iterator[int]:
        """The numbers of the epochs that are left, from 0; the first may be one that was interrupted."""
        if not self._resumed:
            self.resume()
        while self.epoch < count:
            self._in_epoch, self._looped = True, False
            try:
                yield self.epoch
            finally:
                self._in_epoch = False
            if self._place is not None:
                raise CheckpointError("the interrupted epoch was not gone on with", hint="use batches(loader) in each epoch")
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
            raise CheckpointError("batches() was called before in this epoch", hint="one loader in an epoch has a position")
        followed = Followed(loader, self.epoch)
        place, self._place = self._place, None
        if place is None:
            self._batch = 0
            iterator = followed.begin()
        else:
            wrong = differing(place.facts, followed.facts())
            if wrong:
                raise CheckpointError(
                    f"a position in another loader: {'; '.join(wrong)}", where="resume", hint="use the same loader"
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
        self._metrics.update({name: manifest.number(value) for name, value in numbers.items()})

    # --- saving

    def save(self, **metrics: float) -> str:
        """Write a checkpoint now. Its path, once it is whole on the disk.

        After a step, or outside of `epochs`: between the end of the batches and the end of an epoch there is nothing to
        go on from, and `epochs` saves by itself then.
        """
        self.metrics(**metrics)
        inside = self._followed is not None
        if self._in_epoch and not inside:
            raise CheckpointError(
                "the epoch is not over",
                where="save",
                hint="epochs() saves at its end; hand it numbers with metrics(...)",
            )
        mine: Any
        try:
            mine = self._own_state()
        except CheckpointError as error:
            mine = error
        everyone = ranks.gather(mine)
        result: Any = None
        if not ranks.rank():
            try:
                result = self._write(everyone)
            except (CheckpointError, OSError) as error:
                result = _told(error, self.folder)
        result = ranks.share(result)
        if isinstance(result, CheckpointError):
            raise result
        self._last = time.monotonic()
        return str(result)

    def _own_state(self) -> bytes:
        """What only this rank knows."""
        followed = self._followed
        state = {
            "rng": rng.capture(),
            "loader": followed.state() if followed else None,
            "buffers": {name: _buffers(part) for name, part in self._parts.items() if _is_module(part)}
            if ranks.size() > 1
            else {},
        }
        import torch

        box = io.BytesIO()
        torch.save(values.encode(state, f"the state of rank {ranks.rank()}"), box)
        return box.getvalue()

    def _write(self, everyone: list[Any]) -> str:
        for one in everyone:
            if isinstance(one, CheckpointError):
                raise one
        os.makedirs(self.folder, exist_ok=True)
        if self._lock is None:
            self._lock = files.lock(self.folder)
            files.sweep(self.folder)
        hidden = files.begin(self.folder)
        try:
            facts = self._fill(hidden, everyone)
            serial = max([one.serial for one in files.listed(self.folder)], default=0) + 1
            manifest.write(hidden, {**facts, "serial": serial})
            path = files.show(hidden, self.folder, serial, self.steps)
        except BaseException:
            files.drop(hidden)
            raise
        self._tidy()
        return path

    def _fill(self, hidden: str, everyone: list[bytes]) -> dict[str, Any]:
        """Write all but the manifest; its facts."""
        import torch

        written: dict[str, files.File] = {}
        holds: dict[str, str] = {}
        rest: dict[str, Any] = {}
        for name, part in self._parts.items():
            state = rng.state_of(part, name)
            if _is_module(part):
                plain = {key: value for key, value in state.items() if weights.storable(value)}
                odd = {key: value for key, value in state.items() if key not in plain}
                holds[name] = f"{name}.safetensors"
                written[holds[name]] = files.write(os.path.join(hidden, holds[name]), weights.chunks(plain, step=self.steps))
                if odd:
                    rest[name] = values.encode(odd, name)
            else:
                holds[name] = _STATE
                rest[name] = values.encode(state, name)
        file = files.Writer(os.path.join(hidden, _STATE))
        try:
            torch.save({"parts": rest, "values": values.encode(self.values, "values")}, file)
        except BaseException:
            file.give_up()
            raise
        written[_STATE] = file.finish()
        for rank, state in enumerate(everyone):
            name = f"rank-{rank}.pt"
            written[name] = files.write(os.path.join(hidden, name), [state])
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
            "parts": holds,
            "files": {name: {"sha256": file.sha256, "size": file.size} for name, file in written.items()},
            **self._about,
            **manifest.origin(),
        }

    def _tidy(self) -> None:
        """Remove what need not stay. What cannot be read is left for its owner to look at, and counts for nothing."""
        found = []
        for one in files.listed(self.folder):
            if one.name in self._broken:
                continue
            try:
                opened = manifest.read(os.path.join(self.folder, one.name))
            except CheckpointError:
                continue
            found.append(retention.Candidate(one.name, one.serial, opened.metrics()))
        for name in retention.going(found, keep=self._keep, by=self._best):
            files.remove(self.folder, name)

    # --- resuming

    def resume(self, path: Any = None) -> bool:
        """Go on from a checkpoint: the youngest whole one of the folder, or the one at `path`. False where there is none.

        Raises `CheckpointError` where there are some and none is whole, or where this is not the training they are of.
        """
        self._resumed = True
        chosen: Any = None
        if not ranks.rank():
            try:
                chosen = self._choose(None if path is None else os.path.abspath(os.fspath(path)))
            except CheckpointError as error:
                chosen = error
        chosen = ranks.share(chosen)
        if isinstance(chosen, CheckpointError):
            raise chosen
        if chosen is None:
            return False
        opened = Opened(*chosen)
        facts, was = opened.facts, opened.facts["world"].get("size")
        if was != ranks.size():
            raise CheckpointError(
                f"was written by {was} processes, and now there are {ranks.size()}",
                where=opened.path,
                hint="start as many; for the weights alone use checkpoint.load()",
            )
        _fill_parts(opened, self._parts)
        own = _unpickled(opened, f"rank-{ranks.rank()}.pt")
        for name, buffers in own["buffers"].items():
            if name in self._parts:
                self._parts[name].load_state_dict(buffers, strict=False)
        self.values = _unpickled(opened, _STATE)["values"]
        self.steps, self.epoch, batch = facts["step"], facts["epoch"], facts["batch"]
        self._metrics = dict(facts["metrics"])
        self._parent = {"run": facts["run"], "path": opened.path, "sha256": opened.sha256, "step": facts["step"]}
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

    def _choose(self, path: Optional[str]) -> Optional[Opened]:
        if path is not None:
            opened = manifest.read(path)
            manifest.check(opened)
            return opened
        there = files.listed(self.folder)
        first = ""
        for one in there:
            try:
                opened = manifest.read(os.path.join(self.folder, one.name))
                manifest.check(opened)
            except CheckpointError as error:  # noqa: PERF203 - each on its own
                first = first or str(error)
                self._broken.add(one.name)
                warnings.warn(f"{error}; the one before is tried", CheckpointWarning, stacklevel=4)
            else:
                return opened
        if there:
            raise CheckpointError(f"none of {len(there)} checkpoints is whole: {first}", where=self.folder)
        return None

    # --- the end

    def close(self) -> None:
        """Stop listening to signals, and let others write to the folder."""
        self._interrupts.close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> Checkpoint:  # noqa: PYI034 - Self came with Python 3.11
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _leave(self, number: int) -> None:
        # Workers of a loader that is left in its middle would be waited for at exit.
        shut = getattr(self._iterator, "_shutdown_workers", None)
        if callable(shut):
            with contextlib.suppress(Exception):
                shut()
        if not ranks.rank():
            sys.stderr.write(f"repro-env: {signal.Signals(number).name}: saved at step {self.steps}, and ends\n")
        raise SystemExit(128 + number)


def load(path: Any, *, best: Optional[str] = None, **parts: Any) -> dict[str, Any]:
    """Fill some parts from a checkpoint, or from the youngest (`best`: the best) of a folder. Its manifest.

    For evaluation, or to start another training: neither positions nor generators are touched.
    """
    where = os.path.abspath(os.fspath(path))
    opened = None
    if os.path.exists(os.path.join(where, files.MANIFEST)):
        opened = manifest.read(where)
    else:
        there = [manifest.read(os.path.join(where, one.name)) for one in files.listed(where)]
        if best is None:
            opened = there[0] if there else None
        else:
            named = {one.path: one for one in there}
            chosen = retention.finest(
                [retention.Candidate(one.path, one.facts["serial"], one.metrics()) for one in there], retention.best(best)
            )
            opened = named[chosen.name] if chosen else None
    if opened is None:
        raise CheckpointError("no such checkpoint", where=where, hint="give a checkpoint, or the folder that holds them")
    manifest.check(opened)
    _fill_parts(opened, {name: _inner(part) for name, part in parts.items()})
    if not ranks.rank():
        manifest.note(opened)
    return opened.facts


def _fill_parts(opened: Opened, parts: Mapping[str, Any]) -> None:
    holds = opened.facts["parts"]
    for name in parts:
        if name not in holds:
            raise CheckpointError(f"holds no part {name!r}, only {', '.join(sorted(holds))}", where=opened.path)
    rest = _unpickled(opened, _STATE)["parts"]
    # Weights first: optimizers and schedulers may look at them.
    for name in sorted(parts, key=lambda name: not _is_module(parts[name])):
        part, file = parts[name], holds[name]
        if _is_module(part) != (file != _STATE):
            raise CheckpointError(f"{name} is of another kind now", where=opened.path)
        try:
            if file == _STATE:
                rng.put_back(part, rest[name])
            else:
                tensors = weights.parse(opened.read(file), os.path.join(opened.path, file))
                part.load_state_dict({**tensors, **rest.get(name, {})})
        except (RuntimeError, ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f"does not fit {name} as it is now: {error}", where=opened.path) from error


def _unpickled(opened: Opened, name: str) -> Any:
    """A file of values, each time anew: what loads a state may keep its tensors and change them."""
    import torch

    where = os.path.join(opened.path, name)
    try:
        return values.decode(torch.load(io.BytesIO(opened.read(name)), map_location="cpu", weights_only=True))
    except (RuntimeError, pickle.UnpicklingError, EOFError) as error:
        raise CheckpointError(f"cannot be loaded: {error}", where=where) from error


def _inner(part: Any) -> Any:
    """The module in what DistributedDataParallel or torch.compile made of it: its names are those of the script's own."""
    while True:
        kind = type(part).__name__
        if kind in ("DistributedDataParallel", "DataParallel"):
            part = part.module
        elif kind == "OptimizedModule":
            part = part._orig_mod  # noqa: SLF001 - it has no other name
        else:
            return part


def _rearranges(part: Any) -> bool:
    """Measured on gloo with three ranks: the weights of a resumed run differ, and are equal with unused parameters looked for."""
    return type(part).__name__ == "DistributedDataParallel" and not part.find_unused_parameters


def _is_module(part: Any) -> bool:
    torch: Any = sys.modules.get("torch")
    return torch is not None and isinstance(part, torch.nn.Module)


def _buffers(part: Any) -> dict[str, Any]:
    """What is no weight: ranks keep their own, such as the running means of BatchNorm."""
    named = {name for name, _ in part.named_parameters(remove_duplicate=False)}
    return {name: value for name, value in part.state_dict().items() if name not in named}


def _told(error: Exception, folder: str) -> CheckpointError:
    if isinstance(error, CheckpointError):
        return error
    return CheckpointError(f"a checkpoint cannot be written: {error}", where=folder, hint="those that are there stay good")
