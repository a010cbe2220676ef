"""Run `repro-env` commands in forks of a process that has imported all of it: the import takes longer than most commands.

A fork does what the installed command does after its imports, with the variables, directory, umask and streams of the caller.
Variables that Python or its C library reads only at the start cannot be given to a fork: each set of them has a process of its own
from its second use on, and the first starts the installed command. Tests that kill, measure or wrap a command start it themselves.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import pkgutil
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

COMMAND = Path(sys.executable).with_name("repro-env")
AT_START = ("PYTHON", "LANG", "LC_", "LD_", "GLIBC_", "MALLOC_")
"""How the variables begin that are read at the start only."""
LATE = ("docker", "docker.context", "jinja2", "requests", "ssl", "typer.core", "typer.main", "yaml", "zstandard")
"""What the package imports when it is needed."""
LIMIT = 1 << 16
"""Bytes that a pipe takes without a reader."""


class Done(NamedTuple):
    code: int
    out: str
    err: str


def run(
    words: Sequence[str | Path],
    *,
    cwd: Path,
    env: Mapping[str, str],
    umask: int = -1,
    stdin: str | None = None,
    timeout: float = 500,
) -> Done:
    """`repro-env WORDS`, until it has ended and its output is closed. Without `stdin`, it reads /dev/null."""
    command = [str(COMMAND), *map(str, words)]
    server = _server(env)
    if server is None or len(stdin or "") > LIMIT // 4:
        given: dict[str, Any] = {"stdin": subprocess.DEVNULL} if stdin is None else {"input": stdin.encode()}
        ended = subprocess.run(command, cwd=cwd, env=env, umask=umask, capture_output=True, timeout=timeout, check=False, **given)
        return _done(ended.returncode, ended.stdout, ended.stderr)
    with contextlib.ExitStack() as stack:
        ours, theirs = socket.socketpair()
        stack.enter_context(ours)
        (out, their_out), (err, their_err), their_in = os.pipe(), os.pipe(), _reader(stdin)
        stack.callback(os.close, out)
        stack.callback(os.close, err)
        fds = [theirs.fileno(), their_in, their_out, their_err]
        socket.send_fds(server, [b"x"], fds)
        for fd in (their_in, their_out, their_err):
            os.close(fd)
        theirs.close()
        ours.sendall(json.dumps([command, str(cwd), dict(env), umask]).encode() + b"\n")
        answers = stack.enter_context(ours.makefile())
        pid = int(answers.readline())
        try:
            texts = _read({out: b"", err: b""}, command, timeout)
            code = answers.readline()
        except BaseException:
            os.kill(pid, signal.SIGKILL)
            raise
    return _done(int(code), texts[out], texts[err])


def _done(code: int, out: bytes, err: bytes) -> Done:
    """With line ends as `subprocess` reads text."""
    texts = [text.decode("utf-8", "replace").replace("\r\n", "\n").replace("\r", "\n") for text in (out, err)]
    return Done(code, *texts)


def _reader(text: str | None) -> int:
    """A descriptor from which this text is read."""
    if text is None:
        return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    reader, writer = os.pipe()
    with os.fdopen(writer, "wb") as file:
        file.write(text.encode())
    return reader


def _read(texts: dict[int, bytes], command: Sequence[str], timeout: float) -> dict[int, bytes]:
    deadline = time.monotonic() + timeout
    poll, left = select.poll(), set(texts)
    for fd in texts:
        poll.register(fd, select.POLLIN)
    while left:
        ready = poll.poll(max(0.0, deadline - time.monotonic()) * 1000)
        if not ready:
            raise subprocess.TimeoutExpired(command, timeout)
        for fd, _ in ready:
            chunk = os.read(fd, LIMIT)
            texts[fd] += chunk
            if not chunk:
                poll.unregister(fd)
                left.remove(fd)
    return texts


class Server(NamedTuple):
    process: subprocess.Popen[bytes]
    control: socket.socket
    """The process ends when this is closed."""


_servers: dict[frozenset[tuple[str, str]], Server | None] = {}
_lock = threading.Lock()


def _server(env: Mapping[str, str]) -> socket.socket | None:
    """The way to the process that started with these variables; None at their first use."""
    start = frozenset((name, value) for name, value in env.items() if name.startswith(AT_START))
    with _lock:
        if start not in _servers:
            _servers[start] = None
            return None
        server = _servers[start] = _servers[start] or _start(env)
        return server.control


def _start(env: Mapping[str, str]) -> Server:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        command = [sys.executable, __file__, str(theirs.fileno())]
        null = subprocess.DEVNULL
        process = subprocess.Popen(command, env=env, pass_fds=[theirs.fileno()], stdin=null, stdout=null)
    atexit.register(_stop, server := Server(process, ours), os.getpid())
    return server


def _stop(server: Server, owner: int) -> None:
    if os.getpid() == owner:  # else a fork of a test, which ends as Python does
        server.control.close()
        server.process.kill()
        server.process.wait()


def serve(control: socket.socket) -> bool:
    """Fork for each request. Return True in a fork, which becomes the command; False when the tests have ended."""
    import repro_env

    for module in pkgutil.walk_packages(repro_env.__path__, "repro_env."):
        if not module.name.startswith(("repro_env.guest", "repro_env.checkpoint", "repro_env._")):
            importlib.import_module(module.name)
    for name in LATE:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    poll = select.poll()
    poll.register(control, select.POLLIN)
    running: dict[int, tuple[int, int]] = {}
    while True:
        for fd, _ in poll.poll():
            if fd in running:
                pid, answer = running.pop(fd)
                code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                with contextlib.suppress(BrokenPipeError):
                    os.write(answer, f"{code}\n".encode())
                poll.unregister(fd)
                os.close(fd)
                os.close(answer)
                continue
            received, fds, _, _ = socket.recv_fds(control, 1, 4)
            if not received:
                return False
            answer, *streams = fds
            request = b""
            while not request.endswith(b"\n"):
                request += os.read(answer, LIMIT)
            if (pid := os.fork()) == 0:
                for number, stream in enumerate(streams):
                    os.dup2(stream, number)
                control.detach()
                os.closerange(3, max(int(path.name) for path in Path("/proc/self/fd").iterdir()) + 1)
                become(*json.loads(request))
                return True
            for stream in streams:
                os.close(stream)
            handle = os.pidfd_open(pid)
            running[handle] = pid, answer
            poll.register(handle, select.POLLIN)
            os.write(answer, f"{pid}\n".encode())


def become(command: list[str], cwd: str, env: dict[str, str], umask: int) -> None:
    """What the installed command has when it starts. The texts are as the caller's locale decodes bytes."""
    sys.argv = [os.fsdecode(_bytes(word)) for word in command]
    sys.orig_argv = [sys.executable, *sys.argv]
    os.chdir(_bytes(cwd))
    if umask >= 0:
        os.umask(umask)
    os.environ.clear()
    os.environb.update({_bytes(name): _bytes(value) for name, value in env.items()})
    time.tzset()
    tempfile.tempdir = None


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def main() -> None:
    sys.path[0] = str(COMMAND.parent)
    with socket.socket(fileno=int(sys.argv[1])) as control:
        is_command = serve(control)
    if is_command:
        program: Any = importlib.import_module("repro_env.__main__")
        try:
            program.main()
        except SystemExit as end:
            code = int(end.code or 0)
        else:
            code = 0
        # As Python ends, without the removal of each module: that takes longer than most commands.
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(ValueError, BrokenPipeError):
                stream.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
