"""Who uses what of a store, and that nobody does for ever."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from repro_env.model.errors import StoreError
from repro_env.store.store import Store

A, B = "a" * 64, "b" * 64
HOLD = """
import sys, time
from pathlib import Path
from repro_env.store.store import Store
store = Store.open(Path(sys.argv[1]))
with store.lease.only(sys.argv[2:]):
    print("ready", flush=True)
    time.sleep(300)
"""


def test_nobody_is_alone_while_another_command_is_at_work(store: Store) -> None:
    other = Store.open(store.root)
    with pytest.raises(StoreError, match="other commands") as raised, other.lease.alone(0.1):
        pass
    assert raised.value.hint
    store.lease.close()
    with other.lease.alone(0.1) as named:
        assert named == frozenset()


def test_a_command_that_names_what_it_needs_is_not_waited_for(store: Store) -> None:
    other = Store.open(store.root)
    with store.lease.only([A, f"sha256:{B}"]):
        assert other.lease.named() == {A, B}
        with other.lease.alone(0.1) as named:
            assert named == {A, B}
    assert other.lease.named() == frozenset()
    with pytest.raises(StoreError), other.lease.alone(0.1):
        pass  # it uses everything again


def test_who_opens_a_store_waits_until_nobody_is_alone(store: Store) -> None:
    opened: list[float] = []
    with store.lease.alone(0):
        thread = threading.Thread(target=lambda: opened.append((Store.open(store.root), time.monotonic())[1]))
        thread.start()
        thread.join(0.2)
        assert not opened
        left = time.monotonic()
    thread.join(100)
    assert opened[0] >= left


@pytest.mark.parametrize("names", [(), (A,)])
def test_a_killed_process_holds_nothing(store: Store, names: tuple[str, ...]) -> None:
    child = subprocess.Popen([sys.executable, "-c", HOLD, store.root, *names], stdout=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdout.readline() == b"ready\n"
    assert store.lease.named() == set(names)
    child.kill()
    child.wait()
    child.stdout.close()

    assert store.lease.named() == frozenset()
    with store.lease.alone(0.1) as named:
        assert named == frozenset()
    assert [path.name for path in (store.root / "uses").iterdir()] == ["all"], "and leaves nothing behind"


def test_no_path_hides_in_a_name(store: Store, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="not a sha256"), store.lease.only([f"../{tmp_path.name}"]):
        pass
