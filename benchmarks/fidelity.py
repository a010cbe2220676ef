"""The trap benchmark of other tools: every case of tests/fidelity, recorded and brought back by each.

Writes benchmarks/results/fidelity.json and the table in benchmarks/README.md, whose column of repro-env is what the tests assert of
each case: they run it, and nothing here runs it again. A tool that only records is judged by what its record brings back: a fresh
environment of the same kind, made at the same path, into which the record is installed.
`--only WORD` runs the cases whose id has the word and keeps the other results; `--no-peers` leaves all but `pip freeze` out.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import parts
import pytest

sys.path.insert(0, str(parts.ROOT))

from repro_env.io.files import atomic_write, remove_tree
from tests.fakes.index import Index
from tests.fidelity import compare, packages, play
from tests.fidelity.case import Case, cases
from tests.fidelity.ground import Ground

RESULTS = parts.ROOT / "benchmarks" / "results" / "fidelity.json"
TABLE = parts.ROOT / "benchmarks" / "README.md"
PEERS = {"wandb": "wandb==0.31.0", "mlflow": "mlflow-skinny==3.17.2", "clearml": "clearml==2.1.12", "reprozip": "reprozip==1.3.2"}
MORE = {"clearml": ("setuptools<81",), "reprozip": ("setuptools<81",), "mlflow": ("numpy", "pandas")}
"""What they need beside: mlflow infers what a model needs by loading it, and that takes NumPy and pandas."""
TOOLS = ("pip freeze", *PEERS)
SHOWN = 300
WIDE = (
    "edited-control", "edited-edited", "edited-stray", "edited-data_after_install", "edited-deleted", "editable-plain_directory",
    "editable-dirty", "editable-reads_beside", "editable-ignored_extension", "installed-vcs", "installed-deleted_wheel",
    "installed-changed_directory", "installed-find_links", "installed-conflicting", "installed-pinned_setuptools",
    "installed-overlap_first", "installed-prerelease", "places-pth", "places-python_path", "kinds-uv_hardlink",
)  # fmt: skip
"""Cases that the peers run too: each of theirs takes half a minute."""


class Judged(NamedTuple):
    verdict: str
    """`identical`, `silent` (it says it is done, and it is another environment), `part` (only what one run touched), `fails`, `n/a`."""
    detail: str


class Stage(NamedTuple):
    """A case that was made and looked at, and where a tool may put things that outlive it."""

    at: Ground
    host: dict[str, Any]
    kept: Path


def imports(stage: Stage) -> list[str]:
    """What a user's code would import."""
    return [name for name, told in stage.host["modules"].items() if told[0] == "yes" and not name.startswith("_")]


def script(stage: Stage) -> Path:
    """A training script: it imports everything that can be imported, and prints what came."""
    names = imports(stage)
    lines = [f"import {name}\nprint({name!r}, getattr({name}, 'VALUE', None))" for name in names]
    path = stage.at.root / "code" / "train.py"
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join(lines) + "\n")
    return path


# -- what each tool records -------------------------------------------------------------------------------------------


def freeze(stage: Stage) -> str:
    return stage.at.run(sys.executable, "-m", "pip", "--python", stage.at.python, "freeze")


def wandb(stage: Stage) -> str:
    code = "import wandb\nrun = wandb.init(project='p', mode='offline')\nrun.finish()\n"
    _with_tool(stage, "wandb", code, WANDB_DIR=str(stage.kept), WANDB_SILENT="true")
    (found,) = stage.kept.glob("wandb/offline-run-*/files/requirements.txt")
    return found.read_text()


def mlflow(stage: Stage) -> str:
    """What a logged model says that it needs: inferred from what its code imports."""
    names = imports(stage)
    code = (
        "import mlflow.pyfunc\nclass Model(mlflow.pyfunc.PythonModel):\n    def predict(self, context, model_input, params=None):\n"
        f"        import {', '.join(names)}\n        return model_input\n"
        f"mlflow.pyfunc.save_model({str(stage.kept / 'model')!r}, python_model=Model(), input_example=['x'])\n"
    )
    _with_tool(stage, "mlflow", code, MLFLOW_TRACKING_URI=f"file://{stage.kept}/runs")
    return (stage.kept / "model" / "requirements.txt").read_text()


def clearml(stage: Stage) -> str:
    path = script(stage)
    path.write_text(
        "from clearml import Task\nTask.set_offline(True)\ntask = Task.init(project_name='p', task_name='t')\n"
        + path.read_text()
        + "task.close()\n"
    )
    _with_tool(stage, "clearml", path, CLEARML_CACHE_DIR=str(stage.kept), CLEARML_CONFIG_FILE=os.devnull)
    (found,) = [*stage.kept.rglob("task.json"), *stage.at.home.rglob("task.json")][:1]
    said: dict[str, Any] = json.loads(found.read_text())
    return str(said["script"]["requirements"]["pip"])


def _with_tool(stage: Stage, tool: str, code: str | Path, **variables: str) -> None:
    """Run code in the case's environment, with the tool beside it: where it is not installed, nothing is added to what is judged."""
    own = stage.at.variables.get("PYTHONPATH", "")
    env = stage.at.environ({**stage.at.variables, **variables, "PYTHONPATH": ":".join(filter(None, (own, str(site(tool)))))})
    words = [str(stage.at.python), *(["-c", code] if isinstance(code, str) else [str(code)])]
    done = subprocess.run(words, cwd=stage.at.project, env=env, capture_output=True, text=True, timeout=240, check=False)
    if done.returncode:
        raise FailedError(_last(done.stderr))


def site(tool: str) -> Path:
    """Where a peer is installed, apart from every environment."""
    directory = parts.BUILD / "peers" / tool
    if not directory.is_dir():
        python = getattr(sys, "_base_executable", sys.executable)
        words = [
            sys.executable,
            "-m",
            "pip",
            "--python",
            python,
            "install",
            "-qq",
            "--target",
            str(directory),
            PEERS[tool],
            *MORE.get(tool, ()),
        ]
        subprocess.run(words, check=True)
    return directory


def without_tool(record: str, tool: str, host: dict[str, Any]) -> str:
    """The record less the lines about the tool's own distributions, which only the benchmark put there."""
    theirs = {_name(path.name.partition("-")[0]) for path in site(tool).glob("*.dist-info")} if tool in PEERS else set()
    theirs = (theirs | {tool}) - {_name(one[0]) for one in host["distributions"]}
    rows = [row for row in record.splitlines() if row.strip() and not row.startswith("#")]
    return "\n".join(row for row in rows if _name(re.split(r"[ =<>@;\[]", row.strip())[0]) not in theirs) + "\n"


def _name(text: str) -> str:
    return re.sub(r"[-_.]+", "-", text).lower()


# -- what it brings back ----------------------------------------------------------------------------------------------


class FailedError(Exception):
    """A tool ended with an error."""


def restored(case: Case, root: Path, proxy: str, tool: str, record: Callable[[Stage], str]) -> Judged:
    """Make the case, have it recorded, take everything away, install the record into a fresh environment, compare."""
    stage = _staged(case, root, proxy)
    at = stage.at
    if not at.fresh:
        return Judged("n/a", "an interpreter that pip may not change")
    try:
        text = without_tool(record(stage), tool, stage.host)
    except (FailedError, AssertionError, ValueError, OSError) as error:
        return Judged("fails", "to record: " + _last(str(error)))
    (root / "requirements.txt").write_text(text)
    at.leave(root / "gone")
    at.project.mkdir(parents=True)
    at.home.mkdir()
    if at.prefix.is_relative_to(at.project):
        # The code itself comes from the user's repository.
        left = shutil.ignore_patterns(at.prefix.relative_to(at.project).parts[0], "repro", "runs")
        shutil.copytree(root / "gone" / "project", at.project, symlinks=True, dirs_exist_ok=True, ignore=left)
    try:
        at.anew()
    except AssertionError as error:
        return Judged("fails", "to make an environment of the same kind: " + _last(str(error)))
    host = "gone.test" if at.index_gone else at.instead[0] if at.instead else None
    words = [sys.executable, "-m", "pip", "--python", str(at.python), "install", "-qq", "-r", str(root / "requirements.txt")]
    env = at.environ(host=host) if host else at.environ()
    if at.index_gone:
        env |= dict.fromkeys(("PIP_PROXY", "HTTP_PROXY"), "http://127.0.0.1:9")
    done = subprocess.run(words, cwd=at.project, env=env, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        return Judged("fails", _last(done.stderr))
    at.variables.clear()
    try:
        found = compare.differences(stage.host, play.facts(at))
    except AssertionError as error:
        return Judged("fails", _last(str(error)))
    return Judged("silent", "\n".join(found[:5])) if found else Judged("identical", "")


def _staged(case: Case, root: Path, proxy: str) -> Stage:
    at = Ground(root / "here", proxy)
    case.make(at)
    (root / "kept").mkdir()
    return Stage(at, play.facts(at), root / "kept")


def reprozip(case: Case, root: Path, proxy: str) -> Judged:
    """Trace the training script, pack, unpack for chroot; the files that the pack holds are compared at their own paths."""
    stage = _staged(case, root, proxy)
    at = stage.at
    python = [getattr(sys, "_base_executable", sys.executable), "-c"]
    env = at.environ({**at.variables, "REPROZIP_USAGE_STATS": "off", "REPROUNZIP_USAGE_STATS": "off"})
    tools = {**at.environ(), "PYTHONPATH": str(site("reprozip")), "REPROZIP_USAGE_STATS": "off"}
    code = "import sys; from reprozip.main import main; sys.argv[0] = 'reprozip'; sys.exit(main())"
    trace = [
        *python,
        f"import sys; sys.path.insert(0, {str(site('reprozip'))!r}); {code}",
        "trace",
        "-d",
        str(root / "trace"),
        "--overwrite",
    ]
    wanted = subprocess.run([at.python, script(stage)], cwd=at.project, env=env, capture_output=True, text=True, check=False)
    for words, surroundings in (
        ([*trace, str(at.python), str(script(stage))], env),
        ([*python, code, "pack", "-d", str(root / "trace"), str(root / "pack.rpz")], tools),
    ):
        done = subprocess.run(words, cwd=at.project, env=surroundings, capture_output=True, text=True, timeout=300, check=False)
        if done.returncode:
            return Judged("fails", _last(done.stderr))
    there = root / "unpacked"
    there.mkdir()
    subprocess.run(["tar", "-xf", str(root / "pack.rpz"), "-C", str(there)], check=True)
    (data,) = there.glob("DATA.tar.gz")
    subprocess.run(["tar", "-xzf", str(data), "-C", str(there)], check=True)
    again = subprocess.run(
        ["chroot", there / "DATA", at.python, script(stage)], env=env, capture_output=True, text=True, timeout=300, check=False
    )
    same = again.stdout == wanted.stdout and not again.returncode
    looked = [at.prefix, *(Path(path) for path in stage.host["path"] if path.startswith(str(at.root)))]
    files = [
        path
        for path in stage.host["files"]
        if any(Path(path).is_relative_to(one) for one in looked) and not compare.left_out(path)
    ]
    held = [path for path in files if os.path.lexists(f"{there}/DATA{path}")]
    told = (
        f"{len(held)} of {len(files)} files are in the pack; the traced script {'prints the same' if same else 'does not work'}"
    )
    return Judged("identical" if len(held) == len(files) and same else "part" if same else "fails", told)


def _last(text: str) -> str:
    rows = [row for row in text.strip().splitlines() if row.strip() and not row.lower().startswith(("warning", "[notice]"))]
    errors = [row for row in rows if "error" in row.lower()]
    return (errors or rows or ["nothing was said"])[-1].strip()[:SHOWN]


RECORDS: dict[str, Callable[[Stage], str]] = {"pip freeze": freeze, "wandb": wandb, "mlflow": mlflow, "clearml": clearml}


# -- all of it --------------------------------------------------------------------------------------------------------


def judge(case: Case, proxy: str, directory: Path, tool: str) -> Judged:
    """What a tool does with a case; directories of this machine by a word in what it said."""
    root = Path(tempfile.mkdtemp(prefix="case-", dir=directory))
    try:
        if tool == "reprozip":
            verdict, detail = reprozip(case, root / "x", proxy)
        else:
            verdict, detail = restored(case, root / "x", proxy, tool, RECORDS[tool])
    except subprocess.TimeoutExpired:
        verdict, detail = "fails", "did not end within minutes"
    except pytest.skip.Exception as reason:
        verdict, detail = "n/a", f"not on this machine: {reason}"
    except FileNotFoundError as error:
        # Nothing but the case itself can make such an environment, and its parts are gone.
        verdict, detail = "n/a", f"no fresh environment of this kind can be made: {Path(str(error.filename)).name} is gone"
    finally:
        remove_tree(root)
    told = re.sub(r"https?://\S+", "<url>", detail.replace(str(root / "x"), "…").replace(sys.base_prefix, "<python>"))
    return Judged(verdict, told[:2000])


def main(only: str, *, peers: bool, missing: bool) -> None:
    written = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"cases": []}
    before = {one["case"]: one for one in written["cases"]}
    rows = []
    with tempfile.TemporaryDirectory(prefix="fidelity-", dir=os.environ.get("REPRO_ENV_BENCH")) as made:
        directory = Path(made)
        packages.publish(directory / "index")
        with Index(directory / "index", yanked=False) as index:
            for case in cases():
                row = before.get(case.id, {"case": case.id})
                if only in case.id and not (missing and "pip freeze" in row):
                    tools = ["pip freeze", *(PEERS if peers and case.id in WIDE else ())]
                    row |= {"title": case.title, **{tool: judge(case, index.proxy, directory, tool)._asdict() for tool in tools}}
                    print(case.id, *(f"{tool}: {row[tool]['verdict']}" for tool in tools), sep=" | ", flush=True)
                rows.append(row)
                _write(
                    {
                        "machine": parts.machine(),
                        "versions": versions(),
                        "cases": rows + [before[one.id] for one in cases()[len(rows) :] if one.id in before],
                    }
                )
    _table(json.loads(RESULTS.read_text()))


def versions() -> dict[str, str]:
    pip = subprocess.run([sys.executable, "-m", "pip", "--version"], capture_output=True, text=True, check=True).stdout.split()[1]
    return {"pip": pip, **{name: pin.partition("==")[2] for name, pin in PEERS.items()}}


def _write(result: dict[str, Any]) -> None:
    atomic_write(RESULTS, (json.dumps(result, indent=1) + "\n").encode())


WORDS = {
    "identical": "identical",
    "named": "named failure",
    "silent": "**differs silently**",
    "part": "what one run touched",
    "fails": "fails",
    "n/a": "n/a",
}
START, END = "<!-- fidelity: written by benchmarks/fidelity.py -->\n", "<!-- /fidelity -->\n"


def _table(result: dict[str, Any]) -> None:
    """The one table in benchmarks/README.md, between two marks."""
    tools = ("repro-env", *TOOLS)
    lines = [f"| case | {' | '.join(tools)} |", f"|---|{'---|' * len(tools)}"]
    asserted = {case.id: case.verdict for case in cases()}
    for one in result["cases"]:
        one["repro-env"] = {"verdict": asserted[one["case"]]}
        shown = " | ".join(WORDS[one[tool]["verdict"]] if tool in one else "" for tool in tools)
        lines.append(f"| {one['title']} | {shown} |")
    counts = []
    for tool in tools:
        told = [one[tool]["verdict"] for one in result["cases"] if tool in one and one[tool]["verdict"] != "n/a"]
        counts.append(f"{told.count('identical')} of {len(told)}, {told.count('silent')} silent")
    lines.append(f"| **identical, silent differences** | {' | '.join(counts)} |")
    machine, found = result["machine"], result["versions"]
    head = (
        f"{machine['date']}, {machine['os']}, {machine['cores']} cores of {machine['cpu']}, Python {machine['python']}; "
        + ", ".join(f"{name} {version}" for name, version in found.items())
        + f".\n{len(result['cases'])} of the {len(cases())} cases were run for this table.\n\n"
    )
    text = TABLE.read_text()
    before, _, rest = text.partition(START)
    _, _, after = rest.partition(END)
    TABLE.write_text(before + START + head + "\n".join(lines) + "\n" + END + after)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="cases whose id has this word")
    parser.add_argument("--no-peers", action="store_true", help="nothing but pip freeze beside ours")
    parser.add_argument("--missing", action="store_true", help="cases that have no result yet")
    options = parser.parse_args()
    main(options.only, peers=not options.no_peers, missing=options.missing)
