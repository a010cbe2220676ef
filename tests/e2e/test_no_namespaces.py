"""A session on a machine that refuses namespaces, as default containers and hardened hosts do, through the installed command."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

from repro_env.sandbox import landlock
from tests.e2e import parts
from tests.parts import need

REFUSED = (
    "unshare",
    "--user",
    "--map-root-user",
    "sh",
    "-c",
    'echo 0 > /proc/sys/user/max_user_namespaces; exec setpriv --bounding-set=-all --inh-caps=-all --no-new-privs "$@"',
    "sh",
)
"""Starts a command where no namespace can be made, without Docker: the limit counts in the namespace in which it is set."""
TRAIN = """\
import json, os, pathlib, struct, sys, time
here = pathlib.Path(__file__).parent
data = pathlib.Path("../data/n.txt").read_text()
(here / "out").mkdir(exist_ok=True)
(here / "out/metrics.json").write_text(json.dumps({"loss": int(os.environ["REPRO_ENV_SEED"]) / 8, "directory": os.getcwd()}))
pathlib.Path("result.txt").write_text(data)
jitter = time.time_ns() % 10**6 * 1e-12
header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (2,), }".ljust(117) + b"\\n"
pathlib.Path("w.npy").write_bytes(b"\\x93NUMPY\\x01\\x00" + struct.pack("<H", len(header)) + header + struct.pack("<2d", 1 + jitter, 2))
pathlib.Path("../results").mkdir(exist_ok=True)
pathlib.Path("../results/r.txt").write_text(data)
pathlib.Path("~/.seen").expanduser().write_text("home")
for word in sys.argv[1:]:
    pathlib.Path(word).write_text("mine" + data)
"""


class Session(NamedTuple):
    project: parts.Project
    home: Path

    def run(self, *words: str | Path, code: int = 0) -> parts.Done:
        command = [*REFUSED, str(parts.COMMAND), *map(str, words)]
        env = parts.environ(self.project.store, {"HOME": str(self.home)})
        done = subprocess.run(
            command, cwd=self.project.directory, env=env, capture_output=True, text=True, check=False, timeout=300
        )
        assert done.returncode == code, f"{words} -> {done.returncode}\n{done.stdout}\n{done.stderr}"
        return parts.Done(done.returncode, done.stdout, done.stderr)

    def record(self) -> dict[str, dict[str, object]]:
        answer = json.loads(self.run("runs", "show", "latest", "--json").out)
        assert isinstance(answer, dict)
        return answer

    def files(self) -> dict[str, str]:
        """Everything of the user's, by digest."""
        around = self.project.directory.parent
        return {name: digest for name, digest in parts.digests(around).items() if "/runs/" not in name}


@pytest.fixture(scope="module")
def session(small: parts.Project, tmp_path_factory: pytest.TempPathFactory) -> Session:
    around = tmp_path_factory.mktemp("hardened")
    (around / "data").mkdir()
    (around / "data" / "n.txt").write_text("7")
    (around / "home").mkdir()
    directory = around / "project"
    made = parts.project(directory, parts.venv(directory / ".venv", own_pip=False), small.store)
    (directory / "train.py").write_text(TRAIN)
    need(shutil.which("setpriv") and shutil.which("unshare"), "util-linux")
    need(not subprocess.run([*REFUSED, "true"], capture_output=True, check=False).returncode, "user namespaces of this machine")
    session = Session(made, around / "home")
    session.run("capture", "--python", made.python)
    return session


def test_doctor_reports_what_works_and_who_can_fix_what_does_not(session: Session) -> None:
    output = session.run("doctor", code=1).out
    assert "fix, by an administrator: sysctl -w user.max_user_namespaces=15000" in output
    assert "works     capture, check, diff, rebuild, push and pack need no namespaces" in output
    assert "works     exec, verify and sensitivity: --runner host uses the live environment, without isolation" in output
    session.run("rebuild")
    session.run("check")


def test_without_namespaces_a_run_is_refused_with_a_hint_at_the_other_runners(session: Session) -> None:
    done = session.run("exec", "python", "-c", "print('ran')", code=15)
    assert not done.out
    assert "alternatives: --runner docker uses a container, --runner host uses the live environment" in done.err
    assert not list((session.project.directory / "runs").glob("2*"))


def test_a_run_on_the_host_is_verified_in_a_private_copy(session: Session) -> None:
    directory = session.project.directory
    first = session.run("exec", "--verbose", "--runner", "host", "--data", "../data", "train.py", "own.txt")
    assert f"data {directory.parent / 'data'} (read-only)" in first.err
    run = session.record()["start"]["id"]
    (directory / "train.py").write_text(f"{TRAIN}print('edited since')")
    there = session.files()
    done = session.run("verify", "--verbose", "--runner", "host", str(run)[-8:], code=1)
    assert session.files() == there
    assert "edited since" not in done.out + done.err
    assert "on the host, without isolation, in a private copy of the source" in done.err
    assert "the host runner does not isolate" in done.out
    assert "numeric: 1 of 6 results differs: w.npy" in done.out


@pytest.mark.skipif(not landlock.is_available(), reason="this kernel has no Landlock (Linux 5.19)")
def test_a_private_copy_cannot_write_to_the_users_files(session: Session) -> None:
    around = session.project.directory.parent
    there = session.files()
    done = session.run("exec", "--runner", "host", "--data", "../data", "train.py", around / "data" / "n.txt", code=1)
    assert "PermissionError" in done.err
    session.run("exec", "--runner", "host", "--data", "../data", "train.py", session.project.directory / "own.txt")
    assert session.files() == there
    run = session.record()["end"]
    assert "writes: only in the copy, its home and temporary directory, by Landlock" in json.dumps(run["outcome"])
    outside = [f"{session.home}/.seen", f"{around}/results/r.txt"]
    inside = ["out/metrics.json", "own.txt", "result.txt", "w.npy"]
    assert [output["path"] for output in run["outputs"]] == [*outside, *inside]  # type: ignore[attr-defined]


def test_seeds_are_compared_on_the_host_without_touching_the_tree(session: Session) -> None:
    there = session.files()
    done = session.run(
        "sensitivity", "--runner", "host", "--seeds", "2", "--metric", "loss", "--data", "../data", "--json", "train.py"
    )
    assert session.files() == there
    answer = json.loads(done.out.splitlines()[-1])
    assert [run["exit_code"] for run in answer["runs"]] == [0, 0]
    assert answer["metrics"][0]["spread"]["mean"] == 1 / 16


def test_missing_data_that_the_record_does_not_have_is_a_reason_and_not_a_difference(session: Session) -> None:
    extra = session.project.directory.parent / "extra.txt"
    extra.write_text("1")
    session.run("exec", "--runner", "host", "-c", f"open('out.txt', 'w').write(open('{extra}').read())")
    extra.unlink()
    done = session.run("verify", "--runner", "host", code=1)
    assert "nothing was compared: the command ended with exit code 1 and not 0" in done.out
    assert "the recorded run was on the host, where it could read every file: name the files that it read with --data" in done.out
    extra.write_text("1")
    done = session.run("verify", "--runner", "host", "--data", extra)
    assert f"changed data in {extra}, because the record does not have it" in done.out


def test_code_that_the_environment_imports_from_the_directory_must_be_that_of_the_run(session: Session) -> None:
    (site,) = session.project.directory.glob(".venv/lib/python*/site-packages")
    (site / "project.pth").write_text(f"{session.project.directory}\n")
    session.run("capture", "--python", session.project.python)
    session.run("exec", "--runner", "host", "--data", "../data", "train.py")
    (session.project.directory / "helper.py").write_text("")
    done = session.run("verify", "--runner", "host", code=18)
    assert "whose files differ from those of the run" in done.err


def test_the_host_runner_runs_a_copy_of_the_project_where_the_copy_is(small: parts.Project, tmp_path: Path) -> None:
    before = sorted(small.directory.rglob("*.txt"))
    shutil.copytree(small.directory, tmp_path / "small", ignore=shutil.ignore_patterns(".venv", "runs", "made.txt"))
    other = small._replace(directory=tmp_path / "small")
    assert other.run("exec", "--runner", "host", "hello.py").out.startswith(f"hello from {tmp_path}/small/runs/")
    assert sorted(small.directory.rglob("*.txt")) == before


def test_what_a_script_writes_into_its_own_runs_directory_is_an_output(session: Session) -> None:
    """TensorBoard's writer uses the name `runs` by default."""
    code = "import os; os.makedirs('runs/Nov23_10-00-00_node', exist_ok=True); open('runs/Nov23_10-00-00_node/events', 'w').write('x')"
    session.run("exec", "--runner", "host", "python", "-c", code)
    assert [output["path"] for output in session.record()["end"]["outputs"]] == ["runs/Nov23_10-00-00_node/events"]  # type: ignore[attr-defined]
