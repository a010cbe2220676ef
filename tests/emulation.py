"""A root of Debian for arm64, whose programs an emulator runs: captures, rebuilds and runs on another architecture.

    python -m tests.emulation            make the root below build/parts (three minutes), and run `SCRIPT` in it (two to seven)
    python -m tests.emulation --keep     write the result to benchmarks/results/, too
    python -m tests.emulation COMMAND... run a command in it

Needs uid 0, `debootstrap` and Linux 6.7, where a user namespace has binary formats of its own: the machine's are not changed. The
emulator comes from the root of `tests.roots`. Emulated programs are some twenty times slower.
"""

from __future__ import annotations

import datetime
import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path

from repro_env.sandbox import kernel
from tests import roots

RELEASE = roots.RELEASE
LOCK = roots.CHECKOUT / "lockfiles" / "tool.txt"
_FORMAT = (
    r":arm64:M::\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00"
    r":\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff:{}:OCF"
)
"""The line for binfmt_misc: programs of arm64, with the emulator opened once (F), for every namespace."""
_MODEL = "cortex-a57"
"""With the default processor of qemu 10, OpenBLAS computes wrong products."""
SCRIPT = """\
set -ex
python3 -m venv --without-pip /tmp/tool
printf '%s\\n' "$CHECKOUT" "$PACKAGES" >/tmp/tool/lib/python3.13/site-packages/tool.pth
repro() { env -u CHECKOUT -u PACKAGES /tmp/tool/bin/python -m repro_env "$@"; }
mkdir /tmp/project && cd /tmp/project
python3 -m venv --without-pip .venv
cp -r "$PACKAGES"/numpy* .venv/lib/python3.13/site-packages/
cat >train.py <<'END'
import platform, random
import numpy as np
a = np.arange(12.0).reshape(3, 4)
assert (a @ a.T).tolist() == [[14, 38, 62], [38, 126, 214], [62, 214, 366]], a @ a.T
with open("out.txt", "w") as file:
    print(platform.machine(), np.random.rand(), random.random(), np.linalg.svd(a)[1].tolist(), file=file)
END
repro capture --env QEMU_CPU --env OPENBLAS_NUM_THREADS
repro rebuild
repro exec train.py
repro verify
repro check
cat runs/latest/files/out.txt
grep -q ^aarch64 runs/latest/files/out.txt
"""


def place() -> Path:
    return roots.root().with_name(f"{RELEASE}-arm64")


def make() -> None:
    """Make the root, the emulator, and the packages of `SCRIPT`, unless they are there."""
    root = place()
    with root.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (root / "made").exists():
            return
        roots.make()
        print(f"making {root}", flush=True)
        subprocess.run(["rm", "-rf", "--one-file-system", root], check=True)
        include = "--include=python3,python3-venv,ca-certificates"
        words = ["--foreign", "--arch=arm64", "--variant=minbase", include, RELEASE, str(root), *roots.mirror()]
        _run(["debootstrap", *words])
        # Its second stage takes an hour when it is emulated: unpacked packages are enough.
        archives = str(root / "var/cache/apt/archives")
        _run(["dpkg", f"--root={root}", "--force-all", "--force-architecture", "--unpack", "--recursive", archives])
        status = root / "var/lib/dpkg/status"
        status.write_text(status.read_text().replace("install ok unpacked", "install ok installed"))
        if (root / "proc").is_symlink():  # debootstrap makes one in a container
            (root / "proc").unlink()
            (root / "proc").mkdir()
        for path in (root / "etc/passwd", root / "etc/group"):
            path.write_text(f"root:x:0:{'0:root:/root:/bin/sh' if path.name == 'passwd' else ''}\n")
        for line in ("apt-get -qq download qemu-user", "dpkg -x qemu-user_*.deb ."):
            directory = roots.CHECKOUT / "build" / "emulator"
            directory.mkdir(exist_ok=True)
            _run(roots.enter("sh", "-c", f"cd {directory} && {line}"))
        pip = [sys.executable, "-m", "pip", "install", "-qq", "--no-deps", "--only-binary=:all:", "--python-version=3.13"]
        pip += ["--platform=manylinux_2_17_aarch64", "--platform=manylinux_2_28_aarch64", f"--target={packages()}"]
        _run([*pip, "--require-hashes", "-r", str(LOCK)])
        _run([*pip, "numpy"])
        (root / "made").touch()


def packages() -> Path:
    return roots.CHECKOUT / "build" / "emulator" / "packages"


def _run(command: list[str]) -> None:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    assert done.returncode == 0, f"{command[0]} failed:\n{done.stdout[-3000:]}"


def run(*command: str) -> int:
    """Run a command in the root. Returns its exit code."""
    is_ready, ready = os.pipe()
    is_mapped, mapped = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            kernel.unshare(kernel.CLONE_NEWUSER)
            os.write(ready, b"1")
            os.read(is_mapped, 1)
            kernel.unshare(kernel.CLONE_NEWNS | kernel.CLONE_NEWPID)
            first = os.fork()
            if first == 0:
                _enter(place())
                environ = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LANG": "C.UTF-8", "QEMU_CPU": _MODEL}
                environ |= {"CHECKOUT": str(roots.CHECKOUT), "PACKAGES": str(packages()), "PIP_NO_INDEX": "1"}
                environ |= {"PYTHONDONTWRITEBYTECODE": "1", "OPENBLAS_NUM_THREADS": "1"}
                os.execve(command[0], command, environ)
            os._exit(os.waitstatus_to_exitcode(os.waitpid(first, 0)[1]) & 255)
        finally:
            os._exit(70)
    os.read(is_ready, 1)
    for name in ("uid_map", "gid_map"):
        Path(f"/proc/{child}/{name}").write_text("0 0 65536")
    os.write(mapped, b"1")
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _enter(root: Path) -> None:
    """As PID 1 of the new namespaces: register the emulator, and make `root` the root. No emulated program takes part."""
    kernel.mount("", "/", flags=kernel.MS_REC | kernel.MS_PRIVATE)
    kernel.mount("proc", "/proc", "proc")
    formats = roots.CHECKOUT / "build" / "emulator" / "formats"
    formats.mkdir(exist_ok=True)
    kernel.mount("binfmt_misc", str(formats), "binfmt_misc")
    emulator = roots.CHECKOUT / "build" / "emulator" / "usr/bin/qemu-aarch64"
    (formats / "register").write_bytes(_FORMAT.format(emulator).encode())
    kernel.bind(str(root), str(root))
    kernel.mount("proc", f"{root}/proc", "proc")
    kernel.bind(str(formats), f"{root}/proc/sys/fs/binfmt_misc")
    checkout = Path(f"{root}{roots.CHECKOUT}")
    checkout.mkdir(parents=True, exist_ok=True)
    for source in ("/dev", "/sys", str(roots.CHECKOUT)):
        kernel.bind(source, f"{root}{source}")
    for name in ("tmp", "run"):
        kernel.mount("tmpfs", f"{root}/{name}", "tmpfs", options="mode=1777")
    os.chdir(root)
    kernel.pivot_root_here()
    kernel.detach(".")
    os.chdir(roots.CHECKOUT)


def main() -> int:
    assert os.geteuid() == 0, "only uid 0 can make the root and map users in it"
    make()
    if sys.argv[1:] not in ([], ["--keep"]):
        return run(*sys.argv[1:])
    code = run("/bin/sh", "-c", SCRIPT)
    if sys.argv[1:]:
        date = f"{datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d}"
        emulator = next((roots.CHECKOUT / "build" / "emulator").glob("qemu-user_*.deb")).name.split("_")[1].replace("%3a", ":")
        (numpy,) = packages().glob("numpy-*.dist-info")
        content = {
            "date": date,
            "emulator": emulator,
            "processor": _MODEL,
            "numpy": numpy.name.split("-")[1].removesuffix(".dist"),
            "exit_code": code,
        }
        content["commands"] = [line for line in SCRIPT.splitlines() if line.startswith("repro ")]
        (roots.CHECKOUT / "benchmarks" / "results" / f"{date}-arm64.json").write_text(json.dumps(content, indent=1) + "\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
