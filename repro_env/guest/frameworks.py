"""Report the settings of PyTorch and of the numeric libraries that it loads, which depend on this machine.

Run as the user runs a script: `python frameworks.py REPORT`, in the environment that is captured. The facts are written to
the file REPORT, a JSON object on each line. Before each step that could crash or hang, a line names the step (`doing`).
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import json
import os
import re
import sys
import warnings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import IO, Any

DIRECTORY = os.path.dirname(os.path.abspath(__file__))


def load_libraries() -> Any:
    """`numericlibraries.py`, without adding it to `sys.modules`: the environment may have a module of this name."""
    path = os.path.join(DIRECTORY, "numericlibraries.py")
    spec: Any = importlib.util.spec_from_file_location("_repro_env_numeric_libraries", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


libraries = load_libraries()


class Report:
    """The file that the parent process reads, even after a crash. Each line is flushed at once."""

    def __init__(self, file: IO[str]) -> None:
        self.file = file

    def write(self, **facts: object) -> None:
        self.file.write(json.dumps(facts) + "\n")
        self.file.flush()

    def step(self, what: str, function: Callable[[], Any]) -> Any:
        """The result of a function. If it fails, report the reason and return None."""
        self.write(doing=what)
        try:
            return function()
        except BaseException as error:
            self.write(unknown="%s: %s" % (what, reason(error)))
            return None

    def threads(self, library: str, path: str, function: Callable[[], Any]) -> None:
        """Report the number of threads that a function returns."""
        count = self.step("threads of " + library, function)
        if isinstance(count, int):
            self.write(threads={"library": library, "path": path, "count": count})


def reason(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return "%s%s" % (type(error).__name__, ": " + text[:1000] if text else "")


def is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except BaseException:
        return False


def import_package(report: Report, name: str) -> Any:
    """Import a package. Return None if it is not installed or cannot be imported."""
    if not is_installed(name.partition(".")[0]):
        return None
    report.write(doing="import of " + name)
    try:
        return importlib.import_module(name)
    except BaseException as error:
        report.write(failed="import of %s: %s" % (name, reason(error)))
        return None


def kernel_architectures(torch: Any) -> str:
    """What torch's kernels were compiled for. `torch.cuda.get_arch_list()` is empty without a GPU in older versions."""
    return str(torch._C._cuda_getArchFlags())


def report_torch(report: Report, torch: Any) -> None:
    report.write(torch=str(getattr(torch, "__version__", "")) or "of unknown version")
    config = str(report.step("torch's configuration", torch.__config__.show) or "")
    parallel = str(report.step("torch's threads", torch.__config__.parallel_info) or "")
    report.write(cpu_capability=report.step("torch's CPU code path", lambda: libraries.cpu_capability(torch, config)) or "")
    if getattr(torch.version, "cuda", None):
        report.write(cuda=str(torch.version.cuda))
        flags = report.step("the architectures of torch's kernels", functools.partial(kernel_architectures, torch))
        report.write(architectures=(flags or "").split())
    report.threads("torch", "", torch.get_num_threads)
    report.threads("torch interop", "", torch.get_num_interop_threads)
    # The first multiplication makes the CPU libraries load their deferred parts. It is small enough for a single thread.
    report.step("a multiplication by torch", lambda: torch.ones(64, 64).mm(torch.ones(64, 64)) is None)
    mapped = {libraries.name_of(path) or os.path.basename(path): path for path in libraries.mapped_libraries()}
    count = re.search(r"mkl_get_max_threads\(\) : (\d+)", parallel)
    if (
        count and "libtorch_cpu.so" in mapped and not any(name.startswith("mkl ") for name in mapped)
    ):  # MKL is part of that library
        report.write(threads={"library": "mkl", "path": mapped["libtorch_cpu.so"], "count": int(count.group(1))})


def report_libraries(report: Report) -> None:
    """Report all mapped libraries, and each numeric one with its number of threads."""
    mapped = libraries.mapped_libraries()
    report.write(mapped=mapped)
    deferred = set()
    for path in mapped:
        name = libraries.name_of(path)
        if not name:
            continue
        deferred.update(libraries.deferred_parts(path))
        config = ""
        if name == "openblas":
            config = report.step("the configuration of OpenBLAS", functools.partial(libraries.openblas_config, path)) or ""
        report.write(library={"name": name, "build": config, "path": path})
        count_threads = libraries.find_thread_counter(path)
        if count_threads is not None:
            report.threads(name.partition(" ")[0], path, count_threads)
    report.write(deferred=sorted(deferred.difference(mapped)))


def report_devices(report: Report, torch: Any) -> None:
    """Report each GPU that PyTorch can use. This starts the driver, so it is the last step."""
    if not getattr(torch.version, "cuda", None) and not getattr(torch.version, "hip", None):
        return
    count = report.step("torch's GPUs", lambda: torch.cuda.device_count() if torch.cuda.is_available() else 0) or 0
    for index in range(count):
        properties = report.step("torch's GPU %d" % index, functools.partial(torch.cuda.get_device_properties, index))
        if properties is not None:
            capability = "%d.%d" % (properties.major, properties.minor)
            # NVIDIA's have a gcnArchName too: the name of the model.
            architecture = str(properties.gcnArchName) if getattr(torch.version, "hip", None) else capability
            report.write(
                device={
                    "name": str(properties.name),
                    "architecture": architecture,
                    "units": int(properties.multi_processor_count),
                    "memory": int(properties.total_memory),
                }
            )


def main(path: str) -> None:
    """Import the numeric packages, and report the facts about them and their libraries."""
    sys.path[:] = [entry for entry in sys.path if entry != DIRECTORY]
    with open(path, "w") as file:
        report = Report(file)
        report.write(doing="the start")
        sys.stdout.flush()
        sys.stderr.flush()
        devnull = os.open(os.devnull, os.O_WRONLY)
        os.dup2(devnull, 1)
        os.dup2(devnull, 2)
        warnings.simplefilter("ignore")
        numpy = import_package(report, "numpy")
        if numpy is not None:
            report.step("a multiplication by numpy", lambda: numpy.ones((64, 64)).dot(numpy.ones((64, 64))) is None)
        torch = import_package(report, "torch")
        if torch is not None:
            report.step("properties of torch", functools.partial(report_torch, report, torch))
        elif not is_installed("torch"):
            for name in ("scipy.linalg", "jax", "tensorflow"):
                import_package(report, name)
        report.step("libraries", functools.partial(report_libraries, report))
        if torch is not None:
            report.step("GPUs of torch", functools.partial(report_devices, report, torch))
        report.write(doing="")
        file.flush()
        # The report is complete. A normal exit could hang in one of the imported packages.
        os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1])
