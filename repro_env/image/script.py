"""Console scripts: our own fixed rule for making them, and how to tell that an installed one means the same.

Every installer writes another stub with the environment's absolute path in it, so a script's bytes say who
installed it and where. In canonical form a script starts the python beside it, wherever the folder is
mounted; the first line is one comment, so scripts with `from __future__` imports keep working.
"""

from __future__ import annotations

import ast
import configparser
import os
import re
import shlex
from collections.abc import Callable

import msgspec

from repro_env.model.errors import ArtifactError

SHEBANG = b"""#!/usr/bin/env -S sh -c 'exec "${0%/*}/python" "$0" "$@"'\n"""

_LONGEST_SHEBANG = 124
"""Characters of a path that every kernel takes (BINPRM_BUF_SIZE was 128 before Linux 5.1)."""
_NAME = re.compile(r"[^/\\\s\x00-\x1f\x7f][^/\\\x00-\x1f\x7f]*")
_REFERENCE = re.compile(r"(?P<module>\w+(?:\.\w+)*)\s*:\s*(?P<attr>\w+(?:\.\w+)*)\s*(?:\[.*\])?")
_SHELL_STUB = re.compile(rb"#!/bin/sh\n'''exec' (?P<python>[^\n]*) \"\$0\" \"\$@\"\n' '''\n")


class EntryPoint(msgspec.Struct, frozen=True):
    """`name = module:attr` of a console or GUI script."""

    name: str
    module: str
    attr: str

    def text(self, first_line: bytes = SHEBANG) -> bytes:
        """The script in canonical form."""
        first = self.attr.partition(".")[0]
        return (
            first_line
            + (
                f'import sys\n\nfrom {self.module} import {first}\n\nif __name__ == "__main__":\n    sys.exit({self.attr}())\n'
            ).encode()
        )


def entry_points(text: str, *, where: str) -> list[EntryPoint]:
    """The scripts that `entry_points.txt` asks for, sorted by name (PyPA entry points specification)."""
    parser = configparser.ConfigParser(delimiters=("=",), interpolation=None, strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    try:
        parser.read_string(text)
    except configparser.Error as error:
        raise ArtifactError(f"entry_points.txt cannot be read: {error.message}", where=where) from None
    found: dict[str, EntryPoint] = {}
    for section in ("console_scripts", "gui_scripts"):
        for name, value in parser.items(section) if parser.has_section(section) else ():
            match = _REFERENCE.fullmatch(value.strip())
            if not match or not _NAME.fullmatch(name) or name in (".", ".."):
                raise ArtifactError(f"entry_points.txt has a script that cannot be made: {name} = {value}", where=where)
            found[name] = EntryPoint(name, match["module"], match["attr"])
    return [found[name] for name in sorted(found)]


def first_line(python: str | None) -> bytes:
    """What a script in canonical form begins with. `python` is an absolute path, None for the one beside the script."""
    if python is None:
        return SHEBANG
    if len(python) <= _LONGEST_SHEBANG and " " not in python:
        return f"#!{python}\n".encode()
    # As pip and distlib do it: sh runs the second line, Python sees a string.
    return f"#!/bin/sh\n'''exec' {shlex.quote(python)} \"$0\" \"$@\"\n' '''\n".encode()


def rewritten(body: bytes, first_line: bytes = SHEBANG) -> bytes:
    """A wheel's `.data/scripts` file in canonical form: `#!python` becomes our first line (PEP 427), others stay."""
    first, newline, rest = body.partition(b"\n")
    if re.fullmatch(rb"#!pythonw?(?:[ \t].*)?\r?", first) and newline:
        return first_line + rest
    return body


def means(installed: bytes, point: EntryPoint, starts: Callable[[str], bool]) -> bool:
    """Whether an installed stub (pip's, uv's, distlib's ...) only calls this entry point.

    `starts` says whether the python of its first line is the environment's own: the canonical one starts that, without options.
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


def same_body(installed: bytes, body: bytes, starts: Callable[[str], bool]) -> bool:
    """Whether an installed script is a wheel's `.data/scripts` file with only its first line rewritten. `starts` as in `means`."""
    if installed == body:
        return rewritten(body) == body
    first, _, rest = body.partition(b"\n")
    if first.rstrip() not in (b"#!python", b"#!pythonw"):
        return False  # no script of Python's, or one that wants options: ours would drop them
    return _without_first_lines(installed, starts) == rest


def _without_first_lines(installed: bytes, starts: Callable[[str], bool]) -> bytes | None:
    """What follows `#!/...python`, or the shell detour used for long or spaced paths; None where another program is started."""
    if installed.startswith(SHEBANG):
        return installed.removeprefix(SHEBANG)
    if match := _SHELL_STUB.match(installed):
        try:
            words = shlex.split(os.fsdecode(match["python"]))
        except ValueError:
            return None
        return installed[match.end() :] if len(words) == 1 and starts(words[0]) else None
    first, newline, rest = installed.partition(b"\n")
    python = os.fsdecode(first.removeprefix(b"#!").strip())
    return rest if newline and first.startswith(b"#!") and python.startswith("/") and starts(python) else None


def _is_main_block(statement: ast.stmt, call: str) -> bool:
    """`if __name__ == "__main__":`, then nothing but trimming of sys.argv[0] and `sys.exit(<call>())`."""
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
    """Nothing but string work on sys.argv[0]: the names sys and re, and harmless methods."""
    for node in ast.walk(expression):
        if isinstance(node, ast.Name) and node.id not in ("sys", "re"):
            return False
        if isinstance(node, ast.Attribute) and node.attr not in ("argv", "sub", "endswith", "removesuffix"):
            return False
    return True
