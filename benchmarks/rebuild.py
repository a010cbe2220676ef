"""Rebuild from local wheels to ready to run, against `uv pip install` of the same wheels; with nothing changed; memory."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

import parts

OLD = parts.BUILD / "rebuild-old"


def move_away(path: Path) -> None:
    """Keep a tree until the end: ext4 without a journal does not reuse inodes that were freed shortly before, and searches long."""
    OLD.mkdir(parents=True, exist_ok=True)
    if path.exists():
        path.rename(OLD / f"{path.name}-{time.monotonic_ns()}")


def wheels(directory: Path, store: Path, nowhere: dict[str, str]) -> list[Path]:
    """Every wheel of the captured environment as a file: a rebuild that finds them nowhere on this machine fetches them."""
    hidden = directory / ".venv-hidden"
    (directory / ".venv").rename(hidden)
    try:
        parts.run([parts.TOOL, "rebuild"], env=parts.environ(store, nowhere), cwd=directory)
    finally:
        hidden.rename(directory / ".venv")
    spec = json.loads((directory / "repro" / "spec.json").read_text())
    local = parts.fresh(parts.BUILD / "wheels")
    local.mkdir()
    for one in spec["identity"]["distributions"]:
        digest = one["sha256"].removeprefix("sha256:")
        held = [path for path in (store / "blobs" / digest, directory / "repro" / "blobs" / digest) if path.is_file()]
        shutil.copy(held[0], local / one["filename"])
    return sorted(local.iterdir())


def main(count: int, *, torch: bool) -> list[parts.Row]:
    directory = parts.environment(torch=torch)
    python = directory / ".venv" / "bin" / "python"
    store = parts.fresh(parts.BUILD / "rebuild-store")
    caches = parts.BUILD / "no-caches"
    nowhere = {"PIP_CACHE_DIR": str(caches / "pip"), "UV_CACHE_DIR": str(caches / "uv"), "XDG_CACHE_HOME": str(caches)}
    parts.fresh(directory / "repro")
    parts.run(
        [parts.TOOL, "capture", "--python", python], env=parts.environ(parts.fresh(parts.BUILD / "other-store")), cwd=directory
    )
    local = wheels(directory, store, nowhere)

    def only_wheels() -> None:
        """The store keeps the wheels alone: every layer and image has to be made."""
        for part in ("layers", "images", "merged"):
            move_away(store / part)

    def ours() -> float:
        hidden = directory / ".venv-hidden"
        (directory / ".venv").rename(hidden)
        try:
            return parts.run([parts.TOOL, "rebuild"], env=parts.environ(store, nowhere), cwd=directory)
        finally:
            hidden.rename(directory / ".venv")

    uv = Path(parts.TOOL).with_name("uv")
    target, cache = parts.BUILD / "uv-target", parts.BUILD / "uv-cache"

    def empty() -> None:
        move_away(target)
        move_away(cache)

    install: list[str | Path] = [
        uv,
        "pip",
        "install",
        "--quiet",
        "--compile-bytecode",
        "--offline",
        "--no-deps",
        "--no-index",
        "--python",
        python,
        "--target",
        target,
    ]

    def theirs() -> float:
        return parts.run([*install, *local], env={**parts.environ(store), "UV_CACHE_DIR": str(cache)})

    times: dict[str, list[float]] = {"ours": [], "uv": []}
    for _ in range(count):  # in turn, so that both see the same load
        only_wheels()
        times["ours"].append(ours())
        empty()
        times["uv"].append(theirs())
    mine, other = sorted(times["ours"])[count // 2], sorted(times["uv"])[count // 2]
    rows = [
        parts.Row(
            f"rebuild from {len(local)} local wheels, empty store, until the image is ready to run (with base, interpreter and bytecode),"
            " against `uv pip install --compile-bytecode` of the same wheels into an empty directory with an empty cache",
            f"{mine:.2f} s",
            f"{other:.2f} s",
            mine / other,
            "at most 0.9",
            mine <= 0.9 * other,
        )
    ]
    ours()
    again = parts.median(max(count, 5), lambda: parts.run([parts.TOOL, "rebuild"], env=parts.environ(store), cwd=directory))
    rows.append(
        parts.Row(
            "rebuild again, nothing changed, against 0.2 s", f"{again:.3f} s", "0.2 s", again / 0.2, "under 1.0", again < 0.2
        )
    )
    only_wheels()
    most = parts.peak([parts.TOOL, "rebuild"], env=parts.environ(store), cwd=directory)
    parts.fresh(OLD)
    what = "peak memory of a rebuild, all processes together" + (", torch in the environment" if torch else "")
    rows.append(parts.Row(what, f"{most / 1e6:.0f} MB", "300 MB", most / 300e6, "under 1.0", most < 300e6))
    return rows


if __name__ == "__main__":
    options = parts.arguments(__doc__)
    parts.report(main(min(options.count, 3), torch=not options.no_torch))
