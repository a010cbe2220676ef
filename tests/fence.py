"""The size of the package: code lines room by room, names that cross a border, variants by name, long lists of parameters.

    python -m tests.fence                     write what is counted now to docs/fence.md, if nothing went up
    python -m tests.fence --reason "..."      accept what went up, with the reason in its row
    python -m tests.fence --print             print the numbers, and write nothing

`make fence` runs this; `tests/test_fence.py` compares. How each number is counted, and why so: docs/decisions/0067-fence.md.
"""

from __future__ import annotations

import argparse
import ast
import io
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tests import sources

TABLE = sources.ROOT / "docs" / "fence.md"
START = "e0ef0917"
"""The commit at which the first column was counted."""

CORE = {
    "capture": ("environment/", "cli/capture.py", "api/capture.py"),
    "image": ("delivery/", "store/", "oci/", "registry/", "specs/", "guest/install.py", "guest/wheelrule.py", "guest/compile.py"),
    "run": ("sandbox/", "runs/", "guest/", "cli/exec.py", "api/execute.py"),
    "compare": ("compare/", "guest/tensors/", "guest/compare.py", "cli/verify.py", "api/verify.py"),
    "base": ("schema/", "io/", "cli/", "api/", "__init__.py", "__main__.py", "version.py", "seeding.py"),
}
"""Room -> its directories and modules. A module belongs to the longest path that it begins with, here or below."""
AROUND = {
    "checkpoint": ("checkpoint/",),
    "clusters": (
        "launch/", "api/submit.py", "api/jobs.py", "cli/submission.py", "runs/records/submissions.py", "runs/start/launcher.py",
        "delivery/targets/jobimage.py",
    ),
    "catalog": ("runs/catalog/", "runs/records/pulled.py", "api/runsshare.py", "cli/runsshare.py"),
    "other runners": (
        "sandbox/docker/", "sandbox/programs/", "sandbox/pod.py", "runs/execution/engine.py", "runs/execution/imageprogram.py",
    ),
    "audit and gc": ("compare/audit/", "runs/retention.py", "api/audit.py", "api/runsgc.py", "cli/retention.py"),
    "lineage": ("runs/lineage/", "api/lineage.py", "cli/lineage.py", "cli/ui/lineagepage.py"),
    "traces": ("compare/traces/", "guest/seeds/_repro_env_trace"),
    "preflight": ("compare/preflight/", "api/preflight.py"),
    "doctor": ("sandbox/doctor.py", "sandbox/trial.py", "api/doctor.py", "cli/doctor.py"),
    "sensitivity": ("compare/sensitivity.py", "api/sensitivity.py", "cli/sensitivity.py"),
    "GPUs": ("sandbox/gpus.py", "sandbox/cdi.py", "sandbox/fabric.py", "runs/start/devices.py"),
    "ci": ("cli/ci.py", "cli/ui/github.py", "cli/ui/cireports.py"),
    "init": ("cli/init.py", "delivery/documents/projectfiles.py"),
    "life cycle": (
        "policy/protocol.py", "policy/bound.py", "policy/due.py", "api/protocols.py", "api/due.py", "api/versions.py", "cli/due.py",
        "cli/versions.py", "environment/wheels/advisories.py",
    ),
    "policy": ("policy/", "api/policy.py", "cli/ui/policypage.py", "cli/ui/defaults.py", "io/pyproject.py"),
    "notebooks": ("io/relay.py", "sandbox/notebook.py", "api/kernel.py", "cli/kernel.py"),
    "pages": ("pages/", "cli/ui/curves.py", "cli/report.py", "cli/runslist.py"),
    "pytest plug-in": ("pytestplugin/",),
    "trackers": ("tagging.py",),
    "processes": ("runs/records/processes.py", "sandbox/embedded/joined.py"),
}  # fmt: skip
"""Features around the core. What a later issue adds gets a room of its own here."""
ROOMS = {**CORE, **AROUND}

WORDS = {
    "runner": {"embedded", "docker", "charliecloud", "apptainer", "host", "pod"},
    "kind of environment": {"venv", "conda", "system", "interpreter"},
    "engine": {"slurm", "kubernetes", "gridengine", "htcondor"},
}
"""Variant -> its names. To compare a value with one of them is to ask which variant it is."""
CLASSES = {
    "runner": {"Embedded", "Docker", "Charliecloud", "Apptainer", "Host", "Pod"},
    "engine": {"Slurm", "Kubernetes", "GridEngine", "HTCondor"},
    "origin": {"New", "Repeat", "Resume", "Join", "Submitted", "Segment"},
}
"""Their types, for `isinstance` and `match`."""
ORIGINS = {"recorded", "resumed", "joined", "member", "made"}
"""To ask whether one of these is None is to ask where a run starts from."""
OF_A_RUN = ("sandbox/", "runs/start/", "runs/execution/", "compare/", "api/execute.py", "api/verify.py", "api/submit.py")
"""Where these names are values of a run that starts."""
VARIANTS = (*WORDS, "origin")
MOST_PARAMETERS = 6

GOALS = {
    "core": 30_500,
    "around it": 7_000,
    "names across rooms": 600,
    "variants by name": 10,
}
HEAD = f"""# The fence

Written by `make fence`, never by hand: the size of the package, and the limit that a test holds for each number. A number may go
down. It goes up only with a reason: `make fence ARGS='--reason "..."'`. How each is counted: [decision 0067](decisions/0067-fence.md).

| number | at {START} | lowest | limit | goal | why it went up |
|---|---|---|---|---|---|
"""


class Row(NamedTuple):
    """A number of the table."""

    start: int
    lowest: int
    """The lowest limit that the number ever had."""
    limit: int
    reason: str = ""
    """Why the limit is not the lowest one."""


Nodes = Sequence[ast.AST]
"""Those of a module, the module first."""


def code_lines(text: str, nodes: Nodes) -> int:
    """The lines of a module that have code on them: without blank lines, comments and docstrings, those of values included."""
    documented: set[int] = set()
    for node in nodes:
        for statement in getattr(node, "body", ()) if not isinstance(node, ast.Lambda | ast.IfExp) else ():
            if (
                isinstance(statement, ast.Expr)
                and isinstance(statement.value, ast.Constant)
                and isinstance(statement.value.value, str)
            ):
                documented.update(range(statement.lineno, (statement.end_lineno or 0) + 1))
    skipped = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    tokens = (token for token in tokenize.generate_tokens(io.StringIO(text).readline) if token.type not in skipped)
    return len({line for token in tokens for line in range(token.start[0], token.end[0] + 1)} - documented)


def room_of(module: str) -> str:
    """The room of a module, by its path below the package. Raises `LookupError` if it has none."""
    found = [(path, room) for room, paths in ROOMS.items() for path in paths if module.startswith(path)]
    if not found:
        raise LookupError(f"repro_env/{module} is in no room: add its path to CORE or AROUND in tests/fence.py")
    return max(found, key=lambda item: len(item[0]))[1]


def crossings(modules: Mapping[str, Nodes]) -> set[str]:
    """The names of each top-level directory that other directories use: imported themselves, or as attributes of an imported module."""
    dotted = {".".join(("repro_env", *Path(module).with_suffix("").parts)).removesuffix(".__init__") for module in modules}
    names: set[str] = set()
    for module, nodes in modules.items():
        own = f"repro_env.{module.partition('/')[0]}."
        imported = {
            alias.asname or alias.name: f"{node.module}.{alias.name}"
            for node in nodes
            if isinstance(node, ast.ImportFrom) and "/" in module
            for alias in node.names
            if (node.module or "").startswith("repro_env") and not f"{node.module}.{alias.name}".startswith(own)
        }
        names.update(name for name in imported.values() if name not in dotted)
        names.update(
            f"{imported[node.value.id]}.{node.attr}"
            for node in nodes
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and imported.get(node.value.id) in dotted
        )
    return names


def variants(module: str, nodes: Nodes) -> Iterator[tuple[str, int]]:
    """Each place that asks for a variant by name, with its line: comparisons, `isinstance` and patterns of `match`."""
    for node in nodes:
        line, words, types, flags = 0, set[str](), set[str](), set[str]()
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            line, words = node.lineno, {word for side in sides for word in _words(side)}
            names = {ast.unparse(side) for side in sides}
            # Other kinds than those of a runner have a "docker" too, layers have kinds, and `os.system` does not name a kind.
            if any(name == "kind" or name.endswith((".kind", "['kind']")) for name in names):
                words -= WORDS["runner"] | (WORDS["kind of environment"] if "layer.kind" in names else set())
            else:
                words -= {"system", "interpreter"}
            flags = {_last(side) for side in sides} & ORIGINS if "None" in names else set()
        elif isinstance(node, ast.Call) and _last(node.func) == "isinstance" and len(node.args) == 2:
            line, types = node.lineno, {_last(part) for part in ast.walk(node.args[1])}
        elif isinstance(node, ast.match_case):
            parts = list(ast.walk(node.pattern))
            line = node.pattern.lineno
            words = {word for part in parts if isinstance(part, ast.MatchValue) for word in _words(part.value)}
            types = {_last(part.cls) for part in parts if isinstance(part, ast.MatchClass)}
        for variant in VARIANTS:
            is_found = words & WORDS.get(variant, set()) or types & CLASSES.get(variant, set())
            if is_found if variant != "origin" else (is_found or flags) and module.startswith(OF_A_RUN):
                yield variant, line


def _words(node: ast.expr) -> Iterator[str]:
    """The texts of an operand: a literal, or a display of literals."""
    for part in node.elts if isinstance(node, ast.Tuple | ast.List | ast.Set) else (node,):
        if isinstance(part, ast.Constant) and isinstance(part.value, str):
            yield part.value


def _last(node: ast.AST) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def long_signatures(nodes: Nodes) -> Iterator[str]:
    """The functions with more parameters than six. `self` counts; `*args` and `**kwargs` do not."""
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            arguments = node.args
            if len(arguments.posonlyargs) + len(arguments.args) + len(arguments.kwonlyargs) > MOST_PARAMETERS:
                yield node.name


def measure() -> dict[str, int]:
    """Every number of the table, counted now."""
    modules = {path.relative_to(sources.PACKAGE).as_posix(): sources.nodes(path) for path in sources.MODULES}
    lines: Counter[str] = Counter(dict.fromkeys(ROOMS, 0))
    for module, nodes in modules.items():
        lines[room_of(module)] += code_lines((sources.PACKAGE / module).read_text(), nodes)
    places = Counter(variant for module, nodes in modules.items() for variant, _ in variants(module, nodes))
    by_name = {f"by name: {variant}": places[variant] for variant in VARIANTS}
    return {
        "core": sum(lines[room] for room in CORE),
        "around it": sum(lines[room] for room in AROUND if room != "checkpoint"),
        **lines,
        "names across rooms": len(crossings(modules)),
        "variants by name": sum(by_name.values()),
        **by_name,
        "parameters over six": sum(1 for nodes in modules.values() for _ in long_signatures(nodes)),
    }


def parse(text: str) -> dict[str, Row]:
    """The rows of the table."""
    rows = {}
    for line in text.splitlines()[HEAD.count("\n") :]:
        name, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        start, lowest, limit = (int(cell.replace(",", "")) for cell in cells[:3])
        rows[name] = Row(start, lowest, limit, cells[-1])
    return rows


def render(rows: Mapping[str, Row]) -> str:
    """The text of the table."""
    return HEAD + "".join(
        f"| {name} | {row.start:,} | {row.lowest:,} | {row.limit:,} | {_goal(name)} | {row.reason} |\n"
        for name, row in rows.items()
    )


def _goal(name: str) -> str:
    return f"{GOALS[name]:,}" if name in GOALS else ""


def grown(rows: Mapping[str, Row], numbers: Mapping[str, int]) -> list[str]:
    """The numbers above their limit. Code may move from a room to another one of the same part, if the part as a whole does not grow."""
    over = [name for name, number in numbers.items() if number > (rows[name].limit if name in rows else 0)]
    for part, rooms in (("core", CORE), ("around it", AROUND)):
        if part not in over:
            over = [name for name in over if name not in rooms or name == "checkpoint" or name not in rows]
    return over


def updated(rows: Mapping[str, Row], numbers: Mapping[str, int], reason: str) -> dict[str, Row]:
    """The table with the numbers of now. `reason` is written next to those that went up, and stays while they are not down again."""
    over = grown(rows, numbers)
    result = {}
    for name, number in numbers.items():
        old = rows.get(name, Row(0, 0, 0))
        lowest = min(old.lowest, number)
        why = "; ".join(filter(None, (old.reason, reason if name in over and reason not in old.reason else "")))
        if name in ROOMS and name not in over and number > old.limit:
            lowest = number  # moved here
        result[name] = Row(old.start, lowest, number, "" if number == lowest else why)
    return result


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make fence", description="Count, compare with docs/fence.md, and write it.")
    parser.add_argument("--reason", default="", help="why numbers went up")
    parser.add_argument("--print", action="store_true", help="print the numbers, and write nothing")
    options = parser.parse_args(argv)
    rows, numbers = parse(TABLE.read_text()), measure()
    for name, number in numbers.items():
        row = rows.get(name, Row(0, 0, 0))
        print(
            f"{name:<30} {row.start:>7,} at {START} {number:>7,} now {number - row.limit:>+6,}  {_goal(name) and 'goal ' + _goal(name)}"
        )
    over = grown(rows, numbers)
    if options.print:
        return 0
    if over and not options.reason:
        print(f"went up: {', '.join(over)}. Remove code, or say why: make fence ARGS='--reason \"...\"'", file=sys.stderr)
        return 1
    if "|" in options.reason or "\n" in options.reason:
        print("a reason is one line without |", file=sys.stderr)
        return 2
    TABLE.write_text(render(updated(rows, numbers, options.reason)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
