"""Exit codes are unique and written down, and no failure leaves without its place or its way out."""

from __future__ import annotations

import ast
import pickle
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from repro_env.model import errors

PACKAGE = Path(__file__).parents[1] / "repro_env"


def below(kind: type[errors.ReproEnvError]) -> Iterator[type[errors.ReproEnvError]]:
    for child in kind.__subclasses__():
        if child.__module__ == errors.__name__:
            yield child
            yield from below(child)


CLASSES = list(below(errors.ReproEnvError))


def test_exit_codes_are_unique() -> None:
    codes = {kind.exit_code: kind.__name__ for kind in CLASSES}
    assert len(codes) == len(CLASSES) > 15
    assert not {0, 1, 126, 130} & set(codes), "0 and 1 are answers, 126 and 130 are the shell's"
    assert all("exit_code" in vars(kind) for kind in CLASSES), "each class has a code of its own"


def test_the_docstring_has_a_row_for_each_class() -> None:
    rows = dict(re.findall(r"-- (\w+) (\d+)\s+\S", errors.__doc__ or ""))
    assert rows == {kind.__name__: str(kind.exit_code) for kind in CLASSES}


def test_every_error_class_is_in_errors() -> None:
    """One class per seam, in one file: a subclass elsewhere would have a code that nobody checks."""
    names = {kind.__name__ for kind in CLASSES} | {"ReproEnvError"}
    for path in PACKAGE.rglob("*.py"):
        if path.name == "errors.py" and path.parent.name == "model":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                bases = {base.id if isinstance(base, ast.Name) else getattr(base, "attr", "") for base in node.bases}
                assert not bases & names, f"{path.relative_to(PACKAGE)}:{node.lineno} makes an error class of its own"


def raised() -> Iterator[tuple[str, ast.Call]]:
    names = {kind.__name__ for kind in CLASSES}
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                called = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
                if called in names:
                    yield f"{path.relative_to(PACKAGE)}:{node.lineno}", node


def test_every_error_says_where_or_what_next() -> None:
    found = list(raised())
    assert found
    bare = [where for where, call in found if not {"where", "hint", None} & {keyword.arg for keyword in call.keywords}]
    assert not bare, f"neither where= nor hint=: {bare}"


def test_no_sentence_ends_in_a_full_stop() -> None:
    """`what` is put into a line with the place before it and the hint after it."""
    ended = []
    for where, call in raised():
        first = call.args[0] if call.args else None
        parts = first.values if isinstance(first, ast.JoinedStr) else [first]
        last = parts[-1] if parts else None
        if isinstance(last, ast.Constant) and isinstance(last.value, str) and last.value.endswith("."):
            ended.append(where)
    assert not ended, f"a sentence with a full stop: {ended}"


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_an_error_survives_a_process_border(kind: type[errors.ReproEnvError]) -> None:
    import pickle

    error = kind("does not fit", where="a/b", hint="make it fit")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert (again.what, again.where, again.hint, str(again)) == ("does not fit", "a/b", "make it fit", str(error))


def test_a_sentence_has_a_bound() -> None:
    """A damaged archive's own names may be in it."""
    error = errors.UsageError("x" * 100_000, where="here")
    assert len(str(error)) < errors.LONGEST + 20
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    assert str(errors.UsageError("x" * errors.LONGEST)) == "x" * errors.LONGEST
