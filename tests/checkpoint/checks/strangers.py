"""Checkpoints of strangers: anyone can write files and their sums. Nothing of them runs, and what is wrong is an error."""

# ruff: noqa: PT017

from __future__ import annotations

import hashlib
import io
import json
import os
import pickle
import random
import tarfile
from pathlib import Path
from typing import Any

import torch

from repro_env.checkpoint import Checkpoint, CheckpointError, files, values
from tests.checkpoint.checks.common import fails, tiny


def _saved(folder: Path) -> Path:
    model, optimizer = tiny()
    return Path(Checkpoint(folder / "c", model=model, optimizer=optimizer, signals=False).save())


def _resume(path: Path) -> None:
    model, optimizer = tiny()
    Checkpoint(path.parent / "elsewhere", model=model, optimizer=optimizer, signals=False).resume(path)


def rewrite(path: Path, change: dict[str, Any]) -> None:
    """Another manifest, with sums that fit."""
    text = json.dumps(json.loads((path / files.MANIFEST).read_text()) | change).encode()
    (path / files.MANIFEST).write_bytes(text)
    (path / files.SUMS).write_text(f"{hashlib.sha256(text).hexdigest()}  {files.MANIFEST}\n")


def replace(path: Path, name: str, data: bytes) -> None:
    """Another file, with sums that fit."""
    (path / name).write_bytes(data)
    held = json.loads((path / "manifest.json").read_text())["files"]
    held[name] = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data)}
    rewrite(path, {"files": held})


class Evil:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return (os.mkdir, (str(self.mark),))


def no_code_of_a_pickle_runs(folder: Path) -> None:
    """In torch's present format, in the one before, as a plain pickle, and in the oldest, a tar."""
    mark = folder / "ran"
    present, before = io.BytesIO(), io.BytesIO()
    torch.save({"parts": {}, "values": Evil(mark)}, present)
    torch.save({"parts": {}, "values": Evil(mark)}, before, _use_new_zipfile_serialization=False)
    plain = pickle.dumps(Evil(mark))
    oldest = io.BytesIO()
    with tarfile.open(fileobj=oldest, mode="w") as tar:
        for name in ("sys_info", "pickle", "storages", "tensors"):
            member = tarfile.TarInfo(name)
            member.size = len(plain)
            tar.addfile(member, io.BytesIO(plain))
    for name in ("state.pt", "rank-0.pt"):
        path = _saved(folder / name)
        for data in (present.getvalue(), before.getvalue(), plain, oldest.getvalue()):
            replace(path, name, data)
            fails(lambda path=path: _resume(path), name, "take another checkpoint")  # type: ignore[misc]
            assert not mark.exists()
    path = _saved(folder / "told")
    replace(path, "rank-0.pt", present.getvalue())
    fails(lambda: _resume(path), "posix.mkdir", "none of it was run")


def bytes_that_lie_are_an_error(_: Path) -> None:
    one = torch.zeros(1, dtype=torch.uint8)
    for data in (torch.zeros(3), torch.empty(9, device="meta", dtype=torch.uint8), b"text", None):
        try:
            values.decode({"repro-env": "bytes", "data": data})
        except ValueError:
            continue
        raise AssertionError(data)
    assert values.decode({"repro-env": "bytes", "data": one.expand(5)}) == bytes(5)


def a_manifest_that_lies_is_an_error(folder: Path) -> None:
    lies: list[dict[str, Any]] = [
        {"step": "3"},
        {"step": True},
        {"batch": "1"},
        {"loader": []},
        {"metrics": {"loss": [1]}},
        {"metrics": {"loss": "low"}},
        {"files": {"../c/000001-step-0/state.pt": {"sha256": "0", "size": 1}}},
        {"files": {"state.pt": {"sha256": 3, "size": 1}}},
        {"files": {"state.pt": []}},
        {"parts": {"model": "/etc/hostname", "optimizer": "state.pt"}},
        {"parts": {"model": ["state.pt"], "optimizer": "state.pt"}},
        {"world": {}},
        {"world": 1},
        {"parts": {"model": "state.pt", "optimizer": "state.pt"}},
        {"parts": {"model": "model.safetensors", "optimizer": "model.safetensors"}},
    ]
    for number, lie in enumerate(lies):
        path = _saved(folder / str(number))
        rewrite(path, lie)
        fails(lambda path=path: _resume(path), str(path))  # type: ignore[misc]


def states_of_another_shape_are_errors(folder: Path) -> None:
    """Values that load, and are not what is looked for in them."""
    own: dict[str, Any] = {"rng": {}, "loader": None, "buffers": {}, "gradients": {}, "buckets": {}}
    lies: dict[str, tuple[Any, ...]] = {
        "state.pt": ([], {"parts": 3}, {"parts": {"optimizer": 3}, "values": {}}, {"parts": {}, "values": {}}),
        "rank-0.pt": ([], {}, own | {"rng": {"torch": 3}}, own | {"rng": {"python": (1, 2)}}, own | {"gradients": 3}),
    }
    for name, states in lies.items():
        for number, state in enumerate(states):
            path, box = _saved(folder / f"{name}{number}"), io.BytesIO()
            torch.save(state, box)
            replace(path, name, box.getvalue())
            fails(lambda path=path: _resume(path))  # type: ignore[misc]


def weights_with_any_header_are_an_error_or_tensors(folder: Path) -> None:
    from repro_env.checkpoint import weights

    chance = random.Random(5)
    shapes: list[Any] = [[-1, -3], [2**40, 2**40], [[1]], None, [3.5], ["3"], [0, -1]]
    for shape in shapes:
        for offsets in ([0, 12], [0, 0], [0], "ab", [chance.randrange(20), 12]):
            header = json.dumps({"a": {"dtype": "F32", "shape": shape, "data_offsets": offsets}}).encode()
            try:
                weights.parse(bytearray(len(header).to_bytes(8, "little") + header + bytes(12)), "it")
            except CheckpointError as error:
                assert str(error).startswith("it: ")
