"""The commands of docs/hpc.md through the installed command, as on a node of a cluster."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import pytest

from tests.e2e import parts


def limited(project: parts.Project, what: str, *words: str) -> parts.Done:
    """`repro-env WORDS` with file systems that refuse locks or hard links."""
    command = [sys.executable, "-m", "tests.fakes.limitedfiles", what, str(parts.COMMAND), *words]
    env = parts.environ(project.store, {"PYTHONPATH": str(parts.ROOT)})
    ended = subprocess.run(command, cwd=project.directory, env=env, capture_output=True, text=True, check=False, timeout=300)
    return parts.Done(ended.returncode, ended.stdout, ended.stderr)


def test_without_locks_nothing_starts_and_without_hard_links_a_run_works(small: parts.Project) -> None:
    done = limited(small, "locks", "exec", "hello.py")
    assert done.code not in (0, 1)
    assert "the file system refuses to lock a file: No locks available" in parts.one_sentence(done)
    shutil.rmtree(small.store / "merged", ignore_errors=True)
    done = limited(small, "links", "exec", "--runner", "charliecloud", "hello.py")
    assert done.out.startswith("hello from "), done.err
    assert "without overlay, images are copied" in limited(small, "links", "doctor").out


PROGRAMS = {"charliecloud": "ch-run ", **({"apptainer": "apptainer 1."} if shutil.which("apptainer") else {})}
"""Only the newest Debian has Apptainer: `tests.roots` runs these tests there."""


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_run_with_a_container_program_has_the_record_of_an_embedded_one_and_is_verified(
    small: parts.Project, program: str
) -> None:
    findings = json.loads(small.run("doctor", "--for", small.directory, "--json").out)["findings"]
    assert {finding["name"]: finding["state"] for finding in findings}[program] == "ok"
    seen = {}
    for runner in (program, "embedded"):
        assert small.run("exec", "--runner", runner, "--seed", "5", "hello.py").out.startswith("hello from ")
        seen[runner] = json.loads(small.run("runs", "show", "--json").out)
        if runner == program:
            assert "bitwise: " in small.run("verify").out
    ours, theirs = seen[program], seen["embedded"]
    assert (ours["start"]["runner"], ours["end"]["outcome"]["isolation"]) == (program, program)
    assert ours["end"]["outcome"]["methods"][0].startswith(PROGRAMS[program])
    assert ours["end"]["outputs"] == theirs["end"]["outputs"] != []
    same = ("command", "cwd", "data", "env_names", "host", "image", "network", "seed", "source", "spec")
    assert {name: ours["start"][name] for name in same} == {name: theirs["start"][name] for name in same}


def test_a_missing_program_is_named(small: parts.Project) -> None:
    env = {"PATH": "/usr/bin:/bin"} if "apptainer" not in PROGRAMS else {"PATH": "/bin-without-programs"}
    done = small.run("exec", "--runner", "apptainer", "hello.py", code=15, env=env)
    assert "apptainer is not on the PATH" in parts.one_sentence(done)
