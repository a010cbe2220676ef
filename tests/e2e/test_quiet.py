"""How much a command prints around what it was asked for."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import shutil
import subprocess
import sys

from tests.e2e import parts

SCRIPT = "import random; print('trained'); open('made.txt', 'w').write(str(random.random()))"


def test_a_successful_run_prints_at_most_four_additional_lines(small: parts.Project) -> None:
    (small.directory / "noisy.py").write_text(SCRIPT)
    normal = small.run("exec", "noisy.py", env={"OMP_NUM_THREADS": "3"})
    assert normal.out == "trained\n"
    run, unused, end, seeds = normal.err.splitlines()
    assert re.fullmatch(r"repro-env: run [0-9a-f]{8}, image [0-9a-f]{12}, seed 0; changed since capture: \+ .*", run)
    assert "OMP_NUM_THREADS" in unused
    assert re.fullmatch(r"repro-env: finished after \d+\.\d s; 1 output \(\d+ B\) in /\S+/files", end)
    assert re.fullmatch(r"repro-env: seeded automatically: 1 unseeded random generator \(.* at \S+noisy\.py:1\)", seeds)

    quiet = small.run("exec", "-q", "noisy.py", env={"OMP_NUM_THREADS": "3"})
    assert (quiet.out, quiet.err) == ("trained\n", "")

    verbose = small.run("exec", "--verbose", "noisy.py")
    for detail in ("no network", "record:", "next: repro-env runs get"):
        assert detail in verbose.err
        assert detail not in normal.err


def test_a_command_in_a_pipe_imports_only_what_it_uses(small: parts.Project) -> None:
    """No rich; and for `exec` on a machine without GPUs and jobs, no NVML and no registry. -X importtime prints every import."""
    for words in (["exec", "python", "-c", ""], ["runs", "list"], ["doctor", "repro"]):
        command = [sys.executable, "-X", "importtime", "-m", "repro_env", *words]
        done = subprocess.run(
            command, cwd=small.directory, env=parts.environ(small.store), capture_output=True, text=True, check=True
        )
        imported = set(re.findall(r"\| +([a-z_.]+)$", done.stderr, re.MULTILINE))
        assert "repro_env.cli.app" in imported
        assert not imported & {"email", "packaging", "pynvml", "repro_env.registry", "rich"}, words


def screen(project: parts.Project, *words: str) -> tuple[str, list[str]]:
    """All that a command writes to a terminal, and the lines that are there at the end."""
    ours, theirs = pty.openpty()
    env = {
        name: value for name, value in parts.environ(project.store, {"TERM": "xterm", "COLUMNS": "100"}).items() if name != "CI"
    }
    with subprocess.Popen(
        [parts.COMMAND, *words], cwd=project.directory, env=env, stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs
    ) as child:
        os.close(theirs)
        written = io.BytesIO()
        try:
            while chunk := os.read(ours, 4096):
                written.write(chunk)
        except OSError:  # the other end was closed
            pass
        os.close(ours)
    text = written.getvalue().decode()
    assert child.returncode == 0, text
    return text, [line.rpartition("\x1b[2K")[2] for line in text.replace("\r\n", "\n").split("\n")]


def test_verify_shows_its_progress_and_its_verdict_and_not_what_the_command_prints(small: parts.Project) -> None:
    (small.directory / "slow.py").write_text("import time; print('trained'); time.sleep(1.5); open('made.txt', 'w').write('1')")
    small.run("exec", "slow.py")
    written, lines = screen(small, "verify")
    assert re.search(r"running again \(the first run took \d+ s\) .* 0:00:01", re.sub(r"\x1b\[\d*m", "", written))
    assert lines[0] == "repro-env: expected: bitwise identical (same image, code, data, seed, threads and CPU type)"
    assert "bitwise: 1 result identical" in re.sub(r"\x1b\[\d*m", "", "\n".join(lines))
    assert "running again" not in "\n".join(lines)
    assert "trained" not in written
    verbose = small.run("verify", "-v")
    assert "trained\n" in verbose.err
    assert "trained" not in verbose.out

    (small.directory / "nothing.py").write_text("print('the console is all')")
    small.run("exec", "nothing.py")
    refused = small.run("verify", "-v", code=1)
    assert "nothing was compared: the run has only" in refused.out
    assert "the console is all" not in refused.err
    assert "bitwise: 1 result identical" in small.run("verify", "--result", "stdout.log").out


def test_a_copied_checkpoint_that_is_given_as_data_is_a_parent(small: parts.Project) -> None:
    (small.directory / "weights.py").write_text("import os; open('w.pt', 'wb').write(os.urandom(9))")
    small.run("exec", "weights.py")
    lineage = json.loads(small.run("lineage", "latest", "--json").out)
    assert lineage["family"]["parents"] == []
    assert "no known parent" in small.run("lineage", "latest").out
    kept = small.directory.parent / "kept" / "deep"
    kept.mkdir(parents=True)
    shutil.copyfile(small.directory / "runs" / "latest" / "files" / "w.pt", kept / "best.pt")
    small.run("exec", "--data", kept.parent, "-c", "pass")
    answer = json.loads(small.run("lineage", "latest", "--json").out)
    assert [parent["id"] for parent in answer["family"]["parents"]] == [lineage["run"]["start"]["id"]]
    assert (
        f"parent        {lineage['run']['start']['id'][-8:]} (its outputs were used as data, deep/best.pt, sha256:"
        in small.run("lineage", "latest").out
    )


def test_a_quiet_command_prints_only_its_result_and_its_errors(small: parts.Project) -> None:
    for words in (["rebuild", "-q"], ["runs", "list", "--quiet"], ["check", "-q"]):
        assert small.run(*words, code=None).err == ""
    assert small.run("exec", "-q", "no-such-program", code=None).err.startswith("repro-env: error: ")
