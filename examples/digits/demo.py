"""The story of `make demo`: capture, train on the host, rebuild, train in the image, compare every output.

Each command is printed before it runs; you can type the same ones. It works in build/demo: `project/` is a copy
of this directory with a virtual environment in it, `host/` and `image/` are what the two trainings wrote.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
DEMO = HERE.parents[1] / "build" / "demo"
PROJECT = DEMO / "project"
TOOL = Path(sys.executable).with_name("repro-env")
SEED = "7"


def run(*words: str) -> None:
    """One repro-env command in the project's directory; its failure ends the demo with its own exit code."""
    print(f"\n$ {shlex.join(('repro-env', *words))}", flush=True)
    start = time.monotonic()
    code = subprocess.run([TOOL, *words], cwd=PROJECT, check=False).returncode
    if code:
        sys.exit(code)
    print(f"  ({time.monotonic() - start:.1f} s)", flush=True)


def files(directory: Path) -> dict[str, str]:
    """Path inside the directory -> sha256, for each file."""
    found = sorted(path for path in directory.rglob("*") if path.is_file()) if directory.is_dir() else []
    return {str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest() for path in found}


def main() -> int:
    start = time.monotonic()
    for made in (PROJECT / "repro", PROJECT / "runs", PROJECT / "outputs", DEMO / "host", DEMO / "image"):
        shutil.rmtree(made, ignore_errors=True)
    shutil.copy2(HERE / "train.py", PROJECT / "train.py")
    print(f"$ cd {os.path.relpath(PROJECT)}")

    run("capture", "--python", ".venv/bin/python", "--seed", SEED)
    run("exec", "--runner", "host", "train.py")
    run("runs", "get", "latest", "--to", "../host")
    print("\n$ rm -r outputs    # on the host a script writes where it stands; in the image, into its run's own directory")
    shutil.rmtree(PROJECT / "outputs", ignore_errors=True)
    run("rebuild")
    run("exec", "train.py")
    run("runs", "get", "latest", "--to", "../image")

    host, image = files(DEMO / "host"), files(DEMO / "image")
    print("\nWhat the two trainings wrote, file by file (sha256 on the host, in the image):")
    same = 0
    for path in sorted(host.keys() | image.keys()):
        left, right = host.get(path, "absent"), image.get(path, "absent")
        same += left == right
        print(f"  {'equal    ' if left == right else 'DIFFERENT'}  {left[:16]:16}  {right[:16]:16}  {path}")
    total = len(host.keys() | image.keys())
    print(f"{same} of {total} files are byte-equal. {time.monotonic() - start:.0f} s in all.")
    if not total or same != total:
        why = "not every file is equal" if total else "nothing was written to compare"
        print(f"The demo failed: {why}", file=sys.stderr)
        return 1
    tool = os.path.relpath(TOOL, PROJECT)
    print(f"The spec: {os.path.relpath(PROJECT / 'repro' / 'spec.json')}")
    print(f"next: cd {os.path.relpath(PROJECT)} && {tool} verify; also: {tool} runs list, {tool} shell")
    return 0


if __name__ == "__main__":
    sys.exit(main())
