from __future__ import annotations

from typing import Any

import msgspec
import pytest

from repro_env.oci import paths as layout
from repro_env.sandbox import plan
from repro_env.schema import codec
from repro_env.schema.environment import Variable
from repro_env.schema.errors import UsageError
from repro_env.schema.frameworks import Threads
from repro_env.schema.image import Config
from repro_env.schema.run import Launch, Mount, Request, SourceFact, Start, User
from repro_env.schema.rundirectory import REPORTS_FILE, TRACE
from repro_env.schema.spec import Spec
from tests.fakes import specs

PREFIX = "/home/ann/project/.venv"
PROJECT = "/home/ann/project"
DIGEST = "sha256:" + "0" * 64


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> Spec:
    return specs.make(tmp_path_factory.mktemp("spec") / "repro", {}, prefix=PREFIX)


def launch_of(spec: Spec, **changes: Any) -> Launch:
    """The launch of a run with these changes to its start and its request."""
    start = Start(
        schema="repro-env/run-start/1",
        id="id",
        started="2026-07-01T10:15:30.000Z",
        spec=spec.digest,
        image=spec.expected.image_id,
        runner="embedded",
        command=("train.py",),
        cwd=PROJECT,
        seed=7,
        source=SourceFact(path=PROJECT, digest=DIGEST, directory=None, differs=()),
        data=(),
        env_names=(),
        network=False,
        host=(),
        determinism="warn",
    )
    request = Request(
        command=("train.py",),
        mounts=(),
        env=(),
        caller=(Variable(name="TERM", value="xterm"),),
        user=User(uid=1000, gid=1000, name="ann", home="/home/ann"),
        network=False,
        tools="/tool/repro_env",
        reports="/runs/x/reports",
    )
    of_request = {name: changes.pop(name) for name in Request.__struct_fields__ if name in changes}
    request = msgspec.structs.replace(request, **of_request)
    start = msgspec.structs.replace(start, **changes)
    return plan.plan(
        spec, msgspec.structs.replace(start, threads=plan.threads(spec, start.determinism, request.threads)), request
    )


def env(launch: Launch) -> dict[str, str]:
    return {variable.name: variable.value for variable in launch.env}


def with_env(spec: Spec, **values: str) -> Spec:
    variables = (*spec.identity.config.env, *(Variable(name=name, value=value) for name, value in values.items()))
    return msgspec.structs.replace(spec, identity=msgspec.structs.replace(spec.identity, config=Config(env=variables)))


def given(**values: str) -> tuple[Variable, ...]:
    return tuple(Variable(name=name, value=value) for name, value in values.items())


def test_a_launch_combines_the_spec_and_the_request(spec: Spec) -> None:
    launch = launch_of(spec)
    assert env(launch)["REPRO_ENV_SPEC"] == spec.digest
    assert launch.image == spec.expected.image_id
    assert launch.layers == tuple(layer.diff_id for layer in spec.expected.layers)
    assert (launch.prefix, launch.workspace, launch.cwd) == (PREFIX, PROJECT, PROJECT)
    assert (launch.tools, launch.reports) == ("/tool/repro_env", "/runs/x/reports")
    assert codec.decode(codec.canonical(launch), Launch, where="launch") == launch


def test_captured_configuration_is_mounted_in_the_home_directory(spec: Spec) -> None:
    with_configuration = msgspec.structs.replace(
        spec, observed=msgspec.structs.replace(spec.observed, home=(".keras/keras.json",))
    )
    (shown,) = set(launch_of(with_configuration).trees) - set(launch_of(spec).trees)
    assert (shown.root, shown.target) == (f"{layout.HOME}/.keras/keras.json", "/home/ann/.keras/keras.json")


def test_git_trusts_a_mounted_repository(spec: Spec) -> None:
    mount = Mount(kind="git", source="/store/x", target=f"{PROJECT}/.git")
    assert env(launch_of(spec, mounts=(mount,)))["GIT_CONFIG_VALUE_0"] == PROJECT
    assert "GIT_CONFIG_COUNT" not in env(launch_of(spec))


@pytest.mark.parametrize(
    ("command", "argv"),
    [
        (("train.py", "-x"), (f"{PREFIX}/bin/python", "train.py", "-x")),
        (("/a/b.py",), (f"{PREFIX}/bin/python", "/a/b.py")),
        (("-m", "pkg.mod", "-m"), (f"{PREFIX}/bin/python", "-m", "pkg.mod", "-m")),
        (("-c", "print(1)"), (f"{PREFIX}/bin/python", "-c", "print(1)")),
        (("torchrun", "train.py"), ("torchrun", "train.py")),
        (("./run.sh", "a"), (f"{PROJECT}/run.sh", "a")),
        (("../x/run",), ("/home/ann/x/run",)),
        (("/bin/true",), ("/bin/true",)),
        (("python", "train.py"), ("python", "train.py")),
    ],
)
def test_the_first_argument_decides_which_program_starts(spec: Spec, command: tuple[str, ...], argv: tuple[str, ...]) -> None:
    assert launch_of(spec, command=command).argv == argv


@pytest.mark.parametrize("word", ["-m", "-c"])
def test_an_option_without_its_argument_is_refused(spec: Spec, word: str) -> None:
    with pytest.raises(UsageError, match="needs an argument"):
        launch_of(spec, command=(word,))


def test_the_variables_come_from_the_image_the_user_and_the_hooks(spec: Spec) -> None:
    values = env(launch_of(spec))
    assert values["PATH"].startswith(f"{PREFIX}/bin:{layout.SYSTEM_PATH}")
    assert (values["HOME"], values["USER"], values["LOGNAME"], values["TERM"]) == ("/home/ann", "ann", "ann", "xterm")
    assert (values["PYTHONHASHSEED"], values["REPRO_ENV_SEED"]) == ("7", "7")
    assert values["PYTHONPATH"] == f"{layout.SEEDS}/{layout.HOOKS}"
    assert values["REPRO_ENV_REPORTS"] == f"{layout.REPORTS}/{REPORTS_FILE}"
    assert values["PYTHONPYCACHEPREFIX"] == layout.PYCACHE
    assert values["WANDB_MODE"] == "offline"
    assert values["HF_HUB_OFFLINE"] == values["TRANSFORMERS_OFFLINE"] == values["HF_DATASETS_OFFLINE"] == "1"


def with_threads(spec: Spec, *counts: tuple[str, int], cores: int = 4) -> Spec:
    threads = tuple(Threads(library=library, count=count) for library, count in counts)
    frameworks = msgspec.structs.replace(spec.observed.frameworks, threads=threads)
    host = msgspec.structs.replace(spec.observed.host, cores=cores)
    return msgspec.structs.replace(spec, observed=msgspec.structs.replace(spec.observed, frameworks=frameworks, host=host))


def test_the_number_of_threads_is_that_of_the_capture(spec: Spec) -> None:
    captured = with_threads(spec, ("torch", 4), ("openmp", 2), ("openmp", 3), ("openblas", 0), ("mkl", 4), ("torch interop", 8))
    values = env(launch_of(captured))
    assert values["REPRO_ENV_THREADS"] == "LOKY_MAX_CPU_COUNT=4 MKL_NUM_THREADS=4 OMP_NUM_THREADS=4 TORCH_INTEROP=8"
    assert "OMP_NUM_THREADS" not in values, "torchrun and joblib check whether it is set"
    requested = env(launch_of(captured, threads=1))
    assert (requested["OMP_NUM_THREADS"], requested["MKL_NUM_THREADS"], requested["OPENBLAS_NUM_THREADS"]) == ("1", "1", "1")
    assert "REPRO_ENV_THREADS" not in requested
    off = env(launch_of(captured, determinism="off"))
    assert "REPRO_ENV_THREADS" not in off
    assert "CUBLAS_WORKSPACE_CONFIG" not in off
    assert env(launch_of(captured, determinism="off", threads=2))["OMP_NUM_THREADS"] == "2"


def test_options_reach_the_hooks_as_variables(spec: Spec) -> None:
    launch = launch_of(spec, determinism="strict", ranks="same", trace=True)
    values = env(launch)
    assert (values["REPRO_ENV_DETERMINISM"], values["REPRO_ENV_RANKS"], values["REPRO_ENV_RUN"]) == ("strict", "same", "id")
    assert values["REPRO_ENV_TRACE"] == f"{layout.REPORTS}/{TRACE}"
    assert values["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    assert launch.fixed_addresses
    assert not launch_of(spec, determinism="off").fixed_addresses
    assert "REPRO_ENV_TRACE" not in env(launch_of(spec))
    own = with_env(spec, CUBLAS_WORKSPACE_CONFIG=":16:8")
    assert env(launch_of(own))["CUBLAS_WORKSPACE_CONFIG"] == ":16:8"


def test_with_network_libraries_are_not_set_to_offline(spec: Spec) -> None:
    values = env(launch_of(spec, network=True))
    assert not values.keys() & {variable.name for variable in plan.OFFLINE}


def test_given_variables_override_all_others_and_the_hooks_still_start(spec: Spec) -> None:
    values = env(launch_of(spec, env=given(WANDB_MODE="online", PYTHONHASHSEED="1", PYTHONPATH="/mine", HOME="/h")))
    assert (values["WANDB_MODE"], values["PYTHONHASHSEED"], values["HOME"]) == ("online", "1", "/h")
    assert values["PYTHONPATH"] == f"{layout.SEEDS}/{layout.HOOKS}:/mine"


def test_a_captured_hash_seed_and_python_path_are_used(spec: Spec) -> None:
    values = env(launch_of(with_env(spec, PYTHONHASHSEED="0", PYTHONPATH="/lib/mine")))
    assert (values["PYTHONHASHSEED"], values["PYTHONPATH"]) == ("0", f"{layout.SEEDS}/{layout.HOOKS}:/lib/mine")
    assert env(launch_of(with_env(spec, PYTHONHASHSEED="random")))["PYTHONHASHSEED"] == "7"


def test_the_host_runner_passes_the_callers_variables(spec: Spec) -> None:
    caller = given(PATH=f"/usr/bin:{PREFIX}/bin:/bin", LANG="C", HOME="/root", PYTHONPATH="/stray", OMP_NUM_THREADS="9")
    values = env(launch_of(with_env(spec, OMP_NUM_THREADS="2"), runner="host", caller=caller))
    assert values["PATH"] == f"{PREFIX}/bin:/usr/bin:/bin"
    assert values["HOME"] == "/root"
    assert values["OMP_NUM_THREADS"] == "2"
    assert values["PYTHONPATH"] == f"/tool/repro_env/{layout.HOOKS}"
    assert values["REPRO_ENV_REPORTS"] == f"/runs/x/reports/{REPORTS_FILE}"
    assert "PYTHONPYCACHEPREFIX" not in values


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("relative", "must be an absolute path"),
        ("/a/../b", "must be an absolute path"),
        ("/", "must be an absolute path"),
        ("/a\nb", "must be an absolute path"),
        ("/proc", "/proc"),
        ("/proc/self", "/proc"),
        ("/dev/shm/x", "/dev"),
        ("/sys", "/sys"),
        ("/etc/ssl", "/etc"),
        ("/usr", "belongs to the image"),
        ("/tmp", "belongs to the image"),
        (layout.SEEDS, "belongs to the image"),
        (PREFIX, f"hide {PREFIX}"),
        (f"{PREFIX}/lib", "in the environment"),
        (PROJECT, f"hide {PROJECT}"),
        ("/home/ann", f"hide {PROJECT}"),
        (layout.ENVIRONMENT, f"hide {layout.ENVIRONMENT}"),
        ("/opt/python/bin", "hide /opt/python/bin"),
    ],
)
def test_a_mount_that_hides_required_files_is_refused(spec: Spec, target: str, words: str) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        launch_of(spec, mounts=(Mount(kind="data", source="/d", target=target),))
    assert caught.value.where.startswith("--data")


def test_mounts_are_sorted_and_have_distinct_targets(spec: Spec) -> None:
    first, second = (Mount(kind="data", source="/d", target=target) for target in ("/data", f"{PROJECT}/data"))
    assert launch_of(spec, mounts=(second, first)).mounts == (first, second)
    with pytest.raises(UsageError, match="the same target"):
        launch_of(spec, mounts=(first, Mount(kind="checkpoints", source="/e", target="/data")))


@pytest.mark.parametrize(
    ("here", "expected"),
    [
        (PROJECT, PROJECT),
        (f"{PROJECT}/sub", f"{PROJECT}/sub"),
        (f"{PROJECT}/excluded", PROJECT),
        ("/home/ann", PROJECT),
        ("/home/ann/project2", PROJECT),
    ],
)
def test_the_working_directory_is_the_callers_if_the_run_has_it(here: str, expected: str) -> None:
    assert plan.working_directory(here, PROJECT, {"sub"}) == expected


def test_paths_are_found_in_the_arguments_of_a_command() -> None:
    command = [
        "train.py",
        "config.yaml",
        "--data=/d",
        "data.path=data/x",
        "/out.txt",
        "//out.txt",
        "./a/../b",
        "x",
        "--flag=",
        "bad\0byte/",
        "/",
    ]
    paths = plan.named_paths(command, here="/p")
    assert paths == ("/p/train.py", "/p/config.yaml", "/d", "/p/data.path=data/x", "/p/data/x", "/out.txt", "/p/b", "/")
    assert plan.named_paths(["adam"], here="/p") == (), "a bare name may be anything"
