"""Leases on a store: who uses what, and that a dead process releases its lease."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from repro_env.schema.errors import StoreError
from repro_env.store.store import Store

A, B = "a" * 64, "b" * 64
HOLD = """
import sys, time
from pathlib import Path
from repro_env.store.store import Store
store = Store.open(Path(sys.argv[1]))
with store.lease.restrict_to(sys.argv[2:]):
    print("ready", flush=True)
    time.sleep(300)
"""


def test_the_exclusive_lease_fails_while_another_command_runs(store: Store) -> None:
    other = Store.open(store.root)
    with pytest.raises(StoreError, match="other commands") as raised, other.lease.exclusive():
        pass
    assert raised.value.hint
    with pytest.raises(StoreError), store.lease.exclusive():
        pass  # the lease that was refused is still a lease of the whole store
    del store.lease
    with other.lease.exclusive() as named:
        assert named == frozenset()


def test_a_command_with_a_restricted_lease_is_not_waited_for(store: Store) -> None:
    other = Store.open(store.root)
    with store.lease.restrict_to([A, f"sha256:{B}"]), other.lease.exclusive() as named:
        assert named == {A, B}
    with pytest.raises(StoreError), other.lease.exclusive():
        pass  # the lease is complete again


def test_opening_a_store_waits_for_the_exclusive_lease(store: Store) -> None:
    opened: list[float] = []
    with store.lease.exclusive():
        thread = threading.Thread(target=lambda: opened.append((Store.open(store.root), time.monotonic())[1]))
        thread.start()
        thread.join(0.2)
        assert not opened
        released = time.monotonic()
    thread.join(100)
    assert opened[0] >= released


@pytest.mark.parametrize("names", [(), (A,)])
def test_a_killed_process_releases_its_lease(store: Store, names: tuple[str, ...]) -> None:
    child = subprocess.Popen([sys.executable, "-c", HOLD, store.root, *names], stdout=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdout.readline() == b"ready\n"
    with store.lease.exclusive() as named:
        assert named == set(names)
    child.kill()
    child.wait()
    child.stdout.close()

    with store.lease.exclusive() as named:
        assert named == frozenset()
    assert [path.name for path in (store.root / "uses").iterdir()] == ["all"], "nothing is left behind"


def test_a_lease_accepts_only_digests(store: Store, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="not a sha256"), store.lease.restrict_to([f"../{tmp_path.name}"]):
        pass
