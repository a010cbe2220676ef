"""The caller of a run: a session with a terminal, keys, IPC objects, open descriptors and another process, all with secrets.

Started as `python -c SOURCE SETUP.json` with the command's side of a terminal as stdin. It runs as any user, so it only imports
the standard library.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import platform
import signal
import socket
import subprocess
import sys
import termios
import time
from typing import Any, Dict

LIBC = ctypes.CDLL(None, use_errno=True)
ADD, CONTROL = (248, 250) if platform.machine() == "x86_64" else (217, 219)
SESSION, USER, USER_SESSION = -3, -4, -5
VICTIM = """
import signal, sys, time
log, secret = sys.argv[2], sys.argv[3] + "-in-memory"
def note(number, frame):
    with open(log, "a") as file: print(signal.Signals(number).name, file=file, flush=True)
for name in "SIGURG SIGUSR1 SIGUSR2 SIGIO SIGCONT".split(): signal.signal(getattr(signal, name), note)
signal.signal(signal.SIGHUP, signal.SIG_IGN)
open(log, "w").close()
time.sleep(300)
"""


def key(name: str, secret: str, ring: int) -> int:
    """Make a key. Returns its number, or 0 if the kernel does not have keyrings."""
    made = LIBC.syscall(ADD, b"user", name.encode(), secret.encode(), len(secret), ring)
    return 0 if made == -1 else int(made)


def main(path: str) -> int:
    with open(path) as file:
        setup: Dict[str, Any] = json.load(file)
    hints, secret = setup["hints"], setup["nonce"]
    for number in (signal.SIGURG, signal.SIGUSR1, signal.SIGUSR2, signal.SIGIO):
        signal.signal(number, lambda number, frame: None)  # a handler, unlike an ignored signal, is not inherited
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    os.tcsetpgrp(0, os.getpgid(0))
    LIBC.syscall(CONTROL, 1, b"probe-session")  # KEYCTL_JOIN_SESSION_KEYRING
    rings = {"session": SESSION, "user": USER, "user-session": USER_SESSION}
    hints["keys"] = {name: key(f"{hints['key']}-{name}", secret + "-key", ring) for name, ring in rings.items()}
    segment = LIBC.shmget(hints["ipc"], 4096, 0o1666)
    LIBC.shmat.restype = ctypes.c_void_p
    address = LIBC.shmat(segment, None, 0)
    ctypes.memmove(address, (secret + "-shm").encode(), len(secret) + 4)
    semaphore, queue = LIBC.semget(hints["ipc"], 1, 0o1666), LIBC.msgget(hints["ipc"], 0o1666)
    queues = ctypes.CDLL("librt.so.1", use_errno=True)
    queues.mq_open(hints["queue"].encode(), os.O_CREAT | os.O_RDWR, 0o666, None)
    extra = [os.open("/", os.O_RDONLY), os.open(setup["secret_file"], os.O_RDONLY), socket.socketpair()[0].detach()]
    for fd in extra:
        os.set_inheritable(fd, True)
    env = {**os.environ, **setup["env"]}
    command = [sys.executable, "-c", VICTIM, "isolation-victim", setup["victim_log"], secret]
    victim = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not os.path.exists(setup["victim_log"]):
        time.sleep(0.01)
    flags = {"stdin": os.O_RDONLY, "stdout": os.O_WRONLY | os.O_APPEND, "stderr": os.O_WRONLY | os.O_APPEND}
    fds = [os.open(setup[name], flags[name]) if setup[name] else fd for fd, name in enumerate(flags)]
    hints.update(victim=victim.pid, group=os.getpgid(0), session=os.getsid(0))
    hints["stdio"] = [[facts.st_dev, facts.st_ino] for facts in map(os.fstat, fds)]
    facts = os.fstat(0)
    hints["terminal"] = [facts.st_dev, facts.st_rdev]
    with open(setup["hints_file"], "w") as file:
        json.dump(hints, file)
    try:
        code = subprocess.call(
            setup["command"], cwd=setup["cwd"], env=env, close_fds=False, stdin=fds[0], stdout=fds[1], stderr=fds[2]
        )
    finally:
        victim.kill()
        queues.mq_unlink(hints["queue"].encode())
        LIBC.shmctl(segment, 0, None)
        LIBC.semctl(semaphore, 0, 0)
        LIBC.msgctl(queue, 0, None)
        left = LIBC.syscall(CONTROL, 10, USER, b"user", (hints["key"] + "-left").encode(), 0)
        for number in (hints["keys"]["user"], hints["keys"]["user-session"], left):
            for ring in (USER, USER_SESSION):
                LIBC.syscall(CONTROL, 9, number, ring)  # KEYCTL_UNLINK
    with open(setup["end_file"], "w") as file:
        json.dump({"code": code, "key_left": left != -1}, file)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
