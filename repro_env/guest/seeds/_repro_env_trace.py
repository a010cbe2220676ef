"""Record a line for each training step, so that two runs can be compared step by step.

Standard library only, Python 3.8 and later. Loaded with torch if REPRO_ENV_TRACE names a directory, which is created at the
first step. The trace observes every `step()` of every torch optimizer, through the hooks that torch (2.0 and later) calls around
it, and every loss, through `torch.autograd.backward`. It does not observe steps compiled by `torch.compile` or recorded in a
CUDA graph. It draws no random number and changes no tensor.

There is a file for each process, `rank<R>[-<worker>][.<n>].jsonl`. Its lines, in chronological order:

    {"trace": 1, "rank", "worker", "program", "torch"}                the first line
    {"optimizer", "kind", "shapes", "names"}                          at the first step, and when the tensors changed
    {"optimizer", "step", "loss", "lr", "screen", "sha256", "tensors"} a step, from 1 in this process; 0: before the first
    {"end": {"untraced", "steps"}}                                    the last line, if the process ended normally

The first 10,000 steps of an optimizer are recorded, and then every 1,000th. Its weights are hashed before the first step, after
the first and every 1,000th step, and at exit.

`loss`: the values of the tensors on which `backward` was called since the previous step, of any optimizer. A value is null if it
is not a single number or cannot be read. "more" counts the losses after the first 16. `lr`: the learning rates of the parameter
groups, if they changed. `screen`: CRC-32 of 512 bytes from the middle of each of at most 64 tensors; it is cheap, and not a
proof of equality. `tensors`: for each parameter of the optimizer, in order, the first 16 digits of a sha256 of its dtype, shape
and bytes; in a sharded run, of the part on this rank. `sha256`: the digest of these, empty if a parameter has no bytes to read.
A line with "exit" has the weights at exit.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import weakref
from time import perf_counter

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing typing takes as long as the interpreter's own start
    from typing import Any

seeds: Any = __import__("_repro_env_seeds")
file: Any = seeds.part("trace_file")
tensors: Any = seeds.part("trace_tensors")

_DIRECTORY = seeds._TRACE
_RANKS = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "LOCAL_RANK")
_FIRST = 10_000
"""The number of steps of an optimizer that are all recorded."""
_EVERY = 1_000
"""The interval between later recorded steps, and between digests."""
_LOSSES = 16
"""The most losses of a step."""
_OPTIMIZERS = 256
_PENDING = 32
"""The most lines that wait for a device. Reading from it at each step would stall it."""
_MAX_FAILURES = 10
"""The number of failures after which the trace stops."""


def install() -> None:
    """Add the hooks to torch. Raises `AttributeError` if this version cannot be traced."""
    _trace.hook(sys.modules["torch"])


def forget() -> None:
    """In a forked child: drop the unwritten lines, which the parent writes."""
    _trace.reset()


def finish() -> None:
    """Write the last lines at exit."""
    _trace.finish()
    _trace.release()


class Trace:
    """The trace of this process."""

    def __init__(self, directory: str) -> None:
        self._file = file.File(directory)
        self._optimizers: dict[int, Optimizer] = {}
        """`id` of an optimizer of torch -> its state."""
        self._counts: list[int] = []
        """The number of steps of each optimizer, by its number, including deleted optimizers."""
        self._untraced = 0
        self._pending: list[Any] = []
        self._losses: list[Any] = []
        """The losses since the last step; None for a value that is not a single number."""
        self._more = 0
        """The number of losses after the first `_LOSSES`."""
        self._loss_count = 0
        """The number of all losses."""
        self._failures = 0

    # --- hooks

    def hook(self, torch: Any) -> None:
        """Add the hooks. Raises `AttributeError` if torch has no hooks for steps."""
        optimizer = sys.modules["torch.optim.optimizer"]
        if not hasattr(optimizer, "register_optimizer_step_post_hook"):
            raise AttributeError("a trace needs torch 2.0 or later, which has hooks for the steps of optimizers")
        # In a compilation, the hooks do nothing, so the compiled code stays the same.
        compiling = getattr(getattr(torch, "compiler", None), "is_compiling", None) or torch._utils.is_compiling
        plain = torch.autograd.backward
        optimizers = self._optimizers

        def backward(*args: Any, **kwargs: Any) -> Any:
            if not compiling() and not self._is_stopped:
                self._add_losses(args[0] if args else kwargs.get("tensors"))
            return plain(*args, **kwargs)

        def before(optimizer: Any, args: Any, kwargs: Any) -> None:  # noqa: ARG001
            if not compiling() and id(optimizer) not in optimizers and not self._is_stopped:
                self._before_first(optimizer)

        def after(optimizer: Any, args: Any, kwargs: Any) -> None:  # noqa: ARG001
            if compiling():
                return
            entry = optimizers.get(id(optimizer))
            if entry is None:
                return
            entry.step += 1
            if (entry.step <= _FIRST or entry.step % _EVERY == 0) and entry.number < _OPTIMIZERS and not self._is_stopped:
                self._after_step(entry, optimizer)
            self._clear_losses()

        torch.autograd.backward = functools.wraps(plain)(backward)
        optimizer.register_optimizer_step_pre_hook(before)
        optimizer.register_optimizer_step_post_hook(after)

    def reset(self) -> None:
        """Forget the file and its unwritten lines."""
        self._file.reset()
        self._untraced = self._loss_count = self._failures = 0
        for collection in (self._optimizers, self._counts, self._pending):
            collection.clear()
        self._clear_losses()

    def release(self) -> None:
        """Drop the references to optimizers, whose callbacks must not run during shutdown, when this module may be cleared."""
        self._optimizers.clear()

    def _note_failure(self, where: str, error: Exception) -> None:
        self._failures += 1
        seeds.note_problem(f"trace of {where}", error)
        if self._failures == _MAX_FAILURES:
            seeds.report({"problem": f"trace: stopped after {_MAX_FAILURES} failures"})

    @property
    def _is_stopped(self) -> bool:
        return self._failures >= _MAX_FAILURES

    def _add_losses(self, losses: Any) -> None:
        """Keep the losses on which `backward` is called."""
        with seeds.Attempt("a loss", self._note_failure):
            for tensor in losses if isinstance(losses, (list, tuple)) else (losses,):
                self._loss_count += 1
                if len(self._losses) < _LOSSES:
                    self._losses.append(tensors.loss(tensor))
                else:
                    self._more += 1

    def _clear_losses(self) -> None:
        """Clear the losses after a step."""
        self._losses.clear()
        self._more = 0

    def _before_first(self, optimizer: Any) -> None:
        """Record the parameters of a new optimizer and its weights before the first step."""
        with seeds.Attempt("the first step", self._note_failure):
            if not _is_captured(optimizer):
                self._begin(optimizer)

    def _begin(self, optimizer: Any) -> None:
        if not self._file.is_created:
            self._create_file()
        number = len(self._counts)
        entry = self._optimizers[id(optimizer)] = Optimizer(number, optimizer, self._remove)
        if number >= _OPTIMIZERS:
            self._untraced += 1
            return
        self._counts.append(0)
        params = _params(optimizer)
        self._describe(entry, optimizer, params)
        self._pending.append(tensors.Line('{"optimizer": %d, "step": 0' % number, None, tensors.weights(params)))
        self._flush()

    def _remove(self, key: int, reference: Any) -> None:
        entry = self._optimizers.get(key)
        if entry is not None and entry.reference is reference:
            del self._optimizers[key]
            self._count(entry)

    def _count(self, entry: Optimizer) -> None:
        if entry.number < len(self._counts):
            self._counts[entry.number] = entry.step

    def _after_step(self, entry: Optimizer, optimizer: Any) -> None:
        """Record a step."""
        try:
            if not _is_captured(optimizer):
                self._record(entry, optimizer)
        except Exception as error:
            entry.rates = []  # the rates may not have been written
            self._note_failure("a step", error)

    def _record(self, entry: Optimizer, optimizer: Any) -> None:
        params = _params(optimizer)
        if len(params) != entry.count:
            self._describe(entry, optimizer, params)
        head = '{"optimizer": %d, "step": %d' % (entry.number, entry.step)
        rates = [tensors.rate(group.get("lr")) for group in optimizer.param_groups]
        if rates != entry.rates:
            entry.rates = rates
            head += ', "lr": [%s]' % ", ".join(map(tensors.number, rates))
        if self._more:
            head += ', "more": %d' % self._more
        losses = [loss.clone() if tensors.is_on_device(loss) else loss for loss in self._losses]
        is_hashed = entry.step == 1 or entry.step % _EVERY == 0
        line = tensors.Line(head, losses, tensors.weights(params) if is_hashed else "")
        line.crc, line.on_device = entry.screen.read(params)
        self._pending.append(line)
        if not line.is_pending or line.tail or len(self._pending) >= _PENDING:
            self._flush()
        self._write(perf_counter())

    def _describe(self, entry: Optimizer, optimizer: Any, params: list[Any]) -> None:
        shapes = ["x".join(map(str, param.shape)) + ":" + str(param.dtype).rpartition(".")[2] for param in params]
        names = [str(name) for group in optimizer.param_groups for name in group.get("param_names", ())]
        entry.count = len(params)
        facts = {"optimizer": entry.number, "kind": type(optimizer).__name__, "shapes": shapes, "names": names}
        self._file.add(json.dumps(facts) + "\n")

    # --- the file

    def _create_file(self) -> None:
        rank, worker = _rank(), seeds._State.worker
        self._file.create(rank, worker)
        facts = {
            "trace": 1,
            "rank": rank,
            "worker": list(worker),
            "program": os.path.basename(sys.argv[0]) if getattr(sys, "argv", None) else "",
            "torch": str(sys.modules["torch"].__version__),
        }
        self._file.add(json.dumps(facts) + "\n")

    def _flush(self) -> None:
        """Add the pending lines to the file."""
        for line in self._pending:
            self._file.add(line.text())
        self._pending.clear()

    def _write(self, now: float | None) -> None:
        try:
            self._file.write(now)
        except OSError as error:
            self._note_failure("the file", error)

    def finish(self) -> None:
        """Write the weights at exit, and the number of steps."""
        if self._is_stopped:
            return
        if not self._file.is_created:
            if self._loss_count:
                seeds.report({"problem": "trace: there were losses but no optimizer steps; compiled steps cannot be traced"})
                self._loss_count = 0
            return
        with seeds.Attempt("the end", self._note_failure):
            self._flush()
            failed = hasattr(sys, "last_value") or sys.exc_info()[0] not in (None, SystemExit)
            for entry in sorted(self._optimizers.values(), key=lambda entry: entry.number):
                optimizer = entry.reference()
                self._count(entry)
                # After an error, reading from a device may never return.
                if optimizer is not None and entry.step and entry.number < _OPTIMIZERS and not failed:
                    tail = tensors.weights(_params(optimizer))
                    self._file.add('{"optimizer": %d, "step": %d, "exit": true%s}\n' % (entry.number, entry.step, tail))
            self._file.add(json.dumps({"end": {"untraced": self._untraced, "steps": self._counts}}) + "\n")
            self._file.write()
            self._file.reset()
            self._loss_count = 0


class Optimizer:
    """The state of the trace for an optimizer that still exists. `remove` is called when it is deleted."""

    __slots__ = ("count", "number", "rates", "reference", "screen", "step")

    def __init__(self, number: int, optimizer: Any, remove: Any) -> None:
        key = id(optimizer)
        self.number = number
        self.reference = weakref.ref(optimizer, lambda reference: remove(key, reference))
        self.step = 0
        self.count = -1
        """The number of its tensors."""
        self.rates: list[float | None] = []
        self.screen = tensors.Screen()


def _params(optimizer: Any) -> list[Any]:
    return [param for group in optimizer.param_groups for param in group["params"]]


def _is_captured(optimizer: Any) -> bool:
    """Whether a CUDA graph is being recorded. Nothing may be read then, and its replays do not call the hooks."""
    torch = sys.modules["torch"]
    return bool(
        any(param.is_cuda for group in optimizer.param_groups for param in group["params"][:1])
        and torch.cuda.is_current_stream_capturing()
    )


def _rank() -> str:
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return str(distributed.get_rank())
    rank = next((os.environ[name] for name in _RANKS if os.environ.get(name)), "0")
    return rank if rank.isdigit() else "0"


_trace = Trace(_DIRECTORY)
