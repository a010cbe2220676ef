"""Several processes of `exec` that share one run, through the installed command. tests/e2e/test_slurm.py has those of a Slurm step."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from repro_env.runs.records import ids
from tests.e2e import parts
from tests.e2e.ranks import RANKS
from tests.parts import need


def start(project: parts.Project, run_id: str, rank: int, *words: str, prefix: Sequence[str] = ()) -> subprocess.Popen[str]:
    """Start one of two processes."""
    return subprocess.Popen(
        [*prefix, parts.COMMAND, "exec", "--run-id", run_id, *words],
        cwd=project.directory,
        env=parts.environ(project.store, {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank)}),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def both(project: parts.Project, *words: str, second: Sequence[str] = ()) -> list[parts.Done]:
    """Run two processes to their ends. `second`: the start of the command line of the second one."""
    run_id = ids.new()
    processes = [start(project, run_id, rank, *words, prefix=second if rank else ()) for rank in (0, 1)]
    outputs = [process.communicate(timeout=200) for process in processes]
    return [parts.Done(process.returncode, *output) for process, output in zip(processes, outputs, strict=True)]


def record(project: parts.Project, run: str = "latest") -> dict[str, Any]:
    answer = json.loads(project.run("runs", "show", run, "--json").out)
    assert isinstance(answer, dict)
    return answer


def test_processes_with_one_run_id_share_one_run(small: parts.Project) -> None:
    (small.directory / "ranks.py").write_text(RANKS)
    done = both(small, "ranks.py", "3")
    assert [each.code for each in done] == [0, 3], done
    assert [each.out for each in done] == ["rank 0 ['0', '1']\n", "rank 1 ['0', '1']\n"], "they have one /tmp"
    assert sum("2 processes share the project directory" in each.err for each in done) == 1
    run = record(small)
    assert run["start"]["processes"] == 2
    assert [(process["rank"], process["exit_code"]) for process in run["end"]["processes"]] == [(0, 0), (1, 3)]
    assert run["end"]["outcome"]["exit_code"] == 3
    outputs = [output["path"] for output in run["end"]["outputs"]]
    assert [Path(path).name for path in outputs] == ["results.txt", "drawn.json"]
    page = small.run("runs", "show", "latest").out
    assert f"process   1 on {os.uname().nodename}: exit 3 after " in page
    assert small.run("runs", "logs", "latest").out == "".join(each.out for each in done)
    drawn = json.loads((Path(run["directory"]) / "files/drawn.json").read_text())
    alone = small.run("exec", "-c", "import random; print(random.random())").out
    assert drawn[0] == float(alone), "rank 0 has the numbers of a run without ranks"
    assert drawn[0] != drawn[1]
    refused = small.run("verify", run["start"]["id"][-8:], code=19)
    assert "had 2 processes of a launcher" in refused.err


def test_a_killed_process_is_named_and_processes_with_other_options_are_refused(small: parts.Project) -> None:
    run_id = ids.new()
    # Rank 0 lives until the end of its input, which comes after rank 1 is killed.
    code = "import os, sys, time; print('up', flush=True); time.sleep(600) if os.environ['RANK'] == '1' else sys.stdin.read()"
    processes = [start(small, run_id, rank, "-c", code) for rank in (0, 1)]
    assert processes[1].stdout is not None
    assert processes[1].stdout.readline() == "up\n"
    processes[1].send_signal(signal.SIGKILL)
    processes[1].communicate(timeout=200)
    assert processes[0].communicate(timeout=200)[0] == "up\n"
    run = record(small, run_id[-8:])
    assert [process["exit_code"] for process in run["end"]["processes"]] == [0, None]
    assert run["end"]["outcome"]["signal"] == signal.SIGKILL
    before = sorted((small.directory / "runs").iterdir())
    run_id = ids.new()
    differ = [start(small, run_id, rank, "--seed", str(rank), "-c", "pass") for rank in (0, 1)]
    messages = "".join(process.communicate(timeout=200)[1] for process in differ)
    assert "the processes of this run have different options" in messages
    assert "ended before its command could start" in messages
    assert sorted((small.directory / "runs").iterdir()) == before, "a run that did not start leaves nothing"


def test_sigterm_ends_a_process_that_waits_for_the_others(small: parts.Project) -> None:
    need(os.geteuid() == 0, "uid 0: a process is the first one of a PID namespace, as in a container")
    before = sorted((small.directory / "runs").glob("2*"))
    prefix = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
    with start(small, run_id := ids.new(), 0, "-c", "pass", prefix=prefix) as waiting:
        try:
            deadline = time.monotonic() + 60
            while not [*(small.directory / "runs").glob(f"*{run_id[-8:]}/ranks/0/ready.json")]:
                assert time.monotonic() < deadline
                time.sleep(0.05)
            children = Path(f"/proc/{waiting.pid}/task/{waiting.pid}/children").read_text().split()
            os.kill(int(children[0]), signal.SIGTERM)
            waiting.communicate(timeout=60)
        finally:
            waiting.kill()
    assert waiting.returncode == 128 + signal.SIGTERM
    assert sorted((small.directory / "runs").glob("2*")) == before, "a run that did not start leaves nothing"


def test_processes_on_several_machines_need_the_network(small: parts.Project) -> None:
    need(os.geteuid() == 0, "uid 0: a process gets another host name")
    machine = ("unshare", "--uts", "sh", "-c", 'hostname node2 && exec "$@"', "sh")
    for done in both(small, "-c", "pass", second=machine):
        assert done.code == 2
        assert "node2), and cannot reach each other without a network\n  -> add --network" in done.err
    code = (
        "import os, pathlib, time; rank = os.environ['RANK']; pathlib.Path(rank).write_text(rank)\n"
        "pathlib.Path('~/own.txt').expanduser().write_text(rank)\n"
        "while len(os.listdir()) < 2 or not all(map(os.path.exists, '01')): time.sleep(0.02)"
    )
    (small.directory / "machines.py").write_text(code)
    assert [done.code for done in both(small, "--network", "machines.py", second=machine)] == [0, 0]
    run = record(small)
    assert [process["node"] for process in run["end"]["processes"]] == [os.uname().nodename, "node2"]
    outside = [output["path"] for output in run["end"]["outputs"] if output["path"].startswith("/")]
    assert [Path(path).name for path in outside] == ["own.txt"]
    (other,) = [line for line in run["end"]["special_files"] if "own.txt" in line]
    assert other.endswith("(differs from the output with this path)")
