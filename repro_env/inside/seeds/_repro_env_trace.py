"""One line for each step of training, so that two runs can be held against each other step by step.

Standard library only, Python 3.8 and newer; installed by `sitecustomize` where REPRO_ENV_TRACE names a folder (made at
the first step). Sees every `step()` of every torch optimizer, through the hooks that torch (2.0 and newer) calls
around it, and every loss, through `torch.autograd.backward`; not what `torch.compile` or a CUDA graph took over. Draws
no random number and changes no tensor.

One file a process, `rank<R>[-<worker>][.<n>].jsonl`. Its lines, in order of time:

    {"trace": 1, "rank", "worker", "program", "torch"}                first
    {"optimizer", "kind", "shapes", "names"}                          an optimizer's first step, or other tensors in it
    {"optimizer", "step", "loss", "lr", "screen", "sha256", "tensors"} a step; 0 is before the first, counted in this process
    {"optimizer", "every": {"line", "screen", "weights"}}             what follows is noted every so many steps
    {"end": {"seconds", "spent", "untraced", "steps"}}                last, where the process came to its end

`loss`: values of the tensors that `backward` was called on since the step before, of any optimizer; null
where one is no single number, "more" where there were over 16, left out where they were not looked at. `lr`: of the
parameter groups, where it changed. `screen`: CRC-32 of 512 bytes out of the middle of each of at most 64 tensors: cheap,
and no proof of sameness. `sha256`: of the `tensors`, each a sha256 (16 digits of it) of type, shape and bytes; all of the
optimizer's parameters in their order, in a sharded run those of this rank. A line with "exit" tells the weights when the process ended.

Lines, screens and digests each come at every step, or at every 2, 4, 8, ... when a share of the time (0.15, 0.15 and
0.2 %) would not be enough: powers of two, so that two runs of another pace still meet. The first 16 steps have
lines and screens, steps 0 and 1 digests, whatever they cost. REPRO_ENV_TRACE_EVERY=k: digests every k steps, no limit.
"""

from __future__ import annotations

import os
import sys
from time import perf_counter

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing typing takes as long as the interpreter's own start
    from typing import Any

seeds: Any = __import__("_repro_env_seeds")
"""It lies beside us, and takes our notes."""
_FOLDER = os.environ.get("REPRO_ENV_TRACE", "")
_GIVEN = os.environ.get("REPRO_ENV_TRACE_EVERY", "")
_EVERY = int(_GIVEN) if _GIVEN.isdigit() else 0
_RANKS = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "LOCAL_RANK")
_SHARES = {"line": 0.0015, "screen": 0.0015, "weights": 0.002}
"""Of the time; what is left of 1 % is for the hooks themselves, and for what comes first and at the end."""
_FIRST = 16
"""Steps at the beginning that are noted one by one."""
_LOSSES = 16
"""Of one step."""
_OPTIMIZERS = 256
_TENSORS = 64
"""In a screen."""
_WINDOW = 512
"""Bytes of each."""
_PIECE = 64 << 20
"""Bytes that are copied from a device at once."""
_LATER = 32
"""Lines that may wait for a device: asking it for each step would make it wait for us."""
_SOON = 0.05
"""Seconds between writes."""
_PART = 16 << 20
"""Bytes of a file after which lines become half as many, and again."""
_PATIENCE = 10
"""Failures until we give up."""


class _State:
    """Of this process."""

    file = ""
    """Claimed at the first step."""
    size = 0
    written = 0.0
    """When we last wrote."""
    began = 0.0
    """After the first line."""
    spent = 0.0
    """Seconds in here since then."""
    untraced = 0
    failures = 0
    deaf = False
    """Losses are not looked at: the next step has no line."""
    missed = False
    """There was one meanwhile."""
    losses = 0
    """All that we saw."""
    more = 0
    """Losses beyond `_LOSSES`."""


_known: dict[int, _Traced] = {}
"""By the `id` of the optimizer."""
_steps: list[int] = []
"""Of each optimizer by its number, also of those that are gone."""
_losses: list[Any] = []
_waiting: list[_Line] = []
_text: list[str] = []


def install() -> None:
    """Put the hooks in place, where there is to be a trace."""
    if not _FOLDER:
        return
    seeds.when_imported("torch", _hook_torch)
    seeds.at_end(_finish)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_after_fork)


def _hook_torch(torch: Any) -> None:
    optimizer = sys.modules["torch.optim.optimizer"]
    if not hasattr(optimizer, "register_optimizer_step_post_hook"):
        raise AttributeError("this torch has no hooks around steps of optimizers (2.0 has): there is no trace")
    # A compiler that looks into these finds nothing to do there: what it compiles stays what it is.
    compiling = getattr(getattr(torch, "compiler", None), "is_compiling", None) or torch._utils.is_compiling
    plain = torch.autograd.backward

    def backward(*args: Any, **kwargs: Any) -> Any:
        if _State.deaf:
            _State.missed = True
        elif not compiling():
            _see(args[0] if args else kwargs.get("tensors"))
        return plain(*args, **kwargs)

    def before(optimizer: Any, args: Any, kwargs: Any) -> None:  # noqa: ARG001
        if not compiling():
            _before_step(optimizer)

    def after(optimizer: Any, args: Any, kwargs: Any) -> None:  # noqa: ARG001
        if not compiling():
            _after_step(optimizer)

    import functools

    torch.autograd.backward = functools.wraps(plain)(backward)
    optimizer.register_optimizer_step_pre_hook(before)
    optimizer.register_optimizer_step_post_hook(after)


def _failed(where: str, error: Exception) -> None:
    _State.failures += 1
    seeds.problem(f"trace of {where}", error)


def _after_fork() -> None:
    """What waits to be written is the parent's to write."""
    _State.file = ""
    _State.size = _State.untraced = _State.losses = _State.more = 0
    _State.deaf = _State.missed = False
    for many in (_known, _steps, _losses, _waiting, _text):
        many.clear()


# --- what torch tells


def _see(tensors: Any) -> None:
    """A loss, before its `backward`."""
    if _State.failures >= _PATIENCE:
        return
    try:
        for tensor in tensors if isinstance(tensors, (list, tuple)) else (tensors,):
            _State.losses += 1
            if len(_losses) < _LOSSES:
                _losses.append(_loss(tensor))
            else:
                _State.more += 1
    except Exception as error:
        _failed("a loss", error)


def _loss(tensor: Any) -> Any:
    """The tensor, where it is one number: what is large must not live longer for being looked at."""
    if not hasattr(tensor, "detach"):
        return None  # an edge of the graph
    local = _local(tensor)
    return local if local.numel() == 1 and local.dtype.is_floating_point else None


def _before_step(optimizer: Any) -> None:
    try:
        one = _known.get(id(optimizer))
        if (one is None or one.alive() is not optimizer) and _State.failures < _PATIENCE and not _is_captured(optimizer):
            _begin(optimizer)
    except Exception as error:
        _failed("the first step", error)


def _after_step(optimizer: Any) -> None:
    one = _known.get(id(optimizer))
    if one is None or one.alive() is not optimizer or _State.failures >= _PATIENCE:
        return
    step = one.step = one.step + 1
    if step < one.next:
        _State.deaf = step + 1 < one.next and len(_known) == 1
        _clear()
        return
    began = perf_counter()
    try:
        if not _is_captured(optimizer):
            _note(one, optimizer, began)
    except Exception as error:
        _failed("a step", error)
    one.next = one.due()
    _State.deaf = step + 1 < one.next and len(_known) == 1
    _clear()
    _State.spent += perf_counter() - began


def _clear() -> None:
    """The next loss is of the next step."""
    if _losses:
        _losses.clear()
    _State.more = 0
    _State.missed = False


def _is_captured(optimizer: Any) -> bool:
    """Whether a CUDA graph is being recorded: nothing may be read now, and what is replayed later passes by us."""
    torch = sys.modules["torch"]
    return bool(
        any(param.is_cuda for group in optimizer.param_groups for param in group["params"][:1])
        and torch.cuda.is_current_stream_capturing()
    )


# --- the pace


class _Pace:
    """How often a thing is done, so that it takes no more than a share of the time."""

    def __init__(self, share: float, given: int = 0) -> None:
        self.share = share
        self.given = given
        self.every = given or 1
        self._costs: list[float] = []

    def took(self, seconds: float, step: int) -> None:
        if step > 1:  # the first time is slower than all that follow
            self._costs = [*self._costs[-4:], seconds]

    def fit(self, seconds: float, least: int) -> None:
        """`seconds`: of one step. The middle one of the last costs counts."""
        if self.given or not self._costs or seconds <= 0:
            return
        needed = sorted(self._costs)[len(self._costs) // 2] / (self.share * seconds)
        if needed > self.every or needed * 3 < self.every or self.every < least:  # not to and fro
            self.every = max(least, 1 << int(needed).bit_length())


class _Traced:
    """An optimizer."""

    def __init__(self, number: int, optimizer: Any) -> None:
        import weakref

        key = id(optimizer)
        self.number = number
        self.alive = weakref.ref(optimizer, lambda gone: _forget(key, gone))
        self.step = 0
        self.next = 1
        """The next step with a line."""
        self.began = 0.0
        self.rates: list[float] = []
        self.count = -1
        """Tensors."""
        self.line, self.screen = _Pace(_SHARES["line"]), _Pace(_SHARES["screen"])
        self.weights = _Pace(_SHARES["weights"], _EVERY)
        self.told: tuple[int, int, int] = (1, 1, self.weights.every)
        self.windows: list[_Window] = []

    def due(self) -> int:
        """The next step with a line."""
        step = self.step + 1
        if step <= _FIRST:
            return step
        return min(step + -step % self.line.every, step + -step % self.weights.every)

    def fit(self) -> None:
        """Choose how often, by how long a step took so far."""
        seconds = (perf_counter() - self.began) / self.step / max(len(_known), 1)
        least = 1 << (_State.size // _PART)
        self.line.fit(seconds, least)
        self.screen.fit(seconds, self.line.every)
        self.weights.fit(seconds, self.line.every)
        now = (self.line.every, self.screen.every, self.weights.every)
        if now != self.told:
            self.told = now
            _text.append('{"optimizer": %d, "every": {"line": %d, "screen": %d, "weights": %d}}\n' % (self.number, *now))


def _forget(key: int, gone: Any) -> None:
    if key in _known and _known[key].alive is gone:
        one = _known.pop(key)
        _steps[one.number] = one.step


def _begin(optimizer: Any) -> None:
    """The first time that we see an optimizer: what it steps, and the weights before it does."""
    if not _State.file:
        _claim()
    number = len(_steps)
    if number >= _OPTIMIZERS:
        _State.untraced += 1
        return
    _steps.append(0)
    _State.deaf = False
    one = _known[id(optimizer)] = _Traced(number, optimizer)
    params = _params(optimizer)
    _describe(one, optimizer, params)
    _waiting.append(_Line('{"optimizer": %d, "step": 0' % number, None, [], _weights(params)))
    _settle()
    one.began = perf_counter()


def _params(optimizer: Any) -> list[Any]:
    return [param for group in optimizer.param_groups for param in group["params"]]


def _describe(one: _Traced, optimizer: Any, params: list[Any]) -> None:
    import json

    shapes = ["x".join(map(str, param.shape)) + ":" + str(param.dtype).rpartition(".")[2] for param in params]
    names = [str(name) for group in optimizer.param_groups for name in group.get("param_names", ())]
    one.count = len(params)
    facts = {"optimizer": one.number, "kind": type(optimizer).__name__, "shapes": shapes, "names": names}
    _text.append(json.dumps(facts) + "\n")


def _note(one: _Traced, optimizer: Any, began: float) -> None:
    """A step is over."""
    step = one.step
    params = _params(optimizer)
    if len(params) != one.count:
        _describe(one, optimizer, params)
    head = '{"optimizer": %d, "step": %d' % (one.number, step)
    rates = [group["lr"] for group in optimizer.param_groups if isinstance(group.get("lr"), (int, float))]
    if rates != one.rates:
        one.rates = rates
        head += ', "lr": [%s]' % ", ".join(map(_number, rates))
    losses = [loss.clone() if _is_away(loss) else loss for loss in _losses]
    if _State.more:
        head += ', "more": %d' % _State.more
    line = _Line(head, None if _State.missed else losses, [], "")
    spent = perf_counter() - began
    if step <= _FIRST or step % one.screen.every == 0:
        start = perf_counter()
        _screen(one, params, line)
        one.screen.took(perf_counter() - start, step)
    if step <= 1 or step % one.weights.every == 0:
        start = _wait_for(params)
        line.tail = _weights(params)
        one.weights.took(perf_counter() - start, step)
    start = perf_counter()
    _waiting.append(line)
    if not line.waits or line.tail or len(_waiting) >= _LATER:
        _settle()
    if start - _State.written > _SOON or step == 1:
        _write()
    one.line.took(spent + perf_counter() - start, step)
    if step > 1 and (step < 64 or step % 64 == 0 or line.tail):
        one.fit()


# --- reading tensors


class _Line:
    """A step, some of it perhaps still on a device."""

    def __init__(self, head: str, losses: list[Any] | None, screens: list[Any], tail: str) -> None:
        self.head = head
        self.losses = losses
        self.crc: int | None = None
        self.screens = screens
        """Bytes of a screen that are still on a device."""
        self.tail = tail

    @property
    def waits(self) -> bool:
        return bool(self.screens) or any(map(_is_away, self.losses or ()))

    def text(self) -> str:
        line = self.head
        if self.losses is not None:
            line += ', "loss": [%s]' % ", ".join(map(_value, self.losses))
        for screen in self.screens:
            self.crc = _crc(screen.cpu(), self.crc or 0)
        if self.crc is not None:
            line += ', "screen": "%08x"' % self.crc
        return line + self.tail + "}\n"


def _is_away(loss: Any) -> bool:
    """Whether reading it means to wait for a device."""
    return loss is not None and loss.device.type != "cpu"


def _value(loss: Any) -> str:
    return "null" if loss is None else _number(loss.item())


def _number(value: float) -> str:
    """As JSON, which has no name for what is no number."""
    text = repr(float(value))
    return f'"{text}"' if text in ("nan", "inf", "-inf") else text


class _Window:
    """Bytes out of a tensor in memory. The address is only used while the tensor says that it is still there."""

    def __init__(self) -> None:
        self.key: Any = None
        self.bytes: Any = b""


def _screen(one: _Traced, params: list[Any], line: _Line) -> None:
    from zlib import crc32

    count = min(len(params), _TENSORS)
    if len(one.windows) != count:
        one.windows = [_Window() for _ in range(count)]
    line.crc = 0
    there: dict[str, list[Any]] = {}
    for place, window in enumerate(one.windows):
        param = _local(params[place * len(params) // count])
        if param.device.type == "cpu":
            key = (param.data_ptr(), param.numel(), param.dtype)
            if window.key != key:
                window.bytes, window.key = _memory(*_middle(param)), key
            line.crc = crc32(window.bytes, line.crc)
        elif param.numel():
            start, size = _middle(param)
            there.setdefault(str(param.device), []).append(_view(param, start - param.data_ptr(), size))
    if there:
        torch = sys.modules["torch"]
        line.screens = [torch.cat(there[device]) for device in sorted(there)]


def _middle(param: Any) -> tuple[int, int]:
    """Address and size of the bytes to look at."""
    whole = param.numel() * param.element_size()
    if not param.is_contiguous():  # in its memory there may be more, or less, than its elements
        whole = min(whole, param.untyped_storage().nbytes() - param.storage_offset() * param.element_size())
    size = min(whole, _WINDOW)
    return param.data_ptr() + (whole - size) // 2, size


def _view(param: Any, offset: int, size: int) -> Any:
    """Some bytes of a tensor on a device, where they are."""
    torch = sys.modules["torch"]
    empty = torch.empty(0, dtype=torch.uint8, device=param.device)
    return empty.set_(param.untyped_storage(), param.storage_offset() * param.element_size() + offset, (size,))


def _memory(address: int, size: int) -> Any:
    import ctypes

    return (ctypes.c_char * size).from_address(address) if size else b""


def _crc(tensor: Any, crc: int) -> int:
    from zlib import crc32

    return crc32(_memory(tensor.data_ptr(), tensor.numel()), crc)


def _local(tensor: Any) -> Any:
    """The part of a distributed tensor that is here: to ask for all of it, every rank would have to."""
    local = getattr(tensor, "to_local", None)
    return tensor.detach() if local is None else local().detach()


def _wait_for(params: list[Any]) -> float:
    """When a device has done what it was asked for: reading from it would wait for that, which is no cost of ours."""
    if any(param.is_cuda for param in params):
        sys.modules["torch"].cuda.synchronize()
    return perf_counter()


def _weights(params: list[Any]) -> str:
    """The end of a line: a digest of all parameters, and the beginnings of their own."""
    from hashlib import sha256

    digests = [_digest(param) for param in params]
    whole = sha256(b"".join(digests)).hexdigest() if all(digests) else ""
    short = ", ".join('"%s"' % digest.hex()[:16] for digest in digests)
    return f', "sha256": "{whole}", "tensors": [{short}]'


def _digest(param: Any) -> bytes:
    """sha256 of a tensor's type, shape and elements; empty for one that has no bytes to read."""
    from hashlib import sha256

    tensor = _local(param)
    if tensor.device.type == "meta" or tensor.layout != sys.modules["torch"].strided:
        return b""
    hasher = sha256(f"{tensor.dtype} {tuple(tensor.shape)}\n".encode())
    flat = tensor.contiguous().reshape(-1)
    each = max(1, _PIECE // flat.element_size())
    for start in range(0, flat.numel(), each):
        piece = flat[start : start + each].cpu()
        hasher.update(_memory(piece.data_ptr(), piece.numel() * piece.element_size()))
    return hasher.digest()


# --- the file


def _claim() -> None:
    """A file of our own, at the first step. Its name says which process it is, and is the same in every run."""
    import json

    rank, worker = _rank(), seeds._State.worker
    os.makedirs(_FOLDER, mode=0o700, exist_ok=True)
    name = "-".join(["rank" + rank, *(str(part) for part in worker)])
    for number in range(1, 10000):
        path = f"{_FOLDER}/{name}.jsonl" if number == 1 else f"{_FOLDER}/{name}.{number}.jsonl"
        try:
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        except FileExistsError:
            continue
        _State.file = path
        break
    else:
        raise OSError("there are too many traces")
    facts = {
        "trace": 1,
        "rank": rank,
        "worker": list(worker),
        "program": os.path.basename(sys.argv[0]) if getattr(sys, "argv", None) else "",
        "torch": str(sys.modules["torch"].__version__),
    }
    _text.append(json.dumps(facts) + "\n")
    _State.began = _State.written = perf_counter()
    _State.spent = 0.0


def _rank() -> str:
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return str(distributed.get_rank())
    rank = next((os.environ[name] for name in _RANKS if os.environ.get(name)), "0")
    return rank if rank.isdigit() else "0"


def _settle() -> None:
    """Lines that waited -> text."""
    lines = _waiting[:]
    _waiting.clear()
    _text.extend([line.text() for line in lines])


def _write() -> None:
    if not _text or not _State.file:
        return
    data = "".join(_text).encode()
    _text.clear()
    # Opened anew each time: a script may close all files, and open its own under the number of ours.
    fd = os.open(_State.file, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
    try:
        os.write(fd, data)
    finally:
        os.close(fd)
    _State.size += len(data)
    _State.written = perf_counter()


def _finish() -> None:
    """The weights as they are now, where they were not told, and what all this cost."""
    if _State.failures >= _PATIENCE:
        return
    if not _State.file:
        if _State.losses:
            seeds._note({"problem": "trace: there were losses, and no step of an optimizer that we see; compiled ones we do not"})
            _State.losses = 0
        return
    try:
        import json

        began = perf_counter()
        seconds = began - _State.began
        _settle()
        failed = hasattr(sys, "last_value") or sys.exc_info()[0] not in (None, SystemExit)
        for one in sorted(_known.values(), key=lambda one: one.number):
            optimizer = one.alive()
            _steps[one.number] = one.step
            if optimizer is not None and one.step and not failed:  # after an error a device may never answer
                tail = _weights(_params(optimizer))
                _text.append('{"optimizer": %d, "step": %d, "exit": true%s}\n' % (one.number, one.step, tail))
        spent = _State.spent + perf_counter() - began
        facts = {
            "seconds": round(seconds, 3),
            "spent": round(spent, 4),
            "untraced": _State.untraced,
            "steps": _steps,
        }
        _text.append(json.dumps({"end": facts}) + "\n")
        _write()
        _State.file = ""
        _State.losses = 0
    except Exception as error:
        _failed("the end", error)
