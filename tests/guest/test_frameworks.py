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
from tests.guest.test_probe import BASE, pythons
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
def test_libraries_report_their_versions_and_threads(base: str, tmp_path: Path) -> None:
    """In each Python from 3.8; includes names of files that a wheel builder changed."""
    later = ("libcudnn_ops_infer.so.8", "libcudnn_ops.so.9", "libnvrtc-builtins.so.12.4", "libmkl_avx2.so.2")
    names = [name for name in numeric.LIBRARIES if name not in later]
    torch = numeric.install(tmp_path, names, later=later)
    rows = report(base, tmp_path, PYTHONPATH=str(tmp_path), OMP_NUM_THREADS="9")
    assert rows[-1] == {"doing": ""}
    libraries = {row["library"]["name"]: row["library"] for row in rows if "library" in row}
    mapped = {
        name: library["version"]
        for name, library in libraries.items()
        if library["how"] == "mapped" and library["path"].startswith(str(torch))
    }
    assert mapped == {
        "cudart": "11.8", "cublas": "", "cudnn": "8.9.2", "cudnn cnn_infer": "", "nccl": "2.8.4", "nvrtc": "", "cuda driver": "12.4",
        "rocblas": "", "mkl rt": "2024.2", "openblas": "0.2.18", "openmp": "",
    }  # fmt: skip
    assert libraries["openblas"]["build"] == "OpenBLAS 0.2.18 NO_LAPACKE DYNAMIC_ARCH Zen"
    deferred = {Path(library["path"]).name for library in libraries.values() if library["how"] == "beside"}
    assert deferred == {"libcudnn_ops_infer.so.8", "libnvrtc-builtins.so.12.4", "libmkl_avx2.so.2"}  # but not its version 9
    threads = [row["threads"] for row in rows if "threads" in row]
    counts = {(row["library"], Path(row["path"]).name): row["count"] for row in threads}
    assert counts == {
        ("torch", ""): 9, ("torch interop", ""): 2, ("mkl", "libmkl_rt.so.2"): 7,
        ("openblas", "libopenblasp-r0-39a31c03.2.18.so"): 3,
        ("openmp", "libgomp-a34b3233.so.1.0.0"): 5, ("openmp", "libiomp5.so"): 6,
    }  # fmt: skip


def test_libraries_that_are_linked_into_torch_are_reported(tmp_path: Path) -> None:
    """Older wheels link NCCL and cuDNN statically: torch reports the version, and the path is that of its own library."""
    torch = numeric.install(tmp_path, ["libtorch_cpu.so", "libtorch_cuda.so"])
    rows = report(BASE, tmp_path, PYTHONPATH=str(tmp_path))
    libraries = [row["library"] for row in rows if "library" in row and row["library"]["how"] == "static"]
    assert {library["name"]: (library["version"], Path(library["path"]).name) for library in libraries} == {
        "mkl": ("2024.2", "libtorch_cpu.so"), "cudnn": ("8.9.2", "libtorch_cuda.so"), "nccl": ("2.21.5", "libtorch_cuda.so"),
    }  # fmt: skip
    assert {"threads": {"library": "mkl", "path": f"{torch}/lib/libtorch_cpu.so", "count": 4}} in rows


def test_only_mapped_libraries_are_queried_and_none_is_loaded(tmp_path: Path) -> None:
    numeric.install(tmp_path, ["libplain.so.1"], later=["libcudnn.so.8", "libcudnn_ops_infer.so.8"])
    rows = report(BASE, tmp_path, PYTHONPATH=str(tmp_path))
    (mapped,) = (row["mapped"] for row in rows if "mapped" in row)
    assert any(path.endswith("libplain.so.1") for path in mapped)
    assert not any("cudnn" in path for path in mapped)
    assert not any("cudnn" in row["library"]["name"] and row["library"]["how"] != "static" for row in rows if "library" in row)


def test_a_version_that_cannot_be_read_is_reported_as_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(numeric.LIBRARIES, "libnccl.so.2", "int ncclGetVersion(int *v) { return 7; }")
    monkeypatch.setitem(numeric.LIBRARIES, "libcudnn.so.8", "int without_this_function;")
    numeric.install(tmp_path, ["libcudnn.so.8", "libnccl.so.2"])
    rows = report(BASE, tmp_path, PYTHONPATH=str(tmp_path))
    versions = {row["library"]["name"]: row["library"]["version"] for row in rows if "library" in row}
    assert (versions["cudnn"], versions["nccl"]) == ("", "")
    unknown = [row["unknown"] for row in rows if "unknown" in row]
    assert "version of libnccl.so.2: OSError: ncclGetVersion returned error 7" in unknown
    assert any(row.startswith("version of libcudnn.so.8: AttributeError") for row in unknown)


def test_the_report_before_a_crash_is_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(numeric.LIBRARIES, "libnccl.so.2", "#include <stdlib.h>\nint ncclGetVersion(int *v) { abort(); }")
    numeric.install(tmp_path, ["libcublas.so.12", "libnccl.so.2"])
    rows = report(BASE, tmp_path, PYTHONPATH=str(tmp_path))
    assert rows[-1] == {"doing": "version of libnccl.so.2"}
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
    code = "import json, torch, numpy; print(json.dumps([torch.__version__, torch.version.git_version, numpy.__version__, torch.get_num_threads()]))"
    environ = {"OMP_NUM_THREADS": "1"}
    done = subprocess.run([python, "-c", code], check=True, capture_output=True, env={**os.environ, **environ})
    version, git, numpy, threads = json.loads(done.stdout)
    rows = report(python, tmp_path, **environ)
    assert rows[-1] == {"doing": ""}
    assert {"imported": "torch", "version": version} in rows
    assert {"imported": "numpy", "version": numpy} in rows
    assert {"torch_git": git} in rows
    assert {"threads": {"library": "torch", "path": "", "count": threads}} in rows
    assert threads == 1
    libraries = {row["library"]["name"]: row["library"] for row in rows if "library" in row}
    assert libraries["openblas"]["version"]
    assert libraries["openblas"]["version"] in libraries["openblas"]["build"]
    assert libraries["mkl"]["how"] == "static"
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
    assert {"imported": "torch", "version": "2.4.0+cu124"} in rows
    assert any(row.get("library", {}).get("name") == "openmp" for row in rows)
    assert rows[-1] == {"doing": ""}


@pytest.mark.parametrize("path", [SCRIPT, LIBRARIES], ids=lambda path: path.stem)
def test_each_module_is_valid_python_3_8(path: Path) -> None:
    ast.parse(path.read_text(), feature_version=(3, 8))
