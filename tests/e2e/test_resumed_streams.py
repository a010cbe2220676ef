"""A resumed run draws new numbers from generators that the script does not seed, and can be repeated."""

from __future__ import annotations

import json
from typing import Any

from tests.e2e import parts

SCRIPT = """
import json, multiprocessing, os, random, secrets, subprocess, sys, uuid
def draw(_):
    return random.random()
if __name__ == "__main__":
    drawn = {
        "random": random.random(),
        "generator": random.Random().random(),
        "urandom": os.urandom(16).hex(),
        "uuid": str(uuid.uuid4()),
        "secrets": secrets.token_hex(16),
        "child": subprocess.check_output([sys.executable, "-c", "import random; print(random.random())"], text=True),
        "alone": subprocess.check_output([sys.executable, "-c", "import random; print(random.random())"], env={}, text=True),
        "worker": multiprocessing.get_context("fork").Pool(1).map(draw, [0]),
        "rank": subprocess.check_output(
            [sys.executable, "-c", "import random; print(random.random())"], env={**os.environ, "RANK": "1"}, text=True
        ),
    }
    kept = {"hash": hash("a"), "seed": os.environ["REPRO_ENV_SEED"], "own": random.Random(3).random()}
    open("draws.jsonl", "a").write(json.dumps({"drawn": drawn, "kept": kept}) + chr(10))
"""


def test_each_resume_draws_new_numbers_and_is_repeated_with_them(small: parts.Project) -> None:
    (small.directory / "draws.py").write_text(SCRIPT)
    options = ("--determinism", "strict", "draws.py")
    small.run("exec", "--seed", "7", *options)
    for number in (1, 2):
        done = small.run("exec", "--resume", "latest", *options)
        assert f"draw new numbers (resume {number})" in done.err
    run = small.directory / "runs" / "latest"
    lines: list[dict[str, Any]] = [json.loads(line) for line in (run / "files" / "draws.jsonl").read_text().splitlines()]
    assert json.loads((run / "start.json").read_text())["resumes"] == 2
    assert {name: len({str(line["drawn"][name]) for line in lines}) for name in lines[0]["drawn"]} == dict.fromkeys(
        lines[0]["drawn"], 3
    )
    assert lines[0]["kept"] == lines[1]["kept"] == lines[2]["kept"]
    assert small.run("verify").out.startswith("bitwise")
    assert "seed      7, resume 2" in small.run("runs", "show", "latest").out
