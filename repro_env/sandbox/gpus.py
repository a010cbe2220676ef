"""Decide which GPUs a run gets: device files, libraries of the driver, variables, and facts for the record.

`look` reads the machine, and `choose` is pure. All runners use the result, so engines need neither NVIDIA's runtime nor CDI. The
files are those of the machine's CDI spec. Without one, a spec is made of what the kernel's drivers and the loader's cache list.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath

import msgspec

from repro_env.environment.machine import gpus as drivers
from repro_env.environment.machine.gpus import Gpu, is_driver
from repro_env.oci import paths
from repro_env.sandbox import cdi
from repro_env.schema import fingerprints
from repro_env.schema.codec import Frozen
from repro_env.schema.environment import Variable
from repro_env.schema.errors import RunError, UsageError
from repro_env.schema.patterns import lazy
from repro_env.schema.run import GpuFact, Gpus, HostFile

SMI = "/usr/local/bin/nvidia-smi"
"""Where a run sees `nvidia-smi`: in a directory on PATH that is usually empty."""
NVIDIA, AMD = cdi.KINDS
_MOST = 1024
_NAME = lazy(r"\d{1,4}(?::\d{1,4})?|(?:GPU|MIG)-[0-9A-Za-z-]+")
_INDEX = lazy(r"(\d+)(?::(\d+))?")
"""Names of devices in NVIDIA's CDI specs: the index of a GPU, and of a MIG device in it."""
_VISIBLE = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
"""The caller's variables that limit which GPUs a program uses. The first that is set counts."""
_GRAPHICS = ("/dev/dri/", "/dev/nvidia-modeset")
"""Device files in NVIDIA's CDI specs that CUDA does not need, and that users often may not open."""
_HINT = "request fewer GPUs, pass --gpus none, or use a machine that has them"


class Machine(Frozen, frozen=True, kw_only=True):
    """What is known about this machine's GPUs."""

    gpus: tuple[Gpu, ...] = ()
    specs: tuple[cdi.Spec, ...] = ()
    """One for each kind of GPU."""
    driver: Mapping[str, str] = {}
    """Vendor -> the driver with its version."""
    made: frozenset[str] = frozenset()
    """Kinds whose spec was made of what the drivers list."""
    sonames: Mapping[str, str] = {}
    """Library of the driver -> the name by which the loader looks for it; empty if it is for another architecture."""
    openable: frozenset[str] = frozenset()
    """Device files that this process may open: mode, owner and control group allow it."""
    visible: str = ""
    """`NAME=VALUE` of the variable in `_VISIBLE` that is set."""


class _Device(Frozen, frozen=True, kw_only=True):
    """A GPU or MIG device that can be requested."""

    kind: str
    names: tuple[str, ...]
    """UUIDs and other names, without its index."""
    text: str
    edits: cdi.Edits
    gpu: Gpu | None


def parse(text: str) -> int | str:
    """Parse the value of `--gpus`: a number of GPUs, `all`, or a list of indices and UUIDs. Raises `UsageError`."""
    if text in ("none", "all"):
        return 0 if text == "none" else text
    if text.isascii() and text.isdigit() and 0 < int(text) <= _MOST:  # 0 could mean the first GPU or none
        return int(text)
    if not text.isdigit() and all(_NAME.fullmatch(name) for name in text.split(",")):
        return text
    raise UsageError(
        f'--gpus must be "all", "none", a number of GPUs, or a list of indices or UUIDs (got "{text}")',
        hint="for example --gpus none for no GPU, --gpus 1 for one, or --gpus 2,3 for these two",
    )


def look(environ: Mapping[str, str], root: Path = Path("/")) -> Machine:
    """Read the facts about this machine's GPUs.

    `root`: of /proc, /sys, /dev, /etc and /var/run. Raises `RunError` for a CDI spec that is invalid or out of date.
    """
    gpus, specs = drivers.look(root), {spec.kind: spec for spec in cdi.read(root)}
    made = frozenset(cdi.KINDS) - specs.keys()
    if NVIDIA in made:
        libraries = drivers.driver_libraries(environ, root)
        specs[NVIDIA] = _nvidia_spec(gpus, libraries, shutil.which("nvidia-smi", path=environ.get("PATH", "")), root)
    if AMD in made:
        specs[AMD] = _amd_spec(gpus, root)
    edits = [edit for spec in specs.values() for edit in (spec.container_edits, *(each.container_edits for each in spec.devices))]
    mounts = sorted({mount.host_path for edit in edits for mount in edit.mounts if is_driver(mount.container_path)})
    for path in mounts:
        if not os.path.exists(path):  # noqa: PTH110
            hint = "generate it again (nvidia-ctk cdi generate --output=FILE), or pass --gpus none"
            raise RunError("this machine's CDI spec names a file that does not exist", where=path, hint=hint)
    return Machine(
        gpus=gpus,
        specs=tuple(specs[kind] for kind in cdi.KINDS),
        driver={"nvidia": f"nvidia {drivers.nvidia_driver(root)}", "amd": f"amdgpu {drivers.amd_driver(root)}"},
        made=made,
        sonames={path: drivers.soname(path) for path in mounts},
        openable=frozenset(node.source for edit in edits for node in edit.device_nodes if can_open(node.source)),
        visible=next((f"{name}={environ[name]}" for name in _VISIBLE if name in environ), ""),
    )


def can_open(path: str) -> bool:
    """Whether this process may open a device file. access(2) asks the control group too, and does not start the driver."""
    try:
        return stat.S_ISCHR(os.stat(path).st_mode) and os.access(path, os.R_OK | os.W_OK)  # noqa: PTH116
    except OSError:
        return False


def _nvidia_spec(gpus: Sequence[Gpu], libraries: Mapping[str, str], smi: str | None, root: Path) -> cdi.Spec:
    """The spec of NVIDIA's GPUs. `libraries`: name -> path."""
    shared = [_node(root, path) for path in ("/dev/nvidiactl", "/dev/nvidia-uvm")]
    if (root / "dev/nvidia-uvm-tools").exists():  # only for profilers
        shared.append(_node(root, "/dev/nvidia-uvm-tools"))
    files = {f"{paths.DRIVER}/{name}": path for name, path in libraries.items()} | ({SMI: os.path.realpath(smi)} if smi else {})
    mounts = tuple(cdi.Mount(host_path=path, container_path=target) for target, path in files.items())
    edits = cdi.Edits(device_nodes=tuple(shared), mounts=mounts)
    return cdi.Spec(cdi_version="0.3.0", kind=NVIDIA, devices=tuple(_gpu_devices(gpus, "nvidia", root)), container_edits=edits)


def _amd_spec(gpus: Sequence[Gpu], root: Path) -> cdi.Spec:
    """The spec of AMD's GPUs. ROCm's libraries are in the environment."""
    edits = cdi.Edits(device_nodes=(_node(root, "/dev/kfd"),))
    return cdi.Spec(cdi_version="0.3.0", kind=AMD, devices=tuple(_gpu_devices(gpus, "amd", root)), container_edits=edits)


def _gpu_devices(gpus: Sequence[Gpu], vendor: str, root: Path) -> Iterator[cdi.Device]:
    """Every GPU by its index, and by its UUID. A GPU with MIG devices comes with all of them."""
    for index, gpu in enumerate(gpu for gpu in gpus if gpu.vendor == vendor):
        if gpu.node:
            nodes = dict.fromkeys((gpu.node, *(node for mig in gpu.mig for node in mig.nodes)))
            edits = cdi.Edits(device_nodes=tuple(_node(root, path) for path in nodes))
            for name in filter(None, (str(index), gpu.uuid)):
                yield cdi.Device(name=name, container_edits=edits)


def _node(root: Path, path: str) -> cdi.Node:
    return cdi.Node(path=path, host_path=f"{str(root).rstrip('/')}{path}")


def choose(request: int | str, machine: Machine) -> Gpus:
    """Return what a run gets that requests this number of GPUs, `all`, or a list of them (see `parse`).

    Indices count the GPUs that this process may use, as nvidia-smi does. Raises `RunError` if the request cannot be met.
    """
    if request == 0:
        return Gpus()
    usable = _usable(machine)
    if isinstance(request, str) and request != "all":
        chosen = [_find(name, usable, request, machine) for name in dict.fromkeys(request.split(","))]
        return _access(chosen, machine)
    chosen = _visible(usable, machine)
    if not chosen or (isinstance(request, int) and len(chosen) < request):
        problem = absence(machine) or f"a run can use {len(chosen)} here ({_list(chosen)})"
        raise RunError(f"this request for GPUs cannot be met: {problem}", where=f"--gpus {request}", hint=_HINT)
    return _access(chosen[: request if isinstance(request, int) else None], machine)


def present(machine: Machine) -> Gpus:
    """Return the facts about the GPUs that a command without isolation can use."""
    chosen = _visible(_usable(machine), machine)
    nodes = {node.path: node.source for device in chosen for node in _nodes(device.kind, device.edits)}
    return Gpus(count=len(chosen), facts=tuple(_facts(chosen, nodes, machine)))


def share(own: Gpus, machine: Machine) -> Gpus:
    """Return what a process gets that shares a run with others on this machine, each with its `own` GPUs.

    The processes have one root, so the device files of all GPUs are in it. The variable of the launcher chooses between them, and
    the control group of a process may allow it only its own.
    """
    if not own.count:
        return own
    nodes = {node.source for device in _devices(machine) for node in _nodes(device.kind, device.edits)}
    everything = choose("all", msgspec.structs.replace(machine, visible="", openable=machine.openable | nodes))
    name, sign, value = machine.visible.partition("=")
    env = (*everything.env, *((Variable(name=name, value=value),) if sign else ()))
    return msgspec.structs.replace(everything, count=own.count, facts=own.facts, env=env)


def absence(machine: Machine) -> str:
    """Return why a run that requests `all` gets no GPU, as a clause; empty if it gets one."""
    usable, devices = _usable(machine), _devices(machine)
    if _visible(usable, machine):
        return ""
    if usable:
        return f"the variable {machine.visible} hides this machine's GPUs ({_list(usable)})"
    if devices:
        refused = [node.source for device in devices for node in _nodes(device.kind, device.edits)]
        return f"this machine has GPUs ({_list(devices)}), but this process may not open {', '.join(dict.fromkeys(refused))}"
    return "this machine has no GPU"


def _list(devices: Sequence[_Device]) -> str:
    return ", ".join(f"{number}: {device.text}" for number, device in enumerate(devices))


def _find(name: str, usable: Sequence[_Device], request: str, machine: Machine) -> _Device:
    for number, device in enumerate(usable):
        if name in (str(number), *device.names):
            return device
    problem = f"a run can use {_list(usable)}" if usable else absence(machine)
    raise RunError(f"GPU {name} cannot be used here: {problem}", where=f"--gpus {request}", hint=_HINT)


def _visible(usable: list[_Device], machine: Machine) -> list[_Device]:
    """The devices that the caller's variable allows, in its order. As in CUDA, names after an unknown one do not count."""
    if not machine.visible:
        return usable
    chosen: list[_Device] = []
    for name in (part.strip() for part in machine.visible.partition("=")[2].split(",")):
        device = next(
            (
                device
                for number, device in enumerate(usable)
                if name == str(number) or any(own.startswith(name) for own in device.names if name.startswith(("GPU-", "MIG-")))
            ),
            None,
        )
        if device is None:
            break
        chosen += [] if device in chosen else [device]
    return chosen


def _usable(machine: Machine) -> list[_Device]:
    return [
        device
        for device in _devices(machine)
        if all(node.source in machine.openable for node in _nodes(device.kind, device.edits))
    ]


def _devices(machine: Machine) -> list[_Device]:
    """All GPUs and MIG devices of this machine, in the order of their indices.

    Several names in a spec can stand for the same device files, and `all` stands for those of all others.
    """
    devices = []
    for spec in machine.specs:
        by_nodes: dict[tuple[cdi.Node, ...], list[cdi.Device]] = {}
        for device in sorted(spec.devices, key=_order):
            nodes = _nodes(spec.kind, device.container_edits)
            if nodes and (device.name != "all" or not by_nodes):
                by_nodes.setdefault(nodes, []).append(device)
        for nodes, same in by_nodes.items():
            gpu = next((gpu for gpu in machine.gpus if any(node.path == gpu.node for node in nodes)), None)
            name = f"{spec.kind}={same[0].name}"
            devices.append(
                _Device(
                    kind=spec.kind,
                    names=tuple(each.name for each in same if not each.name.isdigit()),
                    text=name if gpu is None else gpu.name,
                    edits=same[0].container_edits,
                    gpu=gpu,
                )
            )
    return devices


def _order(device: cdi.Device) -> tuple[bool, list[int]]:
    """Sort by index; `all` is last."""
    match = _INDEX.fullmatch(device.name)
    return device.name == "all", [int(number) for number in match.groups(default="0")] if match else [_MOST]


def _nodes(kind: str, edits: cdi.Edits) -> tuple[cdi.Node, ...]:
    return tuple(node for node in edits.device_nodes if kind != NVIDIA or not node.path.startswith(_GRAPHICS))


def _access(chosen: Sequence[_Device], machine: Machine) -> Gpus:
    """Everything that gives a run access to the chosen devices. Raises `RunError` if something is missing."""
    nodes: dict[str, str] = {}
    files: dict[str, str] = {}
    env: dict[str, str] = {}
    means = set()
    for spec in machine.specs:
        devices = [device.edits for device in chosen if device.kind == spec.kind]
        for edits in (*devices, spec.container_edits) if devices else ():
            nodes |= {node.path: node.source for node in _nodes(spec.kind, edits)}
            files |= {target: path for mount in edits.mounts for target, path in _files(mount, machine)}
            env |= dict(entry.split("=", 1) for entry in edits.env)
            means.add("device files and loader cache" if spec.kind in machine.made else "CDI spec")
        if devices and spec.kind == NVIDIA and f"{paths.DRIVER}/libcuda.so.1" not in files:
            raise RunError(
                "the driver's library libcuda.so.1 is not in the loader's cache",
                where="/etc/ld.so.cache",
                hint="install the driver's libraries and run ldconfig, or generate a CDI spec (nvidia-ctk cdi generate)",
            )
    for path in nodes.values():
        if path not in machine.openable:
            raise RunError(
                "this device file of the GPU driver does not exist, or this process may not open it",
                where=path,
                hint="for NVIDIA, run `nvidia-modprobe -u -c 0` as root; for AMD, add the user to the group `render`",
            )
    return Gpus(
        count=len(chosen),
        facts=tuple(_facts(chosen, nodes, machine)),
        nodes=tuple(HostFile(source=nodes[target], target=target) for target in sorted(nodes)),
        files=tuple(HostFile(source=files[target], target=target) for target in sorted(files)),
        env=tuple(Variable(name=name, value=env[name]) for name in sorted(env)),
        method=" and ".join(sorted(means)),
    )


def _files(mount: cdi.Mount, machine: Machine) -> Iterator[tuple[str, str]]:
    """(Path in the run, path here) of a library or of nvidia-smi. Nothing else is mounted: no sockets, no settings."""
    name = PurePosixPath(mount.container_path).name
    if is_driver(name):
        for own in {name, machine.sonames[mount.host_path]} if machine.sonames[mount.host_path] else ():
            yield f"{paths.DRIVER}/{own}", mount.host_path
    elif name == "nvidia-smi":
        yield SMI, mount.host_path


def _facts(chosen: Sequence[_Device], nodes: Mapping[str, str], machine: Machine) -> Iterator[GpuFact]:
    """The record of the chosen GPUs. Several MIG devices of a GPU are one GPU."""
    for gpu in dict.fromkeys(device.gpu for device in chosen if device.gpu is not None):
        yield GpuFact(
            name=gpu.name,
            driver=machine.driver[gpu.vendor],
            uuid=fingerprints.digest_of_name(gpu.uuid) if gpu.uuid else "",
            mig=tuple(mig.name for mig in gpu.mig if all(node in nodes for node in mig.nodes)),
        )
    yield from (GpuFact(name=device.text) for device in chosen if device.gpu is None)
