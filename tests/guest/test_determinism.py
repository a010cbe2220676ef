"""Determinism modes, threads and effective settings in real interpreters, with a fake torch that has a GPU, and a real torch."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from repro_env.runs.records import reports
from tests.guest.scripts import PYTHONS, SEEDS, python_with


class Result(msgspec.Struct):
    code: int
    out: str
    err: str
    reports: list[dict[str, Any]]

    @property
    def operations(self) -> dict[tuple[str, int], int]:
        """(operation, line) -> count."""
        counts: dict[tuple[str, int], int] = {}
        for note in self.reports:
            if "operation" in note:
                key = (note["operation"], note["line"])
                counts[key] = counts.get(key, 0) + note["count"]
        return counts

    @property
    def effective(self) -> dict[str, str]:
        """Name -> value, as in the record."""
        parsed = reports.parse(json.dumps(note).encode() for note in self.reports)
        return {fact.name: fact.value for fact in parsed.settings}

    @property
    def problems(self) -> list[str]:
        return [note["problem"] for note in self.reports if "problem" in note]


class Script:
    """A script in its own directory."""

    def __init__(self, directory: Path, python: str = sys.executable) -> None:
        self.directory = directory
        self.python = python

    def run(self, code: str, *, mode: str = "warn", env: dict[str, str] | None = None, args: Sequence[str] = ()) -> Result:
        (self.directory / "script.py").write_text(textwrap.dedent(code))
        (self.directory / "reports").unlink(missing_ok=True)
        start = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.directory),
            "PYTHONPATH": str(SEEDS),
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONHASHSEED": "7",
            "REPRO_ENV_SEED": "1",
            "REPRO_ENV_REPORTS": str(self.directory / "reports"),
            "REPRO_ENV_DETERMINISM": mode,
        }
        done = subprocess.run(
            [*(args or [self.python]), "script.py"],
            cwd=self.directory,
            env={name: value for name, value in (start | (env or {})).items() if value},
            capture_output=True,
            text=True,
            check=False,
            timeout=200,
        )
        reports = self.directory / "reports"
        lines = reports.read_text().splitlines() if reports.exists() else []
        return Result(done.returncode, done.stdout, done.stderr, [json.loads(line) for line in lines])


@pytest.fixture(params=PYTHONS)
def script(request: pytest.FixtureRequest, tmp_path: Path) -> Script:
    return Script(tmp_path, request.param)


# --- a fake torch with a GPU

TORCH = """
import sys, types, warnings
class C:
    def __init__(self):
        self.values = dict(fp32_precision="ieee", cudnn_enabled=True, cudnn_benchmark=True, cudnn_deterministic=False,
            deterministic_algorithms=False, deterministic_algorithms_warn_only=False, deterministic_fill_uninitialized_memory=True,
            cudnn_allow_tf32=True, cublas_allow_tf32=False, cudnn_sdp_enabled=True, flash_sdp_enabled=True,
            cublas_allow_fp16_reduced_precision_reduction=(True, True), cublas_allow_bf16_reduced_precision_reduction=True)
    def __getattr__(self, name):
        if name.startswith("_get_") and name[5:] in self.values:
            return lambda: self.values[name[5:]]
        if name.startswith("_set_") and name[5:] in self.values:
            return lambda value: self.values.update({name[5:]: value})
        raise AttributeError(name)
    def _set_sdp_use_cudnn(self, on):
        self.values["cudnn_sdp_enabled"] = on
    def _set_deterministic_algorithms(self, mode, *, warn_only=False):
        self.values.update(deterministic_algorithms=mode, deterministic_algorithms_warn_only=warn_only)
_C = C()
def use_deterministic_algorithms(mode, *, warn_only=False):
    import torch._inductor.config as config
    config.deterministic = mode
    _C._set_deterministic_algorithms(mode, warn_only=warn_only)
__version__ = "2.99"
version = types.SimpleNamespace(cuda="12.8", hip=None)
cuda = types.SimpleNamespace(on=False, is_initialized=lambda: cuda.on, device_count=lambda: 2, current_device=lambda: 1,
    get_device_name=lambda index: "GPU number %d" % index)
backends = types.SimpleNamespace(cpu=types.SimpleNamespace(get_cpu_capability=lambda: "AVX9"))
__config__ = types.SimpleNamespace(show=lambda: "")
counts = [4, 2]
get_num_threads, get_num_interop_threads = lambda: counts[0], lambda: counts[1]
def set_num_interop_threads(count):
    if len(counts) > 2:
        raise RuntimeError("cannot set number of interop threads")
    counts[1:] = [count, "set"]
def get_float32_matmul_precision():
    raise RuntimeError("PyTorch is checking, mixed of the legacy and new APIs")
def operate(name, phrase=" does not have a deterministic implementation, but you set 'x'"):
    if _C.values["deterministic_algorithms"]:
        if not _C.values["deterministic_algorithms_warn_only"]:
            raise RuntimeError(name + phrase)
        warnings.warn(name + phrase)
def seeding(module):
    for name in ("manual_seed", "manual_seed_all"): setattr(module, name, lambda seed: None)
    for name in ("seed", "seed_all", "initial_seed", "get_rng_state"): setattr(module, name, lambda: 0)
    return module
equal = lambda left, right: left == right
random = seeding(types.SimpleNamespace(__name__="torch.random"))
cuda.random = seeding(types.SimpleNamespace(__name__="torch.cuda.random"))
cuda.__name__ = "torch.cuda"
seeding(cuda)
seeding(sys.modules["torch"])
"""
WORLD = """
group = None
def init_process_group(backend=None, rank=0, world_size=1):
    "Join."
    global group
    group = (backend, rank, world_size)
def is_initialized(): return group is not None
def get_rank(): return group[1]
def get_world_size(): return group[2]
def get_backend(): return group[0]
def destroy():
    global group
    group = None
"""


@pytest.fixture
def gpu(script: Script) -> Script:
    """A fake torch with a GPU, as an installed package."""
    package = script.directory / "site-packages" / "torch"
    for name in ("", "_inductor", "distributed"):
        (package / name).mkdir(parents=True, exist_ok=True)
        (package / name / "__init__.py").write_text("")
    (package / "__init__.py").write_text(TORCH)
    (package / "_inductor" / "config.py").write_text("deterministic = False")
    (package / "distributed" / "distributed_c10d.py").write_text(WORLD)
    script.directory = script.directory / "work"
    script.directory.mkdir()
    return script


SITE = {"PYTHONPATH": f"{SEEDS}:../site-packages"}


def test_warn_enables_deterministic_algorithms_and_imports_no_compiler(gpu: Script) -> None:
    code = "import torch, sys; print(torch._C.values, [name for name in sys.modules if 'inductor' in name])"
    off, warn, strict = (gpu.run(code, mode=mode, env=SITE) for mode in ("off", "warn", "strict"))
    assert "'cudnn_benchmark': True, 'cudnn_deterministic': False, 'deterministic_algorithms': False" in off.out
    values = "'cudnn_benchmark': False, 'cudnn_deterministic': True, 'deterministic_algorithms': True"
    assert f"{values}, 'deterministic_algorithms_warn_only': True, 'deterministic_fill_uninitialized_memory': False" in warn.out
    assert f"{values}, 'deterministic_algorithms_warn_only': False, 'deterministic_fill_uninitialized_memory': True" in strict.out
    assert off.out.replace("'cudnn_sdp_enabled': True", "") != off.out
    assert "'cudnn_sdp_enabled': False" in warn.out
    assert all(done.out.endswith("[]\n") and done.err == "" for done in (off, warn, strict))
    assert [done.effective["torch deterministic algorithms"] for done in (off, warn, strict)] == ["off", "warn", "error"]


def test_effective_settings_are_noted_and_unreadable_ones_are_unknown(gpu: Script) -> None:
    code = "import torch; torch.cuda.on = True; torch._C._set_cudnn_benchmark(True)"
    effective = gpu.run(code, env=SITE | {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", "LC_ALL": "C"}).effective
    assert effective.pop("address randomisation") in ("on", "off")
    assert effective.pop("cores") == str(len(os.sched_getaffinity(0)))
    assert effective.pop("directory order") == "sorted"
    assert {name: value for name, value in effective.items() if not re.match(r"threads (?!torch)|OPENBLAS", name)} == {
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        "cublas allow tf32": "False",
        "cublas bf16 reduced precision": "True",
        "cublas fp16 reduced precision": "True",
        "cuda": "12.8",
        "cuda devices": "cuda:0 GPU number 0, cuda:1 GPU number 1",
        "cudnn": "True",
        "cudnn allow tf32": "True",
        "cudnn benchmark": "True",
        "cudnn deterministic": "True",
        "hash seed": "7",
        "sdp cudnn": "False",
        "sdp flash": "True",
        "threads torch": "4",
        "threads torch interop": "2",
        "torch": "2.99",
        "torch cpu capability": "AVX9",
        "torch deterministic algorithms": "warn",
        "torch fill uninitialized memory": "False",
        "torch float32 matmul precision": "unknown (RuntimeError)",
    }


def test_a_gpu_that_is_not_in_use_is_not_queried(gpu: Script) -> None:
    assert "cuda devices" not in gpu.run("import torch; torch.cuda.device_count = None", env=SITE).effective


def test_the_compiler_is_made_deterministic_when_it_is_imported(gpu: Script) -> None:
    code = "import torch; import torch._inductor.config as config; print(config.deterministic)"
    assert gpu.run(code, env=SITE).out == "True\n"
    assert gpu.run(code, env=SITE, mode="off").out == "False\n"
    assert gpu.run(code.replace(";", "; torch._C._set_deterministic_algorithms(False);", 1), env=SITE).out == "False\n"


FILTERS = """import torch, warnings
ALERTS
with warnings.catch_warnings():
    warnings.simplefilter("ignore"); warnings.filterwarnings("ignore", ".*", UserWarning)
    ALERTS
warnings.simplefilter("ignore")
ALERTS
warnings.simplefilter("error")
ALERTS
with warnings.catch_warnings(record=True) as recorded:
    warnings.simplefilter("always")
    ALERTS
warnings.resetwarnings()
warnings.filterwarnings("error")
ALERTS
print("end", recorded)
"""


def test_every_alert_is_counted_and_hidden_with_any_filters(gpu: Script) -> None:
    code = FILTERS.replace("ALERTS", "for _ in range(3): torch.operate('put_'); torch.operate('sum of it')")
    done = gpu.run(code, env=SITE)
    assert (done.code, done.out, done.err, done.problems) == (0, "end []\n", "", [])
    lines = [number for number, line in enumerate(code.splitlines(), 1) if "operate" in line]
    assert done.operations == {(what, line): 3 for what in ("put_", "sum of it") for line in lines}


def test_filters_that_libraries_send_to_their_workers(gpu: Script) -> None:
    """scikit-learn sends the filters to joblib's workers: as a pickle, or as the patterns of their expressions."""
    code = """
    import multiprocessing, sys, warnings
    def work(filters):
        warnings.filters = filters
        warnings.warn("put_ does not have a deterministic implementation")
        with warnings.catch_warnings():
            warnings.resetwarnings()
            for action, message, category, module, line in filters:
                text = message.pattern if message is not None and not isinstance(message, str) else message or ""
                warnings.filterwarnings(action, text, category, lineno=line, append=True)
        print(flush=True)
        assert "torch" not in sys.modules
    if __name__ == "__main__":
        import torch
        warnings.filterwarnings("ignore", "x")
        child = multiprocessing.get_context("spawn").Process(target=work, args=(warnings.filters,))
        child.start(); child.join()
        del sys.modules["torch"]
        work(warnings.filters)
    """
    done = gpu.run(code, env=SITE)
    assert (done.code, done.out, done.err, done.problems) == (0, "\n\n", "", [])
    assert done.operations == {("put_", 5): 2}


def test_other_warnings_are_shown_as_without_hooks(gpu: Script) -> None:
    code = """
    import warnings
    def own(): warnings.warn("own, not deterministic")
    own()
    import torch
    for _ in range(2): own(); warnings.warn("mine")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        for _ in range(2): own()
    """
    plain = gpu.run(code, env=SITE | {"REPRO_ENV_DETERMINISM": ""})
    assert gpu.run(code, env=SITE).err == plain.err
    assert plain.err.count("UserWarning") == 4


def test_alerts_of_fused_attention_are_counted(gpu: Script) -> None:
    code = "import torch, warnings; torch.operate('Flash Attention', ' defaults to a non-deterministic algorithm. To …')"
    assert gpu.run(code, env=SITE).operations == {("Flash Attention", 1): 1}


def test_settings_of_the_script_win(gpu: Script) -> None:
    code = "import torch; torch.use_deterministic_algorithms(False); torch.operate('put_')"
    done = gpu.run(code, env=SITE, mode="strict")
    assert (done.operations, done.effective["torch deterministic algorithms"]) == ({}, "off")


def test_an_operation_is_an_error_in_strict(gpu: Script) -> None:
    done = gpu.run("import torch\ntorch.operate('put_')", env=SITE, mode="strict")
    assert (done.code, done.effective["torch deterministic algorithms"]) == (1, "error")
    assert "RuntimeError: put_ does not have" in done.err


def test_each_child_counts_its_own_operations(gpu: Script) -> None:
    code = """
    import multiprocessing, os, torch
    def work(): torch.operate("put_"); torch.operate("put_")
    if __name__ == "__main__":
        torch.operate("put_")
        torch.operate("put_")
        for method in ("fork", "spawn", "forkserver"):
            child = multiprocessing.get_context(method).Process(target=lambda: [work() for _ in range(2)] if method == "fork" else None)
            if method != "fork":
                child = multiprocessing.get_context(method).Process(target=work)
            child.start(); child.join()
            print(child.exitcode)
    """
    done = gpu.run(code, env=SITE)
    assert (done.out, done.err, done.problems) == ("0\n0\n0\n", "", [])
    assert done.operations == {("put_", 3): 8, ("put_", 5): 1, ("put_", 6): 1}
    assert done.effective  # of a single process


def test_a_killed_process_has_noted_each_operation(gpu: Script) -> None:
    done = gpu.run("import os, torch\nfor _ in range(3): torch.operate('put_')\nos.kill(os.getpid(), 9)", env=SITE)
    assert done.operations == {("put_", 2): 1}


def test_an_unsupported_version_of_torch_is_noted_and_the_script_continues(gpu: Script) -> None:
    (gpu.directory.parent / "site-packages" / "torch" / "__init__.py").write_text(TORCH.replace(", *, warn_only=False", ""))
    done = gpu.run("import torch; print('continues')", env=SITE)
    assert (done.code, done.out, done.err) == (0, "continues\n", "")
    assert len(done.problems) == 1
    assert "warn_only" in done.problems[0]


def test_a_module_of_the_script_named_torch_is_not_changed(script: Script) -> None:
    (script.directory / "torch.py").write_text("value = 3")
    done = script.run("import torch; print(torch.value)")
    assert (done.code, done.out, done.err) == (0, "3\n", "")
    assert done.effective["hash seed"] == "7"


def test_each_rank_notes_its_number_and_device(gpu: Script) -> None:
    code = """
    import torch, torch.distributed.distributed_c10d as distributed
    distributed.init_process_group("nccl", rank=3, world_size=8)
    torch.cuda.on = True
    distributed.destroy()
    print(distributed.init_process_group.__doc__)
    """
    done = gpu.run(code, env=SITE | {"RANK": "3"}, mode="off")
    assert (done.out, done.problems) == ("Join.\n", [])
    worlds = [note["world"] for note in done.reports if "world" in note]
    assert worlds[0] == {"rank": 3, "size": 8, "backend": "nccl", "device": "cpu"}
    assert worlds[-1] == {"rank": 3, "size": 8, "backend": "nccl", "device": "cuda:1 GPU number 1"}
    assert [note["rank"] for note in done.reports if "settings" in note] == ["3"]


def test_a_rank_notes_how_the_training_is_split(gpu: Script) -> None:
    """A strategy counts when an object of its class is made, also by a library. Nested calls of `backward` are not counted."""
    package = gpu.directory.parent / "site-packages" / "torch"
    for name in ("nn", "nn/parallel", "optim"):
        (package / name).mkdir()
        (package / name / "__init__.py").write_text("")
    (package / "nn/parallel/distributed.py").write_text(
        "class DistributedDataParallel:\n    def __init__(self, model): self.m = model\n"
    )
    (package / "optim/optimizer.py").write_text("hooks = []\nregister_optimizer_step_post_hook = hooks.append\n")
    code = """
    import types, torch, torch.distributed.distributed_c10d as distributed, torch.optim.optimizer as optimizer
    from torch.nn.parallel.distributed import DistributedDataParallel as DDP
    torch.compiler = types.SimpleNamespace(is_compiling=lambda: False)
    torch.autograd = types.SimpleNamespace(backward=lambda nested: nested and torch.autograd.backward(False))
    distributed.init_process_group("gloo", rank=0, world_size=2)
    DDP(model=None)
    for number in range(8):
        torch.autograd.backward(True)
        if number % 4 == 3:
            for hook in optimizer.hooks:
                hook(None, (), {})
    """
    done = gpu.run(code, env=SITE | {"GROUP_WORLD_SIZE": "3"})
    assert (done.err, done.problems) == ("", [])
    worlds = [note["world"] for note in done.reports if "world" in note]
    first = {"rank": 0, "size": 2, "backend": "gloo", "device": "cpu", "nodes": 3}
    assert worlds == [first, {**first, "strategy": "DDP", "accumulation": "4"}]


def test_ranks_started_by_multiprocessing_note_their_settings(gpu: Script) -> None:
    code = """
    import multiprocessing, torch, torch.distributed.distributed_c10d as distributed
    def train(rank):
        torch.counts[0] = 1
        distributed.init_process_group("gloo", rank=rank, world_size=2)
    if __name__ == "__main__":
        for rank in (0, 1):
            child = multiprocessing.get_context("fork" if rank else "spawn").Process(target=train, args=(rank,))
            child.start(); child.join()
    """
    done = gpu.run(code, env=SITE)
    assert (done.err, done.problems) == ("", [])
    assert done.effective["threads torch"] == "4 (rank -), 1 (rank 0), 1 (rank 1)"
    assert sorted(note["world"]["rank"] for note in done.reports if "world" in note) == [0, 1]


def test_settings_of_the_script_count_and_not_those_of_its_launcher(gpu: Script) -> None:
    """An installed command such as torchrun starts the script."""
    site = gpu.directory.parent / "site-packages"
    (site / "launcher.py").write_text(
        "import subprocess, sys, torch; subprocess.run([sys.executable, *sys.argv[1:]], check=True)"
    )
    code = "import os, torch; torch.counts[0] = 1; os.chdir('/')"
    assert gpu.run(code, env=SITE, args=(gpu.python, str(site / "launcher.py"))).effective["threads torch"] == "1"
    (site / "training.py").write_text(code)
    assert gpu.run("", env=SITE, args=(gpu.python, "-m", "training")).effective["threads torch"] == "1"


def test_helpers_and_workers_note_no_settings(gpu: Script) -> None:
    code = """
    import multiprocessing, os, subprocess, sys, torch
    torch.counts[0] = 5
    if __name__ == "__main__":
        with multiprocessing.get_context("spawn").Pool(1) as pool: print(pool.map(abs, [-1]))
        sys.stdout.flush()
        if os.fork() == 0: sys.exit()
        os.wait()
    """
    done = gpu.run(code, env=SITE)
    assert (done.out, done.err) == ("[1]\n", "")
    assert done.effective["threads torch"] == "5"


# --- threads

PRINT_THREADS = """
import os, subprocess, sys
names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "LOKY_MAX_CPU_COUNT", "REPRO_ENV_THREADS_PUT")
print_names = "import os; print([os.environ.get(name, '') for name in %r])" % (names,)
exec(print_names)
sys.stdout.flush()
os.system("echo $OMP_NUM_THREADS $MKL_NUM_THREADS $OPENBLAS_NUM_THREADS")
subprocess.run([sys.executable, "-c", print_names])                                        # gets what C code sees
subprocess.run(["sh", "-c", '"$0" -c "$1"; echo $OMP_NUM_THREADS', sys.executable, print_names])
subprocess.run([sys.executable, "-c", print_names], env=dict(os.environ, OMP_NUM_THREADS="1"))  # as torchrun and joblib do
os.environ["OMP_NUM_THREADS"] = "5"
subprocess.run([sys.executable, "-c", print_names])
"""


def test_the_captured_number_of_threads_is_set_for_c_code_only(script: Script) -> None:
    captured = "LOKY_MAX_CPU_COUNT=963 MKL_NUM_THREADS=3 OMP_NUM_THREADS=3 OPENBLAS_NUM_THREADS=2 TORCH_INTEROP=3"
    done = script.run(PRINT_THREADS, env={"REPRO_ENV_THREADS": captured})
    unset = "['', '', '', '963', '']"
    assert done.out.splitlines() == [
        unset,
        "3 2",  # MKL reads OMP_NUM_THREADS if MKL_NUM_THREADS is not set, so the script can set all of them with it
        unset,
        unset,
        "3",
        "['1', '', '', '963', '']",
        "['5', '', '', '963', '']",
    ]
    assert done.problems == []
    assert done.effective["OMP_NUM_THREADS"] == "5", "the value of the script, not of its children"


@pytest.mark.parametrize(("mode", "cores"), [("warn", len(os.sched_getaffinity(0))), ("off", 963)])
def test_no_threads_are_set_with_the_same_number_of_cores_or_with_off(script: Script, mode: str, cores: int) -> None:
    done = script.run(PRINT_THREADS, mode=mode, env={"REPRO_ENV_THREADS": f"LOKY_MAX_CPU_COUNT={cores} OMP_NUM_THREADS=3"})
    unset = "['', '', '', '', '']"
    assert done.out.splitlines() == [unset, "", unset, unset, "", "['1', '', '', '', '']", "['5', '', '', '', '']"]


def test_threads_set_by_the_user_are_kept(script: Script) -> None:
    own = {"OMP_NUM_THREADS": "1", "REPRO_ENV_THREADS": "LOKY_MAX_CPU_COUNT=963 OMP_NUM_THREADS=3 MKL_NUM_THREADS=2"}
    assert script.run(PRINT_THREADS, env=own).out.splitlines()[:2] == ["['1', '', '', '963', '']", "1"]


def test_a_script_may_call_set_num_interop_threads(gpu: Script) -> None:
    wanted = SITE | {"REPRO_ENV_THREADS": "LOKY_MAX_CPU_COUNT=963 TORCH_INTEROP=7"}
    code = "import torch; print(torch.get_num_interop_threads()); torch.set_num_interop_threads(3); print(torch.get_num_interop_threads())"
    done = gpu.run(code, env=wanted)
    assert (done.code, done.out) == (0, "7\n7\n")
    assert "the script set 3, but the captured value 7 remains" in done.problems[0]
    same = gpu.run(code, env=SITE | {"REPRO_ENV_THREADS": "LOKY_MAX_CPU_COUNT=963 TORCH_INTEROP=2"})
    assert (same.out, same.problems) == ("2\n3\n", [])


# --- without torch


def test_effective_settings_without_torch(script: Script) -> None:
    effective = script.run("import os; os.environ['PYTHONHASHSEED'] = '8'", env={"MKL_CBWR": "AVX2"}).effective
    assert effective.pop("address randomisation") in ("on", "off")
    cores = str(len(os.sched_getaffinity(0)))
    assert effective == {"MKL_CBWR": "AVX2", "cores": cores, "directory order": "sorted", "hash seed": "7"}
    off = script.run("", env={"REPRO_ENV_DETERMINISM": "off"}).effective
    assert off["directory order"] == "not sorted"
    assert script.run("", env={"PYTHONHASHSEED": "0"}).effective["hash seed"] == "0"


def test_without_a_mode_nothing_is_set_or_noted(script: Script) -> None:
    code = "import torch, sys; print([name for name in sys.modules if name in ('_repro_env_determinism', '_repro_env_settings')])"
    (script.directory / "torch.py").write_text("")
    done = script.run(code, env={"REPRO_ENV_DETERMINISM": ""})
    assert (done.out, [note for note in done.reports if "settings" in note]) == ("[]\n", [])


def test_fixed_addresses_are_noted(script: Script) -> None:
    for program, expected in ((["setarch", "-R"], "off"), ([], "on")):
        if program and subprocess.run([*program, "true"], capture_output=True, check=False).returncode:
            pytest.skip("personality is refused here")
        done = script.run("", args=[*program, script.python])
        assert done.effective["address randomisation"] in (expected, "off")


def test_the_init_process_of_a_container_fixes_addresses_for_the_command(script: Script) -> None:
    code = """
    import os, sys
    sys.path.insert(0, INSIDE)
    import init
    print(init.attempt(init.fix_addresses), flush=True)
    os.execv(sys.executable, [sys.executable, "-c", "print(open('/proc/self/personality').read())"])
    """
    refusal, personality = script.run(code.replace("INSIDE", repr(str(SEEDS.parent)))).out.split("\n")[:2]
    assert bool(int(personality, 16) & 0x0040000) != (refusal != "[]")


# --- the real libraries


@pytest.mark.slow
def test_threads_and_cpu_features_of_numpy_are_noted(tmp_path: Path) -> None:
    numpy = Script(tmp_path, python_with("numpy"))
    effective = numpy.run("import numpy", env={"OPENBLAS_NUM_THREADS": "1"}).effective
    assert effective["threads openblas"] == "1"
    assert (
        effective["numpy cpu features"]
        == numpy.run(
            "import numpy; from numpy._core._multiarray_umath import __cpu_features__ as f, __cpu_dispatch__ as d; print(*[n for n in d if f[n]])"
        ).out.strip()
    )


@pytest.mark.slow
def test_operations_of_torch_are_counted_in_all_processes_and_results_are_unchanged(tmp_path: Path) -> None:
    torch = Script(tmp_path, python_with("torch"))
    code = """
    import sys, warnings, torch
    import torch.distributed as dist
    class Set(torch.utils.data.Dataset):
        def __len__(self):
            return 4
        def __getitem__(self, index):
            return torch.zeros(4).put_(torch.tensor([1]), torch.tensor([2.0]))
    if __name__ == "__main__":
        warnings.simplefilter("ignore")
        weights = torch.ones(4, requires_grad=True)
        for _ in range(3):
            loss = torch.put(weights, torch.tensor([1]), torch.tensor([2.0])).sum()
            loss.backward()
            pooled, indices = torch.nn.MaxPool1d(2, return_indices=True)(torch.arange(4.0).reshape(1, 1, 4))
            torch.nn.MaxUnpool1d(2)(pooled, indices)
        print(list(torch.utils.data.DataLoader(Set(), num_workers=2))[0].tolist(), weights.grad.tolist())
        dist.init_process_group("gloo", init_method=f"file://{sys.path[0]}/group", rank=0, world_size=1)
        dist.destroy_process_group()
        torch.set_num_interop_threads(2)
        print("torch._inductor.config" in sys.modules, torch.rand(1).item())
    """
    off = torch.run(code, mode="off")
    (tmp_path / "group").unlink(missing_ok=True)
    warn = torch.run(code, env={"REPRO_ENV_THREADS": "LOKY_MAX_CPU_COUNT=963 OMP_NUM_THREADS=1 TORCH_INTEROP=1"})
    assert (warn.code, warn.err, off.err) == (0, "", "")
    assert warn.out == off.out
    assert "\nFalse 0." in warn.out
    assert off.operations == {}
    assert warn.operations == {
        ("put_", 8): 4,
        ("put_", 13): 3,
        ("put_", 14): 3,
        ("max_unpooling2d_forward_out", 16): 3,
    }
    (problem,) = warn.problems
    assert "the script set 2, but the captured value 1 remains" in problem
    assert [note["world"] for note in warn.reports if "world" in note] == [
        {"rank": 0, "size": 1, "backend": "gloo", "device": "cpu"}
    ]
    assert (warn.effective["threads torch"], warn.effective["threads openmp"], warn.effective["threads torch interop"]) == (
        "1",
        "1",
        "1",
    )
    assert (warn.effective["torch deterministic algorithms"], off.effective["torch deterministic algorithms"]) == ("warn", "off")
    assert not any(value.startswith("unknown") for value in warn.effective.values())
    assert not any(name.startswith("cu") for name in warn.effective)
    assert warn.effective["torch cpu capability"] == off.effective["torch cpu capability"] != ""


@pytest.mark.slow
def test_a_gradient_summed_by_several_threads_is_deterministic(tmp_path: Path) -> None:
    """With `off`, 30 repetitions gave 17 different gradients (torch 2.13, 2 threads)."""
    code = """
    import torch
    values, indices, factors = torch.randn(2000, 64), torch.randint(0, 2000, (4096,)), torch.randn(4096, 64)
    gradients = set()
    for _ in range(30):
        weights = values.clone().requires_grad_()
        (weights[indices] * factors).sum().backward()
        gradients.add(weights.grad.numpy().tobytes())
    print(len(gradients))
    """
    assert Script(tmp_path, python_with("torch")).run(code).out == "1\n"
