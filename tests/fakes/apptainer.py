"""Stands for apptainer, which Debian 12 does not have: checks its arguments, and does as root what they say.

Started as `apptainer ...`, with the Python of the tests. The file `ignored` next to it has the options that a site's configuration
ignores, as the real one does with only a warning: `ro`, `net`, `pid`.
"""

from __future__ import annotations

import csv
import ctypes
import fcntl
import json
import os
import socket
import struct
import subprocess
import sys
from pathlib import Path

FLAGS = {
    "--containall",
    "--no-home",
    "--no-mount=hostfs,bind-paths,cwd",
    "--no-init",
    "--no-privs",
    "--pwd=/",
    "--net",
    "--network=none",
}
VERSION = "apptainer version 1.5.3"


def mount(*words: str | Path) -> None:
    subprocess.run(["mount", *map(str, words)], check=True)


def main(words: list[str], ignored: set[str]) -> None:
    if words == ["--version"]:
        print(VERSION)
        return
    assert words.pop(0) == "exec"
    flags, mounts = set[str](), list[dict[str, str]]()
    while words[0].startswith("-"):
        word = words.pop(0)
        if word == "--mount":
            (row,) = csv.reader([words.pop(0)])
            mounts.append(dict(field.partition("=")[::2] for field in row))
            assert mounts[-1].pop("type") == "bind"
            assert set(mounts[-1]) <= {"source", "destination", "ro"}
        else:
            flags.add(word)
    hostname = next(word for word in flags if word.startswith("--hostname="))
    if unknown := flags - FLAGS - {hostname}:
        sys.exit(f'Error for command "exec": unknown flag: {unknown.pop()}')
    assert FLAGS - flags <= {"--net", "--network=none"}
    namespaces = ["--mount", "--ipc", "--uts", "--fork"]
    namespaces += ["--net"] if "--net" in flags and "net" not in ignored else []
    namespaces += ["--pid", "--kill-child"] if "pid" not in ignored else []
    inner = [sys.executable, __file__, "inside", json.dumps([mounts, "ro" in ignored, hostname.partition("=")[2]]), *words]
    os.execvp("unshare", ["unshare", *namespaces, *inner])


def enter(mounts: list[dict[str, str]], ignores_ro: bool, hostname: str, image: str, *command: str) -> None:
    top = Path("/mnt")
    mount("-t", "tmpfs", "tmpfs", top)
    root, upper, work = (top / name for name in ("root", "upper", "work"))
    for directory in (root, upper, work):
        directory.mkdir()
    mount("-t", "overlay", "overlay", "-o", f"lowerdir={image},upperdir={upper},workdir={work}", root)
    for name in ("dev", "proc"):
        (root / name).mkdir(exist_ok=True)
    mount("-t", "tmpfs", "tmpfs", root / "dev")
    mount("-t", "proc", "proc", root / "proc")
    devices = [{"source": path, "destination": path} for path in ("/dev/null", "/dev/urandom")]
    (root / "dev/shm").mkdir()
    for each in (*devices, *mounts):
        target = Path(f"{root}{each['destination']}")
        if Path(each["source"]).is_dir():
            target.mkdir(parents=True, exist_ok=True)
        elif not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            target.touch()
        mount("--bind", each["source"], target)
        if "ro" in each and not ignores_ro:
            mount("-o", "remount,bind,ro", target)
    mount("-o", "remount,ro", root)
    socket.sethostname(hostname)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as interface:
        fcntl.ioctl(interface, 0x8914, struct.pack("16sH22x", b"lo", 1))
    os.chroot(root)
    os.chdir("/")
    ctypes.CDLL(None).prctl(38, 1, 0, 0, 0)  # no_new_privs
    os.execve(command[0], command, {"PATH": "/bin"})


if __name__ == "__main__":
    if sys.argv[1] == "inside":
        enter(*json.loads(sys.argv[2]), *sys.argv[3:])
    main(sys.argv[1:], set(Path(__file__).with_name("ignored").read_text().split()))
