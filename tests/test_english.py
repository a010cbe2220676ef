"""The glossary: words of our own that readers had to learn may not come back, neither in what people read nor in names."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sources import MODULES, ROOT, nodes

WORDS = {
    "folders?": "directory",
    "nobody|somebody|anybody": "name who or what",
    "beside": "next to, or in addition to",
    "told": "reported, detected or printed",
    "go on|goes on|gone on|going on": "resume or continue",
    "packed files?": "bundle file",
    "name spaces?": "namespaces",
    "process number": "PID",
    "span of time": "duration",
    "lies in|lay in": "is in",
    "mend|mends|mended": "fix",
    "give out|gives out|given out": "export",
    "what nothing can give again": "what cannot be downloaded again",
    "repeatable code": "deterministic",
    "is another|are another": "differs",
}
"""Not this in texts -> but that."""
NAMES = {
    "asked",
    "beside",
    "giver",
    "heard",
    "looker",
    "makers",
    "nobody",
    "rest",
    "said",
    "told",
    "whose",
}
"""Not in names of modules, classes, functions, arguments and variables: participles and pronouns."""
KEYS = {
    "given": "env_names",
    "passed": "host_env",
    "others": "special_files",
    "own": "machine",
    "drawn": "random_ids",
    "effective": "settings",
    "unseeded": "auto_seeded",
    "entropy": "system_randomness",
    "means": "methods",
    "before": "checkpoints_before",
    "after": "checkpoints_after",
    "exact": "command_is_exact",
    "term": "terminal_type",
    "seen": "tree_in_run",
    "unseen": "not_in_run",
    "unread": "unparsed_outputs",
}
"""Not these keys in the records of runs -> but those."""
PATTERN = re.compile(rf"\b({'|'.join(WORDS)})\b", re.IGNORECASE)
CODE = re.compile(r"`[^`]*`")
"""Names in a text."""
DOCUMENTS = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").glob("*.md")))


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """The texts of a module with their lines: messages, help and docstrings. A string without a space is a key or a value."""
    for node in nodes(path):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield node.lineno, CODE.sub("", node.value)


def fields(path: Path) -> Iterator[tuple[int, str]]:
    """The fields of a module's classes, which are the keys of stored formats."""
    for owner in nodes(path):
        if isinstance(owner, ast.ClassDef):
            yield from ((node.lineno, ast.unparse(node.target)) for node in owner.body if isinstance(node, ast.AnnAssign))


def names(path: Path) -> Iterator[tuple[int, str]]:
    """The names that a module gives."""
    yield 1, path.stem
    for node in nodes(path):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id


def is_bad(name: str) -> bool:
    parts = name.strip("_").lower().split("_")
    return bool(NAMES & set(parts)) or parts == ["one"]


def advice(found: str) -> str:
    return next(better for words, better in WORDS.items() if re.fullmatch(words, found, re.IGNORECASE))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_module_uses_the_words_of_the_field(path: Path) -> None:
    problems = [
        f"line {line}: {match[0]!r}: {advice(match[0])}" for line, text in texts(path) for match in PATTERN.finditer(text)
    ]
    problems += [
        f"line {line}: the name {name!r}: use a noun for a value and a verb for a function"
        for line, name in names(path)
        if is_bad(name)
    ]
    assert not problems, "\n".join(problems)


RECORDS = (ROOT / "repro_env/schema/run.py", *sorted((ROOT / "repro_env/runs/records").glob("*.py")))


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.stem)
def test_the_keys_of_records_are_words_of_the_field(path: Path) -> None:
    assert not [f"line {line}: {name!r}: {KEYS[name]}" for line, name in fields(path) if name in KEYS]


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_document_uses_the_words_of_the_field(path: Path) -> None:
    lines = path.read_text().splitlines()
    problems = [
        f"line {number}: {match[0]!r}: {advice(match[0])}"
        for number, line in enumerate(lines, 1)
        for match in PATTERN.finditer(CODE.sub("", line))
    ]
    assert not problems, "\n".join(problems)


def test_the_glossary_finds_words_in_texts_and_names(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text('def asked(one):\n    """What nobody told."""\n\n\nclass Start:\n    given: int\n')
    assert [match[0] for _, text in texts(module) for match in PATTERN.finditer(text)] == ["nobody", "told"]
    assert [name for _, name in names(module) if is_bad(name)] == ["asked", "one"]
    assert [name for _, name in fields(module)] == ["given"]
