"""`exec true`, from the start of the command to its end, against bwrap and, where an engine answers, docker run."""

from __future__ import annotations

import io
import shutil
import subprocess
import tarfile
from pathlib import Path

import parts

IMAGE = "repro-env-bench-true"


def docker_image() -> bool:
    """An image that holds `true` and the libraries it needs. False when no engine answers."""
    if not shutil.which("docker") or subprocess.run(["docker", "info"], capture_output=True, check=False).returncode:
        return False
    program = Path(shutil.which("true") or "/bin/true").resolve()
    listed = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w") as archive:
        archive.add(program, "true")
        for path in (word for line in listed.splitlines() for word in line.split() if word.startswith("/")):
            archive.add(Path(path).resolve(), path.lstrip("/"))
    return not subprocess.run(
        ["docker", "import", "-", IMAGE], input=held.getvalue(), capture_output=True, check=False
    ).returncode


def main(count: int) -> list[parts.Row]:
    directory = parts.environment(torch=False)
    store = parts.fresh(parts.BUILD / "exec-store")
    env = parts.environ(store)
    parts.run([parts.TOOL, "capture", "--python", directory / ".venv" / "bin" / "python"], env=env, cwd=directory)
    parts.run([parts.TOOL, "rebuild"], env=env, cwd=directory)
    train: list[str | Path] = [parts.TOOL, "exec", "train.py"]
    first = parts.run(train, env=env, cwd=directory)
    later = parts.median(3, lambda: parts.run(train, env=env, cwd=directory))
    others: dict[str, list[str | Path]] = {}
    if shutil.which("bwrap"):
        others["bwrap"] = ["bwrap", "--unshare-all", "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", "true"]
    if docker_image():
        others["docker run"] = ["docker", "run", "--rm", "--network=none", IMAGE, "/true"]
    ours, times = [], {name: list[float]() for name in others}
    for _ in range(max(count, 7)):  # in turn, so that all see the same load
        ours.append(parts.run([parts.TOOL, "exec", "true"], env=env, cwd=directory))
        for name, words in others.items():
            times[name].append(parts.run(words))
    mine = sorted(ours)[len(ours) // 2]
    rows = [
        parts.limit("`--help`", parts.median(7, lambda: parts.run([parts.TOOL, "--help"])), 0.1),
        parts.limit(
            "`exec true`, processor time",
            parts.median(7, lambda: parts.processor([parts.TOOL, "exec", "true"], env=env, cwd=directory)),
            0.25,
        ),
        parts.Row(
            "the first `exec train.py` of an image against a later one",
            f"{first:.2f} s",
            f"{later:.2f} s",
            first / later,
            "at most 1.5, and 1 s",
            first <= 1.5 * later + 1,
        ),
    ]
    for name, seconds in times.items():
        other = sorted(seconds)[len(seconds) // 2]
        goal = 1.0 if name == "docker run" else None
        rows.append(
            parts.Row(
                f"`exec true` (with the source's snapshot and the record) against `{name}`",
                f"{mine * 1000:.0f} ms",
                f"{other * 1000:.0f} ms",
                mine / other,
                f"at most {goal}" if goal else "none",
                goal is None or mine / other <= goal,
            )
        )
    if not times:
        rows.append(
            parts.Row(
                "`exec true`; neither bwrap nor an engine is here to compare", f"{mine * 1000:.0f} ms", "", 1.0, "none", True
            )
        )
    return rows


if __name__ == "__main__":
    parts.report(main(parts.arguments(__doc__).count))
