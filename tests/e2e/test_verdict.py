"""What `repro-env verify` calls the same, in the whole command: rounding, and the texts that accept a difference."""

from __future__ import annotations

import json

import pytest

from tests.e2e import parts

NUMBERS = """
import json, os
value = os.environ["VALUES"].split()[int(os.environ["SIDE"])]
open("m.json", "w").write('{"visit": %s}' % value)
open("m.csv", "w").write("row,visit\\n0,%s\\n" % value)
"""


@pytest.mark.parametrize(
    ("values", "level"),
    [("46023.4375 46062.4375", "different"), ("1e400 1e500", "different"), ("0.123456789 0.123456788", "numeric")],
)
def test_dates_and_overflow_are_no_rounding(small: parts.Project, values: str, level: str) -> None:
    (small.directory / "verdict_numbers.py").write_text(NUMBERS)
    small.run("exec", "--determinism", "off", "--env", f"VALUES={values}", "--env", "SIDE=0", "verdict_numbers.py")
    code = 0 if level == "numeric" else 1
    found = json.loads(small.run("verify", "latest", "--env", f"VALUES={values}", "--env", "SIDE=1", "--json", code=code).out)
    assert (found["promised"], found["level"]) == ("numeric", level), found
    assert {file["level"] for file in found["files"] if file["kind"] == "result"} == {level}


CLOCK = """
import json, os, time
start = time.time()
time.sleep(0.3)
times = [start, time.time()][:: -1 if os.environ["SIDE"] == "swapped" else 1]
json.dump({"started": times[0], "finished": times[1]}, open("m.json", "w"))
open("log.txt", "w").write("".join("%.6f step\\n" % value for value in times))
"""


def test_a_swapped_order_of_times_is_not_explained_by_the_clock(small: parts.Project) -> None:
    (small.directory / "verdict_clock.py").write_text(CLOCK)
    run = json.loads(small.run("exec", "--env", "SIDE=same", "--json", "verdict_clock.py").out)["id"]
    for side, level in (("same", "equal except for"), ("swapped", "different")):
        code = 0 if side == "same" else 1
        files = json.loads(small.run("verify", run, "--env", f"SIDE={side}", "--json", code=code).out)["files"]
        assert {file["path"]: file["level"] for file in files} == {"log.txt": level, "m.json": level}
        assert all(file["why"].endswith("the order of the times differs") == (side == "swapped") for file in files)


ZONE = """
import datetime, os
shift = datetime.timedelta(seconds=19800 if os.environ["SIDE"] == "local" else 0)
open("zone.txt", "w").write((datetime.datetime.utcnow() + shift).strftime("done at %Y-%m-%d %H:%M:%S.%f"))
"""


def test_a_time_without_a_zone_is_read_in_the_same_zone_in_both_runs(small: parts.Project) -> None:
    (small.directory / "verdict_zone.py").write_text(ZONE)
    zone = {"TZ": "Asia/Kolkata"}
    for side, level in (("local", "equal except for"), ("utc", "different")):
        run = json.loads(small.run("exec", "--env", f"SIDE={side}", "--json", "verdict_zone.py", env=zone).out)["id"]
        code = 0 if level != "different" else 1
        found = json.loads(small.run("verify", run, "--env", "SIDE=local", "--json", env=zone, code=code).out)
        assert found["level"] == level, found


SCATTERED = """
import json, os, random, time
directory = time.strftime("logs/%Y-%m-%d_%H-%M-%S")
os.makedirs(directory)
seconds = time.perf_counter_ns() % 1000 / 7
with open(directory + "/0.monitor.csv", "w") as file:
    file.write("#" + json.dumps({"t_start": time.time(), "env_id": "Pole"}) + "\\nr,l,t\\n9.0,9,%s\\n" % seconds)
open(directory + "/model.bin", "wb").write(b"\\0" + os.urandom(64 + os.getpid() % 2 + int(seconds) % 9))
open("profile.txt", "w").write("%s\\n%s\\n" % (seconds, os.urandom(8).hex()))
open("result.json", "w").write('{"loss": 0.5}')
"""


def test_the_offered_texts_accept_every_difference_of_a_repeat(small: parts.Project) -> None:
    (small.directory / "verdict_scattered.py").write_text(SCATTERED)
    small.run("exec", "verdict_scattered.py")
    first = json.loads(small.run("verify", "latest", "--json", code=1).out)
    assert "logs/*/0.monitor.csv:t" in first["accept"], first
    assert len(first["accept"]) == 3, "one for each file that differs"
    options = [word for text in first["accept"] for word in ("--ignore", text)]
    again = json.loads(small.run("verify", "latest", "--json", *options).out)
    assert (again["same"], again["level"]) == (True, "equal except for"), again
