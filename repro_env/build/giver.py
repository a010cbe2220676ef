"""Somebody who has a spec's trees, layers or wheels when they are missing beside it: a registry it was pushed to, say.

What is given is checked to its last byte and put among the spec's blobs, so that whoever reads them next finds what the
capture left.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from threading import Lock
from typing import Protocol

import msgspec

from repro_env.build.interface import Origin
from repro_env.model.errors import ArtifactError, NetworkError, ReproEnvError
from repro_env.store.carried import Carried

HINT = (
    "get it once from where the spec was published (`repro-env rebuild FILE|REF`), commit the remote.json that "
    "`repro-env push` writes, or copy the blobs/ directory of the capture beside the spec"
)


class Offer(msgspec.Struct, frozen=True):
    """Something that a giver has."""

    origin: Origin
    where: str
    """For people, without credentials."""
    size: int
    """Bytes to fetch."""


class Giver(Protocol):
    """A place beyond this folder that has trees, layers or wheels of the spec. Safe from several threads."""

    fetched: int
    """Bytes that came over the network so far."""
    layers: bool
    """Whether it has the layers of wheels too."""

    def offer(self, digest: str) -> Offer | None:
        """Whether it has what unpacks to `digest` (or, of a wheel, is `digest`). Raises `NetworkError`, `ArtifactError`."""
        ...

    def give(self, digest: str, carried: Carried, *, size: int | None) -> int:
        """Put it among the blobs, checked; returns its bytes, unpacked. `size`: what they have to be, None when not known.

        Raises `NetworkError`, `ArtifactError` for other bytes, `DiskError`.
        """
        ...

    def stop(self) -> None:
        """Let what is under way end soon."""
        ...

    def close(self) -> None:
        """Close connections; the next request opens new ones."""
        ...


class Givers:
    """All givers of a spec, nearest first."""

    def __init__(self, givers: Sequence[Giver]) -> None:
        self._givers = givers
        self._lock = Lock()
        self.failures: list[ReproEnvError] = []
        """Why some of them could not give what they were asked for."""

    @property
    def layers(self) -> bool:
        """Whether there is anybody to ask for the layers of wheels."""
        return any(one.layers for one in self._givers)

    @property
    def fetched(self) -> int:
        return sum(one.fetched for one in self._givers)

    def offer(self, digest: str) -> Offer | None:
        """The first offer of what unpacks to `digest`."""
        return next((offer for _, offer in self._offers(digest)), None)

    def give(self, digest: str, carried: Carried, *, size: int | None) -> int:
        """As `Giver.give`, by the first of those that offer it and can. Raises what the last of them raised."""
        problem: ReproEnvError = ArtifactError("is nowhere to be had", where=digest, hint=HINT)
        for giver, _ in self._offers(digest):
            try:
                return giver.give(digest, carried, size=size)
            except (ArtifactError, NetworkError) as error:  # noqa: PERF203 the next one may have it
                self._failed(error)
                problem = error
        raise problem

    def explained(self, failed: ReproEnvError) -> ReproEnvError:
        """A failure to find something elsewhere, with why it could not be had from the givers either."""
        if not self.failures:
            return failed
        tried = "; ".join(str(error) for error in self.failures)
        return type(failed)(f"{failed.what}; {tried}", where=failed.where, hint=self.failures[0].hint or failed.hint)

    def stop(self) -> None:
        for one in self._givers:
            one.stop()

    def close(self) -> None:
        for one in self._givers:
            one.close()

    def _offers(self, digest: str) -> Iterator[tuple[Giver, Offer]]:
        for giver in self._givers:
            try:
                offer = giver.offer(digest)
            except (ArtifactError, NetworkError) as error:
                self._failed(error)
                continue
            if offer is not None:
                yield giver, offer

    def _failed(self, error: ReproEnvError) -> None:
        with self._lock:
            if str(error) not in map(str, self.failures):
                self.failures.append(error)
