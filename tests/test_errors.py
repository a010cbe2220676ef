"""Exit codes are unique and documented, and every error has a location or a hint."""

from __future__ import annotations

import ast
import pickle
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from repro_env.schema import errors
from tests.sources import MODULES, PACKAGE, nodes


def subclasses(kind: type[errors.ReproEnvError]) -> Iterator[type[errors.ReproEnvError]]:
    for child in kind.__subclasses__():
        if child.__module__ == errors.__name__:
            yield child
            yield from subclasses(child)


CLASSES = list(subclasses(errors.ReproEnvError))


def test_exit_codes_are_unique() -> None:
    codes = {kind.exit_code: kind.__name__ for kind in CLASSES}
    assert len(codes) == len(CLASSES) > 15
    assert not {0, 1, 126, 130} & set(codes), "0 and 1 are answers; shells use 126 and 130"
    assert all("exit_code" in vars(kind) for kind in CLASSES), "each class has its own code"


def test_every_error_class_has_a_sentence_for_the_table_of_exit_codes() -> None:
    first = {kind.__name__: (kind.__doc__ or "").partition("\n")[0] for kind in CLASSES}
    assert [name for name, text in first.items() if not re.fullmatch(r"[A-Z].+\.", text)] == []
    assert len(set(first.values())) == len(first), "a class without a docstring has that of its base"


def test_all_error_classes_are_in_the_module_errors() -> None:
    """The tests here do not see classes in other modules."""
    names = {kind.__name__ for kind in CLASSES} | {"ReproEnvError"}
    for path in MODULES:
        if path.name == "errors.py" and path.parent.name == "schema":
            continue
        for node in nodes(path):
            if isinstance(node, ast.ClassDef):
                bases = {base.id if isinstance(base, ast.Name) else getattr(base, "attr", "") for base in node.bases}
                assert not bases & names, f"{path.relative_to(PACKAGE)}:{node.lineno} defines an error class"


def error_calls() -> Iterator[tuple[str, ast.Call]]:
    """Every call of an error class, or of `os_errors_as` without its class, in the package, with its location."""
    names = {kind.__name__ for kind in CLASSES}
    for path in MODULES:
        for node in nodes(path):
            if isinstance(node, ast.Call):
                name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
                if name in names and ast.unparse(node.func) != "pytest.UsageError":
                    yield f"{path.relative_to(PACKAGE)}:{node.lineno}", node
                elif name == errors.os_errors_as.__name__:
                    call = ast.Call(node.func, node.args[1:], node.keywords)
                    yield f"{path.relative_to(PACKAGE)}:{node.lineno}", call


def test_every_error_has_a_location_or_a_hint() -> None:
    calls = list(error_calls())
    assert calls
    bare = [where for where, call in calls if not {"where", "hint", None} & {keyword.arg for keyword in call.keywords}]
    assert not bare, f"neither where= nor hint=: {bare}"


def test_error_messages_do_not_end_with_a_full_stop() -> None:
    """The message is printed in a line after the location."""
    wrong = []
    for where, call in error_calls():
        first = call.args[0] if call.args else None
        parts = first.values if isinstance(first, ast.JoinedStr) else [first]
        last = parts[-1] if parts else None
        if isinstance(last, ast.Constant) and isinstance(last.value, str) and last.value.endswith("."):
            wrong.append(where)
    assert not wrong, f"a message with a full stop: {wrong}"


def test_an_os_error_becomes_an_error_of_ours_with_its_file_and_reason(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    with pytest.raises(errors.RecordError) as found, errors.os_errors_as(errors.RecordError, "this cannot be read", hint="look"):
        missing.read_bytes()
    error = found.value
    assert (error.what, error.where, error.hint) == ("this cannot be read: No such file or directory", str(missing), "look")
    with pytest.raises(errors.RunError) as found_here, errors.os_errors_as(errors.RunError, "no", where="--option", default="x"):
        missing.read_bytes()
    assert found_here.value.where == "--option"
    with pytest.raises(errors.RunError) as found_default, errors.os_errors_as(errors.RunError, "no", default="x"):
        raise OSError("without a number")
    assert (found_default.value.what, found_default.value.where) == ("no: without a number", "x")


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_an_error_can_be_pickled(kind: type[errors.ReproEnvError]) -> None:
    error = kind("does not fit", where="a/b", hint="make it fit")
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is kind
    assert (copy.what, copy.where, copy.hint, str(copy)) == ("does not fit", "a/b", "make it fit", str(error))


def test_the_length_of_an_error_message_is_limited() -> None:
    """A message may contain names from a damaged archive."""
    error = errors.UsageError("x" * 100_000, where="here")
    assert len(str(error)) < errors.LONGEST + 20
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    assert str(errors.UsageError("x" * errors.LONGEST)) == "x" * errors.LONGEST
