"""Every diagnosis from recorded numbers."""

from __future__ import annotations

import errno

import msgspec
import pytest

from repro_env.run import diagnosis
from repro_env.run.diagnosis import Finding
from repro_env.run.observations import Folder, Observations, Step, Tried

STEPS: tuple[Step, ...] = (
    "hard link",
    "user namespace",
    "user map",
    "name spaces",
    "network namespace",
    "mounts",
    "memory",
    "root in memory",
    "workspace",
    "root on disk",
    "removal",
    "loopback",
    "proc",
)
DISK = Folder(path="/here", kind="ext4", errno=0, size=100 << 30, inodes=1_000_000)


def seen(*, until: Step | None = None, refused: dict[Step, int] | None = None, **changes: object) -> Observations:
    """A plain user's machine where everything works but `refused`; `until`: the last step that was tried."""
    steps = STEPS if until is None else STEPS[: STEPS.index(until) + 1]
    tried = tuple(Tried(what=step, errno=(refused or {}).get(step, 0)) for step in steps)
    good = Observations(
        kernel="6.1.0-18-amd64", uid=1000, admin=False, seccomp=0, userns_clone=None, max_user_namespaces=60000,
        apparmor=None, store=DISK, runs=DISK, tried=tried,
    )  # fmt: skip
    return msgspec.structs.replace(good, **changes)


def the(found: tuple[Finding, ...], name: str) -> Finding:
    (one,) = (finding for finding in found if finding.name == name)
    return one


def test_a_good_machine() -> None:
    found = diagnosis.diagnose(seen())
    assert [(one.name, one.state, one.fix) for one in found if one.state != "ok"] == []
    assert diagnosis.works(found)
    assert len(found) == 11


def test_a_machine_that_refuses_isolation_alone_has_other_runners() -> None:
    blocked = seen(until="user namespace", refused={"user namespace": errno.ENOSPC}, max_user_namespaces=0)
    found = diagnosis.diagnose(blocked)
    assert the(found, "user namespace").fix == f"{diagnosis.ADMINISTRATOR}sysctl -w user.max_user_namespaces=15000"
    rebuild, docker, host = diagnosis.alternatives(found, engine=True)
    assert ("rebuild" in rebuild, "--runner docker" in docker, "--runner host" in host) == (True, True, True)
    assert diagnosis.alternatives(found, engine=False) == (rebuild, host)
    full = msgspec.structs.replace(blocked, store=msgspec.structs.replace(DISK, errno=errno.ENOSPC))
    for other in (seen(), full):
        assert diagnosis.alternatives(diagnosis.diagnose(other), engine=True) == ()


def test_root_runs_as_another_user_or_it_is_reported() -> None:
    good = seen()
    tried = tuple(one for one in good.tried if not one.what.startswith("user"))
    root = msgspec.structs.replace(good, uid=0, admin=True, tried=tried)
    assert {one.state for one in diagnosis.diagnose(root)} == {"ok"}
    refused = (*tried, Tried(what="other user", errno=errno.EINVAL))
    found = the(diagnosis.diagnose(msgspec.structs.replace(root, tried=refused)), "user namespace")
    assert (found.state, "root inside is root outside" in found.text) == ("fallback", True)


@pytest.mark.parametrize(
    ("observed", "text", "fix"),
    [
        (seen(until="user namespace", refused={"user namespace": errno.EPERM}, userns_clone=0),
         "kernel.unprivileged_userns_clone is 0", "kernel.unprivileged_userns_clone=1"),
        (seen(until="user namespace", refused={"user namespace": errno.ENOSPC}, max_user_namespaces=0),
         "user.max_user_namespaces is 0", "user.max_user_namespaces=15000"),
        (seen(until="user namespace", refused={"user namespace": errno.ENOSPC}), "no more may be made here (limit 60000", "user.max_user"),
        (seen(until="user namespace", refused={"user namespace": errno.EPERM}, seccomp=2), "a seccomp filter refuses it", "seccomp=unconfined"),
        (seen(until="user namespace", refused={"user namespace": errno.EACCES}, apparmor=1), "AppArmor", "apparmor_restrict_unprivileged_userns=0"),
        (seen(until="user map", refused={"user map": errno.EPERM}, apparmor=1), "AppArmor takes every right", "apparmor_restrict"),
        (seen(until="user map", refused={"user map": errno.EPERM}), "uid 1000 cannot be kept", "as root"),
        (seen(until="user namespace", refused={"user namespace": errno.EINVAL}), "has none", "CONFIG_USER_NS"),
        (seen(until="user namespace", refused={"user namespace": errno.EPERM}, kernel="3.2.0"), "Linux 3.2.0 has none", "as root"),
        (seen(until="user namespace", refused={"user namespace": errno.EPERM}), "chroot", "as root"),
    ],
)  # fmt: skip
def test_why_there_is_no_user_namespace(observed: Observations, text: str, fix: str) -> None:
    found = diagnosis.diagnose(observed)
    one = the(found, "user namespace")
    assert (one.state, text in one.text, fix in one.fix) == ("blocked", True, True), one
    assert not diagnosis.works(found)
    assert [other.name for other in found] == ["user namespace", "store", "runs", "hard links"]


def test_apparmor_that_lets_a_namespace_be_made_and_nothing_be_done_in_it() -> None:
    """Ubuntu 24.04: the namespace is there, its capabilities are not."""
    found = diagnosis.diagnose(seen(until="mounts", refused={"mounts": errno.EACCES}, apparmor=1))
    assert "AppArmor" in the(found, "mounts").text
    assert "apparmor_restrict_unprivileged_userns=0" in the(found, "mounts").fix


def test_a_container_that_may_not_mount() -> None:
    found = diagnosis.diagnose(seen(until="mounts", refused={"mounts": errno.EPERM}, seccomp=2))
    assert the(found, "mounts").state == "blocked"
    assert "seccomp=unconfined" in the(found, "mounts").fix


@pytest.mark.parametrize("step", ["name spaces", "network namespace"])
def test_other_name_spaces_refused(step: Step) -> None:
    found = diagnosis.diagnose(seen(until=step, refused={step: errno.EPERM}))
    assert the(found, "name spaces").state == "blocked"
    assert not diagnosis.works(found)


ALL_OVERLAYS: dict[Step, int] = {"root on disk": errno.EPERM, "root in memory": errno.EPERM, "workspace": errno.EPERM}


@pytest.mark.parametrize(
    ("observed", "root", "workspace", "fix"),
    [
        (seen(refused=ALL_OVERLAYS, kernel="5.4.0-150-generic"), "Linux 5.4.0-150-generic allows it to root alone", "5.4.0", "Linux 5.11"),
        (seen(refused={"root on disk": errno.EINVAL, "workspace": errno.EINVAL}, runs=msgspec.structs.replace(DISK, kind="overlay")),
         "upper side in memory", "file system overlay cannot be its upper side", "local disk"),
        (seen(refused={"root on disk": errno.EINVAL, "workspace": errno.EINVAL}, runs=msgspec.structs.replace(DISK, kind="nfs4")),
         "upper side in memory", "file system nfs4 cannot", "exec --runs"),
        (seen(refused=dict.fromkeys(ALL_OVERLAYS, errno.ENODEV)), "linked once", "no overlay file system", "modprobe overlay"),
        (seen(refused=ALL_OVERLAYS | {"hard link": errno.EPERM}), "copied once", "EPERM on ext4", "ext4, xfs or btrfs"),
    ],
)  # fmt: skip
def test_overlay_refused_is_a_fall_back(observed: Observations, root: str, workspace: str, fix: str) -> None:
    found = diagnosis.diagnose(observed)
    assert diagnosis.works(found)
    one, other = the(found, "root"), the(found, "workspace")
    assert (one.state, root in one.text) == ("fallback", True), one
    assert (other.state, workspace in other.text, fix in other.fix) == ("fallback", True, True), other


def test_smaller_losses_are_fall_backs() -> None:
    refused: dict[Step, int] = {"proc": errno.EPERM, "removal": errno.EPERM, "hard link": errno.EPERM}
    found = diagnosis.diagnose(seen(refused=refused))
    assert [one.name for one in found if one.state == "fallback"] == ["/proc", "removal", "hard links"]
    assert diagnosis.works(found)


def test_no_loopback_blocks() -> None:
    assert not diagnosis.works(diagnosis.diagnose(seen(refused={"loopback": errno.EPERM})))


@pytest.mark.parametrize(
    ("changes", "state", "text"),
    [
        ({"errno": errno.ENOSPC, "size": 0}, "blocked", "is full"),
        ({"errno": errno.EACCES}, "blocked", "cannot be written (EACCES)"),
        ({"size": 1 << 20}, "fallback", "0.0 GiB free"),
        ({"inodes": 10}, "fallback", "10 inodes"),
    ],
)
def test_room(changes: dict[str, int], state: str, text: str) -> None:
    folder = msgspec.structs.replace(DISK, **changes)
    found = diagnosis.diagnose(seen(runs=folder))
    one = the(found, "runs")
    assert (one.state, text in one.text) == (state, True), one
