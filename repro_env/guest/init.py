"""The init process (PID 1) of a run: reap processes, forward signals, and report the exit status of the command.

    PYTHON OPTIONS init.py attend PID DESCRIPTOR
    PYTHON OPTIONS init.py start SOCKET

Both have a connection to the supervisor (`sandbox.session`), which sends one byte for each signal; lines of JSON are the answer.
If the supervisor dies, the run ends. `attend` waits for a command that has already been started, and DESCRIPTOR is the
connection. `start` is for a container: it connects to SOCKET, and first receives standard streams and a launch (argv, env, cwd,
umask, fixed_addresses, filter, terminal), whose length precedes it in eight bytes. So the engine, which records the variables of
a container, never gets those of the command. `isolation` is what a container program does not do, and `promises` is what is
checked before the command starts (`sandbox.programs`). Standard library only, Python 3.8 and later: the image's own interpreter runs it.
"""

import _thread
import array
import errno
import os
import signal
import socket
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

FORWARDED = {signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2}
WATCHED = FORWARDED | {signal.SIGCHLD}
COMMAND = 32
"""PID of the command in a container. The engine's threads take a varying number of the lower PIDs before it."""
SI_USER = 0
"""The code of a signal that kill(2) sent."""
ADDR_NO_RANDOMIZE = 0x0040000
"""A flag of personality(2) for the programs that this process starts."""
PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS, SECCOMP_MODE_FILTER = 4, 22, 38, 2
PR_CAPBSET_DROP, CLONE_NEWUSER = 24, 0x10000000
CAPABILITY_VERSION_3 = 0x20080522
COUNTERS = ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control")


def start(connection: socket.socket) -> None:
    """Start the command of a container, and attend to it."""
    import json

    mask = signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)
    size, ancillary, _, _ = connection.recvmsg(8, socket.CMSG_LEN(3 * 4))
    streams = array.array("i")
    for _, _, descriptors in ancillary:
        streams.frombytes(descriptors)
    text = b""
    while len(text) < int.from_bytes(size, "big"):
        text += connection.recv(1 << 16) or os._exit(1)
    launch = json.loads(text)
    broken = prepare(launch)
    if broken:
        hint = "run `repro-env doctor`, or use another runner"
        send(connection, {"type": "failed", "kind": "SandboxError", "what": broken, "where": "", "hint": hint})
        os._exit(1)
    deviations = ["addresses: random (%s)" % why for why in attempt(fix_addresses)] if launch["fixed_addresses"] else []
    deviations += ["init: the command can trace it (%s)" % why for why in attempt(forbid_tracing)]
    deviations += ["system calls: only the engine's filter (%s)" % why for why in attempt(filter_calls, launch["filter"])]
    before = count_oom_kills()
    read, write = os.pipe()  # execve closes it; if the command cannot be started, the reason is written to it
    child = 0
    while child < COMMAND:
        child = os.fork()
        if child == 0:
            if os.getpid() < COMMAND:
                os._exit(0)
            run_command(launch, streams, write, mask)
        if child < COMMAND:
            os.waitpid(child, 0)
    os.close(write)
    for stream in streams:
        os.close(stream)
    with os.fdopen(read, "rb") as pipe:
        reason = pipe.read()
    send(connection, {"type": "started", "deviations": deviations})
    status = attend(child, connection)
    ended = {"type": "ended", "status": status, "starved": count_oom_kills() > before}
    if reason:
        ended["refused"] = json.loads(reason)
    send(connection, ended)


def prepare(launch: "dict[str, Any]") -> str:
    """Isolate this process if the container program does not, and check what it promises. Return what is wrong, as a clause."""
    if "isolation" in launch:
        try:
            isolate(launch["isolation"])
        except OSError as error:
            return "the kernel refuses to isolate the run (%s)" % error
    if os.getpid() != 1:  # it kills every process that it can
        return "the container has no PID namespace of its own"
    return next(find_broken_promises(launch["promises"]), "") if "promises" in launch else ""


def isolate(isolation: "dict[str, Any]") -> None:
    """As uid 0 of a user namespace: enter more namespaces, become PID 1, mount, and become the caller without capabilities."""
    import ctypes
    import fcntl
    import struct

    call("unshare", isolation["namespaces"])
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        os._exit(0)
    for source, target, kind, flags, options in isolation["mounts"]:
        words = [None if word is None else os.fsencode(word) for word in (source, target, kind, options)]
        try:
            call("mount", *words[:3], ctypes.c_ulong(flags), words[3])
        except OSError as error:
            raise OSError(error.errno, "mount: %s" % error.strerror, target) from None
    hostname = isolation["hostname"].encode()
    call("sethostname", hostname, len(hostname))
    if isolation["loopback"]:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as interface:
            fcntl.ioctl(interface, 0x8914, struct.pack("16sH22x", b"lo", 1))  # SIOCSIFFLAGS, IFF_UP
    call("unshare", CLONE_NEWUSER)
    for number, name in enumerate(("uid", "gid")):
        with open("/proc/self/%s_map" % name, "w") as file:
            file.write("%d 0 1" % isolation["user"][number])
    with open("/proc/sys/kernel/cap_last_cap") as file:
        for capability in range(int(file.read()) + 1):  # or else the kernel resets personality(2) when uid 0 starts a program
            call("prctl", PR_CAPBSET_DROP, *[ctypes.c_ulong(word) for word in (capability, 0, 0, 0)])
    call("capset", struct.pack("=Ii", CAPABILITY_VERSION_3, 0), bytes(24))


def find_broken_promises(promises: "dict[str, Any]") -> "Iterator[str]":
    if [os.getuid(), os.getgid()] != promises["user"]:
        yield "the command would run as uid %d and not as the caller" % os.getuid()
    if os.readlink("/proc/self/ns/net") == promises["network"]:
        yield "the container has this machine's network"
    for path in promises["read_only"]:
        if not os.statvfs(path).f_flag & os.ST_RDONLY:
            yield "the container can write to %s" % path
    path, text = promises["marker"]
    try:
        with open(path, encoding="utf-8") as file:
            found = file.read()
    except OSError:
        found = ""
    if found != text:
        yield "the container does not have the image of the spec (%s differs)" % path


def send(connection: socket.socket, message: "dict[str, Any]") -> None:
    import json

    connection.sendall(json.dumps(message).encode() + b"\n")


def attempt(function: "Callable[..., None]", *arguments: str) -> "list[str]":
    """Call a function. Return the reason if it fails, else an empty list."""
    try:
        function(*arguments)
    except Exception as error:  # the Python of an image may lack ctypes or libffi
        return [error.strerror if isinstance(error, OSError) and error.strerror else "%s: %s" % (type(error).__name__, error)]
    return []


def call(name: str, *arguments: "Any") -> int:
    """Call a function of the C library. Raises `OSError` with errno if the function returns -1."""
    import ctypes

    result = getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return int(result)


def fix_addresses() -> None:
    """Disable address space layout randomization for the programs that this process starts."""
    import ctypes

    before = call("personality", ctypes.c_ulong(0xFFFFFFFF))
    call("personality", ctypes.c_ulong(before | ADDR_NO_RANDOMIZE))


def forbid_tracing() -> None:
    """Forbid processes of the same user to trace this process or to read its memory in /proc (prctl(2))."""
    import ctypes

    call("prctl", PR_SET_DUMPABLE, *[ctypes.c_ulong(0)] * 4)


def filter_calls(program: str) -> None:
    """Install a seccomp filter, an array of `struct sock_filter` in hexadecimal digits (seccomp(2))."""
    import ctypes

    rows = bytes.fromhex(program)
    text = ctypes.create_string_buffer(rows, len(rows))

    class Program(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]

    if not rows:
        raise OSError(errno.ENOSYS, "no filter for this CPU type")
    rules = Program(len(rows) // 8, ctypes.addressof(text))
    call("prctl", PR_SET_NO_NEW_PRIVS, ctypes.c_ulong(1), *[ctypes.c_ulong(0)] * 3)
    call("prctl", PR_SET_SECCOMP, ctypes.c_ulong(SECCOMP_MODE_FILTER), ctypes.byref(rules), *[ctypes.c_ulong(0)] * 2)


def attend(child: int, connection: socket.socket) -> int:
    """Forward signals and reap processes until the command ends, then kill all others. Return its status.

    The caller has blocked the signals in `WATCHED`.
    """
    _thread.start_new_thread(receive_signals, (child, connection))
    while True:
        info = signal.sigwaitinfo(WATCHED)
        if info.si_signo != signal.SIGCHLD:
            if info.si_pid == 0 and info.si_code == SI_USER:  # sent from outside the run, for example by `docker stop`
                forward(info.si_signo, child)
            continue
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == child:
                kill_all()
                return status
            if pid == 0:
                break


def receive_signals(child: int, connection: socket.socket) -> None:
    """Forward the signals that the supervisor sends. If it dies, end the run."""
    while True:
        number = connection.recv(1)
        if not number:
            os._exit(1)
        forward(number[0], child)


def forward(number: int, child: int) -> None:
    """Send a signal to the command; those that a terminal sends, to its process group."""
    for target in (-child, child) if number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT) else (child,):
        try:
            os.kill(target, number)
        except ProcessLookupError:  # it has no process group yet, or it has just ended
            continue
        return


def kill_all() -> None:
    """Kill and reap all other processes, so that nothing is written after this."""
    try:
        os.kill(-1, signal.SIGKILL)
    except ProcessLookupError:
        pass
    try:
        while True:
            os.waitpid(-1, 0)
    except ChildProcessError:
        pass


def run_command(launch: "dict[str, Any]", streams: "array.array[int]", write: int, mask: "set[Any]") -> None:
    """Execute the command in this process. If that fails, write the reason to `write`: `[field, [[path, errno], ...]]`."""
    try:
        for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT):  # which Python ignores or handles
            signal.signal(number, signal.SIG_DFL)
        os.setsid()
        if launch["terminal"] is not None:
            import fcntl
            import termios

            fcntl.ioctl(streams[launch["terminal"]], termios.TIOCSCTTY, 0)
        for stream, end in enumerate(streams):
            os.set_inheritable(end, False)
            os.dup2(end, stream)
        os.umask(launch["umask"])
        try:
            os.chdir(launch["cwd"])
        except OSError as error:
            report_failure(write, ["cwd", [[launch["cwd"], error.errno or 0]]])
            return
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        report_failure(write, ["argv", execute(launch["argv"], launch["env"])])
    finally:
        os._exit(127)


def execute(argv: "list[str]", env: "dict[str, str]") -> "list[list[Any]]":
    """Replace this process. If that fails, return the path and errno of each file that could not be executed."""
    name = argv[0]
    path = env.get("PATH", os.defpath)
    candidates = [name] if "/" in name else ["%s/%s" % (directory or ".", name) for directory in path.split(":")]
    failures = []
    for candidate in candidates:
        try:
            os.execve(candidate, argv, env)
        except OSError as error:  # noqa: PERF203
            if os.path.lexists(candidate):
                failures.append([candidate, error.errno or errno.EIO])
    return failures


def report_failure(write: int, reason: "list[Any]") -> None:
    import json

    os.write(write, json.dumps(reason).encode())


def count_oom_kills() -> int:
    """How many processes of this container the kernel killed because memory ran out; 0 if it does not report that."""
    for path in COUNTERS:
        try:
            with open(path, "rb") as file:
                for line in file:
                    if line.startswith(b"oom_kill "):
                        return int(line.split()[1])
        except (OSError, ValueError):  # noqa: PERF203
            pass
    return 0


if __name__ == "__main__":
    if sys.argv[1] == "attend":
        if os.getpid() != 1:  # it kills every process that it can
            sys.exit("error: init.py must run as PID 1, because it kills all other processes")
        supervisor = socket.socket(fileno=int(sys.argv[3]))
        send(supervisor, {"type": "ended", "status": attend(int(sys.argv[2]), supervisor)})
    else:
        supervisor = socket.socket(socket.AF_UNIX)
        supervisor.connect(sys.argv[2])
        start(supervisor)
    os._exit(0)
