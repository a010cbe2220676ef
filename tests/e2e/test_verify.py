"""`repro-env verify` on real runs: in the sandbox, with the environment's own Python looking into the files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.e2e import parts

SCRIPT = """
import datetime, json, os, random, sqlite3, sys, time
import numpy as np
rng = np.random.default_rng()
data = np.loadtxt(sys.argv[1])
weights = {"w": rng.normal(size=(50, 3)).astype("f4"), "b": np.zeros(3, "f4")}
losses = []
for step in range(5):
    weights["w"] += 0.1 * rng.normal(size=(50, 3)) * data.sum()
    losses.append(float(np.square(weights["w"]).mean() + random.random()))
weights["w"][7, 1] += float(os.environ.get("DELTA", "0"))
directory = time.strftime("out/%Y-%m-%d/%H-%M-%S-") + str(os.getpid())
os.makedirs(directory)
np.savez(directory + "/weights.npz", **weights)
json.dump({"loss": losses[-1], "names": list({"a", "b", "c"}), "runtime": time.time()}, open("metrics.json", "w"))
database = sqlite3.connect("scores.db")
database.execute("CREATE TABLE scores (step INT, loss REAL, at TEXT)")
rows = [(step, loss, str(datetime.datetime.now())) for step, loss in enumerate(losses)]
database.executemany("INSERT INTO scores VALUES (?, ?, ?)", rows)
database.commit()
database.close()
with open("train.log", "w") as log:
    print(time.ctime(), "loss", losses[-1], "took", time.process_time(), "s", file=log)
with open("/ck/last.txt", "a") as file:
    file.write(str(losses[-1]))
"""


def test_a_run_is_repeated_and_a_planted_difference_is_located(
    digits: parts.Project, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    (digits.directory / "small.py").write_text(SCRIPT)
    data, checkpoints = tmp_path / "data.txt", tmp_path / "ck"
    data.write_text("1.5\n2.5\n")
    try:
        digits.run("exec", "--data", data, "--checkpoints", f"{checkpoints}:/ck", "--env", "DELTA=0", "small.py", data)
    finally:
        (digits.directory / "small.py").unlink()  # from here on the code is the store's
    mine = (checkpoints / "last.txt").read_bytes()

    first = json.loads(digits.run("verify", "latest", "--env", "DELTA=0", "--accept", "--json", code=1).out)
    accepted = digits.directory / "repro-env.ignore"
    request.addfinalizer(accepted.unlink)
    assert (first["level"], first["accepted"]) == ("different", ["train.log:took {}"]), first
    same = json.loads(digits.run("verify", "latest", "--env", "DELTA=0", "--json").out)
    assert (same["same"], same["level"], same["promised"]) == (True, "equal except for", "bitwise"), same
    assert same["reasons"]["as repro-env.ignore says"] == 1
    assert "verified  equal except for" in digits.run("runs", "show", "latest").out
    entries = {Path(file["path"]).name: file for file in same["files"] if file["kind"] == "result"}
    assert set(entries) == {"weights.npz", "metrics.json", "scores.db", "train.log", "last.txt"}
    assert {name for name, file in entries.items() if file["ignored"]} == {
        "weights.npz",
        "metrics.json",
        "scores.db",
        "train.log",
    }
    assert entries["weights.npz"]["path"] != entries["weights.npz"]["now"], "paired although its directory has another name"
    assert (checkpoints / "last.txt").read_bytes() == mine, "the user's own checkpoints are as they were"

    planted = json.loads(digits.run("verify", "latest", "--env", "DELTA=1e-6", "--json", code=1).out)
    assert (planted["same"], planted["level"]) == (False, "numeric")
    (other,) = [file for file in planted["files"] if file["level"] == "numeric"]
    assert (other["tensors"][0]["name"], other["tensors"][0]["at"], other["tensors"][0]["differing"]) == ("w", [7, 1], 1)
    assert other["tensors"][0]["ulp"] > 0

    data.write_text("1.5\n2.6\n")
    changed = digits.run("verify", "latest", "--env", "DELTA=0", code=1)
    assert "nothing was compared" in changed.out
    assert str(data) in changed.out
    assert len(json.loads(digits.run("runs", "list", "--json").out)["runs"]) >= 1


ORDERED = """
import numpy

class Thing:
    def __init__(self, number):
        self.number = number

with open("order.txt", "w") as file:
    print(*(thing.number for thing in {Thing(number) for number in range(2000)}), file=file)
"""


def test_a_first_run_orders_sets_as_later_ones_do(digits: parts.Project) -> None:
    """A set of objects that are hashed by address: whatever makes other objects before it, such as compiling modules, gives another order."""
    (digits.directory / "ordered.py").write_text(ORDERED)
    compiled = digits.store / "facts" / "bytecode"
    orders = []
    try:
        shutil.rmtree(compiled, ignore_errors=True)
        for arguments in (0, 0, 1000):
            digits.run("exec", "ordered.py", *map(str, range(arguments)))
            shown = json.loads(digits.run("runs", "show", "latest", "--json").out)
            if any(line.startswith("addresses: random") for line in shown["end"]["outcome"]["methods"]):
                pytest.skip("addresses cannot be fixed on this machine")  # the record says so, and so does `verify`
            orders.append((Path(shown["directory"]) / "files/order.txt").read_text())
        shutil.rmtree(compiled, ignore_errors=True)
        verified = json.loads(digits.run("verify", "latest", "--json", env={"TERM": "linux"}).out)
        assert (verified["same"], verified["level"]) == (True, "bitwise"), verified
    finally:
        (digits.directory / "ordered.py").unlink()
    assert orders[0] == orders[1]
    assert orders[1] != orders[2], "else nothing was shown"
