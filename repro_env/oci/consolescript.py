"""Console scripts: the check that an installed script is equivalent to the one that the wheel rule writes.

Every installer writes a different stub that contains the absolute path of the environment. In canonical form, a script
starts the `python` next to it, wherever the directory is mounted. Its first line is a single comment, so scripts with
`from __future__` imports keep working.
"""

from __future__ import annotations

import ast
import os
import re
import shlex
from collections.abc import Callable

from repro_env.guest.wheelrule import SHEBANG, EntryPoint, replace_shebang

_SHELL_STUB = re.compile(rb"#!/bin/sh\n'''exec' (?P<python>[^\n]*) \"\$0\" \"\$@\"\n' '''\n")


def is_stub_of(installed: bytes, point: EntryPoint, starts: Callable[[str], bool]) -> bool:
    """Return whether an installed script is a stub (of pip, uv, distlib ...) that only calls this entry point.

    `starts` returns whether a path in the first line is the environment's own Python, which the canonical script starts.
    """
    body = _without_first_lines(installed, starts)
    if body is None:
        return False
    try:
        statements = ast.parse(body).body
    except (SyntaxError, ValueError):
        return False
    if not statements or not _is_main_block(statements[-1], point.attr):
        return False
    imports = {ast.unparse(statement) for statement in statements[:-1]}
    wanted = f"from {point.module} import {point.attr.partition('.')[0]}"
    return wanted in imports and imports <= {wanted, "import sys", "import re"}


def has_same_body(installed: bytes, body: bytes, starts: Callable[[str], bool]) -> bool:
    """Return whether an installed script is a `.data/scripts` file of a wheel, except for the rewritten first line.

    `starts` as in `is_stub_of`.
    """
    if installed == body:
        return replace_shebang(body) == body
    first, _, remainder = body.partition(b"\n")
    if first.rstrip() not in (b"#!python", b"#!pythonw"):
        return False  # not a Python script, or one with options, which our first line would drop
    return _without_first_lines(installed, starts) == remainder


def _without_first_lines(installed: bytes, starts: Callable[[str], bool]) -> bytes | None:
    """Return what follows `#!/...python`, or its form through sh for long paths; None if it starts another program."""
    if installed.startswith(SHEBANG):
        return installed.removeprefix(SHEBANG)
    if match := _SHELL_STUB.match(installed):
        try:
            words = shlex.split(os.fsdecode(match["python"]))
        except ValueError:
            return None
        return installed[match.end() :] if len(words) == 1 and starts(words[0]) else None
    first, newline, remainder = installed.partition(b"\n")
    python = os.fsdecode(first.removeprefix(b"#!").strip())
    return remainder if newline and first.startswith(b"#!") and python.startswith("/") and starts(python) else None


def _is_main_block(statement: ast.stmt, call: str) -> bool:
    """Return whether it is `if __name__ == "__main__":` with only changes of sys.argv[0] and `sys.exit(<call>())`."""
    if not isinstance(statement, ast.If) or statement.orelse or ast.unparse(statement.test) != "__name__ == '__main__'":
        return False
    *trims, last = statement.body
    return ast.unparse(last) == f"sys.exit({call}())" and all(_trims_argv0(trim) for trim in trims)


def _trims_argv0(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Assign):
        return ast.unparse(statement).startswith("sys.argv[0] = ") and _only_strings(statement.value)
    if isinstance(statement, ast.If):
        return _only_strings(statement.test) and all(_trims_argv0(inner) for inner in statement.body + statement.orelse)
    return False


def _only_strings(expression: ast.expr) -> bool:
    """Return whether it only edits the string sys.argv[0]: the names sys and re, and harmless methods."""
    for node in ast.walk(expression):
        if isinstance(node, ast.Name) and node.id not in ("sys", "re"):
            return False
        if isinstance(node, ast.Attribute) and node.attr not in ("argv", "sub", "endswith", "removesuffix"):
            return False
    return True
