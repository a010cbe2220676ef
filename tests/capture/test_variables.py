from __future__ import annotations

import pytest

from repro_env.capture.variables import hidden, secret, sort
from repro_env.model import codec
from repro_env.model.environment import Variables

HF = "hf_" + "AbCdEfGhIjKlMnOpQrStUvWxYz01234567"


def group(name: str, value: str = "1") -> str:
    said = sort({name: value})
    if said.replayed:
        assert said.replayed[0].value == value
        return "replayed"
    return "recorded" if said.recorded else "named" if said.named else "left out"


@pytest.mark.parametrize(
    "name",
    ["OMP_NUM_THREADS", "MKL_CBWR", "OPENBLAS_CORETYPE", "CUBLAS_WORKSPACE_CONFIG", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "LANG", "LC_ALL",
     "TZ", "PYTHONHASHSEED", "NVIDIA_TF32_OVERRIDE", "TOKENIZERS_PARALLELISM", "XLA_FLAGS", "SOURCE_DATE_EPOCH", "ATEN_CPU_CAPABILITY"],
)  # fmt: skip
def test_numerics_are_replayed(name: str) -> None:
    assert group(name) == "replayed"


@pytest.mark.parametrize(
    "name",
    ["CUDA_VISIBLE_DEVICES", "LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONPATH", "PATH", "RANK", "WORLD_SIZE", "MASTER_ADDR", "SLURM_NTASKS",
     "VIRTUAL_ENV", "TORCH_HOME", "TORCHINDUCTOR_CACHE_DIR", "NCCL_DEBUG", "PYTHONHOME", "JAX_COMPILATION_CACHE_DIR"],
)  # fmt: skip
def test_placement_is_recorded_only(name: str) -> None:
    assert group(name) == "recorded"


@pytest.mark.parametrize(
    "name",
    ["HOME", "WANDB_API_KEY", "HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "MY_PLAIN", "TORCH_AUTH", "OMP_PASSWORD", "SLURM_JOB_ID", "NCCL_SECRET",
     "SSH_AUTH_SOCK", "TF_SESSION", "PYTHONKEYRING_BACKEND", "xomp_num_threads", "omp_num_threads"],
)  # fmt: skip
def test_the_rest_is_named(name: str) -> None:
    assert group(name) == "named"


@pytest.mark.parametrize("value", ["a\nb", "a\x1b[0m", "caf\udce9", HF, "https://u:secretpw@example.org/x"])
def test_a_value_that_cannot_be_written_is_not_replayed(value: str) -> None:
    assert group("OMP_PLACES", value) == "named"


def test_recorded_values_lose_their_secrets() -> None:
    said = sort({"PYTHONPATH": "https://u:pw12@example.org/x", "LD_PRELOAD": "a\nb", "PATH": "/bin:" + "x" * 30_000})
    assert [(one.name, one.value) for one in said.recorded] == [("PYTHONPATH", "https://example.org/x")]
    assert said.named == ("LD_PRELOAD", "PATH")


def test_sorted_and_strange_names_left_out() -> None:
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
    said = sort(environ)
    assert [one.name for one in said.replayed] == ["LANG", "TZ"]
    assert [one.name for one in said.recorded] == ["PATH", "RANK"]
    assert said.named == ("A", "b")
    assert codec.decode(codec.canonical(said), Variables, where="") == said
    assert sort(dict(reversed(environ.items()))) == said


def test_values_that_texts_must_not_repeat() -> None:
    environ = {"MY_PLAIN": "hunter2", "HOME": "/home/ann", "SHLVL": "1", "PORT": "1234567", "OMP_NUM_THREADS": "8", "USER": "ann"}
    environ |= {"DATABASE_URL": "postgres://ann:t0psecret@db/x", "API_KEY": "k-12345", "SSH_AUTH_SOCK": "/tmp/agent.1"}
    assert hidden(environ) == {"hunter2", "postgres://ann:t0psecret@db/x", "t0psecret", "k-12345"}
    assert secret(environ) == {"k-12345"}
