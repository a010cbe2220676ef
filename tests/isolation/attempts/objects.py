"""Use keyrings, shared memory, semaphores and message queues of the host."""

from __future__ import annotations

import ctypes
import os
from typing import Optional

from .base import CONTROL, HINTS, LIBC, Absent, Sent, add, attempt, checked, is_the_hosts, read, secret_in, syscall

# Keyrings

SESSION, USER, USER_SESSION, PROCESS_OWN = -3, -4, -5, -2


def key_content(number: int) -> Optional[str]:
    buffer = ctypes.create_string_buffer(256)
    size = syscall("keyctl", 11, number, buffer, 256)  # KEYCTL_READ
    return secret_in(buffer.raw[:size], f"key {number:#x}")


def key_in(ring: int, name: str) -> Optional[str]:
    found = syscall("keyctl", 10, ring, ctypes.c_char_p(b"user"), ctypes.c_char_p(name.encode()), 0)  # KEYCTL_SEARCH
    return key_content(found)


add("key_in_the_session_keyring", "keyrings", lambda: key_in(SESSION, HINTS["key"] + "-session"))
add("key_in_the_user_keyring", "keyrings", lambda: key_in(USER, HINTS["key"] + "-user"))
add("key_in_the_user_session_keyring", "keyrings", lambda: key_in(USER_SESSION, HINTS["key"] + "-user-session"))


@attempt("keyrings")
def key_by_request() -> Optional[str]:
    name = ctypes.c_char_p((HINTS["key"] + "-session").encode())
    return key_content(syscall("request_key", ctypes.c_char_p(b"user"), name, None, 0))


def key_by_number(name: str) -> Optional[str]:
    number = HINTS["keys"].get(name)
    if not number:
        raise Absent("the caller has no such key")
    return key_content(number)


for _name in ("session", "user", "user-session"):
    add(f"key_by_number_{_name.replace('-', '_')}", "keyrings", key_by_number, _name)


@attempt("keyrings")
def link_the_user_keyring() -> Optional[str]:
    syscall("keyctl", 8, USER, SESSION)  # KEYCTL_LINK
    return key_in(SESSION, HINTS["key"] + "-user")


@attempt("keyrings")
def leave_a_key_in_the_user_keyring() -> Optional[str]:
    """Leave a key for the next run or for the caller."""
    name = ctypes.c_char_p((HINTS["key"] + "-left").encode())
    syscall("add_key", ctypes.c_char_p(b"user"), name, ctypes.c_char_p(b"left"), 4, USER)
    raise Sent("a key")


@attempt("keyrings")
def list_keys() -> Optional[str]:
    with open("/proc/keys") as file:
        found = [line for line in file if HINTS["key"] in line and HINTS["key"] + "-left" not in line]
    return found[0].strip() if found else None


@attempt("keyrings")
def list_users_of_keys() -> Optional[str]:
    with open("/proc/key-users") as file:
        found = [line.split(":")[0].strip() for line in file]
    others = [uid for uid in found if uid != str(os.getuid())]
    return f"users {others}" if others or (CONTROL and found) else None


@attempt("keyrings")
def persistent_keyring() -> Optional[str]:
    found = syscall("keyctl", 22, -1, PROCESS_OWN)  # KEYCTL_GET_PERSISTENT
    return f"keyring {found:#x}" if is_the_hosts("user") else None


# System V and POSIX objects


@attempt("ipc")
def shared_memory_of_the_host() -> Optional[str]:
    number = checked(LIBC.shmget(HINTS["ipc"], 0, 0))
    LIBC.shmat.restype = ctypes.c_void_p
    address = LIBC.shmat(number, None, 0o10000)
    if address in (None, ctypes.c_void_p(-1).value):
        checked(-1)
    return secret_in(ctypes.string_at(address, 256), "the segment")


@attempt("ipc")
def semaphores_of_the_host() -> Optional[str]:
    return f"semaphore {checked(LIBC.semget(HINTS['ipc'], 0, 0))}"


@attempt("ipc")
def message_queue_of_the_host() -> Optional[str]:
    return f"queue {checked(LIBC.msgget(HINTS['ipc'], 0))}"


@attempt("ipc")
def posix_message_queue_of_the_host() -> Optional[str]:
    librt = ctypes.CDLL("librt.so.1", use_errno=True)
    return f"queue {checked(librt.mq_open(HINTS['queue'].encode(), os.O_RDONLY | os.O_NONBLOCK))}"


@attempt("ipc")
def list_objects_of_the_host() -> Optional[str]:
    found = [name for name in ("shm", "sem", "msg") if len(read(f"/proc/sysvipc/{name}").splitlines()) > 1]
    return f"{found}" if found else None
