"""All diagnoses, from recorded observations."""

from __future__ import annotations

import errno

import msgspec
import pytest

from repro_env.sandbox.doctor import diagnosis
from repro_env.sandbox.doctor.diagnosis import Directory, Finding, Observations, Step

STEPS: tuple[Step, ...] = (
    "hard link",
    "user namespace",
    "user map",
    "namespaces",
    "network namespace",
    "mounts",
    "memory",
    "workspace",
    "root on disk",
    "removal",
    "loopback",
    "proc",
)
DISK = Directory(path="/here", kind="ext4", errno=0, size=100 << 30, inodes=1_000_000)


def machine(*, until: Step | None = None, refused: dict[Step, int] | None = None, **changes: object) -> Observations:
    """A machine where everything works for a plain user, except the `refused` steps. `until` is the last step that was tried."""
    steps = STEPS if until is None else STEPS[: STEPS.index(until) + 1]
    tried = {step: (refused or {}).get(step, 0) for step in steps}
    observations = Observations(
        kernel="6.1.0-18-amd64", uid=1000, admin=False, seccomp=0, userns_clone=None, max_user_namespaces=60000,
        apparmor=None, store=DISK, runs=DISK, tried=tried,
    )  # fmt: skip
    return msgspec.structs.replace(observations, **changes)


def get(findings: tuple[Finding, ...], name: str) -> Finding:
    (finding,) = (finding for finding in findings if finding.name == name)
    return finding


def test_a_suitable_machine_has_no_problems() -> None:
    findings = diagnosis.diagnose(machine())
    assert [(finding.name, finding.state, finding.fix) for finding in findings if finding.state != "ok"] == []
    assert diagnosis.works(findings)
    assert len(findings) == 14


def test_alternatives_are_offered_only_if_just_isolation_is_blocked() -> None:
    blocked = machine(until="user namespace", refused={"user namespace": errno.ENOSPC}, max_user_namespaces=0)
    findings = diagnosis.diagnose(blocked)
    assert get(findings, "user namespace").fix == f"{diagnosis.ADMINISTRATOR}sysctl -w user.max_user_namespaces=15000"
    rebuild, docker, host = diagnosis.alternatives(findings, engine=True)
    assert ("rebuild" in rebuild, "--runner docker" in docker, "--runner host" in host) == (True, True, True)
    assert diagnosis.alternatives(findings, engine=False) == (rebuild, host)
    full = msgspec.structs.replace(blocked, store=msgspec.structs.replace(DISK, errno=errno.ENOSPC))
    for observations in (machine(), full):
        assert diagnosis.alternatives(diagnosis.diagnose(observations), engine=True) == ()


def test_root_without_idmapped_mounts_is_a_fallback() -> None:
    observations = machine()
    tried = {step: number for step, number in observations.tried.items() if not step.startswith("user")}
    root = msgspec.structs.replace(observations, uid=0, admin=True, tried=tried)
    assert {finding.state for finding in diagnosis.diagnose(root)} == {"ok"}
    refused = tried | {"other user": errno.EINVAL}
    finding = get(diagnosis.diagnose(msgspec.structs.replace(root, tried=refused)), "other user")
    assert (finding.state, "root in a run is root on this machine" in finding.text) == ("fallback", True)


@pytest.mark.parametrize(
    ("observed", "text", "fix"),
    [
        (machine(until="user namespace", refused={"user namespace": errno.EPERM}, userns_clone=0),
         "kernel.unprivileged_userns_clone is 0", "kernel.unprivileged_userns_clone=1"),
        (machine(until="user namespace", refused={"user namespace": errno.ENOSPC}, max_user_namespaces=0),
         "user.max_user_namespaces is 0", "user.max_user_namespaces=15000"),
        (machine(until="user namespace", refused={"user namespace": errno.ENOSPC}), "the limit is reached (user.max_user_namespaces is 60000)", "user.max_user"),
        (machine(until="user namespace", refused={"user namespace": errno.EPERM}, seccomp=2), "a seccomp filter, probably of a container engine, refuses it", "seccomp=unconfined"),
        (machine(until="user namespace", refused={"user namespace": errno.EACCES}, apparmor=1), "AppArmor", "apparmor_restrict_unprivileged_userns=0"),
        (machine(until="user map", refused={"user map": errno.EPERM}, apparmor=1), "AppArmor does not allow it", "apparmor_restrict"),
        (machine(until="user map", refused={"user map": errno.EPERM}), "uid 1000 cannot be mapped", "as root"),
        (machine(until="user namespace", refused={"user namespace": errno.EINVAL}), "does not support user namespaces", "CONFIG_USER_NS"),
        (machine(until="user namespace", refused={"user namespace": errno.EPERM}, kernel="3.2.0"), "Linux 3.2.0 does not allow it to plain users", "as root"),
        (machine(until="user namespace", refused={"user namespace": errno.EPERM}), "chroot", "as root"),
    ],
)  # fmt: skip
def test_each_cause_of_a_refused_user_namespace_has_its_fix(observed: Observations, text: str, fix: str) -> None:
    findings = diagnosis.diagnose(observed)
    (finding,) = (finding for finding in findings if finding.state == "blocked")
    assert (text in finding.text, fix in finding.fix) == (True, True), finding
    assert not diagnosis.works(findings)
    assert not {"namespaces", "mounts", "root on disk"} & {finding.name for finding in findings}


def test_apparmor_that_allows_a_user_namespace_but_no_mounts_is_diagnosed() -> None:
    """On Ubuntu 24.04 the namespace can be made, but has no capabilities."""
    findings = diagnosis.diagnose(machine(until="mounts", refused={"mounts": errno.EACCES}, apparmor=1))
    assert "AppArmor" in get(findings, "mounts").text
    assert "apparmor_restrict_unprivileged_userns=0" in get(findings, "mounts").fix


def test_a_container_that_refuses_mounts_is_diagnosed() -> None:
    findings = diagnosis.diagnose(machine(until="mounts", refused={"mounts": errno.EPERM}, seccomp=2))
    assert get(findings, "mounts").state == "blocked"
    assert "seccomp=unconfined" in get(findings, "mounts").fix


@pytest.mark.parametrize("step", ["namespaces", "network namespace"])
def test_refused_namespaces_block_runs(step: Step) -> None:
    findings = diagnosis.diagnose(machine(until=step, refused={step: errno.EPERM}))
    assert get(findings, step).state == "blocked"
    assert not diagnosis.works(findings)


ALL_OVERLAYS: dict[Step, int] = {"root on disk": errno.EPERM, "workspace": errno.EPERM}


@pytest.mark.parametrize(
    ("observed", "root", "workspace", "fix"),
    [
        (machine(refused=ALL_OVERLAYS, kernel="5.4.0-150-generic"), "Linux 5.4.0-150-generic does not allow it", "5.4.0", "Linux 5.11"),
        (machine(refused={"root on disk": errno.EINVAL, "workspace": errno.EINVAL}, runs=msgspec.structs.replace(DISK, kind="overlay")),
         "upper layer is in memory", "an upper layer on overlay is not supported", "local disk"),
        (machine(refused={"root on disk": errno.EINVAL, "workspace": errno.EINVAL}, runs=msgspec.structs.replace(DISK, kind="nfs4")),
         "upper layer is in memory", "an upper layer on nfs4 is not supported", "exec --runs"),
        (machine(refused=dict.fromkeys(ALL_OVERLAYS, errno.ENODEV)), "linked or copied once", "does not have the overlay file system", "modprobe overlay"),
        (machine(refused=ALL_OVERLAYS | {"hard link": errno.EPERM}), "copied once", "EPERM on ext4", "ext4, xfs or btrfs"),
    ],
)  # fmt: skip
def test_refused_overlay_is_a_fallback(observed: Observations, root: str, workspace: str, fix: str) -> None:
    findings = diagnosis.diagnose(observed)
    assert diagnosis.works(findings)
    first, second = get(findings, "root on disk"), get(findings, "workspace")
    assert (first.state, root in first.text) == ("fallback", True), first
    assert (second.state, workspace in second.text, fix in second.fix) == ("fallback", True, True), second


def test_refused_proc_whiteouts_and_hard_links_are_fallbacks() -> None:
    refused: dict[Step, int] = {"proc": errno.EPERM, "removal": errno.EPERM, "hard link": errno.EPERM}
    findings = diagnosis.diagnose(machine(refused=refused))
    assert [finding.name for finding in findings if finding.state == "fallback"] == ["proc", "removal", "hard link"]
    assert diagnosis.works(findings)


def test_a_refused_loopback_interface_blocks_runs() -> None:
    assert not diagnosis.works(diagnosis.diagnose(machine(refused={"loopback": errno.EPERM})))


@pytest.mark.parametrize(
    ("changes", "state", "text"),
    [
        ({"errno": errno.ENOSPC, "size": 0}, "blocked", "cannot be written: ENOSPC"),
        ({"errno": errno.EACCES}, "blocked", "cannot be written: EACCES"),
        ({"size": 1 << 20}, "fallback", "0.0 GiB and 1000000 inodes free"),
        ({"inodes": 10}, "fallback", "10 inodes"),
    ],
)
def test_full_or_unwritable_directories_are_reported(changes: dict[str, int], state: str, text: str) -> None:
    directory = msgspec.structs.replace(DISK, **changes)
    findings = diagnosis.diagnose(machine(runs=directory))
    finding = get(findings, "runs")
    assert (finding.state, text in finding.text) == (state, True), finding


def test_a_step_that_is_missing_without_a_reason_blocks_runs() -> None:
    findings = diagnosis.diagnose(machine(until="mounts"))
    assert (get(findings, "memory").state, diagnosis.works(findings)) == ("blocked", False)
