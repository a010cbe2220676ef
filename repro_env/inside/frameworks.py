"""Says what PyTorch and the numeric libraries below it are when they are really loaded.

Run as the user runs a script: `python frameworks.py REPORT`, in the environment that is captured. What it finds goes to
the file REPORT, one JSON object a line; before each step that could crash or hang stands a line that says which (`doing`).
Libraries are asked for their versions through ctypes, and only those that are mapped already: nothing is loaded for it.
"""

import functools
import json
import os
import re
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import IO, Any, Callable, Dict, List, Tuple  # noqa: F401

RTLD_NOLOAD = getattr(os, "RTLD_NOLOAD", 4)
NAMES = {
    "libcudart": "cudart",
    "libcublas": "cublas",
    "libcublasLt": "cublaslt",
    "libcudnn": "cudnn",
    "libnccl": "nccl",
    "libcufft": "cufft",
    "libcurand": "curand",
    "libcusolver": "cusolver",
    "libcusolverMg": "cusolvermg",
    "libcusparse": "cusparse",
    "libcusparseLt": "cusparselt",
    "libcudss": "cudss",
    "libcutensor": "cutensor",
    "libnvrtc": "nvrtc",
    "libnvrtc-builtins": "nvrtc builtins",
    "libnvJitLink": "nvjitlink",
    "libnvshmem_host": "nvshmem",
    "libcuda": "cuda driver",
    "libamdhip64": "hip",
    "librocblas": "rocblas",
    "libhipblas": "hipblas",
    "libhipblaslt": "hipblaslt",
    "libMIOpen": "miopen",
    "librccl": "rccl",
    "librocfft": "rocfft",
    "libhipfft": "hipfft",
    "librocsolver": "rocsolver",
    "libhipsolver": "hipsolver",
    "librocsparse": "rocsparse",
    "libhipsparse": "hipsparse",
    "libhipsparselt": "hipsparselt",
    "librocrand": "rocrand",
    "libhiprand": "hiprand",
    "libhiprtc": "hiprtc",
    "libmagma": "magma",
    "libgomp": "openmp",
    "libiomp5": "openmp",
    "libomp": "openmp",
    "libblis": "blis",
    "libblis-mt": "blis",
    "libflexiblas": "flexiblas",
    "libblas": "blas",
    "liblapack": "lapack",
    "libdnnl": "onednn",
    "libtbb": "tbb",
    "libarmpl_lp64_mp": "armpl",
    "libarm_compute": "acl",
}
"""By the file's name without what comes after `.so` and without what wheel builders add to it."""
FAMILIES = (("cudnn ", re.compile("libcudnn_(.+)")), ("mkl ", re.compile("libmkl_(.+)")))
OPENBLAS = re.compile(r"lib(?:scipy_)?openblas")
ADDED = re.compile(r"-[0-9a-f]{8}(?=-|\.|\Z)|-r\d+(?=-|\.|\Z)")
"""What auditwheel and OpenBLAS's own makefile put into a file's name."""
BESIDE = ((re.compile(r"libcudnn\.so\.(\d+)"), "libcudnn_"), (re.compile(r"libnvrtc\.so\.(\d+)"), "libnvrtc-builtins"))


class Report:
    def __init__(self, file: "IO[str]") -> None:
        self.file = file

    def say(self, **facts: object) -> None:
        self.file.write(json.dumps(facts) + "\n")
        self.file.flush()

    def step(self, what: str, question: "Callable[[], Any]") -> "Any":
        """The answer, or None and a line that says why there is none."""
        self.say(doing=what)
        try:
            return question()
        except BaseException as error:
            self.say(unknown="%s: %s" % (what, reason(error)))
            return None

    def fact(self, name: str, question: "Callable[[], Any]") -> None:
        found = self.step(name, question)
        if found is not None:
            self.say(**{name: found})


def reason(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return "%s%s" % (type(error).__name__, ": " + text[:1000] if text else "")


def there(name: str) -> bool:
    import importlib.util

    try:
        return importlib.util.find_spec(name) is not None
    except BaseException:
        return False


def load(report: Report, name: str) -> "Any":
    """Import a package and say its version; None where it is not there or does not import."""
    import importlib

    top = name.partition(".")[0]
    if not there(top):
        return None
    report.say(doing="import of " + name)
    try:
        module = importlib.import_module(name)
    except BaseException as error:
        report.say(failed="import of %s: %s" % (name, reason(error)))
        return None
    report.say(imported=top, version=str(getattr(sys.modules[top], "__version__", "")))
    return module


def torch_facts(report: Report, torch: "Any") -> None:
    def version(name: str) -> "Callable[[], str]":
        return lambda: str(getattr(torch.version, name, None) or "")

    report.fact("torch_git", version("git_version"))
    report.fact("cuda", version("cuda"))
    report.fact("hip", version("hip"))
    report.fact("arch", lambda: architectures(torch))
    config = str(report.step("torch's configuration", torch.__config__.show) or "")
    parallel = str(report.step("torch's threads", torch.__config__.parallel_info) or "")
    report.fact("cpu_capability", lambda: capability(torch, config))
    threads(report, "torch", "", torch.get_num_threads)
    threads(report, "torch interop", "", torch.get_num_interop_threads)
    report.fact("needs_compiler", lambda: there("triton") or there("torch._inductor"))
    report.fact("triton", triton)
    # A first multiplication loads what the CPU's libraries put off; it is small enough for one thread.
    report.step("a multiplication by torch", lambda: torch.ones(64, 64).mm(torch.ones(64, 64)) is None)
    linked_in(report, torch, config, parallel)


def architectures(torch: "Any") -> "List[str]":
    """What torch has code for; asked past `get_arch_list`, which wants a GPU in older versions."""
    flags = getattr(torch._C, "_cuda_getArchFlags", None)
    return (flags() or "").split() if flags is not None else []


def capability(torch: "Any", config: str) -> str:
    backend = getattr(torch.backends, "cpu", None)
    if backend is not None:
        return str(backend.get_cpu_capability())
    found = re.search(r"CPU capability usage: (.*)", config)
    return found.group(1).strip() if found else ""


def triton() -> str:
    """From its metadata: its import compiles things."""
    if not there("triton"):
        return ""
    from importlib import metadata

    names = ("triton", "pytorch-triton", "pytorch-triton-rocm", "triton-rocm")
    known = {(one.metadata["Name"] or "").lower(): one.version for one in metadata.distributions() if one.metadata}
    return next((known[name] for name in names if name in known), "of unknown version")


def linked_in(report: Report, torch: "Any", config: str, parallel: str) -> None:
    """Libraries that are part of torch's own: no file of theirs is mapped, and torch says their versions."""
    held = {name_of(path) for path in mapped()}
    where = {os.path.basename(path): path for path in mapped() if os.path.basename(path).startswith("libtorch_")}
    cpu = where.get("libtorch_cpu.so", "")
    gpu = where.get("libtorch_cuda.so") or where.get("libtorch_hip.so", "")

    def static(name: str, version: str, path: str) -> None:
        if path and version and not any(each == name or each.startswith(name + " ") for each in held):
            report.say(library={"name": name, "version": version, "path": path, "how": "static"})

    for name, pattern in (("mkl", r"Math Kernel Library Version (\d[\d.]*)"), ("onednn", r"MKL-DNN v(\S+)|oneDNN v(\S+)")):
        found = re.search(pattern, config)
        static(name, next((text for text in found.groups() if text), "") if found else "", cpu)
    if gpu:
        found_cudnn = report.step("torch's cuDNN", torch.backends.cudnn.version)
        if found_cudnn:
            static("miopen" if getattr(torch.version, "hip", None) else "cudnn", cudnn_version(found_cudnn), gpu)
        found_nccl = report.step("torch's NCCL", torch.cuda.nccl.version)
        if isinstance(found_nccl, tuple):
            static("rccl" if getattr(torch.version, "hip", None) else "nccl", ".".join(str(part) for part in found_nccl), gpu)
    found = re.search(r"mkl_get_max_threads\(\) : (\d+)", parallel)
    if found and cpu and not any(each.startswith("mkl ") for each in held):
        report.say(threads={"library": "mkl", "path": cpu, "count": int(found.group(1))})


def devices(report: Report, torch: "Any") -> None:
    """GPUs as torch sees them. Last of all: it starts the driver."""
    if not getattr(torch.version, "cuda", None) and not getattr(torch.version, "hip", None):
        return
    count = report.step("torch's GPUs", lambda: torch.cuda.device_count() if torch.cuda.is_available() else 0) or 0
    for index in range(count):
        found = report.step("torch's GPU %d" % index, functools.partial(torch.cuda.get_device_properties, index))
        if found is not None:
            report.say(
                device={
                    "name": str(found.name),
                    "architecture": str(getattr(found, "gcnArchName", "") or "%d.%d" % (found.major, found.minor)),
                    "units": int(found.multi_processor_count),
                    "memory": int(found.total_memory),
                }
            )


def mapped() -> "List[str]":
    """Shared libraries that are mapped into this process."""
    paths = set()
    with open("/proc/self/maps", "rb") as maps:
        for line in maps:
            path = line.rstrip(b"\n").split(None, 5)[5:]
            if path and path[0].startswith(b"/") and b".so" in os.path.basename(path[0]) and os.path.exists(path[0]):
                paths.add(os.fsdecode(path[0]))
    return sorted(paths)


def name_of(path: str) -> str:
    """What this library is called here; empty for one that does not compute."""
    stem = ADDED.sub("", os.path.basename(path).partition(".so")[0])
    stem = re.sub(r"\.\d+(?:\.[\w]+)*\Z", "", stem)  # `libopenblasp.0.3.21`
    if OPENBLAS.match(stem):
        return "openblas"
    for prefix, pattern in FAMILIES:
        part = pattern.fullmatch(stem)
        if part:
            return prefix + part.group(1)
    return NAMES.get(stem, "")


def libraries(report: Report) -> None:
    """Every numeric library that is mapped, asked what it is and how many threads it takes."""
    found = mapped()
    report.say(mapped=found)
    beside = set()
    for path in found:
        name = name_of(path)
        if not name:
            continue
        beside.update(put_off(path))
        version, build = "", ""
        ask = VERSIONS.get(name)
        if ask is not None:
            said = report.step("version of " + os.path.basename(path), functools.partial(asked, ask, path))
            version, build = said if isinstance(said, tuple) else (said or "", "")
        report.say(library={"name": name, "version": version, "build": build, "path": path, "how": "mapped"})
        for function in THREADS.get(name, ()):
            if function_of(path, function) is not None:
                threads(report, name.partition(" ")[0], path, function_of(path, function))
                break
    inodes = {os.path.realpath(path) for path in found}
    for path in sorted(beside):
        real = os.path.realpath(path)
        if real not in inodes:
            inodes.add(real)
            report.say(beside=path, library={"name": name_of(path) or os.path.basename(path), "path": real, "how": "beside"})


def put_off(path: str) -> "List[str]":
    """Parts that a library loads by name when a program first needs them: in its own folder, of its own version."""
    folder, file = os.path.split(path)
    if file.startswith("libmkl_"):
        ending = file.partition(".so")[2]
        return [
            os.path.join(folder, each)
            for each in os.listdir(folder)
            if each.startswith("libmkl_") and each.endswith(".so" + ending)
        ]
    for pattern, start in BESIDE:
        found = pattern.match(file)
        if found:
            ending = ".so." + found.group(1)
            return [
                os.path.join(folder, each)
                for each in os.listdir(folder)
                if each.startswith(start) and (each.endswith(ending) or ending + "." in each)
            ]
    return []


def threads(report: Report, library: str, path: str, question: "Callable[[], Any]") -> None:
    found = report.step("threads of " + library, question)
    if isinstance(found, int):
        report.say(threads={"library": library, "path": path, "count": found})


def asked(ask: "Callable[[Any], Any]", path: str) -> "Any":
    return ask(opened(path))


def opened(path: str) -> "Any":
    import ctypes

    return ctypes.CDLL(path, mode=RTLD_NOLOAD | os.RTLD_LAZY)


def function_of(path: str, name: str) -> "Any":
    try:
        return getattr(opened(path), name)
    except (OSError, AttributeError):
        return None


def numbers(library: "Any", function: str, count: int = 1, kind: str = "c_int") -> "List[int]":
    """What a function writes to as many integers as it is given."""
    import ctypes

    values = [getattr(ctypes, kind)() for _ in range(count)]
    code = getattr(library, function)(*[ctypes.byref(value) for value in values])
    if code:
        raise OSError("%s gives error %d" % (function, code))
    return [value.value for value in values]


def parts(library: "Any", function: str) -> str:
    """Major, minor and patch from one of CUDA's `…GetProperty` functions."""
    import ctypes

    found = []
    for which in range(3):
        value = ctypes.c_int()
        code = getattr(library, function)(which, ctypes.byref(value))
        if code:
            raise OSError("%s gives error %d" % (function, code))
        found.append(str(value.value))
    return ".".join(found)


def returned(library: "Any", function: str, kind: str = "c_size_t") -> "Any":
    import ctypes

    call = getattr(library, function)
    call.restype = getattr(ctypes, kind)
    call.argtypes = []
    return call()


def written(library: "Any", function: str, wide: str = "c_size_t") -> str:
    """What a function writes as text."""
    import ctypes

    buffer = ctypes.create_string_buffer(512)
    getattr(library, function)(buffer, getattr(ctypes, wide)(len(buffer)))
    return buffer.value.decode("utf-8", "replace").strip()


def dotted(number: int, *weights: int) -> str:
    """`dotted(92600, 10000, 100, 1)` is `9.26.0`."""
    found = []
    for weight in weights:
        found.append(str(number // weight))
        number %= weight
    return ".".join(found)


def cudnn_version(number: int) -> str:
    return dotted(number, 10000, 100, 1) if number >= 90000 else dotted(number, 1000, 100, 1)


def nccl_version(library: "Any") -> str:
    (number,) = numbers(library, "ncclGetVersion")
    return dotted(number, 10000, 100, 1) if number >= 10000 else dotted(number, 1000, 100, 1)


def mkl_version(library: "Any") -> str:
    said = written(library, "mkl_get_version_string", "c_int")
    found = re.search(r"Version (\d[\d.]*)", said)
    return found.group(1) if found else said


def openblas_functions() -> "List[Tuple[str, str]]":
    """Builds for 64-bit integers and SciPy's own have other names for the same functions."""
    return [(before, after) for before in ("", "scipy_") for after in ("", "64_", "_64", "64")]


def openblas_version(library: "Any") -> "Tuple[str, str]":
    for before, after in openblas_functions():
        name = before + "openblas_get_config" + after
        if hasattr(library, name):
            said = (returned(library, name, "c_char_p") or b"").decode("utf-8", "replace").strip()
            found = re.match(r"OpenBLAS (\S+)", said)
            return (found.group(1) if found else "", said)
    return ("", "")


def flexiblas_version(library: "Any") -> "Tuple[str, str]":
    return (dotted_list(numbers(library, "flexiblas_get_version", 3)), written(library, "flexiblas_current_backend"))


def dotted_list(found: "List[int]") -> str:
    return ".".join(str(part) for part in found)


def onednn_version(library: "Any") -> str:
    import ctypes

    class Version(ctypes.Structure):
        _fields_ = [("major", ctypes.c_int), ("minor", ctypes.c_int), ("patch", ctypes.c_int)]

    library.dnnl_version.restype = ctypes.POINTER(Version)
    said = library.dnnl_version().contents
    return dotted_list([said.major, said.minor, said.patch])


def text_of(library: "Any", function: str) -> str:
    return str((returned(library, function, "c_char_p") or b"").decode("utf-8", "replace").strip())


VERSIONS = {
    "cudart": lambda library: dotted(numbers(library, "cudaRuntimeGetVersion")[0], 1000, 10),
    "cuda driver": lambda library: dotted(numbers(library, "cuDriverGetVersion")[0], 1000, 10),
    "cublas": lambda library: parts(library, "cublasGetProperty"),
    "cublaslt": lambda library: parts(library, "cublasLtGetProperty"),
    "cudnn": lambda library: cudnn_version(returned(library, "cudnnGetVersion")),
    "nccl": nccl_version,
    "rccl": nccl_version,
    "cufft": lambda library: parts(library, "cufftGetProperty"),
    "curand": lambda library: parts(library, "curandGetProperty"),
    "cusolver": lambda library: parts(library, "cusolverGetProperty"),
    "cusparse": lambda library: parts(library, "cusparseGetProperty"),
    "cusparselt": lambda library: parts(library, "cusparseLtGetProperty"),
    "cudss": lambda library: parts(library, "cudssGetProperty"),
    "nvrtc": lambda library: dotted_list(numbers(library, "nvrtcVersion", 2)),
    "nvjitlink": lambda library: dotted_list(numbers(library, "nvJitLinkVersion", 2, "c_uint")),
    "nvshmem": lambda library: dotted_list(numbers(library, "nvshmemx_vendor_get_version_info", 3)),
    "hip": lambda library: dotted(numbers(library, "hipRuntimeGetVersion")[0], 10000000, 100000, 1),
    "hiprtc": lambda library: dotted_list(numbers(library, "hiprtcVersion", 2)),
    "rocblas": lambda library: written(library, "rocblas_get_version_string"),
    "rocfft": lambda library: written(library, "rocfft_get_version_string"),
    "rocsolver": lambda library: written(library, "rocsolver_get_version_string"),
    "miopen": lambda library: dotted_list(numbers(library, "miopenGetVersion", 3, "c_size_t")),
    "mkl rt": mkl_version,
    "mkl intel_lp64": mkl_version,
    "mkl intel_ilp64": mkl_version,
    "mkl gf_lp64": mkl_version,
    "openblas": openblas_version,
    "flexiblas": flexiblas_version,
    "blis": lambda library: text_of(library, "bli_info_get_version_str"),
    "onednn": onednn_version,
    "tbb": lambda library: text_of(library, "TBB_runtime_version"),
}  # type: Dict[str, Callable[[Any], Any]]
"""How each library says its version: none of these functions needs a GPU or a handle."""
THREADS = {
    "openmp": ("omp_get_max_threads",),
    "mkl rt": ("MKL_Get_Max_Threads",),
    "mkl intel_lp64": ("MKL_Get_Max_Threads",),
    "mkl intel_ilp64": ("MKL_Get_Max_Threads",),
    "mkl gf_lp64": ("MKL_Get_Max_Threads",),
    "openblas": tuple(before + "openblas_get_num_threads" + after for before, after in openblas_functions()),
    "blis": ("bli_thread_get_num_threads",),
    "flexiblas": ("flexiblas_get_num_threads",),
}


def main() -> None:
    import warnings

    with open(sys.argv[1], "w") as file:
        report = Report(file)
        report.say(started=True)
        sys.stdout.flush()
        sys.stderr.flush()
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        warnings.simplefilter("ignore")
        numpy = load(report, "numpy")
        if numpy is not None:
            report.step("a multiplication by numpy", lambda: numpy.ones((64, 64)).dot(numpy.ones((64, 64))) is None)
        torch = load(report, "torch")
        if torch is not None:
            report.step("facts of torch", functools.partial(torch_facts, report, torch))
        elif not there("torch"):
            for name in ("scipy.linalg", "jax", "tensorflow"):
                load(report, name)
        report.step("libraries", functools.partial(libraries, report))
        if torch is not None:
            report.step("GPUs of torch", functools.partial(devices, report, torch))
        report.say(doing="")
        file.flush()
        # What was imported may hang when Python ends; all is said.
        os._exit(0)


if __name__ == "__main__":
    main()
