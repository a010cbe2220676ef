"""Every path, command, option, make target and dotted name that a document has in backticks exists, and so do commands in its blocks.

What belongs to the user, to a run or to another program is listed in `EXAMPLES`, `LIBRARIES` and `FOREIGN`: keep these short.
"""

from __future__ import annotations

import ast
import fnmatch
import re
import shlex
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

from repro_env.cli import app
from repro_env.schema.errors import UsageError
from tests.reference import COMMANDS

ROOT = Path(__file__).parents[1]
DOCUMENTS = [*sorted(ROOT.glob("[CRS]*.md")), *sorted((ROOT / "docs").rglob("*.md")), ROOT / "benchmarks" / "README.md"]
GENERATED = ("commands.md", "records.md", "fence.md", "work.md")
MOST_WORDS = 40_455
"""In all documents that people write, with those of decisions. Raise it only in a commit that says why."""
ROOMS = ("repro_env", "tests", "docs", "examples", "benchmarks", "templates", "lockfiles", ".github", ".ci")
EXAMPLES = (
    # of a spec and of a run
    "repro/*", "blobs/", "runs/.jobs/*", "runs/.processes/", "runs/specs/", "files/", "outside/*", "trace/", "verified/", "ranks/*",
    "hosts/*", "./runs", "build/*", "repro-env/*/[0-9]", "checkpoints/0*",
    # of a user's project and environment
    "../*", "out/*", "test/17", "mlruns/", "_version.py", "bin/*", "lib/python3*",
    "include/site/*", "lib*/python*/*", "uv.toml", "pylock.toml", "results/wide.json",
    # of other programs, registries and formats
    "conda-meta/*", "pkgs/", "envs/", "nvidia.com/*", "amd.com/*", "HOST/*", "registry.example.com/*",
)  # fmt: skip
"""Patterns of paths that are not in the repository."""
FILES = (
    "json", "jsonl", "log", "txt", "db", "bin", "yaml", "conf", "ckpt", "pt", "safetensors", "zip", "lock", "cert", "key", "d", "cache",
    "cfg",
)  # fmt: skip
"""Suffixes of files of runs, specs and other programs: a name with a dot that ends like this is not a name of Python."""
LIBRARIES = (
    "torch", "numpy", "tf", "ffi", "core", "safe", "config", "org", "io.repro-env",
    "model", "loader", "training", "table", "prefix",  # objects in examples
)  # fmt: skip
"""The first part of dotted names of other programs. The standard library is known."""
FOREIGN = {
    "-", "-S", "-I", "-O", "-E", "-dirty", "-wal", "-journal", "-inf", "--index-url", "--extra-index-url", "--find-links", "--target", "--prefix",
    "--system-site-packages", "--build-arg", "--security-opt", "--nv", "--rebuild", "--count", "--bind", "--mount", "--require-hashes",
}  # fmt: skip
"""Options of other programs, and other words with a dash."""
OPTIONS = {option for options in COMMANDS.values() for option in options} | {"--help", "--version"}
TARGETS = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def spans(text: str) -> list[str]:
    """The texts in backticks, outside of blocks."""
    plain = re.sub(r"^ *```.*?^ *```", "", text, flags=re.MULTILINE | re.DOTALL)
    return [" ".join(span.replace("\\|", "|").split()) for span in re.findall(r"(?<!`)`([^`]+)`(?!`)", plain)]


def lines(text: str) -> Iterator[str]:
    """The command lines of `repro-env` and `make` in blocks that show a terminal."""
    for block in re.findall(r"^ *```console\n(.*?)^ *```", text, re.MULTILINE | re.DOTALL):
        for line in block.splitlines():
            parts = re.split(r" && |; ", line.strip().removeprefix("$ "))
            yield from (part for part in parts if re.match(r"(\w+=\S* )*(repro-env|make) ", part))


def problem_of_command(text: str) -> str:
    """What is wrong with a command line; empty if nothing is, or if it is one of another program."""
    words = shlex.split(text, comments=True)
    while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
        words = words[1:]
    if words[:1] == ["make"]:
        return "" if len(words) == 1 or words[1] in TARGETS else "no such target"
    is_complete = words[:1] == ["repro-env"]
    words = words[is_complete:]
    name = next((name for name in (" ".join(words[:2]), *words[:1]) if name in COMMANDS), None)
    if name is None:
        groups = {name.split()[0] for name in COMMANDS if " " in name}
        known = not words or (words[0] in groups and len(words) == 1) or words[0] in OPTIONS or words == ["COMMAND", "--help"]
        return "" if known or (not is_complete and words[0] not in groups) else "no such command"
    following = [word for word in words[len(name.split()) :] if word != "..."]
    if name in ("exec", "sensitivity"):  # what follows the user's command is not ours
        try:
            app.parse(name, [*(["--seeds", "2"] if name == "sensitivity" and not is_complete else []), *following])
        except UsageError as error:
            return "" if "requires an argument" in str(error) and not is_complete else str(error)
        return ""
    used = {word.partition("=")[0] for word in following if re.match(r"\[?--\w", word)}
    unknown = {option.strip("[]") for option in used} - COMMANDS[name] - {"--help"}
    return f"no option {', '.join(sorted(unknown))}" if unknown else ""


@cache
def paths() -> frozenset[str]:
    """Every ending of every path in the repository."""
    found = {path.name for path in ROOT.iterdir()}
    for room in ROOMS:
        for path in (ROOT / room, *(ROOT / room).rglob("*")):
            parts = path.relative_to(ROOT).parts
            found |= {"/".join(parts[start:]) for start in range(len(parts))}
    return frozenset(found)


def exists(name: str) -> bool:
    """Whether a path, or one that a pattern matches, is in the repository."""
    return any(fnmatch.fnmatchcase(path, name) for path in paths()) if "*" in name else name in paths()


def members(body: Iterable[ast.stmt], owner: str) -> Iterator[str]:
    """The dotted names of what a module or a class defines or imports, at any depth of classes."""
    for node in body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            yield f"{owner}.{node.name}"
        if isinstance(node, ast.ClassDef):
            yield from members(node.body, f"{owner}.{node.name}")
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{owner}.{alias.asname or alias.name}" for alias in node.names)
        elif isinstance(node, ast.If):
            yield from members(node.body, owner)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (f"{owner}.{target.id}" for target in targets if isinstance(target, ast.Name))


@cache
def names() -> frozenset[tuple[str, ...]]:
    """Every ending of every dotted name in the package and the tests; in the place of a class also its name in small letters."""
    found = set()
    for path in (*(ROOT / "repro_env").rglob("*.py"), *(ROOT / "tests").glob("*.py")):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for name in (module, *members(ast.parse(path.read_text()).body, module)):
            parts = name.split(".")
            found |= {tuple(parts[start:]) for start in range(len(parts))}
            found.add((parts[-2].lower(), parts[-1]) if len(parts) > 1 else (name,))
    return frozenset(found)


def problem(span: str) -> str:
    """What is wrong with a text in backticks; empty if it is right, or if it does not name anything."""
    if any(fnmatch.fnmatchcase(span, pattern) for pattern in EXAMPLES):
        return ""
    first = span.split(maxsplit=1)[0]
    if first.startswith("-"):
        option = first.split("=")[0].strip(",")
        return "" if option in OPTIONS | FOREIGN or re.fullmatch(r"-\w", option) else "no such option"
    if first in ("repro-env", "make") or first in {name.split()[0] for name in COMMANDS}:
        return problem_of_command(span)
    if re.fullmatch(r"[\w.*{},-]+(/[\w.*{},-]+)*/?", span) and (
        "/" in span or span.endswith((".py", ".md", ".toml", ".ini", ".sh"))
    ):
        return "" if exists(span.rstrip("/")) else "no such path"
    name = span.partition("(")[0]
    if re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+", name) and not name.endswith(tuple(f".{suffix}" for suffix in FILES)):
        known = name.startswith(LIBRARIES) or name.split(".")[0] in sys.stdlib_module_names
        return "" if known or tuple(name.split(".")) in names() else "no such name"
    return ""


def problems(text: str) -> list[str]:
    """What a document names that does not exist."""
    found = [(span, problem(span)) for span in dict.fromkeys(spans(text))] + [
        (line, problem_of_command(line)) for line in lines(text)
    ]
    return [f"`{name}`: {why}" for name, why in found if why]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_what_a_document_names_exists(document: Path) -> None:
    assert problems(document.read_text()) == [], "correct the text, or list what is the user's own in tests/test_docs.py"


def test_documents_do_not_grow_without_a_reason() -> None:
    written = [*ROOT.glob("[CR][OE]*.md"), *(path for path in (ROOT / "docs").rglob("*.md") if path.name not in GENERATED)]
    assert {path.name for path in written} >= {"README.md", "CONTRIBUTING.md", "how-to.md"}
    assert sum(len(path.read_text().split()) for path in written) <= MOST_WORDS, "say each thing once, and link to it"


@pytest.mark.parametrize("decision", sorted((ROOT / "docs" / "decisions").glob("0*.md")), ids=lambda path: path.stem[:4])
def test_a_decision_is_short(decision: Path) -> None:
    assert len(decision.read_text().split()) <= 300, "keep what was considered, what was decided and what it costs"


def test_every_exception_is_used() -> None:
    used = {span for document in DOCUMENTS for span in spans(document.read_text())}
    assert [pattern for pattern in EXAMPLES if not any(fnmatch.fnmatchcase(name, pattern) for name in used)] == []
    assert [word for word in FOREIGN if not any(re.search(rf"(?:\A|\s){word}(?![\w-])", name) for name in used)] == []
    assert [library for library in LIBRARIES if not any(name.startswith(library) for name in used)] == []


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        ("`repro_env/schema/renamed.py`", "no such path"),
        ("`schema/renamed.py` is in `oci/`", "no such path"),
        ("`renamed.toml`", "no such path"),
        ("`schema.text.Renamed`", "no such name"),
        ("`End.renamed`", "no such name"),
        ("`repro_env.renamed()`", "no such name"),
        ("`repro-env renamed`", "no such command"),
        ("`runs renamed`", "no such command"),
        ("`repro-env check --renamed`", "no option --renamed"),
        ("`runs list --renamed`", "no option --renamed"),
        ("`exec --renamed train.py`", "no such option: --renamed"),
        ("`--renamed`", "no such option"),
        ("`make renamed`", "no such target"),
        ("```console\n$ cd x && repro-env show --renamed   # c\n```", "no option --renamed"),
        ("```console\nA=1 make renamed\n```", "no such target"),
        ("# T\n\n**Replaced by** 0043: `renamed.py`", "no such path"),
    ],
)
def test_a_name_that_does_not_exist_is_found(bad: str, why: str) -> None:
    found = problems(bad)
    assert any(why in problem.lower() for problem in found), found


@pytest.mark.parametrize(
    "good",
    [
        "`schema/run.py`, `tests/e2e/`, `CONTRIBUTING.md`, `examples/`, `.ci/run`",
        '`End.outcome`, `schema.text.Line`, `oci.paths`, `torch.save`, `os.urandom`, `repro_env.seed("split")`',
        "`repro-env runs\nlist --tag a`, `exec --resume`, `show`, `--runs DIR`, `make`, `make test`, `repro-env exec x.py --anything 1`",
        "`start.json`, `files/`, `../data`, `HOST/NAME`",
        "```console\n$ A=1 repro-env check --all   # c\nrepro-env: error: x\n```",
    ],
)
def test_a_name_that_exists_is_accepted(good: str) -> None:
    assert problems(good) == []
