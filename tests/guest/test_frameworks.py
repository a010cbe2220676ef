"""The report about numeric libraries, in every Python on this machine, and with a real torch if there is one."""

from __future__ import annotations

import ast
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from repro_env.io.package import GUEST
from tests.environment.conftest import make_venv
from tests.fakes import numeric
from tests.guest.interpreters import BASE, pythons
from tests.parts import need

SCRIPT = GUEST / "frameworks.py"
LIBRARIES = GUEST / "numericlibraries.py"


def report(python: Path | str, directory: Path, **environ: str) -> list[dict[str, Any]]:
    """The lines of the report in a venv. For a base interpreter, which may have packages, a venv is created."""
    if not Path(python).parent.joinpath("activate").exists():
        python = make_venv(str(python), directory / "venv") / "bin" / "python"
    subprocess.run([python, SCRIPT, directory / "report"], check=False, env={**os.environ, **environ}, cwd=directory)
    return [json.loads(row) for row in (directory / "report").read_text().splitlines()]


@pytest.mark.parametrize("base", pythons())
def test_libraries_report_their_names_and_threads(base: str, tmp_path: Path) -> None:
    """In each Python from 3.8; includes names of files that a wheel builder changed."""
    later = ("libcudnn_ops_infer.so.8", "libcudnn_ops.so.9", "libnvrtc-builtins.so.12.4", "libmkl_avx2.so.2")
    names = [name for name in numeric.LIBRARIES if name not in later]
    torch = numeric.install(tmp_path, names, later=later)
    rows = report(base, tmp_path, PYTHONPATH=str(tmp_path), OMP_NUM_THREADS="9")
    assert rows[-1] == {"doing": ""}
    libraries = {row["library"]["name"]: row["library"] for row in rows if "library" in row}
    assert {name for name, library in libraries.items() if library["path"].startswith(str(torch))} == {
        "cudart", "cublas", "cudnn", "cudnn cnn_infer", "nccl", "nvrtc", "cuda driver", "rocblas", "mkl rt", "openblas", "openmp",
    }  # fmt: skip
    assert libraries["openblas"]["build"] == "OpenBLAS 0.2.18 NO_LAPACKE DYNAMIC_ARCH Zen"
    (deferred,) = (row["deferred"] for row in rows if "deferred" in row)
    assert {Path(path).name for path in deferred} == {"libcudnn_ops_infer.so.8", "libnvrtc-builtins.so.12.4", "libmkl_avx2.so.2"}
    threads = [row["threads"] for row in rows if "threads" in row]
    counts = {(row["library"], Path(row["path"]).name): row["count"] for row in threads}
    assert counts == {
        ("torch", ""): 9, ("torch interop", ""): 2, ("mkl", "libmkl_rt.so.2"): 7,
        ("openblas", "libopenblasp-r0-39a31c03.2.18.so"): 3,
        ("openmp", "libgomp-a34b3233.so.1.0.0"): 5, ("openmp", "libiomp5.so"): 6,
    }  # fmt: skip


def test_the_threads_of_an_mkl_that_is_linked_into_torch_are_reported(tmp_path: Path) -> None:
    torch = numeric.install(tmp_path, ["libtorch_cpu.so"])
    rows = report(BASE, tmp_path, PYTHONPATH=str(tmp_path))
    assert {"threads": {"library": "mkl", "path": f"{torch}/lib/libtorch_cpu.so", "count": 4}} in rows


def test_only_mapped_libraries_are_queried_and_none_is_loaded(tmp_path: Path) -> None:
    numeric.install(tmp_path, ["libplain.so.1"], later=["libcudnn.so.8", "libcudnn_ops_infer.so.8"])
    rows = report(BASE, tmp_path, PYTHONPATH=str(tmp_path))
    (mapped,) = (row["mapped"] for row in rows if "mapped" in row)
    assert any(path.endswith("libplain.so.1") for path in mapped)
    assert not any("cudnn" in path for path in mapped)
    assert not any("cudnn" in row["library"]["name"] for row in rows if "library" in row)


def test_the_report_before_a_crash_is_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(numeric.LIBRARIES, "libiomp5.so", "#include <stdlib.h>\nint omp_get_max_threads(void) { abort(); }")
    numeric.install(tmp_path, ["libcublas.so.12", "libiomp5.so"])
    rows = report(BASE, tmp_path, PYTHONPATH=str(tmp_path))
    assert rows[-1] == {"doing": "threads of openmp"}
    assert any(row.get("library", {}).get("name") == "cublas" for row in rows)


def test_the_report_about_a_real_torch(tmp_path: Path) -> None:
    """The values are those that torch reports in another process."""
    pythons = [*filter(None, os.environ.get("REPRO_ENV_TEST_PYTHONS", "").split(":"))]
    python = next(
        (
            path
            for path in pythons
            if not subprocess.run([path, "-c", "import importlib.util as u; assert u.find_spec('torch')"], check=False).returncode
        ),
        "",
    )
    need(python, "no interpreter with torch: make trainers, and name it in REPRO_ENV_TEST_PYTHONS")
    code = "import json, torch; print(json.dumps([torch.__version__, torch.get_num_threads()]))"
    environ = {"OMP_NUM_THREADS": "1"}
    done = subprocess.run([python, "-c", code], check=True, capture_output=True, env={**os.environ, **environ})
    version, threads = json.loads(done.stdout)
    rows = report(python, tmp_path, **environ)
    assert rows[-1] == {"doing": ""}
    assert {"torch": version} in rows
    assert {"threads": {"library": "torch", "path": "", "count": threads}} in rows
    assert threads == 1
    libraries = {row["library"]["name"]: row["library"] for row in rows if "library" in row}
    assert libraries["openblas"]["build"].startswith("OpenBLAS ")
    counts = {row["threads"]["library"]: row["threads"]["count"] for row in rows if "threads" in row}
    assert counts["openmp"] == 1
    assert not [row for row in rows if "unknown" in row]


@pytest.mark.parametrize("safe", ["", "1"])
def test_packages_of_the_environment_may_have_the_names_of_its_modules(tmp_path: Path, safe: str) -> None:
    """PyTorch imports packages that register with it. PYTHONSAFEPATH removes the script's directory from the path."""
    names = (SCRIPT.stem, LIBRARIES.stem)
    for name in names:
        (tmp_path / f"{name}.py").write_text("own = True")
    code = f"from importlib import import_module\n[import_module(name).own for name in {names!r}]\n"
    numeric.install(tmp_path, ["libgomp-a34b3233.so.1.0.0"], code=code + numeric.TORCH)
    rows = report(BASE, tmp_path, PYTHONPATH=str(tmp_path), PYTHONSAFEPATH=safe)
    assert {"torch": "2.4.0+cu124"} in rows
    assert any(row.get("library", {}).get("name") == "openmp" for row in rows)
    assert rows[-1] == {"doing": ""}


@pytest.mark.parametrize("path", [SCRIPT, LIBRARIES], ids=lambda path: path.stem)
def test_each_module_is_valid_python_3_8(path: Path) -> None:
    ast.parse(path.read_text(), feature_version=(3, 8))
