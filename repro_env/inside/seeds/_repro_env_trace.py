"""One line for each step of training, so that two runs can be held against each other step by step.

Standard library only, Python 3.8 and newer; read with torch, where REPRO_ENV_TRACE names a folder (made at the first step).
Sees every `step()` of every torch optimizer, through the hooks that torch (2.0 and newer) calls around it, and every loss,
through `torch.autograd.backward`; not what `torch.compile` or a CUDA graph took over. Draws no random number and
changes no tensor. A script of short steps pays for each of them: what runs where no line is due is as little as can be.

One file a process, `rank<R>[-<worker>][.<n>].jsonl`. Its lines, in order of time:

    {"trace": 1, "rank", "worker", "program", "torch"}                first
    {"optimizer", "kind", "shapes", "names"}                          an optimizer's first step, or other tensors in it
    {"optimizer", "step", "loss", "lr", "screen", "sha256", "tensors"} a step; 0 is before the first, counted in this process
    {"optimizer", "every": {"line", "screen", "weights"}}             what follows is noted every so many steps
    {"end": {"seconds", "spent", "untraced", "steps"}}                last, where the process came to its end

`loss`: values of the tensors that `backward` was called on since the step before, of any optimizer; null
where one is no single number or cannot be read, "more" where there were over 16, left out where they were not looked at. `lr`: of
the parameter groups, where it changed. `screen`: CRC-32 of 512 bytes out of the middle of each of at most 64 tensors:
cheap, and no proof of sameness. `sha256`: of the `tensors`, each a sha256 (16 digits of it) of type, shape and bytes; all of the
optimizer's parameters in their order, in a sharded run those of this rank; empty where one of them has no bytes to read. A
line with "exit" tells the weights when the process ended.

Lines, screens and digests each come at every step, or at every 2, 4, 8, ... when a share of the processor time of the thread
that trains (0.1, 0.1 and 0.15 %) would not be enough: powers of two, so that two runs of another pace still meet. The first 16 steps have
lines and screens, steps 0 and 1 digests, whatever they cost. REPRO_ENV_TRACE_EVERY=k: digests every k steps, no limit.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import weakref
from time import perf_counter, thread_time

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing typing takes as long as the interpreter's own start
    from typing import Any

seeds: Any = __import__("_repro_env_seeds")
file: Any = seeds.part("trace_file")
lines: Any = seeds.part("trace_lines")
pace: Any = seeds.part("trace_pace")
tensors: Any = seeds.part("trace_tensors")

_FOLDER = os.environ.get("REPRO_ENV_TRACE", "")
_GIVEN = os.environ.get("REPRO_ENV_TRACE_EVERY", "")
_RANKS = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "LOCAL_RANK")
_LINE, _SCREEN, _WEIGHTS = 0.001, 0.001, 0.0015
"""Shares of the time; what is left of 1 % is for the step after, whose caches we have used (half as much again), the hooks, and writing.

Of the processor time of the thread that trains: on a machine that others use as well, a step takes long by the clock
and costs no less of it, and a loop that waits for its data does not pay by waiting longer.
"""
_FIRST = 16
"""Steps at the beginning that are noted one by one."""
_LOSSES = 16
"""Of one step."""
_OPTIMIZERS = 256
_LATER = 32
"""Lines that may wait for a device: asking it for each step would make it wait for us."""
_PART = 16 << 20
"""Bytes of a file after which lines become half as many, and again."""
_PATIENCE = 10
"""Failures until we give up."""
_NEVER = 1 << 62


def install() -> None:
    """Called with torch. Raises `AttributeError` where torch has no such hooks."""
    _trace.hook(sys.modules["torch"])


def forget() -> None:
    """In a forked child: what waits to be written is the parent's to write."""
    _trace.leave()


def finish() -> None:
    """At the end of the process."""
    _trace.finish()
    _trace.unwatch()


class Trace:
    """Of this process."""

    def __init__(self, folder: str, every: int) -> None:
        self._every = every
        self._file = file.File(folder)
        self._known: dict[int, Optimizer] = {}
        """By the `id` of the optimizer."""
        self._counts: list[int] = []
        """Steps of each optimizer by its number, also of those that are gone."""
        self._untraced = 0
        self._waiting: list[Any] = []
        self._losses: list[Any] = []
        """Since the last step; None for what is no number."""
        self._more = 0
        """Losses beyond `_LOSSES`."""
        self._seen = 0
        """All losses."""
        self._listens = True
        """The next step may have a line, so losses are looked at."""
        self._missed = False
        """There was a loss meanwhile."""
        self._failures = 0
        self._began = 0.0
        """After the first line."""
        self._spent = 0.0
        """Seconds in here since then."""
        self._looked = 0.0
        """Seconds for the losses of this step."""

    # --- what torch tells

    def hook(self, torch: Any) -> None:
        """Raises `AttributeError` where torch has no such hooks."""
        optimizer = sys.modules["torch.optim.optimizer"]
        if not hasattr(optimizer, "register_optimizer_step_post_hook"):
            raise AttributeError("this torch has no hooks around steps of optimizers (2.0 has): there is no trace")
        # A compiler that looks into these finds nothing to do there: what it compiles stays what it is.
        compiling = getattr(getattr(torch, "compiler", None), "is_compiling", None) or torch._utils.is_compiling
        plain = torch.autograd.backward
        known = self._known

        def backward(*args: Any, **kwargs: Any) -> Any:
            if not self._listens:
                self._missed = True
            elif not compiling():
                self._see(args[0] if args else kwargs.get("tensors"))
            return plain(*args, **kwargs)

        def before(optimizer: Any, args: Any, kwargs: Any) -> None:  # noqa: ARG001
            if not compiling() and id(optimizer) not in known:
                self._before_first(optimizer)

        def after(optimizer: Any, args: Any, kwargs: Any) -> None:  # noqa: ARG001
            if compiling():
                return
            one = known.get(id(optimizer))
            if one is None:
                return
            one.step += 1
            if one.step >= one.wake:
                self._after_step(one, optimizer)
            elif self._listens:
                self._forget_losses()

        torch.autograd.backward = functools.wraps(plain)(backward)
        optimizer.register_optimizer_step_pre_hook(before)
        optimizer.register_optimizer_step_post_hook(after)

    def leave(self) -> None:
        """The file, and what waits to be written to it."""
        self._file.leave()
        self._untraced = self._seen = self._failures = 0
        for many in (self._known, self._counts, self._waiting):
            many.clear()
        self._forget_losses()
        self._listens = True

    def unwatch(self) -> None:
        """Drop the references to optimizers: one that dies during shutdown must not call this module, which may be cleared by then."""
        self._known.clear()

    def _failed(self, where: str, error: Exception) -> None:
        self._failures += 1
        seeds.problem(f"trace of {where}", error)
        if self._failures == _PATIENCE:
            seeds.note({"problem": f"trace: {_PATIENCE} things failed, it ends here"})
            for one in self._known.values():
                one.sleep(_NEVER)
            self._listen()

    @property
    def _over(self) -> bool:
        return self._failures >= _PATIENCE

    def _see(self, told: Any) -> None:
        """A loss, before its `backward`."""
        began = perf_counter()
        try:
            for tensor in told if isinstance(told, (list, tuple)) else (told,):
                self._seen += 1
                if len(self._losses) < _LOSSES:
                    self._losses.append(lines.loss(tensor))
                else:
                    self._more += 1
        except Exception as error:
            self._failed("a loss", error)
        self._looked += perf_counter() - began

    def _forget_losses(self) -> None:
        """The next loss is of the next step."""
        self._losses.clear()
        self._more = 0
        self._missed = False

    def _listen(self) -> None:
        known = self._known.values()
        self._listens = not self._over and (not known or any(one.is_due for one in known))

    def _before_first(self, optimizer: Any) -> None:
        """The first time that we see an optimizer: what it steps, and the weights before it does."""
        if self._over:
            return
        began = perf_counter()
        try:
            if not _is_captured(optimizer):
                self._begin(optimizer)
        except Exception as error:
            self._failed("the first step", error)
        self._listen()
        self._spent += perf_counter() - max(began, self._began)

    def _begin(self, optimizer: Any) -> None:
        if not self._file.claimed:
            self._claim()
        number = len(self._counts)
        one = Optimizer(number, optimizer, self._gone, self._every)
        if number >= _OPTIMIZERS:
            self._untraced += 1
            one.sleep(_NEVER)
            self._known[id(optimizer)] = one
            return
        self._counts.append(0)
        self._known[id(optimizer)] = one
        params = _params(optimizer)
        self._describe(one, optimizer, params)
        self._waiting.append(lines.Line('{"optimizer": %d, "step": 0' % number, None, tensors.weights(params)))
        self._settle()
        one.time = pace.Steps(thread_time())

    def _gone(self, key: int, gone: Any) -> None:
        one = self._known.get(key)
        if one is not None and one.alive is gone:
            del self._known[key]
            self._count(one)
            self._listen()

    def _count(self, one: Optimizer) -> None:
        if one.number < len(self._counts):
            self._counts[one.number] = one.step

    def _after_step(self, one: Optimizer, optimizer: Any) -> None:
        """A step whose line is due, or the one before."""
        began = perf_counter()
        if one.step >= one.next:
            try:
                if not _is_captured(optimizer):
                    self._note(one, optimizer, began)
            except Exception as error:
                one.rates = []  # they may not have been told
                self._failed("a step", error)
            one.sleep(_NEVER if self._over else one.due())
        else:
            one.is_due, one.wake = True, one.next
        self._listen()
        self._forget_losses()
        self._spent += perf_counter() - began + self._looked
        self._looked = 0.0

    def _note(self, one: Optimizer, optimizer: Any, began: float) -> None:
        """A step is over."""
        step = one.step
        if one.time is not None:
            one.time.reached(step, thread_time())
        params = _params(optimizer)
        if len(params) != one.count:
            self._describe(one, optimizer, params)
        if step > 1 and (step < 64 or step % 64 == 0):
            self._fit(one)
        head = '{"optimizer": %d, "step": %d' % (one.number, step)
        rates = [lines.rate(group.get("lr")) for group in optimizer.param_groups]
        if rates != one.rates:
            one.rates = rates
            head += ', "lr": [%s]' % ", ".join(map(lines.number, rates))
        if self._more:
            head += ', "more": %d' % self._more
        losses = [loss.clone() if tensors.is_away(loss) else loss for loss in self._losses]
        line = lines.Line(head, None if self._missed else losses, "")
        start = middle = perf_counter()
        if step <= _FIRST or step % one.screen_pace.every == 0:
            line.crc, line.away = one.screen.read(params)
            middle = perf_counter()
            one.screen_pace.took(middle - start, step)
        end = middle
        if step <= 1 or step % one.weights_pace.every == 0:
            tensors.wait_for(params)
            ready = perf_counter()
            line.tail = tensors.weights(params)
            end = perf_counter()
            one.weights_pace.took(end - ready, step)
        self._waiting.append(line)
        if not line.waits or line.tail or len(self._waiting) >= _LATER:
            self._settle()
        one.line_pace.took(start - began + perf_counter() - end + self._looked, step)
        self._write(perf_counter())

    def _fit(self, one: Optimizer) -> None:
        """Choose how often, by how long a step takes."""
        if one.time is None:
            return
        seconds = one.time.seconds / max(len(self._known), 1)
        one.line_pace.fit(seconds, 1 << (self._file.size // _PART))
        one.screen_pace.fit(seconds, one.line_pace.every)
        one.weights_pace.fit(seconds, one.line_pace.every)
        now = (one.line_pace.every, one.screen_pace.every, one.weights_pace.every)
        if now != one.told:
            one.told = now
            self._file.add('{"optimizer": %d, "every": {"line": %d, "screen": %d, "weights": %d}}\n' % (one.number, *now))

    def _describe(self, one: Optimizer, optimizer: Any, params: list[Any]) -> None:
        shapes = ["x".join(map(str, param.shape)) + ":" + str(param.dtype).rpartition(".")[2] for param in params]
        names = [str(name) for group in optimizer.param_groups for name in group.get("param_names", ())]
        one.count = len(params)
        facts = {"optimizer": one.number, "kind": type(optimizer).__name__, "shapes": shapes, "names": names}
        self._file.add(json.dumps(facts) + "\n")

    # --- the file

    def _claim(self) -> None:
        rank, worker = _rank(), seeds._State.worker
        self._file.claim(rank, worker)
        facts = {
            "trace": 1,
            "rank": rank,
            "worker": list(worker),
            "program": os.path.basename(sys.argv[0]) if getattr(sys, "argv", None) else "",
            "torch": str(sys.modules["torch"].__version__),
        }
        self._file.add(json.dumps(facts) + "\n")
        self._began = perf_counter()
        self._spent = 0.0

    def _settle(self) -> None:
        """Lines that waited -> text."""
        for line in self._waiting:
            self._file.add(line.text())
        self._waiting.clear()

    def _write(self, now: float | None) -> None:
        try:
            self._file.write(now)
        except OSError as error:
            self._failed("what was noted", error)

    def finish(self) -> None:
        """The weights as they are now, where they were not told, and what all this cost."""
        if self._over:
            return
        if not self._file.claimed:
            if self._seen:
                seeds.note(
                    {"problem": "trace: there were losses, and no step of an optimizer that we see; compiled ones we do not"}
                )
                self._seen = 0
            return
        try:
            began = perf_counter()
            seconds = began - self._began
            self._settle()
            failed = hasattr(sys, "last_value") or sys.exc_info()[0] not in (None, SystemExit)
            for one in sorted(self._known.values(), key=lambda one: one.number):
                optimizer = one.alive()
                self._count(one)
                # After an error a device may never answer.
                if optimizer is not None and one.step and one.number < _OPTIMIZERS and not failed:
                    tail = tensors.weights(_params(optimizer))
                    self._file.add('{"optimizer": %d, "step": %d, "exit": true%s}\n' % (one.number, one.step, tail))
            facts = {
                "seconds": round(seconds, 3),
                "spent": round(self._spent + perf_counter() - began, 4),
                "untraced": self._untraced,
                "steps": self._counts,
            }
            self._file.add(json.dumps({"end": facts}) + "\n")
            self._file.write()
            self._file.leave()
            self._seen = 0
        except Exception as error:
            self._failed("the end", error)


class Optimizer:
    """One of them, for as long as it lives."""

    __slots__ = (
        "alive",
        "count",
        "is_due",
        "line_pace",
        "next",
        "number",
        "rates",
        "screen",
        "screen_pace",
        "step",
        "time",
        "told",
        "wake",
        "weights_pace",
    )

    def __init__(self, number: int, optimizer: Any, gone: Any, every: int) -> None:
        key = id(optimizer)
        self.number = number
        self.alive = weakref.ref(optimizer, lambda one: gone(key, one))
        self.step = 0
        self.next = self.wake = 1
        """The next step with a line, and the next to look at: the one before a line, from which on losses are noted."""
        self.is_due = True
        """The next step has a line."""
        self.count = -1
        """Tensors."""
        self.rates: list[float | None] = []
        self.screen = tensors.Screen()
        self.line_pace, self.screen_pace = pace.Pace(_LINE), pace.Pace(_SCREEN)
        self.weights_pace = pace.Pace(_WEIGHTS, every)
        self.told: tuple[int, int, int] = (1, 1, self.weights_pace.every)
        self.time: Any = None

    def due(self) -> int:
        """The next step with a line."""
        step = self.step + 1
        if step <= _FIRST:
            return step
        return int(min(step + -step % self.line_pace.every, step + -step % self.weights_pace.every))

    def sleep(self, until: int) -> None:
        """`until`: the next step with a line."""
        self.next = until
        self.is_due = self.step + 1 >= until
        self.wake = until if self.is_due else until - 1


def _params(optimizer: Any) -> list[Any]:
    return [param for group in optimizer.param_groups for param in group["params"]]


def _is_captured(optimizer: Any) -> bool:
    """Whether a CUDA graph is being recorded: nothing may be read now, and what is replayed later passes by us."""
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


_trace = Trace(_FOLDER, int(_GIVEN) if _GIVEN.isdigit() else 0)
