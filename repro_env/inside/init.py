"""The first process of a run: reaps, passes signals on, and reports how the command ended.

    PYTHON -I -S -B init.py attend PID DESCRIPTOR
    PYTHON -I -S -B init.py start FOLDER

`attend` waits for the command that was started beside it, and writes its status (waitpid(2)) to the descriptor. `start` is
for a container: FOLDER holds `launch.json` (argv, env, cwd, umask, fixed_addresses, filter) and takes `started` and `ended.json`.
The variables are read from the file and not from the container's own, which the engine writes down and adds to. Standard
library only, Python 3.8 and later: it is run by the image's own interpreter.
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
"""Sent by kill(2); what a terminal sends is from the kernel, and reaches the command without us."""
ADDR_NO_RANDOMIZE = 0x0040000
"""personality(2); the next program starts with it."""
PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS, SECCOMP_MODE_FILTER = 4, 22, 38, 2
COUNTERS = ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control")


OF_THE_TERMINAL = {signal.SIGHUP: signal.SIGHUP, signal.SIGINT: signal.SIGINT, signal.SIGQUIT: signal.SIGQUIT}
OF_THE_TERMINAL.update({signal.SIGTSTP: signal.SIGSTOP, signal.SIGCONT: signal.SIGCONT})
"""Signals of a terminal go to the command's process group. SIGSTOP replaces SIGTSTP, which the kernel ignores there."""


def wait_for(child: int, report: int) -> None:
    """Wait for a command that runs or has already ended, and report its status; `WATCHED` is blocked."""
    status = attend(child)
    end_the_others()
    os.write(report, b"%d\n" % status)
    os._exit(0)


def start(folder: str) -> None:
    import json

    mask = signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)
    with open(folder + "/launch.json", "rb") as file:  # as bytes: other codecs than UTF-8 would have to be in the image
        launch = json.loads(file.read())
    notes = ["addresses: random (%s)" % why for why in tried(fix_addresses)] if launch["fixed_addresses"] else []
    notes += ["init: the command can trace it (%s)" % why for why in tried(forbid_tracing)]
    notes += ["system calls: the engine's own filter alone (%s)" % why for why in tried(filter_calls, launch["filter"])]
    before = kills()
    read, write = os.pipe()  # closed by a command that starts; else it brings the reason
    child = 0
    while child < COMMAND:
        child = os.fork()
        if child == 0:
            if os.getpid() < COMMAND:
                os._exit(0)
            os.close(read)
            become(launch, write, mask)
        if child < COMMAND:
            os.waitpid(child, 0)
    os.close(write)
    tell(folder + "/started", {"pid": child})
    with os.fdopen(read, "rb") as pipe:
        reason = pipe.read()
    status = attend(child)
    end_the_others()
    after = kills()
    ended = {"status": status, "starved": None if before is None or after is None else after > before, "notes": notes}
    if reason:
        ended["refused"] = json.loads(reason)
    tell(folder + "/ended.json", ended)
    code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)
    sys.stdout.flush()
    os._exit(code)


def tried(what: "Callable[..., None]", *arguments: str) -> "list[str]":
    """Call a function. Returns why it failed, or an empty list."""
    try:
        what(*arguments)
    except Exception as error:  # an image's Python may lack ctypes, or libffi
        return [error.strerror if isinstance(error, OSError) and error.strerror else "%s: %s" % (type(error).__name__, error)]
    return []


def call(name: str, *arguments: "Any") -> int:
    """Call a function of the C library that returns -1 and sets errno when it fails. Raises `OSError`."""
    import ctypes

    result = getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return int(result)


def fix_addresses() -> None:
    """Switch off address randomization for programs that are started from here."""
    import ctypes

    before = call("personality", ctypes.c_ulong(0xFFFFFFFF))
    call("personality", ctypes.c_ulong(before | ADDR_NO_RANDOMIZE))


def forbid_tracing() -> None:
    """Let no process of this user trace this one, or look into it through /proc (prctl(2))."""
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
        raise OSError(errno.ENOSYS, "there is no filter for this machine")
    rules = Program(len(rows) // 8, ctypes.addressof(text))
    call("prctl", PR_SET_NO_NEW_PRIVS, ctypes.c_ulong(1), *[ctypes.c_ulong(0)] * 3)
    call("prctl", PR_SET_SECCOMP, ctypes.c_ulong(SECCOMP_MODE_FILTER), ctypes.byref(rules), *[ctypes.c_ulong(0)] * 2)


def attend(child: int) -> int:
    """Pass signals on and reap until the command is over. Returns its status."""
    while True:
        info = signal.sigwaitinfo(WATCHED)
        if info.si_signo != signal.SIGCHLD:
            if info.si_pid == 0 and info.si_code == SI_USER:  # from outside of the run
                pass_on(info.si_signo, child)
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


def pass_on(number: int, child: int) -> None:
    if number not in OF_THE_TERMINAL:
        os.kill(child, number)
        return
    try:
        os.killpg(child, OF_THE_TERMINAL[signal.Signals(number)])
    except ProcessLookupError:  # it has not made its own group yet
        os.kill(child, number)


def end_the_others() -> None:
    """Nothing writes any more after this."""
    try:
        os.kill(-1, signal.SIGKILL)
    except ProcessLookupError:
        pass
    try:
        while True:
            os.waitpid(-1, 0)
    except ChildProcessError:
        pass


def become(launch: "dict[str, Any]", write: int, mask: "set[Any]") -> None:
    """Turn into the command, or say why not: `[what, [[place, errno], ...]]`."""
    try:
        os.set_inheritable(write, False)
        for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT):  # Python's own settings for them
            signal.signal(number, signal.SIG_DFL)
        os.umask(launch["umask"])
        try:
            os.chdir(launch["cwd"])
        except OSError as error:
            say(write, ["cwd", [[launch["cwd"], error.errno or 0]]])
            return
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        say(write, ["argv", execute(launch["argv"], launch["env"])])
    finally:
        os._exit(127)


def execute(argv: "list[str]", env: "dict[str, str]") -> "list[list[Any]]":
    """Replace this process; returns what was tried when nothing could be started."""
    name = argv[0]
    path = env.get("PATH", os.defpath)
    places = [name] if "/" in name else ["%s/%s" % (folder or ".", name) for folder in path.split(":")]
    refused = []
    for place in places:
        try:
            os.execve(place, argv, env)
        except OSError as error:  # noqa: PERF203
            if os.path.lexists(place):
                refused.append([place, error.errno or errno.EIO])
    return refused


def say(write: int, reason: "list[Any]") -> None:
    import json

    os.write(write, json.dumps(reason).encode())


def tell(path: str, what: "dict[str, Any]") -> None:
    """A file that is there is whole."""
    import json

    with open(path + ".new", "wb") as file:
        file.write(json.dumps(what).encode())
    os.rename(path + ".new", path)


def kills() -> "Optional[int]":
    """How many processes of this container were killed for lack of memory; None where nobody counts."""
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
    if os.getpid() != 1:  # it ends all processes that it may
        sys.exit("init.py is the first process of a run, and nothing else")
    if sys.argv[1] == "attend":
        wait_for(int(sys.argv[2]), int(sys.argv[3]))
    else:
        start(sys.argv[2])
