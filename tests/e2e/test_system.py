"""The system behind an environment: programs that do their work in a run, and libraries that belong to no package."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

from tests.e2e import parts
from tests.parts import need

SCRIPT = """
import ctypes, os, pathlib, subprocess
print(ctypes.CDLL("libvendor.so.1").answer(), os.environ.get("LD_LIBRARY_PATH"))
work = pathlib.Path(os.environ["TMPDIR"] if "TMPDIR" in os.environ else "/tmp")
(work / "x.c").write_text('#include <stdio.h>\\nint main(void) { puts("compiled"); return 0; }')
subprocess.run(["gcc", "-O1", "-o", str(work / "x"), str(work / "x.c")], check=True)
print(subprocess.run([str(work / "x")], capture_output=True, text=True).stdout.strip())
subprocess.run(["git", "init", "-q", str(work / "repository")], check=True)
print(subprocess.run(["git", "-C", str(work / "repository"), "status", "--short", "--branch"], capture_output=True, text=True).stdout.strip())
"""


def test_programs_and_a_vendors_libraries_work_after_the_vendors_directory_is_removed(tmp_path: Path) -> None:
    for program in ("gcc", "git"):
        need(shutil.which(program, path="/usr/bin"), f"{program}: apt-get install {program}")
    vendor = tmp_path / "vendor/lib"
    vendor.mkdir(parents=True)
    (tmp_path / "vendor.c").write_text("int answer(void) { return 42; }")
    built = vendor / "libvendor.so.1"
    subprocess.run(["gcc", "-shared", "-fPIC", "-Wl,-soname,libvendor.so.1", "-o", built, tmp_path / "vendor.c"], check=True)
    directory = tmp_path / "project"
    directory.mkdir()
    (directory / "work.py").write_text(SCRIPT)
    project = parts.project(directory, parts.venv(directory / ".venv", own_pip=False), tmp_path / "store")
    project.capture("--with", "gcc", "--with", "git", "--with", vendor, env={"LD_LIBRARY_PATH": str(vendor)})
    spec = json.loads((directory / "repro/spec.json").read_text())
    (bundled,) = (bundled for bundled in spec["observed"]["bundled"] if bundled["why"] == "belongs to no package of the system")
    assert (bundled["name"], bundled["size"]) == (str(vendor), built.stat().st_size)
    assert [layer["kind"] for layer in spec["expected"]["layers"]][:3] == ["base", "unpackaged", "interpreter"]
    (tmp_path / "vendor").rename(tmp_path / "gone")
    other = project.elsewhere(tmp_path / "other")
    assert other.rebuild() == spec["expected"]["image_id"]
    lines = other.run("exec", "work.py").out.splitlines()
    assert lines[:2] == [f"42 {vendor}", "compiled"]
    assert lines[2].startswith("## No commits yet on ")
