"""Diagnoses from recorded observations, and `doctor` on machines where something is made to fail."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from pathlib import Path

import msgspec
import pytest

from repro_env.api.doctor import Diagnosis
from repro_env.sandbox import doctor
from repro_env.sandbox.docker.runner import DockerRunner
from repro_env.sandbox.doctor import Directory, Finding, Observations, Step
from repro_env.schema.run import User
from tests.parts import need
from tests.sandbox.conftest import REPOSITORY, Place, environ, python
from tests.sandbox.engines import docker

STEPS: tuple[Step, ...] = ("user namespace", "namespaces", "mounts", "proc", "overlay")
DISK = Directory(path="/here", kind="ext4", errno=0, size=100 << 30)


def machine(*, until: Step | None = None, refused: dict[Step, int] | None = None, **changes: object) -> Observations:
    """A machine where everything works for a plain user, except the `refused` steps. `until` is the last step that was tried."""
    steps = STEPS if until is None else STEPS[: STEPS.index(until) + 1]
    tried = {step: (refused or {}).get(step, 0) for step in steps}
    observations = Observations(
        kernel="6.1.0-18-amd64", admin=False, seccomp=0, userns_clone=None, max_user_namespaces=60000,
        apparmor=None, store=DISK, runs=DISK, tried=tried,
    )  # fmt: skip
    return msgspec.structs.replace(observations, **changes)


def get(findings: tuple[Finding, ...], name: str) -> Finding:
    (finding,) = (finding for finding in findings if finding.name == name)
    return finding


def test_a_suitable_machine_has_no_problems() -> None:
    findings = doctor.diagnose(machine())
    assert [(finding.name, finding.state, finding.fix) for finding in findings if finding.state != "ok"] == []
    assert doctor.works(findings)
    assert len(findings) == 7


def test_alternatives_are_offered_only_if_just_isolation_is_blocked() -> None:
    blocked = machine(until="user namespace", refused={"user namespace": errno.ENOSPC}, max_user_namespaces=0)
    findings = doctor.diagnose(blocked)
    assert get(findings, "user namespace").fix == f"{doctor.ADMINISTRATOR}sysctl -w user.max_user_namespaces=15000"
    rebuild, docker, host = doctor.alternatives(findings, ["docker"])
    assert ("rebuild" in rebuild, "--runner docker" in docker, "--runner host" in host) == (True, True, True)
    assert doctor.alternatives(findings, []) == (rebuild, host)
    full = msgspec.structs.replace(blocked, store=msgspec.structs.replace(DISK, errno=errno.ENOSPC))
    for observations in (machine(), full):
        assert doctor.alternatives(doctor.diagnose(observations), ["docker"]) == ()


def test_root_without_idmapped_mounts_is_a_fallback() -> None:
    observations = machine()
    tried = {step: number for step, number in observations.tried.items() if not step.startswith("user")}
    root = msgspec.structs.replace(observations, admin=True, tried=tried)
    assert {finding.state for finding in doctor.diagnose(root)} == {"ok"}
    refused = tried | {"other user": errno.EINVAL}
    finding = get(doctor.diagnose(msgspec.structs.replace(root, tried=refused)), "other user")
    assert (finding.state, "root in a run is root on this machine" in finding.text) == ("fallback", True)


@pytest.mark.parametrize(
    ("changes", "state", "text"),
    [
        ({"locks": errno.ENOLCK}, "blocked", "has no locks: ENOLCK"),
        ({"local": "local_lock=flock"}, "fallback", "locks hold only on this machine (local_lock=flock)"),
        ({"links": errno.EPERM}, "fallback", "images are copied, because there are no hard links (EPERM)"),
    ],
)
def test_what_a_network_file_system_lacks_is_a_finding(changes: dict[str, object], state: str, text: str) -> None:
    store = msgspec.structs.replace(DISK, kind="nfs4", **changes)
    finding = get(doctor.diagnose(machine(store=store)), "store")
    assert (finding.state, text in finding.text, bool(finding.fix)) == (state, True, True)


USER: Step = "user namespace"
MOUNTS: Step = "mounts"


@pytest.mark.parametrize(
    ("observed", "state", "text", "fix"),
    [
        (machine(until=USER, refused={USER: errno.EPERM}, userns_clone=0), "blocked", "unprivileged_userns_clone is 0", "unprivileged_userns_clone=1"),
        (machine(until=USER, refused={USER: errno.ENOSPC}, max_user_namespaces=0), "blocked", "user.max_user_namespaces is 0", "user.max_user_namespaces=15000"),
        (machine(until=USER, refused={USER: errno.EPERM}, seccomp=2), "blocked", "a seccomp filter, probably of a container engine", "seccomp=unconfined"),
        (machine(until=USER, refused={USER: errno.EACCES}, apparmor=1), "blocked", "AppArmor", "apparmor_restrict_unprivileged_userns=0"),
        (machine(until=USER, refused={USER: errno.EPERM}, kernel="3.2.0"), "blocked", "Linux 3.2.0 does not allow it to plain users", "as root"),
        (machine(until=USER, refused={USER: errno.EPERM}), "blocked", "chroot", "as root"),
        # On Ubuntu 24.04 the namespace can be made, but has no capabilities.
        (machine(until=MOUNTS, refused={MOUNTS: errno.EACCES}, apparmor=1), "blocked", "AppArmor", "apparmor_restrict_unprivileged_userns=0"),
        (machine(until=MOUNTS, refused={MOUNTS: errno.EPERM}, seccomp=2), "blocked", "a seccomp filter", "seccomp=unconfined"),
        (machine(refused={"proc": errno.EPERM}), "fallback", "EPERM", "systempaths=unconfined"),
        (machine(refused={"overlay": errno.EPERM}, kernel="5.4.0-150"), "fallback", "Linux 5.4.0-150 does not allow it", "Linux 5.11"),
        (machine(refused={"overlay": errno.EINVAL}, runs=msgspec.structs.replace(DISK, kind="nfs4")), "fallback", "an upper layer on nfs4", "exec --runs"),
        (machine(refused={"overlay": errno.ENODEV}), "fallback", "does not have the overlay file system", "modprobe overlay"),
        (machine(refused={"overlay": errno.EPERM}), "fallback", "EPERM on ext4", "ext4, xfs or btrfs"),
    ],
)  # fmt: skip
def test_each_cause_has_its_fix(observed: Observations, state: str, text: str, fix: str) -> None:
    findings = doctor.diagnose(observed)
    (finding,) = (finding for finding in findings if finding.state != "ok")
    assert (finding.state, text in finding.text, fix in finding.fix) == (state, True, True), finding
    assert doctor.works(findings) == (state != "blocked")


@pytest.mark.parametrize(
    ("changes", "state", "text"),
    [
        ({"errno": errno.ENOSPC, "size": 0}, "blocked", "cannot be written: ENOSPC"),
        ({"errno": errno.EACCES}, "blocked", "cannot be written: EACCES"),
        ({"size": 1 << 20}, "fallback", "0.0 GiB free"),
    ],
)
def test_full_or_unwritable_directories_are_reported(changes: dict[str, int], state: str, text: str) -> None:
    directory = msgspec.structs.replace(DISK, **changes)
    findings = doctor.diagnose(machine(runs=directory))
    finding = get(findings, "runs")
    assert (finding.state, text in finding.text) == (state, True), finding


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
    assert {finding.state for finding in diagnosis.findings if finding.state != "absent"} <= {"ok", "fallback"}
    assert get(diagnosis.findings, "overlay").state == "ok"
    assert diagnosis.observations.admin == (place.uid == 0)
    assert list(place.runs.iterdir()) == []
    assert [path for path in (place.root / "own-store").iterdir() if path.name.startswith(".doctor")] == []


def test_each_runner_starts_a_tiny_run_before_it_is_called_ok(place: Place) -> None:
    """A program that only prints its version is none."""
    need(shutil.which("ch-run"), "ch-run (package charliecloud)")
    code, diagnosis = _doctor(place, place.runs)
    assert (code, get(diagnosis.findings, "run").state, get(diagnosis.findings, "charliecloud").state) == (0, "ok", "ok")
    programs = place.root / "programs"
    programs.mkdir()
    (programs / "ch-run").write_text(
        '#!/bin/sh\n[ "$1" = --version ] && echo 0.32 || { echo no containers today >&2; exit 1; }\n'
    )
    (programs / "ch-run").chmod(0o755)
    code, diagnosis = _doctor(place, place.runs, before=("env", f"PATH={programs}:/usr/bin:/bin:/usr/sbin:/sbin"))
    finding = get(diagnosis.findings, "charliecloud")
    assert (code, finding.state) == (0, "blocked")
    assert "starts no run: ch-run ended before the command started: no containers today" in finding.text
    assert list(place.runs.iterdir()) == []


def test_a_runs_directory_on_an_overlay_is_a_fallback(place: Place) -> None:
    root = place.root
    setup = f'cd "{root}"; mkdir l u w; mount -t overlay none -o lowerdir=l,upperdir=u,workdir=w runs; chown {place.uid} runs; cd "{REPOSITORY}"'
    code, diagnosis = _doctor(place, place.runs, setup=setup)
    assert (code, diagnosis.observations.runs.kind) == (0, "overlay")
    assert get(diagnosis.findings, "overlay").state == "fallback"
    assert "an upper layer on overlay is not supported" in get(diagnosis.findings, "overlay").text


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


def test_a_missing_engine_does_not_block_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    finding = DockerRunner.find()
    assert (finding.name, finding.state) == ("container engine", "absent")
    assert "the socket does not exist" in finding.text
    assert finding.fix
    assert doctor.works((finding,))


def test_an_engine_that_answers_is_ok(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", docker())
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    finding = DockerRunner.find()
    assert (finding.name, finding.state, finding.fix) == ("docker engine", "ok", "")
    assert finding.text.startswith("Docker ")
    assert f" at {docker()}" in finding.text
