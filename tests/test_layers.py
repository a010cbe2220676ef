"""Imports go down only, the world is reached through few doors, and what runs in other interpreters needs nothing of ours."""

from __future__ import annotations

import ast
import functools
import graphlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sources import MODULES, PACKAGE, nodes

LINES = (
    ("cli",),
    ("api",),
    ("policy",),
    ("compare",),
    ("runs", "specs"),
    ("launch",),
    ("sandbox", "delivery"),
    ("environment",),
    ("store", "registry", "pages"),
    ("io", "oci"),
    ("schema",),
)
"""From the top down. A directory may import those on lines below its own, and itself."""
HEIGHT = {directory: height for height, line in enumerate(reversed(LINES)) for directory in line}
SHARED = "repro_env.guest.wheelrule"
"""Imports nothing of ours. The installer next to a Dockerfile contains its text instead of the import."""
PROCESSES = {"subprocess", "multiprocessing", "pty"}
SOCKETS = {"socket", "http", "urllib.request", "ssl", "requests", "urllib3", "pip"}
WORLD = {"io", "store", "environment", "sandbox", "delivery", "registry"}
"""Directories that may touch files, processes and the network at all."""
DOORS = {
    "subprocess": {"io/process.py"},
    # the last two: the processes of a run and their supervisor
    "socket": {"io/indexhttp.py", "io/engine.py", "sandbox/session.py", "sandbox/handover.py"},
    "asyncio": {"io/relay.py"},
    "requests": {"io/indexhttp.py", "io/registryhttp.py"},
    "urllib.request": {"io/indexhttp.py"},
    "docker": {"io/engine.py", "io/dockerlogin.py"},
}
BINDINGS = {"nvidia-ml-py": "pynvml", "pyyaml": "yaml"}
"""What a distribution is imported as, where that is not its name."""

IMPORT = re.compile(r"^[ ]*(?:from \S+ )?import (?:\([^)]*\)|.*)", re.MULTILINE)


@functools.cache
def imported(path: Path) -> tuple[str, ...]:
    """Every module that a file imports, wherever the statement stands, under its absolute name."""
    return tuple(_imported(path))


def _imported(path: Path) -> Iterator[str]:
    package = ".".join(("repro_env", *path.relative_to(PACKAGE).parent.parts))
    for node in nodes(path):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package.split(".")[: len(package.split(".")) - node.level + 1]) if node.level else ""
            module = ".".join(filter(None, (base, node.module)))
            yield from (f"{module}.{alias.name}" for alias in node.names)


def directory(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0]


def name(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def test_imports_go_down() -> None:
    for path in (path for path in MODULES if directory(path) in HEIGHT):
        own = directory(path)
        for module in imported(path):
            parts = module.split(".")
            if parts[0] != "repro_env" or parts[1:2] in ([], ["version"]) or parts[1] == own:
                continue
            if module.startswith(SHARED):
                continue
            assert parts[1] in HEIGHT, f"{name(path)} imports {module}, which is on no line"
            assert HEIGHT[parts[1]] < HEIGHT[own], f"{name(path)} imports {module}: {parts[1]} is not below {own}"


def test_no_file_needs_one_that_needs_it() -> None:
    files = {
        ".".join(("repro_env", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__"): path
        for path in MODULES
    }
    needs = {}
    for one, path in files.items():
        # `from package import name`: the module of that name, else the package itself
        found = {module if module in files else module.rpartition(".")[0] for module in imported(path)}
        needs[one] = (found & files.keys()) - {one}
    try:
        graphlib.TopologicalSorter(needs).prepare()
    except graphlib.CycleError as error:
        pytest.fail(f"in a circle: {' -> '.join(error.args[1])}")


def test_every_directory_has_its_line() -> None:
    directories = {directory(path) for path in MODULES if len(path.relative_to(PACKAGE).parts) > 1}
    assert directories - {"guest", "checkpoint", "pytestplugin"} <= set(HEIGHT)


def test_the_world_is_reached_through_few_doors() -> None:
    for path in (path for path in MODULES if directory(path) in HEIGHT):
        for module in imported(path):
            top = module.split(".")[0]
            if top in PROCESSES | SOCKETS or module in SOCKETS:
                assert directory(path) in WORLD, f"{name(path)} imports {module}: only {sorted(WORLD)} touch the world"
            for door, allowed in DOORS.items():
                if module == door or module.startswith(door + "."):
                    assert name(path) in allowed, f"{name(path)} imports {module}: the door is {sorted(allowed)}"


def test_what_goes_inside_needs_the_standard_library_only() -> None:
    for path in (path for path in MODULES if directory(path) == "guest"):
        own = ".".join(("repro_env", *path.relative_to(PACKAGE).parent.parts))
        together = own == "repro_env.guest.tensors"  # a directory that is shipped whole
        for node in nodes(path):
            if isinstance(node, ast.ImportFrom):
                assert node.level <= together, f"{name(path)} imports from its own package"
        for module in imported(path):
            if not (together and module.startswith(own + ".")):
                assert module.split(".")[0] in sys.stdlib_module_names or module.startswith(SHARED), (
                    f"{name(path)} imports {module}"
                )


def test_checkpoints_need_what_the_training_has_already() -> None:
    for path in (path for path in MODULES if directory(path) == "checkpoint"):
        ast.parse(path.read_text(), feature_version=(3, 8))
        known = {*sys.stdlib_module_names, "torch", "numpy", "repro_env"} | (
            {path.stem} & {"lightning", "transformers", "accelerate"}
        )
        for module in imported(path):
            parts = module.split(".")
            assert parts[0] in known, f"{name(path)} imports {module}"
            assert parts[0] != "repro_env" or parts[1] in ("checkpoint", "version"), f"{name(path)} imports {module}"


def test_the_pytest_plugin_needs_pytest_and_the_standard_library_only() -> None:
    for path in (path for path in MODULES if directory(path) == "pytestplugin"):
        for module in imported(path):
            known = module.split(".")[0] in {*sys.stdlib_module_names, "pytest"}
            assert known or module.startswith(("repro_env.pytestplugin", "repro_env.guest.tensors")), f"{name(path)}: {module}"


def test_what_is_imported_is_a_dependency() -> None:
    """Of the project itself: not of one of its dependencies, which may drop it."""
    text = (PACKAGE.parent / "pyproject.toml").read_text()
    listed = re.search(r"^dependencies = \[(.*?)\]", text, re.DOTALL | re.MULTILINE)
    assert listed
    names = re.findall(r'"([a-z0-9-]+)', listed[1])
    allowed = {*(BINDINGS.get(each, each) for each in names), "repro_env", "tomllib", *sys.stdlib_module_names}
    for path in (path for path in MODULES if directory(path) not in ("guest", "checkpoint", "pytestplugin")):
        for module in imported(path):
            assert module.split(".")[0] in allowed, f"{name(path)} imports {module}, which pyproject.toml does not name"


def test_no_test_module_imports_another() -> None:
    """What several test modules use is in a module that has no tests, where it is found and cannot be collected twice."""
    for path in Path(__file__).parent.rglob("*.py"):
        assert not [found[0] for found in IMPORT.finditer(path.read_text()) if re.search(r"\btest_", found[0])], path
