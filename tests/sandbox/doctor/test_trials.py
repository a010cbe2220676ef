"""`doctor` on real machines, and on machines where something is made to fail."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import msgspec

from repro_env.api.doctor import Diagnosis
from repro_env.schema.run import User
from tests.parts import need
from tests.sandbox.conftest import REPOSITORY, Place, environ, python
from tests.sandbox.doctor.test_diagnosis import get


def _doctor(place: Place, directory: Path, *, setup: str = "", before: tuple[str, ...] = ()) -> tuple[int, Diagnosis]:
    """Run `repro-env doctor --for DIRECTORY --json` as the place's user, in a mount namespace that `setup` prepares as root."""
    command = [*place.identity(), *before, python(place.uid), "-m", "repro_env", "doctor", "--for", str(directory), "--json"]
    if setup:
        need(os.getuid() == 0, "uid 0, to mount an overlay")
        command = ["unshare", "-m", "sh", "-ec", f'{setup}; exec "$@"', "sh", *command]
    env = environ() | {"REPRO_ENV_STORE": str(place.root / "own-store")}
    done = subprocess.run(command, cwd=REPOSITORY, env=env, capture_output=True, text=True, check=False, timeout=300)
    assert done.stdout, done.stderr
    return done.returncode, msgspec.json.decode(done.stdout, type=Diagnosis)


def test_this_machine_can_run_everything(place: Place) -> None:
    code, diagnosis = _doctor(place, place.runs)
    assert (code, diagnosis.works, diagnosis.alternatives) == (0, True, ())
    assert get(diagnosis.findings, "root on disk").text == "overlay"
    assert get(diagnosis.findings, "workspace").state == "ok"
    assert (diagnosis.observations.uid, diagnosis.observations.admin) == (place.uid, place.uid == 0)
    assert list(place.runs.iterdir()) == []
    assert [path for path in (place.root / "own-store").iterdir() if path.name.startswith(".doctor")] == []


def test_a_runs_directory_on_an_overlay_is_a_fallback(place: Place) -> None:
    root = place.root
    setup = f'cd "{root}"; mkdir l u w; mount -t overlay none -o lowerdir=l,upperdir=u,workdir=w runs; chown {place.uid} runs; cd "{REPOSITORY}"'
    code, diagnosis = _doctor(place, place.runs, setup=setup)
    assert (code, diagnosis.observations.runs.kind) == (0, "overlay")
    assert get(diagnosis.findings, "workspace").state == "fallback"
    assert "an upper layer on overlay is not supported" in get(diagnosis.findings, "workspace").text


def test_a_machine_without_user_namespaces_is_blocked(place: Place) -> None:
    forbid = 'echo 0 > /proc/sys/user/max_user_namespaces; exec setpriv --bounding-set=-sys_admin "$@"'
    code, diagnosis = _doctor(place, place.runs, before=("unshare", "--user", "--map-root-user", "sh", "-c", forbid, "sh"))
    assert (code, diagnosis.works) == (1, False)
    assert "user.max_user_namespaces is 0" in get(diagnosis.findings, "user namespace").text
    assert "--runner host" in diagnosis.alternatives[-1]


def test_without_namespaces_the_runner_fails_with_the_diagnosis_and_never_uses_the_host(place: Place) -> None:
    forbid = 'echo 0 > /proc/sys/user/max_user_namespaces; exec setpriv --bounding-set=-sys_admin "$@"'
    before = ["unshare", "--user", "--map-root-user", "sh", "-c", forbid, "sh"]
    result = place.sh("echo out", before=before, user=User(uid=0, gid=0, name="root", home="/root"))
    assert (result.answer.error, result.stdout) == ("SandboxError", "")
    assert "user.max_user_namespaces is 0" in result.answer.message
    assert "user.max_user_namespaces=15000" in result.answer.hint
    assert "--runner docker" in result.answer.hint
    assert "--runner host" in result.answer.hint


def test_an_unwritable_runs_directory_is_blocked(place: Place) -> None:
    code, diagnosis = _doctor(place, Path("/proc"))
    assert (code, get(diagnosis.findings, "runs").state) == (1, "blocked")
