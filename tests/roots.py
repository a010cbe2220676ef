"""A root of another Debian, with real parts that this machine's Debian lacks: Apptainer 1.4, Docker with both stores, Slurm 24.11.

    python -m tests.roots make               make the root, and the environment of the tests in it, unless they are there
    python -m tests.roots enter COMMAND...   run a command in it, as root; with `--user` as its plain user, `ann`
    python -m tests.roots check [GROUP...]   run the tests of `GROUPS` in it; `--keep` writes the result to benchmarks/results/

All need uid 0. The root is below build/parts, or below $REPRO_ENV_TEST_PARTS, which several checkouts may share. In it, the checkout
has the same path, `python` and `repro-env` are those of build/parts-venv, and /tmp, /run and the data of engines are in memory:
nothing is left of them at the end.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import fcntl
import json
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

CHECKOUT = Path(__file__).resolve().parents[1]
VENV = CHECKOUT / "build" / "parts-venv"
RELEASE = "trixie"
USER = 1001
"""The plain user of the root. It has 65,536 subordinate IDs."""
BASE = ("python3", "python3-venv", "python3-pip", "git", "ca-certificates", "binutils", "procps")
PARTS = ("docker.io", "docker-cli", "containerd", "runc", "slurmctld", "slurmd", "slurm-client", "munge", "charliecloud")
NEWER = ("apptainer",)
"""Packages that only the unstable release of Debian has."""
_INSTALL = f"""\
set -e
export DEBIAN_FRONTEND=noninteractive
mirror=$(sed -n 's/^deb \\([^ ]*\\) .*/\\1/p' /etc/apt/sources.list | head -n 1)
echo "deb [check-valid-until=no] $mirror sid main" >/etc/apt/sources.list.d/sid.list
printf 'Package: *\\nPin: release n=sid\\nPin-Priority: 100\\n' >/etc/apt/preferences.d/sid
printf 'path-exclude /usr/share/%s/*\\n' doc man locale >/etc/dpkg/dpkg.cfg.d/small
echo force-unsafe-io >/etc/dpkg/dpkg.cfg.d/fast
printf '#!/bin/sh\\nexit 101\\n' >/usr/sbin/policy-rc.d
chmod 755 /usr/sbin/policy-rc.d
apt-get -qq update
apt-get -qq install -y --no-install-recommends {" ".join(f"{name}/{RELEASE}" for name in PARTS)} {" ".join(NEWER)} uidmap
apt-get clean
useradd -m -u {USER} ann
"""
_ENTER = """\
root=$1
shift
mount --bind "$root" "$root"
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
mount --rbind /sys "$root/sys"
for directory in run tmp var/lib/docker var/lib/containerd; do
    mkdir -p "$root/$directory"
    mount -t tmpfs -o mode=755 none "$root/$directory"
done
chmod 1777 "$root/tmp"
for file in /etc/resolv.conf /etc/hosts /etc/ssl/certs/ca-certificates.crt; do
    [ ! -e "$file" ] || { [ -e "$root$file" ] || : >"$root$file"; mount --bind -o ro "$file" "$root$file"; }
done
mkdir -p "$root$checkout"
mount --rbind "$checkout" "$root$checkout"
cd "$root"
mkdir -p .old
pivot_root . .old # not chroot, in which no user namespace can be made
umount -l /.old
cd "$checkout"
exec env -i "$@"
"""


class Group(NamedTuple):
    """Tests that run in the root."""

    tests: Sequence[str]
    """Arguments for pytest."""
    store: str = ""
    """The store of the Docker that they need: `containerd` or `overlay2`."""


_ENGINE = (
    "tests/delivery/targets/test_engine.py",
    "tests/e2e/test_exec_docker.py",
    "tests/sandbox/test_runners.py",
    "-k",
    "(docker or test_engine) and not podman",
)
GROUPS = {
    "docker, containerd": Group(_ENGINE, "containerd"),
    "docker, overlay2": Group(_ENGINE, "overlay2"),
    "apptainer": Group(("tests/sandbox/test_runners.py", "tests/e2e/test_hpc.py", "-k", "apptainer")),
    "slurm": Group(("tests/e2e/test_slurm.py",)),
    "slurm, three nodes": Group(("tests/e2e/test_slurm_trouble.py",)),
}


def root() -> Path:
    return Path(os.environ.get("REPRO_ENV_TEST_PARTS") or CHECKOUT / "build" / "parts") / RELEASE


def make() -> None:
    """Make the root and its environment, unless they are there as this file describes them."""
    place = root()
    place.parent.mkdir(parents=True, exist_ok=True)
    stamp = " ".join([RELEASE, *BASE, _INSTALL])
    with (place.parent / f"{RELEASE}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        made = place / "made"
        if not made.exists() or made.read_text() != stamp:
            print(f"making {place}", flush=True)
            subprocess.run(["rm", "-rf", "--one-file-system", place], check=True)
            words = ["--variant=minbase", f"--include={','.join(BASE)}", RELEASE, str(place), *mirror()]
            for command in (["debootstrap", *words], enter("sh", "-c", _INSTALL)):
                done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
                assert done.returncode == 0, f"{place} cannot be made:\n{done.stdout[-3000:]}"
            made.write_text(stamp)
    uv = CHECKOUT / "build" / "venv" / "bin" / "uv"
    subprocess.run(enter("lockfiles/venv.sh", str(VENV), "test", "project", UV=str(uv), PYTHON="/usr/bin/python3"), check=True)


def enter(*command: str, user: bool = False, **more: str) -> list[str]:
    """The words that run a command in the root, with this process's variables except those that name its own places."""
    own = re.compile(r"PATH$|HOME$|TMPDIR$|VIRTUAL_ENV|PYTHON|DOCKER_|XDG_|REPRO_ENV_TEST_")
    environ = {name: value for name, value in os.environ.items() if not own.match(name)}
    environ |= {"PATH": f"{VENV}/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/home/ann" if user else "/root", "LANG": "C.UTF-8"}
    environ.setdefault("PIP_INDEX_URL", _index())
    variables = [f"{name}={value}" for name, value in {**environ, **more}.items() if value]
    who = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--init-groups", "--"] if user else []
    unshare = ["unshare", "--mount", "--uts", "--pid", "--fork", "--kill-child", "--propagation", "private"]
    script = f"checkout={shlex.quote(str(CHECKOUT))}\n{_ENTER}"
    return [*unshare, "sh", "-ec", script, "sh", str(root()), *variables, *who, *command]


def _index() -> str:
    """The index that this machine's pip is configured with, for the pip in the root."""
    words = [sys.executable, "-m", "pip", "config", "get", "global.index-url"]
    return subprocess.run(words, capture_output=True, text=True, check=False).stdout.strip()


def mirror() -> list[str]:
    """The mirror of Debian that this machine uses. Elsewhere, debootstrap has a default."""
    words = ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Label: Debian", "Created-By: Packages"]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()[:1]


@contextlib.contextmanager
def docker(store: str) -> Iterator[str]:
    """In the root: start a Docker engine with this store. Yields its address."""
    settings = {
        "features": {"containerd-snapshotter": store == "containerd"},
        "iptables": False,
        "ip6tables": False,
        "bridge": "none",
    }
    Path("/run/daemon.json").write_text(json.dumps(settings))
    socket = Path("/run/containerd/containerd.sock")
    dockerd = ["dockerd", "--config-file", "/run/daemon.json", "--containerd", str(socket), "--group", "root"]
    with contextlib.ExitStack() as stack:
        for command, ready in ((["containerd"], socket), (dockerd, Path("/run/docker.sock"))):
            log = Path(f"/run/{command[0]}.log")
            file = stack.enter_context(log.open("wb"))
            process = stack.enter_context(subprocess.Popen(command, stdout=file, stderr=file))
            stack.callback(process.terminate)
            deadline = time.monotonic() + 60
            while not ready.exists():
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < deadline, log.read_text()
                time.sleep(0.05)
        yield "unix:///run/docker.sock"


def check(names: Sequence[str], *, keep: bool) -> int:
    """Run the tests of these groups, or of all. Returns 1 if one failed, or if a group ran none."""
    results = {name: _check(name) for name in names or GROUPS}
    if keep:
        listed = subprocess.run(enter("dpkg-query", "-W", *PARTS, *NEWER), check=True, capture_output=True, text=True).stdout
        date = f"{datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d}"
        content = {"date": date, "versions": dict(line.split("\t") for line in listed.splitlines()), "groups": results}
        (CHECKOUT / "benchmarks" / "results" / f"{date}-parts.json").write_text(json.dumps(content, indent=1) + "\n")
    return int(any(result["failed"] or not result["passed"] for result in results.values()))


def _check(name: str) -> dict[str, list[str]]:
    report = CHECKOUT / "build" / f"parts {name}.xml"
    report.unlink(missing_ok=True)
    print(f"{name}:", flush=True)
    subprocess.run(enter("python", "-m", "tests.roots", "inside", name, str(report), CI="true"), check=False)
    result: dict[str, list[str]] = {"passed": [], "failed": [], "skipped": []}
    for case in ElementTree.parse(report).iter("testcase") if report.exists() else ():
        kinds = {child.tag for child in case}
        kind = "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"
        result[kind].append(f"{case.get('classname')}.{case.get('name')}")
    return result


def inside(name: str, report: str) -> int:
    """In the root: run the tests of a group with the engine that they need."""
    group = GROUPS[name]
    with contextlib.ExitStack() as stack:
        if group.store:
            os.environ["DOCKER_HOST"] = stack.enter_context(docker(group.store))
        words = [sys.executable, "-m", "pytest", "-q", "-m", "not soak", "-p", "no:cacheprovider", f"--junitxml={report}"]
        return subprocess.run([*words, *group.tests], check=False).returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="do", required=True)
    commands.add_parser("make")
    entering = commands.add_parser("enter")
    entering.add_argument("--user", action="store_true")
    entering.add_argument("command", nargs=argparse.REMAINDER)
    checking = commands.add_parser("check")
    checking.add_argument("--keep", action="store_true")
    checking.add_argument("group", nargs="*")
    commands.add_parser("inside").add_argument("words", nargs=2)
    given = parser.parse_args()
    if given.do == "inside":
        return inside(*given.words)
    assert os.geteuid() == 0, "the root can only be made and entered by uid 0"
    make()
    if given.do == "enter":
        return subprocess.run(enter(*given.command, user=given.user), check=False).returncode
    return check(given.group, keep=given.keep) if given.do == "check" else 0


if __name__ == "__main__":
    sys.exit(main())
