"""The static probe, compared with what each Python on this machine reports."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from repro_env.io.package import GUEST
from tests.guest.interpreters import BASE, pythons

ORACLE = """
import json, platform, sys, sysconfig
paths = sysconfig.get_paths()
print(json.dumps({
    "prefix": sys.prefix, "base": sys.base_prefix, "purelib": paths["purelib"], "platlib": paths["platlib"],
    "scripts": paths["scripts"], "stdlib": paths["stdlib"], "version": platform.python_version(),
    "cache_tag": sys.implementation.cache_tag,
}))
"""


def probe(python: Path | str, **env: str) -> dict[str, Any]:
    argv = [str(python), "-I", "-S", "-B", str(GUEST / "probe.py")]
    done = subprocess.run(argv, capture_output=True, check=True, env={**os.environ, **env})
    assert done.stderr == b""
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


@pytest.mark.parametrize("options", [(), ("--copies",)])
@pytest.mark.parametrize("base", pythons())
def test_the_probe_reports_the_same_facts_as_python(tmp_path: Path, base: str, options: tuple[str, ...]) -> None:
    subprocess.run([base, "-m", "venv", "--without-pip", *options, str(tmp_path / "v")], check=True)
    python = tmp_path / "v" / "bin" / "python"
    oracle = json.loads(subprocess.run([python, "-I", "-c", ORACLE], capture_output=True, check=True).stdout)

    facts = probe(python)["facts"]
    interpreter, layout = facts["interpreter"], facts["layout"]

    assert layout["prefix"] == oracle["prefix"] == str(tmp_path / "v")
    for key in ("purelib", "platlib", "scripts"):
        assert f"{layout['prefix']}/{layout[key]}" == oracle[key]
    assert (interpreter["prefix"], interpreter["stdlib"]) == (oracle["base"], oracle["stdlib"])
    for key in ("version", "cache_tag"):
        assert interpreter[key] == oracle[key], key
    assert interpreter["executable"] == base
    assert (Path(str(interpreter["platstdlib"])) / "lib-dynload").is_dir()
    assert facts["kind"] == "venv"


def test_libpython_is_the_library_that_the_loader_maps(tmp_path: Path) -> None:
    interpreter = probe(BASE)["facts"]["interpreter"]
    libraries = subprocess.run(["ldd", BASE], capture_output=True, text=True, check=False).stdout
    rows = [row.split("=>")[1].split("(")[0].strip() for row in libraries.splitlines() if "libpython" in row and "=>" in row]
    assert interpreter["libpython"] == (os.path.realpath(rows[0]) if rows else None)


def test_the_probe_runs_no_code_of_the_environment(venv: Path, tmp_path: Path) -> None:
    """A `.pth`, a `sitecustomize`, PYTHONPATH and PYTHONSTARTUP would each leave a mark."""
    mark = tmp_path / "mark"
    evil = f"import pathlib; pathlib.Path({str(mark)!r}).write_text('run')"
    site = next((venv / "lib").glob("python*/site-packages"))
    (site / "evil.pth").write_text(evil + "\n")
    (site / "sitecustomize.py").write_text(evil)
    for name in ("json", "ssl", "platform", "sysconfig", "os"):
        (site / f"{name}.py").write_text(evil)
    before = sorted(path for path in tmp_path.rglob("*"))
    plain = probe(venv / "bin" / "python")
    assert probe(venv / "bin" / "python", PYTHONPATH=str(site), PYTHONSTARTUP=str(site / "ssl.py")) == plain
    assert sorted(path for path in tmp_path.rglob("*")) == before


def test_a_base_interpreter_is_not_a_venv() -> None:
    assert probe(BASE)["facts"]["kind"] in ("interpreter", "system")


def test_a_venv_with_records_of_conda_is_a_venv(venv: Path) -> None:
    (venv / "conda-meta").mkdir()
    assert probe(venv / "bin" / "python")["facts"]["kind"] == "venv"
