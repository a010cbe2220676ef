"""Spec and request -> launch. Pure: everything that had to be read from the world is in the request."""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Container, Iterator, Sequence

from repro_env.image import layout
from repro_env.model.environment import Variable
from repro_env.model.errors import UsageError
from repro_env.model.run import Launch, Mode, Mount, Request, Shown
from repro_env.model.spec import Identity, Spec

HOSTNAME = "repro-env"
NOTES = "notes.jsonl"
"""In the notes folder: what the hooks tell (`catalog.noted`)."""
TRACE = "trace"
"""In the notes folder: a folder for the steps of training, one file a process (`exec --trace`)."""
_THREADS = {
    "openmp": "OMP_NUM_THREADS",
    "mkl": "MKL_NUM_THREADS",
    "openblas": "OPENBLAS_NUM_THREADS",
    "blis": "BLIS_NUM_THREADS",
}
"""Library (`model.accelerator.Threads`) -> the variable that it reads."""
THREADS = frozenset(_THREADS.values())
"""What `--threads` sets."""
_WORKSPACE = ":4096:8"
"""CUBLAS_WORKSPACE_CONFIG: the larger of the two with which cuBLAS repeats itself (NVIDIA, cuBLAS reproducibility)."""
OFFLINE = (
    Variable(name="HF_DATASETS_OFFLINE", value="1"),
    Variable(name="HF_HUB_OFFLINE", value="1"),
    Variable(name="TRANSFORMERS_OFFLINE", value="1"),
    Variable(name="WANDB_MODE", value="offline"),
)
"""Set where there is no network: without them these libraries wait for it and fail."""
_ABSOLUTE = re.compile(r"(?:/(?!\.{1,2}(?:/|\Z))[^/\x00-\x1f\x7f]+)+")
_NEVER = ("/proc", "/dev", "/sys", "/etc", "/.repro-env", "/run/repro-env")
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib64", "/opt", "/var", "/run", "/tmp")  # noqa: S108


def plan(spec: Spec, request: Request) -> Launch:
    """Decide the run. Raises `UsageError` for a command or mount that cannot be."""
    identity = spec.identity
    workspace = request.workspace
    check_mounts(spec, request.mounts)
    return Launch(
        run_id=request.run_id,
        spec=spec.digest,
        image=spec.expected.image_id,
        layers=tuple(layer.diff_id for layer in spec.expected.layers),
        prefix=identity.layout.prefix,
        trees=(*trees(spec, workspace), *_home(spec, request.user.home)),
        argv=argv(request.command, python=identity.command, cwd=request.cwd),
        env=_variables(spec, request),
        cwd=request.cwd,
        workspace=workspace,
        snapshot=request.snapshot,
        siblings=request.siblings,
        mounts=tuple(sorted(request.mounts, key=lambda mount: mount.target)),
        tools=request.tools,
        notes=request.notes,
        user=request.user,
        hostname=HOSTNAME,
        network=request.network,
        gpus=request.gpus,
        seed=request.seed,
        fixed_addresses=request.determinism != "off",
    )


def trees(spec: Spec, workspace: str) -> tuple[Shown, ...]:
    """What of the image must be shown anew: a moved environment, and whatever lies below the workspace, which covers it."""
    identity = spec.identity
    below = {one.prefix: layout.root_of(one) for one in (identity.layout, *identity.others) if one.in_place}
    if identity.interpreter.tree is not None:
        below.setdefault(spec.observed.interpreter.prefix, spec.observed.interpreter.prefix)
    shown = {path: root for path, root in below.items() if path.startswith(workspace + "/")}
    if not identity.layout.in_place:
        shown[identity.layout.prefix] = layout.root_of(identity.layout)
    return tuple(Shown(target=target, root=shown[target]) for target in sorted(shown))


def _home(spec: Spec, home: str) -> Iterator[Shown]:
    """The held configuration in the run's home directory."""
    return (Shown(root=f"{layout.HOME}/{path}", target=f"{home}/{path}") for path in spec.observed.home)


def workspace_of(spec: Spec) -> str:
    """The path of the source inside. Raises `UsageError` for a spec that holds no source."""
    if spec.observed.source is None:
        raise UsageError("the spec holds no source", hint="capture again with --source DIR")
    return spec.observed.source.path


def argv(command: Sequence[str], *, python: str, cwd: str) -> tuple[str, ...]:
    """`x.py`, `-m mod` and `-c code` get the image's python in front; a relative program is one of the working folder."""
    first = command[0]
    if first in ("-m", "-c"):
        if len(command) == 1:
            raise UsageError(f"{first} stands alone", hint="`-m MODULE` runs a module, `-c CODE` a line of Python")
        return (python, *command)
    if first.endswith(".py"):
        return (python, *command)
    if "/" in first and not first.startswith("/"):
        return (posixpath.normpath(posixpath.join(cwd, first)), *command[1:])
    return tuple(command)


def _variables(spec: Spec, request: Request) -> tuple[Variable, ...]:
    image = {variable.name: variable.value for variable in spec.identity.config.env}
    values = {variable.name: variable.value for variable in request.caller}
    if request.runner == "host":
        tools, notes = request.tools, request.notes
        rest = [part for part in values.get("PATH", "").split(":") if part and part != spec.identity.layout.prefix + "/bin"]
        values |= image
        values["PATH"] = ":".join([posixpath.dirname(spec.identity.command), *rest]) if rest else image["PATH"]
        # The environment's own bytecode stays in use; nothing new appears among the outputs.
        values["PYTHONDONTWRITEBYTECODE"] = "1"
        if "PYTHONPATH" not in image:
            values.pop("PYTHONPATH", None)
        elif spec.observed.source is not None:
            values["PYTHONPATH"] = _moved(image["PYTHONPATH"], spec.observed.source.path, request.workspace)
    else:
        tools, notes = layout.SEEDS, layout.NOTES
        values |= image
        user = request.user
        values |= {"HOME": user.home, "USER": user.name, "LOGNAME": user.name, "PYTHONPYCACHEPREFIX": layout.PYCACHE}
    if not values.get("PYTHONHASHSEED", "").isdigit():
        values["PYTHONHASHSEED"] = str(request.seed)
    values |= {
        "REPRO_ENV_SEED": str(request.seed),
        "REPRO_ENV_NOTES": f"{notes}/{NOTES}",
        "REPRO_ENV_RANKS": request.ranks,
        "REPRO_ENV_DETERMINISM": request.determinism,
        "REPRO_ENV_RUN": request.run_id,
        "REPRO_ENV_SPEC": spec.digest,
        "REPRO_ENV_IMAGE": spec.expected.image_id,
        "REPRO_ENV_CODE": request.code or request.snapshot,
        "REPRO_ENV_DATA": json.dumps({fact.target: fact.digest for fact in request.data if fact.digest is not None}),
    }
    if request.ids == "seeded":
        values["REPRO_ENV_IDS"] = request.ids
    if request.determinism != "off":
        values.setdefault("CUBLAS_WORKSPACE_CONFIG", _WORKSPACE)
    if request.threads is not None:
        values |= {one.name: one.value for one in threads(spec, request.determinism, request.threads)}
    elif request.determinism != "off":
        # Not as variables of their own: torchrun and joblib choose for their children only where these are not set.
        values["REPRO_ENV_THREADS"] = " ".join(
            f"{one.name}={one.value}" for one in threads(spec, request.determinism, request.threads)
        )
    if request.trace is not None:
        values |= {"REPRO_ENV_TRACE": f"{notes}/{TRACE}", "REPRO_ENV_TRACE_EVERY": str(request.trace)}
    if not request.network:
        values |= {variable.name: variable.value for variable in OFFLINE}
    if any(mount.kind == "git" for mount in request.mounts):
        # The repository may belong to a different user than git runs as; the user of this tool chose to show it.
        values |= {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "safe.directory", "GIT_CONFIG_VALUE_0": request.workspace}
    captured = filter(None, values.get("PYTHONPATH", "").split(":"))
    values["PYTHONPATH"] = ":".join(dict.fromkeys((*request.python_path, *captured)))
    values |= {variable.name: variable.value for variable in request.given}
    values["PYTHONPATH"] = ":".join(filter(None, (f"{tools}/{layout.HOOKS}", values["PYTHONPATH"])))
    return tuple(Variable(name=name, value=values[name]) for name in sorted(values))


def _moved(path: str, captured: str, workspace: str) -> str:
    """A search path with the source where it is now."""
    parts = path.split(":")
    return ":".join(workspace + part[len(captured) :] if f"{part}/".startswith(f"{captured}/") else part for part in parts)


def threads(spec: Spec, mode: Mode, asked: int | None) -> tuple[Variable, ...]:
    """How many threads numeric libraries are asked to use: as many as at capture, or as the user asked. Sorted by name.

    Two runtimes of one library share their variable: the larger count is what one of them really had.
    """
    if asked is not None:
        return tuple(Variable(name=name, value=str(asked)) for name in sorted(_THREADS.values()))
    if mode == "off":
        return ()
    counts: dict[str, int] = {}
    for one in spec.observed.frameworks.threads:
        name = _THREADS.get("openmp" if one.library == "torch" else one.library)
        if name is not None and one.count > 0:
            counts[name] = max(counts.get(name, 0), one.count)
        elif one.library == "torch interop" and one.count > 0:
            counts["TORCH_INTEROP"] = one.count
    if spec.observed.host.cores > 0:
        counts["LOKY_MAX_CPU_COUNT"] = spec.observed.host.cores
    return tuple(Variable(name=name, value=str(counts[name])) for name in sorted(counts))


def check_mounts(spec: Spec, mounts: Sequence[Mount]) -> None:
    """A mount may bring something, never hide what the run stands on. Raises `UsageError` naming the option's target."""
    identity = spec.identity
    standing = (workspace_of(spec), *closed(identity), posixpath.dirname(identity.interpreter.executable))
    seen: dict[str, Mount] = {}
    for mount in mounts:
        target, option = mount.target, f"--{mount.kind}"
        if not _ABSOLUTE.fullmatch(target):
            raise UsageError(
                "is no absolute, normal path", where=f"{option} …:{target}", hint=f"give it as {option} SRC:/where/it/goes"
            )
        below = next((path for path in _NEVER if target == path or target.startswith(path + "/")), "")
        if below or target in _SYSTEM:
            raise UsageError(
                f"{below or target} is the image's own", where=f"{option} …:{target}", hint="choose another place, such as /data"
            )
        for path in standing:
            if path == target or path.startswith(target + "/"):
                raise UsageError(
                    f"it would hide {path}", where=f"{option} …:{target}", hint="choose another place, such as /data"
                )
        if target.startswith(tuple(f"{path}/" for path in closed(identity))):
            raise UsageError(
                "the environment itself stays as it is", where=f"{option} …:{target}", hint="choose a place such as /data"
            )
        if target in seen:
            raise UsageError(
                "two things cannot be in one place", where=f"{option} …:{target}", hint="give one of them another DST"
            )
        seen[target] = mount


def closed(identity: Identity) -> tuple[str, ...]:
    """Folders that are the environment's alone: nothing may be mounted there, or above."""
    whole = not identity.layout.in_place or identity.interpreter.tree is None
    shared = identity.others if whole else (identity.layout, *identity.others)
    sites = [f"{place.prefix}/{site}" for place in shared for site in (place.purelib, place.platlib)]
    return tuple(dict.fromkeys([*([identity.layout.prefix] if whole else []), layout.ENVIRONMENT, *sites]))


def working_folder(here: str, source: str, folders: Container[str]) -> str:
    """The caller's folder, as the run sees it, when the run will have it, else the source's root. `folders`: of the snapshot, relative."""
    if here == source or (here.startswith(source + "/") and here[len(source) + 1 :] in folders):
        return here
    return source


def named_paths(command: Sequence[str], *, here: str) -> tuple[str, ...]:
    """Absolute paths that the words of a command name, also as the right side of `key=value`. `here`: the working directory."""
    paths = (posixpath.normpath(posixpath.join(here, candidate)) for word in command for candidate in _candidates(word))
    return tuple(dict.fromkeys(path[1:] if path.startswith("//") else path for path in paths))


def _candidates(word: str) -> Iterator[str]:
    """What of a word may be a path. One that is no more than a name may be anything, and is only looked at with a slash or dot."""
    if "\0" in word or len(word) > 4000:
        return
    if not word.startswith("-") and ("/" in word or "." in word):
        yield word
    _, equals, right = word.partition("=")
    if equals and right:
        yield right
