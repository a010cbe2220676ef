"""One case from its making to its verdict: captured here, everything gone, rebuilt from `repro/` into a store that knows nothing."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

from repro_env.io.files import remove_tree
from tests import commands
from tests.e2e import parts
from tests.fidelity import compare
from tests.fidelity.case import Case
from tests.fidelity.ground import Ground

INSIDE = Path(__file__).with_name("inside.py")
MARK = "\n@@fidelity@@"
SEED = "0"
FAILURES = range(3, 20)
"""Exit codes of ours that say what failed (model/errors.py)."""


class Verdict(NamedTuple):
    verdict: str
    """`identical`, `silent`, or `named`: a failure of ours, a line of the capture on what is not held, or an import that
    fails inside and names what is missing."""
    detail: str
    """The sentence that named it; or the differences."""
    compared: dict[str, int]

    def __str__(self) -> str:
        return f"{self.verdict}: {self.detail}" if self.detail else self.verdict


class Warm(NamedTuple):
    """What a machine has that has captured before: hashes, and the interpreter's and the base's layers. Only to save time."""

    capture: Path
    blobs: list[Path]
    rebuild: Path
    plain: Path
    """For `Ground.kept`."""


class Machine(NamedTuple):
    """Where captures are made and rebuilt. Without `warm` every store is empty."""

    proxy: str
    warm: Warm | None


def facts(at: Ground) -> dict[str, Any]:
    """What the environment is on the host, as its user starts it."""
    done = subprocess.run(
        [str(at.python), "-c", INSIDE.read_text(), *map(str, at.roots)],
        cwd=at.project,
        env=at.environ({**_as_in_runs(), "PYTHONDONTWRITEBYTECODE": "1", **at.variables}),
        capture_output=True,
        timeout=300,
        check=False,
    )
    return read(done.stdout, done.stderr)


def _as_in_runs() -> dict[str, str]:
    """What every run sets, so that it cannot tell the two sides apart (docs/reference.md)."""
    return {"PYTHONHASHSEED": SEED}


def read(out: bytes, err: bytes) -> dict[str, Any]:
    _, mark, output = out.decode("utf-8", "replace").rpartition(MARK)
    assert mark, f"the environment told nothing:\n{out[-2000:]!r}\n{err[-3000:]!r}"
    entries: dict[str, Any] = json.loads(output)
    return entries


def play(case: Case, root: Path, machine: Machine) -> Verdict:
    """The whole story of a case. Raises `AssertionError` when there is no verdict."""
    at = Ground(root / "here", machine.proxy)
    at.kept = machine.warm.plain if machine.warm else None
    try:
        return _played(case, at, root, machine)
    finally:
        at.clear()


def _played(case: Case, at: Ground, root: Path, machine: Machine) -> Verdict:
    case.make(at)
    host = facts(at)
    counted = compare.compared(host)
    assert counted["files"] >= 5, "a case that compares nothing"
    if machine.warm:
        parts.copy_blobs(machine.warm.blobs, at.project, machine.warm.capture)
    captured = _repro_env(
        at,
        machine.warm.capture if machine.warm else root / "store",
        "capture",
        "--python",
        at.named or at.python,
        "--json",
        *at.options,
    )
    if captured.code:
        return _failed("capture", captured, counted)
    answer = json.loads(captured.out)
    lines = [*answer["unknown"], *(f"{entry['path']}: {entry['why']}" for entry in answer["excluded"] if not _usual(entry))]
    repro = root / "there" / "repro"
    shutil.copytree(at.project / "repro", repro)  # what was laid there too: runs make hard links of it
    at.leave(root / "gone")
    try:
        store = root / "empty"
        if machine.warm:
            shutil.copytree(machine.warm.rebuild, store, symlinks=True, copy_function=_link)
        rebuilt = _repro_env(at, store, "rebuild", "--json", cwd=repro.parent)
        if rebuilt.code:
            return _failed("rebuild", rebuilt, counted)
        words: list[str | Path] = ["exec", "--spec", repro, "--seed", SEED, "--frozen", "-c", INSIDE.read_text(), *at.roots]
        ran = _repro_env(at, store, *words, cwd=repro.parent)
        if "repro-env: error" in ran.err:
            return _failed("exec", ran, counted)
        result = compare.differences(host, read(ran.out.encode(), ran.err.encode()))
    finally:
        remove_tree(root / "empty")
        remove_tree(root / "there")
    if not result:
        return Verdict("identical", "", counted)
    failed = all(re.match(r"modules [\w.]+: .* \| \['no', ", line) for line in result)
    named = next((line for line in (*lines, *(result if failed else ())) if case.named and case.named in line), "")
    return Verdict("named", named, counted) if named else Verdict("silent", "\n".join(result[:40]), counted)


def _usual(excluded: dict[str, Any]) -> bool:
    return excluded["path"] in (".venv", "repro", "runs")


def _failed(step: str, done: parts.Done, counted: dict[str, int]) -> Verdict:
    """A failure is named when it is ours: one of our codes, a sentence, and no traceback."""
    sentence = next((line for line in done.err.splitlines() if line.startswith("repro-env: error")), "")
    if done.code not in FAILURES or "Traceback" in done.err or not sentence:
        return Verdict("silent", f"{step} ended with {done.code}, which names nothing:\n{done.err[-3000:]}", counted)
    return Verdict("named", f"{step}: {re.sub(r'^repro-env: error:? ?', '', sentence)} (exit {done.code})", counted)


def _repro_env(at: Ground, store: Path, *words: str | Path, cwd: Path | None = None) -> parts.Done:
    """The installed command, as the user who captures, or (with a directory of its own) as the one who rebuilds elsewhere."""
    there = cwd is not None
    if not there:
        env = at.environ({"REPRO_ENV_STORE": str(store), **at.variables})
    else:
        # No cache of the captured machine: its directory has another name now.
        host = at.instead[0] if at.instead else "gone.test" if at.index_gone else ""
        env = {**(at.environ(host=host) if host else at.environ()), "REPRO_ENV_STORE": str(store), "HOME": str(cwd)}
        if at.index_gone:
            env |= dict.fromkeys(("PIP_PROXY", "HTTP_PROXY"), "http://127.0.0.1:9")
    return commands.run(words, cwd=cwd or at.project, env=env, umask=at.umask)


def warmed(directory: Path, proxy: str) -> Machine:
    """A machine whose stores know the base and the interpreter of a bare venv, and no distribution."""
    at = Ground(directory / "bare", proxy)
    at.venv()
    done = _repro_env(at, directory / "capture", "capture", "--python", at.python)
    assert not done.code, done.err
    done = _repro_env(at, directory / "rebuild", "rebuild", str(at.project / "repro"), cwd=directory)
    assert not done.code, done.err
    remove_tree(directory / "rebuild" / "images")
    for name in ("facts", "blobs"):
        remove_tree(directory / "rebuild" / name)
    return Machine(proxy, Warm(directory / "capture", parts.large_blobs(at.project), directory / "rebuild", directory / "plain"))


def _link(source: str, target: str) -> None:
    os.link(source, target, follow_symlinks=False)
