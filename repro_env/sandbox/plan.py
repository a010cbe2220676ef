"""Plan a run: from a spec, the record of the start and a request to a launch. Pure, because these have everything that was read."""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Container, Iterator, Sequence

from repro_env.oci import paths as layout
from repro_env.schema.environment import Interpreter, Variable, values_of
from repro_env.schema.errors import UsageError
from repro_env.schema.run import Claim, ImageTree, Launch, Mode, Mount, Request, Start
from repro_env.schema.rundirectory import TRACE
from repro_env.schema.spec import Identity, Spec

_THREADS = {
    "openmp": "OMP_NUM_THREADS",
    "mkl": "MKL_NUM_THREADS",
    "openblas": "OPENBLAS_NUM_THREADS",
    "blis": "BLIS_NUM_THREADS",
}
"""Library (`schema.frameworks.Threads`) -> the variable that sets its number of threads."""
THREADS = frozenset(_THREADS.values())
"""The variables that `--threads` sets."""
_WORKSPACE = ":4096:8"
"""CUBLAS_WORKSPACE_CONFIG: the larger of the two values that make cuBLAS deterministic (NVIDIA, cuBLAS reproducibility)."""
OFFLINE = (
    Variable(name="HF_DATASETS_OFFLINE", value="1"),
    Variable(name="HF_HUB_OFFLINE", value="1"),
    Variable(name="TRANSFORMERS_OFFLINE", value="1"),
    Variable(name="WANDB_MODE", value="offline"),
)
"""Set for runs without network, because otherwise these libraries wait for the network and fail."""
_ABSOLUTE = re.compile(r"(?:/(?!\.{1,2}(?:/|\Z))[^/\x00-\x1f\x7f]+)+")
_NEVER = ("/proc", "/dev", "/sys", "/etc", "/.repro-env", "/run/repro-env")
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/opt", "/var", "/run", "/tmp")  # noqa: S108


def plan(spec: Spec, start: Start, request: Request) -> Launch:
    """Plan the run. Raises `UsageError` for an invalid command or mount."""
    identity = spec.identity
    workspace = workspace_of(spec)
    if identity.layout.prefix == workspace:
        raise UsageError(
            "this directory is both the environment and the source",
            where=workspace,
            hint="keep the environment in a separate directory, and capture again",
        )
    check_mounts(spec, request.mounts)
    # Captured configuration files are at their paths in the run's home directory.
    home = [ImageTree(root=f"{layout.HOME}/{path}", target=f"{request.user.home}/{path}") for path in spec.observed.home]
    return Launch(
        run_id=start.id,
        image=start.image,
        layers=tuple(layer.diff_id for layer in spec.expected.layers),
        prefix=identity.layout.prefix,
        trees=(*trees(spec, workspace), *home),
        argv=argv(request.command, python=identity.command, cwd=start.cwd),
        env=_variables(spec, start, request),
        cwd=start.cwd,
        workspace=workspace,
        snapshot=start.source.tree_in_run,
        times=start.source.times,
        mounts=tuple(sorted(request.mounts, key=lambda mount: mount.target)),
        tools=request.tools,
        site=_site(spec.observed.interpreter),
        reports=request.reports,
        user=request.user,
        network=request.network,
        gpus=request.gpus,
        resumed=request.resumed,
        member=request.member,
        streams=request.streams,
        limits=start.limits,
        fixed_addresses=start.determinism != "off",
    )


def _site(interpreter: Interpreter) -> str | None:
    """The archive of modules that Python has on `sys.path` before its library, whether it exists or not; None for another layout."""
    directory, _, name = interpreter.stdlib.rpartition("/")
    return f"{directory}/{name.replace('.', '')}.zip" if re.fullmatch(r"python3\.\d+t?", name) else None


def trees(spec: Spec, workspace: str) -> tuple[ImageTree, ...]:
    """Trees of the image that need a mount: a moved environment, and trees below the workspace, which would hide them."""
    identity = spec.identity
    environments = (identity.layout, *identity.other_layouts)
    in_place = {environment.prefix: layout.root_of(environment) for environment in environments if environment.in_place}
    if identity.interpreter.tree is not None:
        in_place.setdefault(spec.observed.interpreter.prefix, spec.observed.interpreter.prefix)
    shown = {path: root for path, root in in_place.items() if path.startswith(workspace + "/")}
    if not identity.layout.in_place:
        shown[identity.layout.prefix] = layout.root_of(identity.layout)
    return tuple(ImageTree(target=target, root=shown[target]) for target in sorted(shown))


def workspace_of(spec: Spec) -> str:
    """The path of the source inside the run. Raises `UsageError` for a spec without source."""
    if spec.observed.source is None:
        raise UsageError("the spec was captured without source code", hint="capture again with --source DIR")
    return spec.observed.source.path


def argv(command: Sequence[str], *, python: str, cwd: str) -> tuple[str, ...]:
    """The command as it is executed: `python` is added before `x.py`, `-m MODULE` and `-c CODE`; relative paths become absolute."""
    first = command[0]
    if first in ("-m", "-c"):
        if len(command) == 1:
            raise UsageError(
                f"{first} needs an argument", hint="use `-m MODULE` to run a module, or `-c CODE` to run Python code"
            )
        return (python, *command)
    if first.endswith(".py"):
        return (python, *command)
    if "/" in first and not first.startswith("/"):
        return (posixpath.normpath(posixpath.join(cwd, first)), *command[1:])
    return tuple(command)


def _variables(spec: Spec, start: Start, request: Request) -> tuple[Variable, ...]:
    image = values_of(spec.identity.config.env)
    values = values_of(request.caller)
    traits = start.traits
    tools, reports = (layout.SEEDS, layout.REPORTS) if traits.has_own_root else (request.tools, request.reports)
    if traits.passes_environment:
        caller_path = [
            part for part in values.get("PATH", "").split(":") if part and part != spec.identity.layout.prefix + "/bin"
        ]
        values |= image
        values["PATH"] = ":".join([posixpath.dirname(spec.identity.command), *caller_path]) if caller_path else image["PATH"]
        # Python uses the environment's bytecode, but must not write new bytecode among the outputs.
        values["PYTHONDONTWRITEBYTECODE"] = "1"
        if "PYTHONPATH" not in image:
            values.pop("PYTHONPATH", None)
    else:
        values |= image
        user = request.user
        values |= {"HOME": user.home, "USER": user.name, "LOGNAME": user.name, "PYTHONPYCACHEPREFIX": layout.PYCACHE}
    if not values.get("PYTHONHASHSEED", "").isdigit():
        values["PYTHONHASHSEED"] = str(start.seed)
    values |= {
        "REPRO_ENV_SEED": str(start.seed),
        "REPRO_ENV_REPORTS": f"{reports}/{request.member.reports_file}",
        "REPRO_ENV_RANKS": start.ranks,
        "REPRO_ENV_DETERMINISM": start.determinism,
        "REPRO_ENV_RUN": start.id,
        "REPRO_ENV_SPEC": start.spec,
        "REPRO_ENV_IMAGE": start.image,
        "REPRO_ENV_CODE": start.source.digest,
        "REPRO_ENV_DATA": json.dumps({fact.target: fact.digest for fact in start.data if fact.digest is not None}),
    }
    values.pop("REPRO_ENV_RESUMES", None)  # on the host, the caller may be in a resumed run itself
    if start.resumes:
        values["REPRO_ENV_RESUMES"] = str(start.resumes)
    if start.ids == "seeded":
        values["REPRO_ENV_IDS"] = start.ids
    if start.determinism != "off":
        values.setdefault("CUBLAS_WORKSPACE_CONFIG", _WORKSPACE)
    if request.threads is not None:
        values |= values_of(start.threads)
    elif start.determinism != "off":
        # Not as separate variables: torchrun and joblib set them for their child processes only if they are not set.
        values["REPRO_ENV_THREADS"] = " ".join(f"{variable.name}={variable.value}" for variable in start.threads)
    if start.trace:
        values["REPRO_ENV_TRACE"] = f"{reports}/{TRACE}"
    if not request.network:
        values |= values_of(OFFLINE)
    if any(mount.kind == "git" for mount in request.mounts):
        # git rejects a repository of another user. This one was chosen by the user of this tool, so it is safe.
        values |= {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "safe.directory", "GIT_CONFIG_VALUE_0": workspace_of(spec)}
    values = values_of(request.gpus.env) | values
    captured = filter(None, values.get("PYTHONPATH", "").split(":"))
    values["PYTHONPATH"] = ":".join(dict.fromkeys((*start.python_path, *captured)))
    values |= values_of(request.member.variables)
    values |= values_of(request.env)
    values["PYTHONPATH"] = ":".join(filter(None, (f"{tools}/{layout.HOOKS}", values["PYTHONPATH"])))
    return tuple(Variable(name=name, value=values[name]) for name in sorted(values))


def threads(spec: Spec, mode: Mode, requested: int | None) -> tuple[Variable, ...]:
    """Variables with the number of threads for numeric libraries: as captured, or as requested. Sorted by name.

    Two runtimes of a library share a variable, which gets the larger count.
    """
    if requested is not None:
        return tuple(Variable(name=name, value=str(requested)) for name in sorted(_THREADS.values()))
    if mode == "off":
        return ()
    counts: dict[str, int] = {}
    for captured in spec.observed.frameworks.threads:
        name = _THREADS.get("openmp" if captured.library == "torch" else captured.library)
        if name is not None and captured.count > 0:
            counts[name] = max(counts.get(name, 0), captured.count)
        elif captured.library == "torch interop" and captured.count > 0:
            counts["TORCH_INTEROP"] = captured.count
    if spec.observed.host.cores > 0:
        counts["LOKY_MAX_CPU_COUNT"] = spec.observed.host.cores
    return tuple(Variable(name=name, value=str(counts[name])) for name in sorted(counts))


def check_mounts(spec: Spec, mounts: Sequence[Mount | Claim]) -> None:
    """Raise `UsageError` for a mount that would hide files that the run needs, or whose target is invalid."""
    identity = spec.identity
    protected = protected_directories(identity)
    needed = (workspace_of(spec), *protected, posixpath.dirname(identity.interpreter.executable))
    targets: set[str] = set()
    for mount in mounts:
        target, problem, system = mount.target, "", ""
        if not _ABSOLUTE.fullmatch(target):
            problem = "the target of a mount must be an absolute path without `.` and `..`"
        elif target in _SYSTEM or (system := next((path for path in _NEVER if f"{target}/".startswith(f"{path}/")), "")):
            problem = f"{system or target} belongs to the image and cannot be covered by a mount"
        elif hidden := next((path for path in needed if f"{path}/".startswith(f"{target}/")), ""):
            problem = f"this mount would hide {hidden}"
        elif target.startswith(tuple(f"{path}/" for path in protected)):
            problem = "nothing can be mounted in the environment"
        elif target in targets:
            problem = "two mounts have the same target"
        if problem:
            raise UsageError(problem, where=f"--{mount.kind} …:{target}", hint="choose another absolute path, such as /data")
        targets.add(target)


def protected_directories(identity: Identity) -> tuple[str, ...]:
    """Directories of the environment in which, and above which, nothing may be mounted."""
    has_own_prefix = not identity.layout.in_place or identity.interpreter.tree is None
    shared = identity.other_layouts if has_own_prefix else (identity.layout, *identity.other_layouts)
    sites = [site for environment in shared for site in environment.sites]
    return tuple(dict.fromkeys([*([identity.layout.prefix] if has_own_prefix else []), layout.ENVIRONMENT, *sites]))


def working_directory(here: str, source: str, directories: Container[str]) -> str:
    """The caller's directory `here` if it is in the snapshot, else the root of the source. `directories`: of the snapshot, relative."""
    if here == source or (here.startswith(source + "/") and here[len(source) + 1 :] in directories):
        return here
    return source


def named_paths(command: Sequence[str], *, here: str) -> tuple[str, ...]:
    """Absolute paths that the arguments of a command name, including those in `key=value`. `here`: the working directory."""
    paths = (posixpath.normpath(posixpath.join(here, candidate)) for word in command for candidate in _candidates(word))
    return tuple(dict.fromkeys(path[1:] if path.startswith("//") else path for path in paths))


def _candidates(word: str) -> Iterator[str]:
    """Parts of an argument that may be paths. An argument without a slash and a dot may be anything, so it is skipped."""
    if "\0" in word or len(word) > 4000:
        return
    if not word.startswith("-") and ("/" in word or "." in word):
        yield word
    _, equals, right = word.partition("=")
    if equals and right:
        yield right
