"""Make the attempts of some categories, each in a process of its own, and write what came out."""

from __future__ import annotations

import contextlib
import errno
import importlib
import json
import os
import select
import signal
import time
from typing import Any, Dict, List

from .base import ATTEMPTS, CONTROL, HINTS, LIMIT, Absent, Attempt, Sent

SUBJECTS = (
    "files",
    "writes",
    "descriptors",
    "processes",
    "terminal",
    "namespaces",
    "mounts",
    "kernel",
    "rights",
    "objects",
    "sockets",
    "host",
)
"""Modules next to this one, in the order in which their attempts are made."""


def run(attempt: Attempt) -> Dict[str, Any]:
    """Make an attempt in a separate process. Returns its outcome."""
    near, far = os.pipe()
    start = time.monotonic()
    child = os.fork()
    if child == 0:
        os.close(near)
        signal.alarm(LIMIT)
        for number in (signal.SIGURG, signal.SIGUSR1, signal.SIGUSR2, signal.SIGIO):
            signal.signal(number, signal.SIG_IGN)
        try:
            evidence = attempt.call()
            outcome = ("reached", evidence) if evidence else ("refused", "")
        except Sent as done:
            outcome = ("sent", str(done))
        except Absent as reason:
            outcome = ("absent", str(reason))
        except OSError as failed:
            outcome = ("refused", errno.errorcode.get(failed.errno or 0, "") + f" {failed}")
        except BaseException as failed:
            outcome = ("error", f"{type(failed).__name__}: {failed}")
        with contextlib.suppress(OSError):
            os.write(far, json.dumps(outcome).encode()[:60000])
        os._exit(0)
    os.close(far)
    answer = b""
    while select.select([near], [], [], LIMIT + 1)[0]:
        more = os.read(near, 1 << 16)
        if not more:
            break
        answer += more
    os.close(near)
    with contextlib.suppress(OSError):
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if answer:
        outcome = tuple(json.loads(answer))
    else:
        outcome = ("refused", f"ended by signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else "no answer")
    taken = round(time.monotonic() - start, 3)
    return {
        "name": attempt.name,
        "category": attempt.category,
        "status": outcome[0],
        "evidence": outcome[1][:400],
        "seconds": taken,
    }


def main(categories: List[str]) -> None:
    for number in (signal.SIGURG, signal.SIGUSR1, signal.SIGUSR2, signal.SIGIO, signal.SIGTTOU, signal.SIGWINCH):
        signal.signal(number, signal.SIG_IGN)
    for subject in SUBJECTS:
        importlib.import_module(f".{subject}", __package__)
    HINTS["_own_descriptors"] = [int(name) for name in os.listdir("/proc/self/fd")]
    HINTS["_own_descriptors"] = [fd for fd in HINTS["_own_descriptors"] if os.path.lexists(f"/proc/self/fd/{fd}")]
    HINTS["_parent"] = os.getppid()
    in_categories = [attempt for attempt in ATTEMPTS if not categories or attempt.category in categories]
    results = [run(attempt) for attempt in in_categories if not (CONTROL and attempt.disturbs)]
    with open("probe_results.json", "w") as file:
        json.dump(results, file, indent=1)
    counts = {
        status: sum(result["status"] == status for result in results)
        for status in ("reached", "sent", "refused", "absent", "error")
    }
    print("probe:", len(results), "attempts", counts, flush=True)
