"""Trying what a run needs, where it can be made to fail for real."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import msgspec

from repro_env.flows.doctor import Diagnosis
from repro_env.model.run import User
from tests.parts import need
from tests.run.conftest import REPOSITORY, Place, environ, python
from tests.run.test_diagnosis import the


def _ask(place: Place, folder: Path, *, setup: str = "", before: tuple[str, ...] = ()) -> tuple[int, Diagnosis]:
    """`repro-env doctor --for FOLDER --json` as the place's user, in mounts that `setup` prepares as root."""
    command = [*place.identity(), *before, python(place.uid), "-m", "repro_env", "doctor", "--for", str(folder), "--json"]
    if setup:
        need(os.getuid() == 0, "uid 0, to mount what is refused")
        command = ["unshare", "-m", "sh", "-ec", f'{setup}; exec "$@"', "sh", *command]
    env = environ() | {"REPRO_ENV_STORE": str(place.root / "own-store")}
    done = subprocess.run(command, cwd=REPOSITORY, env=env, capture_output=True, text=True, check=False, timeout=300)
    assert done.stdout, done.stderr
    return done.returncode, msgspec.json.decode(done.stdout, type=Diagnosis)


def test_this_machine_for_real(place: Place) -> None:
    code, said = _ask(place, place.runs)
    assert (code, said.works, said.alternatives) == (0, True, ())
    assert the(said.findings, "root").text == "overlay"
    assert the(said.findings, "workspace").state == "ok"
    assert (said.observations.uid, said.observations.admin) == (place.uid, place.uid == 0)
    assert list(place.runs.iterdir()) == []
    assert [path for path in (place.root / "own-store").iterdir() if path.name.startswith(".doctor")] == []


def test_a_runs_folder_on_an_overlay_for_real(place: Place) -> None:
    root = place.root
    setup = f'cd "{root}"; mkdir l u w; mount -t overlay none -o lowerdir=l,upperdir=u,workdir=w runs; chown {place.uid} runs; cd "{REPOSITORY}"'
    code, said = _ask(place, place.runs, setup=setup)
    assert (code, said.observations.runs.kind) == (0, "overlay")
    assert the(said.findings, "workspace").state == "fallback"
    assert "overlay cannot be its upper side" in the(said.findings, "workspace").text


def test_no_user_namespaces_for_real(place: Place) -> None:
    forbid = 'echo 0 > /proc/sys/user/max_user_namespaces; exec setpriv --bounding-set=-sys_admin "$@"'
    code, said = _ask(place, place.runs, before=("unshare", "--user", "--map-root-user", "sh", "-c", forbid, "sh"))
    assert (code, said.works) == (1, False)
    assert the(said.findings, "user namespace").text == "none may be made (user.max_user_namespaces is 0)"
    assert "--runner host" in said.alternatives[-1]


def test_without_name_spaces_the_runner_fails_with_the_diagnosis_and_never_uses_the_host(place: Place) -> None:
    forbid = 'echo 0 > /proc/sys/user/max_user_namespaces; exec setpriv --bounding-set=-sys_admin "$@"'
    before = ["unshare", "--user", "--map-root-user", "sh", "-c", forbid, "sh"]
    ran = place.sh("echo out", before=before, user=User(uid=0, gid=0, name="root", home="/root"))
    assert (ran.answer.error, ran.stdout) == ("SandboxError", "")
    assert "user.max_user_namespaces is 0" in ran.answer.message
    assert "user.max_user_namespaces=15000" in ran.answer.hint
    assert "--runner docker" in ran.answer.hint
    assert "--runner host" in ran.answer.hint


def test_a_folder_that_cannot_be_written_for_real(place: Place) -> None:
    code, said = _ask(place, Path("/proc"))
    assert (code, the(said.findings, "runs").state) == (1, "blocked")
