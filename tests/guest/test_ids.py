"""Digests of the ids that a run draws, and ids that are derived from its seed, in real interpreters."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from repro_env.runs.records import reports
from repro_env.schema import fingerprints
from tests.guest.scripts import PYTHONS, Script

SEEDED = {"REPRO_ENV_IDS": "seeded"}


@pytest.fixture(params=PYTHONS)
def script(request: pytest.FixtureRequest, tmp_path: Path) -> Script:
    return Script(tmp_path, request.param)


def recorded(script: Script) -> dict[tuple[str, int], tuple[str, ...]]:
    """(function, line) -> recorded ids."""
    found = reports.read(script.directory / "reports")
    assert not found.random_ids_incomplete
    assert {drawn.file for drawn in found.random_ids} <= {str(script.directory / "script.py")}
    return {(drawn.what, drawn.line): drawn.ids for drawn in found.random_ids}


def digest_of(digits: str) -> str:
    return fingerprints.digest_of_id(fingerprints.normal_id(digits))


def test_ids_are_recorded_as_digests_by_line_and_in_order(script: Script) -> None:
    code = """
    import json, os, secrets, uuid
    ids = {"uuid4": [uuid.uuid4().hex for _ in range(5)]}
    ids["token"] = [secrets.token_hex(16)]
    ids["bytes"] = [os.urandom(64).hex()]
    ids["uuid1"] = [uuid.uuid1().hex]
    os.urandom(15), os.urandom(65), secrets.token_hex(8)
    print(json.dumps(ids))
    """
    ids = json.loads(script.run(code))
    assert recorded(script) == {
        ("uuid.uuid4", 3): tuple(f"{digest_of(digits)}.{fingerprints.digest_of_id(digits[:8])}" for digits in ids["uuid4"]),
        ("secrets.token_hex", 4): (digest_of(ids["token"][0]),),
        ("os.urandom", 5): (digest_of(ids["bytes"][0]),),
        ("uuid.uuid1", 6): (f"{fingerprints.digest_of_id(ids['uuid1'][0])}.{fingerprints.digest_of_id(ids['uuid1'][0][:8])}",),
    }
    text = (script.directory / "reports").read_text()
    assert not [digits for found in ids.values() for digits in found if digits[:8] in text]


WORKERS = """
    import multiprocessing, os, sys, time, uuid
    def work(queue, number, pause):
        time.sleep(pause)
        queue.put((number, uuid.uuid4().hex))
    if __name__ == "__main__":
        context = multiprocessing.get_context(os.environ["METHOD"])
        queue = context.Queue()
        pauses = [0.2, 0] if os.environ["SPEED"] == "slow" else [0, 0.2]
        processes = [context.Process(target=work, args=(queue, number, pause)) for number, pause in enumerate(pauses)]
        for process in processes:
            process.start()
        print(uuid.uuid4().hex, *(digits for _, digits in sorted(queue.get() for _ in processes)))
        for process in processes:
            process.join()
"""
"""The main process and two workers draw an id each; SPEED says which worker is faster."""


def test_the_order_of_recorded_ids_does_not_depend_on_which_worker_was_faster(script: Script) -> None:
    for speed in ("slow", "fast"):
        ids = script.run(WORKERS, extra={"METHOD": "fork", "SPEED": speed}).split()[1:]
        (found,) = (words for words in recorded(script).values() if len(words) == 2)
        assert [word[:16] for word in found] == [digest_of(digits) for digits in ids]


def test_ids_over_the_limit_are_reported(tmp_path: Path) -> None:
    Script(tmp_path).run("import uuid\nfor _ in range(10_001): uuid.uuid4()")
    found = reports.read(tmp_path / "reports")
    assert found.random_ids_incomplete
    assert sum(len(drawn.ids) for drawn in found.random_ids) == 10_000
    assert sum(count.count for count in found.system_randomness) == 10_001


ALL = """
    import os, random, secrets, shutil, subprocess, sys, tempfile, uuid
    def draw():
        os.close(tempfile.mkstemp(dir=directory)[0])
        print(uuid.uuid4(), uuid.uuid1(), uuid.uuid1().hex, secrets.token_hex(), secrets.token_urlsafe(4), os.urandom(70).hex(),
              random.SystemRandom().random(), *sorted(os.listdir(directory)), flush=True)
    if __name__ == "__main__":
        directory = tempfile.mkdtemp(dir=".")
        draw()
        draw()
        if not os.fork():
            draw()
            os._exit(0)
        os.wait()
        for _ in range(2):
            code = "import uuid; print(uuid.uuid4(), flush=True)"
            subprocess.run([sys.executable, "-c", code], check=True)
        shutil.rmtree(directory)
"""


def test_seeded_ids_are_a_function_of_the_seed_and_are_not_entropy(script: Script) -> None:
    first, second = script.run(ALL, extra=SEEDED), script.run(ALL, extra=SEEDED)
    assert first == second != script.run(ALL, extra=SEEDED, seed=2)
    assert reports.read(script.directory / "reports").system_randomness == ()
    assert not [note for note in script.generators if "problem" in note or "random" in str(note["what"])]
    words = [word for word in first.split() if "." not in word and not word.startswith("tmp")]
    assert len(words) == len(set(words)) == 3 * 6 + 2
    lines = [line.split() for line in first.splitlines()]
    assert len(lines[2]) == len(lines[0]) + 2  # the names of temporary files differ


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_seeded_ids_differ_between_processes_and_do_not_depend_on_timing(script: Script, method: str) -> None:
    slow, fast = (script.run(WORKERS, extra=SEEDED | {"METHOD": method, "SPEED": speed}).split() for speed in ("slow", "fast"))
    assert slow == fast
    assert len(set(slow)) == 3


def test_each_rank_has_its_own_ids_even_with_the_same_streams(tmp_path: Path) -> None:
    script = Script(tmp_path)
    code = "import random, uuid; print(random.random(), uuid.uuid4())"
    first, second = (script.run(code, extra=SEEDED | {"REPRO_ENV_RANKS": "same", "RANK": rank}).split() for rank in "01")
    assert first[0] == second[0]
    assert first[1] != second[1]


def test_threads_never_draw_the_same_id(tmp_path: Path) -> None:
    code = """
    import threading, uuid
    ids = []
    threads = [threading.Thread(target=lambda: ids.extend(uuid.uuid4() for _ in range(500))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(len(set(ids)))
    """
    assert Script(tmp_path).run(code, extra=SEEDED) == "2000\n"


def test_the_keys_of_the_standard_library_stay_random(tmp_path: Path) -> None:
    code = "import multiprocessing; print(bytes(multiprocessing.current_process().authkey).hex())"
    script = Script(tmp_path)
    assert script.run(code, extra=SEEDED) != script.run(code, extra=SEEDED)


def test_pids_are_recorded_in_the_order_in_which_processes_start(script: Script) -> None:
    code = """
    import os, subprocess, sys
    print(os.getpid(), flush=True)
    print(subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], stdout=subprocess.PIPE).stdout.decode(), flush=True)
    child = os.fork()
    if not child:
        sys.exit()
    os.wait()
    print(child)
    """
    pids = tuple(map(int, script.run(code).split()))
    assert reports.read(script.directory / "reports").pids == pids


def test_notes_from_a_script_are_validated_and_limited() -> None:
    lines = [
        b'{"system_randomness": "x", "count": 1, "file": "/a.py", "line": 1, "pid": 1, "ids": "zz 0123456789abcdef 0123456789abcdef.0"}',
        b'{"system_randomness": "x", "count": 1, "file": "/a.py", "line": 1, "pid": 1, "ids": "'
        + b"0123456789abcdef " * 20_000
        + b'"}',
        b'{"pid": -5}',
        *(b'{"pid": %d}' % number for number in range(1, 2000)),
    ]
    found = reports.parse(lines)
    assert len(found.random_ids[0].ids) == 10_000
    assert set(found.random_ids[0].ids) == {"0123456789abcdef"}
    assert found.random_ids_incomplete
    assert found.pids == tuple(range(1, 1001))
