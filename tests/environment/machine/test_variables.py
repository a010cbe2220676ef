from __future__ import annotations

import pytest

from repro_env.environment.machine import lists, variables
from repro_env.environment.machine.variables import check_added, effect, hidden_values, secret_values, sort, unlisted, unused
from repro_env.schema import codec
from repro_env.schema.environment import Variables
from repro_env.schema.errors import UsageError

HF = "hf_" + "AbCdEfGhIjKlMnOpQrStUvWxYz01234567"


def group(name: str, value: str = "1") -> str:
    groups = sort({name: value})
    if groups.replayed:
        assert groups.replayed[0].value == value
        return "replayed"
    return "recorded" if groups.recorded else "named" if groups.named else "ignored"


@pytest.mark.parametrize(
    "name",
    ["OMP_NUM_THREADS", "MKL_CBWR", "OPENBLAS_CORETYPE", "CUBLAS_WORKSPACE_CONFIG", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "LANG", "LC_ALL",
     "TZ", "PYTHONHASHSEED", "NVIDIA_TF32_OVERRIDE", "TOKENIZERS_PARALLELISM", "XLA_FLAGS", "SOURCE_DATE_EPOCH", "ATEN_CPU_CAPABILITY"],
)  # fmt: skip
def test_variables_that_affect_numeric_results_are_replayed(name: str) -> None:
    assert group(name) == "replayed"


@pytest.mark.parametrize(
    "name",
    ["CUDA_VISIBLE_DEVICES", "LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONPATH", "PATH", "RANK", "WORLD_SIZE", "MASTER_ADDR", "SLURM_NTASKS",
     "VIRTUAL_ENV", "TORCH_HOME", "TORCHINDUCTOR_CACHE_DIR", "NCCL_DEBUG", "PYTHONHOME", "JAX_COMPILATION_CACHE_DIR"],
)  # fmt: skip
def test_variables_about_the_machine_are_only_recorded(name: str) -> None:
    assert group(name) == "recorded"


@pytest.mark.parametrize(
    "name",
    ["HOME", "WANDB_API_KEY", "HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "MY_PLAIN", "TORCH_AUTH", "OMP_PASSWORD", "SLURM_JOB_ID", "NCCL_SECRET",
     "SSH_AUTH_SOCK", "TF_SESSION", "PYTHONKEYRING_BACKEND", "xomp_num_threads", "omp_num_threads"],
)  # fmt: skip
def test_unlisted_and_secret_variables_are_recorded_by_name(name: str) -> None:
    assert group(name) == "named"


@pytest.mark.parametrize("value", ["a\nb", "a\x1b[0m", "caf\udce9", HF, "https://u:secretpw@example.org/x"])
def test_a_value_that_a_spec_cannot_store_is_not_replayed(value: str) -> None:
    assert group("OMP_PLACES", value) == "named"


def test_recorded_values_contain_no_secrets() -> None:
    groups = sort({"PYTHONPATH": "https://u:pw12@example.org/x", "LD_PRELOAD": "a\nb", "PATH": "/bin:" + "x" * 30_000})
    assert [(variable.name, variable.value) for variable in groups.recorded] == [("PYTHONPATH", "https://example.org/x")]
    assert groups.named == ("LD_PRELOAD", "PATH")


def test_groups_are_sorted_and_invalid_names_are_ignored() -> None:
    environ = {
        "TZ": "UTC",
        "LANG": "C",
        "BASH_FUNC_x%%": "() { :; }",
        "": "x",
        "b": "1",
        "A": "1",
        "é": "1",
        "RANK": "0",
        "PATH": "/bin",
    }
    groups = sort(environ)
    assert [variable.name for variable in groups.replayed] == ["LANG", "TZ"]
    assert [variable.name for variable in groups.recorded] == ["PATH", "RANK"]
    assert groups.named == ("A", "b")
    assert codec.decode(codec.canonical(groups), Variables, where="") == groups
    assert sort(dict(reversed(environ.items()))) == groups


def test_stored_text_must_not_contain_unlisted_values() -> None:
    environ = {"MY_PLAIN": "hunter2", "HOME": "/home/ann", "SHLVL": "1", "PORT": "1234567", "OMP_NUM_THREADS": "8", "USER": "ann"}
    environ |= {"DATABASE_URL": "postgres://ann:t0psecret@db/x", "API_KEY": "k-12345", "SSH_AUTH_SOCK": "/tmp/agent.1"}
    assert hidden_values(environ) == {"hunter2", "postgres://ann:t0psecret@db/x", "t0psecret", "k-12345"}
    assert secret_values(environ) == {"k-12345"}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("USER", "runner12"),
        ("LOGNAME", "ann.smith"),
        ("HOSTNAME", "gpu-node-01"),
        ("DESKTOP_SESSION", "ubuntu"),
        ("TIKTOKEN_CACHE_DIR", "/opt/caches/tiktoken-files"),
        ("TOKENIZERS_PARALLELISM", "false_or_true"),
        ("XDG_SESSION_TYPE", "wayland"),
        ("GDMSESSION", "ubuntu"),
        ("AUTHOR", "ann.smith"),
        ("PROJECT", "imagenet"),
        ("GITHUB_REPOSITORY", "org/digits2"),
    ],
)
def test_names_and_plain_words_are_not_removed_from_text(name: str, value: str) -> None:
    assert hidden_values({name: value}) == secret_values({name: value}) == frozenset()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("DB_PASSWORD", "letmein"),
        ("GITHUB_TOKEN", "plain-words"),
        ("SESSION_SECRET", "ubuntu"),
        ("PIP_INDEX_URL", "https://ann:letmein@host/simple"),
        ("GIT_ASK", "3f2a9c2e4b1d6a8f0c7e5b9d2a4f6c8e"),
        ("MY_LOGIN", "hunter2"),
    ],
)
def test_possible_secrets_are_removed_from_text(name: str, value: str) -> None:
    assert value in hidden_values({name: value})


@pytest.mark.parametrize(
    "name",
    ["GLIBC_TUNABLES", "MALLOC_PERTURB_", "KERAS_BACKEND", "ACCELERATE_MIXED_PRECISION", "PL_GLOBAL_SEED", "TORCHDYNAMO_DISABLE",
     "TRITON_INTERPRET", "SCIPY_ARRAY_API", "TORCH_COMPILE_DISABLE", "TORCHINDUCTOR_DISABLED_PASSES", "AOTINDUCTOR_REPRO_LEVEL",
     "AOT_PARTITIONER_DEBUG", "PYTORCH_CUDA_ALLOC_CONF", "CUDA_LAUNCH_BLOCKING", "CUDNN_DETERMINISTIC", "NCCL_ALGO", "RCCL_MSCCL_ENABLE",
     "MIOPEN_FIND_MODE", "ROCBLAS_LAYER", "HIPBLASLT_LOG_MASK", "JAX_ENABLE_X64", "LIBTPU_INIT_ARGS", "XLA_PYTHON_CLIENT_PREALLOCATE",
     "TF_CPP_MIN_LOG_LEVEL", "TF_DETERMINISTIC_OPS", "TF_XLA_FLAGS", "TF_ENABLE_ONEDNN_OPTS", "ORT_DISABLE_ALL_OPTIMIZATION",
     "OPENVINO_LOG_LEVEL", "DNNL_MAX_CPU_ISA", "LRU_CACHE_CAPACITY", "KMP_AFFINITY", "NUMEXPR_MAX_THREADS", "NUMBA_FASTMATH",
     "POLARS_MAX_THREADS", "PANDAS_COPY_ON_WRITE", "ARROW_DEFAULT_MEMORY_POOL", "SKLEARN_ASSUME_FINITE", "LOKY_MAX_CPU_COUNT",
     "FSDP_OFFLOAD_PARAMS", "TRANSFORMERS_VERBOSITY", "DEEPSPEED_USE_HPU", "BNB_CUDA_VERSION", "XFORMERS_DISABLED",
     "FLASH_ATTENTION_DETERMINISTIC", "VLLM_BATCH_INVARIANT", "HYDRA_FULL_ERROR", "MPLBACKEND", "PYTHON_GIL", "NVTE_ALLOW_NONDETERMINISTIC_ALGO"],
)  # fmt: skip
def test_variables_of_numeric_libraries_are_replayed(name: str) -> None:
    assert group(name) == "replayed"


@pytest.mark.parametrize(
    "name", ["HYDRA_BOOTSTRAP", "HYDRA_LAUNCHER_EXTRA_ARGS", "I_MPI_HYDRA_BOOTSTRAP", "OMPI_MCA_plm_slurm_args"]
)
def test_variables_by_which_slurm_configures_mpi_launchers_are_not_reported(name: str) -> None:
    assert variables.unused({name: "slurm"}, {}, ()) == ()
    assert variables.unlisted([name]) == ()


@pytest.mark.parametrize(
    "name",
    ["TF_VAR_region", "TF_LOG", "TF_CLI_ARGS", "TF_DATA_DIR", "TF_WORKSPACE", "KERASX", "ATENA", "OMPX_THREADS", "LC_TERMINAL", "DATASETS_PATH"],
)  # fmt: skip
def test_a_name_that_matches_only_part_of_a_prefix_is_unlisted(name: str) -> None:
    assert group(name) == "named"


def test_the_list_has_no_duplicates_and_prefixes_end_with_an_underscore() -> None:
    sections = lists.sections("variables")
    names = [
        name
        for section in sections
        for effect in ("captured", "replayed", "recorded")
        for name in section.get(effect, "").split()
    ]
    assert sorted(names) == sorted(set(names))
    allowed = {
        "PYTHON*",
        "XLA_CACHE*",
        "XLA_PERSISTENT_CACHE*",
        "JAX_COORDINATOR*",
        "JAX_PROCESS*",
        "CUDNN_LOGDEST*",
        "CUBLAS_LOGDEST*",
    }
    assert {name for name in names if name.endswith("*") and not name.endswith("_*")} <= allowed | {"CUBLASLT_LOGDEST*"}
    assert effect("NCCL_ALGO") == "replayed"
    assert effect("NCCL_SOCKET_IFNAME") == "recorded"


def test_variables_of_the_session_are_not_unlisted() -> None:
    names = ("DATA", "HOME", "GITHUB_SHA", "MY_FLAG", "SSH_AUTH_SOCK", "TERM", "XDG_RUNTIME_DIR", "_")
    assert unlisted(names) == ("DATA", "MY_FLAG")
    groups = sort({"DATA": "1", "MY_FLAG": "2"}, ["DATA"])
    assert ([variable.name for variable in groups.replayed], groups.named, groups.added) == (["DATA"], ("MY_FLAG",), ("DATA",))


def test_unused_variables_are_missing_or_different_in_a_run() -> None:
    here = {"OMP_NUM_THREADS": "3", "LANG": "C", "RANK": "1", "PATH": "/bin", "OTHER": "1", "DATA": "2"}
    assert unused(here, {"LANG": "C", "OMP_NUM_THREADS": "8", "DATA": "1"}, ("DATA",)) == ("DATA", "OMP_NUM_THREADS", "RANK")


@pytest.mark.parametrize(
    "name", ["NOT_SET", "A=b", "PATH", "HOME", "PYTHONPATH", "REPRO_ENV_SEED", "API_KEY", "PLAIN", "TWO_LINES"]
)
def test_check_added_refuses_a_variable_that_cannot_be_recorded(name: str) -> None:
    environ = dict.fromkeys(("PATH", "HOME", "PYTHONPATH", "REPRO_ENV_SEED", "API_KEY"), "1") | {"PLAIN": HF, "TWO_LINES": "a\nb"}
    check_added(["OMP_NUM_THREADS"], {"OMP_NUM_THREADS": "1"})
    with pytest.raises(UsageError):
        check_added([name], environ)
