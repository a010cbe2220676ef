"""Check that a run cannot take more memory than its limit."""

from __future__ import annotations

import contextlib
import secrets
import signal
import time
from pathlib import Path

from tests.parts import need
from tests.sandbox.conftest import Place


def check_memory_limit(place: Place) -> None:
    """Check that a command in a control group with 200 MiB of memory is killed, and that this is detected."""
    root = Path("/sys/fs/cgroup")
    group = (
        next((path for path in (root / "memory", root) if (path / "cgroup.procs").exists()), root)
        / f"repro-env-test-{secrets.token_hex(4)}"
    )
    try:
        group.mkdir()
    except OSError:
        need(False, "a control group for memory that can be made here (uid 0)")
    try:
        limit = next((group / name for name in ("memory.limit_in_bytes", "memory.max") if (group / name).exists()), None)
        need(limit, "the memory controller of control groups")
        assert limit
        limit.write_text(str(200 << 20))
        # Without these limits, swap could hold all of it.
        for name, text in (("memory.swap.max", "0"), ("memory.memsw.limit_in_bytes", str(200 << 20))):
            if (group / name).exists():
                (group / name).write_text(text)
        into = f'echo $$ > "{group}/cgroup.procs"; exec "$@"'
        result = place.python("x = [bytearray(b'1') * (1 << 20) for _ in range(1000)]", before=["sh", "-c", into, "sh"])
        assert (result.outcome.exit_code, result.outcome.signal, result.outcome.out_of_memory) == (137, signal.SIGKILL, True)
    finally:
        remove_group(group)


def remove_group(group: Path) -> None:
    """Remove a control group, which is possible only after the kernel has freed the memory of its killed processes."""
    deadline = time.monotonic() + 100
    while group.exists() and time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            group.rmdir()
        time.sleep(0.05)
    assert not group.exists()
