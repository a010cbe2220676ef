"""The init process (PID 1) of a run: reap processes, forward signals, and report the exit status of the command.

    PYTHON -I -S -B init.py attend PID DESCRIPTOR
    PYTHON -I -S -B init.py start DIRECTORY

`attend` waits for a command that has already been started, and writes its wait status (waitpid(2)) to the descriptor.
`start` is for a container. It reads `launch.json` (argv, env, cwd, umask, fixed_addresses, filter) from DIRECTORY, starts the
command, and writes `started` and `ended.json` there. The environment variables are in the file because the engine records the
variables of a container, and adds some. Standard library only, Python 3.8 and later: the image's own interpreter runs it.
"""

import errno
import os
import signal
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Optional

FORWARDED = {signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGWINCH}
FORWARDED |= {signal.SIGALRM, signal.SIGPIPE, signal.SIGTSTP, signal.SIGCONT, *range(signal.SIGRTMIN, signal.SIGRTMAX + 1)}
WATCHED = FORWARDED | {signal.SIGCHLD}
COMMAND = 32
"""PID of the command in a container. The engine's threads take a varying number of the lower PIDs before it."""
SI_USER = 0
"""The code of a signal that kill(2) sent. Signals of a terminal come from the kernel, which sends them to the command too."""
ADDR_NO_RANDOMIZE = 0x0040000
"""A flag of personality(2) for the programs that this process starts."""
PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS, SECCOMP_MODE_FILTER = 4, 22, 38, 2
COUNTERS = ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control")
TERMINAL_SIGNALS = {signal.SIGHUP: signal.SIGHUP, signal.SIGINT: signal.SIGINT, signal.SIGQUIT: signal.SIGQUIT}
TERMINAL_SIGNALS.update({signal.SIGTSTP: signal.SIGSTOP, signal.SIGCONT: signal.SIGCONT})
"""Signals of a terminal go to the process group of the command. SIGSTOP replaces SIGTSTP, which the kernel ignores in an
orphaned process group."""


def wait_for(child: int, descriptor: int) -> None:
    """Wait for a command that runs or has already ended, and report its status. The caller has blocked the signals in `WATCHED`."""
    status = attend(child)
    kill_all()
    os.write(descriptor, b"%d\n" % status)
    os._exit(0)


def start(directory: str) -> None:
    """Start the command of a container, wait for it, and exit with its exit code."""
    import json

    mask = signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)
    with open(directory + "/launch.json", "rb") as file:  # as bytes: the image may lack the codec of the locale
        launch = json.loads(file.read())
    notes = ["addresses: random (%s)" % why for why in attempt(fix_addresses)] if launch["fixed_addresses"] else []
    notes += ["init: the command can trace it (%s)" % why for why in attempt(forbid_tracing)]
    notes += ["system calls: only the engine's filter (%s)" % why for why in attempt(filter_calls, launch["filter"])]
    before = count_oom_kills()
    read, write = os.pipe()  # execve closes it; if the command cannot be started, the reason is written to it
    child = 0
    while child < COMMAND:
        child = os.fork()
        if child == 0:
            if os.getpid() < COMMAND:
                os._exit(0)
            os.close(read)
            run_command(launch, write, mask)
        if child < COMMAND:
            os.waitpid(child, 0)
    os.close(write)
    write_json(directory + "/started", {"pid": child})
    with os.fdopen(read, "rb") as pipe:
        reason = pipe.read()
    status = attend(child)
    kill_all()
    after = count_oom_kills()
    ended = {"status": status, "starved": None if before is None or after is None else after > before, "notes": notes}
    if reason:
        ended["refused"] = json.loads(reason)
    write_json(directory + "/ended.json", ended)
    code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)
    sys.stdout.flush()
    os._exit(code)


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


def attend(child: int) -> int:
    """Forward signals and reap processes until the command ends. Return its status."""
    while True:
        info = signal.sigwaitinfo(WATCHED)
        if info.si_signo != signal.SIGCHLD:
            if info.si_pid == 0 and info.si_code == SI_USER:  # sent from outside the run
                forward(info.si_signo, child)
            continue
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == child:
                return status
            if pid == 0:
                break


def forward(number: int, child: int) -> None:
    if number not in TERMINAL_SIGNALS:
        os.kill(child, number)
        return
    try:
        os.killpg(child, TERMINAL_SIGNALS[signal.Signals(number)])
    except ProcessLookupError:  # it has not created its process group yet
        os.kill(child, number)


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


def run_command(launch: "dict[str, Any]", write: int, mask: "set[Any]") -> None:
    """Execute the command in this process. If that fails, write the reason to `write`: `[field, [[path, errno], ...]]`."""
    try:
        os.set_inheritable(write, False)
        for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT):  # which Python ignores or handles
            signal.signal(number, signal.SIG_DFL)
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


def write_json(path: str, values: "dict[str, Any]") -> None:
    """Write a file under a temporary name and rename it, so that a reader never sees a part of it."""
    import json

    with open(path + ".new", "wb") as file:
        file.write(json.dumps(values).encode())
    os.rename(path + ".new", path)


def count_oom_kills() -> "Optional[int]":
    """How many processes of this container the kernel killed because memory ran out; None if it does not report that."""
    for path in COUNTERS:
        try:
            with open(path, "rb") as file:
                for line in file:
                    if line.startswith(b"oom_kill "):
                        return int(line.split()[1])
        except (OSError, ValueError):  # noqa: PERF203
            pass
    return None


if __name__ == "__main__":
    if os.getpid() != 1:  # it kills every process that it can
        sys.exit("error: init.py must run as PID 1, because it kills all other processes")
    if sys.argv[1] == "attend":
        wait_for(int(sys.argv[2]), int(sys.argv[3]))
    else:
        start(sys.argv[2])
