"""Facts about PyTorch and its libraries, from small fake packages and from recorded reports of CUDA builds."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from repro_env.environment.machine import frameworks
from repro_env.environment.python.distributions import InstalledDistribution
from repro_env.schema import codec
from repro_env.schema.environment import Distribution, Interpretation, Interpreter, Layout
from repro_env.schema.frameworks import Device, Frameworks, Library, Threads
from repro_env.store.facts import FactCache
from tests.fakes import numeric

REPORT = Path(__file__).parents[2] / "fakes" / "frameworks" / "torch-2.15.0+cu132.report"
SITE = f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
EXPECTED_CUDA = {
    "cublas", "cublaslt", "cudart", "cudnn", "cudnn graph", "cufft", "cusolver", "cusparse", "nccl", "nvrtc", "nvrtc builtins",
    "openblas", "openmp",
}  # fmt: skip


def interpretation(venv: Path) -> Interpretation:
    prefix = str(venv)
    return Interpretation(
        interpreter=Interpreter(
           version="3.11.7", executable="/p/bin/python3", prefix="/p", stdlib="/p/lib",
            platstdlib="/p/lib", libpython=None, cache_tag="",
        ),
        layout=Layout(prefix=prefix, purelib=SITE, platlib=SITE, scripts="bin", headers="include"),
        kind="venv",
        command=f"{prefix}/bin/python",
    )  # fmt: skip


class Cache(FactCache):
    """Counts the stored values."""

    count = 0

    def put(self, kind: str, key: str, value: bytes) -> None:
        self.count += 1
        super().put(kind, key, value)


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    (tmp_path / "facts").mkdir()
    return Cache(tmp_path / "facts")


def look(venv: Path, cache: Cache, *, state: str = "1", machine: Any = None, **environ: str) -> frameworks.Report:
    return frameworks.look(interpretation(venv), {**os.environ, **environ}, state=state, machine=machine, cache=cache)


def test_reports_torch_and_its_libraries(venv: Path, cache: Cache) -> None:
    torch = numeric.install(
        venv / SITE, ["libcudnn.so.8", "libgomp-a34b3233.so.1.0.0", "libcuda.so.1"], later=["libcudnn_ops_infer.so.8"]
    )
    report = look(venv, cache, OMP_NUM_THREADS="3")
    lib = f"{os.path.realpath(torch)}/lib"
    found = report.facts
    assert found == Frameworks(
        torch="2.4.0+cu124", cpu_capability="AVX2", cuda="12.4", architectures=("sm_80", "sm_90", "compute_90"),
        devices=(Device(name="NVIDIA H100 80GB HBM3", architecture="9.0", units=132, memory=85520809984),),
        libraries=(
            Library(name="cuda driver", path=f"{lib}/libcuda.so.1"),
            Library(name="cudnn", path=f"{lib}/libcudnn.so.8"),
            Library(name="openmp", path=f"{lib}/libgomp-a34b3233.so.1.0.0"),
        ),
        threads=(
            Threads(library="openmp", path=f"{lib}/libgomp-a34b3233.so.1.0.0", count=5),
            Threads(library="torch", count=3),
            Threads(library="torch interop", count=2),
        ),
        unknown=("torch's GPU 1: RuntimeError: CUDA error: out of memory",),
    )  # fmt: skip
    assert f"{lib}/libcudnn.so.8" in report.mapped
    assert report.deferred == (f"{lib}/libcudnn_ops_infer.so.8",)


def test_the_cached_report_is_returned_while_nothing_changed(venv: Path, cache: Cache, tmp_path: Path) -> None:
    torch = numeric.install(venv / SITE, ["libgomp-a34b3233.so.1.0.0"])
    first = look(venv, cache)
    assert cache.count == 1
    mark = tmp_path / "imported"
    (torch / "__init__.py").write_text(f"open({str(mark)!r}, 'w'); " + (torch / "__init__.py").read_text().lstrip())
    assert look(venv, cache, HOME="/elsewhere", SLURM_JOB_ID="7", PATH=os.environ["PATH"] + ":/more") == first
    assert not mark.exists()
    assert cache.count == 1


@pytest.mark.parametrize(
    "change",
    [
        {"state": "2"},
        {"machine": ["driver 580.159.04"]},
        {"OMP_NUM_THREADS": "1"},
        {"CUDA_VISIBLE_DEVICES": "1"},
        {"LD_LIBRARY_PATH": "/opt/other"},
    ],
)
def test_a_relevant_change_invalidates_the_cached_report(venv: Path, cache: Cache, change: dict[str, Any]) -> None:
    numeric.install(venv / SITE, ["libgomp-a34b3233.so.1.0.0"])
    look(venv, cache)
    look(venv, cache, **change)
    assert cache.count == 2


def test_a_changed_library_outside_the_environment_invalidates_the_cached_report(
    venv: Path, cache: Cache, tmp_path: Path
) -> None:
    outside = numeric.build(tmp_path / "opt", ["libcublas.so.12"])
    code = f"import ctypes; library = ctypes.CDLL({str(outside / 'libcublas.so.12')!r})\n" + numeric.TORCH
    numeric.install(venv / SITE, ["libplain.so.1"], code=code)
    look(venv, cache)
    os.utime(outside / "libcublas.so.12", ns=(1, 1))
    look(venv, cache)
    assert cache.count == 2


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        ("raise ImportError('libcudnn.so.9: cannot open shared object file')", "import of torch: ImportError: libcudnn.so.9: cannot open shared object file"),
        ("raise SystemExit(0)", "import of torch: SystemExit: 0"),
        ("import os; os._exit(0)", "ended with exit code 0 during import of torch"),
        ("import os; os.kill(os.getpid(), 11)", "was killed by signal 11 during import of torch"),
        ("import sys; open(sys.argv[1], 'w').write('{\"libraries\"')", "its report was damaged before the probe started"),
        ("import sys; open(sys.argv[1], 'w').write('[1]\\n'); import os; os._exit(0)", "ended with exit code 0 before the probe started"),
    ],
)  # fmt: skip
def test_a_failed_import_of_torch_is_a_problem(venv: Path, cache: Cache, code: str, problem: str) -> None:
    numeric.plain(venv / SITE, "numpy", "__version__ = '2.4.6'")
    numeric.plain(venv / SITE, "torch", code)
    report = look(venv, cache)
    assert report.facts.problem == problem
    assert report.facts.torch == ""
    assert cache.count == 0  # the failure may be temporary


def test_a_hanging_import_of_torch_is_a_problem(venv: Path, cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    numeric.plain(venv / SITE, "numpy", "__version__ = '2.4.6'")
    numeric.plain(venv / SITE, "torch", "import time; time.sleep(1000)")

    def within(seconds: int) -> Any:
        monkeypatch.setattr(frameworks, "TIMEOUT", float(seconds))
        return look(venv, cache)

    seconds, report = 3, within(3)
    if "torch" not in report.facts.problem:  # a busy machine may need more time before torch
        seconds, report = 60, within(60)
    assert report.facts.problem == f"did not end within {seconds} s during import of torch"
    assert report.facts.torch == ""
    assert cache.count == 0


def test_output_of_a_package_does_not_damage_the_report(venv: Path, cache: Cache) -> None:
    noise = "import sys, os; print('{\"doing\": \"x\"}'); os.write(1, b'\\xff' * 100000); sys.stderr.write('x\\n')\n"
    numeric.install(venv / SITE, ["libplain.so.1"], code=noise + numeric.TORCH)
    assert look(venv, cache).facts.problem == ""


def test_problems_contain_no_secrets(venv: Path, cache: Cache) -> None:
    numeric.plain(venv / SITE, "torch", "raise OSError('GET https://ann:hunter2@example.org/x')")
    found = look(venv, cache)
    assert "hunter2" not in codec.canonical(found).decode()
    assert "example.org" in found.facts.problem
    numeric.plain(venv / SITE, "numpy", "import os; raise OSError('no licence for ' + os.environ['LICENCE'])")
    found = look(venv, cache, LICENCE="abcdef1234")
    assert "no licence for" in found.facts.problem
    assert "abcdef1234" not in codec.canonical(found).decode()


def test_a_python_that_does_not_start_is_a_problem(venv: Path, cache: Cache) -> None:
    assert look(venv, cache).facts == Frameworks()
    (venv / "bin" / "python").unlink()
    assert look(venv, cache, state="2").facts.problem.startswith("Python did not start: ")


def test_without_torch_other_packages_are_imported(venv: Path, cache: Cache, tmp_path: Path) -> None:
    marks = [tmp_path / name for name in ("jax", "numpy")]
    for mark in marks:
        numeric.plain(venv / SITE, mark.name, f"open({str(mark)!r}, 'w')")
    assert look(venv, cache).facts.torch == ""
    assert all(mark.exists() for mark in marks)
    marks[0].unlink()
    numeric.plain(venv / SITE, "torch", numeric.TORCH.replace("os.listdir(HERE)", "()"))
    assert look(venv, cache, state="2").facts.torch == "2.4.0+cu124"
    assert not marks[0].exists()


def test_reads_a_report_of_a_cuda_build_without_a_gpu() -> None:
    """torch 2.15.0 for CUDA 13.2, with the wheels of its index; the paths are invented."""
    report = frameworks.read(REPORT.read_text().splitlines())
    found = report.facts
    assert (found.problem, found.unknown, found.devices, found.torch) == ("", (), (), "2.15.0+cu132")
    libraries = found.libraries
    assert {library.name for library in libraries} >= EXPECTED_CUDA
    assert list(libraries) == sorted(libraries, key=lambda library: (library.name, library.path))
    assert {pool.library: pool.count for pool in found.threads} == {
        "mkl": 2, "openblas": 2, "openmp": 2, "torch": 2, "torch interop": 2,
    }  # fmt: skip
    assert len(report.deferred) == 8
    assert codec.decode(codec.canonical(report), frameworks.Report, where="") == report


def test_a_report_that_is_cut_at_any_position_can_be_read() -> None:
    text = REPORT.read_text()
    for end in range(0, len(text), 97):
        found = frameworks.read(text[:end].splitlines(), "was killed by signal 9").facts
        assert found.problem.startswith("was killed by signal 9")
        assert found.torch in ("", "2.15.0+cu132")


@pytest.mark.parametrize("row", ["[]", "7", '{"library": 7}', '{"threads": {}}', '{"device": {"name": "x"}}', '{"mapped": 3}', '{"torch": [[]]}',
    '{"library": {"name": "x", "path": "/x", "how": "eaten"}}', '{"threads": {"library": "x", "path": "", "count": "many"}}'])  # fmt: skip
def test_a_report_with_unexpected_values_can_be_stored(row: str) -> None:
    found = frameworks.read(['{"started": true}', row, '{"doing": ""}'])
    assert codec.decode(codec.canonical(found), frameworks.Report, where="") == found


def test_owners_are_read_from_record(tmp_path: Path) -> None:
    def distribution(name: str, record: str) -> InstalledDistribution:
        facts = Distribution(
            name=name, version="13.4.1.3", dist_info=f"{SITE}/{name}.dist-info", site=SITE, tags=(), build="",
            direct_url="", editable=False, has_record=True,
        )  # fmt: skip
        return InstalledDistribution(facts, record.encode(), b"", b"")

    (tmp_path / SITE / "nvidia" / "lib").mkdir(parents=True)
    (tmp_path / "linked").symlink_to(tmp_path / SITE / "nvidia")
    installed = [
        distribution("nvidia-cublas", "nvidia/lib/libcublas.so.13,sha256=x,5\nnvidia/lib/x.py,,\n"),
        distribution("odd", '"nvidia/a,b/libodd.so.1",sha256=x,5\n../../../linked/lib/libx.so,,\n'),
        distribution("broken", "\x00.so\n,\n"),
    ]
    found = frameworks.owners(installed, tmp_path)
    site = os.path.realpath(tmp_path / SITE)
    assert found[f"{site}/nvidia/lib/libcublas.so.13"] == "wheel nvidia-cublas 13.4.1.3"
    assert found[f"{site}/nvidia/a,b/libodd.so.1"] == "wheel odd 13.4.1.3"
    assert found[f"{site}/nvidia/lib/libx.so"] == "wheel odd 13.4.1.3"
    assert not any(path.endswith(".py") for path in found)
