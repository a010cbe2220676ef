"""What the libraries are asked, in every Python on this machine, and with the real torch where it is."""

from __future__ import annotations

import ast
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from repro_env.capture.python import INSIDE
from tests.capture.conftest import make_venv
from tests.fakes import numeric
from tests.inside.test_probe import BASE, pythons
from tests.parts import need

SCRIPT = INSIDE / "frameworks.py"
QUESTIONS = sorted((INSIDE / "numeric").glob("*.py"))


def report(python: Path | str, folder: Path, **environ: str) -> list[dict[str, Any]]:
    """Of a venv of that Python, or of that venv: the base may have packages of its own."""
    if not Path(python).parent.joinpath("activate").exists():
        python = make_venv(str(python), folder / "venv") / "bin" / "python"
    subprocess.run([python, SCRIPT, folder / "report"], check=False, env={**os.environ, **environ}, cwd=folder)
    return [json.loads(row) for row in (folder / "report").read_text().splitlines()]


@pytest.mark.parametrize("base", pythons())
def test_libraries_say_their_versions(base: str, tmp_path: Path) -> None:
    """In each Python from 3.8 on; names of one library that its file was given by a wheel's builder included."""
    later = ("libcudnn_ops_infer.so.8", "libcudnn_ops.so.9", "libnvrtc-builtins.so.12.4", "libmkl_avx2.so.2")
    names = [name for name in numeric.LIBRARIES if name not in later]
    torch = numeric.install(tmp_path, names, later=later)
    rows = report(base, tmp_path, PYTHONPATH=str(tmp_path), OMP_NUM_THREADS="9")
    assert rows[-1] == {"doing": ""}
    told = {row["library"]["name"]: row["library"] for row in rows if "library" in row}
    mapped = {name: one["version"] for name, one in told.items() if one["how"] == "mapped" and one["path"].startswith(str(torch))}
    assert mapped == {
        "cudart": "11.8", "cublas": "12.4.5", "cublaslt": "12.4.5", "cudnn": "8.9.2", "cudnn cnn_infer": "", "nccl": "2.8.4",
        "nvrtc": "12.4", "cufft": "", "cusolver": "", "cuda driver": "12.4", "hip": "6.4.43484", "rocblas": "4.4.1.9a3c91fa",
        "miopen": "3.4.0", "rccl": "2.22.3", "mkl rt": "2024.2", "openblas": "0.2.18", "openmp": "",
    }  # fmt: skip
    assert told["openblas"]["build"] == "OpenBLAS 0.2.18 NO_LAPACKE DYNAMIC_ARCH Zen"
    beside = {Path(one["path"]).name for one in told.values() if one["how"] == "beside"}
    assert beside == {"libcudnn_ops_infer.so.8", "libnvrtc-builtins.so.12.4", "libmkl_avx2.so.2"}  # and not version 9 of it
    unknown = [row["unknown"] for row in rows if "unknown" in row]
    assert "version of libcufft.so.11: OSError: cufftGetProperty gives error 7" in unknown
    assert any(row.startswith("version of libcusolver.so.11: AttributeError") for row in unknown)
    threads = [row["threads"] for row in rows if "threads" in row]
    counts = {(one["library"], Path(one["path"]).name): one["count"] for one in threads}
    assert counts == {
        ("torch", ""): 9, ("torch interop", ""): 2, ("mkl", "libmkl_rt.so.2"): 7,
        ("openblas", "libopenblasp-r0-39a31c03.2.18.so"): 3,
        ("openmp", "libgomp-a34b3233.so.1.0.0"): 5, ("openmp", "libiomp5.so"): 6,
    }  # fmt: skip


def test_libraries_that_are_part_of_torch_itself(tmp_path: Path) -> None:
    """As in older wheels, which link NCCL and cuDNN in: torch's own word, and the file that holds them."""
    torch = numeric.install(tmp_path, ["libtorch_cpu.so", "libtorch_cuda.so"])
    rows = report(BASE, tmp_path, PYTHONPATH=str(tmp_path))
    told = {row["library"]["name"]: row["library"] for row in rows if "library" in row and row["library"]["how"] == "static"}
    assert {name: (one["version"], Path(one["path"]).name) for name, one in told.items()} == {
        "mkl": ("2024.2", "libtorch_cpu.so"), "onednn": ("3.4.2", "libtorch_cpu.so"),
        "cudnn": ("8.9.2", "libtorch_cuda.so"), "nccl": ("2.21.5", "libtorch_cuda.so"),
    }  # fmt: skip
    assert {"threads": {"library": "mkl", "path": f"{torch}/lib/libtorch_cpu.so", "count": 4}} in rows


def test_what_is_mapped_is_asked_and_nothing_is_loaded(tmp_path: Path) -> None:
    numeric.install(tmp_path, ["libplain.so.1"], later=["libcudnn.so.8", "libcudnn_ops_infer.so.8"])
    rows = report(BASE, tmp_path, PYTHONPATH=str(tmp_path))
    (mapped,) = (row["mapped"] for row in rows if "mapped" in row)
    assert any(path.endswith("libplain.so.1") for path in mapped)
    assert not any("cudnn" in path for path in mapped)
    assert not any("cudnn" in row["library"]["name"] and row["library"]["how"] != "static" for row in rows if "library" in row)


def test_a_library_that_crashes_when_asked_costs_what_comes_after(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(numeric.LIBRARIES, "libnccl.so.2", "#include <stdlib.h>\nint ncclGetVersion(int *v) { abort(); }")
    numeric.install(tmp_path, ["libcublas.so.12", "libnccl.so.2"])
    rows = report(BASE, tmp_path, PYTHONPATH=str(tmp_path))
    assert rows[-1] == {"doing": "version of libnccl.so.2"}
    assert any(row.get("library", {}).get("name") == "cublas" for row in rows)


def test_a_real_torch(tmp_path: Path) -> None:
    """The numbers are what torch itself says in another process."""
    found = [*filter(None, os.environ.get("REPRO_ENV_TEST_PYTHONS", "").split(":"))]
    python = next(
        (
            one
            for one in found
            if not subprocess.run([one, "-c", "import importlib.util as u; assert u.find_spec('torch')"], check=False).returncode
        ),
        "",
    )
    need(python, "no interpreter with torch: make trainers, and name it in REPRO_ENV_TEST_PYTHONS")
    code = "import json, torch, numpy; print(json.dumps([torch.__version__, torch.version.git_version, numpy.__version__, torch.get_num_threads()]))"
    environ = {"OMP_NUM_THREADS": "1"}
    said = subprocess.run([python, "-c", code], check=True, capture_output=True, env={**os.environ, **environ})
    version, git, numpy, threads = json.loads(said.stdout)
    rows = report(python, tmp_path, **environ)
    assert rows[-1] == {"doing": ""}
    assert {"imported": "torch", "version": version} in rows
    assert {"imported": "numpy", "version": numpy} in rows
    assert {"torch_git": git} in rows
    assert {"threads": {"library": "torch", "path": "", "count": threads}} in rows
    assert threads == 1
    told = {row["library"]["name"]: row["library"] for row in rows if "library" in row}
    assert told["openblas"]["version"]
    assert told["openblas"]["version"] in told["openblas"]["build"]
    assert told["mkl"]["how"] == "static"
    counts = {row["threads"]["library"]: row["threads"]["count"] for row in rows if "threads" in row}
    assert counts["openmp"] == 1
    assert not [row for row in rows if "unknown" in row]


@pytest.mark.parametrize("safe", ["", "1"])
def test_what_it_is_made_of_takes_no_name_from_the_environment(tmp_path: Path, safe: str) -> None:
    """PyTorch imports what any distribution registers with it; PYTHONSAFEPATH takes the script's own folder off the path."""
    names = ("frameworks", "numeric", *(path.stem for path in QUESTIONS if path.stem != "__init__"))
    for name in names:
        (tmp_path / f"{name}.py").write_text("own = True")
    code = f"from importlib import import_module\n[import_module(name).own for name in {names!r}]\n"
    numeric.install(tmp_path, ["libgomp-a34b3233.so.1.0.0"], code=code + numeric.TORCH)
    rows = report(BASE, tmp_path, PYTHONPATH=str(tmp_path), PYTHONSAFEPATH=safe)
    assert {"imported": "torch", "version": "2.4.0+cu124"} in rows
    assert any(row.get("library", {}).get("name") == "openmp" for row in rows)
    assert rows[-1] == {"doing": ""}


@pytest.mark.parametrize("path", [SCRIPT, *QUESTIONS], ids=lambda path: path.stem)
def test_it_needs_the_standard_library_of_python_3_8_only(path: Path) -> None:
    ast.parse(path.read_text(), feature_version=(3, 8))
