"""Processes that train together: {"world": {"rank", "size", "backend", "device"}} says who this one is of them."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

seeds: Any = __import__("_repro_env_seeds")
devices: Any = seeds.part("devices")
notes: Any = seeds.part("notes")


class State:
    world: Any = None
    """The last note of it; of the process `pid`."""
    pid = 0


def hook(distributed: Any) -> None:
    """Note who this process is, once it has joined."""
    import functools

    plain = distributed.init_process_group

    @functools.wraps(plain)
    def init_process_group(*args: Any, **kwargs: Any) -> Any:
        result = plain(*args, **kwargs)
        try:
            State.world, State.pid = None, os.getpid()
            note_world()
        except Exception as error:
            seeds.problem("init_process_group", error)
        return result

    distributed.init_process_group = init_process_group


def note_world() -> None:
    """Again at the end: the script may have chosen its device after it joined."""
    torch: Any = sys.modules["torch"]
    distributed = sys.modules["torch.distributed.distributed_c10d"]
    if distributed.is_initialized():
        world = {
            "rank": int(distributed.get_rank()),
            "size": int(distributed.get_world_size()),
            "backend": str(distributed.get_backend()),
            "device": "cpu",
        }
    elif State.world is not None:  # left again
        world = dict(State.world)
    else:
        return
    if devices.in_use(torch):
        world["device"] = devices.named(torch, int(torch.cuda.current_device()))
    if world != State.world:
        State.world = world
        notes.note({"world": world})
