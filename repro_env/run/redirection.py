"""Standard output and error that go to a file: the command gets a pipe, and what it writes is passed on to the file.

So the command holds no descriptor of the file, and can neither read nor rewrite what was there before.
"""

from __future__ import annotations

import contextlib
import os
import select
import stat
from pathlib import Path

from repro_env.run.terminal import write_all

_READ = 1 << 16


class Redirection:
    """A pipe that stands for the streams which are one file of the caller's."""

    def __init__(self, streams: tuple[int, ...]) -> None:
        self.streams = streams
        self.main, self.side = os.pipe2(os.O_CLOEXEC)
        self._is_open = True
        os.set_blocking(self.main, False)

    def watch(self, poll: select.poll) -> None:
        """Register what can be passed on."""
        if self._is_open:
            poll.register(self.main, select.POLLIN)

    def pass_on(self, ready: dict[int, int]) -> None:
        """Move bytes, by what `poll` found ready."""
        if self._is_open and ready.get(self.main, 0):
            self._copy()

    def drain(self) -> None:
        """Write what is left when the command is over."""
        while self._is_open and self._copy():
            pass

    def close(self) -> None:
        if self._is_open:
            os.close(self.main)
        os.close(self.side)

    def _copy(self) -> bool:
        """Pass one piece on. False when there is none."""
        try:
            data = os.read(self.main, _READ)
        except BlockingIOError:
            return False
        try:
            write_all(self.streams[0], data)
        except OSError:  # the disk is full: the command's own writing has to fail, as it would without us
            os.close(self.main)
            self._is_open = False
        return bool(data)


def open_redirections() -> list[Redirection]:
    """One for each file; a file that is both output and error keeps the order of what is written to them."""
    files: dict[tuple[int, int], list[int]] = {}
    for stream in (1, 2):
        try:
            facts = os.fstat(stream)
        except OSError:  # it is closed
            continue
        if stat.S_ISREG(facts.st_mode):
            files.setdefault((facts.st_dev, facts.st_ino), []).append(stream)
    return [Redirection(tuple(streams)) for streams in files.values()]


def own_pipes(uid: int) -> None:
    """Let a user open the pipes among the standard streams by their names (`/dev/stderr`): they are nowhere else."""
    for stream in (0, 1, 2):
        with contextlib.suppress(OSError):  # it is closed
            if str(Path(f"/proc/self/fd/{stream}").readlink()).startswith("pipe:"):
                os.fchown(stream, uid, uid)
