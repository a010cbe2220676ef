"""The processes of one launcher that share a run: tasks of a Slurm step, pods of a job, or processes with one `--run-id`."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping

from repro_env.launch import engines
from repro_env.launch.engine import Processes
from repro_env.runs.start.request import RunOptions
from repro_env.schema import redact
from repro_env.schema.environment import Variable
from repro_env.schema.errors import UsageError
from repro_env.schema.run import Member, Start

_SAME = (
    "spec", "image", "command", "cwd", "data", "env_names", "python_path", "network", "ranks", "determinism", "ids", "threads", "trace",
    "limits", "processes",
)  # fmt: skip
"""What the starts of all processes have in common."""
_PORTS = range(10_000, 30_000)
"""Below those that kernels give to outgoing connections."""


def find(options: RunOptions) -> tuple[Member, str] | None:
    """Return this process as one of several that share a run, and their common key; None for a run of one process.

    Raises `UsageError` for ranks that are not valid, and for several machines without `--network`.
    """
    environ = options.environ
    processes = engines.processes_of(environ)
    if processes is None:
        if options.run_id is None or environ.get("WORLD_SIZE", "1") == "1":
            return None
        processes = Processes(names=("RANK", "WORLD_SIZE", "LOCAL_RANK"), key=options.run_id, machines="1")
    names, key, machines = processes.names, options.run_id or processes.key, processes.machines
    rank, size, local_rank = (_number(name, environ) for name in names)
    if rank >= size:
        hint = "start the processes with srun, or give each one its number from 0"
        raise UsageError(f"the rank {rank} must be less than the number of processes ({size})", where=names[0], hint=hint)
    if not options.traits.shares_runs:
        hint = "leave out --runner, or start one process with torchrun, which starts the others"
        raise UsageError(f"--runner {options.runner} does not support several processes in a run", hint=hint)
    if machines != "1" and not options.network:
        raise no_network(f"{machines} machines")
    name = re.sub(r"[^A-Za-z0-9.-]", "-", os.uname().nodename).lstrip(".") or "localhost"
    values = _variables(key, environ, processes, network=options.network)
    if machines == str(size):  # for torchrun, which starts the ranks of each machine
        values |= {"PET_NNODES": machines, "PET_NODE_RANK": str(rank)}
        values |= {f"PET_{name}": values[name] for name in ("MASTER_ADDR", "MASTER_PORT")}
    values |= {"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(local_rank)}
    variables = tuple(Variable(name=name, value=values[name]) for name in sorted(values))
    return Member(rank=rank, size=size, local_rank=local_rank, node=name, variables=variables), key


def no_network(machines: str) -> UsageError:
    """The error for processes on several machines that have no network."""
    return UsageError(
        f"the processes of this run are on {machines}, and cannot reach each other without a network",
        hint="add --network, or start all processes on one machine",
    )


def check_same(own: Start, first: Start, *, has_seed: bool) -> None:
    """Raise `UsageError` if this process has another command or other options than the one that made the run.

    `has_seed`: whether the user chose the seed of this process.
    """
    names = [name for name in _SAME if getattr(own, name) != getattr(first, name)]
    if has_seed and own.seed != first.seed:
        names.append("seed")
    if names:
        where = f"{names[0]}: {getattr(own, names[0])}, and not {getattr(first, names[0])}"
        hint = "give all processes the same command and options, or start each run with `env -u SLURM_STEP_NUM_TASKS`"
        raise UsageError("the processes of this run have different options", where=redact.line(where), hint=hint)


def _number(name: str, environ: Mapping[str, str]) -> int:
    text = environ.get(name, "")
    if not (text.isascii() and text.isdecimal() and len(text) < 8):
        hint = "start the processes with srun, or set RANK, WORLD_SIZE and LOCAL_RANK for each of them"
        raise UsageError(f'this variable must be a number (got "{text}")', where=name, hint=hint)
    return int(text)


def _variables(key: str, environ: Mapping[str, str], processes: Processes, *, network: bool) -> dict[str, str]:
    """What the command gets from the launcher, and where its processes meet (PyTorch, "Environment variable initialization").

    Without a network, they meet on their own interface `lo`, which the names of machines do not lead to.
    """
    port = _PORTS[int.from_bytes(hashlib.sha256(key.encode()).digest()[:4], "big") % len(_PORTS)]
    values = {**processes.variables, "MASTER_ADDR": processes.address, "MASTER_PORT": str(port)}
    values |= {name: environ[name] for name in ("LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT") if name in environ}
    return values if network else {**values, "MASTER_ADDR": "localhost"}
